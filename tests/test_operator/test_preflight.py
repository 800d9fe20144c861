"""What a benchmark is told about a cluster that lacks what it asks for, and when that matters at all."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from inferbench_operator.core.decide import Decision, decide
from inferbench_operator.core.facts import Attempt, Benchmark, Nodes, Observed, Supply, Taint
from inferbench_operator.core.preflight import is_due
from inferbench_operator.models.benchmark import BenchmarkSpec
from inferbench_operator.models.status import CellStatus, Condition, ConditionType
from operator_testing.builders import (
    NOW,
    SETTINGS,
    ago,
    attempt_of,
    benchmark,
    cells_of,
    ended,
    observed,
    pod,
    result_of,
    run_of,
    running,
    spec,
)

INF2 = {"name": "inf2", "instanceTypes": ["inf2.xlarge"]}
CPU = {"name": "cpu", "kind": "CPU"}
ON_INF2 = spec(accelerators=[INF2])
ON_BOTH = spec(accelerators=[CPU, INF2])

EMPTY = Supply(nodes=frozenset(), node_pools=())
NODE = Nodes((("node.kubernetes.io/instance-type", "inf2.xlarge"),), (("aws.amazon.com/neuron", 1),))
STOCKED = Supply(nodes=frozenset({NODE}), node_pools=())
SHORT = "No node and no Karpenter NodePool offers inf2.xlarge."
SENTENCE = f"{SHORT[:-1]}; add a node group or a NodePool for it, or name another instance type."
SCHEDULER = "0/3 nodes are available: 3 node(s) didn't match."


def _decided(
    of: Benchmark,
    *facts: Attempt,
    supply: Supply | None = EMPTY,
    at: datetime = NOW,
) -> Decision:
    return decide(observed(of, *facts, supply=supply), at, SETTINGS)


def _after(of: Benchmark, *facts: Attempt, supply: Supply | None = EMPTY) -> Benchmark:
    """Return the benchmark with the status that is decided."""
    status = _decided(of, *facts, supply=supply).status
    assert status
    return replace(of, status=status)


def _capacity(of: Benchmark) -> tuple[str, str, str] | None:
    found = _condition(of, ConditionType.CAPACITY_AVAILABLE)
    return (found.status.value, found.reason, found.message) if found else None


def _condition(of: Benchmark, kind: ConditionType) -> Condition | None:
    return next((one for one in of.status.conditions if one.type is kind), None)


def _ready(of: Benchmark) -> tuple[str, str]:
    found = _condition(of, ConditionType.READY)
    assert found
    return found.reason, found.message


def _cell(of: Benchmark, accelerator: str = "inf2") -> CellStatus:
    return next(entry for entry in of.status.results if entry.accelerator == accelerator)


def _on(of: Benchmark, accelerator: str, **changes: Any) -> Attempt:  # noqa: ANN401 - any field
    """Return an attempt at the cells of one accelerator."""
    assert of.spec
    cells = [cell.hash for cell in cells_of(of.spec) if cell.accelerator.name == accelerator]
    return attempt_of(of, cells, **{"plan": accelerator, **changes})


def test_the_first_status_of_a_run_says_what_is_lacking() -> None:
    """Before any Job exists; it names the accelerator, and one Event tells it."""
    decision = _decided(benchmark(ON_BOTH))
    of = replace(benchmark(ON_BOTH), status=decision.status)
    assert decision.create_jobs == ()
    assert _capacity(of) == ("False", "NotOffered", f"Accelerator inf2: {SENTENCE}")
    assert _ready(of)[0] == "WaitingForCapacity"
    assert SENTENCE in _ready(of)[1]
    assert (_cell(of).state, _cell(of).message) == ("pending", "")
    assert [(event.type, event.reason, event.message) for event in decision.events[1:]] == [
        ("Warning", "NotOffered", f"Accelerator inf2: {SENTENCE}")
    ]


def test_jobs_are_made_all_the_same() -> None:
    """Capacity may come late."""
    of = _after(benchmark(ON_INF2))
    assert len(_decided(of).create_jobs) == 1


@pytest.mark.parametrize("supply", [None, STOCKED])
def test_without_a_shortage_all_is_as_ever(supply: Supply | None) -> None:
    """Whether there is a node, or the operator may not know."""
    of = benchmark(ON_INF2)
    decision = _decided(of, supply=supply)
    assert decision == decide(observed(of), NOW, SETTINGS)
    assert _capacity(_after(of, supply=supply)) is None
    waiting = _on(of, "inf2", pod=pod(unschedulable=SCHEDULER))
    of = _after(of, waiting, supply=supply)
    assert _capacity(of) == ("False", "Unschedulable", SCHEDULER)
    assert _cell(of).message == SCHEDULER


def test_the_schedulers_own_words_come_first() -> None:
    """The sentence stands behind them; it is no second Event."""
    of = _after(benchmark(ON_INF2))
    decision = _decided(of, _on(of, "inf2", pod=pod(unschedulable=SCHEDULER)))
    of = replace(of, status=decision.status)
    assert _capacity(of) == ("False", "Unschedulable", f"{SCHEDULER} Accelerator inf2: {SENTENCE}")
    assert _ready(of)[0] == "WaitingForCapacity"
    assert decision.events == ()


@pytest.mark.parametrize(
    ("of_pod", "message"),
    [
        pytest.param(pod(unschedulable=SCHEDULER), f"{SCHEDULER} {SENTENCE}", id="room for all of it"),
        pytest.param(pod(unschedulable="x" * 140), f"{'x' * 140} {SHORT}", id="room for the short form"),
        pytest.param(pod(unschedulable="x" * 160), "x" * 160, id="no room"),
        pytest.param(pod(), SENTENCE, id="the scheduler has not said a word yet"),
        pytest.param(None, f"The Job has no pod yet. {SENTENCE}", id="no pod yet"),
        pytest.param(pod(scheduled_at=ago(1)), "", id="a pod that has found a node after all"),
    ],
)
def test_cells_that_wait_carry_it(of_pod: Any, message: str) -> None:  # noqa: ANN401 - a pod or none
    """Behind what is said already, within the 200 characters that there are."""
    of = _after(benchmark(ON_INF2))
    assert _cell(_after(of, _on(of, "inf2", pod=of_pod))).message == message


@pytest.mark.parametrize("of_pod", [None, pod(), pod(unschedulable=SCHEDULER)])
def test_the_benchmark_waits_for_capacity_from_the_start(of_pod: Any) -> None:  # noqa: ANN401 - a pod or none
    """And not, for the moment that a pod takes to come, for something else."""
    of = _after(benchmark(ON_INF2))
    reason, message = _ready(_after(of, _on(of, "inf2", pod=of_pod)))
    assert reason == "WaitingForCapacity"
    assert SENTENCE in message


def test_another_wait_is_told_as_what_it_is() -> None:
    """An image that doesn't come on one accelerator, while another is not offered."""
    of = _after(benchmark(ON_BOTH))
    waits = pod(scheduled_at=ago(9), waiting_reason="ImagePullBackOff", waiting_message="Back-off")
    reason, message = _ready(_after(of, _on(of, "cpu", pod=waits)))
    assert reason == "Waiting"
    assert message.partition("ImagePullBackOff: ")[2].startswith("Back-off. See that runner.image exists")


