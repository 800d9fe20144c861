"""Builds the two reports from figures. Pure: sizes are kept here, delivery is elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from inferbench_runner.clock import NS_PER_SECOND, to_milliseconds
from inferbench_runner.contract import (
    COMPACT_REPORT_BYTES,
    FULL_REPORT_BYTES,
    REPORT_MARK,
    CellDetails,
    CellFailed,
    CellMeasured,
    CompactReport,
    FullReport,
    Interval,
    Latency,
    Shape,
)
from inferbench_runner.errors import PhaseFailedError
from inferbench_runner.measure import Series, Warmup
from inferbench_runner.summary import Percentile, Summary
from inferbench_runner.words import one_line

MESSAGE_CHARACTERS: Final = 240
"""Longest message of a failed cell that the contract takes."""

FACT_CHARACTERS: Final = 256
"""Longest value of a provenance entry that the contract takes."""

NS_PER_MICROSECOND: Final = 1000


@dataclass(frozen=True)
class Measured:
    """One measured shape, before it is written down."""

    shape: Shape
    warmup: Warmup
    series: Series
    summary: Summary

    def to_cell(self) -> CellMeasured:
        """Convert to the headline figures; p95 has no bounds where there are too few samples for an interval."""
        summary, p95 = self.summary, self.summary.p95
        return CellMeasured(
            cell=self.shape.cell,
            samples=summary.count,
            mean_microseconds=_nearest(summary.mean),
            p50_microseconds=_nearest(summary.p50.value),
            p90_microseconds=_nearest(summary.p90.value),
            p95_microseconds=_nearest(p95.value),
            p95_low_microseconds=None if p95.low is None else _down(p95.low),
            p95_high_microseconds=None if p95.high is None else _up(p95.high),
            p99_microseconds=_nearest(summary.p99.value),
            max_microseconds=_up(summary.maximum),
            inferences_per_second=rate(summary.count * self.shape.batch_size, self.series.window_ns),
            verdict=summary.verdict,
        )

    def to_sentence(self) -> str:
        """Convert to words for people."""
        cell = self.to_cell()
        interval = "no interval"
        if cell.p95_low_microseconds is not None and cell.p95_high_microseconds is not None:
            interval = f"{_spoken(cell.p95_low_microseconds)} to {_spoken(cell.p95_high_microseconds)}"
        return f"p95 {_spoken(cell.p95_microseconds)} ms ({interval}), {cell.samples} samples, {cell.verdict}"

    def to_details(self) -> CellDetails:
        """Convert to what the full report adds."""
        return CellDetails(
            cell=self.shape.cell,
            call=to_latency(self.summary),
            warmup_calls=self.warmup.calls,
            warmup_milliseconds=to_milliseconds(self.warmup.elapsed_ns),
            measure_milliseconds=to_milliseconds(self.series.window_ns),
        )


def to_latency(summary: Summary) -> Latency:
    """Convert nanoseconds to microseconds: bounds outwards, so that an interval never shrinks by rounding."""
    return Latency(
        samples=summary.count,
        mean_microseconds=_nearest(summary.mean),
        min_microseconds=_down(summary.minimum),
        p50=_interval(summary.p50),
        p90=_interval(summary.p90),
        p95=_interval(summary.p95),
        p99=_interval(summary.p99),
        max_microseconds=_up(summary.maximum),
    )


def to_failed(cell: str, failure: PhaseFailedError) -> CellFailed:
    """Convert a failure to the cell's entry."""
    return CellFailed(
        cell=cell,
        phase=failure.phase,
        reason=failure.reason,
        message=one_line(failure.sentence, MESSAGE_CHARACTERS),
    )


def to_facts(facts: dict[str, str]) -> dict[str, str]:
    """Return provenance entries that the contract takes: one line each, cut to length."""
    return {name: one_line(value, FACT_CHARACTERS) for name, value in facts.items()}


def compact_bytes(report: CompactReport) -> bytes:
    """Return the report's JSON in at most 4,096 bytes, with messages cut as far as that takes.

    Figures are never cut: eight measured cells with the longest numbers fit, which a test shows.
    """
    limit = MESSAGE_CHARACTERS
    text = report.model_dump_json().encode()
    while len(text) > COMPACT_REPORT_BYTES and limit:
        limit = limit * 3 // 4
        failed = tuple(cell.model_copy(update={"message": one_line(cell.message, limit)}) for cell in report.failed)
        text = report.model_copy(update={"failed": failed}).model_dump_json().encode()
    return text


def full_line(report: FullReport) -> bytes:
    """Return the marked log line, at most 256 KiB: the contract's own bounds keep it far below."""
    line = REPORT_MARK.encode() + report.model_dump_json(exclude_none=True).encode()
    if len(line) > FULL_REPORT_BYTES:
        line = REPORT_MARK.encode() + report.model_copy(update={"provenance": {}}).model_dump_json().encode()
    return line


def rate(inputs: int, window_ns: int) -> str:
    """Return inputs per second as a decimal string with three decimals."""
    per_second = Decimal(inputs) * NS_PER_SECOND / max(window_ns, 1)
    return f"{per_second:.3f}"


def _interval(percentile: Percentile) -> Interval:
    return Interval(
        value_microseconds=_nearest(percentile.value),
        low_microseconds=None if percentile.low is None else _down(percentile.low),
        high_microseconds=None if percentile.high is None else _up(percentile.high),
    )


def _down(nanoseconds: int) -> int:
    return nanoseconds // NS_PER_MICROSECOND


def _up(nanoseconds: int) -> int:
    return -(-nanoseconds // NS_PER_MICROSECOND)


def _nearest(nanoseconds: int) -> int:
    return (nanoseconds + NS_PER_MICROSECOND // 2) // NS_PER_MICROSECOND


def _spoken(microseconds: int) -> str:
    """Return milliseconds with three significant digits, or more before the point."""
    milliseconds = Decimal(microseconds) / 1000
    return f"{milliseconds:.{3 if milliseconds < 1 else 2 if milliseconds < 10 else 1}f}"  # noqa: PLR2004
