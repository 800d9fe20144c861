"""The host in the place of a CUDA device, which writes down what it is asked, and a library without its driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from inferbench_runner.backends.base import Source
from inferbench_runner.backends.cuda import Properties
from inferbench_runner.backends.nvidia import NVIDIABackend, NVIDIAModel
from inferbench_runner.backends.nvml import Monitor
from test_runner.builders import host, plan
from test_runner.tiny import SMALL

UUID = "8a4d3f64-0e0e-4b4c-9c1e-111111111111"


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

    place: str = "cpu"
    capability: tuple[int, int] = (9, 0)
    step_ns: int = 1000
    peak: int = 7 * 2**20
    log: list[str] = field(default_factory=list)

    @property
    def properties(self) -> Properties:
        """What identifies the device."""
        return Properties("Fake GPU", UUID, self.capability)

    def move(self, model: Any, dtype: torch.dtype) -> Any:  # noqa: ANN401  # a model
        """Convert the model, and write down its forward passes from now on."""
        self.log.append("move")
        moved = model.to(dtype)
        forward = moved.forward

        @wraps(forward)
        def logged(**inputs: torch.Tensor) -> Any:  # noqa: ANN401  # an output
            if not torch.compiler.is_compiling():
                self.log.append("forward")
            return forward(**inputs)

        moved.forward = logged
        return moved

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy."""
        self.log.append("upload")
        return tensor.clone()

    def download(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy."""
        self.log.append("download")
        return tensor.clone()

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


class FakeNVMLError(Exception):
    """What NVML raises for whatever it doesn't do."""


def fake_nvml(**answers: Any) -> ModuleType:  # noqa: ANN401  # by function
    """Return a stand-in for the module `pynvml` whose functions give these answers, and refuse where they are None.

    An answer that can be called is given the arguments.
    """
    module = ModuleType("pynvml")
    found: dict[str, Any] = FULL | answers
    for name, answer in found.items():
        setattr(module, name, _function(answer))
    module.NVMLError = FakeNVMLError  # type: ignore[attr-defined]
    module.NVML_CLOCK_SM = 1  # type: ignore[attr-defined]
    return module


def process(pid: int, memory: int | None = None) -> SimpleNamespace:
    """Return a process as NVML lists it."""
    return SimpleNamespace(pid=pid, usedGpuMemory=memory)


def _function(answer: Any) -> Callable[..., Any]:  # noqa: ANN401  # by function
    def function(*arguments: object) -> Any:  # noqa: ANN401  # by function
        if answer is None:
            raise FakeNVMLError
        return answer(*arguments) if callable(answer) else answer

    return function


def _by_uuid(name: str) -> str:
    if name != f"GPU-{UUID}":
        raise FakeNVMLError
    return "handle"


FULL: dict[str, Any] = {
    "nvmlInit": lambda: None,
    "nvmlDeviceGetHandleByUUID": _by_uuid,
    "nvmlDeviceIsMigDeviceHandle": 0,
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": None,
    "nvmlSystemGetDriverVersion": "580.65.06",
    "nvmlSystemGetCudaDriverVersion_v2": 13020,
    "nvmlDeviceGetEnforcedPowerLimit": 300_000,
    "nvmlDeviceGetTotalEnergyConsumption": 1_000_000,
    "nvmlDeviceGetClockInfo": 1980,
    "nvmlDeviceGetMaxClockInfo": 1980,
    "nvmlDeviceGetCurrentClocksEventReasons": 0,
    "nvmlDeviceGetCurrentClocksThrottleReasons": None,
    "nvmlDeviceGetViolationStatus": None,
    "nvmlDeviceGetComputeRunningProcesses": [],
    "nvmlSystemGetProcessName": "python",
    "nvmlDeviceGetMigMode": [0, 0],
}
"""A device that tells nearly everything, has nothing to do and nobody on it."""
