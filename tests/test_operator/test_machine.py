"""The pure core against an adversary: whatever happens, in whatever order, and however late the operator hears of it.

Unlike the worlds of test_world.py, nothing here happens by itself, not even time: each rule is one step of the
operator, of the cluster or of a person, and the operator sees only what it has been told.
"""

# ruff: noqa: D102 - the name of a rule says what happens
from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any, Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inferbench_operator.core.decide import decide
from inferbench_operator.core.facts import Observed
from inferbench_operator.core.names import ANNOTATION_RERUN
from inferbench_operator.kube.cache import Cache
from inferbench_operator.kube.kinds import BENCHMARK, JOB, POD, RESULT
from inferbench_operator.models.status import BenchmarkStatus, CellState, CellStatus, ConditionType
from operator_testing.builders import NAME, SETTINGS, spec_json
from operator_testing.hand_cluster import Clock, End, HandCluster, is_leaving, is_over, is_running, waits
from operator_testing.hand_operator import KEY, HandOperator, list_all
from operator_testing.kstatus import kstatus
from operator_testing.ledger import Ledger, p95_of
from operator_testing.server import Json, Server, create_benchmark
from operator_testing.soundness import assert_sound

MAX_PARALLEL_JOBS: Final = 2
DISRUPTION_RETRIES: Final = 1
_MOST_LOOKS: Final = 12
_BY_WHOM: Final = ["PreemptionByScheduler", "EvictionByEvictionAPI", "DeletionByTaintManager", ""]
_MANY: Final = 60
"""Writes after which it is worth while to let everything settle."""
_WHICH: Final = st.integers(0, 9)


def _turn_length(raw: Json, length: int) -> None:
    raw["spec"]["sequenceLengths"] = sorted({*raw["spec"]["sequenceLengths"]} ^ {length})


def _allow_retry(raw: Json) -> None:
    raw["spec"]["execution"]["retries"] = min(raw["spec"]["execution"]["retries"] + 1, 3)


def _ask_for_a_run(raw: Json) -> None:
    raw["metadata"]["annotations"] = {ANNOTATION_RERUN: raw["metadata"]["resourceVersion"]}


def _is_held_up(raw: Json) -> bool:
    return not {"cancel", "schedule", "suspend"}.isdisjoint(raw["spec"])


def _let_go_on(raw: Json) -> None:
    for field in ("cancel", "schedule", "suspend"):
        raw["spec"].pop(field, None)


_Edit = Callable[[Json], Any]
_OF_LENGTHS: Final[dict[str, _Edit]] = {
    "add or remove length 16": lambda raw: _turn_length(raw, 16),
    "add or remove length 32": lambda raw: _turn_length(raw, 32),
}
_OTHER_EDITS: Final[dict[str, _Edit]] = {
    "allow one more retry": _allow_retry,
    "ask for another run": _ask_for_a_run,
    "cancel": lambda raw: raw["spec"].update(cancel=True),
    "make a mistake": lambda raw: raw["spec"].update(schedule={"cron": "0 0 31 2 *"}),
    "suspend": lambda raw: raw["spec"].update(suspend=True),
}


def _spec(retries: int, on_suspend: str) -> Json:
    """Return a specification of five cells in three plans."""
    execution = {
        "retries": retries,
        "maxParallelJobs": MAX_PARALLEL_JOBS,
        "disruptionRetries": DISRUPTION_RETRIES,
        "onSuspend": on_suspend,
        "schedulingDeadlineSeconds": 400,
        "startDeadlineSeconds": 60,
        "measureDeadlineSeconds": 120,
        "ttlSecondsAfterFinished": 30,
    }
    less = [{"precision": precision, "sequenceLength": length} for precision in ("fp16", "fp32") for length in (16, 24)]
    axes = {"precisions": ["fp32", "bf16", "fp16"], "sequenceLengths": [8, 16, 24]}
    return spec_json(**axes, exclude=less, execution=execution)


