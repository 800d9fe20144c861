"""A benchmark that is suspended, resumed, cancelled, asked to run again or scheduled, from its first write to its last.

Time is virtual; engine, cache and queue are the real ones.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from inferbench_operator.core.matrix import expand, spec_hash
from inferbench_operator.kube.kinds import BENCHMARK, JOB, RESULT, Kind
from inferbench_operator.models.benchmark import BenchmarkSpec
from operator_testing.builders import spec_json
from operator_testing.cluster import Ending, Outcome
from operator_testing.kstatus import kstatus
from operator_testing.server import Json
from operator_testing.world import NAME, Act, Script, World, play

CELLS = 4
MIDDLE = 20.0
"""Seconds after which the first of two Jobs, on the only node, has measured one of its two shapes."""


def _spec(**execution: Any) -> Json:  # noqa: ANN401 - any field
    """Return a specification of four cells in two plans, that retries nothing."""
    return spec_json(
        accelerators=[{"name": "cpu", "kind": "CPU"}, {"name": "inf2", "instanceTypes": ["inf2.xlarge"]}],
        sequenceLengths=[8, 16],
        execution={"retries": 0, "maxParallelJobs": 1, "ttlSecondsAfterFinished": 30} | execution,
    )


def _set(**fields: Any) -> Act:  # noqa: ANN401 - any part of a specification
    return lambda world: world.server.change(BENCHMARK, NAME, lambda raw: raw["spec"].update(fields))


def _rerun(token: str) -> Act:
    annotations = {"inferbench.dev/rerun": token}
    return lambda world: world.server.change(
        BENCHMARK, NAME, lambda raw: raw["metadata"].update(annotations=annotations)
    )


def _conditions(world: World) -> dict[str, tuple[str, str]]:
    return {found["type"]: (found["status"], found["reason"]) for found in world.status["conditions"]}


class Note:
    """What is to be seen at one moment."""

    def __init__(self) -> None:
        """See nothing yet."""
        self.conditions: dict[str, tuple[str, str]] = {}
        self.cells: Json = {}
        self.jobs: list[str] = []
        self.kstatus = ""
        self.next_tick = ""

    def __call__(self, world: World) -> None:
        """Write it down."""
        self.conditions, self.cells = _conditions(world), world.status["cells"]
        self.jobs = [raw["metadata"]["name"] for raw in world.server.all(JOB)]
        self.kstatus = kstatus(world.benchmark)
        self.next_tick = world.status.get("nextScheduleTime", "")


@pytest.mark.parametrize(("policy", "left", "made"), [("Finish", 2, 2), ("Stop", 4, 3)])
def test_a_suspended_benchmark_starts_nothing_until_it_is_resumed(policy: str, left: int, made: int) -> None:
    """A Job that runs ends, or goes at once, as the field says; no cell is measured twice, and none fails."""
    note = Note()
    acts = [(MIDDLE, _set(suspend=True)), (400.0, note), (401.0, _set(suspend=False))]
    world = play(Script(_spec(onSuspend=policy), acts=acts))
    assert (note.kstatus, note.cells["pending"]) == ("InProgress", left)
    assert note.conditions["Suspended"] == ("True", "Suspended")
    assert note.conditions["Ready"] == ("False", "Suspended")
    assert "Reconciling" not in note.conditions
    assert len(note.jobs) == (1 if policy == "Finish" else 0)
    assert set(world.states.values()) == {"succeeded"}
    assert set(world.cluster.measured.values()) == {1}
    assert len(world.jobs) == made
    assert "Suspended" not in _conditions(world)
    assert kstatus(world.benchmark) == "Current"


def test_a_cancelled_run_is_over_and_can_be_taken_up() -> None:
    """Its Jobs go, what was measured stands, the rest is skipped: a failure for every tool, until allowed again."""
    note = Note()
    acts = [(40.0, _set(cancel=True)), (300.0, note), (301.0, _set(cancel=False))]
    world = play(Script(_spec(), acts=acts))
    assert (note.kstatus, note.jobs) == ("Failed", [])
    assert (note.cells["succeeded"], note.cells["skipped"]) == (2, 2)
    for kind, status in {"Ready": "False", "Stalled": "True", "Succeeded": "False"}.items():
        assert note.conditions[kind] == (status, "Cancelled")
    assert set(world.states.values()) == {"succeeded"}
    assert set(world.cluster.measured.values()) == {1}


def test_a_cancelled_run_stays_as_it_is() -> None:
    """Nothing more is done about it."""
    world = play(Script(_spec(), acts=[(5.0, _set(cancel=True))]))
    assert set(world.states.values()) == {"skipped"}
    assert {entry["reason"] for entry in world.status["results"]} == {"Cancelled"}
    assert world.status["run"]["completionTime"]
    assert world.results == {}


def test_a_cancelled_benchmark_that_was_done_stays_done() -> None:
    """There is nothing to give up."""
    world = play(Script(_spec(), acts=[(300.0, _set(cancel=True))]))
    assert kstatus(world.benchmark) == "Current"


def test_a_new_token_measures_everything_again() -> None:
    """Once for each new token, also for one that was used before; the same one again, or none, asks for nothing."""
    tokens = ["a", "a", "b", "a", ""]
    acts = [(300.0 * number, _rerun(token)) for number, token in enumerate(tokens, 1)]
    world = play(Script(_spec(), acts=acts))
    assert world.status["run"]["trigger"] == "Rerun"
    assert set(world.states.values()) == {"succeeded"}
    assert set(world.cluster.measured.values()) == {1}
    assert Counter(run for run, _ in world.cluster.measured) == dict.fromkeys(
        {run for run, _ in world.cluster.measured}, CELLS
    )
    assert len({run for run, _ in world.cluster.measured}) == 4
    assert {raw["status"]["run"] for raw in world.results.values()} == {world.status["run"]["id"]}


def test_a_token_that_is_there_from_the_start_asks_for_one_run() -> None:
    """So that a file in Git with a token is applied without measuring twice."""
    world = play(Script(_spec(), acts=[(1.0, _rerun("a"))]))
    assert len({run for run, _ in world.cluster.measured}) == 1


def test_a_rerun_in_the_middle_takes_the_place_of_the_run() -> None:
    """The Jobs of the earlier one go."""
    world = play(Script(_spec(), acts=[(MIDDLE, _rerun("now"))]))
    last = world.status["run"]["id"]
    assert {run for run, _ in world.cluster.measured} == {last}
    assert set(world.states.values()) == {"succeeded"}


def test_what_changes_after_a_rerun_keeps_its_results() -> None:
    """They are results like any others."""
    longer = _set(sequenceLengths=[8, 16, 32])
    world = play(Script(_spec(), acts=[(300.0, _rerun("a")), (600.0, longer)]))
    assert Counter(world.states.values()) == {"reused": 4, "succeeded": 2}


def test_a_run_that_takes_too_long_is_given_up() -> None:
    """What was measured stands; all the rest fails for good, with its Jobs removed."""
    world = play(Script(_spec(deadlineSeconds=40, retries=3), nodes=1))
    assert Counter(world.states.values()) == {"succeeded": 2, "failed": 2}
    failed = [entry for entry in world.status["results"] if entry["state"] == "failed"]
    assert {entry["reason"] for entry in failed} == {"RunDeadlineExceeded"}
    assert "40 s" in failed[0]["message"]
    assert world.status["run"]["deadlineTime"] == "2026-01-05T12:00:40Z"
    assert kstatus(world.benchmark) == "Failed"


def test_the_runs_clock_stands_still_while_it_is_suspended() -> None:
    """However often the operator is restarted meanwhile."""
    kills: list[tuple[float, Act]] = [(seconds, World.kill) for seconds in (100.0, 399.9, 400.2)]
    acts = [(MIDDLE, _set(suspend=True)), *kills, (400.0, _set(suspend=False))]
    world = play(Script(_spec(deadlineSeconds=120), acts=acts))
    assert set(world.states.values()) == {"succeeded"}
    run = world.status["run"]
    assert 375 <= run["pausedSeconds"] <= 385
    assert run["deadlineTime"] > "2026-01-05T12:08:00Z"


def test_a_cell_that_waits_says_until_when() -> None:
    """The time at which its Job is given up is in the status, where it survives the operator."""
    deadlines: dict[float, set[str]] = {}

    def note(at: float) -> tuple[float, Act]:
        def act(world: World) -> None:
            deadlines[at] = {entry["deadlineTime"] for entry in world.status["results"] if "deadlineTime" in entry}

        return at, act

    spec = _spec(schedulingDeadlineSeconds=500, measureDeadlineSeconds=100)
    closed: Act = lambda world: world.cluster.set_open(False)  # noqa: E731
    acts = [
        (0.0, closed),
        note(50.0),
        (60.0, World.kill),
        note(90.0),
        (100.0, lambda w: w.cluster.set_open(True)),
        note(110.0),
    ]
    world = play(Script(spec, acts=acts))
    # The pod is made at 12:00:00, and its runner begins at 12:01:43; the operator waits a minute for its last words.
    assert deadlines == {
        50.0: {"2026-01-05T12:08:20Z"},
        90.0: {"2026-01-05T12:08:20Z"},
        110.0: {"2026-01-05T12:04:23Z"},
    }
    assert set(world.states.values()) == {"succeeded"}


@pytest.mark.parametrize(("minutes", "attempts"), [(20, 1), (40, 2)])
def test_a_node_that_comes_late_is_waited_for(minutes: int, attempts: int) -> None:
    """Within the half hour that a pod may wait by default by the same pod, and later by the one of the next attempt."""
    closed: Act = lambda world: world.cluster.set_open(False)  # noqa: E731
    note = Note()
    acts = [(0.0, closed), (60.0 * minutes - 5, note), (60.0 * minutes, lambda w: w.cluster.set_open(True))]
    world = play(Script(_spec(retries=1, maxParallelJobs=4), acts=acts))
    assert (note.kstatus, note.cells["waiting"], note.cells["running"]) == ("InProgress", CELLS, 0)
    assert note.conditions["CapacityAvailable"] == ("False", "Unschedulable")
    assert set(world.states.values()) == {"succeeded"}
    assert {entry["attempts"] for entry in world.status["results"]} == {attempts}


def test_a_complete_run_has_no_deadline_any_more() -> None:
    """A result that is deleted days later is measured again."""

    def delete(world: World) -> None:
        world.server.delete(RESULT, world.server.all(RESULT)[0]["metadata"]["name"])

    world = play(Script(_spec(deadlineSeconds=120), acts=[(5000.0, delete)]))
    assert set(world.states.values()) == {"succeeded"}
    assert sorted(world.cluster.measured.values()) == [1, 1, 1, 2]


def test_a_mistake_while_suspended_costs_no_time() -> None:
    """The run's clock stands still from the suspension on, whatever is refused meanwhile."""
    wrong, right = ([{"name": "inf2", "instanceTypes": [name]}] for name in ("inf2.xlarg", "inf2.xlarge"))
    cpu = {"name": "cpu", "kind": "CPU"}
    acts = [
        (MIDDLE, _set(suspend=True)),
        (1000.0, _set(accelerators=[cpu, *wrong])),
        (1010.0, _set(accelerators=[cpu, *right])),
        (1200.0, _set(suspend=False)),
    ]
    world = play(Script(_spec(deadlineSeconds=120), acts=acts))
    assert set(world.states.values()) == {"succeeded"}
    assert world.status["run"]["pausedSeconds"] >= 1175


