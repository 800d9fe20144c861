"""What the runner takes besides the model: memory over that of a loop written by hand, and its supervisor's time.

Both are watched from outside, while the same run measures: the watching takes time from what is measured, so latencies
of this run are not looked at.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from cluster.bench.figures import Figure, significant
from cluster.bench.method.settings import Settings
from cluster.bench.method.tools import Place, Work, by_hand, ours
from cluster.bench.running import compact_report
from inferbench_runner.contract import Phase

_AIM_MEBIBYTES: Final = 150
_MEBIBYTE: Final = 2**20


def costs(where: Place, settings: Settings) -> Iterator[Figure]:
    """Watch the loop and the runner, one after the other."""
    work = Work(settings.costs_length, settings.costs_samples, len(psutil.Process().cpu_affinity()))
    memory, clocks, alone = Memory(), Clocks(where.folder), Memory()

    def watch(pid: int) -> None:
        memory.look(pid)
        clocks.look(pid)

    leg = by_hand(where, work, watch=alone.look)
    ours(where, work, leg.p50_ms, watch=watch)
    with_us, without = memory.peak / _MEBIBYTE, alone.peak / _MEBIBYTE
    yield Figure(
        f"runner's peak memory over a hand-written loop's, length {work.length}",
        with_us - without,
        "MiB",
        _AIM_MEBIBYTES,
        f"{significant(with_us)} ({memory}) and {significant(without)} MiB; pages that several processes use are "
        f"shared out (PSS); {memory.looks} and {alone.looks} looks",
    )
    yield _supervisor(clocks, work)


def _supervisor(clocks: Clocks, work: Work) -> Figure:
    name = f"supervisor's processor time while a child measures, length {work.length}"
    ours_ns, theirs_ns = clocks.spent()
    if not theirs_ns:
        return Figure(name, None, "%", detail="not measured: it was over before anybody had looked twice")
    detail = f"of the child's: {significant(ours_ns / 1e6)} ms in {significant(theirs_ns / 1e9)} s"
    return Figure(name, 100 * ours_ns / theirs_ns, "%", None, detail)


@dataclass
class Memory:
    """Peak of the memory of a process and its descendants, as far as somebody looked."""

    parts: tuple[int, ...] = ()
    """Of each process at that time, in bytes, in the order in which they were started."""
    looks: int = 0

    @property
    def peak(self) -> int:
        """The sum, in bytes."""
        return sum(self.parts)

    def look(self, pid: int) -> None:
        """Read the memory of all of them, now."""
        found = []
        for process in family(pid):
            # It may have ended meanwhile.
            with suppress(psutil.Error):
                found.append(process.memory_full_info().pss)
        self.parts = max(self.parts, tuple(found), key=sum)
        self.looks += 1

    def __str__(self) -> str:
        """The parts in words."""
        return " + ".join(significant(part / _MEBIBYTE) for part in self.parts)


@dataclass
class Clocks:
    """Processor time of a runner's supervisor and its children, while the children measure."""

    folder: Path
    """Where the runner's reports are."""
    seen: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """For each measuring child the supervisor's and its own processor time at every look, in nanoseconds."""

    def look(self, pid: int) -> None:
        """Read the clocks, if a child measures now."""
        report = compact_report(self.folder)
        if not report or not report.doing or report.doing.phase is not Phase.MEASURE:
            return
        # A process can end between two of these lines.
        with suppress(psutil.Error, OSError):
            # Beside it there is only a process that tracks shared resources, and does nothing.
            child = max(family(pid)[1:], key=lambda process: clock_ns(process.pid))
            self.seen.setdefault(child.pid, []).append((clock_ns(pid), clock_ns(child.pid)))

    def spent(self) -> tuple[int, int]:
        """Return the supervisor's and the children's time between the first and the last look at each child."""
        spans = [(times[0], times[-1]) for times in self.seen.values()]
        ours = sum(last[0] - first[0] for first, last in spans)
        theirs = sum(last[1] - first[1] for first, last in spans)
        return ours, theirs


def family(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants; nothing when it has ended."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def clock_ns(pid: int) -> int:
    """Return the processor time of any process in nanoseconds: psutil knows it in steps of 10 ms only."""
    # As clock_getcpuclockid(3) makes it; the last two bits name the scheduler's own account.
    return time.clock_gettime_ns((~pid << 3) | 2)
