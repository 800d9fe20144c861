"""Where every back end starts: a model on the host in fp32, and what is the same for all devices from there on.

files or configuration ──load──> model in fp32 ──refer──> right outputs ──(the back end's own device)──> verify
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from typing_extensions import Self

from inferbench_runner.backends.base import Call, Facts, Source
from inferbench_runner.backends.comparison import compare
from inferbench_runner.backends.configuration import random_configuration, read_configuration
from inferbench_runner.backends.endtoend import EndToEnd, Forward, make_end_to_end
from inferbench_runner.backends.outputs import check_output
from inferbench_runner.backends.reference import Probe, References, attention, probes, rows_of
from inferbench_runner.backends.tasks import Model, Task, choose_task, model_class
from inferbench_runner.backends.weights import Weighted, pretrained_model, random_model
from inferbench_runner.contract import Correctness, ModelRef, Plan, Profile, Shape
from inferbench_runner.errors import OutOfMemoryError, is_out_of_memory

Watch: TypeAlias = Callable[[Call], Model]
"""Makes a call, and returns its output once it is sure that the device which was asked for did the work."""


@dataclass(frozen=True)
class HostModel:
    """A model in host memory, with what its outputs are compared with and how raw inputs become its own."""

    model: Model
    task: Task
    plan: Plan
    references: References
    end_to_end: EndToEnd
    facts: Facts

    @classmethod
    def load(cls, plan: Plan, model: ModelRef, source: Source) -> Self:
        """Build the model from its files or, without any, from its configuration."""
        if source.directory is None:
            configuration = random_configuration(model)
            task = choose_task(model.task, configuration.model_type)
            kind = model_class(task, configuration.model_type)
            weighted = random_model(kind, configuration, plan.seed, overridden=bool(model.config))
        else:
            model_type = read_configuration(source.directory).model_type
            task = choose_task(model.task, model_type)
            weighted = pretrained_model(model_class(task, model_type), source.directory, plan.seed)
        ready = weighted.model.eval()
        references = References(ready, task, plan.seed)
        end_to_end = make_end_to_end(ready, task, source.directory, plan.seed)
        facts = {**_facts(weighted, task, source, references), **end_to_end.facts}
        return cls(ready, task, plan, references, end_to_end, facts)

    def verify(self, shape: Shape, call: Call, forward: Forward, watch: Watch) -> Correctness:
        """Compare two outputs with their references: that of the very call to be timed, and one with padding."""
        wanted = self.references.of(shape)
        timed, *others = probes(self.model, shape, self.plan.seed)
        found = [self._rows(watch, call, shape, timed)]
        found += [self._rows(watch, partial(forward, probe.inputs), shape, probe) for probe in others]
        return compare(
            found,
            wanted,
            self.plan.precision,
            chooses=self.task.chooses,
            scale=self.references.scale,
            reference=self.references.description + (", and with half of them padding" if others else ""),
        )

    def _rows(self, watch: Watch, call: Call, shape: Shape, probe: Probe) -> torch.Tensor:
        """Return what of a call's output is compared; the rest, which can be large, is free before the next call."""
        output = watch(call)
        check_output(output, self.task, shape)
        return rows_of(output, self.task, shape.batch_size, probe.attended)


def keeps_autograd(plan: Plan) -> bool:
    """Whether calls record what a training step would need, as those of the published study did."""
    return plan.measurement.profile is Profile.LEGACY_2023


@contextmanager
def typed_memory() -> Iterator[None]:
    """Give the library's ways of saying that memory ran out our own type."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise OutOfMemoryError from error
        raise


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
    }
