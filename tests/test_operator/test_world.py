"""The whole operator on virtual time, in worlds where everything goes wrong that can."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from inferbench_operator.core.matrix import expand
from inferbench_operator.core.names import DISRUPTIONS
from inferbench_operator.kube.kinds import BENCHMARK, JOB, RESULT
from inferbench_operator.models.benchmark import BenchmarkSpec
from operator_testing.builders import spec_json
from operator_testing.cluster import Ending, Outcome, figure_of
from operator_testing.kstatus import kstatus
from operator_testing.server import Fault, Faults, Json
from operator_testing.world import LOST, NAME, Act, Script, World, cells_of_jobs, play

_FAIRLY_OFTEN: Final = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow],
)


def _spec(*, retries: int = 1, **fields: Any) -> Json:  # noqa: ANN401 - any part of a specification
    """Return a specification of six cells in two plans, with deadlines of minutes."""
    return (
        spec_json(
            accelerators=[{"name": "cpu", "kind": "CPU"}, {"name": "inf2", "instanceTypes": ["inf2.xlarge"]}],
            sequenceLengths=[8, 16, 32],
            execution={
                "retries": retries,
                "maxParallelJobs": 2,
                "disruptionRetries": retries,
                "schedulingDeadlineSeconds": 400,
                "startDeadlineSeconds": 60,
                "measureDeadlineSeconds": 120,
                "ttlSecondsAfterFinished": 30,
            },
        )
        | fields
    )


def _cells(spec: Json) -> set[str]:
    return {cell.hash for cell in expand(BenchmarkSpec.model_validate(spec))}


def _essence(world: World) -> Json:
    """Return everything that must be the same whatever has happened on the way."""
    conditions = [(found["type"], found["status"], found["reason"]) for found in world.status["conditions"]]
    return {
        "results": {
            cell: (raw["status"]["run"], raw["status"]["attempt"], raw["status"]["latency"], raw["spec"])
            for cell, raw in world.results.items()
        },
        "cells": world.status["results"],
        "counts": world.status["cells"],
        "run": world.status["run"]["id"],
        "conditions": conditions,
    }


def _assert_right_figures(world: World) -> None:
    for cell, raw in world.results.items():
        assert raw["status"]["latency"]["call"]["p95"]["valueMicroseconds"] == figure_of(cell)
    for entry in world.status["results"]:
        assert entry.get("p95Microseconds", figure_of(entry["cell"])) == figure_of(entry["cell"])


UNDISTURBED: Final = play(Script(_spec()))
TRIED_AGAIN: Final = play(Script(_spec(), outcomes=[Outcome(Ending.SEGFAULT, 1), Outcome(Ending.OUT_OF_MEMORY, 2)]))


def test_an_undisturbed_run_measures_each_cell_once() -> None:
    """Two plans, two Jobs, six results, and a benchmark that every tool takes for done."""
    world = UNDISTURBED
    assert set(world.results) == _cells(world.script.spec)
    assert set(world.states.values()) == {"succeeded"}
    assert kstatus(world.benchmark) == "Current"
    assert set(world.cluster.measured.values()) == {1}
    assert len(world.jobs) == 2
    _assert_right_figures(world)


@pytest.mark.parametrize("fault", [Fault.DIES_BEFORE, Fault.DIES_AFTER])
@pytest.mark.parametrize("number", range(1, UNDISTURBED.script.faults.writes + 1))
def test_one_fault_at_any_write_changes_nothing_in_the_end(fault: Fault, number: int) -> None:
    """Whichever of the writes fails, and however, the same objects are there afterwards."""
    world = play(Script(_spec(), faults=Faults({number: fault})))
    assert _essence(world) == _essence(UNDISTURBED)
    assert set(world.cluster.measured.values()) == {1}
    assert len(world.jobs) == 2


@pytest.mark.parametrize("fault", [Fault.DIES_BEFORE, Fault.DIES_AFTER])
@pytest.mark.parametrize("number", range(2, TRIED_AGAIN.script.faults.writes + 1, 4))
def test_a_crash_while_cells_are_tried_again_changes_nothing_in_the_end(fault: Fault, number: int) -> None:
    """The operator dies at any write of a run whose first two runners crash after one shape."""
    outcomes = TRIED_AGAIN.script.outcomes
    world = play(Script(_spec(), outcomes=outcomes, faults=Faults({number: fault})))
    assert _essence(world) == _essence(TRIED_AGAIN)
    assert set(world.cluster.measured.values()) == {1}


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("retries", [0, 1, 2])
def test_cells_that_no_runner_survives_take_no_other_along(number: int, retries: int) -> None:
    """Each is tried by itself after its first death, as often as it may be; all others are measured nevertheless."""
    cells = expand(BenchmarkSpec.model_validate(_spec()))
    deadly = frozenset(cell.hash for cell in cells[:number])
    world = play(Script(_spec(retries=retries), deadly=deadly))
    assert world.states == {cell.hash: "failed" if cell.hash in deadly else "succeeded" for cell in cells}
    assert set(world.cluster.measured.values()) == {1}
    given = [job["metadata"]["annotations"]["inferbench.dev/cells"].split(",") for job in world.jobs]
    for cell in deadly:
        # It kills for the first time among others, unless those have all been found out before.
        assert sum(each == [cell] for each in given) in {retries, retries + 1}
    entries = {entry["cell"]: entry for entry in world.status["results"]}
    assert {entries[cell]["reason"] for cell in deadly} == {"OutOfMemory"}


class People(Enum):
    """What people and other controllers do."""

    KILL = "kill the operator"
    DELETE_JOB = "delete a Job"
    DELETE_RESULT = "delete a result"
    TAKE_NODES = "take the nodes away"
    GIVE_NODES = "give the nodes back"
    LABEL = "put a label on the benchmark"

    def act(self, world: World) -> None:  # noqa: D102 - the value says it
        if self is People.KILL:
            world.kill()
        elif self in {People.DELETE_JOB, People.DELETE_RESULT}:
            kind = JOB if self is People.DELETE_JOB else RESULT
            for raw in world.server.all(kind)[:1]:
                world.server.delete(kind, raw["metadata"]["name"])
        elif self is People.LABEL:
            label = {"seen": str(world.server.version)}
            world.server.change(BENCHMARK, NAME, lambda raw: raw["metadata"].update(labels=label))
        elif self in {People.TAKE_NODES, People.GIVE_NODES}:
            world.cluster.set_open(self is People.GIVE_NODES)


def _faults() -> st.SearchStrategy[Faults]:
    chosen = st.dictionaries(st.integers(1, 40), st.sampled_from(Fault), max_size=5)
    return st.builds(Faults, chosen)


def _delays(*special: float) -> st.SearchStrategy[list[float]]:
    return st.lists(st.sampled_from([0.0, 0.05, 0.3, 4.0, *special]), min_size=1, max_size=6)


def _outcomes(*endings: Ending) -> st.SearchStrategy[list[Outcome]]:
    return st.lists(st.builds(Outcome, st.sampled_from(endings), st.integers(0, 2)), max_size=4)


def _acts(*people: People) -> st.SearchStrategy[list[tuple[float, Act]]]:
    def methods(chosen: list[tuple[int, People]]) -> list[tuple[float, Act]]:
        return [(float(seconds), person.act) for seconds, person in chosen]

    return st.lists(st.tuples(st.integers(0, 120), st.sampled_from(people)), max_size=4).map(methods)


_TEMPORARY: Final = tuple(ending for ending in Ending if ending is not Ending.PERMANENT)


@_FAIRLY_OFTEN
@given(_faults(), _delays(), _outcomes(*_TEMPORARY), _acts(People.KILL, People.LABEL), st.integers(1, 3))
def test_each_cell_is_measured_exactly_once(
    faults: Faults, delays: list[float], outcomes: list[Outcome], acts: list[tuple[float, Act]], nodes: int
) -> None:
    """Crashes, conflicts, late events and failing runners cost time, never a second measurement of a cell."""
    world = play(Script(_spec(retries=9), faults, outcomes, delays, acts, nodes))
    assert set(world.results) == _cells(world.script.spec)
    assert set(world.states.values()) == {"succeeded"}
    assert set(world.cluster.measured.values()) == {1}
    assert max(Counter(cells_of_jobs(world.jobs)).values()) <= 1 + len(outcomes)
    _assert_right_figures(world)


@_FAIRLY_OFTEN
@given(_faults(), _delays(LOST), _outcomes(*_TEMPORARY), _acts(*(set(People) - {People.TAKE_NODES})))
def test_it_always_ends_well_when_the_trouble_ends(
    faults: Faults, delays: list[float], outcomes: list[Outcome], acts: list[tuple[float, Act]]
) -> None:
    """Even with lost events and with people who delete its objects, all cells have their right figures in the end."""
    world = play(Script(_spec(retries=9), faults, outcomes, delays, acts))
    assert set(world.results) == _cells(world.script.spec)
    assert set(world.states.values()) == {"succeeded"}
    assert kstatus(world.benchmark) == "Current"
    _assert_right_figures(world)


@_FAIRLY_OFTEN
@given(
    _faults(),
    _delays(),
    st.lists(st.builds(Outcome, st.sampled_from(Ending), st.integers(0, 2)), min_size=2, max_size=8),
    _acts(People.KILL, People.TAKE_NODES, People.GIVE_NODES),
    st.integers(0, 2),
)
def test_retries_are_bounded(
    faults: Faults, delays: list[float], outcomes: list[Outcome], acts: list[tuple[float, Act]], retries: int
) -> None:
    """No cell is tried more than retries+1 times for its own sake, and one that has failed for good says why.

    A Job that dies of one of its cells is held against that one only, and there are three cells in a plan.
    """
    world = play(Script(_spec(retries=retries), faults, outcomes, delays, acts))
    given_to = Counter(cells_of_jobs(world.jobs))
    disruptions = {entry["cell"]: entry.get("disruptions", 0) for entry in world.status["results"]}
    assert all(times <= 3 * (retries + 1) + disruptions[cell] for cell, times in given_to.items())
    assert max(disruptions.values()) <= retries + 1
    for entry in world.status["results"]:
        assert (entry["state"] == "succeeded") == (entry["cell"] in world.results)
        assert entry["attempts"] == given_to[entry["cell"]]
        if entry["state"] == "failed":
            assert entry["reason"]
            assert entry["reason"] != "JobLost"
            assert entry["reason"] != "OtherCellFailed"
            assert entry["attempts"] >= retries + 1 or entry["reason"] == "SequenceTooLong"
            assert entry["reason"] not in DISRUPTIONS or disruptions[entry["cell"]] == retries + 1
    assert kstatus(world.benchmark) == ("Failed" if "failed" in world.states.values() else "Current")


def test_a_disruption_costs_no_retry_and_only_what_was_not_finished() -> None:
    """What a drained runner has finished stands, what it has begun is thrown away, and a lost one is waited for."""
    outcomes = [Outcome(Ending.DRAINED, 1), Outcome(Ending.LOST), Outcome(Ending.DRAINED, 0)]
    spec = _spec(retries=0)
    spec["execution"]["disruptionRetries"] = 2
    world = play(Script(spec, outcomes=outcomes))
    assert set(world.states.values()) == {"succeeded"}
    assert set(world.cluster.measured.values()) == {1}
    told = sorted((entry["attempts"], entry.get("disruptions", 0)) for entry in world.status["results"])
    # One plan is drained twice, the first time with one of its shapes finished; the other loses its node once.
    assert told in ([(1, 0), (2, 1), (2, 1), (2, 1), (3, 2), (3, 2)], [(1, 0), (2, 1), (2, 1), (3, 2), (3, 2), (3, 2)])
    _assert_right_figures(world)


@pytest.mark.parametrize("number", range(2, 24, 3))
@pytest.mark.parametrize("fault", [Fault.DIES_BEFORE, Fault.DIES_AFTER])
def test_a_crash_among_disruptions_changes_nothing_in_the_end(fault: Fault, number: int) -> None:
    """However often the operator dies, each disruption is counted once."""
    outcomes = (Outcome(Ending.DRAINED, 1), Outcome(Ending.LOST))
    worlds = [play(Script(_spec(), outcomes=outcomes, faults=Faults(faults))) for faults in ({}, {number: fault})]
    assert _essence(worlds[0]) == _essence(worlds[1])
    assert set(worlds[1].cluster.measured.values()) == {1}


class Edit(Enum):
    """What people change in the specification."""

    ADD = "add a length"
    REMOVE = "remove a length"
    LONGER = "measure longer"
    SORT = "turn the order of the lengths around"
    RENAME = "rename the model"
    RETRIES = "allow more retries"
    TYPO = "name an instance type that is not there"

    def act(self, world: World) -> None:  # noqa: D102 - the value says it
        def change(raw: Json) -> None:
            spec = raw["spec"]
            lengths: list[int] = spec["sequenceLengths"]
            if self is Edit.ADD:
                lengths.append(64 + len(lengths))
            elif self is Edit.REMOVE:
                del lengths[1:2]
            elif self is Edit.LONGER:
                spec["measurement"] = {"minSamples": spec.get("measurement", {}).get("minSamples", 1000) + 1}
            elif self is Edit.SORT:
                lengths.reverse()
            elif self is Edit.RENAME:
                spec["models"][0]["name"] += "x"
            elif self is Edit.RETRIES:
                spec["execution"]["retries"] += 1
            else:
                spec["accelerators"][1]["instanceTypes"] = ["inf2.xlarg"]

        def correct(raw: Json) -> None:
            raw["spec"]["accelerators"][1]["instanceTypes"] = ["inf2.xlarge"]

        world.server.change(BENCHMARK, NAME, correct)
        world.server.change(BENCHMARK, NAME, change)


def _edits() -> st.SearchStrategy[list[tuple[float, Act]]]:
    def methods(chosen: list[tuple[int, Edit]]) -> list[tuple[float, Act]]:
        return [*((float(seconds), edit.act) for seconds, edit in chosen), (200.0, _correct)]

    return st.lists(st.tuples(st.integers(1, 150), st.sampled_from(Edit)), min_size=1, max_size=3).map(methods)


def _correct(world: World) -> None:
    def correct(raw: Json) -> None:
        raw["spec"]["accelerators"][1]["instanceTypes"] = ["inf2.xlarge"]

    world.server.change(BENCHMARK, NAME, correct)


@_FAIRLY_OFTEN
@given(_faults(), _delays(), _edits(), _acts(People.KILL, People.LABEL))
def test_an_edited_benchmark_ends_as_if_it_had_been_written_so(
    faults: Faults, delays: list[float], edits: list[tuple[float, Act]], acts: list[tuple[float, Act]]
) -> None:
    """After edits in the middle of a run there are results of the last specification's cells and of no others."""
    world = play(Script(_spec(retries=5), faults, (), delays, [*edits, *acts]))
    spec = world.benchmark["spec"]
    assert set(world.results) == set(world.states) == _cells(spec)
    assert set(world.states.values()) <= {"succeeded", "reused"}
    assert kstatus(world.benchmark) == "Current"
    assert set(world.cluster.measured.values()) <= {1}
    _assert_right_figures(world)


