"""Turns raw samples into figures. Pure: integers in, integers out, nothing measured, nothing dropped.

All values are nanoseconds. A percentile is the order statistic of rank ceil(p*n), without interpolation (definition 1
of Hyndman and Fan, "Sample Quantiles in Statistical Packages", The American Statistician 50, 1996). Its interval is the
distribution-free one of Hahn and Meeker, "Statistical Intervals" (Wiley, 1991), section 5.2: two order statistics whose
ranks follow from the binomial distribution of the number of samples below the true percentile, with at most 2.5 % of
error on either side. It supposes independent samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import fsum
from typing import Final

from inferbench_runner.contract import MIN_SAMPLES_FOR_P95, Verdict

TAIL: Final = 0.025
"""Probability of error on each side of a 95 % interval."""

NEGLIGIBLE: Final = 1e-22
"""Binomial weights below this share of the largest one can't move a tail of 2.5 % across its limit."""


@dataclass(frozen=True)
class Percentile:
    """One percentile in nanoseconds; both bounds are None where there are too few samples for a two-sided interval."""

    value: int
    low: int | None
    high: int | None


@dataclass(frozen=True)
class Summary:
    """The distribution of one kind of latency, in nanoseconds."""

    count: int
    mean: int
    minimum: int
    p50: Percentile
    p90: Percentile
    p95: Percentile
    p99: Percentile
    maximum: int

    @property
    def verdict(self) -> Verdict:
        """How far the p95 may be trusted, judged by the number of samples."""
        return Verdict.VALID if self.count >= MIN_SAMPLES_FOR_P95 else Verdict.INCONCLUSIVE


def summarise(samples: Sequence[int]) -> Summary:
    """Return all figures of at least one sample, each in nanoseconds."""
    ordered = sorted(samples)
    count = len(ordered)
    return Summary(
        count=count,
        mean=(2 * sum(ordered) + count) // (2 * count),
        minimum=ordered[0],
        p50=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p95=percentile(ordered, 95),
        p99=percentile(ordered, 99),
        maximum=ordered[-1],
    )


def percentile(ordered: Sequence[int], percent: int) -> Percentile:
    """Return the percentile of samples that are already in ascending order, with its 95 % interval."""
    count = len(ordered)
    # Whole numbers only: 0.95 * n in floating point can land just above a whole number, one rank too high.
    value = ordered[-(-percent * count // 100) - 1]
    ranks = interval_ranks(count, percent)
    if ranks is None:
        return Percentile(value, None, None)
    low, high = ranks
    return Percentile(value, ordered[low - 1], ordered[high - 1])


@lru_cache(maxsize=64)
def interval_ranks(count: int, percent: int) -> tuple[int, int] | None:
    """Return the ranks (from 1) of the two order statistics that bound the percentile with 95 % confidence.

    With B ~ Binomial(n, p) the lower rank is the largest l with P(B < l) <= 2.5 %, the upper one the smallest u with
    P(B >= u) <= 2.5 %. None where either doesn't exist: fewer than 72 samples for p95, 368 for p99.
    """
    first, weights = _binomial_weights(count, percent / 100)
    limit = TAIL * fsum(weights)
    below = 0.0
    low = first
    for weight in weights:
        below += weight
        if below > limit:
            break
        low += 1
    above = 0.0
    high = first + len(weights)
    for weight in reversed(weights):
        above += weight
        if above > limit:
            break
        high -= 1
    return (low, high) if low >= 1 and high <= count else None


def _binomial_weights(count: int, probability: float) -> tuple[int, list[float]]:
    """Return the first k, and for it and each k after it a number proportional to P(B = k), while that counts.

    The recurrence P(k+1) / P(k) = (n-k) / (k+1) * p / (1-p) starts at the mode, where the weight is set to 1: no
    factorial is computed, so nothing overflows or cancels, and about 20 standard deviations are visited.
    """
    odds = probability / (1 - probability)
    mode = min(int((count + 1) * probability), count)
    rising, weight, k = [1.0], 1.0, mode
    while k < count and weight > NEGLIGIBLE:
        weight *= (count - k) / (k + 1) * odds
        k += 1
        rising.append(weight)
    falling, weight, k = [], 1.0, mode
    while k > 0 and weight > NEGLIGIBLE:
        weight *= k / (count - k + 1) / odds
        k -= 1
        falling.append(weight)
    return k, falling[::-1] + rising
