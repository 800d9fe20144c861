"""Figures as data, and the arithmetic behind them. Pure: nothing is measured here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Final, TypeVar

from prometheus_client.parser import text_string_to_metric_families

REQUESTS: Final = "inferbench_operator_api_requests_total"
LAST_RESYNC: Final = "inferbench_operator_last_resync_timestamp_seconds"
_NS_PER_MS: Final = 1_000_000

_Number = TypeVar("_Number", int, float)

Requests = Counter[tuple[str, str]]
"""Number of requests by verb and resource."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure beside its aim."""

    name: str
    value: float | None
    """None where it could not be measured; the detail says why."""
    unit: str
    aim: float | None = None
    """The figure should be below this; None where nothing is too much."""
    detail: str = ""
    """How it came about: number of samples, spread, what it is to be compared with."""
    floor: float | None = None
    """The figure should be above this; None where nothing is too little."""
    digits: int = 3
    """Significant digits that are shown; a ratio near 1 needs one more."""

    @property
    def met(self) -> bool | None:
        """Whether the aim is met; None without an aim or a value."""
        if self.value is None or self.aim is self.floor is None:
            return None
        return (self.aim is None or self.value < self.aim) and (self.floor is None or self.value > self.floor)

    @property
    def aim_text(self) -> str:
        """The aim in words."""
        match self.floor, self.aim:
            case None, None:
                return "-"
            case None, aim:
                return f"< {aim:g}"
            case floor, None:
                return f"> {floor:g}"
            case floor, aim:
                return f"{floor:g} to {aim:g}"

    @property
    def value_text(self) -> str:
        """The value as it is shown."""
        return "-" if self.value is None else significant(self.value, self.digits)


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
    p50, p95 = (percentile(ordered, percent) / _NS_PER_MS for percent in (50, 95))
    most = ordered[-1] / _NS_PER_MS
    told = f"p50 {significant(p50)}, max {significant(most)}, n = {len(ordered)}"
    return Figure(name, p95, "ms", aim_ms, f"{told}; {detail}" if detail else told)


def median_ms(samples_ns: Iterable[int]) -> float:
    """Return the median of times in nanoseconds, in milliseconds: an order statistic, as all percentiles here are."""
    return percentile(sorted(samples_ns), 50) / _NS_PER_MS


def percentile(ordered: Sequence[_Number], percent: int) -> _Number:
    """Return the sample at the percentile's rank, which is rounded up: an order statistic, nothing interpolated."""
    return ordered[-(-percent * len(ordered) // 100) - 1]


def differences(pairs: Iterable[tuple[float, float]]) -> Spread:
    """Return how much more the first of each pair is than the second: median and quartiles over the pairs."""
    found = [first - second for first, second in pairs]
    low, _, high = quantiles(found, n=4)
    return Spread(median(found), low, high)


def significant(value: float, digits: int = 3) -> str:
    """Return a number with so many significant digits, or with all the digits before its point."""
    if value == 0:
        return "0"
    return f"{value:,.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


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
