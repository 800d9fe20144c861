"""What a Neuron machine says about itself, from recorded documents and from a folder with the kernel's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inferbench_runner.backends.neuron.counters import Counters
from inferbench_runner.backends.neuron.devices import (
    VISIBLE,
    Devices,
    Process,
    claim,
    cores_in,
    find_devices,
    neighbours,
    parse_listing,
)
from inferbench_runner.backends.neuron.targets import OVERRIDE, choose_target, family
from inferbench_runner.contract import FailureReason
from inferbench_runner.errors import RunnerError
from test_runner.builders import tree
from test_runner.neuron import DEVICE_FILES, DOCUMENTS, neuron_plan


def document(name: str) -> str:
    """Return a recorded document, written from the format that AWS documents."""
    return (DOCUMENTS / name).read_text(encoding="utf-8")


def found(root: Path, listing: str = "") -> Devices:
    """Return the devices, with what `neuron-ls` says."""
    devices = find_devices(root, lambda: listing)
    assert devices is not None
    return devices


def test_the_kernels_files_are_enough(tmp_path: Path) -> None:
    """Without `neuron-ls`, the cores are counted in sysfs."""
    devices = found(tree(tmp_path, DEVICE_FILES))
    assert devices.numbers == (0,)
    assert devices.cores == (0, 1)
    assert devices.to_facts() == {
        "neuronDevices": "1",
        "neuronCores": "2",
        "deviceMemoryBytes": "unknown",
        "instanceType": "inf2.xlarge",
        "driver": "2.22.2.0",
    }


def test_neuron_ls_tells_the_memory(tmp_path: Path) -> None:
    """Of one device; the kernel's files don't have it."""
    devices = found(tree(tmp_path, DEVICE_FILES), document("neuron-ls.json"))
    assert devices.cores == (0, 1)
    assert devices.to_facts()["deviceMemoryBytes"] == "34359738368"


def test_neuron_ls_numbers_the_cores(tmp_path: Path) -> None:
    """Of the devices that it lists, those count that this container was given, by the numbers that the runtime uses."""
    root = tree(tmp_path, {"proc/devices": "241 neuron\n", "dev/neuron15": ""})
    devices = found(root, document("neuron-ls-trn2.json"))
    assert devices.cores == (60, 61, 62, 63)
    assert devices.to_facts()["neuronCores"] == "4, 2 physical cores each"


def test_other_processes_on_the_device_are_counted() -> None:
    """This process is none of them; where it isn't listed itself, the numbers are not those of this container."""
    listed = parse_listing(document("neuron-ls-trn2.json"))
    alone = [one for one in listed if one.neuron_device == 15]
    shared = [one.model_copy(update={"neuron_processes": [*one.neuron_processes, Process(pid=7)]}) for one in alone]
    assert neighbours(listed, (15,), 113_985) == 0
    assert neighbours(shared, (15,), 113_985) == 1
    assert neighbours(listed, (15,), 1) is None
    assert neighbours(listed, (0,), 1) is None


@pytest.mark.parametrize("text", ["", "[", "{}", '[{"neuron_device": "x"}]', "null", "usage: neuron-ls"])
def test_a_listing_that_makes_no_sense_lists_nothing(text: str) -> None:
    """Another release's format is no failure: the kernel's files remain."""
    assert parse_listing(text) == []


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "/proc/devices"),
        ({"proc/devices": "Character devices:\n  1 mem\n 10 neuronal\n", "dev/neuron0": ""}, "/proc/devices"),
        ({"proc/devices": "241 neuron\n", "dev/null": ""}, "/dev/neuron*"),
    ],
)
def test_without_a_device_nothing_heavy_is_imported(tmp_path: Path, files: dict[str, str], words: str) -> None:
    """The failure comes from the kernel's files alone; libraries would only warn, and yield nothing."""
    tree(tmp_path, files)
    with pytest.raises(RunnerError, match=r"aws\.amazon\.com/neuron") as caught:
        find_devices(tmp_path)
    assert caught.value.reason is FailureReason.DEVICE_NOT_FOUND
    assert words in str(caught.value)
    assert find_devices(tmp_path, required=False) is None


def test_a_driver_that_does_not_answer_is_no_device(tmp_path: Path) -> None:
    """`neuron-ls` says so on standard error."""
    with pytest.raises(RunnerError, match="Unable to read device information") as caught:
        find_devices(tree(tmp_path, DEVICE_FILES), lambda: "Error: Unable to read device information from the driver")
    assert caught.value.reason is FailureReason.DEVICE_NOT_FOUND


@pytest.mark.parametrize(
    ("text", "cores"), [("0", (0,)), ("2-4", (2, 3, 4)), ("0,2-3", (0, 2, 3)), ("", ()), ("all", ()), ("1-", (1,))]
)
def test_lists_of_cores(text: str, cores: tuple[int, ...]) -> None:
    """A number, a range, a list of both; anything else names no core."""
    assert cores_in(text) == cores


@pytest.mark.parametrize(
    ("device", "concurrency", "before", "taken"),
    [
        ({}, 1, None, "0"),
        ({"cores": 2}, 1, None, "0-1"),
        ({}, 2, None, "0-1"),
        ({}, 1, "5", "5"),
        ({}, 2, "3,5-6", "3,5"),
    ],
)
def test_the_runtime_sees_the_cores_that_the_plan_needs(
    tmp_path: Path, device: dict[str, Any], concurrency: int, before: str | None, taken: str
) -> None:
    """One block of cores for each call in flight, among those that a scheduler has left."""
    environment = {VISIBLE: before} if before else {}
    wanted = neuron_plan(device=device, measurement={"load": {"concurrency": concurrency}})
    claim(wanted, found(tree(tmp_path, DEVICE_FILES)), environment)
    assert environment[VISIBLE] == taken


