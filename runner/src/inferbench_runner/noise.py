"""What else happened on the host while a round was measured: the kernel's counters before it and after it.

All of them are sums over time, so that rounds can be added up; what the kernel does not tell stays None.
"""

from __future__ import annotations

import os
import resource
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

from typing_extensions import Self

from inferbench_runner.clock import NS_PER_SECOND, cpu_ns, now_ns, to_milliseconds
from inferbench_runner.contract import Noise
from inferbench_runner.probe import ROOT, groups, read_text

COLUMNS: Final = 8
"""Columns of a processor's line in /proc/stat up to the stolen time."""

NS_PER_TICK: Final = NS_PER_SECOND // os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Counters:
    """Sums since some point in the past, or between two points; times are in nanoseconds."""

    available_ns: int | None = 0
    """Elapsed time, times the processors that the process may use."""
    own_ns: int | None = 0
    """Processor time of this process, all threads."""
    switches: int | None = 0
    """Involuntary context switches of this process, all threads."""
    busy_ns: int | None = 0
    """Time in which the processors that may be used ran anything."""
    steal_ns: int | None = 0
    """Time that the hypervisor gave to other machines while this one wanted it."""
    throttled_ns: int | None = 0
    """Time for which the control group's quota held its processes back."""
    thermal: int | None = 0
    """Times that a processor slowed down because of heat."""

    def __add__(self, other: Self) -> Self:
        """Add two spans; a figure that one of them lacks is lacking in the sum."""
        return self._combined(other, 1)

    def __sub__(self, other: Self) -> Self:
        """Return the span from `other` to this reading."""
        return self._combined(other, -1)

    def _combined(self, other: Self, sign: int) -> Self:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return type(self)(*(None if None in pair else pair[0] + sign * pair[1] for pair in pairs))

    def to_noise(self) -> Noise:
        """Convert to the report's figures."""
        others = None if self.busy_ns is None or self.own_ns is None else max(self.busy_ns - self.own_ns, 0)
        return Noise(
            steal_percent=_ratio(self.steal_ns, self.available_ns, 100),
            neighbours_percent=_ratio(others, self.available_ns, 100),
            involuntary_switches_per_second=_ratio(self.switches, self.own_ns, NS_PER_SECOND),
            throttled_milliseconds=None if self.throttled_ns is None else to_milliseconds(self.throttled_ns),
            thermal_throttles=self.thermal,
        )


def read_counters(root: Path = ROOT) -> Counters:
    """Read the kernel's sums for the processors that this process may use."""
    allowed = os.sched_getaffinity(0)
    busy, steal = _ticks(read_text(root / "proc/stat"), allowed)
    return Counters(
        available_ns=now_ns() * len(allowed),
        own_ns=cpu_ns(),
        switches=resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
        busy_ns=busy,
        steal_ns=steal,
        throttled_ns=_throttled_ns(root),
        thermal=_thermal(root, allowed),
    )


def _ticks(text: str, allowed: set[int]) -> tuple[int | None, int | None]:
    """Return the busy and the stolen time of these processors; see proc_stat(5) for the columns."""
    busy = steal = 0
    seen = False
    for line in text.splitlines():
        name, *columns = line.split()
        number = name.removeprefix("cpu")
        if name.startswith("cpu") and number.isdecimal() and int(number) in allowed and len(columns) >= COLUMNS:
            user, nice, system, _idle, _iowait, irq, softirq, stolen = map(int, columns[:COLUMNS])
            busy += user + nice + system + irq + softirq
            steal += stolen
            seen = True
    return (busy * NS_PER_TICK, steal * NS_PER_TICK) if seen else (None, None)


def _throttled_ns(root: Path) -> int | None:
    found = None
    for folder in groups(root, "cpu"):
        for line in read_text(folder / "cpu.stat").splitlines():
            key, _, value = line.partition(" ")
            # Version 2 counts microseconds, version 1 nanoseconds.
            unit = {"throttled_usec": 1000, "throttled_time": 1}.get(key)
            if unit and value.strip().isdecimal():
                found = (found or 0) + int(value) * unit
    return found


def _thermal(root: Path, allowed: set[int]) -> int | None:
    folder = root / "sys/devices/system/cpu"
    texts = [read_text(folder / f"cpu{number}/thermal_throttle/core_throttle_count").strip() for number in allowed]
    counts = [int(text) for text in texts if text.isdecimal()]
    return sum(counts) if counts else None


def _ratio(part: int | None, whole: int | None, scale: int) -> str | None:
    """Return `scale` times the ratio with two decimals; None where a figure is lacking."""
    return None if part is None or not whole else f"{max(part, 0) * scale / whole:.2f}"
