"""What the driver's library tells, from a stand-in for it that tells everything, nothing, or something in between."""

from __future__ import annotations

import builtins
import os
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from inferbench_runner.backends.nvml import Monitor, Reading, find_library, open_monitor
from inferbench_runner.usage import Usage
from test_runner.fake_nvml import FULL, UUID, FakeNVMLError, fake_nvml, process

ME = os.getpid()


def monitor(environment: dict[str, str] | None = None, **answers: Any) -> Monitor:  # noqa: ANN401  # by function
    """Return the device of a library that gives these answers."""
    found = open_monitor(UUID, fake_nvml(**answers), environment or {})
    assert found is not None
    return found


def test_a_device_that_tells_everything() -> None:
    """Each figure comes from its own function, in the library's units."""
    full = monitor(
        nvmlDeviceGetComputeRunningProcesses=[process(ME, 500 * 2**20), process(ME + 1), process(ME + 2)],
        nvmlDeviceGetCurrentClocksEventReasons=0x4,
    )
    assert full.read() == Reading(1_000_000, 1980, frozenset({"SW power cap"}), 2, 500 * 2**20)
    assert full.facts == {
        "driver": "580.65.06",
        "cudaDriver": "13.2",
        "powerLimit": "300 W",
        "maxClock": "1980 MHz",
        "sharing": "none seen",
    }


def test_a_device_that_refuses_everything_has_nothing_to_tell() -> None:
    """A refusal is no failure: each figure is unknown, and the run goes on."""
    found = {name: None for name in FULL if name not in {"nvmlInit", "nvmlDeviceGetHandleByUUID"}}
    silent = monitor(**found)
    assert silent.read() == Reading(None, None, frozenset(), None, None)
    assert silent.observe()() == Usage()
    facts = silent.facts
    assert {facts[name] for name in ("driver", "cudaDriver", "powerLimit", "maxClock")} == {"unknown"}


def test_an_older_library_lacks_functions() -> None:
    """The reasons had another name once, words were bytes, and a function that is absent is like one that refuses."""
    library = fake_nvml(nvmlDeviceGetCurrentClocksThrottleReasons=0x40, nvmlSystemGetDriverVersion=b"470.1")
    for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetMigMode"):
        delattr(library, name)
    found = open_monitor(UUID, library, {})
    assert found is not None
    assert found.read().throttled == {"HW thermal slowdown"}
    assert found.facts["driver"] == "470.1"
    assert found.sharing() == frozenset()


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (0x0, set()),
        (0x1, set()),
        (0x2, set()),
        (0x1 | 0x2 | 0x10 | 0x100, set()),
        (0x4, {"SW power cap"}),
        (0x8, {"HW slowdown"}),
        (0x20, {"SW thermal slowdown"}),
        (0x40, {"HW thermal slowdown"}),
        (0x80, {"HW power brake"}),
        (0x1 | 0x4 | 0x20, {"SW power cap", "SW thermal slowdown"}),
    ],
)
def test_only_what_slows_the_device_down_is_throttling(bits: int, expected: set[str]) -> None:
    """Being idle, or at clocks that somebody has set, is none."""
    assert monitor(nvmlDeviceGetCurrentClocksEventReasons=bits).read().throttled == expected


@pytest.mark.parametrize(
    ("processes", "neighbours", "memory"),
    [
        pytest.param([process(ME, 7)], 0, 7, id="alone"),
        pytest.param([process(ME), process(ME + 1, 9)], 1, None, id="beside another one, memory not told"),
        pytest.param([process(ME + 1, 9)], None, None, id="only numbers of another namespace"),
        pytest.param([], None, None, id="nobody, not even us"),
        pytest.param(None, None, None, id="refused"),
    ],
)
def test_neighbours_are_counted_where_we_see_ourselves(
    processes: list[object] | None, neighbours: int | None, memory: int | None
) -> None:
    """In a container with numbers of its own neither the neighbours nor our own memory can be told."""
    reading = monitor(nvmlDeviceGetComputeRunningProcesses=processes).read()
    assert (reading.neighbours, reading.memory_bytes) == (neighbours, memory)


@pytest.mark.parametrize(
    ("environment", "answers", "expected"),
    [
        ({}, {}, set()),
        ({}, {"nvmlDeviceGetMigMode": [1, 1]}, {"MIG"}),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"}, {}, {"MPS"}),  # noqa: S108  # its usual value
        (
            {},
            {
                "nvmlDeviceGetComputeRunningProcesses": [process(9)],
                "nvmlSystemGetProcessName": "/usr/bin/nvidia-cuda-mps-server",
            },
            {"MPS"},
        ),
        ({}, {"nvmlDeviceGetComputeRunningProcesses": [process(9)]}, set()),
    ],
)
def test_ways_of_sharing_are_named(environment: dict[str, str], answers: dict[str, Any], expected: set[str]) -> None:
    """Parts of a device, and the server that lets several processes use it at once."""
    assert monitor(environment, **answers).sharing() == expected


