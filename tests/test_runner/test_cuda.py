"""The thin layer over `torch.cuda`: what of it can be known without a GPU."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("torch", reason="install the torch extra to test the layer over it")

import torch

from inferbench_runner.backends.cuda import Cuda, TorchCuda, TorchTimer
from inferbench_runner.contract import FailureReason
from inferbench_runner.errors import RunnerError
from test_runner.fake_cuda import FakeCuda

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (torch.cuda.Event, {"enable_timing": True}),
        (torch.cuda.Event.record, {"self": None}),
        (torch.cuda.Event.elapsed_time, {"self": None, "end_event": None}),
        (torch.cuda.Stream, {}),
        (torch.cuda.Stream.wait_stream, {"self": None, "stream": None}),
        (torch.cuda.Stream.synchronize, {"self": None}),
        (torch.cuda.stream, {"stream": None}),
        (torch.cuda.current_stream, {}),
        (torch.cuda.graph, {"cuda_graph": None}),
        (torch.cuda.CUDAGraph.replay, {"self": None}),
        (torch.cuda.get_device_properties, {"device": "cuda:0"}),
        (torch.cuda.reset_peak_memory_stats, {}),
        (torch.cuda.max_memory_allocated, {}),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_pytorch_has_each_function_as_it_is_called(function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """A function that is renamed, or wants more, is noticed where no GPU can tell."""
    inspect.signature(function).bind(**arguments)


def test_pytorch_tells_what_identifies_a_device() -> None:
    """Name, capability and UUID are attributes of the properties."""
    kind = torch._C._CudaDeviceProperties  # noqa: SLF001  # their only type
    assert {"name", "major", "minor", "uuid"} <= set(dir(kind))


def test_running_out_of_memory_is_a_runtime_error() -> None:
    """The types that PyTorch has for a device's failures are caught as such."""
    assert issubclass(torch.OutOfMemoryError, RuntimeError)
    assert issubclass(torch.AcceleratorError, RuntimeError)


def test_the_stand_in_has_the_same_functions() -> None:
    """What tests put in the place of the device takes what the device takes."""
    for name in (name for name in vars(Cuda) if not name.startswith("_")):
        real, fake = getattr(TorchCuda, name), getattr(FakeCuda, name, None)
        if callable(real) and not isinstance(real, property):
            assert callable(fake), name
            assert list(inspect.signature(real).parameters) == list(inspect.signature(fake).parameters), name


@NO_GPU
def test_without_a_device_there_is_a_typed_failure() -> None:
    """PyTorch's own words are quoted, with what to do; nothing is computed on the host instead."""
    with pytest.raises(RunnerError, match=r"device\.kind.*nvidia\.com/gpu") as caught:
        TorchCuda()
    assert caught.value.reason is FailureReason.DEVICE_NOT_FOUND


def test_a_build_without_cuda_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image is what has to change, and not the node."""
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(RunnerError, match=r"built without CUDA; set runner\.image") as caught:
        TorchCuda()
    assert caught.value.reason is FailureReason.DEVICE_NOT_FOUND


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", FailureReason.DEVICE_BUSY),
        ("The NVIDIA driver on your system is too old (found version 11040).", FailureReason.RUNTIME_INCOMPATIBLE),
    ],
)
def test_a_device_that_lets_nobody_in_is_typed(
    monkeypatch: pytest.MonkeyPatch, words: str, reason: FailureReason
) -> None:
    """The context is made at once, so that its failure is one of the probe and not of the first shape."""
    asked: list[object] = []

    def zeros(*_: object, device: str) -> None:
        asked.append(device)
        raise RuntimeError(words)

    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(torch, "zeros", zeros)
    with pytest.raises(RunnerError) as caught:
        TorchCuda()
    assert (caught.value.reason, asked) == (reason, ["cuda:0"])


@dataclass
class RecordedEvent:
    """An event that writes down the thread that it was recorded in."""

    enable_timing: bool
    threads: list[int] = field(default_factory=list)

    def record(self) -> None:
        """Write it down."""
        self.threads.append(threading.get_ident())

    def elapsed_time(self, end: RecordedEvent) -> float:
        """Return milliseconds."""
        assert self.enable_timing
        assert end.enable_timing
        return 1.5 * len(self.threads) * len(end.threads)


def test_each_thread_has_events_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one thread marks doesn't move another's marks; milliseconds become nanoseconds."""
    monkeypatch.setattr(torch.cuda, "Event", RecordedEvent)
    timer = TorchTimer()
    found: list[int] = []

    def work() -> None:
        timer.start()
        timer.stop()
        found.append(timer.elapsed_ns())

    work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [1_500_000, 1_500_000]


@dataclass
class RecordedStream:
    """A stream that writes down what it waits for."""

    waited: list[RecordedStream] = field(default_factory=list)

    def wait_stream(self, stream: RecordedStream) -> None:
        """Write it down."""
        self.waited.append(stream)


def test_a_stream_waits_for_the_work_before_it_and_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins after the current stream's work, which goes on after the stream's own; two at a time are different."""
    outer, entered = RecordedStream(), []

    def enter(stream: RecordedStream) -> nullcontext[None]:
        entered.append(stream)
        return nullcontext()

    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "Stream", RecordedStream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: outer)
    monkeypatch.setattr(torch.cuda, "stream", enter)
    cuda = TorchCuda()
    with cuda.stream():
        assert [stream is outer for stream in entered[0].waited] == [True]
        assert outer.waited == []
        with cuda.stream():
            assert entered[1] is not entered[0]
    assert [stream is one for stream, one in zip(outer.waited, (entered[1], entered[0]), strict=True)] == [True, True]
    with cuda.stream():
        assert any(entered[2] is one for one in entered[:2])


def test_a_capture_holds_the_step_and_replays_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step runs once, inside the capture; what is returned replays this very graph."""
    log: list[str] = []

    class Graph:
        def replay(self) -> None:
            log.append("replay")

    class Capture:
        def __init__(self, graph: Graph) -> None:
            assert isinstance(graph, Graph)

        def __enter__(self) -> None:
            log.append("begin")

        def __exit__(self, *_: object) -> None:
            log.append("end")

    def step() -> str:
        log.append("step")
        return "output"

    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", Capture)
    replay, output = TorchCuda().capture(step)
    replay()
    assert (output, log) == ("output", ["begin", "step", "end", "replay"])
