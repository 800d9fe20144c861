"""What a gate says of figures that keep a limit, miss it, or can't tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from inferbench_operator.core import gates
from inferbench_operator.core.baselines import Baseline
from inferbench_operator.core.measured import Labels, Measured
from inferbench_operator.core.ratio import Interval
from inferbench_operator.models.gates import Gate, GateMetric
from inferbench_operator.models.status import GateState, GateStatus
from inferbench_runner.contract import Precision, Verdict

P95 = Interval(5000, 4900, 5100)
BERT = Labels("bert", "inf2", Precision.FP32, 128, 1)
LONG = BERT._replace(sequence_length=512)
VIT = Labels("vit", "inf2", Precision.FP32, None, 1)
PASSED, FAILED, UNDECIDED = "Passed", "Failed", "Undecided"


def _cell(
    labels: Labels = BERT,
    p95: Interval = P95,
    *,
    verdict: Verdict = Verdict.VALID,
    circumstances: Mapping[str, str] | None = None,
    **others: Interval,
) -> Measured:
    found = {GateMetric.P95: p95} | {GateMetric(name): figure for name, figure in others.items()}
    return Measured(labels, verdict, found, circumstances or {})


def _judge(
    fields: Mapping[str, Any], *cells: Measured | None, baseline: Baseline | None = None, **of: Measured | None
) -> GateStatus:
    del of
    by_labels = {cell.labels if cell else LONG: cell for cell in cells}
    return gates.judge(Gate.model_validate({"name": "gate", "metric": "P95", **fields}), by_labels, baseline)


@pytest.mark.parametrize(
    ("limit", "state", "reason"),
    [
        (5100, PASSED, "WithinLimit"),
        (5099, UNDECIDED, "IntervalTooWide"),
        (4900, UNDECIDED, "IntervalTooWide"),
        (4899, FAILED, "LimitExceeded"),
    ],
)
def test_a_fixed_limit_is_held_against_the_whole_interval(limit: int, state: str, reason: str) -> None:
    """A bound that is the limit keeps it."""
    found = _judge({"maxMicroseconds": limit}, _cell())
    assert (found.state, found.reason) == (state, reason)
    assert "bert on inf2 fp32 length 128 batch 1: P95 5.000 ms [4.900 ms, 5.100 ms]" in found.message
    assert f"at most {limit / 1000:.3f} ms" in found.message


@pytest.mark.parametrize(
    ("fields", "figure", "state"),
    [
        ({"metric": "P50", "maxMicroseconds": 4000}, Interval(3000, 2900, 3100), PASSED),
        ({"metric": "P99", "maxMicroseconds": 4000}, Interval(5000, 4500, 5600), FAILED),
        ({"metric": "Throughput", "minInferencesPerSecond": "200"}, Interval(210, 201, 220), PASSED),
        ({"metric": "Throughput", "minInferencesPerSecond": "200"}, Interval(205, 199, 212), UNDECIDED),
        ({"metric": "Throughput", "minInferencesPerSecond": "200.5"}, Interval(190, 180, 200), FAILED),
        ({"metric": "Cost", "maxUSDPerMillionInferences": "0.75"}, Interval(0.8, 0.76, 0.84), FAILED),
        ({"metric": "Cost", "maxUSDPerMillionInferences": "0.85"}, Interval(0.8, 0.76, 0.84), PASSED),
    ],
)
def test_each_metric_has_its_limit(fields: Mapping[str, Any], figure: Interval, state: str) -> None:
    """Throughput is to be reached, the others are not to be exceeded."""
    found = _judge(fields, _cell(**{fields["metric"]: figure}))
    assert found.state == state


@pytest.mark.parametrize(
    ("verdict", "allowed", "state"),
    [("Valid", None, PASSED), ("Noisy", None, FAILED), ("Noisy", ["Valid", "Noisy"], PASSED)],
)
def test_verdicts_are_a_metric(verdict: str, allowed: list[str] | None, state: str) -> None:
    """By default only figures that may be trusted pass."""
    fields = {"metric": "Verdict"} | ({"verdicts": allowed} if allowed else {})
    assert _judge(fields, _cell(verdict=Verdict(verdict))).state == state


@pytest.mark.parametrize(("most", "state"), [(None, FAILED), (0, FAILED), (1, PASSED)])
def test_cells_without_figures_are_counted(most: int | None, state: str) -> None:
    """By default none may be without."""
    fields = {"metric": "FailedCells"} | ({} if most is None else {"maxFailedCells": most})
    found = _judge(fields, _cell(), None)
    assert found.state == state
    assert "1 of 2" in found.message


@pytest.mark.parametrize(
    ("fields", "cell", "words"),
    [
        pytest.param({"maxMicroseconds": 9000}, None, "has no figures", id="a cell that failed"),
        pytest.param(
            {"maxMicroseconds": 9000}, _cell(verdict=Verdict.INVALID), "can't be relied on", id="a wrong output"
        ),
        pytest.param(
            {"metric": "Cost", "maxUSDPerMillionInferences": "9"}, _cell(), "no price", id="no price is known"
        ),
        pytest.param({"metric": "Verdict"}, None, "has no figures", id="no verdict"),
    ],
)
def test_what_is_not_shown_is_not_passed(fields: Mapping[str, Any], cell: Measured | None, words: str) -> None:
    """A gate fails safe where the figure is missing, however good the others are."""
    found = _judge(fields, _cell(VIT, Interval(1, 1, 1), Cost=Interval(1)), cell)
    assert (found.state, found.reason, found.failed) == (FAILED, "FiguresMissing", 1)
    assert words in found.message


def test_a_gate_that_matches_no_cell_fails() -> None:
    """It would otherwise protect nothing, in silence."""
    found = _judge({"maxMicroseconds": 9000, "selector": {"minSequenceLength": 1000}}, _cell())
    assert (found.state, found.reason, found.cells) == (FAILED, "NoSuchCells", 0)
    assert "matches no cell" in found.message


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        ({}, 3),
        ({"model": "bert"}, 2),
        ({"accelerator": "inf2", "precision": "fp32", "batchSize": 1}, 3),
        ({"minSequenceLength": 128}, 2),
        ({"minSequenceLength": 129}, 1),
        ({"maxSequenceLength": 128}, 1),
        ({"minSequenceLength": 128, "maxSequenceLength": 512}, 2),
    ],
)
def test_a_selector_chooses_cells(selector: Mapping[str, Any], chosen: int) -> None:
    """A bound on the length leaves out models that have none."""
    cells = (_cell(), _cell(LONG), _cell(VIT))
    assert _judge({"maxMicroseconds": 9000, "selector": selector}, *cells).cells == chosen


def test_the_worst_cell_is_named() -> None:
    """With how many miss the limit."""
    slow, slower = _cell(LONG, Interval(8000, 7900, 8100)), _cell(VIT, Interval(9000, 8900, 9100))
    found = _judge({"maxMicroseconds": 5050}, _cell(), slow, slower)
    assert (found.state, found.cells, found.failed, found.undecided) == (FAILED, 3, 2, 1)
    assert found.message.startswith("vit on inf2")
    assert "miss it: 2, undecided: 1, of 3" in found.message


RELATIVE = {"baseline": "PreviousRun", "maxIncreasePercent": 10}


def _before(p95: Interval, **others: Any) -> Baseline:  # noqa: ANN401 - fields of a cell
    return Baseline("the run before", {BERT: _cell(p95=p95, **others)})


@pytest.mark.parametrize(
    ("value", "state"),
    [(103.0, PASSED), (108.0, UNDECIDED), (110.0, UNDECIDED), (112.0, UNDECIDED), (113.0, FAILED), (60.0, PASSED)],
)
def test_a_regression_is_claimed_only_beyond_doubt(value: float, state: str) -> None:
    """Of two figures with 1.5 % each way, the ratio has 2.1 %: from 107.7 to 112.3 it can't be told."""
    found = _judge(RELATIVE, _cell(p95=_within(value)), baseline=_before(_within(100.0)))
    assert found.state == state
    assert (found.reason == "Regression") == (state == FAILED)


