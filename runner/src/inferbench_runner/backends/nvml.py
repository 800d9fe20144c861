"""What NVIDIA's management library (NVML) tells about a device: energy, clocks, throttling, and who else is on it.

Whatever it refuses, or can't tell in a container, is None. It is read before and after a round, never in between.

Not to be known from inside a pod is whether the device plugin hands out one device several times (time slicing): the
other pods show as neighbours where process numbers are visible, and as noise where they are not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Final

from inferbench_runner.backends.base import Facts
from inferbench_runner.usage import Usage

UNKNOWN: Final = "unknown"

PREFIXES: Final = ("GPU-", "MIG-")
"""What NVML puts before the UUID that CUDA gives to a whole device, or to a part of one."""

THROTTLING: Final = {
    0x4: "SW power cap",
    0x8: "HW slowdown",
    0x20: "SW thermal slowdown",
    0x40: "HW thermal slowdown",
    0x80: "HW power brake",
}
"""Bits of the clock-event reasons that slow the device down. Left out: idle (0x1) and what somebody set on purpose,
such as the applications' clocks (0x2)."""

COUNTED: Final = {0: "power limit", 1: "thermal limit"}
"""Policies whose effect the driver adds up over time: the bits above show the moment, when the device idles again."""

SLOWED: Final = 0.01
"""Share of a window for which a policy must have held the device back to be named."""

NS_PER_US: Final = 1000

MPS_VARIABLE: Final = "CUDA_MPS_PIPE_DIRECTORY"

MPS_SERVER: Final = "nvidia-cuda-mps-server"

MIG: Final = "MIG"

MPS: Final = "MPS"


@dataclass(frozen=True)
class Reading:
    """One look at the device; None is what it doesn't tell."""

    energy_millijoules: int | None
    """Energy since the driver was loaded."""
    megahertz: int | None
    """Clock of the streaming multiprocessors."""
    throttled: frozenset[str]
    neighbours: int | None
    """Processes other than this one; None where process numbers are another namespace's."""
    memory_bytes: int | None
    """Device memory of this process."""
    held_back: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """For each policy that is counted, how long it has held the device back and until when, both in nanoseconds."""

    def to_usage(self) -> Usage:
        """Convert to a span of no length."""
        return Usage(
            lowest_megahertz=self.megahertz,
            highest_megahertz=self.megahertz,
            throttled=self.throttled,
            neighbours=self.neighbours,
            peak_memory_bytes=self.memory_bytes,
        )

    def held_back_since(self, before: Reading) -> frozenset[str]:
        """Return the policies that have held the device back for more than a moment between two looks."""
        found: set[str] = set()
        for name, (held, now) in self.held_back.items():
            if name in before.held_back:
                earlier, then = before.held_back[name]
                if held - earlier > SLOWED * max(now - then, 1):
                    found.add(name)
        return frozenset(found)


