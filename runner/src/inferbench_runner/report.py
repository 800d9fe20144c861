"""Builds the two reports from figures. Pure: sizes are kept here, delivery is elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from importlib import metadata
from typing import Final

from typing_extensions import Self

from inferbench_runner.caveats import Circumstances, judge
from inferbench_runner.clock import to_milliseconds
from inferbench_runner.contract import (
    COMPACT_REPORT_BYTES,
    FULL_REPORT_BYTES,
    MAX_COMPACT_CAVEATS,
    REPORT_MARK,
    Arrivals,
    CellCaveat,
    CellDetails,
    CellFailed,
    CellMeasured,
    CompactReport,
    Compilation,
    Correctness,
    FullReport,
    Interval,
    Latency,
    Plan,
    Profile,
    Shape,
    Verdict,
    provenance_hash,
)
from inferbench_runner.interval import Percentile
from inferbench_runner.summary import Distribution, Figures
from inferbench_runner.words import one_line
from inferbench_runner.worker import Failure

LARGEST_SHARE: Final = 999_999_999
"""Largest percentage that the contract takes."""

MESSAGE_CHARACTERS: Final = 240
"""Longest message of a failed cell that the contract takes."""

FACT_CHARACTERS: Final = 256
"""Longest value of a provenance entry that the contract takes."""

NS_PER_MICROSECOND: Final = 1000


@dataclass(frozen=True)
class Measured:
    """One measured shape, before it is written down."""

    shape: Shape
    figures: Figures
    verdict: Verdict
    caveats: tuple[CellCaveat, ...]
    correctness: Correctness | None
    compilation: Compilation | None = None

    @classmethod
    def from_figures(
        cls,
        shape: Shape,
        found: Figures,
        circumstances: Circumstances,
        correctness: Correctness | None,
        compilation: Compilation | None = None,
    ) -> Self:
        """Judge the figures."""
        verdict, caveats = judge(found, circumstances)
        return cls(shape, found, verdict, caveats, correctness, compilation)

    def to_cell(self) -> CellMeasured:
        """Convert to the headline figures; p95 has no bounds where there are too few samples for an interval."""
        call, p95 = self.figures.call, self.figures.call.p95
        return CellMeasured(
            cell=self.shape.cell,
            samples=call.count,
            mean_microseconds=_nearest(call.mean),
            p50_microseconds=_nearest(call.p50.value),
            p90_microseconds=_nearest(call.p90.value),
            p95_microseconds=_nearest(p95.value),
            p95_low_microseconds=None if p95.low is None else _down(p95.low),
            p95_high_microseconds=None if p95.high is None else _up(p95.high),
            p99_microseconds=_nearest(call.p99.value),
            max_microseconds=_up(call.maximum),
            inferences_per_second=f"{self.figures.calls_per_second * self.shape.batch_size:.3f}",
            verdict=self.verdict,
            caveats=tuple(doubt.caveat for doubt in self.caveats[:MAX_COMPACT_CAVEATS]),
        )

    def to_sentence(self) -> str:
        """Convert to words for people."""
        cell = self.to_cell()
        low, high = cell.p95_low_microseconds, cell.p95_high_microseconds
        interval = "" if low is None or high is None else f" [{_spoken(low)}, {_spoken(high)}]"
        doubts = f" ({', '.join(doubt.caveat for doubt in self.caveats)})" if self.caveats else ""
        return (
            f"p95 {_spoken(cell.p95_microseconds)} ms{interval}, p50 {_spoken(cell.p50_microseconds)} ms, "
            f"n={cell.samples}, {cell.verdict}{doubts}"
        )

    def to_details(self, facts: Mapping[str, str]) -> CellDetails:
        """Convert to what the log line says about the shape; the facts are those of the whole report."""
        found, p95 = self.figures, self.figures.call.p95
        finite = p95.low is not None
        spread = max(found.process_p95) - min(found.process_p95)
        return CellDetails(
            cell=self.shape.cell,
            call=_latency(found.call),
            device=_optional(found.device),
            end_to_end=_optional(found.end_to_end),
            service=_optional(found.service),
            queue=_optional(found.queue),
            warmup_calls=found.warmup_calls,
            warmup_milliseconds=to_milliseconds(found.warmup_ns),
            measure_milliseconds=to_milliseconds(found.measured_ns),
            first_call_microseconds=None if found.first_ns is None else _nearest(found.first_ns),
            effective_samples=p95.effective,
            independent_blocks=found.blocks,
            half_width_percent=_percent(p95.half_width) if finite else None,
            rounds=found.rounds,
            spread_between_rounds_percent=_percent(found.round_spread),
            spread_between_processes_percent=(
                _percent(spread / max(p95.value, 1)) if len(found.process_p95) > 1 else None
            ),
            process_p95_microseconds=tuple(_nearest(value) for value in found.process_p95),
            interpolated_p95_microseconds=_nearest(found.call.interpolated_p95),
            calls_in_flight=f"{found.in_flight:.3f}",
            achieved_rate_percent=None if found.achieved is None else _percent(found.achieved),
            caveats=self.caveats,
            correctness=self.correctness,
            noise=found.counters.to_noise(),
            compilation=self.compilation,
            device_use=found.usage.to_report() if found.usage else None,
            provenance_hash=provenance_hash({**facts, **shape_facts(self.shape)}),
            histogram=found.histogram,
        )


def own_facts(plan: Plan) -> dict[str, str]:
    """Return the provenance that no back end knows: the runner's version, and what the plan asks for."""
    measurement, load = plan.measurement, plan.measurement.load
    asked = f", {load.arrivals or Arrivals.POISSON} {load.rate_per_second}/s" if load.rate_per_second else ""
    return {
        "runner": metadata.version("inferbench-operator"),
        "image": plan.image or "unknown",
        "model": plan.model.id,
        "revision": plan.model.revision or "default",
        "config": json.dumps(plan.model.config, sort_keys=True) if plan.model.config else "as published",
        "weights": plan.model.weights,
        "weightsSeed": str(plan.seed),
        "inputs": "uniform token ids or normal pixels, full length",
        "inputSeed": str(plan.seed),
        "profile": measurement.profile,
        "load": f"{load.mode} {load.concurrency}{asked}",
        "processes": str(1 if measurement.profile is Profile.LEGACY_2023 else measurement.processes),
        "minima": f"{measurement.min_samples} samples, {measurement.min_seconds} s",
        "target": f"{measurement.target_half_width_percent} % within {measurement.max_seconds} s",
    }


