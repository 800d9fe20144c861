"""Which Neuron devices and cores this process may use, from the kernel's own files and from `neuron-ls`.

Nothing heavy is imported here: a machine without a device is refused before any library can fall back to its processor.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from inferbench_runner.contract import AcceleratorKind, Plan
from inferbench_runner.errors import DeviceNotFoundError, InvalidPlanError
from inferbench_runner.probe import ROOT, read_text

KIND: Final = AcceleratorKind.NEURON

WAY_OUT: Final = "run on an inf1, inf2 or trn instance whose driver is loaded, and request aws.amazon.com/neuron"

VISIBLE: Final = "NEURON_RT_VISIBLE_CORES"
"""Environment variable with the cores that the runtime takes: a number, or ranges; without it, all there are."""

SYSFS: Final = Path("sys/devices/virtual/neuron_device")

PRODUCT: Final = Path("sys/devices/virtual/dmi/id/product_name")
"""On EC2, the instance type."""

DRIVER: Final = Path("sys/module/neuron/version")

MAJOR: Final = re.compile(r"^\s*\d+\s+neuron\s*$", re.MULTILINE)
"""How /proc/devices names the driver."""

DEVICE: Final = re.compile(r"neuron(\d+)")

LIST_SECONDS: Final = 30
"""Time that `neuron-ls` gets: it answers in less than a second, or hangs with a broken driver."""

Ask = Callable[[], str]
"""Returns what `neuron-ls --json-output` prints, or nothing where it can't be run."""


class Process(BaseModel):
    """A process on a device, as `neuron-ls` lists it."""

    pid: int


class Listed(BaseModel):
    """A device, as `neuron-ls` lists it; older releases leave some of it out."""

    neuron_device: int
    nc_count: int
    memory_size: int = 0
    neuroncore_ids: list[int] = Field(default_factory=list)
    logical_neuroncore_config: int | None = None
    neuron_processes: list[Process] = Field(default_factory=list)


_LISTING: Final = TypeAdapter(list[Listed])


@dataclass(frozen=True)
class Devices:
    """The devices of this machine that this process can open."""

    root: Path
    """Of the file system, for tests."""
    numbers: tuple[int, ...]
    cores: tuple[int, ...]
    """Numbers of the cores, by which the runtime calls them."""
    memory_bytes: int
    """Of one device; 0 where unknown."""
    instance_type: str
    """Empty where unknown."""
    driver: str
    logical: int | None = None
    """Physical cores in one logical core, on devices that have both."""

    def allowed(self, environment: Mapping[str, str]) -> tuple[int, ...]:
        """Return the cores that the environment leaves: a scheduler that hands cores out says there which."""
        named = environment.get(VISIBLE, "")
        return cores_in(named) if named else self.cores

    def to_facts(self) -> dict[str, str]:
        """Convert to provenance entries."""
        logical = "" if self.logical is None else f", {self.logical} physical cores each"
        return {
            "neuronDevices": str(len(self.numbers)),
            "neuronCores": f"{len(self.cores)}{logical}",
            "deviceMemoryBytes": str(self.memory_bytes or "unknown"),
            "instanceType": self.instance_type or "unknown",
            "driver": self.driver or "unknown",
        }


def find_devices(root: Path = ROOT, ask: Ask | None = None, *, required: bool = True) -> Devices | None:
    """Return the devices below `root`; None where there is none and none is required.

    Raises:
        DeviceNotFoundError: The kernel has no driver for them, or this container was given none of them.
    """

    def none(problem: str) -> Devices | None:
        if required:
            raise DeviceNotFoundError(KIND, f"{KIND} was asked for, but {problem}", WAY_OUT)
        return None

    if not MAJOR.search(read_text(root / "proc/devices")):
        return none("the kernel has no driver for Neuron devices (/proc/devices)")
    numbers = tuple(sorted(int(found[1]) for path in _dev(root) if (found := DEVICE.fullmatch(path.name))))
    if not numbers:
        return none("this container has no /dev/neuron*")
    listed = parse_listing((ask or run_neuron_ls)())
    own = [one for one in listed if one.neuron_device in numbers]
    first = own[0] if own else None
    product, sysfs = read_text(root / PRODUCT).strip(), root / SYSFS / f"neuron{numbers[0]}"
    return Devices(
        root=root,
        numbers=numbers,
        cores=_cores(own) or tuple(range(_counted(root, numbers))),
        memory_bytes=first.memory_size if first else 0,
        instance_type=product or read_text(sysfs / "info/architecture/instance_type").strip(),
        driver=read_text(root / DRIVER).strip(),
        logical=first.logical_neuroncore_config if first else None,
    )


