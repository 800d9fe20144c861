"""The NVIDIA back end: PyTorch on a CUDA device, eager, compiled or as CUDA graphs, in all four precisions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Final

import torch

from inferbench_runner.backends import cudacalls, hub, inductor
from inferbench_runner.backends.base import Bound, Call, Facts, Rows, Source
from inferbench_runner.backends.cuda import Cuda, Timer, TorchCuda
from inferbench_runner.backends.cuda_errors import typed_error
from inferbench_runner.backends.cudacalls import Direct, Graphs, Step, require_places, returning
from inferbench_runner.backends.endtoend import Forward
from inferbench_runner.backends.host import HostModel, keeps_autograd
from inferbench_runner.backends.inputs import make_inputs
from inferbench_runner.backends.libraries import mathematics, prepare_library, versions
from inferbench_runner.backends.nvml import Monitor, find_library, open_monitor
from inferbench_runner.backends.proof import Evidence, places
from inferbench_runner.backends.reference import release
from inferbench_runner.backends.tasks import Model
from inferbench_runner.backends.tf32 import allow_tf32
from inferbench_runner.contract import (
    AcceleratorKind,
    Compilation,
    Correctness,
    Execution,
    ModelRef,
    Plan,
    Precision,
    Shape,
)
from inferbench_runner.errors import OutOfMemoryError, PrecisionUnsupportedError, is_out_of_memory
from inferbench_runner.probe import Host
from inferbench_runner.usage import Usage

DTYPES: Final = {
    Precision.FP32: torch.float32,
    Precision.TF32: torch.float32,
    Precision.FP16: torch.float16,
    Precision.BF16: torch.bfloat16,
}

CAPABILITIES: Final = {
    Precision.FP32: (0, 0),
    Precision.FP16: (5, 3),
    Precision.TF32: (8, 0),
    Precision.BF16: (8, 0),
}
"""Least compute capability whose devices have arithmetic of the format, by NVIDIA's CUDA programming guide."""

INDUCTOR_ARGUMENTS: Final = "dynamic=False mode=default"

COMPILERS: Final = {
    Execution.COMPILE: {"compiler": inductor.COMPILER, "compilerArguments": INDUCTOR_ARGUMENTS},
    Execution.CUDA_GRAPHS: {"compiler": cudacalls.COMPILER, "compilerArguments": cudacalls.ARGUMENTS},
}


@dataclass(frozen=True)
class NVIDIABackend:
    """PyTorch on the first visible device."""

    plan: Plan
    cuda: Cuda
    monitor: Monitor | None
    """None where the driver's own figures can't be had."""
    facts: Facts

    @classmethod
    def prepare(cls, plan: Plan, host: Host) -> NVIDIABackend:
        """Open the device and its driver's library."""
        cuda = TorchCuda()
        return cls.on(cuda, open_monitor(cuda.properties.uuid, find_library(), os.environ), plan, host)

    @classmethod
    def on(cls, cuda: Cuda, monitor: Monitor | None, plan: Plan, host: Host) -> NVIDIABackend:
        """Refuse what the device can't compute, and fix what is global in PyTorch."""
        properties = cuda.properties
        supported = [one for one, least in CAPABILITIES.items() if properties.capability >= least]
        capability = ".".join(map(str, properties.capability))
        if plan.precision not in supported:
            who = f"{properties.name} with compute capability {capability}"
            raise PrecisionUnsupportedError(plan.precision, who, supported)
        prepare_library(plan, host)
        execution = plan.device.execution or Execution.EAGER
        facts = {
            "execution": execution,
            "autograd": "on" if keeps_autograd(plan) else "off",
            **COMPILERS.get(execution, {}),
            "device": properties.name,
            "computeCapability": capability,
            "cuda": torch.version.cuda or "none",
            "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
            **allow_tf32(allowed=plan.precision is Precision.TF32),
            **(monitor.facts if monitor else {"driver": "unknown"}),
            **versions(),
            **mathematics(),
        }
        # Until the model is on the device, the host computes what is compared with: in full precision.
        allow_tf32(allowed=False)
        return cls(plan, cuda, monitor, facts)

    def fetch(self, model: ModelRef) -> Source:
        """Bring the files of a pretrained model here."""
        return hub.fetch(model)

    def load(self, model: ModelRef, source: Source) -> NVIDIAModel:
        """Build the model on the host, which it leaves once its references are known."""
        return NVIDIAModel(HostModel.load(self.plan, model, source), self.plan, self.cuda, self.monitor)


