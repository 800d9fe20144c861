"""The Neuron back end: which way of making graphs it takes, and what identifies the weights that go into them."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass

import torch

from inferbench_runner.artefacts import file_sha256
from inferbench_runner.backends import hub
from inferbench_runner.backends.base import Facts, Source
from inferbench_runner.backends.host import HostModel, keeps_autograd
from inferbench_runner.backends.inputs import make_inputs
from inferbench_runner.backends.libraries import version, versions
from inferbench_runner.backends.neuron.arguments import DEFAULT_EXECUTION, compiler_arguments, inf1_arguments
from inferbench_runner.backends.neuron.devices import VISIBLE, Devices
from inferbench_runner.backends.neuron.exporting import OptimumExport, refusal
from inferbench_runner.backends.neuron.making import Maker
from inferbench_runner.backends.neuron.model import NeuronModel
from inferbench_runner.backends.neuron.native import TorchNeuron
from inferbench_runner.backends.neuron.targets import INF1, OVERRIDE
from inferbench_runner.backends.neuron.tracing import INF1_WAY_OUT, direct_arguments, inf1_trace, neuronx, neuronx_trace
from inferbench_runner.backends.tasks import Model
from inferbench_runner.contract import Execution, ModelRef, Plan, Shape
from inferbench_runner.errors import NEURON_EXTRA, MissingDependencyError
from inferbench_runner.probe import Host

LIBRARIES = {
    "torchNeuronx": "torch-neuronx",
    "neuronxCc": "neuronx-cc",
    "optimumNeuron": "optimum-neuron",
}
"""Distributions whose versions are recorded, by the name of the fact."""

INF1_LIBRARIES = {"torchNeuron": "torch-neuron", "neuronCc": "neuron-cc"}

ONE = Shape(cell="0" * 10, sequence_length=1)
"""A shape that every model takes: which inputs it has doesn't depend on it."""


@dataclass(frozen=True)
class NeuronBackend:
    """Neuron cores, or only the compiler for them."""

    plan: Plan
    target: str
    devices: Devices | None
    facts: Facts
    measures: bool = True

    @classmethod
    def prepare(
        cls, plan: Plan, host: Host, target: str, devices: Devices | None, *, measures: bool = True
    ) -> NeuronBackend:
        """Fix what is global in PyTorch, and look at the libraries."""
        execution = plan.device.execution or DEFAULT_EXECUTION
        if devices is None or not measures:
            # Without a device, the libraries would have to guess, and optimum-neuron guesses trn1.
            os.environ[OVERRIDE] = target
        # The processor computes the references, and feeds the device.
        torch.set_num_threads(host.threads)
        torch.set_float32_matmul_precision("highest")
        libraries = INF1_LIBRARIES if target == INF1 else LIBRARIES
        facts = {
            "execution": execution,
            "autograd": "on" if keeps_autograd(plan) else "off",
            "deviceTarget": target,
            "coresPerCopy": str(plan.device.cores or 1),
            "copies": str(plan.measurement.load.concurrency),
            "visibleCores": os.environ.get(VISIBLE, "none"),
            "threads": str(torch.get_num_threads()),
            **(devices.to_facts() if devices else {}),
            **versions(),
            **{fact: version(name) for fact, name in libraries.items()},
        }
        return cls(plan, target, devices, facts, measures)

    def fetch(self, model: ModelRef) -> Source:
        """Bring the files of a pretrained model here."""
        return hub.fetch(model)

    def load(self, model: ModelRef, source: Source) -> NeuronModel:
        """Build the model on the host, and choose how its graphs are made."""
        host = HostModel.load(self.plan, model, source)
        maker, why = self._maker(host)
        weights = identity(host.model, source, self.plan)
        # Which inputs a model has doesn't depend on the shape.
        names = tuple(make_inputs(host.model, ONE, self.plan.seed))
        return NeuronModel(host, self.plan, maker, self.target, weights, names, self.devices, self.measures, why)

    def _maker(self, host: HostModel) -> tuple[Maker | TorchNeuron, str]:
        """Return the way of making graphs, and why it is not optimum-neuron's where it could be."""
        precision = self.plan.precision
        if self.plan.device.execution is Execution.TORCH_NEURON:
            return TorchNeuron(precision), ""
        if self.target == INF1:
            maker = inf1_trace(inf1_arguments(precision))
            require_compiler(maker.compiler, INF1_WAY_OUT)
            return maker, ""
        neuronx()
        require_compiler("neuronx-cc")
        arguments = compiler_arguments(precision, self.target, transformer=_is_transformer(host.model))
        inputs = make_inputs(host.model, ONE, self.plan.seed)
        if why := refusal(host.model, host.task, inputs):
            return neuronx_trace(direct_arguments(arguments), has_device=self.devices is not None), why
        return OptimumExport(host.task, precision, self.target, arguments), ""


def require_compiler(name: str, way_out: str = "") -> None:
    """Raise `MissingDependencyError` where it has no version: its graphs could be taken for those of another one."""
    if version(name) == "none":
        raise MissingDependencyError(name.replace("-", ""), NEURON_EXTRA, way_out)


def identity(model: Model, source: Source, plan: Plan) -> str:
    """Return what tells these weights from all others: the hub's commit, or a hash of where they come from.

    Tensors that the files lack are drawn by the plan's seed, which belongs to it for that.
    """
    configuration = json.dumps(model.config.to_dict(), sort_keys=True, default=str)
    parts = [configuration, str(plan.seed), torch.__version__]
    if source.commit:
        parts.append(source.commit)
    elif source.directory is not None:
        parts += [f"{path.name} {file_sha256(path)}" for path in sorted(source.directory.glob("*.safetensors"))]
    told = source.commit or ("files" if source.directory else f"random, seed {plan.seed}")
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return f"{told} {digest[:16]}"


def _is_transformer(model: Model) -> bool:
    """Whether the compiler may take it for one: convolutional networks have no heads of attention."""
    return getattr(model.config, "num_attention_heads", None) is not None
