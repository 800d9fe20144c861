"""What `neuron-monitor` says, and that it never outlives the question, whatever it or the call does."""

from __future__ import annotations

import json

import pytest

from inferbench_runner.backends.neuron import monitor
from inferbench_runner.backends.neuron.monitor import device_latency, is_there, parse_report, witnessed
from test_runner.neuron import DOCUMENTS, Machine, monitored


def test_the_monitors_report_is_read_process_by_process() -> None:
    """Executions and the latencies on the device; a process that did nothing has no latencies."""
    report = parse_report((DOCUMENTS / "neuron-monitor.json").read_text(encoding="utf-8"))
    assert report is not None
    worked, idle = report.of(4242), report.of(4243)
    assert worked is not None
    assert idle is not None
    assert worked.execution_summary.completed == 123
    assert worked.latency_stats
    assert worked.latency_stats.device_latency is not None
    assert worked.latency_stats.device_latency.p50 == 0.01000008
    assert worked.latency_stats.device_latency.p99 == 0.01000012
    assert idle.execution_summary.completed == 0
    assert idle.latency_stats
    assert idle.latency_stats.device_latency is None
    assert report.of(1) is None
    assert parse_report("neuron-monitor: warming up") is None


@pytest.mark.parametrize("latency", [(-0.001, 0.002), (float("nan"), 0.002), (0.001, 86_401), None])
def test_times_that_can_not_be_are_left_out(latency: tuple[float, float] | None) -> None:
    """What a result can't take is not let in, and the executions beside it still count."""
    line = monitored(latency=(0.001, 0.002))
    document = json.loads(line)
    runtime = document["neuron_runtime_data"][0]
    stats = runtime["report"]["execution_stats"]["latency_stats"]
    assert stats["device_latency"]
    stats["device_latency"] = dict(zip(("p50", "p99"), latency or (None, "soon"), strict=True))
    odd = {"pid": 1, "report": {"execution_stats": {"execution_summary": "none"}}}
    document["neuron_runtime_data"].append(odd)
    report = parse_report(json.dumps(document))
    assert report
    found = report.of(runtime["pid"])
    assert found
    assert found.execution_summary.completed > 0
    assert found.latency_stats
    assert found.latency_stats.device_latency is None
    assert report.of(1) is None


def test_without_room_for_its_settings_the_monitor_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a witness and no need: neither a full disk nor its absence fails a shape."""
    full = OSError(28, "No space left on device")

    def refuse(*_: object, **__: object) -> None:
        raise full

    monkeypatch.setattr(monitor, "TemporaryDirectory", refuse)
    monkeypatch.setattr(monitor, "is_there", lambda: True)
    assert device_latency(lambda: None) is None
    assert witnessed(lambda: 7) == (7, None)


@pytest.mark.parametrize("seen", [True, False])
def test_the_monitor_is_asked_while_a_call_runs(neuron: Machine, *, seen: bool) -> None:
    """The first report that has an execution of this process is the evidence; others' executions are none."""
    others = [monitored(1), "neuron-monitor: warming up", monitored(2), monitored(executed=0)]
    asked = neuron.monitor(*others, monitored() if seen else monitored(3))
    output, stats = witnessed(lambda: "output")
    assert output == "output"
    assert (stats is not None) is seen
    assert len(asked.started) == 1
    assert not asked.running


def test_the_devices_time_is_that_of_the_first_report_that_has_it(neuron: Machine) -> None:
    """Of this process, whose call is made until then; p50 and p99 are kept, in microseconds."""
    called = neuron.root / "called"
    lines = [monitored(1, latency=(9, 9)), monitored(), monitored(latency=(0.0010004, 0.0019996))]
    asked = neuron.monitor(*lines, first=f"until [ -e '{called}' ]; do sleep 0.01; done")
    found = device_latency(called.touch)
    assert found is not None
    assert (found.p50_microseconds, found.p99_microseconds) == (1000, 2000)
    assert len(asked.started) == 1
    assert not asked.running


def test_three_reports_without_it_are_enough(neuron: Machine) -> None:
    """No fourth one is waited for, though the monitor would go on."""
    asked = neuron.monitor(*[monitored()] * 3, monitored(latency=(0.001, 0.002)))
    assert device_latency(lambda: None) is None
    assert asked.started
    assert not asked.running


def test_a_call_that_fails_ends_the_monitor_too(neuron: Machine) -> None:
    """And its failure is the caller's."""
    asked = neuron.monitor()
    with pytest.raises(ZeroDivisionError):
        device_latency(lambda: 1 // 0 if asked.started else 0)
    assert not asked.running


@pytest.mark.parametrize(
    "then",
    [
        pytest.param("exec sleep 600", id="it says nothing"),
        pytest.param('sleep 600 & echo $! >> "$log"; wait', id="its child has its pipe"),
        pytest.param("trap '' TERM; sleep 600; sleep 600", id="it does not want to end"),
        pytest.param("exit 1", id="it ends by itself"),
    ],
)
def test_a_monitor_that_is_no_use_is_ended(neuron: Machine, monkeypatch: pytest.MonkeyPatch, then: str) -> None:
    """Nobody waits for it for long, and nothing of it is left."""
    monkeypatch.setattr(monitor, "SILENCE_SECONDS", 1)
    monkeypatch.setattr(monitor, "LEAVE_SECONDS", 1)
    asked = neuron.monitor(then=then)
    assert device_latency(lambda: None) is None
    assert witnessed(lambda: 1) == (1, None)
    assert asked.started
    assert not asked.running


def test_a_program_that_can_not_be_run_is_none(neuron: Machine) -> None:
    """A figure that is good to have is no reason to fail."""
    neuron.program("neuron-monitor", "\0")
    assert device_latency(lambda: None) is None


def test_without_a_monitor_nobody_is_asked(neuron: Machine) -> None:
    """The call to be witnessed is made all the same; none is made for a time that nobody tells."""
    assert not any(neuron.programs.iterdir())
    assert not is_there()
    assert witnessed(lambda: 1) == (1, None)
    assert device_latency(lambda: 1 // 0) is None
