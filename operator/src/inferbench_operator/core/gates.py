"""Judges gates: whether the figures of a run keep the limits that a person has put on them.

A gate looks at cells one by one. A cell misses it only where its whole 95 % interval lies beyond the limit, and keeps
it only where the whole interval lies within; in between it can't be told. The gate fails if one cell misses it, and is
undecided if one can't be told. A cell without figures fails every gate that looks at it: nobody has shown that it is
good enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from inferbench_operator.core.baselines import Baseline
from inferbench_operator.core.measured import Labels, Measured
from inferbench_operator.core.names import Reason, shortened
from inferbench_operator.core.ratio import Interval, ratio
from inferbench_operator.models.gates import Gate, GateMetric, GateSelector, OnUndecided
from inferbench_operator.models.status import GateState, GateStatus
from inferbench_runner.contract import Verdict

_MESSAGE_LENGTH: Final = 512
_DECIDES: Final = ("profile", "load")
"""Circumstances that change what a latency is: the rank or interpolation of a percentile, and from when it counts."""


@dataclass(frozen=True, slots=True)
class _Finding:
    """What one cell means for a gate."""

    state: GateState
    reason: Reason
    sentence: str
    excess: float = 0.0
    """How bad it is, to tell the worst cell: its figure in units of the limit."""


def judge(
    gate: Gate,
    cells: Mapping[Labels, Measured | None],
    baseline: Baseline | None,
) -> GateStatus:
    """Return what a gate says of the cells of a run, those without figures included (None)."""
    chosen = {labels: measured for labels, measured in cells.items() if _matches(labels, gate.selector)}
    if not chosen:
        why = "Its selector matches no cell, so nothing shows that the limit is kept; correct spec.gates.selector."
        return GateStatus(name=gate.name, state=GateState.FAILED, reason=Reason.NO_SUCH_CELLS, message=why)
    if gate.metric is GateMetric.FAILED_CELLS:
        return _count_failed(gate, chosen)
    if baseline and baseline.problem:
        state = GateState.FAILED if baseline.broken else GateState.UNDECIDED
        finding = _Finding(state, Reason.BASELINE_MISSING, baseline.problem)
        return _summary(gate, [finding] * len(chosen))
    return _summary(gate, [_finding(gate, labels, measured, baseline) for labels, measured in chosen.items()])


def is_missed(gate: Gate, status: GateStatus) -> bool:
    """Whether what a gate says counts against the run."""
    if status.state is GateState.UNDECIDED:
        return gate.on_undecided is OnUndecided.FAIL
    return status.state is GateState.FAILED


def _matches(cell: Labels, selector: GateSelector) -> bool:
    shortest, longest = selector.min_sequence_length, selector.max_sequence_length
    length = cell.sequence_length
    return (
        selector.model in {None, cell.model}
        and selector.accelerator in {None, cell.accelerator}
        and selector.precision in {None, cell.precision}
        and selector.batch_size in {None, cell.batch_size}
        and (shortest is None or (length is not None and length >= shortest))
        and (longest is None or (length is not None and length <= longest))
    )


def _count_failed(gate: Gate, chosen: Mapping[Labels, Measured | None]) -> GateStatus:
    failed = [labels.title for labels, measured in chosen.items() if measured is None]
    most = gate.max_failed_cells or 0
    missed = len(failed) > most
    first = f" First: {failed[0]}." if failed else ""
    return GateStatus(
        name=gate.name,
        state=GateState.FAILED if missed else GateState.PASSED,
        reason=Reason.LIMIT_EXCEEDED if missed else Reason.WITHIN_LIMIT,
        message=f"Cells without figures: {len(failed)} of {len(chosen)}, and at most {most} may have none.{first}",
        cells=len(chosen),
        failed=len(failed) if missed else 0,
    )


def _finding(gate: Gate, labels: Labels, measured: Measured | None, baseline: Baseline | None) -> _Finding:
    if measured is None:
        return _failed(Reason.FIGURES_MISSING, f"{labels.title} has no figures.")
    if gate.metric is GateMetric.VERDICT:
        return _verdict(gate, measured)
    if measured.verdict is Verdict.INVALID:
        return _failed(Reason.FIGURES_MISSING, f"{labels.title} has figures that can't be relied on (verdict Invalid).")
    figure = measured.figures.get(gate.metric)
    if figure is None:
        need = "no price of its instance type is known" if gate.metric is GateMetric.COST else "it was not measured"
        return _failed(Reason.FIGURES_MISSING, f"{labels.title} has no {gate.metric}: {need}.")
    if gate.baseline is None or baseline is None:
        return _absolute(gate, labels, figure)
    return _relative(gate, measured, figure, baseline)


def _verdict(gate: Gate, measured: Measured) -> _Finding:
    allowed = gate.verdicts or [Verdict.VALID]
    sentence = f"{measured.labels.title} is {measured.verdict}; allowed: {', '.join(allowed)}."
    if measured.verdict in allowed:
        return _Finding(GateState.PASSED, Reason.WITHIN_LIMIT, sentence)
    return _failed(Reason.LIMIT_EXCEEDED, sentence)


def _absolute(gate: Gate, labels: Labels, figure: Interval) -> _Finding:
    limit, least = _limit(gate), gate.metric is GateMetric.THROUGHPUT
    word = "at least" if least else "at most"
    show = _SHOW[gate.metric]
    sentence = f"{labels.title}: {gate.metric} {_shown(figure, show)}, {word} {show(limit)} asked for."
    return _held_against(figure, limit, sentence, least=least, missed=Reason.LIMIT_EXCEEDED)


def _limit(gate: Gate) -> float:
    if gate.max_microseconds is not None:
        return float(gate.max_microseconds)
    return float(gate.min_inferences_per_second or gate.max_usd_per_million_inferences or 0)


def _relative(gate: Gate, measured: Measured, figure: Interval, baseline: Baseline) -> _Finding:
    labels = measured.labels
    before = baseline.cells.get(labels)
    if before is None or before.verdict is Verdict.INVALID:
        why = f"{baseline.title} has no figures of {labels.title} to compare with."
        return _Finding(GateState.UNDECIDED, Reason.BASELINE_MISSING, why)
    for field_name in _DECIDES:
        now, then = measured.circumstances.get(field_name), before.circumstances.get(field_name)
        if now and then and now != then:
            why = f"{labels.title} can't be compared with {baseline.title}: {field_name} is {now}, and was {then}."
            return _Finding(GateState.UNDECIDED, Reason.BASELINE_DIFFERS, why)
    old = before.figures.get(gate.metric)
    if old is None:
        why = f"{baseline.title} has no {gate.metric} of {labels.title}{baseline.field_of(gate.metric)}."
        return _failed(Reason.FIGURES_MISSING, why)
    found = ratio(figure, old)
    least = gate.max_decrease_percent is not None
    percent = -gate.max_decrease_percent if gate.max_decrease_percent is not None else gate.max_increase_percent or 0
    show = _SHOW[gate.metric]
    sentence = (
        f"{labels.title}: {gate.metric} {show(figure.value)} instead of {show(old.value)} in {baseline.title}, "
        f"{_shown(found, _change)}; {_change(1 + percent / 100)} is allowed."
    )
    return _held_against(found, 1 + percent / 100, sentence, least=least, missed=Reason.REGRESSION)


def _held_against(figure: Interval, limit: float, sentence: str, *, least: bool, missed: Reason) -> _Finding:
    """Hold the whole interval against a limit; with `least` it must be reached, otherwise not be exceeded."""
    near, far = (figure.high, figure.low) if least else (figure.low, figure.high)
    excess = limit / max(figure.value, 1e-9) if least else figure.value / max(limit, 1e-9)

    def beyond(bound: float) -> bool:
        return bound < limit if least else bound > limit

    if near is None or far is None:
        why = f"{sentence} There is no confidence interval: too few samples."
        return _Finding(GateState.UNDECIDED, Reason.INTERVAL_TOO_WIDE, why, excess)
    if beyond(near):
        return _Finding(GateState.FAILED, missed, sentence, excess)
    if beyond(far):
        return _Finding(GateState.UNDECIDED, Reason.INTERVAL_TOO_WIDE, sentence, excess)
    return _Finding(GateState.PASSED, Reason.WITHIN_LIMIT, sentence, excess)


def _failed(reason: Reason, sentence: str) -> _Finding:
    return _Finding(GateState.FAILED, reason, sentence)


def _summary(gate: Gate, findings: Sequence[_Finding]) -> GateStatus:
    """Return what the cells come to, in the words of the worst one."""
    failed = [one for one in findings if one.state is GateState.FAILED]
    undecided = [one for one in findings if one.state is GateState.UNDECIDED]
    state = GateState.FAILED if failed else GateState.UNDECIDED if undecided else GateState.PASSED
    worst = max(failed or undecided or findings, key=lambda one: one.excess)
    others = ""
    if len(findings) > 1 and state is not GateState.PASSED:
        others = f" Cells that miss it: {len(failed)}, undecided: {len(undecided)}, of {len(findings)}."
    return GateStatus(
        name=gate.name,
        state=state,
        reason=worst.reason,
        message=shortened(worst.sentence + others, _MESSAGE_LENGTH),
        cells=len(findings),
        failed=len(failed),
        undecided=len(undecided),
    )


def _shown(figure: Interval, show: Callable[[float], str]) -> str:
    if figure.low is None or figure.high is None:
        return show(figure.value)
    return f"{show(figure.value)} [{show(figure.low)}, {show(figure.high)}]"


def _milliseconds(microseconds: float) -> str:
    return f"{microseconds / 1000:.3f} ms"


def _change(factor: float) -> str:
    return f"{(factor - 1) * 100:+.1f} %"


_SHOW: Final[Mapping[GateMetric, Callable[[float], str]]] = {
    GateMetric.P50: _milliseconds,
    GateMetric.P95: _milliseconds,
    GateMetric.P99: _milliseconds,
    GateMetric.THROUGHPUT: lambda rate: f"{rate:.4g}/s",
    GateMetric.COST: lambda usd: f"{usd:.4g} USD per million",
}
