"""Arithmetic of ratios between two measured figures, and of many such ratios together.

The interval of one ratio follows from those of its two figures alone, by the method of variance estimates recovery
(MOVER) on the logarithms: Donner and Zou, "Closed-form confidence intervals for functions of the normal mean and
standard deviation", Statistical Methods in Medical Research 21, 2012, section 2. It does not ask that the intervals are
symmetrical, which those of percentiles are not.

Ratios are averaged geometrically, never arithmetically: the arithmetic mean of ratios depends on which of the two is
called the baseline (Fleming and Wallace, "How not to lie with statistics", Communications of the ACM 29, 1986).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, fsum, hypot, log
from typing import Final

_Z: Final = 1.959963984540054
"""Half-width of a normal distribution's 95 % interval, in standard deviations."""
_RESAMPLES: Final = 2000
_MOST_DRAWS: Final = 200_000
"""Of ratios in all resamples together: a tenth of a second."""
_SEED: Final = 0
"""The same figures give the same interval."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and its 95 % confidence interval; both bounds are None where there is none."""

    value: float
    low: float | None = None
    high: float | None = None


def ratio(of: Interval, over: Interval) -> Interval:
    """Return one figure over another, both above zero and of independent measurements."""
    value = of.value / over.value
    if of.low is None or of.high is None or over.low is None or over.high is None:
        return Interval(value)
    down = hypot(log(of.value / max(of.low, _TINY)), log(over.high / over.value))
    up = hypot(log(of.high / of.value), log(over.value / max(over.low, _TINY)))
    return Interval(value, value * exp(-down), value * exp(up))


_TINY: Final = 1e-9
"""In place of a bound of zero, which has no logarithm."""


def geometric_mean(ratios: Sequence[Interval]) -> Interval:
    """Return the geometric mean of at least one ratio, with a percentile bootstrap interval.

    A resample draws as many ratios as there are, with replacement, and each from a log-normal distribution that has its
    interval: so the interval holds both how the ratios differ among each other and how uncertain each is.
    """
    logs = [(log(one.value), _deviation(one)) for one in ratios]
    generator = random.Random(_SEED)  # noqa: S311 - a bootstrap, no secret
    resamples = max(min(_RESAMPLES, _MOST_DRAWS // len(logs)), 1)
    means = sorted(
        fsum(mean + generator.gauss(0, 1) * spread for mean, spread in generator.choices(logs, k=len(logs))) / len(logs)
        for _ in range(resamples)
    )
    value = exp(fsum(mean for mean, _ in logs) / len(logs))
    return Interval(value, exp(means[ceil(0.025 * resamples) - 1]), exp(means[ceil(0.975 * resamples) - 1]))


def _deviation(one: Interval) -> float:
    """Return the standard deviation of the logarithm; zero where no interval is known."""
    if one.low is None or one.high is None:
        return 0.0
    return log(one.high / one.low) / (2 * _Z)