def shape_facts(shape: Shape) -> dict[str, str]:
    """Return the provenance of one cell that the whole report does not have."""
    facts = {"batchSize": str(shape.batch_size)}
    return facts if shape.sequence_length is None else facts | {"sequenceLength": str(shape.sequence_length)}


def _optional(distribution: Distribution | None) -> Latency | None:
    return None if distribution is None else _latency(distribution)


def _latency(distribution: Distribution) -> Latency:
    return Latency(
        samples=distribution.count,
        mean_microseconds=_nearest(distribution.mean),
        min_microseconds=_down(distribution.minimum),
        p50=_interval(distribution.p50),
        p90=_interval(distribution.p90),
        p95=_interval(distribution.p95),
        p99=_interval(distribution.p99),
        max_microseconds=_up(distribution.maximum),
    )


def to_failed(cell: str, failure: Failure) -> CellFailed:
    """Convert a failure to the cell's entry."""
    return CellFailed(
        cell=cell,
        phase=failure.phase,
        reason=failure.reason,
        message=one_line(failure.sentence, MESSAGE_CHARACTERS),
    )


def to_facts(facts: Mapping[str, str]) -> dict[str, str]:
    """Return provenance entries that the contract takes: one line each, cut to length."""
    return {name: one_line(value, FACT_CHARACTERS) for name, value in facts.items()}


def compact_bytes(report: CompactReport) -> bytes:
    """Return the report's JSON in at most 4,096 bytes, with messages cut as far as that takes.

    Figures are never cut: eight measured cells with the longest numbers fit, which a test shows.
    """
    limit = MESSAGE_CHARACTERS
    text = report.model_dump_json(exclude_none=True).encode()
    while len(text) > COMPACT_REPORT_BYTES and limit:
        limit = limit * 3 // 4
        failed = tuple(cell.model_copy(update={"message": one_line(cell.message, limit)}) for cell in report.failed)
        text = report.model_copy(update={"failed": failed}).model_dump_json(exclude_none=True).encode()
    return text


def full_line(report: FullReport) -> bytes:
    """Return the marked log line, at most 256 KiB: the contract's own bounds keep it far below."""
    line = REPORT_MARK.encode() + report.model_dump_json(exclude_none=True).encode()
    if len(line) > FULL_REPORT_BYTES:
        short = report.model_copy(update={"provenance": {}})
        line = REPORT_MARK.encode() + short.model_dump_json(exclude_none=True).encode()
    return line


def _interval(percentile: Percentile) -> Interval:
    return Interval(
        value_microseconds=_nearest(percentile.value),
        low_microseconds=None if percentile.low is None else _down(percentile.low),
        high_microseconds=None if percentile.high is None else _up(percentile.high),
    )


def _percent(share: float) -> str:
    return f"{min(share * 100, LARGEST_SHARE):.2f}"


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
