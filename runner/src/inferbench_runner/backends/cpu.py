"""The CPU back end: PyTorch, eager, in fp32 or bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch

from inferbench_runner.backends import hub
from inferbench_runner.backends.base import Bound, Call, Facts, Source
from inferbench_runner.backends.comparison import compare
from inferbench_runner.backends.configuration import random_configuration, read_configuration
from inferbench_runner.backends.endtoend import EndToEnd, make_end_to_end
from inferbench_runner.backends.inputs import Inputs, make_inputs
from inferbench_runner.backends.libraries import mathematics, versions
from inferbench_runner.backends.outputs import check_output
from inferbench_runner.backends.proof import watched
from inferbench_runner.backends.reference import Probe, References, attention, probes, rows_of
from inferbench_runner.backends.tasks import Model, Task, choose_task, model_class
from inferbench_runner.backends.weights import Weighted, pretrained_model, random_model
from inferbench_runner.clock import cpu_ns
from inferbench_runner.contract import (
    AcceleratorKind,
    Correctness,
    Execution,
    ModelRef,
    Plan,
    Precision,
    Profile,
    Shape,
)
from inferbench_runner.errors import OutOfMemoryError, is_out_of_memory
from inferbench_runner.probe import Host

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16}

PLACE = "cpu"


@dataclass(frozen=True)
class CPUBackend:
    """PyTorch on the host's processors, with as many threads as the host lets run at once."""

    plan: Plan
    facts: Facts

    @classmethod
    def prepare(cls, plan: Plan, host: Host) -> CPUBackend:
        """Fix what is global in PyTorch: threads, and full precision for fp32."""
        # Each call in flight has its own pool, and together they must not be more than can run.
        torch.set_num_threads(max(1, host.threads // plan.measurement.load.concurrency))
        # The operators of one call follow each other, so that a second pool could only compete. It can be set once.
        if torch.get_num_interop_threads() != 1:
            torch.set_num_interop_threads(1)
        # With "medium", oneDNN would compute fp32 products in bfloat16.
        torch.set_float32_matmul_precision("highest")
        autograd = "on" if _keeps_autograd(plan) else "off"
        facts = {"execution": Execution.EAGER, "autograd": autograd, **versions(), **mathematics()}
        return cls(plan, facts)

    def fetch(self, model: ModelRef) -> Source:
        """Bring the files of a pretrained model here."""
        return hub.fetch(model)

    def load(self, model: ModelRef, source: Source) -> CPUModel:
        """Build the model from its files or, without any, from its configuration."""
        plan = self.plan
        if source.directory is None:
            configuration = random_configuration(model)
            task = choose_task(model.task, configuration.model_type)
            kind = model_class(task, configuration.model_type)
            weighted = random_model(kind, configuration, plan.seed, overridden=bool(model.config))
        else:
            model_type = read_configuration(source.directory).model_type
            task = choose_task(model.task, model_type)
            weighted = pretrained_model(model_class(task, model_type), source.directory, plan.seed)
        model = weighted.model.eval()
        references = References(model, task, plan.seed)
        end_to_end = make_end_to_end(model, task, source.directory, plan.seed)
        dtype = DTYPES[plan.precision]
        facts = _facts(weighted, task, source, references) | {"precision": str(dtype).removeprefix("torch.")}
        return CPUModel(model, task, plan, references, end_to_end, facts | dict(end_to_end.facts), dtype)


@dataclass(frozen=True)
class CPUModel:
    """A model in host memory: in fp32 until the first shape is verified, and then in the plan's precision."""

    model: Model
    task: Task
    plan: Plan
    references: References
    end_to_end: EndToEnd
    facts: Facts
    dtype: torch.dtype
    _verified: dict[Shape, Bound] = field(default_factory=dict)
    """Calls that were verified, until they are measured: what is timed is the very call that was found to be right."""

    def refer(self, shape: Shape) -> None:
        """Compute the right outputs for a shape, while the weights are still in full precision."""
        self.references.add(shape)

    @cached_property
    def _converted(self) -> Model:
        """The model in the plan's precision, from the first look on."""
        self.references.complete()
        return self.model.to(self.dtype)

    def verify(self, shape: Shape) -> Correctness:
        """Call once as it will be timed and once with padding, and compare both outputs with their references."""
        wanted = self.references.of(shape)
        with _typed_memory():
            bound = self._bind(shape)
            timed, *others = probes(self._converted, shape, self.plan.seed)
            with bound.worker():
                found = [self._rows(bound.call, shape, timed)]
                found += [self._rows(partial(self._forward, probe.inputs), shape, probe) for probe in others]
            correctness = compare(
                found,
                wanted,
                self.plan.precision,
                chooses=self.task.chooses,
                scale=self.references.scale,
                reference=self.references.description + (", and with half of them padding" if others else ""),
            )
        self._verified[shape] = bound
        return correctness

    def _rows(self, call: Call, shape: Shape, probe: Probe) -> torch.Tensor:
        """Return what of a call's output is compared; the rest, which can be large, is free before the next call."""
        output, evidence = watched(call, self.model, cpu_ns)
        evidence.require(AcceleratorKind.CPU, PLACE)
        check_output(output, self.task, shape)
        return rows_of(output, self.task, shape.batch_size, probe.attended)

    @contextmanager
    def bound(self, shape: Shape) -> Iterator[Bound]:
        """Yield the forward pass on inputs of this shape, by itself and end to end."""
        with _typed_memory():
            yield self._verified.pop(shape) if shape in self._verified else self._bind(shape)

    def _bind(self, shape: Shape) -> Bound:
        inputs = make_inputs(self._converted, shape, self.plan.seed)
        return Bound(
            call=partial(self._converted, **inputs),
            end_to_end=self.end_to_end.bind(shape, self._forward),
            worker=self._worker,
        )

    def _forward(self, inputs: Inputs) -> Model:
        return self.model(**inputs)

    @property
    def _worker(self) -> Callable[[], AbstractContextManager[None]]:
        """What a thread enters once around its calls: entering it costs a microsecond, which no sample should carry."""
        return nullcontext if _keeps_autograd(self.plan) else torch.inference_mode


@contextmanager
def _typed_memory() -> Iterator[None]:
    """Give the library's ways of saying that memory ran out our own type."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise OutOfMemoryError from error
        raise


def _keeps_autograd(plan: Plan) -> bool:
    """Whether calls record what a training step would need, as those of the published study did."""
    return plan.measurement.profile is Profile.LEGACY_2023


def _facts(weighted: Weighted, task: Task, source: Source, references: References) -> dict[str, str]:
    model, initialised = weighted.model, weighted.initialised
    return {
        "modelClass": type(model).__name__,
        "task": task.name,
        "parameters": str(sum(parameter.numel() for parameter in model.parameters())),
        "attention": attention(model),
        "modelCommit": source.commit or "unknown",
        "initialisedTensors": f"{len(initialised)}: {' '.join(initialised)}" if initialised else "0",
        "verifiedAgainst": references.description,
        "deviceProof": "all weights on cpu, and processor time spent in each verified call",
    }
