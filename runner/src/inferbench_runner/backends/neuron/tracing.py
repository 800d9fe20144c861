"""The Neuron libraries' own `trace`: of torch-neuronx, and of torch-neuron for the first generation of Inferentia."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch

from inferbench_runner.artefacts import Artefact
from inferbench_runner.backends.inputs import Inputs
from inferbench_runner.backends.libraries import version
from inferbench_runner.backends.neuron.arguments import ACCUMULATION
from inferbench_runner.backends.neuron.making import ByName, Cores, Graph, Made, positional
from inferbench_runner.backends.tasks import Model
from inferbench_runner.contract import Shape
from inferbench_runner.errors import NEURON_EXTRA, MissingDependencyError, RuntimeIncompatibleError

PLACE: Final = "neuron"

OPERATOR: Final = "neuron::forward"
"""Beginning of the operator's name that stands for a compiled graph in TorchScript."""

WORK: Final = "compiler"
"""Folder for what the compiler writes."""

INF1_WAY_OUT: Final = "no image has it: build one with torch-neuron and neuron-cc, both of AWS's pip repository"


@dataclass(frozen=True)
class NeuronxTrace:
    """`torch_neuronx.trace`: Inferentia2 and Trainium, PyTorch up to 2.9."""

    arguments: tuple[str, ...]
    has_device: bool
    compiler: str = "neuronx-cc"
    inlined: bool = True

    @property
    def name(self) -> str:
        """What traces the model."""
        return f"torch_neuronx.trace of torch-neuronx {version('torch-neuronx')}"

    @property
    def version(self) -> str:
        """The compiler's version."""
        return version(self.compiler)

    def make(self, model: Model, inputs: Inputs, shape: Shape, folder: Path) -> Made:  # noqa: ARG002  # the inputs have it
        """Trace and compile; without a device, on the processor alone, for the target that the arguments name."""
        library = neuronx()
        wrapped = ByName(model, tuple(inputs)).eval()
        with torch.no_grad():
            traced = library.trace(
                wrapped,
                tuple(inputs.values()),
                compiler_workdir=str(folder / WORK),
                compiler_args=list(self.arguments),
                inline_weights_to_neff=self.inlined,
                cpu_backend=not self.has_device,
            )
        path = folder / "graph.pt"
        torch.jit.save(traced, path)
        return Made(path, wrapped.notes)

    def load(self, artefact: Artefact, cores: Cores) -> Graph:
        """Load a compiled graph onto cores."""
        with placement(neuronx(), "neuron_cores_context")(cores.start, cores.count):
            module = torch.jit.load(artefact.path)  # type: ignore[no-untyped-call]
        return positional(module, artefact.notes, places_of(module))


@dataclass(frozen=True)
class Inf1Trace:
    """`torch.neuron.trace`: the first generation of Inferentia, with PyTorch 1.13, whose last release was in 2024.

    Operators that its compiler lacks, such as the look-up of embeddings, stay on the processor, as AWS intends.
    """

    arguments: tuple[str, ...]
    compiler: str = "neuron-cc"
    inlined: bool = True

    @property
    def name(self) -> str:
        """What traces the model."""
        return f"torch.neuron.trace of torch-neuron {version('torch-neuron')}"

    @property
    def version(self) -> str:
        """The compiler's version."""
        return version(self.compiler)

    def make(self, model: Model, inputs: Inputs, shape: Shape, folder: Path) -> Made:  # noqa: ARG002  # the inputs have it
        """Trace and compile, which needs no device."""
        library = inf1()
        wrapped = ByName(model, tuple(inputs)).eval()
        with torch.no_grad():
            traced = library.trace(
                wrapped,
                tuple(inputs.values()),
                compiler_workdir=str(folder / WORK),
                compiler_args=list(self.arguments),
            )
        path = folder / "graph.pt"
        torch.jit.save(traced, path)
        return Made(path, wrapped.notes)

    def load(self, artefact: Artefact, cores: Cores) -> Graph:
        """Load a compiled graph onto cores."""
        with placement(inf1(), "neuron_cores_context")(cores.start, cores.count):
            module = torch.jit.load(artefact.path)  # type: ignore[no-untyped-call]
        return positional(module, artefact.notes, places_of(module))


def direct_arguments(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Add what optimum-neuron doesn't let one tell the compiler."""
    return (*arguments, ACCUMULATION)


def neuronx() -> ModuleType:
    """Return torch-neuronx, or raise the `RunnerError` that says why it can't trace."""
    library = _library("torch_neuronx")
    if not hasattr(library, "trace"):
        detail = (
            f"torch-neuronx {version('torch-neuronx')} with PyTorch {torch.__version__} has no trace; use TorchNeuron"
        )
        raise RuntimeIncompatibleError(detail)
    return library


def inf1() -> ModuleType:
    """Return torch-neuron, or raise the `RunnerError` that says where it is to be had."""
    return _library("torch_neuron", INF1_WAY_OUT)


def placement(library: ModuleType, name: str) -> Any:  # noqa: ANN401  # a function of a library without types
    """Return a function that puts graphs onto cores; older releases have it among what is experimental."""
    found = getattr(library, name, None)
    return getattr(library.experimental, name) if found is None else found


def places_of(module: Any) -> frozenset[str]:  # noqa: ANN401  # a script module, or what stands for one
    """Return where a loaded graph works: on the device only if it has the operator that a compiled graph is."""
    return frozenset({PLACE if OPERATOR in str(module.inlined_graph) else "cpu"})


def _library(name: str, way_out: str = "") -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(error.name, NEURON_EXTRA, way_out) from error
