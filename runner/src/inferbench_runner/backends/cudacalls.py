"""What one call on a CUDA device does, from host tensors to host tensors.

    inputs on the host ──copy──> device ──[begin] forward [end]──> outputs on the device ──copy──> host, synchronised

The forward pass is either the model's own, which makes its tensors anew each time, or the replay of a graph, which
reads and writes the same ones: those a copy fills before, and another empties after it.

Between the two marks the device also waits for a host that is slower than itself, so that without a graph the time of
a small model is in part the host's. The replay of a graph is the device's work and little else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Final, TypeAlias

import torch

from inferbench_runner.backends.cuda import Cuda, Timer
from inferbench_runner.backends.endtoend import Forward
from inferbench_runner.backends.inductor import peak_memory_mebibytes
from inferbench_runner.backends.inputs import Inputs
from inferbench_runner.backends.tasks import Model, Task
from inferbench_runner.clock import now_ns, to_milliseconds
from inferbench_runner.contract import AcceleratorKind, Compilation
from inferbench_runner.errors import CompileFailedError, DeviceUnusedError, RunnerError

COMPILER: Final = f"CUDA graphs of torch {torch.__version__}"

WARMUPS: Final = 3
"""Calls before a graph is recorded: libraries choose their kernels and make their workspaces in the first ones, and a
graph that was recorded after one or two is slow at its second replay."""

ARGUMENTS: Final = f"warmups={WARMUPS}"

Step: TypeAlias = Callable[[Inputs], Model]
"""Takes inputs on the host, and leaves its output on the device."""

Kind: TypeAlias = frozenset[tuple[str, tuple[int, ...], torch.dtype]]
"""What a graph is good for: the inputs' names, dimensions and formats."""


@dataclass(frozen=True)
class Direct:
    """A forward pass that makes its tensors anew."""

    cuda: Cuda
    timer: Timer
    model: Callable[..., Model]

    def __call__(self, inputs: Inputs) -> Model:
        """Copy the inputs to the device, and run."""
        moved = self.upload(inputs)
        self.timer.start()
        output = self.model(**moved)
        self.timer.stop()
        return output

    def upload(self, inputs: Inputs) -> Inputs:
        """Return the inputs on the device."""
        return {name: self.cuda.upload(tensor) for name, tensor in inputs.items()}


@dataclass(frozen=True)
class Recorded:
    """One graph with the tensors that it reads and writes."""

    inputs: Inputs
    replay: Callable[[], None]
    output: Model


@dataclass(frozen=True)
class Graphs:
    """Graphs of one shape: one for each kind of inputs, since a tokenizer may yield others than those of a call."""

    direct: Direct
    _recorded: dict[Kind, Recorded] = field(default_factory=dict)

    def __call__(self, inputs: Inputs) -> Model:
        """Copy the inputs to where the graph reads them, and replay it."""
        recorded = self._recorded.get(_kind(inputs)) or self.record(inputs)
        for name, tensor in inputs.items():
            recorded.inputs[name].copy_(tensor)
        timer = self.direct.timer
        timer.start()
        recorded.replay()
        timer.stop()
        return recorded.output

    def record(self, inputs: Inputs) -> Recorded:
        """Record a graph for inputs of this kind."""
        cuda, model, fixed = self.direct.cuda, self.direct.model, self.direct.upload(inputs)
        with cuda.stream():
            for _ in range(WARMUPS):
                model(**fixed)
        recorded = Recorded(fixed, *cuda.capture(lambda: model(**fixed)))
        self._recorded[_kind(inputs)] = recorded
        return recorded


def timed_record(record: Callable[[], object]) -> Compilation:
    """Record a graph, and tell what that took.

    Raises:
        CompileFailedError: The model does what a graph can't hold, such as a decision that the host takes.
    """
    begun = now_ns()
    try:
        record()
    except RunnerError:
        raise
    except Exception as error:
        raise CompileFailedError(COMPILER, f"{type(error).__name__}: {error}") from error
    return Compilation(
        milliseconds=to_milliseconds(now_ns() - begun),
        peak_memory_mebibytes=peak_memory_mebibytes(),
        compiler=COMPILER,
        arguments=ARGUMENTS,
    )


def returning(step: Step, cuda: Cuda, task: Task) -> Forward:
    """Return the step with what makes it a whole call: the task's outputs on the host, and nothing left to be done."""

    def call(inputs: Inputs) -> Model:
        output = step(inputs)
        require_places(output, task, cuda)
        found = SimpleNamespace(**{name: cuda.download(tensor) for name, tensor in _outputs(output, task)})
        cuda.synchronize()
        return found

    return call


def require_places(output: Model, task: Task, cuda: Cuda) -> None:
    """Raise `DeviceUnusedError` unless the task's outputs are on the device: a look at them costs no time."""
    for _, tensor in _outputs(output, task):
        if tensor.device.type != cuda.place:
            raise DeviceUnusedError(AcceleratorKind.NVIDIA, f"the model's output is on {tensor.device.type}")


def _outputs(output: Model, task: Task) -> list[tuple[str, torch.Tensor]]:
    """Return the task's outputs by name; one that is absent is for the output gate to name."""
    found = [(name, getattr(output, name, None)) for name in task.outputs]
    return [(name, tensor) for name, tensor in found if isinstance(tensor, torch.Tensor)]


def _kind(inputs: Inputs) -> Kind:
    return frozenset((name, tuple(tensor.shape), tensor.dtype) for name, tensor in inputs.items())
