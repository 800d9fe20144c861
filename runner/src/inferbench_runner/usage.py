"""What a device did over a span of time, as far as its driver tells. Spans can be added up; pure.

A processor's counters are in `noise`: the kernel keeps those, and every process can read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from typing_extensions import Self

from inferbench_runner.contract import DeviceUse

JOULE: Final = 1000
"""Millijoules."""


@dataclass(frozen=True)
class Usage:
    """One span on one device; a figure is None where the device does not tell it."""

    energy_millijoules: int | None = None
    lowest_megahertz: int | None = None
    highest_megahertz: int | None = None
    throttled: frozenset[str] = frozenset()
    """Reasons for which the device was slowed down, in its driver's words."""
    neighbours: int | None = None
    """Most other processes on the device that were seen."""
    peak_memory_bytes: int | None = None
    sharing: frozenset[str] = frozenset()
    """Ways in which the device is shared out, such as MIG."""
    recompilations: int = 0
    monitor_p50_microseconds: int | None = None
    """The device's own time of a call by its monitor, which is asked before the span."""
    monitor_p99_microseconds: int | None = None

    def __add__(self, other: Self) -> Self:
        """Join two spans; energy that one of them lacks is lacking in the sum.

        Percentiles of the device's monitor can't be joined: the first ones stay.
        """
        energies = (self.energy_millijoules, other.energy_millijoules)
        return type(self)(
            energy_millijoules=None if energies[0] is None or energies[1] is None else energies[0] + energies[1],
            lowest_megahertz=_least(self.lowest_megahertz, other.lowest_megahertz),
            highest_megahertz=_most(self.highest_megahertz, other.highest_megahertz),
            throttled=self.throttled | other.throttled,
            neighbours=_most(self.neighbours, other.neighbours),
            peak_memory_bytes=_most(self.peak_memory_bytes, other.peak_memory_bytes),
            sharing=self.sharing | other.sharing,
            recompilations=self.recompilations + other.recompilations,
            monitor_p50_microseconds=_first(self.monitor_p50_microseconds, other.monitor_p50_microseconds),
            monitor_p99_microseconds=_first(self.monitor_p99_microseconds, other.monitor_p99_microseconds),
        )

    def to_report(self) -> DeviceUse:
        """Convert to the report's figures."""
        memory = self.peak_memory_bytes
        return DeviceUse(
            energy_joules=None if self.energy_millijoules is None else f"{self.energy_millijoules / JOULE:.3f}",
            lowest_clock_megahertz=self.lowest_megahertz,
            highest_clock_megahertz=self.highest_megahertz,
            throttle_reasons=tuple(sorted(self.throttled)),
            neighbours=self.neighbours,
            peak_memory_mebibytes=None if memory is None else memory // 2**20,
            sharing=tuple(sorted(self.sharing)),
            recompilations=self.recompilations,
            monitor_p50_microseconds=self.monitor_p50_microseconds,
            monitor_p99_microseconds=self.monitor_p99_microseconds,
        )


def _first(first: int | None, second: int | None) -> int | None:
    return second if first is None else first


def _least(first: int | None, second: int | None) -> int | None:
    known = [value for value in (first, second) if value is not None]
    return min(known, default=None)


def _most(first: int | None, second: int | None) -> int | None:
    known = [value for value in (first, second) if value is not None]
    return max(known, default=None)