@dataclass(frozen=True)
class NVIDIAModel:
    """A model in host memory in fp32 until the first shape is compiled or verified, then on the device."""

    host: HostModel
    plan: Plan
    cuda: Cuda
    monitor: Monitor | None
    _verified: dict[Shape, Bound] = field(default_factory=dict)
    """Calls that were verified, until they are measured: what is timed is the very call that was found to be right."""
    _graphs: dict[Shape, Graphs] = field(default_factory=dict)
    """Graphs of the shapes that are compiled and were not let go."""

    @property
    def facts(self) -> Facts:
        """Provenance of the model."""
        own = str(DTYPES[self.plan.precision]).removeprefix("torch.")
        return {
            **self.host.facts,
            "precision": "tf32" if self.plan.precision is Precision.TF32 else own,
            "deviceProof": "all weights and outputs on cuda, and time between its events, in each verified call",
        }

    @cached_property
    def _placed(self) -> Model:
        """The model on the device in the plan's precision, from the first look on."""
        self.host.references.complete()
        allow_tf32(allowed=self.plan.precision is Precision.TF32)
        moved = self.cuda.move(self.host.model, DTYPES[self.plan.precision])
        # Other streams than this one will use it.
        self.cuda.synchronize()
        return moved

    @cached_property
    def _timer(self) -> Timer:
        return self.cuda.timer()

    @cached_property
    def _direct(self) -> Direct:
        """The model, or its compiled form, called without a graph."""
        model = inductor.compiled(self._placed) if self._execution is Execution.COMPILE else self._placed
        return Direct(self.cuda, self._timer, model)

    @property
    def _execution(self) -> Execution:
        return self.plan.device.execution or Execution.EAGER

    def refer(self, shape: Shape, known: Rows | None = None) -> Rows:
        """Return the right outputs for a shape, while the weights are still on the host in full precision."""
        return self.host.references.add(shape, known)

    @property
    def compiles(self) -> bool:
        """Whether anything but the plain execution was asked for."""
        return self._execution is not Execution.EAGER

    def compile(self, shape: Shape) -> Compilation:
        """Record the graph of this shape, or compile it by calling it for the first time."""
        with typed_device():
            inputs = make_inputs(self._placed, shape, self.plan.seed)

        def first_call() -> None:
            with typed_device(), self._worker():
                self._forward(shape)(inputs)

        if self._execution is Execution.COMPILE:
            return inductor.timed(first_call, INDUCTOR_ARGUMENTS)
        with self._let_go_on_error(shape):
            return cudacalls.timed_record(first_call)

    def verify(self, shape: Shape) -> Correctness:
        """Call once as it will be timed and once with padding, and compare both outputs with their references."""
        with self._let_go_on_error(shape), typed_device():
            bound = self._bind(shape)
            with bound.worker():
                correctness = self.host.verify(shape, self._awaited(bound.call), self._forward(shape), self._watch)
        self._verified[shape] = bound
        return correctness

    def _awaited(self, call: Call) -> Call:
        """Return the call to be timed with what one as in 2023 lacks: marks, and somebody who waits for its output."""
        if not keeps_autograd(self.plan):
            return call

        def awaited() -> Model:
            self._timer.start()
            output = call()
            self._timer.stop()
            require_places(output, self.host.task, self.cuda)
            self.cuda.synchronize()
            return output

        return awaited

    def _watch(self, call: Call) -> Model:
        output = call()
        evidence = Evidence(places(self.host.model), self._timer.elapsed_ns())
        evidence.require(AcceleratorKind.NVIDIA, self.cuda.place)
        return output

    @contextmanager
    def bound(self, shape: Shape) -> Iterator[Bound]:
        """Yield the call on inputs of this shape, by itself and end to end; then let its graphs go."""
        try:
            with typed_device():
                yield self._verified.pop(shape) if shape in self._verified else self._bind(shape)
        finally:
            self._graphs.pop(shape, None)

    def _bind(self, shape: Shape) -> Bound:
        inputs, forward = make_inputs(self._placed, shape, self.plan.seed), self._forward(shape)
        bound = Bound(
            call=partial(forward, inputs),
            end_to_end=self.host.end_to_end.bind(shape, forward),
            device_ns=self._timer.elapsed_ns,
            worker=self._worker,
            observe=self._observe,
        )
        if not keeps_autograd(self.plan):
            return bound
        # As in 2023: the inputs are there before the clock starts, and nobody waits for the output.
        return replace(bound, call=partial(self._direct.model, **self._direct.upload(inputs)), device_ns=None)

    def _forward(self, shape: Shape) -> Forward:
        """Return the forward pass with all that a call includes."""
        step: Step = self._direct
        if self._execution is Execution.CUDA_GRAPHS:
            step = self._graphs.setdefault(shape, Graphs(self._direct))
        return returning(step, self.cuda, self.host.task)

    @contextmanager
    def _let_go_on_error(self, shape: Shape) -> Iterator[None]:
        """Let a shape's graphs go when it fails: it will not be bound."""
        with ExitStack() as stack:
            stack.callback(self._graphs.pop, shape, None)
            yield
            stack.pop_all()

    @contextmanager
    def _worker(self) -> Iterator[None]:
        """Enter once around a thread's calls: no autograd, and where several threads call, a stream for each."""
        with ExitStack() as stack:
            if not keeps_autograd(self.plan):
                stack.enter_context(torch.inference_mode())
            if self.plan.measurement.load.concurrency > 1:
                stack.enter_context(self.cuda.stream())
            yield

    def _observe(self) -> Callable[[], Usage]:
        """Begin to watch the device, and to count graphs that are compiled."""
        ended = self.monitor.observe() if self.monitor else Usage
        self.cuda.reset_peak()
        compiles = self._execution is Execution.COMPILE
        before = inductor.graphs() if compiles else 0

        def end() -> Usage:
            usage = ended()
            return replace(
                usage,
                peak_memory_bytes=usage.peak_memory_bytes or self.cuda.peak_bytes(),
                recompilations=inductor.graphs() - before if compiles else 0,
            )

        return end


@contextmanager
def typed_device() -> Iterator[None]:
    """Give what CUDA and PyTorch say about a failure our own type."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise OutOfMemoryError from error
        if typed := typed_error(error):
            # What did not fit is still held by the frames that it went through.
            release(error)
            raise typed from error
        raise