@pytest.mark.parametrize("edit", [Edit.ADD, Edit.REMOVE, Edit.SORT, Edit.RENAME, Edit.RETRIES], ids=lambda e: e.value)
def test_unchanged_cells_keep_their_results(edit: Edit) -> None:
    """A result that is stored when the specification changes is the same object afterwards."""
    kept: dict[str, str] = {}

    def edit_and_remember(world: World) -> None:
        kept.update({cell: raw["metadata"]["uid"] for cell, raw in world.results.items()})
        edit.act(world)

    world = play(Script(_spec(), nodes=1, acts=[(40.0, edit_and_remember)]))
    assert len(kept) == 3
    still = _cells(world.benchmark["spec"])
    assert {cell: raw["metadata"]["uid"] for cell, raw in world.results.items() if cell in kept} == {
        cell: uid for cell, uid in kept.items() if cell in still
    }
    assert set(world.cluster.measured.values()) == {1}


def _at(seconds: float, *do: Callable[[World], None]) -> list[tuple[float, Act]]:
    return [(seconds, act) for act in do]


def test_a_deleted_result_is_measured_again() -> None:
    """Whoever doubts a figure deletes its result: the cell is measured once more, even without retries."""
    world = play(Script(_spec(retries=0), acts=_at(300.0, People.DELETE_RESULT.act)))
    assert set(world.states.values()) == {"succeeded"}
    assert sorted(world.cluster.measured.values()) == [1, 1, 1, 1, 1, 2]


def test_a_typo_in_a_finished_benchmark_costs_no_measurement() -> None:
    """Refused and corrected, the benchmark still has all its results."""
    world = play(Script(_spec(), acts=[(300.0, Edit.TYPO.act), (400.0, _correct)]))
    assert set(world.states.values()) == {"succeeded"}
    assert set(world.cluster.measured.values()) == {1}
