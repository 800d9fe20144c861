"""The measuring loop: a call, a clock, and limits. It knows neither devices nor reports.

Between two samples it stores one number and compares it; whatever else there is to do waits until the loop has ended.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Self

from inferbench_runner.clock import NS_PER_SECOND, now_ns
from inferbench_runner.contract import Measurement

WARMUP_CALLS: Final = 10
"""Calls before the first sample: lazy initialisation, memory pools and caches are filled by then."""

MAX_SAMPLES: Final = 4_000_000
"""Samples after which a shape ends early: 32 MB, and an interval of p95 within 0.03 % of the ranks."""


@dataclass(frozen=True)
class Limits:
    """When a shape has been measured for long enough: both minima are met, or the maximum is reached."""

    min_samples: int
    min_ns: int
    max_ns: int

    @classmethod
    def from_measurement(cls, measurement: Measurement) -> Self:
        """Convert the plan's seconds."""
        return cls(
            min_samples=measurement.min_samples,
            min_ns=measurement.min_seconds * NS_PER_SECOND,
            max_ns=measurement.max_seconds * NS_PER_SECOND,
        )


@dataclass(frozen=True)
class Warmup:
    """What was done before the first sample."""

    calls: int
    elapsed_ns: int


@dataclass(frozen=True)
class Series:
    """Samples of one shape in the order in which they were taken, in nanoseconds, and the window that holds them."""

    samples: array[int]
    window_ns: int


def warm_up(call: Callable[[], object], *, now: Callable[[], int] = now_ns) -> Warmup:
    """Call until the first sample can be taken."""
    begin = now()
    for _ in range(WARMUP_CALLS):
        call()
    return Warmup(calls=WARMUP_CALLS, elapsed_ns=now() - begin)


def measure(call: Callable[[], object], limits: Limits, *, now: Callable[[], int] = now_ns) -> Series:
    """Call one after the other, timing each, until the limits say stop; at least one sample is taken."""
    samples = array("q")
    append = samples.append
    min_samples, min_ns, max_ns = limits.min_samples, limits.min_ns, limits.max_ns
    begin = end = now()
    for count in range(1, MAX_SAMPLES + 1):
        start = now()
        call()
        end = now()
        append(end - start)
        elapsed = end - begin
        if elapsed >= max_ns or (count >= min_samples and elapsed >= min_ns):
            break
    return Series(samples=samples, window_ns=end - begin)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep Python's garbage collector from adding its pauses to samples: collect now, then hold it until the end.

    A full collection takes a quarter of a second with a model's libraries loaded, so one pause spans all shapes.
    """
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