def test_a_part_of_a_device_has_the_clocks_of_the_whole_and_no_energy() -> None:
    """CUDA's UUID is that of the part; the whole device's counter of energy would count the other parts too."""

    def by_uuid(name: str) -> str:
        if name != f"MIG-{UUID}":
            raise FakeNVMLError
        return "part"

    def clock(handle: str, _: int) -> int:
        assert handle == "whole"
        return 1410

    part = monitor(
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceIsMigDeviceHandle=1,
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle="whole",
        nvmlDeviceGetClockInfo=clock,
        nvmlDeviceGetMigMode=None,
    )
    assert part.sharing() == {"MIG"}
    assert (part.read().energy_millijoules, part.read().megahertz) == (None, 1410)


@pytest.mark.parametrize("uuid", [UUID, f"GPU-{UUID}"])
def test_the_device_is_found_by_its_uuid(uuid: str) -> None:
    """CUDA writes it without a prefix, NVML with one."""
    found = open_monitor(uuid, fake_nvml(), {})
    assert found is not None
    assert found.handle == "handle"


@pytest.mark.parametrize(
    ("uuid", "library"),
    [
        pytest.param(UUID.replace("1", "2"), fake_nvml(), id="another device"),
        pytest.param(UUID, fake_nvml(nvmlInit=None), id="no driver"),
        pytest.param(UUID, None, id="no library"),
    ],
)
def test_without_the_device_nothing_is_watched(uuid: str, library: ModuleType | None) -> None:
    """Figures of another device would be worse than none."""
    assert open_monitor(uuid, library, {}) is None


def test_a_window_has_the_difference_of_energies_and_the_extremes_of_the_rest() -> None:
    """What the two looks tell, joined: reasons and neighbours of either, the lowest and the highest clock."""
    energies, clocks, bits = iter([5000, 7500]), iter([1980, 1200]), iter([0x4, 0x40])
    # The second look at the end is for the names of servers.
    listed = iter([[process(ME, 10)], [process(ME, 30), process(8)], []])
    watched = monitor(
        nvmlDeviceGetTotalEnergyConsumption=lambda _: next(energies),
        nvmlDeviceGetClockInfo=lambda *_: next(clocks),
        nvmlDeviceGetCurrentClocksEventReasons=lambda _: next(bits),
        nvmlDeviceGetComputeRunningProcesses=lambda _: next(listed),
    )
    ended = watched.observe()
    assert ended() == Usage(
        energy_millijoules=2500,
        lowest_megahertz=1200,
        highest_megahertz=1980,
        throttled=frozenset({"SW power cap", "HW thermal slowdown"}),
        neighbours=1,
        peak_memory_bytes=30,
    )


@pytest.mark.parametrize(
    ("held_ms", "expected"),
    [
        pytest.param((0, 0), set(), id="never"),
        pytest.param((9, 0), set(), id="for a moment"),
        pytest.param((11, 0), {"power limit"}, id="by its power"),
        pytest.param((400, 700), {"power limit", "thermal limit"}, id="by both"),
    ],
)
def test_what_held_the_device_back_in_a_window_is_named(held_ms: tuple[int, int], expected: set[str]) -> None:
    """The driver's counters over a second tell of a limit that is gone again when the device idles."""
    looks = iter([(0, 5), (0, 5), (held_ms[0], 1005), (held_ms[1], 1005)])

    def status(_: str, policy: int) -> SimpleNamespace:
        held, now = next(looks)
        return SimpleNamespace(violationTime=10**9 * policy + held * 1_000_000, referenceTime=now * 1000)

    assert monitor(nvmlDeviceGetViolationStatus=status).observe()().throttled == expected


def test_a_counter_that_began_anew_tells_nothing() -> None:
    """A driver that was loaded again counts from zero: no difference is better than a negative one."""
    energies = iter([5000, 10])
    watched = monitor(nvmlDeviceGetTotalEnergyConsumption=lambda _: next(energies))
    assert watched.observe()().energy_millijoules is None


def test_the_real_library_has_every_function_that_is_asked() -> None:
    """A function that is renamed would look like one that refuses."""
    library = pytest.importorskip("pynvml", reason="install the nvidia extra to check the library's functions")
    assert not [name for name in FULL if not callable(getattr(library, name, None))]
    assert (library.NVML_CLOCK_SM, library.NVML_PERF_POLICY_POWER, library.NVML_PERF_POLICY_THERMAL) == (1, 0, 1)
    assert [name for name, _ in library.c_nvmlViolationTime_t._fields_] == ["referenceTime", "violationTime"]
    assert issubclass(library.NVMLError, Exception)
    assert library.nvmlClocksEventReasonSwPowerCap == 0x4
    assert library.nvmlClocksEventReasonHwSlowdown == 0x8
    assert library.nvmlClocksEventReasonSwThermalSlowdown == 0x20
    assert library.nvmlClocksEventReasonHwThermalSlowdown == 0x40
    assert library.nvmlClocksEventReasonHwPowerBrakeSlowdown == 0x80


def test_a_missing_library_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device can be measured without the driver's own figures."""
    real = builtins.__import__

    def without(name: str, *rest: Any, **others: Any) -> Any:  # noqa: ANN401  # passed through
        if name == "pynvml":
            raise ModuleNotFoundError(name=name)
        return real(name, *rest, **others)

    monkeypatch.setattr(builtins, "__import__", without)
    assert find_library() is None
