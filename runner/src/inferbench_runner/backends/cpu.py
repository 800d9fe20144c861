"""The CPU back end: PyTorch, eager or compiled, in fp32 or bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch

from inferbench_runner.backends import hub
from inferbench_runner.backends.base import Bound, Call, Facts, Rows, Source
from inferbench_runner.backends.host import HostModel, keeps_autograd, typed_memory
from inferbench_runner.backends.inductor import COMPILER, compiled, graphs, timed
from inferbench_runner.backends.inputs import Inputs, make_inputs
from inferbench_runner.backends.libraries import mathematics, prepare_library, versions
from inferbench_runner.backends.proof import watched
from inferbench_runner.backends.tasks import Model
from inferbench_runner.clock import cpu_ns
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
from inferbench_runner.probe import Host
from inferbench_runner.usage import Usage

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16}

PLACE = "cpu"

ARGUMENTS = "dynamic=False"


@dataclass(frozen=True)
class CPUBackend:
    """PyTorch on the host's processors, with as many threads as the host lets run at once."""

    plan: Plan
    facts: Facts

    @classmethod
    def prepare(cls, plan: Plan, host: Host) -> CPUBackend:
        """Fix what is global in PyTorch: threads, and full precision for fp32."""
        prepare_library(plan, host)
        execution = plan.device.execution or Execution.EAGER
        compiler = {"compiler": COMPILER, "compilerArguments": ARGUMENTS} if execution is Execution.COMPILE else {}
        autograd = "on" if keeps_autograd(plan) else "off"
        return cls(plan, {"execution": execution, "autograd": autograd, **compiler, **versions(), **mathematics()})

    def fetch(self, model: ModelRef) -> Source:
        """Bring the files of a pretrained model here."""
        return hub.fetch(model)

    def load(self, model: ModelRef, source: Source) -> CPUModel:
        """Build the model from its files or, without any, from its configuration."""
        return CPUModel(HostModel.load(self.plan, model, source), self.plan)


@dataclass(frozen=True)
class CPUModel:
    """A model in host memory: in fp32 until the first shape is compiled or verified, then in the plan's precision."""

    host: HostModel
    plan: Plan
    _verified: dict[Shape, Bound] = field(default_factory=dict)
    """Calls that were verified, until they are measured: what is timed is the very call that was found to be right."""

    @property
    def facts(self) -> Facts:
        """Provenance of the model."""
        proof = "all weights on cpu, and processor time spent in each verified call"
        return {**self.host.facts, "precision": str(self._dtype).removeprefix("torch."), "deviceProof": proof}

    @property
    def _dtype(self) -> torch.dtype:
        return DTYPES[self.plan.precision]

    @cached_property
    def _converted(self) -> Model:
        """The model in the plan's precision, from the first look on."""
        self.host.references.complete()
        return self.host.model.to(self._dtype)

    @property
    def compiles(self) -> bool:
        """Whether it was asked for."""
        return self.plan.device.execution is Execution.COMPILE

    @cached_property
    def _callable(self) -> Callable[..., Model]:
        """What is called: the model, or its compiled form."""
        return compiled(self._converted) if self.compiles else self._converted

    def refer(self, shape: Shape, known: Rows | None = None) -> Rows:
        """Return the right outputs for a shape, while the weights are still in full precision."""
        return self.host.references.add(shape, known)

    def compile(self, shape: Shape) -> Compilation:
        """Compile the graph of this shape, by calling it for the first time."""
        with typed_memory():
            inputs = make_inputs(self._converted, shape, self.plan.seed)

        def first_call() -> None:
            with typed_memory(), self._worker():
                self._forward(inputs)

        return timed(first_call, ARGUMENTS)

    def verify(self, shape: Shape) -> Correctness:
        """Call once as it will be timed and once with padding, and compare both outputs with their references."""
        with typed_memory():
            bound = self._bind(shape)
            with bound.worker():
                correctness = self.host.verify(shape, bound.call, self._forward, self._watch)
        self._verified[shape] = bound
        return correctness

    def _watch(self, call: Call) -> Model:
        output, evidence = watched(call, self.host.model, cpu_ns)
        evidence.require(AcceleratorKind.CPU, PLACE)
        return output

    @contextmanager
    def bound(self, shape: Shape) -> Iterator[Bound]:
        """Yield the forward pass on inputs of this shape, by itself and end to end."""
        with typed_memory():
            yield self._verified.pop(shape) if shape in self._verified else self._bind(shape)

    def _bind(self, shape: Shape) -> Bound:
        inputs = make_inputs(self._converted, shape, self.plan.seed)
        return Bound(
            call=partial(self._callable, **inputs),
            end_to_end=self.host.end_to_end.bind(shape, self._forward),
            worker=self._worker,
            observe=_observe if self.compiles else None,
        )

    def _forward(self, inputs: Inputs) -> Model:
        return self._callable(**inputs)

    @property
    def _worker(self) -> Callable[[], AbstractContextManager[None]]:
        """What a thread enters once around its calls: entering it costs a microsecond, which no sample should carry."""
        return nullcontext if keeps_autograd(self.plan) else torch.inference_mode


def _observe() -> Callable[[], Usage]:
    """Begin to count graphs that are compiled."""
    before = graphs()
    return lambda: Usage(recompilations=graphs() - before)