def test_suspending_is_not_held_against_a_cell() -> None:
    """Neither as a retry nor as a disruption: after three suspensions one preemption is still forgiven."""
    acts = [
        act
        for number in range(3)
        for act in ((5.0 + 100 * number, _set(suspend=True)), (98.0 + 100 * number, _set(suspend=False)))
    ]
    spec = _spec(onSuspend="Stop", disruptionRetries=1)
    world = play(Script(spec, acts=acts, outcomes=[*[Outcome()] * 3, Outcome(Ending.DRAINED)]))
    assert set(world.states.values()) == {"succeeded"}
    told = [(entry.get("stops", 0), entry.get("disruptions", 0)) for entry in world.status["results"]]
    assert max(told) == (3, 1)


# The calendar starts at noon, and the benchmark is created then.
TWICE = {"cron": "10,20 12 * * *", "timeZone": "Etc/UTC"}


def test_a_schedule_measures_everything_at_each_tick() -> None:
    """After the first run, which starts at once, one for each tick; the next one is announced."""
    world = play(Script(_spec() | {"schedule": TWICE}, acts=[(1800.0, lambda _: None)]))
    run = world.status["run"]
    assert (run["trigger"], run["scheduledTime"], run["startTime"]) == (
        "Scheduled",
        "2026-01-05T12:20:00Z",
        "2026-01-05T12:20:00Z",
    )
    assert len({run for run, _ in world.cluster.measured}) == 3
    assert set(world.cluster.measured.values()) == {1}
    assert world.status["nextScheduleTime"] == "2026-01-06T12:10:00Z"
    assert kstatus(world.benchmark) == "Current"


