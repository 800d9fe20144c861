"""The driver's counters of what the cores did: the proof that a call ran on the device, and its memory.

The kernel keeps them below /sys/devices/virtual/neuron_device. Releases of the driver have moved them about in that
tree, so they are found by their names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inferbench_runner.backends.neuron.devices import SYSFS, Devices
from inferbench_runner.probe import read_text

EXECUTIONS: Final = "inference_count"
"""Successful executions of a core since the driver was loaded."""

MEMORY: Final = "device_mem"
"""Bytes of the device's memory that are in use on a core."""


@dataclass(frozen=True)
class Counter:
    """One of the driver's figures: a file or, for what the driver calls a counter, a folder with a total."""

    path: Path
    core: int | None
    """Whose it is, by the runtime's number; None where that is open."""

    def value(self) -> int | None:
        """Read it; None where it can't be read."""
        text = read_text(self.path / "total" if self.path.is_dir() else self.path).strip()
        return int(text) if text.isdecimal() else None


@dataclass(frozen=True)
class Counters:
    """The counters of the cores that this process holds: others' work on the same device is no proof of its own."""

    executions: tuple[Counter, ...]
    memory: tuple[Counter, ...]

    @classmethod
    def of(cls, devices: Devices, held: Collection[int]) -> Counters:
        """Find those of the cores with these numbers; there are none where the container hides them.

        A driver that counts other cores than the runtime numbers, such as the physical ones in a logical core, leaves
        open which is whose: then all count.
        """
        folders = [devices.root / SYSFS / f"neuron{number}" for number in devices.numbers]

        def found(name: str) -> tuple[Counter, ...]:
            paths = sorted((path for folder in folders for path in _named(folder, name)), key=_numbers)
            if len(paths) != len(devices.cores):
                return tuple(Counter(path, None) for path in paths)
            return tuple(Counter(path, core) for core, path in zip(devices.cores, paths, strict=True) if core in held)

        return cls(found(EXECUTIONS), found(MEMORY))

    def counts(self) -> dict[int | None, int]:
        """Return the executions so far, by core: all under None where cores can't be told apart, none where hidden."""
        return _sums(self.executions)

    def memory_bytes(self) -> int | None:
        """Return the memory that is in use; None where the driver doesn't tell."""
        found = _sums(self.memory)
        return sum(found.values()) if found else None


def _numbers(path: Path) -> list[int]:
    """Return what to sort by: the numbers of device and core, of which 10 comes after 9."""
    return [int(number) for number in re.findall(r"neuron(?:_core)?(\d+)", str(path))]


def _named(folder: Path, name: str) -> Iterator[Path]:
    try:
        yield from folder.rglob(name)
    except OSError:
        return


def _sums(counters: tuple[Counter, ...]) -> dict[int | None, int]:
    """Add up what can be read, by core."""
    sums: dict[int | None, int] = {}
    for counter in counters:
        if (value := counter.value()) is not None:
            sums[counter.core] = sums.get(counter.core, 0) + value
    return sums
