"""Figures as data, and the arithmetic behind them. Pure: nothing is measured here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from inferbench_runner.summary import percentile

REQUESTS: Final = "inferbench_operator_api_requests_total"
LAST_RESYNC: Final = "inferbench_operator_last_resync_timestamp_seconds"
_NS_PER_MS: Final = 1_000_000

Requests = Counter[tuple[str, str]]
"""Number of requests by verb and resource."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure beside its aim."""

    name: str
    value: float
    unit: str
    aim: float | None = None
    """The figure should be below this; None where there is no aim."""
    detail: str = ""
    """How it came about: number of samples, spread, what it is to be compared with."""

    @property
    def met(self) -> bool | None:
        """Whether the aim is met; None without one."""
        return None if self.aim is None else self.value < self.aim


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of some measurements and how far they lie apart."""

    middle: float
    low: float
    """First quartile."""
    high: float
    """Third quartile."""


def p95_figure(name: str, samples_ns: Sequence[int], *, aim_ms: float | None = None, detail: str = "") -> Figure:
    """Return the p95 of times in nanoseconds, as a figure in milliseconds with its median, its maximum and n."""
    ordered = sorted(samples_ns)
    p50, p95 = (percentile(ordered, percent).value / _NS_PER_MS for percent in (50, 95))
    most = ordered[-1] / _NS_PER_MS
    told = f"p50 {significant(p50)}, max {significant(most)}, n = {len(ordered)}"
    return Figure(name, p95, "ms", aim_ms, f"{told}; {detail}" if detail else told)


def median_ms(samples_ns: Iterable[int]) -> float:
    """Return the median of times in nanoseconds, in milliseconds: an order statistic, as all percentiles here are."""
    return percentile(sorted(samples_ns), 50).value / _NS_PER_MS


def differences(pairs: Iterable[tuple[float, float]]) -> Spread:
    """Return how much more the first of each pair is than the second: median and quartiles over the pairs."""
    found = [first - second for first, second in pairs]
    low, _, high = quantiles(found, n=4)
    return Spread(median(found), low, high)


def significant(value: float) -> str:
    """Return a number with three significant digits, or with all the digits before its point."""
    if value == 0:
        return "0"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def requests(metrics: str) -> Requests:
    """Return the operator's requests to the API server since its start, read from its metrics."""
    found: Requests = Counter()
    for name, labels, value in _samples(metrics):
        if name == REQUESTS:
            found[labels["verb"], labels["resource"]] += int(value)
    return found


def last_resync(metrics: str) -> float:
    """Return when the operator last listed all objects, in seconds since 1970; 0 if it never did."""
    return next((value for name, _, value in _samples(metrics) if name == LAST_RESYNC), 0.0)


def _samples(metrics: str) -> Iterable[tuple[str, Mapping[str, str], float]]:
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value