def _within(value: float, percent: float = 1.5) -> Interval:
    return Interval(value, value * (1 - percent / 100), value * (1 + percent / 100))


@pytest.mark.parametrize(("rate", "state"), [(100.0, PASSED), (89.0, UNDECIDED), (80.0, FAILED)])
def test_throughput_may_fall_by_so_much(rate: float, state: str) -> None:
    """The other way round."""
    fields = {"metric": "Throughput", "baseline": "PreviousRun", "maxDecreasePercent": 10}
    found = _judge(fields, _cell(Throughput=_within(rate)), baseline=_before(P95, Throughput=_within(100.0)))
    assert found.state == state


@pytest.mark.parametrize(
    ("baseline", "state", "reason", "words"),
    [
        pytest.param(
            Baseline("the run before", problem="No earlier run."), UNDECIDED, "BaselineMissing", "No earlier", id="none"
        ),
        pytest.param(
            Baseline("ConfigMap a", problem="No JSON.", broken=True), FAILED, "BaselineMissing", "No JSON", id="broken"
        ),
        pytest.param(
            Baseline("benchmark a", {VIT: _cell(VIT)}), UNDECIDED, "BaselineMissing", "no figures of", id="other cells"
        ),
        pytest.param(
            _before(P95, verdict=Verdict.INVALID), UNDECIDED, "BaselineMissing", "no figures of", id="a wrong output"
        ),
        pytest.param(
            Baseline("ConfigMap a", {BERT: Measured(BERT, Verdict.VALID, {})}, fields=True),
            FAILED,
            "FiguresMissing",
            "no p95Microseconds",
            id="another unit",
        ),
        pytest.param(
            _before(P95, circumstances={"load": "Open 1, Poisson 50/s"}),
            UNDECIDED,
            "BaselineDiffers",
            "load is Closed 1, and was Open 1, Poisson 50/s",
            id="another load",
        ),
        pytest.param(_before(Interval(5000)), UNDECIDED, "IntervalTooWide", "too few samples", id="no interval"),
    ],
)
def test_a_baseline_that_does_not_serve(baseline: Baseline, state: str, reason: str, words: str) -> None:
    """Each has its own sentence."""
    found = _judge(RELATIVE, _cell(circumstances={"load": "Closed 1"}), baseline=baseline)
    assert (found.state, found.reason) == (state, reason)
    assert words in found.message


@pytest.mark.parametrize(
    ("state", "on_undecided", "missed"),
    [
        (PASSED, "Fail", False),
        (UNDECIDED, "Pass", False),
        (UNDECIDED, "Fail", True),
        (FAILED, "Pass", True),
    ],
)
def test_what_can_not_be_told_counts_as_the_gate_says(state: str, on_undecided: str, missed: bool) -> None:  # noqa: FBT001 - a parameter
    """By default a gate that is undecided is passed."""
    gate = Gate.model_validate({"name": "gate", "metric": "P95", "onUndecided": on_undecided})
    told = GateStatus(name="gate", state=GateState(state), reason="Any", message="")
    assert gates.is_missed(gate, told) == missed
    assert Gate(name="gate", metric=GateMetric.P95).on_undecided == "Pass"
