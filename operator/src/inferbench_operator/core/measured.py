"""Figures of cells in one form, wherever they are stored, for those who compare them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from inferbench_operator.core.facts import Result
from inferbench_operator.core.ratio import Interval
from inferbench_operator.models.figures import Percentile
from inferbench_operator.models.gates import GateMetric
from inferbench_operator.models.result import EarlierMeasurement
from inferbench_operator.models.status import CellStatus
from inferbench_runner.contract import Precision, Verdict


class Labels(NamedTuple):
    """What people call a cell: cells of two runs or benchmarks with the same labels belong together."""

    model: str
    accelerator: str
    precision: Precision
    sequence_length: int | None
    batch_size: int

    @property
    def title(self) -> str:
        """The cell in words."""
        length = f" length {self.sequence_length}" if self.sequence_length else ""
        return f"{self.model} on {self.accelerator} {self.precision}{length} batch {self.batch_size}"


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of one cell."""

    labels: Labels
    verdict: Verdict
    figures: Mapping[GateMetric, Interval]
    """Latencies in microseconds, inputs per second, US dollars per million inferences; all above zero."""
    circumstances: Mapping[str, str] = field(default_factory=dict)
    """The result's provenance, or as much of it as is kept."""


def labels_of(cell: CellStatus) -> Labels:
    """Return the labels of an entry of the status."""
    return Labels(cell.model, cell.accelerator, cell.precision, cell.sequence_length, cell.batch_size)


def labels_of_result(result: Result) -> Labels:
    """Return the labels of a stored result."""
    spec = result.spec
    return Labels(spec.model, spec.accelerator, spec.precision, spec.sequence_length, spec.batch_size)


def of_result(result: Result, labels: Labels | None = None) -> Measured:
    """Return the figures of a stored result, whose cell may be called otherwise by now."""
    status, call = result.status, result.status.latency.call
    cost = status.cost.usd_per_million_inferences if status.cost else None
    return Measured(
        labels or labels_of_result(result),
        status.verdict,
        figures(call.p50, call.p95, call.p99, status.inferences_per_second, cost),
        status.provenance,
    )


def of_earlier(labels: Labels, earlier: EarlierMeasurement) -> Measured:
    """Return the figures that an earlier run measured of a cell."""
    kept = {"profile": earlier.profile, "load": earlier.load}
    found = figures(
        percentile(earlier.p50_microseconds, earlier.p50_low_microseconds, earlier.p50_high_microseconds),
        percentile(earlier.p95_microseconds, earlier.p95_low_microseconds, earlier.p95_high_microseconds),
        percentile(earlier.p99_microseconds, earlier.p99_low_microseconds, earlier.p99_high_microseconds),
        earlier.inferences_per_second,
        earlier.usd_per_million_inferences,
    )
    return Measured(labels, earlier.verdict, found, {name: value for name, value in kept.items() if value})


def percentile(value: int | None, low: int | None, high: int | None) -> Percentile | None:
    """Return a percentile, where there is one."""
    if value is None:
        return None
    return Percentile(value_microseconds=value, low_microseconds=low, high_microseconds=high)


def figures(
    p50: Percentile | None,
    p95: Percentile | None,
    p99: Percentile | None,
    inferences_per_second: str | None,
    usd_per_million_inferences: str | None,
) -> dict[GateMetric, Interval]:
    """Return those figures that there are.

    Throughput and cost have no interval of their own: that of p95, in proportion, is put in its place. A mean is less
    uncertain than a percentile so far out.
    """
    found = {
        metric: Interval(percentile.value_microseconds, percentile.low_microseconds, percentile.high_microseconds)
        for metric, percentile in ((GateMetric.P50, p50), (GateMetric.P95, p95), (GateMetric.P99, p99))
        if percentile and percentile.value_microseconds
    }
    tail = found.get(GateMetric.P95, Interval(1))
    throughput = float(inferences_per_second or 0)
    if throughput:
        found[GateMetric.THROUGHPUT] = Interval(
            throughput,
            throughput * tail.value / tail.high if tail.high else None,
            throughput * tail.value / tail.low if tail.low else None,
        )
    cost = float(usd_per_million_inferences or 0)
    if cost:
        found[GateMetric.COST] = Interval(
            cost,
            None if tail.low is None else cost * tail.low / tail.value,
            None if tail.high is None else cost * tail.high / tail.value,
        )
    return found