def test_a_tick_in_the_middle_of_a_run_is_missed() -> None:
    """Never two runs at once: with a tick each minute and runs of a minute and a half, some are missed."""
    overlaps: list[set[str]] = []

    def watch(world: World) -> None:
        def saw(kind: Kind, event: str, raw: Json) -> None:
            if kind is JOB and event == "ADDED":
                going = [job for job in world.server.all(JOB) if not job.get("status", {}).get("conditions")]
                overlaps.append({job["metadata"]["labels"]["inferbench.dev/run"] for job in [*going, raw]})

        world.server.watchers.append(saw)

    acts = [(0.0, watch), (1200.0, lambda _: None)]
    spec = _spec() | {"schedule": {"cron": "1-15 12 * * *"}, "sequenceLengths": [8, 16, 32, 64]}
    world = play(Script(spec, nodes=1, acts=acts))
    runs = {run for run, _ in world.cluster.measured}
    assert 4 <= len(runs) <= 12
    assert {len(each) for each in overlaps} == {1}
    assert set(world.cluster.measured.values()) == {1}


def test_a_suspended_schedule_has_no_ticks() -> None:
    """Neither when it is suspended, nor for those that have passed meanwhile."""
    note = Note()
    acts = [(300.0, _set(suspend=True)), (900.0, note), (1300.0, _set(suspend=False)), (1800.0, lambda _: None)]
    world = play(Script(_spec() | {"schedule": TWICE}, acts=acts))
    assert (note.kstatus, note.next_tick) == ("Current", "")
    assert len({run for run, _ in world.cluster.measured}) == 1
    assert world.status["nextScheduleTime"] == "2026-01-06T12:10:00Z"