@pytest.mark.parametrize(
    ("device", "concurrency", "before", "words"),
    [
        ({"cores": 3}, 1, None, ["device.cores: 3 is more than the 2"]),
        ({"cores": 2}, 2, None, ["2 for each of 2 copies", "measurement.load.concurrency"]),
        ({}, 3, None, ["1 for each of 3 copies"]),
        ({"cores": 2}, 1, "1", ["more than the 1 there are"]),
    ],
)
def test_more_cores_than_there_are_is_an_invalid_plan(
    tmp_path: Path, device: dict[str, Any], concurrency: int, before: str | None, words: list[str]
) -> None:
    """The sentence names the field, both numbers and the way out, and the runtime is not set up."""
    environment = {VISIBLE: before} if before else {}
    wanted = neuron_plan(device=device, measurement={"load": {"concurrency": concurrency}})
    with pytest.raises(RunnerError) as caught:
        claim(wanted, found(tree(tmp_path, DEVICE_FILES)), environment)
    assert caught.value.reason is FailureReason.INVALID_PLAN
    assert all(word in str(caught.value) for word in words)
    assert environment.get(VISIBLE) == before


@pytest.mark.parametrize(
    ("instance", "expected"),
    [
        ("inf2.xlarge", "inf2"), ("Trn1", "trn1"), ("trn1n.32xlarge", "trn1n"), ("trn2n.48xlarge", "trn2"),
        ("inf1.2xlarge\n", "inf1"), ("c6i.4xlarge", None), ("trn3.large", None), ("", None),
    ],
)  # fmt: skip
def test_instance_types_and_their_family(instance: str, expected: str | None) -> None:
    """The compiler is told a family; of what it can't be told, there is none."""
    assert family(instance) == expected


def test_the_target_is_the_named_one_or_the_devices(tmp_path: Path) -> None:
    """An option comes before the environment, and that before the device."""
    devices = found(tree(tmp_path, DEVICE_FILES))
    assert choose_target(None, devices, {}) == "inf2"
    assert choose_target(None, devices, {OVERRIDE: "trn1"}) == "trn1"
    assert choose_target("trn2", None, {OVERRIDE: "trn1"}) == "trn2"
    with pytest.raises(RunnerError, match="--target: no Neuron device"):
        choose_target(None, None, {})
    with pytest.raises(RunnerError, match=r"--target: p5 is no family.*inf2"):
        choose_target("p5", None, {})


@pytest.mark.parametrize(
    "files",
    [
        {"neuron_core0/stats/other_info/inference_count": "41\n"},
        # A release that makes a counter of it, and one that moves it.
        {"neuron_core0/stats/other_info/inference_count/total": "41\n", "neuron_core0/stats/x/present": "1\n"},
        {"stats/neuron_core0/execution/inference_count/total": "41\n"},
    ],
)
def test_counters_are_found_wherever_the_driver_puts_them(tmp_path: Path, files: dict[str, str]) -> None:
    """Releases of the driver have moved them: the name is what stays."""
    folder = "sys/devices/virtual/neuron_device/neuron0"
    device = {"proc/devices": "241 neuron\n", "dev/neuron0": ""}
    files = {f"{folder}/{name}": text for name, text in files.items()}
    counters = Counters.of(found(tree(tmp_path, device | files)), (0,))
    assert sum(counters.counts().values()) == 41
    assert counters.memory_bytes() is None


def test_only_the_cores_that_this_process_holds_count(tmp_path: Path) -> None:
    """A neighbour's work on another core of the device is no proof; cores are in the order of their numbers."""
    folder = "sys/devices/virtual/neuron_device/neuron0"
    files = {f"{folder}/neuron_core{core}/stats/other_info/inference_count": f"{core}00\n" for core in range(12)}
    device = {"proc/devices": "241 neuron\n", "dev/neuron0": "", f"{folder}/core_count": "12\n"}
    devices = found(tree(tmp_path, device | files))
    assert Counters.of(devices, (2,)).counts() == {2: 200}
    assert Counters.of(devices, (2, 10)).counts() == {2: 200, 10: 1000}


def test_where_cores_can_not_be_told_apart_all_count(tmp_path: Path) -> None:
    """Two physical cores in each logical one have counters of their own."""
    folder = "sys/devices/virtual/neuron_device/neuron0"
    files = {f"{folder}/neuron_core{core}/stats/other_info/inference_count": "1\n" for core in range(8)}
    devices = found(
        tree(tmp_path, {"proc/devices": "241 neuron\n", "dev/neuron0": ""} | files), document("neuron-ls-trn2.json")
    )
    assert devices.cores == (0, 1, 2, 3)
    assert Counters.of(devices, (0,)).counts() == {None: 8}


def test_memory_is_that_of_the_cores_in_use(tmp_path: Path) -> None:
    """What is in use on the device, in bytes."""
    devices = found(tree(tmp_path, DEVICE_FILES))
    assert Counters.of(devices, (0, 1)).memory_bytes() == 3 * 2**20
    assert Counters.of(devices, (1,)).memory_bytes() == 2 * 2**20