def test_a_failure_that_is_told_stays_as_it_was_told() -> None:
    """While the cell waits for another attempt, however often it is looked at."""
    of = _after(benchmark(ON_INF2))
    failed = _on(of, "inf2", pod=ended(exit_code=1))
    message = "The runner ended with exit code 1."
    for _ in range(3):
        of = _after(of, failed)
        assert (_cell(of).state, _cell(of).message) == ("pending", message)


def test_other_accelerators_are_left_alone() -> None:
    """Their cells have no such message, and what is being measured is what the benchmark is at."""
    of = _after(benchmark(ON_BOTH))
    cpu, inf2 = _on(of, "cpu", pod=running()), _on(of, "inf2", number=2, pod=pod())
    of = _after(of, cpu, inf2)
    assert (_cell(of, "cpu").state, _cell(of, "cpu").message) == ("running", "")
    assert _cell(of, "inf2").message == SENTENCE
    assert _ready(of)[0] == "Measuring"
    assert _capacity(of) == ("False", "NotOffered", f"Accelerator inf2: {SENTENCE}")


def test_each_accelerator_has_its_own_sentence_and_its_own_settings() -> None:
    """What helps one of them, such as a toleration, is of no use to the other."""
    tainted = replace(NODE, taints=(Taint("team", "ml", "NoSchedule"),))
    tolerant = {"tolerations": [{"key": "team", "operator": "Exists"}]}
    accelerators = [
        INF2,
        INF2 | {"name": "two", "cores": 2, "runner": tolerant},
        {"name": "g5", "instanceTypes": ["g5.xlarge"]},
    ]
    of = _after(benchmark(spec(accelerators=accelerators)), supply=Supply(frozenset({tainted}), ()))
    inf2 = (
        "Accelerator inf2: Nodes of inf2.xlarge are there, but those that would do have a taint that the pod doesn't "
        "tolerate, such as team=ml:NoSchedule; add it to runner.tolerations."
    )
    g5 = f"Accelerator g5: {SENTENCE.replace('inf2', 'g5')}"
    assert _capacity(of) == ("False", "NotOffered", f"{inf2} {g5}")