def test_an_operator_that_dies_at_a_tick_starts_one_run() -> None:
    """The run's identity follows from the tick."""
    kills: list[tuple[float, Act]] = [(seconds, World.kill) for seconds in (600.0, 600.3, 601.0, 602.5)]
    world = play(Script(_spec() | {"schedule": TWICE}, acts=[*kills, (1800.0, lambda _: None)]))
    assert len({run for run, _ in world.cluster.measured}) == 3
    assert set(world.cluster.measured.values()) == {1}


def test_a_schedule_that_is_none_is_refused() -> None:
    """And what was measured stays in sight."""
    never = _set(schedule={"cron": "0 0 31 2 *"})
    world = play(Script(_spec(), acts=[(300.0, never)]))
    assert _conditions(world)["Accepted"] == ("False", "InvalidSchedule")
    assert set(world.states.values()) == {"succeeded"}


def test_schedule_suspend_and_cancel_start_no_run() -> None:
    """They change no cell."""
    usual = BenchmarkSpec.model_validate(_spec())
    for fields in ({"schedule": TWICE}, {"suspend": True}, {"cancel": True}, {"execution": {"onSuspend": "Stop"}}):
        changed = BenchmarkSpec.model_validate(_spec() | fields)
        assert spec_hash(expand(changed)) == spec_hash(expand(usual))


def test_the_cheapest_jobs_come_first_and_no_accelerator_has_more_than_its_limit() -> None:
    """A plain CPU node first, then by price; a type without a price last."""
    accelerators = [
        {"name": "unpriced", "instanceTypes": ["trn2.48xlarge"]},
        {"name": "dear", "instanceTypes": ["g5.48xlarge"], "maxParallelJobs": 1},
        {"name": "cheap", "instanceTypes": ["inf2.xlarge"]},
        {"name": "cpu", "kind": "CPU"},
    ]
    models = [{"name": name, "id": name} for name in ("a", "b")]
    spec = _spec(maxParallelJobs=5) | {"accelerators": accelerators, "models": models, "sequenceLengths": [8]}
    world = play(Script(spec, nodes=9))
    order = [raw["spec"]["template"]["spec"]["containers"][0]["resources"].get("limits", {}) for raw in world.jobs]
    kinds = [next((name for name in limits if "/" in name), "cpu") + limits.get("cpu", "") for limits in order]
    cpu, cheap, dear, unpriced = "cpu", "aws.amazon.com/neuron3", "nvidia.com/gpu191", "aws.amazon.com/neuron191"
    assert kinds[:5] == [cpu, cpu, cheap, cheap, dear]
    assert sorted(kinds[5:]) == sorted([dear, unpriced, unpriced])
