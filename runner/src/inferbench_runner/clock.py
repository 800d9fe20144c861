"""The runner's only clock: no other module reads the time, which a test checks.

`now_ns` is the function itself and not a wrapper around it, because the measuring loop calls it twice per sample.
"""

from __future__ import annotations

from time import perf_counter_ns as now_ns
from typing import Final

__all__ = ["NS_PER_SECOND", "now_ns", "to_milliseconds"]

NS_PER_SECOND: Final = 1_000_000_000

_NS_PER_MILLISECOND: Final = 1_000_000

_LONGEST_MILLISECONDS: Final = 86_400_000
"""The contract's longest span, a day: no deadline lets a pod reach it."""


def to_milliseconds(nanoseconds: int) -> int:
    """Return a span in whole milliseconds, rounded up so that what happened never looks like nothing, at most a day."""
    return min(-(-nanoseconds // _NS_PER_MILLISECOND), _LONGEST_MILLISECONDS)
