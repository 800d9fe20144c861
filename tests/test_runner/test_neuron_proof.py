"""Proof that Neuron cores did the work: every copy by the counters of its own cores, or by `neuron-monitor`."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="install the torch extra to test the Neuron back end")

from inferbench_runner.backends.neuron.copies import Copies
from inferbench_runner.backends.neuron.counters import Counters
from inferbench_runner.backends.neuron.devices import VISIBLE, find_devices
from inferbench_runner.backends.neuron.making import Graph
from inferbench_runner.backends.neuron.witness import Witness
from inferbench_runner.contract import FailureReason, Phase
from inferbench_runner.errors import RunnerError
from inferbench_runner.measure import closed_loop
from test_runner.builders import tree
from test_runner.neuron import Machine, carried_out, monitored, shapes

pytestmark = pytest.mark.filterwarnings("ignore:No Neuron device")


@pytest.mark.parametrize(
    ("cores", "work", "words"),
    [
        pytest.param((0, 1), (1,), "", id="one core of the block's two has worked"),
        pytest.param((0, 1), (2,), "the copy for cores 0 and 1 ran on core 2", id="another block's core has"),
        pytest.param((2, 3), (0, 1), "the copy for cores 2 and 3 ran on cores 0 and 1", id="the other block has"),
        pytest.param((2, 3), (7,), "it did nothing", id="another process has, on a core that is not held"),
    ],
)
def test_a_copy_is_proved_by_its_own_cores(
    tmp_path: Path, cores: tuple[int, ...], work: tuple[int, ...], words: str
) -> None:
    """Whatever else is counted meanwhile is no proof of this copy, and the sentence names both blocks."""
    folder = "sys/devices/virtual/neuron_device/neuron0"
    names = [f"{folder}/neuron_core{core}/stats/other_info/inference_count" for core in range(8)]
    device = {"proc/devices": "241 neuron\n", "dev/neuron0": "", f"{folder}/core_count": "8\n"}
    devices = find_devices(tree(tmp_path, device | dict.fromkeys(names, "7\n")), str)
    assert devices is not None
    witness = Witness(Counters.of(devices, range(4)), cores)

    def call() -> str:
        tree(tmp_path, {names[core]: "8\n" for core in work})
        return "output"

    with pytest.raises(RunnerError, match=words) if words else nullcontext():
        assert witness.watch(call, frozenset({"neuron"})) == "output"


def test_the_monitor_is_the_proof_where_the_counters_are_hidden(tmp_path: Path, neuron: Machine) -> None:
    """And where neither can be had, no number is accepted."""
    neuron.hide_counters()
    failed = carried_out(tmp_path, neuron).failed[0]
    assert failed.reason is FailureReason.DEVICE_NOT_FOUND
    assert "neuron-monitor" in failed.message
    neuron.monitor(*[monitored()] * 3)
    assert carried_out(tmp_path, neuron).measured == [0]


def test_arithmetic_that_the_monitor_saw_fail_is_a_mismatch(tmp_path: Path, neuron: Machine) -> None:
    """Whatever the output looks like, the device itself says that it is none."""
    neuron.hide_counters()
    neuron.monitor(monitored(executed=0, without_number=2))
    failed = carried_out(tmp_path, neuron).failed[0]
    assert (failed.phase, failed.reason) == (Phase.VERIFY, FailureReason.NUMERIC_MISMATCH)
    assert "gave no number" in failed.message
    assert "neuron-monitor counted 2 " in failed.message


def test_the_monitor_tells_the_devices_time_and_is_gone_before_the_samples(
    tmp_path: Path, neuron: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each shape, whatever the number of processes, and what it told is in the report."""
    asked = neuron.monitor(monitored(latency=(0.001, 0.002)))
    running: list[list[int]] = []

    def looked_at(*given: Any, **named: Any) -> Any:  # noqa: ANN401  # as the real one
        running.append(asked.running)
        series = closed_loop(*given, **named)
        running.append(asked.running)
        return series

    monkeypatch.setattr("inferbench_runner.worker.closed_loop", looked_at)
    ended = carried_out(tmp_path, neuron, shapes=shapes(8, 16), measurement={"processes": 2})
    assert ended.measured == [0, 1], ended.failed
    assert len(asked.started) == 2
    assert len(running) > 4
    assert not any(running)
    for details in ended.run.to_full().cells:
        assert details.device is None
        assert details.device_use is not None
        assert details.device_use.monitor_p50_microseconds == 1000
        assert details.device_use.monitor_p99_microseconds == 2000
    assert ended.run.facts["deviceLatency"].startswith("percentiles by neuron-monitor")


def test_a_device_that_fails_while_the_monitor_is_asked(tmp_path: Path, neuron: Machine) -> None:
    """The failure has its reason, and the monitor is gone."""
    fault = tmp_path / "fault"
    fault.write_text('[{"when": "call", "text": "status=101 message=Unrecoverable"}]', encoding="utf-8")
    asked = neuron.monitor(first=f"cp '{fault}' '{neuron.root}/faults.json'")
    failed = carried_out(tmp_path, neuron).failed[0]
    assert (failed.phase, failed.reason) == (Phase.MEASURE, FailureReason.HARDWARE_ERROR)
    assert asked.started
    assert not asked.running


def test_each_call_in_flight_has_a_copy_on_a_core_of_its_own(tmp_path: Path, neuron: Machine) -> None:
    """Two threads, two cores, and both have worked when it was measured."""
    ended = carried_out(tmp_path, neuron, measurement={"load": {"concurrency": 2}, "minSamples": 30})
    assert ended.measured == [0], ended.failed
    assert ended.run.facts["visibleCores"] == "0-1"
    assert ended.run.facts["copies"] == "2"
    # Two are the calls that were verified; how many more there are depends on how busy this machine is.
    assert all(count > 2 for count in neuron.executions())


def test_a_copy_on_another_copys_core_is_refused(tmp_path: Path, neuron: Machine) -> None:
    """Two copies in turn on one core would be measured as two that work side by side."""
    neuron.fail({"when": "load", "core": 0})
    failed = carried_out(tmp_path, neuron, measurement={"load": {"concurrency": 2}}).failed[0]
    assert (failed.phase, failed.reason) == (Phase.VERIFY, FailureReason.DEVICE_NOT_FOUND)
    assert "the copy for core 1 ran on core 0" in failed.message


def test_copies_are_proved_on_the_cores_that_a_scheduler_has_left(tmp_path: Path, neuron: Machine) -> None:
    """The first copy's core is the first of those that are left, and not of the device."""
    os.environ[VISIBLE] = "1"
    assert carried_out(tmp_path, neuron).measured == [0]
    assert neuron.executions()[0] == 0
    neuron.fail({"when": "load", "core": 0})
    assert "did nothing" in carried_out(tmp_path, neuron).failed[0].message


def test_no_two_threads_have_the_same_copy() -> None:
    """A copy that is given back is given out again; there are as many as calls in flight."""
    graphs = tuple(Graph((), lambda number=number: number, frozenset({"neuron"})) for number in range(2))
    copies = Copies(graphs)
    with copies.taken():
        assert copies.forward({}) == 0
        with copies.taken():
            assert copies.forward({}) == 1
    with copies.taken():
        assert copies.forward({}) == 0