def claim(plan: Plan, devices: Devices | None, environment: MutableMapping[str, str]) -> tuple[int, ...]:
    """Let the runtime see as many cores as the plan needs, and return their numbers: a block of cores for each copy.

    Raises:
        InvalidPlanError: There are fewer.
    """
    if devices and not devices.cores:
        raise DeviceNotFoundError(KIND, "neither neuron-ls nor the driver's files tell how many cores it has", WAY_OUT)
    if (text := environment.get(VISIBLE)) and not cores_in(text):
        field, problem = f"{VISIBLE} in runner.env", f"{text!r} is no list of cores"
        raise InvalidPlanError(field, problem, "write 0, 0-3 or 0,2")
    allowed = devices.allowed(environment) if devices else ()
    copies, each = plan.measurement.load.concurrency, plan.device.cores or 1
    if copies * each > len(allowed):
        what = f"{each} for each of {copies} copies, one for each call in flight," if copies > 1 else str(each)
        field, there = "device.cores", f"more than the {len(allowed)} there are"
        way_out = f"use at most {len(allowed)} in all: lower it, or measurement.load.concurrency"
        raise InvalidPlanError(field, f"{what} is {there}", way_out)
    taken = allowed[: copies * each]
    environment[VISIBLE] = _written(taken)
    return taken


def cores_in(text: str) -> tuple[int, ...]:
    """Return the numbers in a list such as 0-3,8; nothing for one that can't be read."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            return ()
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def _written(cores: tuple[int, ...]) -> str:
    """Return the cores as the runtime's documentation writes them: one, or a range; a list only for those with gaps."""
    first, last = cores[0], cores[-1]
    if last - first + 1 != len(cores):
        return ",".join(str(core) for core in cores)
    return str(first) if first == last else f"{first}-{last}"


def parse_listing(text: str) -> list[Listed]:
    """Return the devices that `neuron-ls` lists; none where it says something else.

    Raises:
        DeviceNotFoundError: It says that the driver doesn't answer.
    """
    try:
        return _LISTING.validate_python(json.loads(text)) if text else []
    except (ValueError, ValidationError):
        if "Unable to read device information" in text:
            raise DeviceNotFoundError(KIND, f"neuron-ls says: {text.strip()}", WAY_OUT) from None
        return []


def neighbours(listed: list[Listed], numbers: tuple[int, ...], own: int) -> int | None:
    """Return how many other processes are on these devices; None where this one is not told among them.

    The driver may number processes as the node does, and not as this container.
    """
    on = chain.from_iterable(one.neuron_processes for one in listed if one.neuron_device in numbers)
    found = {process.pid for process in on}
    return len(found - {own}) if own in found else None


def run_neuron_ls() -> str:
    """Return what `neuron-ls` says about this machine's devices, or nothing where there is no such program."""
    program = shutil.which("neuron-ls")
    if program is None:
        return ""
    try:
        done = subprocess.run(  # noqa: S603  # the program beside the driver, with fixed arguments
            [program, "--json-output"], capture_output=True, text=True, timeout=LIST_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout or done.stderr


def _dev(root: Path) -> list[Path]:
    try:
        return list((root / "dev").iterdir())
    except OSError:
        return []


def _cores(listed: list[Listed]) -> tuple[int, ...]:
    """Return the numbers that `neuron-ls` gives to cores; older releases only count them."""
    named = tuple(sorted(chain.from_iterable(one.neuroncore_ids for one in listed)))
    return named or tuple(range(sum(one.nc_count for one in listed)))


def _counted(root: Path, numbers: tuple[int, ...]) -> int:
    counts = [read_text(root / SYSFS / f"neuron{number}/core_count").strip() for number in numbers]
    return sum(int(count) for count in counts if count.isdecimal())
