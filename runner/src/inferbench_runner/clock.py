"""The runner's only clock: no other module reads the time or waits for it, which a test checks.

`now_ns` and `cpu_ns` are the functions themselves and not wrappers around them, because the measuring loop calls the
first of them twice per sample.
"""

from __future__ import annotations

from time import perf_counter_ns as now_ns
from time import process_time_ns as cpu_ns
from time import sleep
from typing import Final

from inferbench_runner.contract import LONGEST_MILLISECONDS

__all__ = ["NS_PER_SECOND", "cpu_ns", "now_ns", "step_ns", "to_milliseconds", "wait_until"]

NS_PER_SECOND: Final = 1_000_000_000

_NS_PER_MILLISECOND: Final = 1_000_000

_OVERSLEEP_NS: Final = 100_000
"""How much later than asked the kernel usually wakes a sleeper: the rest of a wait is spent looking at the clock. More
of that would take the interpreter's lock from a call that another thread is in."""

_STEPS: Final = 100


def to_milliseconds(nanoseconds: int) -> int:
    """Return a span in whole milliseconds, at most a month; rounded up: what happened never shows as nothing."""
    return min(-(-nanoseconds // _NS_PER_MILLISECOND), LONGEST_MILLISECONDS)


def wait_until(time_ns: int) -> None:
    """Return at the time of `now_ns`, to the microsecond; at once when it has passed."""
    while (left := time_ns - now_ns()) > 0:
        if left > _OVERSLEEP_NS:
            sleep((left - _OVERSLEEP_NS) / NS_PER_SECOND)


def step_ns() -> int:
    """Return the smallest step of the clock that shows between two readings, in nanoseconds."""
    smallest = NS_PER_SECOND
    for _ in range(_STEPS):
        start = end = now_ns()
        while end == start:
            end = now_ns()
        smallest = min(smallest, end - start)
    return smallest
