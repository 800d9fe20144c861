"""Scripted latency processes with known percentiles, and whole runs of the stopping rule over them.

Here and not in the test, so that the processes that share the work can import it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import brentq
from scipy.signal import lfilter

from inferbench_runner.adaptive import Design, Progress
from inferbench_runner.contract import Measurement
from inferbench_runner.interval import Percentile, Samples

MEDIAN_NS = 1e7
WIDTH = 0.05
"""Standard deviation over the mean."""

FAST, SLOW = 0.487, 0.98917
FAST_SHARE = 0.376
"""Two autoregressive components whose sum has an autocorrelation of about 0.8, 0.56 and 0.21 at lags 1, 10 and 100."""

Floats = NDArray[np.float64]
Source = Callable[[np.random.Generator, int], Floats]


def autoregressive(generator: np.random.Generator, count: int, correlation: float) -> Floats:
    """Return a stationary series with mean 0 and variance 1."""
    noise = generator.standard_normal(count) * np.sqrt(1 - correlation**2)
    noise[0] = generator.standard_normal()
    filtered: Floats = lfilter([1], [1, -correlation], noise)
    return filtered


def normal(generator: np.random.Generator, count: int) -> Floats:
    """Return independent normal latencies."""
    return 1 + WIDTH * generator.standard_normal(count)


def lognormal(generator: np.random.Generator, count: int, *, sigma: float) -> Floats:
    """Return independent lognormal latencies."""
    return np.exp(sigma * generator.standard_normal(count))


def some_slow(generator: np.random.Generator, count: int) -> Floats:
    """Return independent latencies of which 3 % are three times as long."""
    return normal(generator, count) * np.where(generator.random(count) < 0.03, 3, 1)


def dependent(generator: np.random.Generator, count: int, *, correlation: float) -> Floats:
    """Return latencies whose distribution is that of `normal`."""
    return 1 + WIDTH * autoregressive(generator, count, correlation)


def slow_host(generator: np.random.Generator, count: int) -> Floats:
    """Return latencies with a fast and a slow component; their distribution, too, is that of `normal`."""
    fast = np.sqrt(FAST_SHARE) * autoregressive(generator, count, FAST)
    return 1 + WIDTH * (fast + np.sqrt(1 - FAST_SHARE) * autoregressive(generator, count, SLOW))


def slow_mixture(value: float) -> float:
    """Return how far the distribution function of `some_slow` is above 0.95."""
    share = 0.97 * stats.norm.cdf((value - 1) / WIDTH) + 0.03 * stats.norm.cdf((value / 3 - 1) / WIDTH)
    return float(share) - 0.95


NORMAL_P95 = float(stats.norm.ppf(0.95, 1, WIDTH))

INDEPENDENT: dict[str, tuple[Source, float]] = {
    "normal": (normal, NORMAL_P95),
    "lognormal 0.05": (partial(lognormal, sigma=0.05), float(stats.lognorm.ppf(0.95, 0.05))),
    "lognormal 0.2": (partial(lognormal, sigma=0.2), float(stats.lognorm.ppf(0.95, 0.2))),
    "3 % three times slower": (some_slow, brentq(slow_mixture, 0.5, 3)),
}
DEPENDENT: dict[str, tuple[Source, float]] = {
    "autoregressive 0.5": (partial(dependent, correlation=0.5), NORMAL_P95),
    "autoregressive 0.8": (partial(dependent, correlation=0.8), NORMAL_P95),
    "autoregressive with a slow component": (slow_host, NORMAL_P95),
}


def measured(source: Source, seed: int, median_ns: float = MEDIAN_NS) -> Percentile:
    """Simulate one run with the default measurement and return its p95.

    The processes follow each other, and the rounds within them, without a gap: the hardest case for dependence.
    """
    generator = np.random.default_rng(seed)
    design = Design.from_measurement(Measurement())
    progress = Progress(design)
    left: Samples = np.empty(0, dtype=np.int64)
    for share in range(design.processes):
        progress.begin(share)
        while progress.wants_round():
            calls = progress.quota.calls
            if len(left) < calls:
                left = (median_ns * source(generator, 30_000)).astype(np.int64)
            progress.add(left[:calls], int(left[:calls].sum()))
            left = left[calls:]
    return progress.p95()


def holds(name: str, seed: int) -> bool:
    """Simulate one run; whether its interval holds the true p95."""
    source, true = (INDEPENDENT | DEPENDENT)[name]
    p95 = measured(source, seed)
    return p95.low is not None and p95.high is not None and p95.low <= MEDIAN_NS * true <= p95.high


def count_holding(name: str, seeds: range) -> int:
    """Return how many of the seeded runs hold the true p95."""
    return sum(holds(name, seed) for seed in seeds)
