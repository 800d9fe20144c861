"""The host in the place of a CUDA device, which writes down what it is asked, and keeps its tensors apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from inferbench_runner.backends.base import Source
from inferbench_runner.backends.cuda import Properties
from inferbench_runner.backends.nvidia import NVIDIABackend, NVIDIAModel
from inferbench_runner.backends.nvml import Monitor
from inferbench_runner.contract import Shape
from test_runner.builders import host, plan
from test_runner.fake_nvml import UUID
from test_runner.on_device import move, to_device, to_host
from test_runner.tiny import SMALL

GRAPHS = {"execution": "CUDAGraphs"}
COMPILE = {"execution": "Compile"}
LEGACY = {"profile": "Legacy2023"}


@dataclass
class FakeTimer:
    """Marks that tell another time at each end: 1,000 ns more than at the one before."""

    log: list[str]
    step_ns: int = 1000
    ends: int = 0
    open: bool = True

    def start(self) -> None:
        """Mark the beginning."""
        self.log.append("start")
        self.open = True

    def stop(self) -> None:
        """Mark the end."""
        self.log.append("stop")
        self.ends += 1
        self.open = False

    def elapsed_ns(self) -> int:
        """Return the time between the marks, as CUDA does only once both are there."""
        if self.open:
            msg = "Both events must be recorded before calculating elapsed time."
            raise RuntimeError(msg)
        return self.step_ns * self.ends


@dataclass
class FakeCuda:
    """A device whose memory is the host's; a graph of it computes its step anew, into the same tensors."""

    capability: tuple[int, int] = (9, 0)
    step_ns: int = 1000
    peak: int = 7 * 2**20
    falls_back: bool = False
    """Whether all tensors stay on the host without a word."""
    log: list[str] = field(default_factory=list)

    place: Final = "cuda"

    @property
    def properties(self) -> Properties:
        """What identifies the device."""
        return Properties("Fake GPU", UUID, self.capability)

    def move(self, model: Any, dtype: torch.dtype) -> Any:  # noqa: ANN401  # a model
        """Convert the model, and write down its forward passes from now on."""
        self.log.append("move")
        moved = model.to(dtype)
        if not self.falls_back:
            move(moved, self.log)
        return moved

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the device."""
        self.log.append("upload")
        return tensor.clone() if self.falls_back else to_device(tensor.clone())

    def download(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the host."""
        self.log.append("download")
        return to_host(tensor).clone()

    def synchronize(self) -> None:
        """Write it down."""
        self.log.append("synchronize")

    def timer(self) -> FakeTimer:
        """Return a timer."""
        return FakeTimer(self.log, self.step_ns)

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Write down the stream's beginning and end."""
        self.log.append("stream")
        yield
        self.log.append("end of stream")

    def capture(self, step: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Return what computes the step anew."""
        self.log.append("capture")
        output = step()

        def replay() -> None:
            self.log.append("replay")
            for name, tensor in step().items():
                output[name].copy_(tensor)

        return replay, output

    def reset_peak(self) -> None:
        """Write it down."""
        self.log.append("reset peak")

    def peak_bytes(self) -> int:
        """Return the peak."""
        return self.peak

    def logged(self, action: Callable[[], object]) -> list[str]:
        """Return what an action asks of the device."""
        before = len(self.log)
        action()
        return self.log[before:]


def nvidia_backend(cuda: FakeCuda, monitor: Monitor | None = None, **fields: Any) -> NVIDIABackend:  # noqa: ANN401
    """Return the back end on a fake device for a plan with random weights of few words."""
    fields["model"] = {"config": SMALL} | dict(fields.get("model") or {})
    fields["device"] = {"kind": "NVIDIA"} | dict(fields.get("device") or {})
    return NVIDIABackend.on(cuda, monitor, plan(**fields), host())


def nvidia_model(cuda: FakeCuda, monitor: Monitor | None = None, **fields: Any) -> NVIDIAModel:  # noqa: ANN401
    """Return a loaded model with the references of all shapes."""
    backend = nvidia_backend(cuda, monitor, **fields)
    loaded = backend.load(backend.plan.model, Source())
    for shape in backend.plan.shapes:
        loaded.refer(shape)
    return loaded


def first(loaded: NVIDIAModel) -> Shape:
    """Return the first shape of the plan."""
    return loaded.plan.shapes[0]


def called(loaded: NVIDIAModel, shape: Shape | None = None) -> Any:  # noqa: ANN401  # an output
    """Return the output of one call as it is timed."""
    with loaded.bound(shape or first(loaded)) as bound, bound.worker():
        return bound.call()


@contextmanager
def exhausted(loaded: NVIDIAModel, error: Exception) -> Iterator[None]:
    """Let the model's forward passes on the device end like this."""

    def limited(**_: object) -> None:
        raise error

    forward = loaded._placed.forward  # noqa: SLF001  # what a device would refuse
    run, forward.run = forward.run, limited
    yield
    forward.run = run