def test_it_is_looked_at_again_every_minute_while_it_stands() -> None:
    """And nothing is written meanwhile, if nothing has changed."""
    of = _after(benchmark(ON_INF2))
    waiting = _on(of, "inf2", pod=pod(unschedulable=SCHEDULER))
    of = _after(of, waiting)
    for minutes in (1, 2):
        decision = _decided(of, waiting, at=NOW + timedelta(minutes=minutes))
        assert decision.look_again_at == NOW + timedelta(minutes=minutes + 1)
        assert decision.status == of.status
    assert _decided(of, waiting, supply=STOCKED).look_again_at == ago(60) + timedelta(minutes=30), "the pod's deadline"


def test_it_goes_when_a_node_comes() -> None:
    """At the next look, before the scheduler has placed anything; the end of the wait is told as ever."""
    of = _after(benchmark(ON_INF2))
    assert _capacity(_after(of, supply=STOCKED)) is None
    waiting = _on(of, "inf2", pod=pod(unschedulable=SCHEDULER))
    of = _after(of, waiting)
    of = _after(of, waiting, supply=STOCKED)
    assert _capacity(of) == ("False", "Unschedulable", SCHEDULER)
    assert _cell(of).message == SCHEDULER
    of = _after(of, _on(of, "inf2", pod=running()), supply=STOCKED)
    assert _capacity(of) == ("True", "PodsScheduled", "Every pod that was created has found a node.")


def test_it_goes_when_nobody_may_look_any_more() -> None:
    """What is not known is not told."""
    of = _after(benchmark(ON_INF2))
    assert _capacity(_after(of, supply=None)) is None


def test_in_the_end_it_stays_as_the_reason() -> None:
    """As the scheduler's words do."""
    of = _after(benchmark(ON_INF2))
    given_up = replace(of, spec=spec(accelerators=[INF2], cancel=True), generation=2)
    assert _capacity(_after(given_up, supply=None)) == ("False", "NotOffered", f"Accelerator inf2: {SENTENCE}")


def _waiting(of: Benchmark, of_pod: Any) -> Observed:  # noqa: ANN401 - a pod or none
    attempt = _on(of, "inf2", pod=of_pod)
    return observed(_after(of, attempt, supply=None), attempt)


def _finished(of_spec: BenchmarkSpec = ON_INF2, **changes: Any) -> Observed:  # noqa: ANN401 - any field
    of = benchmark(of_spec)
    (cell,) = cells_of(of_spec)
    status = decide(observed(of, result_of(of, cell, run=run_of(of))), NOW, SETTINGS).status
    assert status
    assert status.run
    assert status.run.completion_time
    return observed(replace(of, status=status, **changes))


@pytest.mark.parametrize(
    ("facts", "due"),
    [
        pytest.param(observed(benchmark(ON_INF2)), True, id="a new benchmark"),
        pytest.param(observed(_after(benchmark(ON_INF2), supply=None)), True, id="no Job yet"),
        pytest.param(_waiting(benchmark(ON_INF2), None), True, id="no pod yet"),
        pytest.param(_waiting(benchmark(ON_INF2), pod(unschedulable=SCHEDULER)), True, id="no node yet"),
        pytest.param(_waiting(benchmark(ON_INF2), pod(scheduled_at=ago(1))), False, id="a node, and an image to come"),
        pytest.param(_waiting(benchmark(ON_INF2), running()), False, id="measuring"),
        pytest.param(_waiting(benchmark(ON_INF2), ended(exit_code=1)), True, id="to be tried again"),
        pytest.param(_finished(), False, id="finished"),
        pytest.param(_finished(generation=2), True, id="finished, and edited"),
        pytest.param(_finished(rerun="again"), True, id="finished, and asked for once more"),
        pytest.param(
            _finished(spec(accelerators=[INF2], schedule={"cron": "0 3 * * *"})),
            False,
            id="finished until the next tick",
        ),
        pytest.param(
            observed(_after(benchmark(spec(accelerators=[INF2], suspend=True)), supply=None)), False, id="suspended"
        ),
        pytest.param(observed(benchmark(spec(accelerators=[INF2], cancel=True))), False, id="cancelled"),
        pytest.param(observed(benchmark(ON_INF2, deleting=True)), False, id="being deleted"),
        pytest.param(observed(benchmark(ON_INF2, spec=None, spec_error="No.")), False, id="not to be read"),
        pytest.param(observed(_after(benchmark(spec(exclude=[{}])))), False, id="not accepted"),
    ],
)
def test_when_it_matters_what_the_cluster_offers(facts: Observed, due: bool) -> None:  # noqa: FBT001 - a column
    """While cells have no node, or are about to; what is finished costs no request."""
    assert is_due(facts, NOW) == due


def test_it_matters_again_at_the_next_tick() -> None:
    """Of the schedule, when a new run begins."""
    facts = _finished(spec(accelerators=[INF2], schedule={"cron": "0 3 * * *"}))
    assert is_due(facts, datetime.fromisoformat("2026-01-06T03:00:00Z"))
    assert not is_due(facts, datetime.fromisoformat("2026-01-06T02:59:59Z"))
