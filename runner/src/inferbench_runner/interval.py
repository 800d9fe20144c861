"""Percentiles of dependent samples, and how far they may be off. Pure: numbers in, numbers out, nothing dropped.

A percentile is the order statistic of rank ceil(p*n), without interpolation (definition 1 of Hyndman and Fan, "Sample
Quantiles in Statistical Packages", The American Statistician 50, 1996). For independent samples its exact,
distribution-free interval is that of Hahn and Meeker, "Statistical Intervals" (Wiley, 1991), section 5.2: two order
statistics, whose ranks follow from the binomial distribution.

Consecutive latencies are not independent: a host that is slow now is slow for a while. So the samples are cut into
blocks, of one round or of several, which are nearly independent of each other; the scatter of the blocks tells how many
independent samples would be as good (the design effect of cluster sampling), and the exact interval is taken for that
number, as Korn and Graubard do for proportions ("Confidence Intervals for Proportions with Small Expected Number of
Positive Counts Estimated from Survey Data", Survey Methodology 24, 1998), with Student's t for few blocks. It is never
narrower than the interval of independent samples.

A percentile block bootstrap over the same blocks holds the true p95 in less than 80 % of the runs on a host with slow
spells, where this interval holds it in more than 90 % (test_coverage.py has both): there are few samples beyond a p95,
so a slow spell that no block happens to hold is missing from every resample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from math import atan2, ceil, cos, floor, fsum, pi, sin, sqrt
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

Samples = NDArray[np.int64]
"""Latencies in the order in which they were taken, in nanoseconds."""

ERROR: Final = 0.05
"""Probability that an interval misses what it should hold: half of it on each side."""

WINSOR_PERCENT: Final = 99
"""Latencies beyond this percentile count as that when dependence is judged: a single stall must not hide it."""

LEVELS: Final = (-1.0, -0.5, 0.0, 0.4)
"""Where around the percentile the design effect is taken, in tenths of the scale or in what is left above it: at one
level alone it would rest on few samples."""

DISAGREEMENT_ERROR: Final = 0.01
"""Probability that processes which are alike are found to disagree."""

DOUBT: Final = 0.5
"""The same probability where it only widens an interval: that costs little, and a difference that was missed more."""

NEGLIGIBLE: Final = 1e-22
"""Binomial weights below this share of the largest one can't move a tail across its limit."""


@dataclass(frozen=True)
class Percentile:
    """One percentile in nanoseconds; both bounds are None where there are too few samples for a two-sided interval."""

    value: int
    low: int | None
    high: int | None
    effective: int
    """Independent samples that would determine it as well; the number of samples where those are independent."""

    @property
    def half_width(self) -> float:
        """Half the width of the interval over the value; infinite where there is none."""
        if self.low is None or self.high is None or not self.value:
            return float("inf")
        return (self.high - self.low) / 2 / self.value


