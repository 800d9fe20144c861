"""Conditions as tools read them, and Events as people read them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferbench_operator.core.decide import decide
from inferbench_operator.core.events import Event, between
from inferbench_operator.core.facts import Attempt, Benchmark, ClusterWarning, Observed, Result
from inferbench_operator.models.status import BenchmarkStatus, ConditionType
from operator_testing.builders import (
    NOW,
    SETTINGS,
    ago,
    attempt_of,
    benchmark,
    cells_of,
    ended,
    measured,
    observed,
    pod,
    report,
    result_of,
    run_of,
    running,
    spec,
)
from operator_testing.kstatus import kstatus

TWO = spec(sequenceLengths=[8, 16], execution={"retries": 0})
CELLS = cells_of(TWO)


def _written(of: Benchmark, *facts: Attempt | Result, **changes: Any) -> Benchmark:  # noqa: ANN401 - any field
    status = decide(observed(of, *facts, **changes), NOW, SETTINGS).status
    assert status
    return replace(of, status=status)


def _kstatus(of: Benchmark) -> str:
    return kstatus(
        {
            "metadata": {"generation": of.generation},
            "status": of.status.model_dump(mode="json", exclude_none=True),
        }
    )


def _conditions(of: Benchmark) -> dict[str, str]:
    return {condition.type.value: condition.status.value for condition in of.status.conditions}


def _result(number: int) -> Result:
    return result_of(benchmark(TWO), CELLS[number], run=run_of(benchmark(TWO)))


def _attempt(of_pod: Any, *cells: int) -> Attempt:  # noqa: ANN401 - a pod or none
    return attempt_of(benchmark(TWO), [CELLS[number].hash for number in cells], pod=of_pod)


@pytest.mark.parametrize(
    ("facts", "verdict", "conditions"),
    [
        pytest.param([], "InProgress", {"Reconciling": "True", "Ready": "False", "Accepted": "True"}, id="just begun"),
        pytest.param(
            [_attempt(pod(unschedulable="0/3 nodes"), 0, 1)],
            "InProgress",
            {"Reconciling": "True", "Ready": "False", "Accepted": "True", "CapacityAvailable": "False"},
            id="waiting for a node",
        ),
        pytest.param(
            [_attempt(running(), 0, 1)],
            "InProgress",
            {"Reconciling": "True", "Ready": "False", "Accepted": "True", "CapacityAvailable": "True"},
            id="measuring",
        ),
        pytest.param(
            [_attempt(ended(exit_code=1), 0)],
            "InProgress",
            {"Reconciling": "True", "Ready": "False", "Accepted": "True", "CapacityAvailable": "True"},
            id="one cell has failed, the other is still to come",
        ),
        pytest.param(
            [_attempt(ended(exit_code=1), 1), _result(0)],
            "Failed",
            {
                "Stalled": "True",
                "Ready": "False",
                "Accepted": "True",
                "CapacityAvailable": "True",
                "Succeeded": "False",
            },
            id="one cell has failed, the other is measured",
        ),
        pytest.param(
            [_result(0), _result(1)],
            "Current",
            {"Ready": "True", "Accepted": "True", "Succeeded": "True"},
            id="all is measured",
        ),
    ],
)
def test_tools_read_the_conditions_rightly(
    facts: list[Attempt | Result], verdict: str, conditions: dict[str, str]
) -> None:
    """In progress while the run goes on, failed when cells have failed, current only on success."""
    of = _written(benchmark(TWO), *facts)
    assert _kstatus(of) == verdict
    assert _conditions(of) == conditions


def test_a_refusal_is_a_failure() -> None:
    """A tool that waits gives up at once, and tells the sentence."""
    of = _written(benchmark(spec(exclude=[{}])))
    assert _kstatus(of) == "Failed"
    assert _conditions(of) == {"Stalled": "True", "Ready": "False", "Accepted": "False"}


def test_an_unseen_benchmark_and_an_unseen_edit_are_in_progress() -> None:
    """By the generation alone, whatever the conditions of the past say."""
    assert _kstatus(benchmark(TWO)) == "InProgress"
    of = _written(benchmark(TWO), _result(0), _result(1))
    assert _kstatus(replace(of, generation=2)) == "InProgress"


def test_the_time_of_a_transition_is_kept_while_the_status_is_the_same() -> None:
    """Another message is no transition."""
    of = _written(benchmark(TWO))
    later = decide(observed(of, _attempt(running(), 0, 1)), NOW + timedelta(seconds=9), SETTINGS).status
    assert later
    times = {condition.type: condition.last_transition_time for condition in later.conditions}
    assert times[ConditionType.READY] == NOW
    assert times[ConditionType.CAPACITY_AVAILABLE] == NOW + timedelta(seconds=9)


def test_capacity_is_remembered_after_its_jobs_are_gone() -> None:
    """Why the run has failed can still be read after the Jobs are cleaned up."""
    of = _written(benchmark(TWO), _attempt(pod(unschedulable="0/3 nodes"), 0, 1))
    assert _conditions(_written(of))["CapacityAvailable"] == "False"


def test_a_pod_that_found_no_node_is_not_forgotten_for_an_earlier_one_that_did() -> None:
    """The first attempt ran; the second has been given up, as no node took it."""
    twice = spec(sequenceLengths=[8, 16], execution={"retries": 1})
    ran = attempt_of(benchmark(twice), pod=ended(exit_code=1))
    waits = attempt_of(benchmark(twice), number=2, pod=pod(unschedulable="0/3 nodes"))
    of = _written(benchmark(twice), ran, waits)
    assert _conditions(of)["CapacityAvailable"] == "False"
    given_up = replace(waits, pod=pod(unschedulable="0/3 nodes", created_at=ago(9999)))
    over = _written(of, ran, given_up)
    assert _conditions(over)["Stalled"] == "True"
    assert _conditions(over)["CapacityAvailable"] == "False"


def test_messages_name_the_trouble() -> None:
    """The scheduler's words while waiting; the first failed cell in the end."""
    of = _written(benchmark(TWO), _attempt(pod(unschedulable="0/3 nodes: no neuron"), 0, 1))
    ready = next(condition for condition in of.status.conditions if condition.type is ConditionType.READY)
    assert ready.reason == "WaitingForCapacity"
    assert "0/3 nodes: no neuron" in ready.message
    of = _written(benchmark(TWO), _attempt(ended(exit_code=1, last_words="KeyError: 7"), 0, 1))
    ready = next(condition for condition in of.status.conditions if condition.type is ConditionType.READY)
    assert ready.reason == "CellsFailed"
    for word in ("2 of 2.", "bert on cpu fp32 length 8 batch 1", "KeyError: 7"):
        assert word in ready.message


