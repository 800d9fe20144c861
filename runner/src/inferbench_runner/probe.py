"""Looks at the machine: what of it this process may use, and what identifies it in a report.

Limits come from the scheduler's affinity mask and from the control groups that hold this process, version 1 or 2: in a
container the number of processors that the kernel shows is the node's, not the pod's.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path("/")

VECTOR_FLAGS: Final = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")
"""Processor flags that decide which matrix kernels run."""

MEMORY_VARIABLES: Final = ("GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_")
"""Beginnings of the environment variables that change how memory is given out."""

UNLIMITED_BYTES: Final = 2**60
"""Version 1 has no word for "no limit": it shows a number near 2**63."""


@dataclass(frozen=True)
class Host:
    """The machine as this process sees it."""

    cpu_model: str
    cpu_flags: tuple[str, ...]
    kernel: str
    python: str
    affinity: tuple[int, ...]
    """Numbers of the processors that this process may run on."""
    cpu_limit_millis: int | None
    """The control group's quota in thousandths of a processor."""
    memory_limit_bytes: int | None
    allocator: str = "unknown"
    """The C library, and what it or a library in its place was told about memory."""

    @property
    def threads(self) -> int:
        """Threads that can run at the same time without being throttled: at least 1."""
        allowed = len(self.affinity)
        if self.cpu_limit_millis is None:
            return max(allowed, 1)
        return max(min(allowed, self.cpu_limit_millis // 1000), 1)

    def to_facts(self) -> dict[str, str]:
        """Convert to provenance entries."""
        return {
            "cpuModel": self.cpu_model,
            "cpuFlags": " ".join(self.cpu_flags),
            "kernel": self.kernel,
            "python": self.python,
            "processors": str(len(self.affinity)),
            "affinity": ",".join(str(number) for number in self.affinity),
            "cpuLimit": "none" if self.cpu_limit_millis is None else f"{self.cpu_limit_millis}m",
            "allocator": self.allocator,
            "memoryLimitBytes": "none" if self.memory_limit_bytes is None else str(self.memory_limit_bytes),
        }


def oom_kills(root: Path = ROOT) -> int | None:
    """Return how often the kernel has killed a process of this control group for want of memory; None where unknown."""
    for folder in groups(root, "memory"):
        for name in ("memory.events", "memory.oom_control"):
            for line in read_text(folder / name).splitlines():
                key, _, count = line.partition(" ")
                if key == "oom_kill" and count.strip().isdecimal():
                    return int(count)
    return None


def probe_host(root: Path = ROOT) -> Host:
    """Read the machine's own files below `root`; a file that is absent or unreadable leaves its fact unknown."""
    cpuinfo = _fields(read_text(root / "proc/cpuinfo"))
    flags = (cpuinfo.get("flags") or cpuinfo.get("Features") or "").split()
    cpu_limits = [limit for folder in groups(root, "cpu") if (limit := _cpu_limit_millis(folder)) is not None]
    memory_limits = [limit for folder in groups(root, "memory") if (limit := _memory_limit(folder)) is not None]
    return Host(
        cpu_model=cpuinfo.get("model name") or platform.processor() or platform.machine() or "unknown",
        cpu_flags=tuple(flag for flag in VECTOR_FLAGS if flag in flags),
        kernel=platform.release(),
        python=platform.python_version(),
        affinity=tuple(sorted(os.sched_getaffinity(0))),
        cpu_limit_millis=min(cpu_limits, default=None),
        memory_limit_bytes=min(memory_limits, default=None),
        allocator=allocator(os.environ),
    )


def allocator(environment: Mapping[str, str]) -> str:
    """Return what gives out memory: how much of it comes from the kernel anew in each call is a part of its time."""
    told = [f"{name}={value}" for name, value in sorted(environment.items()) if name.startswith(MEMORY_VARIABLES)]
    return " ".join([os.confstr("CS_GNU_LIBC_VERSION") or "unknown", *told])


def groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups that hold this process, innermost first: each may set its own limit."""
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        # Version 2 has one hierarchy and no name in the middle; version 1 has a hierarchy for each controller.
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / (controller if controllers else "")
        path = PurePosixPath(group.lstrip("/"))
        # In a container the path can be the node's, which doesn't exist here; the base folder then is the pod's.
        for folder in (path, *path.parents) if path.parts else (path,):
            if ".." not in folder.parts:
                yield base / folder


def _cpu_limit_millis(folder: Path) -> int | None:
    quota, _, period = read_text(folder / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = read_text(folder / "cpu.cfs_quota_us").strip(), read_text(folder / "cpu.cfs_period_us").strip()
    # "max" in version 2 and -1 in version 1 mean no limit: neither consists of digits.
    if not (quota.isdecimal() and period.isdecimal() and int(period)):
        return None
    return int(quota) * 1000 // int(period)


def _memory_limit(folder: Path) -> int | None:
    limit = (read_text(folder / "memory.max") or read_text(folder / "memory.limit_in_bytes")).strip()
    return int(limit) if limit.isdecimal() and int(limit) < UNLIMITED_BYTES else None


def _fields(text: str) -> dict[str, str]:
    """Return the first processor's `name : value` lines."""
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def read_text(path: Path) -> str:
    """Return a file's text, empty where it can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def descendants(process: int, root: Path = ROOT) -> list[int]:
    """Return the numbers of all processes that this one has started, and those that they have."""
    children: dict[int, list[int]] = {}
    for folder in (root / "proc").glob("[0-9]*"):
        # "number (name) state parent ...", where the name may hold anything.
        _, _, rest = read_text(folder / "stat").rpartition(")")
        if len(rest.split()) > 1:
            children.setdefault(int(rest.split()[1]), []).append(int(folder.name))
    found = [process]
    for number in found:
        found += children.get(number, [])
    return found[1:]