@dataclass(frozen=True)
class Ordered:
    """Samples in ascending order, with the number of the block from which each of them is."""

    values: Samples
    blocks: NDArray[np.intp]
    sizes: NDArray[np.intp]
    """Samples in each block."""

    @classmethod
    def from_blocks(cls, blocks: Sequence[Samples]) -> Self:
        """Sort the samples of blocks that are independent of each other; at least one sample."""
        kept = [block for block in blocks if len(block)]
        values = np.concatenate(kept)
        sizes = np.array([len(block) for block in kept], dtype=np.intp)
        order = np.argsort(values, kind="stable")
        return cls(values[order], np.repeat(np.arange(len(kept)), sizes)[order], sizes)

    def percentile(self, percent: int, error: float = ERROR) -> Percentile:
        """Return the percentile and its interval, which misses the true value with probability `error` at most."""
        count = len(self.values)
        value = int(self.values[rank(count, percent) - 1])
        effective = self.effective(percent, error)
        ranks = interval_ranks(effective, percent, error)
        if ranks is None:
            return Percentile(value, None, None, effective)
        # Of `effective` samples each stands for this many: outwards, so that rounding never narrows the interval.
        share = count / effective
        low = self.values[floor((ranks[0] - 1) * share)]
        high = self.values[min(ceil(ranks[1] * share), count) - 1]
        return Percentile(value, int(low), int(high), effective)

    def effective(self, percent: int, error: float = ERROR) -> int:
        """Return the number of independent samples that would determine the percentile as well: at least 1."""
        count, blocks = len(self.values), len(self.sizes)
        if blocks < 2:  # noqa: PLR2004  # one block shows no scatter
            return 1
        level, width = percent / 100, min(1 - percent / 100, 0.1)
        effect = max(fsum(self._design_effect(level + offset * width) for offset in LEVELS) / len(LEVELS), 1.0)
        certain = NormalDist().inv_cdf(1 - error / 2)
        return max(min(floor(count / effect * (certain / student(blocks - 1, error)) ** 2), count), 1)

    def _design_effect(self, level: float) -> float:
        """Return the variance of the share of samples up to this level, over that of as many independent ones.

        The blocks' sizes vary, so the share is a ratio of sums: Cochran, "Sampling Techniques" (Wiley, 1977), 9A.
        """
        count = len(self.values)
        wanted = min(max(ceil(level * count), 1), count - 1)
        value = self.values[wanted - 1]
        below, upto = np.searchsorted(self.values, value, "left"), np.searchsorted(self.values, value, "right")
        # Of equal values, each block gets the same part: their order in memory means nothing.
        ties = (wanted - below) / (upto - below)
        counts = np.bincount(self.blocks[:below], minlength=len(self.sizes)).astype(float)
        counts += ties * np.bincount(self.blocks[below:upto], minlength=len(self.sizes))
        share = wanted / count
        residuals = counts - share * self.sizes
        blocks = len(self.sizes)
        variance = blocks / (blocks - 1) * float(residuals @ residuals) / count**2
        return variance / (share * (1 - share) / count)


def pooled(processes: Sequence[Sequence[Samples]]) -> Ordered:
    """Return the samples of all processes in order, cut into blocks as long as their dependence."""
    return Ordered.from_blocks(blocks(processes, cut(processes)))