def _any_attempt() -> st.SearchStrategy[Attempt]:
    pods = st.sampled_from(
        [
            None,
            pod(),
            pod(unschedulable="0/3"),
            pod(scheduled_at=ago(5)),
            running(),
            ended(exit_code=1),
            ended(exit_code=137, reason="OOMKilled"),
            ended(report(measured(CELLS[0].hash))),
        ]
    )
    return st.builds(
        lambda of_pod, cells, **flags: attempt_of(
            benchmark(TWO), [CELLS[number].hash for number in sorted(cells)], pod=of_pod, **flags
        ),
        pods,
        st.sets(st.sampled_from([0, 1]), min_size=1),
        number=st.integers(1, 3),
        deleting=st.booleans(),
        suspended=st.booleans(),
        finished_at=st.sampled_from([None, ago(3), ago(60)]),
        failed_reason=st.sampled_from(["", "DeadlineExceeded"]),
        run=st.sampled_from([run_of(benchmark(TWO)), "ffffffff"]),
    )


def _any_facts() -> st.SearchStrategy[Observed]:
    return st.builds(
        lambda attempts, results: observed(benchmark(TWO), *attempts, *[_result(number) for number in results]),
        st.lists(_any_attempt(), max_size=3, unique_by=lambda attempt: attempt.number),
        st.sets(st.sampled_from([0, 1])),
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(_any_facts(), min_size=1, max_size=4))
def test_whatever_is_seen_the_conditions_agree_with_the_cells(history: list[Observed]) -> None:
    """Over any history of facts: never both of Reconciling and Stalled, and kstatus says what the cells say."""
    of = benchmark(TWO)
    for facts in history:
        decision = decide(replace(facts, benchmark=of), NOW, SETTINGS)
        if decision.status is None:
            continue
        of = replace(of, status=BenchmarkStatus.model_validate(decision.status.model_dump(mode="json")))
        assert of.status == decision.status
        states = {entry.state.value for entry in of.status.results}
        assert not {"Reconciling", "Stalled"} <= set(_conditions(of))
        going_on = states & {"pending", "waiting", "running"}
        assert _kstatus(of) == ("InProgress" if going_on else "Failed" if "failed" in states else "Current")
        counts = of.status.cells
        assert counts
        tally = counts.model_dump(exclude={"total", "progress"}, by_alias=False)
        assert sum(tally.values()) == counts.total == 2


