"""The CPU back end: PyTorch, eager, in fp32 or bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import transformers

from inferbench_runner.backends import hub
from inferbench_runner.backends.base import Call, Facts, Source
from inferbench_runner.backends.configuration import random_configuration, read_configuration
from inferbench_runner.backends.inputs import make_inputs
from inferbench_runner.backends.outputs import check_output
from inferbench_runner.backends.tasks import Model, Task, choose_task, model_class
from inferbench_runner.backends.weights import Weighted, is_out_of_memory, pretrained_model, random_model
from inferbench_runner.contract import Execution, ModelRef, Plan, Precision, Shape
from inferbench_runner.errors import OutOfMemoryError
from inferbench_runner.probe import Host

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16}


@dataclass(frozen=True)
class CPUBackend:
    """PyTorch on the host's processors, with as many threads as the host lets run at once."""

    precision: Precision
    seed: int
    facts: Facts

    @classmethod
    def prepare(cls, plan: Plan, host: Host) -> CPUBackend:
        """Fix what is global in PyTorch: threads, and full precision for fp32."""
        torch.set_num_threads(host.threads)
        # One request is in flight, so a second pool of threads could only compete. It can be set once per process.
        if torch.get_num_interop_threads() != 1:
            torch.set_num_interop_threads(1)
        # With "medium", oneDNN would compute fp32 products in bfloat16.
        torch.set_float32_matmul_precision("highest")
        facts = {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "execution": Execution.EAGER,
            "threads": str(torch.get_num_threads()),
            "interopThreads": str(torch.get_num_interop_threads()),
            "cpuCapability": torch.backends.cpu.get_cpu_capability(),
        }
        return cls(precision=plan.precision, seed=plan.seed, facts=facts)

    def fetch(self, model: ModelRef) -> Source:
        """Bring the files of a pretrained model here."""
        return hub.fetch(model)

    def load(self, model: ModelRef, source: Source) -> CPUModel:
        """Build the model from its files or, without any, from its configuration."""
        if source.directory is None:
            configuration = random_configuration(model)
            task = choose_task(model.task, configuration.model_type)
            kind = model_class(task, configuration.model_type)
            weighted = random_model(kind, configuration, self.seed, overridden=bool(model.config))
        else:
            model_type = read_configuration(source.directory).model_type
            task = choose_task(model.task, model_type)
            weighted = pretrained_model(model_class(task, model_type), source.directory, self.seed)
        ready = weighted.model.to(DTYPES[self.precision]).eval()
        return CPUModel(model=ready, task=task, seed=self.seed, facts=_facts(weighted, task, source))


@dataclass(frozen=True)
class CPUModel:
    """A model in host memory."""

    model: Model
    task: Task
    seed: int
    facts: Facts

    def verify(self, shape: Shape) -> None:
        """Run once and check the output."""
        with self.bound(shape) as call:
            check_output(call(), self.task, shape)

    @contextmanager
    def bound(self, shape: Shape) -> Iterator[Call]:
        """Yield the forward pass on inputs of this shape, without autograd."""
        try:
            # Entered once around all calls: entering it costs a microsecond, which no sample should carry.
            with torch.inference_mode():
                yield partial(self.model, **make_inputs(self.model, shape, self.seed))
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise OutOfMemoryError from error
            raise


def _facts(weighted: Weighted, task: Task, source: Source) -> Facts:
    model, initialised = weighted.model, weighted.initialised
    return {
        "modelClass": type(model).__name__,
        "task": task.name,
        "parameters": str(sum(parameter.numel() for parameter in model.parameters())),
        "precision": str(model.dtype).removeprefix("torch."),
        "attention": str(getattr(model.config, "_attn_implementation", None) or "unknown"),
        "modelCommit": source.commit or "unknown",
        "initialisedTensors": f"{len(initialised)}: {' '.join(initialised)}" if initialised else "0",
    }