@dataclass(frozen=True)
class Monitor:
    """One device, by the handles that NVML has for it."""

    library: ModuleType
    handle: Any
    """Handle of what CUDA uses: a device, or a part of one; NVML's handles have no type of their own."""
    whole: Any
    """Handle of the device that it is, or is a part of."""
    environment: Mapping[str, str]

    @property
    def facts(self) -> Facts:
        """Provenance of the driver and of the device's limits."""
        power, clock = self._power_limit(), self._ask("nvmlDeviceGetMaxClockInfo", self.whole, self._sm)
        return {
            "driver": _text(self._ask("nvmlSystemGetDriverVersion")),
            "cudaDriver": _cuda_version(self._ask("nvmlSystemGetCudaDriverVersion_v2")),
            "powerLimit": UNKNOWN if power is None else f"{power / 1000:g} W",
            "maxClock": UNKNOWN if clock is None else f"{clock} MHz",
            "sharing": " ".join(sorted(self.sharing())) or "none seen",
        }

    def read(self) -> Reading:
        """Look once."""
        processes = self._processes()
        own = [process for process in processes or () if process.pid == os.getpid()]
        # The counter is the whole device's, to which the other parts add.
        energy = None if self._is_part else self._ask("nvmlDeviceGetTotalEnergyConsumption", self.whole)
        return Reading(
            energy_millijoules=energy,
            megahertz=self._ask("nvmlDeviceGetClockInfo", self.whole, self._sm),
            throttled=self._throttled(),
            # We are on the device: where we are not seen, all numbers are those of another namespace.
            neighbours=len(processes) - len(own) if processes and own else None,
            memory_bytes=own[0].usedGpuMemory if own else None,
            held_back=self._held_back(),
        )

    def sharing(self) -> frozenset[str]:
        """Return the ways in which the device is shared out, as far as can be known from inside a pod."""
        mode = self._ask("nvmlDeviceGetMigMode", self.whole)
        parted = self._is_part or bool(mode and mode[0])
        served = MPS_VARIABLE in self.environment or any(MPS_SERVER in name for name in self._names())
        return frozenset([MIG] * parted + [MPS] * served)

    def observe(self) -> Callable[[], Usage]:
        """Begin to watch; what it returns ends the watching, and says what the device did meanwhile."""
        begun = self.read()

        def end() -> Usage:
            ended = self.read()
            both = begun.to_usage() + ended.to_usage()
            return replace(
                both,
                energy_millijoules=_difference(begun.energy_millijoules, ended.energy_millijoules),
                throttled=both.throttled | ended.held_back_since(begun),
                sharing=self.sharing(),
            )

        return end

    @property
    def _sm(self) -> int:
        return int(self.library.NVML_CLOCK_SM)

    @property
    def _is_part(self) -> bool:
        return self.handle is not self.whole

    def _power_limit(self) -> int | None:
        """Return the limit in force, in milliwatts."""
        enforced: int | None = self._ask("nvmlDeviceGetEnforcedPowerLimit", self.whole)
        return enforced

    def _throttled(self) -> frozenset[str]:
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons", self.whole)
        if bits is None:
            # The name that it had before version 12.
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", self.whole)
        return frozenset(name for bit, name in THROTTLING.items() if (bits or 0) & bit)

    def _held_back(self) -> Mapping[str, tuple[int, int]]:
        statuses = {
            name: self._ask("nvmlDeviceGetViolationStatus", self.whole, policy) for policy, name in COUNTED.items()
        }
        return {
            name: (int(status.violationTime), int(status.referenceTime) * NS_PER_US)
            for name, status in statuses.items()
            if status is not None
        }

    def _processes(self) -> list[Any] | None:
        found: list[Any] | None = self._ask("nvmlDeviceGetComputeRunningProcesses", self.handle)
        return found

    def _names(self) -> Iterator[str]:
        for process in self._processes() or ():
            yield _text(self._ask("nvmlSystemGetProcessName", process.pid))

    def _ask(self, function: str, *arguments: Any) -> Any:  # noqa: ANN401  # by function
        return _ask(self.library, function, *arguments)


def open_monitor(uuid: str, library: ModuleType | None, environment: Mapping[str, str]) -> Monitor | None:
    """Return the device with CUDA's UUID; None without the library, without its driver, or where it knows no such one.

    Numbers don't tell which device it is: CUDA counts only those that it may see, in an order of its own.
    """
    if library is None or not _initialised(library):
        return None
    for prefix in PREFIXES:
        name = prefix + uuid.removeprefix("GPU-").removeprefix("MIG-")
        handle = _ask(library, "nvmlDeviceGetHandleByUUID", name)
        if handle is not None:
            is_part = bool(_ask(library, "nvmlDeviceIsMigDeviceHandle", handle))
            whole = _ask(library, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle) if is_part else handle
            return None if whole is None else Monitor(library, handle, whole, environment)
    return None


def find_library() -> ModuleType | None:
    """Return the module that wraps NVML; None where it is not installed."""
    try:
        import pynvml  # noqa: PLC0415  # needed on NVIDIA's devices only
    except ModuleNotFoundError:
        return None
    found: ModuleType = pynvml
    return found


def _initialised(library: ModuleType) -> bool:
    try:
        library.nvmlInit()
    except library.NVMLError:
        return False
    return True


def _ask(library: ModuleType, function: str, *arguments: Any) -> Any:  # noqa: ANN401  # by function
    """Return what a function says; None where the device, the driver or the module's version has none to say."""
    asked = getattr(library, function, None)
    if asked is None:
        return None
    try:
        return asked(*arguments)
    except library.NVMLError:
        return None


def _text(value: str | bytes | None) -> str:
    """Return a word of NVML's, which are bytes in older versions."""
    return (value.decode(errors="replace") if isinstance(value, bytes) else value) or UNKNOWN


def _cuda_version(number: int | None) -> str:
    """Return a version such as 12.4, which NVML calls 12040."""
    return UNKNOWN if number is None else f"{number // 1000}.{number % 1000 // 10}"


def _difference(begun: int | None, ended: int | None) -> int | None:
    # A driver that was loaded anew in between counts from zero.
    return None if begun is None or ended is None or ended < begun else ended - begun