def disagree(processes: Sequence[Sequence[Samples]], percent: int, error: float = DISAGREEMENT_ERROR) -> bool:
    """Whether a percentile of one process lies outside what another one's noise allows for.

    It does where the intervals of two processes have nothing in common; the probability that equal ones come to that is
    `error` at most, over all pairs. A process without an interval agrees with all that it has seen.
    """
    measured = [process for process in processes if process]
    pairs = max(len(measured) * (len(measured) - 1) // 2, 1)
    intervals = []
    for process in measured:
        ordered = pooled([process])
        found = ordered.percentile(percent, error / pairs)
        everything = (int(ordered.values[0]), int(ordered.values[-1]))
        intervals.append(everything if found.low is None or found.high is None else (found.low, found.high))
    return bool(intervals) and max(low for low, _ in intervals) > min(high for _, high in intervals)


def widened(found: Percentile, processes: Sequence[Sequence[Samples]], percent: int) -> Percentile:
    """Return the percentile with an interval that holds those of all processes, where these disagree.

    How processes differ is known from as many of them as there were, however many samples each has taken: so doubt that
    they are alike is enough.
    """
    if found.low is None or found.high is None or not disagree(processes, percent, DOUBT):
        return found
    own = [Ordered.from_blocks(process).percentile(percent).value for process in processes if process]
    return replace(found, low=min(found.low, *own), high=max(found.high, *own))


def rank(count: int, percent: int) -> int:
    """Return the rank, from 1, of the percentile among so many samples.

    Whole numbers only: 0.95 * n in floating point can land just above a whole number, one rank too high.
    """
    return -(-percent * count // 100)


def cut(processes: Sequence[Sequence[Samples]]) -> list[list[int]]:
    """Return, for each process with its rounds in order, how many rounds each of its blocks takes.

    A block is one round, and as many more as dependence reaches beyond it.
    """
    kept = [process for process in processes if process]
    if not kept:
        return []
    series = [np.concatenate(process) for process in kept]
    limit = np.percentile(np.concatenate(series), WINSOR_PERCENT)
    means = []
    for process, samples in zip(kept, series, strict=True):
        sizes = np.array([len(one) for one in process])
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        means.append(np.add.reduceat(np.minimum(samples, limit), starts) / sizes)
    shared = float(np.concatenate(means).mean())
    together = max(ceil(autocorrelation_time([part - shared for part in means]) - 1), 1)
    if together > max(len(process) for process in kept) // 2:
        # Processes that differ for good look like dependence without an end, which no number of samples outlasts: what
        # differs between them is told apart (`widened`), and each is judged by its own mean.
        together = max(ceil(autocorrelation_time([part - part.mean() for part in means]) - 1), 1)
    parts = [(len(process), max(len(process) // together, 1)) for process in kept]
    return [[rounds // count + (index < rounds % count) for index in range(count)] for rounds, count in parts]


def blocks(processes: Sequence[Sequence[Samples]], lengths: Sequence[Sequence[int]]) -> list[Samples]:
    """Return the blocks of each process's rounds; those of one process never reach into another's."""
    found = []
    for rounds, takes in zip((process for process in processes if process), lengths, strict=True):
        ends = list(accumulate(takes, initial=0))
        found += [np.concatenate(rounds[start:end]) for start, end in pairwise(ends)]
    return found


def autocorrelation_time(series: Sequence[NDArray[np.float64]]) -> float:
    """Return the integrated autocorrelation time in steps, at least 1: how many values are as good as one alone.

    The series scatter around 0. The sum over lags ends by the initial monotone sequence of Geyer, "Practical Markov
    Chain Monte Carlo", Statistical Science 7 (1992).
    """
    longest = max(len(part) for part in series)
    size = 1 << (2 * longest - 1).bit_length()
    covariance = np.zeros(longest)
    for part in series:
        spectrum = np.fft.rfft(part, size)
        covariance[: len(part)] += np.fft.irfft(spectrum * spectrum.conj(), size)[: len(part)]
    if covariance[0] <= 0 or longest < 2:  # noqa: PLR2004
        return 1.0
    pairs = (covariance[: longest // 2 * 2] / covariance[0]).reshape(-1, 2).sum(axis=1)
    ends = np.flatnonzero(pairs <= 0)
    positive = pairs[: ends[0]] if len(ends) else pairs
    return max(2 * float(np.minimum.accumulate(positive).sum()) - 1, 1.0)


@lru_cache(maxsize=512)
def interval_ranks(count: int, percent: int, error: float = ERROR) -> tuple[int, int] | None:
    """Return the ranks (from 1) of the two order statistics that bound the percentile of independent samples.

    With B ~ Binomial(n, p) the lower rank is the largest l with P(B < l) <= error / 2, the upper one the smallest u
    with P(B >= u) <= error / 2. None where either doesn't exist: at 95 %, fewer than 72 samples for p95, 368 for p99.
    """
    first, weights = _binomial_weights(count, percent / 100)
    limit = error / 2 * fsum(weights)
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


@lru_cache(maxsize=512)
def student(freedom: int, error: float = ERROR) -> float:
    """Return the t beyond which, on either side, Student's distribution has the probability `error`.

    Bisection on the closed form for whole degrees of freedom: Abramowitz and Stegun, "Handbook of Mathematical
    Functions" (1964), 26.7.3 and 26.7.4.
    """
    low, high = 0.0, pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, freedom) < 1 - error else (low, middle)
    return sqrt(freedom) * sin(low) / cos(low)


def _inside(angle: float, freedom: int) -> float:
    """Return P(|T| < t) for t = sqrt(freedom) * tan(angle)."""
    c, s = cos(angle), sin(angle)
    even = freedom % 2 == 0
    term = 1.0 if even else c
    total = term if even or freedom > 1 else 0.0
    for k in range(1 if even else 2, freedom - 1, 2):
        term *= k / (k + 1) * c * c
        total += term
    return s * total if even else 2 / pi * (atan2(s, c) + s * total)