class Stage:
    """A cluster, an operator and the account of what they do."""

    def __init__(self, spec: Json) -> None:
        """Create a benchmark that nobody has seen."""
        self.clock = Clock()
        self.server = Server(clock=self.clock)
        self.cluster = HandCluster(self.server, self.clock)
        self.ledger = Ledger(self.cluster, MAX_PARALLEL_JOBS, DISRUPTION_RETRIES)
        create_benchmark(self.server, NAME, spec)
        self.operator = HandOperator(self.server, self.clock, assert_sound)

    @property
    def benchmark(self) -> Json | None:
        """The benchmark as it is stored, if there is one."""
        return self.server.find(BENCHMARK, NAME)

    def settle(self) -> None:
        """Serve every pod well, and let the operator hear of everything and look when it wants to, until both rest."""
        end = self.clock.now + timedelta(hours=1)
        self.operator.wake_at = self.clock.now
        while True:
            assert self.clock.now < end, "it does not come to rest"
            before = self.server.version
            self.cluster.serve()
            self.rest()
            if self.server.version != before:
                self.clock.turn(1)
            elif self.operator.wake_at:
                self.clock.now = self.operator.wake_at
            else:
                return

    def rest(self) -> None:
        """Let the operator hear of everything, and look as long as it wants to look at once."""
        self.operator.hear_all()
        for _ in range(_MOST_LOOKS):
            if not self.operator.rests:
                self.operator.look()
                self.operator.hear_all()
        assert self.operator.rests, "it looks over and over"


def _essence(stage: Stage) -> Json:
    """Return what must be the same whatever has happened on the way."""
    assert stage.benchmark
    status = BenchmarkStatus.model_validate(stage.benchmark["status"])
    assert status.cells
    cells = {entry.cell: (entry.precision, entry.sequence_length) for entry in status.results}
    # Whether there were nodes is told of the pods that there were.
    told = [found for found in status.conditions if found.type is not ConditionType.CAPACITY_AVAILABLE]
    return {
        "cells": cells,
        "counts": (status.cells.progress, status.cells.succeeded + status.cells.reused),
        "results": {raw["spec"]["cell"] for raw in stage.server.all(RESULT)},
        "conditions": [(found.type, found.status, found.reason) for found in told],
        "kstatus": kstatus(stage.benchmark),
        "left": stage.server.all(JOB) + stage.server.all(POD),
    }


@cache
def _undisturbed(lengths: tuple[int, ...]) -> Json:
    stage = Stage(_spec(0, "Finish") | {"sequenceLengths": list(lengths)})
    stage.settle()
    return _essence(stage)


