"""The device as the back end sees it, and `torch.cuda` behind it: thin, because only a machine with a GPU can run it.

Everything that decides something is elsewhere, and is tested with another `Cuda` in the place of this one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol

import torch

from inferbench_runner.backends.cuda_errors import typed_error
from inferbench_runner.backends.tasks import Model
from inferbench_runner.contract import AcceleratorKind
from inferbench_runner.errors import DeviceNotFoundError

DEVICE: Final = "cuda:0"
"""The first of those that CUDA may see; the pod was given it."""

NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True)
class Properties:
    """What identifies a device, and what it can do."""

    name: str
    uuid: str
    """As CUDA writes it: 32 digits and no prefix."""
    capability: tuple[int, int]


class Timer(Protocol):
    """Marks two points of the current stream; each thread has marks of its own."""

    def start(self) -> None:
        """Mark the beginning."""
        ...

    def stop(self) -> None:
        """Mark the end."""
        ...

    def elapsed_ns(self) -> int:
        """Return the device's time between this thread's last marks, once the stream has passed them."""
        ...


class Cuda(Protocol):
    """One device."""

    @property
    def place(self) -> str:
        """The library's word for where its tensors are."""
        ...

    @property
    def properties(self) -> Properties:
        """What identifies the device."""
        ...

    def move(self, model: Model, dtype: torch.dtype) -> Model:
        """Move a model's weights to the device, in another format."""
        ...

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the device."""
        ...

    def download(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the host."""
        ...

    def synchronize(self) -> None:
        """Wait until the current stream has done all its work."""
        ...

    def timer(self) -> Timer:
        """Return a timer of the device's own."""
        ...

    def stream(self) -> AbstractContextManager[None]:
        """Return a context whose work goes to a stream that nobody else uses meanwhile."""
        ...

    def capture(self, step: Callable[[], Model]) -> tuple[Callable[[], None], Model]:
        """Record a step as a graph; return what replays it, and the output that each replay writes anew."""
        ...

    def reset_peak(self) -> None:
        """Forget the peak of the memory."""
        ...

    def peak_bytes(self) -> int:
        """Return the most memory that tensors took up at a time."""
        ...


class TorchTimer(threading.local):
    """Two events of CUDA's for each thread that uses it."""

    def __init__(self) -> None:
        """Make this thread's events."""
        self._begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def start(self) -> None:
        """Mark the beginning."""
        self._begin.record()

    def stop(self) -> None:
        """Mark the end."""
        self._end.record()

    def elapsed_ns(self) -> int:
        """Return the time between the marks; CUDA tells it in milliseconds, with a resolution of half a microsecond."""
        return round(float(self._begin.elapsed_time(self._end)) * NS_PER_MS)


class TorchCuda:
    """The first visible device, by way of PyTorch."""

    place: Final = "cuda"

    def __init__(self) -> None:
        """Make the device ready.

        Raises:
            RunnerError: This build of PyTorch has no CUDA, or CUDA finds no device that it can use.
        """
        if torch.version.cuda is None:
            raise DeviceNotFoundError(
                AcceleratorKind.NVIDIA,
                f"PyTorch {torch.__version__} of this runner image is built without CUDA",
                "set runner.image to one with a CUDA build, or measure on CPU",
            )
        try:
            # The first tensor makes the context: only now it shows whether the device lets us in.
            torch.zeros(1, device=DEVICE)
        except RuntimeError as error:
            if typed := typed_error(error):
                raise typed from error
            raise
        self._idle: list[torch.cuda.Stream] = []

    @cached_property
    def properties(self) -> Properties:
        """What identifies the device."""
        found = torch.cuda.get_device_properties(DEVICE)
        return Properties(found.name, str(found.uuid), (found.major, found.minor))

    def move(self, model: Model, dtype: torch.dtype) -> Model:
        """Move a model's weights to the device, in another format."""
        return model.to(device=DEVICE, dtype=dtype)

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the device."""
        return tensor.to(DEVICE)

    def download(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the host."""
        return tensor.to("cpu")

    def synchronize(self) -> None:
        """Wait until the current stream has done all its work."""
        torch.cuda.current_stream().synchronize()

    def timer(self) -> Timer:
        """Return a timer that marks with events."""
        return TorchTimer()

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Work on a stream of one's own, after what the current one has to do, and before what it gets to do."""
        outer = torch.cuda.current_stream()
        # Used again, because the memory that a stream has taken is kept for it.
        try:
            mine = self._idle.pop()
        except IndexError:
            mine = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        mine.wait_stream(outer)
        try:
            with torch.cuda.stream(mine):
                yield
        finally:
            outer.wait_stream(mine)
            self._idle.append(mine)

    def capture(self, step: Callable[[], Model]) -> tuple[Callable[[], None], Model]:
        """Record a step as a graph."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = step()
        return graph.replay, output

    def reset_peak(self) -> None:
        """Forget the peak of the memory."""
        torch.cuda.reset_peak_memory_stats()

    def peak_bytes(self) -> int:
        """Return the most memory that tensors took up at a time."""
        return torch.cuda.max_memory_allocated()