def _events(*history: BenchmarkStatus) -> list[Event]:
    return [event for before, after in pairwise(history) for event in between(before, after)]


def test_each_event_is_told_once() -> None:
    """Over a run with a failure, each turn is told when it comes and not again when nothing changes."""
    retried = spec(sequenceLengths=[8, 16], execution={"retries": 1})
    of = benchmark(retried)
    crashed = attempt_of(of, pod=ended(exit_code=1))
    homeless = attempt_of(of, number=2, pod=pod(unschedulable="0/3 nodes"))
    history = [of.status]
    for facts in (
        [],
        [attempt_of(of, pod=running())],
        [crashed],
        [crashed],
        [crashed, homeless],
        [crashed, homeless],
        [crashed, replace(homeless, pod=ended(exit_code=1))],
        [crashed, replace(homeless, pod=ended(exit_code=1))],
    ):
        of = _written(of, *facts)
        history.append(of.status)
    told = [(event.type, event.reason) for event in _events(*history)]
    assert told == [
        ("Normal", "RunStarted"),
        ("Warning", "RunnerFailed"),
        ("Warning", "Unschedulable"),
        ("Warning", "RunnerFailed"),
        ("Warning", "CellsFailed"),
    ]


def test_cells_that_fail_alike_make_one_event() -> None:
    """A thousand cells of one broken image are one piece of news."""
    before = _written(benchmark(TWO))
    after = _written(before, _attempt(ended(exit_code=1), 0, 1))
    failures = [event for event in between(before.status, after.status) if event.action == "Measure"]
    assert [event.message.split(":")[0] for event in failures] == ["2 cells of bert on cpu failed"]


def test_what_a_pod_waits_for_is_told_once_with_what_to_do() -> None:
    """Not the seconds that every pod takes; a place in a queue is no trouble, a quota is."""
    of = benchmark(TWO)
    job = _attempt(None, 0, 1)
    refused = replace(job, warning=ClusterWarning("FailedCreate", "exceeded quota: team"))
    queued = replace(job, suspended=True, warning=ClusterWarning("Pending", "no quota yet"))
    pulling = _attempt(pod(scheduled_at=ago(9), waiting_reason="ErrImagePull", waiting_message="no such host"), 0, 1)
    history = [of.status]
    for facts in (job, queued, queued, refused, refused, pulling):
        of = _written(of, facts)
        history.append(of.status)
    told = [(event.type, event.reason) for event in _events(*history)][1:]
    assert told == [("Normal", "Queued"), ("Warning", "QuotaExceeded"), ("Warning", "ErrImagePull")]
    quota = next(event for event in _events(*history) if event.reason == "QuotaExceeded")
    assert quota.message == (
        "bert on cpu waits: exceeded quota: team. Raise the quota of the namespace, or lower execution.maxParallelJobs."
    )


def test_success_is_told_once_for_each_run() -> None:
    """A second run of the same benchmark is news again, even where it keeps everything."""
    of = benchmark(TWO)
    first = _written(of, _result(0), _result(1))
    edited = replace(first, spec=spec(sequenceLengths=[8]), generation=2)
    second = _written(edited, _result(0), _result(1))
    assert [event.reason for event in between(of.status, first.status)] == ["RunStarted", "RunSucceeded"]
    assert [event.reason for event in between(first.status, second.status)] == ["RunStarted", "RunSucceeded"]
    assert "1 of them unchanged" in between(first.status, second.status)[0].message
    assert between(second.status, second.status) == ()
