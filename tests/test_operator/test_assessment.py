"""What is said of a run when it is over, and what stands then."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from inferbench_operator.core.assessment import compared_benchmarks, wanted_references
from inferbench_operator.core.decide import Decision, decide
from inferbench_operator.core.facts import Benchmark, Observed, Reference, Result
from inferbench_operator.models.benchmark import BenchmarkSpec
from inferbench_operator.models.status import BenchmarkStatus
from operator_testing.builders import (
    NOW,
    SETTINGS,
    attempt_of,
    benchmark,
    cells_of,
    ended,
    failed,
    measured,
    observed,
    report,
    result_of,
    run_of,
    spec,
)
from operator_testing.kstatus import kstatus

ABSOLUTE = {"name": "interactive", "metric": "P95", "maxMicroseconds": 6000}
RELATIVE = {"name": "no-regression", "metric": "P95", "maxIncreasePercent": 10}
PREVIOUS = RELATIVE | {"baseline": "PreviousRun"}
OF_BENCHMARK = RELATIVE | {"baseline": "Benchmark", "baselineName": "main"}
OF_CONFIG_MAP = RELATIVE | {"baseline": "ConfigMap", "baselineName": "reference"}


def _spec(*gates: dict[str, Any], **fields: Any) -> BenchmarkSpec:  # noqa: ANN401 - any field
    return spec(gates=list(gates), **fields)


def _decide(facts: Observed) -> Decision:
    return decide(facts, NOW, SETTINGS)


def _status(facts: Observed) -> BenchmarkStatus:
    status = _decide(facts).status
    assert status
    return status


def _started(wanted: BenchmarkSpec) -> Benchmark:
    of = benchmark(wanted)
    return replace(of, status=_status(observed(of)))


def _finished(wanted: BenchmarkSpec, p95: int = 5000, history: str = "[]", **facts: Any) -> Observed:  # noqa: ANN401 - any fact
    """Return the facts of a benchmark whose every cell has been measured, before anybody has said so."""
    of = _started(wanted)
    results = [replace(result_of(of, cell, run=run_of(of), p95=p95), history=history) for cell in cells_of(wanted)]
    return observed(of, *results, **facts)


def _conditions(status: BenchmarkStatus) -> dict[str, tuple[str, str]]:
    return {one.type.value: (one.status.value, one.reason) for one in status.conditions}


def _earlier(p95: int, **fields: Any) -> str:  # noqa: ANN401 - any field
    return json.dumps(
        [
            {
                "run": "0000000a",
                "completionTime": "2026-01-01T00:00:00Z",
                "verdict": "Valid",
                "samples": 1000,
                "p95Microseconds": p95,
                "p95LowMicroseconds": p95 - 50,
                "p95HighMicroseconds": p95 + 50,
                "runnerImage": "runner:1",
                **fields,
            }
        ]
    )


@pytest.mark.parametrize(
    ("p95", "mode", "conditions", "overall"),
    [
        (5000, "Enforce", {"Ready": ("True", "RunSucceeded"), "GatesPassed": ("True", "GatesPassed")}, "Current"),
        (
            7000,
            "Enforce",
            {
                "Ready": ("False", "GateFailed"),
                "Stalled": ("True", "GateFailed"),
                "Succeeded": ("True", "RunSucceeded"),
                "GatesPassed": ("False", "GateFailed"),
            },
            "Failed",
        ),
        (7000, "Report", {"Ready": ("True", "RunSucceeded"), "GatesPassed": ("False", "GateFailed")}, "Current"),
        (6020, "Enforce", {"Ready": ("True", "RunSucceeded"), "GatesPassed": ("True", "GatesUndecided")}, "Current"),
    ],
)
def test_whether_it_worked_and_whether_it_is_good_enough_are_told_apart(
    p95: int, mode: str, conditions: dict[str, tuple[str, str]], overall: str
) -> None:
    """A run that was measured has succeeded, whatever the gates say; with Enforce it is not ready."""
    status = _status(_finished(_spec(ABSOLUTE, gateMode=mode), p95))
    found = _conditions(status)
    assert conditions.items() <= found.items()
    assert found["Succeeded"] == ("True", "RunSucceeded")
    assert ("Stalled" in found) == (overall == "Failed")
    seen = {"metadata": {"generation": 1}, "status": status.model_dump(mode="json", exclude_none=True)}
    assert kstatus(seen) == overall


def test_a_gate_that_can_not_tell_fails_where_it_should() -> None:
    """And the condition names it."""
    status = _status(_finished(_spec(ABSOLUTE | {"onUndecided": "Fail"}), 6020))
    assert _conditions(status)["GatesPassed"] == ("False", "GateFailed")
    (ready,) = (one for one in status.conditions if one.type == "Ready")
    assert ready.message.startswith("Gates missed: 1 of 1. interactive: bert on cpu")


def test_while_the_run_goes_on_nothing_is_said() -> None:
    """No gate can be passed by half of the cells."""
    wanted = _spec(ABSOLUTE, sequenceLengths=[8, 16], compare={"baseline": "cpu"})
    of = _started(wanted)
    half = result_of(of, cells_of(wanted)[0], run=run_of(of))
    status = _status(observed(of, half))
    assert status.gates == status.comparison == []
    assert "GatesPassed" not in _conditions(status)


def test_a_failed_cell_fails_its_gates() -> None:
    """The run has failed in any case; the gates are told all the same."""
    wanted = _spec(ABSOLUTE, execution={"retries": 0})
    of = _started(wanted)
    (cell,) = cells_of(wanted)
    attempt = attempt_of(of, pod=ended(report(failed(cell.hash)), exit_code=1))
    status = _status(observed(of, attempt))
    found = _conditions(status)
    assert found["Ready"] == ("False", "CellsFailed")
    assert found["GatesPassed"] == ("False", "GateFailed")
    assert status.gates[0].reason == "FiguresMissing"


@pytest.mark.parametrize(
    ("history", "state", "reason"),
    [
        ("[]", "Undecided", "BaselineMissing"),
        ("of another version", "Undecided", "BaselineMissing"),
        (_earlier(4900), "Passed", "WithinLimit"),
        (_earlier(4000), "Failed", "Regression"),
        (_earlier(4000, verdict="Invalid"), "Undecided", "BaselineMissing"),
        (_earlier(4000, load="Open 1, Poisson 50/s", profile="Sound"), "Failed", "Regression"),
    ],
)
def test_the_run_before_is_in_the_results(history: str, state: str, reason: str) -> None:
    """The first run has none, and says so."""
    status = _status(_finished(_spec(PREVIOUS), history=history))
    assert [(gate.state, gate.reason) for gate in status.gates] == [(state, reason)]


def test_a_cell_that_was_not_measured_anew_is_as_it_was() -> None:
    """So it is no regression, even if it once was one."""
    wanted = _spec(PREVIOUS)
    of = _started(wanted)
    kept = replace(result_of(of, cells_of(wanted)[0]), history=_earlier(1000))
    (gate,) = _status(observed(of, kept)).gates
    assert gate.state == "Passed"


def test_another_image_has_the_same_history() -> None:
    """Whether it is slower is just what a gate is there to tell: the cells have another hash, and the same names."""
    before = _spec(PREVIOUS, runner={"image": "runner:1"})
    after = _spec(PREVIOUS, runner={"image": "runner:2"})
    of = _started(before)
    old = result_of(of, cells_of(before)[0], run=run_of(of), p95=4000, image="runner:1")
    of = replace(of, spec=after, generation=2, status=_status(observed(of, old)))
    of = replace(of, status=_status(observed(of, old)))
    (cell,) = cells_of(after)
    attempt = attempt_of(of, pod=ended(report(measured(cell.hash, 5000))), image="runner:2")
    (write,) = _decide(observed(of, old, attempt)).results
    assert write.replaces is None
    assert [past["p95Microseconds"] for past in write.manifest["status"]["history"]] == [4000]


def _sibling(p95: int, *, finished: bool = True, **fields: Any) -> Observed:  # noqa: ANN401 - any field
    wanted = spec(**fields)
    facts = _finished(wanted, p95)
    status = _status(facts) if finished else facts.benchmark.status
    return replace(facts, benchmark=replace(facts.benchmark, name="main", status=status))


@pytest.mark.parametrize(
    ("siblings", "state", "words"),
    [
        pytest.param({}, "Undecided", "There is no benchmark main", id="it does not exist, or was deleted"),
        pytest.param({"main": _sibling(4000, finished=False)}, "Undecided", "has not finished", id="it still runs"),
        pytest.param({"main": _sibling(4000)}, "Failed", "in benchmark main", id="slower"),
        pytest.param({"main": _sibling(4900)}, "Passed", "in benchmark main", id="about as fast"),
        pytest.param(
            {"main": _sibling(4000, sequenceLengths=[64])}, "Undecided", "no figures of bert", id="it has other cells"
        ),
    ],
)
def test_another_benchmark_may_be_the_baseline(siblings: dict[str, Observed], state: str, words: str) -> None:
    """Cells belong together by their names."""
    facts = _finished(_spec(OF_BENCHMARK), siblings=siblings)
    assert compared_benchmarks(facts) == {"main"}
    decision = _decide(facts)
    assert decision.status
    (gate,) = decision.status.gates
    assert (gate.state, words in gate.message) == (state, True)
    waits = gate.reason == "BaselineMissing"
    assert (decision.look_again_at == NOW + timedelta(minutes=1)) == waits


def test_a_benchmark_is_no_baseline_of_itself() -> None:
    """It would always be as fast."""
    (gate,) = _status(_finished(_spec(OF_BENCHMARK | {"baselineName": "study"}))).gates
    assert (gate.state, "use baseline: PreviousRun" in gate.message) == ("Failed", True)


def _reference(**fields: Any) -> Reference:  # noqa: ANN401 - any field
    entry = {"model": "bert", "accelerator": "cpu", "precision": "fp32", "sequenceLength": 128, "batchSize": 1}
    return Reference(json.dumps([entry | fields]))


@pytest.mark.parametrize(
    ("reference", "state", "words"),
    [
        pytest.param(
            _reference(p95Microseconds=4000, p95LowMicroseconds=3990, p95HighMicroseconds=4010),
            "Failed",
            "instead of 4.000 ms in ConfigMap reference",
            id="slower",
        ),
        pytest.param(_reference(p95Milliseconds=4), "Failed", "no p95Microseconds", id="another unit"),
        pytest.param(_reference(p95Microseconds=4000), "Failed", "+25.0 % [+23.8 %, +26.2 %]", id="an exact figure"),
        pytest.param(_reference(p95Microseconds="fast"), "Failed", "p95Microseconds", id="no number"),
        pytest.param(Reference("{"), "Failed", "no list of entries", id="no JSON"),
        pytest.param(Reference("{}"), "Failed", "no list of entries", id="no list"),
        pytest.param(Reference(problem="There is none."), "Undecided", "There is none", id="it does not exist"),
        pytest.param(Reference(problem="No key.", broken=True), "Failed", "No key", id="it has no such key"),
    ],
)
def test_a_config_map_may_be_the_baseline(reference: Reference, state: str, words: str) -> None:
    """A mistake in it fails the gate; what may still come leaves it undecided."""
    facts = _finished(_spec(OF_CONFIG_MAP), references={"reference": reference})
    (gate,) = _status(facts).gates
    assert (gate.state, words in gate.message) == (state, True), gate.message


def test_what_a_benchmark_shows_can_be_stored_as_a_reference() -> None:
    """status.results is in the form that is asked for."""
    shown = _status(_finished(spec())).model_dump(mode="json", exclude_none=True)["results"]
    facts = _finished(_spec(OF_CONFIG_MAP), 5000, references={"reference": Reference(json.dumps(shown))})
    assert _status(facts).gates[0].state == "Passed"


def _over(facts: Observed) -> Observed:
    return replace(facts, benchmark=replace(facts.benchmark, status=_status(facts)))


def test_what_was_said_stands() -> None:
    """A baseline that gets better later makes no run worse; nothing is read or computed again."""
    wanted = _spec(OF_BENCHMARK, OF_CONFIG_MAP | {"name": "stored"})
    reference = _reference(p95Microseconds=4900, p95LowMicroseconds=4890, p95HighMicroseconds=4910)
    facts = _finished(wanted, siblings={"main": _sibling(4900)}, references={"reference": reference})
    over = _over(facts)
    assert wanted_references(facts) == {"reference"}
    assert wanted_references(over) == compared_benchmarks(over) == frozenset()
    later = replace(over, siblings={"main": _sibling(1000)}, references={})
    assert _status(later) == over.benchmark.status


def test_a_baseline_that_comes_later_is_taken() -> None:
    """It was asked for again every minute."""
    over = _over(_finished(_spec(OF_BENCHMARK, ABSOLUTE)))
    assert compared_benchmarks(over) == {"main"}
    later = replace(over, siblings={"main": _sibling(4000)})
    found = _status(later)
    assert [gate.state for gate in found.gates] == ["Failed", "Passed"]
    assert found.run == over.benchmark.status.run


def test_other_gates_are_judged_without_another_run() -> None:
    """The figures are there."""
    over = _over(_finished(_spec(ABSOLUTE)))
    edited = replace(over.benchmark, spec=_spec(ABSOLUTE | {"maxMicroseconds": 1000}), generation=2)
    status = _status(replace(over, benchmark=edited))
    assert status.gates[0].state == "Failed"
    assert status.run == over.benchmark.status.run
    gone = replace(over.benchmark, spec=spec(), generation=2)
    assert "GatesPassed" not in _conditions(_status(replace(over, benchmark=gone)))


def test_accelerators_are_compared_when_the_run_is_over() -> None:
    """And anew when the specification asks for another baseline."""
    two = [{"name": "cpu", "kind": "CPU"}, {"name": "inf2", "instanceTypes": ["inf2.xlarge"]}]
    wanted = spec(accelerators=two, compare={"baseline": "cpu"})
    of = _started(wanted)
    results: list[Result] = [
        result_of(of, cell, run=run_of(of), p95=8000 if cell.accelerator.name == "cpu" else 2000)
        for cell in cells_of(wanted)
    ]
    over = _over(observed(of, *results))
    (found,) = over.benchmark.status.comparison
    assert (found.accelerator, found.speedup) == ("inf2", "4.0000")
    turned = spec(accelerators=two, compare={"baseline": "inf2"})
    (found,) = _status(replace(over, benchmark=replace(over.benchmark, spec=turned, generation=2))).comparison
    assert (found.accelerator, found.speedup) == ("cpu", "0.2500")


def test_events_tell_of_missed_gates_once() -> None:
    """One that says so, and one more for regressions."""
    facts = _finished(_spec(ABSOLUTE | {"maxMicroseconds": 1000}, PREVIOUS), history=_earlier(4000))
    events = {event.reason: event for event in _decide(facts).events}
    assert events.keys() == {"RunSucceeded", "GateFailed", "Regression"}
    assert events["GateFailed"].message.startswith("Gates missed: 2 of 2.")
    assert events["Regression"].message.startswith("no-regression: bert on cpu")
    assert _decide(_over(facts)).events == ()


def test_history_remembers_that_a_gate_was_missed() -> None:
    """Among the earlier runs."""
    over = _over(_finished(_spec(ABSOLUTE), 7000))
    again = replace(over, benchmark=replace(over.benchmark, rerun="again"))
    assert [past.reason for past in _status(again).history] == ["GateFailed"]