class Adversary(RuleBasedStateMachine):
    """Everything that can happen, one step at a time."""

    @initialize(retries=st.integers(0, 2), on_suspend=st.sampled_from(["Finish", "Stop"]))
    def benchmark_is_created(self, retries: int, on_suspend: str) -> None:
        self.stage = Stage(_spec(retries, on_suspend))
        self.cluster, self.operator, self.server = self.stage.cluster, self.stage.operator, self.stage.server
        self.attentive = True
        """Whether the operator hears of each step, and does what it wants to, before the next one."""
        self.settled = self.server.version
        self.acted = True
        """Whether somebody has changed what is wanted since the operator was last at rest."""
        self.finished: list[CellStatus] | None = None
        self._go_on()

    def _go_on(self) -> None:
        if self.attentive:
            self.stage.rest()
            self._note_rest()

    def _note_rest(self) -> None:
        self.acted = self.acted and not self.operator.rests

    def _note_act(self) -> None:
        self.acted, self.finished = True, None

    # The operator.

    @rule()
    def operator_turns_away_or_back(self) -> None:
        self.attentive = not self.attentive
        self._go_on()

    @precondition(lambda self: not self.attentive)
    @rule()
    def operator_looks(self) -> None:
        self.operator.look()
        self._note_rest()

    @rule(writes=st.integers(1, 5))
    def operator_will_die(self, writes: int) -> None:
        self.operator.will_die(writes)

    @precondition(lambda self: self.operator.news)
    @rule(which=_WHICH)
    def operator_hears(self, which: int) -> None:
        self.operator.hear(_one(list(self.operator.news), which))

    @rule(number=st.integers(0, 30))
    def operator_hears_again_what_it_knows(self, number: int) -> None:
        before = self.operator.cache.observe(KEY)
        self.operator.hear_again(number)
        assert self.operator.cache.observe(KEY) == before

    @rule(anew=st.booleans())
    def operator_lists(self, anew: bool) -> None:  # noqa: FBT001 - a rule's arguments have names
        (self.operator.restart if anew else self.operator.list)()
        self.operator.hear_all()
        list_all(self.server, fresh := Cache())
        assert _by_name(self.operator.cache.observe(KEY)) == _by_name(fresh.observe(KEY))
        self._go_on()

    # The cluster.

    @rule(seconds=st.sampled_from([1, 10, 31, 61, 130, 500, 1000]))
    def time_passes(self, seconds: int) -> None:
        self.stage.clock.turn(seconds)
        self.cluster.collect_garbage()
        self._go_on()

    @precondition(lambda self: self.cluster.jobs(self.cluster.is_active))
    @rule(which=_WHICH, steps=st.integers(1, 4))
    def pod_gets_on(self, which: int, steps: int) -> None:
        self._brought_on(which, steps)
        self._go_on()

    @precondition(lambda self: self.cluster.pods(waits))
    @rule(which=_WHICH)
    def pod_is_stuck(self, which: int) -> None:
        self.cluster.get_stuck(_one(self.cluster.pods(waits), which))
        self._go_on()

    @precondition(lambda self: self.cluster.jobs(self.cluster.is_active))
    @rule(which=_WHICH)
    def runner_ends_well(self, which: int) -> None:
        if pod := self._brought_on(which, 2):
            self.cluster.end(pod, End.WELL)
        self._go_on()

    @precondition(lambda self: self.cluster.jobs(self.cluster.is_active))
    @rule(which=_WHICH, how=st.sampled_from([*End, End.CRASHED, End.OUT_OF_MEMORY]), steps=st.integers(2, 4))
    def runner_ends(self, which: int, how: End, steps: int) -> None:
        # A node may also refuse to take a pod, whose runner then never starts.
        if pod := self._brought_on(which, steps - (how is End.EVICTED)):
            self.cluster.end(pod, how)
        self._go_on()

    @precondition(lambda self: self.cluster.jobs(self.cluster.is_active))
    @rule(which=_WHICH, steps=st.integers(1, 4), by=st.sampled_from(_BY_WHOM), at_once=st.booleans())
    def pod_is_taken_away(self, which: int, steps: int, by: str, at_once: bool) -> None:  # noqa: FBT001 - named
        if pod := self._brought_on(which, steps):
            self.cluster.take(pod, by)
            if at_once and is_running(pod):
                self.cluster.stop(pod)
        self._go_on()

    def _brought_on(self, which: int, steps: int) -> Json | None:
        job = _one(self.cluster.jobs(self.cluster.is_active), which)
        return self.cluster.bring_on(job["metadata"]["name"], steps)

    @precondition(lambda self: self.cluster.pods(is_over))
    @rule(which=_WHICH, by=st.sampled_from(_BY_WHOM))
    def pod_that_has_ended_is_taken_away(self, which: int, by: str) -> None:
        self.cluster.take(_one(self.cluster.pods(is_over), which), by)
        self._go_on()

    @precondition(lambda self: self.cluster.pods(is_leaving))
    @rule(which=_WHICH, forced=st.booleans())
    def pod_goes(self, which: int, forced: bool) -> None:  # noqa: FBT001 - a rule's arguments have names
        pod = _one(self.cluster.pods(is_leaving), which)
        (self.cluster.stop if is_running(pod) and not forced else self.cluster.vanish)(pod)
        self._go_on()

    @precondition(lambda self: self.cluster.jobs(self.cluster.may_close))
    @rule(which=_WHICH)
    def job_ends(self, which: int) -> None:
        self.cluster.close(_one(self.cluster.jobs(self.cluster.may_close), which))
        self._go_on()

    @precondition(lambda self: self.cluster.jobs(self.cluster.is_active))
    @rule(which=_WHICH)
    def queue_turns(self, which: int) -> None:
        job = _one(self.cluster.jobs(self.cluster.is_active), which)
        (self.cluster.release if job["spec"].get("suspend") else self.cluster.hold)(job)
        self._go_on()

    # People.

    @rule(what=st.sampled_from([*_OF_LENGTHS, *_OTHER_EDITS, "delete"]))
    def benchmark_is_edited(self, what: str) -> None:
        raw = self.stage.benchmark
        if raw is None:
            create_benchmark(self.server, NAME, _spec(1, "Stop"))
        elif what == "delete":
            self.cluster.delete(BENCHMARK, NAME, foreground=bool(self.server.version % 2))
        elif what in _OTHER_EDITS and _is_held_up(raw):
            # Or nothing would happen most of the time.
            self.server.change(BENCHMARK, NAME, _let_go_on)
        else:
            self.server.change(BENCHMARK, NAME, (_OF_LENGTHS | _OTHER_EDITS)[what])
        self._note_act()
        self._go_on()

    @precondition(lambda self: self.cluster.jobs() or self.server.all(RESULT))
    @rule(which=_WHICH, foreground=st.booleans())
    def job_or_result_is_deleted(self, which: int, foreground: bool) -> None:  # noqa: FBT001 - as above
        raw = _one(self.cluster.jobs() + self.server.all(RESULT), which)
        if "template" in raw["spec"]:
            self.cluster.delete(JOB, raw["metadata"]["name"], foreground=foreground)
        else:
            self.stage.ledger.deleted[raw["status"]["run"], raw["spec"]["cell"]] += 1
            self.cluster.delete(RESULT, raw["metadata"]["name"], foreground=False)
            self._note_act()
        self._go_on()

    # What must hold, and how it must end.

    @invariant()
    def no_write_contradicts_another(self) -> None:
        self.stage.ledger.assert_bounded()

    @invariant()
    def finished_run_is_left_alone(self) -> None:
        observed = self.operator.view()
        run = observed.benchmark.status.run if observed and not observed.benchmark.deleting else None
        if observed is None or run is None or run.completion_time is None or self.acted:
            self.finished = None
        # The runner of a Job on its way out may still tell what it has.
        elif not self.operator.news and not any(attempt.deleting for attempt in observed.attempts):
            again = decide(observed, self.stage.clock.now, SETTINGS)
            assert (again.results, again.create_jobs, again.delete_results) == ((), (), ())
            assert again.status
            assert not again.urgent
            assert self.finished is None or self.finished == again.status.results
            self.finished = again.status.results

    @precondition(lambda self: self.server.version > self.settled + _MANY)
    @rule()
    def everything_settles(self) -> None:
        self.stage.settle()
        if self.stage.benchmark is None:
            create_benchmark(self.server, NAME, _spec(1, "Stop"))
        self.server.change(BENCHMARK, NAME, _let_go_on)
        self._note_act()
        self.stage.settle()
        self.acted, self.settled = False, self.server.version
        assert self.stage.benchmark
        status = BenchmarkStatus.model_validate(self.stage.benchmark["status"])
        found, wanted = _essence(self.stage), _undisturbed(tuple(self.stage.benchmark["spec"]["sequenceLengths"]))
        figures = {raw["spec"]["cell"]: p95_of(raw) for raw in self.server.all(RESULT)}
        failed = {entry.cell for entry in status.results if entry.state is CellState.FAILED}
        for entry in status.results:
            assert entry.cell in failed or entry.state in {CellState.SUCCEEDED, CellState.REUSED}
            assert entry.cell in failed or entry.p95_microseconds == figures[entry.cell]
        if failed:
            # Each for a reason, which the account has seen to; what an earlier run has measured of one is still there.
            assert wanted["results"] - failed <= found["results"] <= wanted["results"]
            wanted = wanted | {"kstatus": "Failed", "results": found["results"], "conditions": found["conditions"]}
            wanted["counts"] = (wanted["counts"][0], len(status.results) - len(failed))
        assert found == wanted

    def teardown(self) -> None:
        """Let it end, unless it has gone wrong already."""
        if sys.exc_info()[0] is None:
            self.everything_settles()


def _one(found: list[Any], which: int) -> Any:  # noqa: ANN401 - any of what is given
    return found[which % len(found)]


def _by_name(observed: Observed | None) -> Observed | None:
    """Return facts in one order, which says nothing."""
    if observed is None:
        return None
    attempts = tuple(sorted(observed.attempts, key=lambda one: one.name))
    return replace(observed, attempts=attempts, results=tuple(sorted(observed.results, key=lambda one: one.name)))


TestAdversary = Adversary.TestCase
TestAdversary.settings = settings(
    max_examples=100,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow],
)
