"""The Neuron libraries' own `trace`: of torch-neuronx, and of torch-neuron for the first generation of Inferentia."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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

INF1_WAY_OUT: Final = (
    "use the image runner-neuron-inf1, or pip install 'inferbench-operator[neuron-inf1]' on Python 3.10 with AWS's pip "
    "repository"
)


@dataclass(frozen=True)
class Trace:
    """One library's `trace`, and what is told to it and to its compiler."""

    library: ModuleType
    function: str
    """What its documentation calls the function."""
    package: str
    """The library's distribution."""
    compiler: str
    arguments: tuple[str, ...]
    options: Mapping[str, bool] = field(default_factory=dict)
    """For the function itself."""
    inlined: bool = True

    @property
    def name(self) -> str:
        """What traces the model."""
        return f"{self.function} of {self.package} {version(self.package)}"

    @property
    def version(self) -> str:
        """The compiler's version."""
        return version(self.compiler)

    def make(self, model: Model, inputs: Inputs, shape: Shape, folder: Path) -> Made:  # noqa: ARG002  # the inputs have it
        """Trace and compile."""
        wrapped = ByName(model, tuple(inputs)).eval()
        with torch.no_grad():
            traced = self.library.trace(
                wrapped,
                tuple(inputs.values()),
                compiler_workdir=str(folder / WORK),
                compiler_args=list(self.arguments),
                **self.options,
            )
        path = folder / "graph.pt"
        torch.jit.save(traced, path)
        return Made(path, wrapped.notes)

    def load(self, artefact: Artefact, cores: Cores) -> Graph:
        """Load a compiled graph onto cores."""
        with placement(self.library, "neuron_cores_context")(cores.start, cores.count):
            module = torch.jit.load(artefact.path)  # type: ignore[no-untyped-call]
        return positional(module, artefact.notes, places_of(module))


def neuronx_trace(arguments: tuple[str, ...], *, has_device: bool) -> Trace:
    """Return `torch_neuronx.trace`: Inferentia2 and Trainium, PyTorch up to 2.9.

    Without a device it compiles on the processor alone, for the target that the arguments name.
    """
    options = {"inline_weights_to_neff": True, "cpu_backend": not has_device}
    return Trace(neuronx(), "torch_neuronx.trace", "torch-neuronx", "neuronx-cc", arguments, options)


def inf1_trace(arguments: tuple[str, ...]) -> Trace:
    """Return `torch.neuron.trace`: the first generation of Inferentia, PyTorch 1.13; its last release was in 2024.

    It compiles without a device. Operators that its compiler lacks, such as the look-up of embeddings, stay on the
    processor, as AWS intends.
    """
    library = _library("torch_neuron", INF1_WAY_OUT)
    return Trace(library, "torch.neuron.trace", "torch-neuron", "neuron-cc", arguments)


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
