"""optimum-neuron: exports a model for one shape, and calls what came out through its class for the task."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from inferbench_runner.artefacts import Artefact
from inferbench_runner.backends.inputs import Inputs
from inferbench_runner.backends.libraries import version
from inferbench_runner.backends.neuron.arguments import CASTS, OPTLEVEL
from inferbench_runner.backends.neuron.making import ORDER, Cores, Graph, Made
from inferbench_runner.backends.neuron.tracing import neuronx, placement, places_of
from inferbench_runner.backends.tasks import Model, Task
from inferbench_runner.contract import Precision, Shape

CLASSES: Final = {
    "text-classification": "NeuronModelForSequenceClassification",
    "image-classification": "NeuronModelForImageClassification",
    "feature-extraction": "NeuronModelForFeatureExtraction",
    "fill-mask": "NeuronModelForMaskedLM",
    "token-classification": "NeuronModelForTokenClassification",
    "question-answering": "NeuronModelForQuestionAnswering",
}
"""Its class for each task."""

TEXT_ONLY: Final = frozenset({"feature-extraction"})
"""Tasks whose class takes tokens and nothing else, though images have features too."""

FILE: Final = "model.neuron"
"""Its name for a compiled graph."""

CONFIGURATION: Final = "config.json"
"""What it needs beside the graph: the model's configuration, with what it was compiled for."""

SHAPE: Final = Shape(cell="0" * 10, sequence_length=8)
"""Any shape: which inputs a model has doesn't depend on it."""


@dataclass(frozen=True)
class OptimumExport:
    """optimum-neuron, where it knows the model's architecture and task."""

    task: Task
    precision: Precision
    target: str
    arguments: tuple[str, ...]
    """What it tells the compiler, by its own rules."""
    compiler: str = "neuronx-cc"
    inlined: bool = True

    @property
    def name(self) -> str:
        """What traces the model."""
        return (
            f"{CLASSES[self.task.name]} of optimum-neuron {version('optimum-neuron')}, "
            f"torch-neuronx {version('torch-neuronx')}"
        )

    @property
    def version(self) -> str:
        """The compiler's version."""
        return version(self.compiler)

    def make(self, model: Model, inputs: Inputs, shape: Shape, folder: Path) -> Made:
        """Export the model; its library builds it anew from files, so that ours stays as it is."""
        exporters = import_module("optimum.exporters.neuron")
        source, output = folder / "source", folder / "output"
        model.save_pretrained(source)
        cast, kind = CASTS[self.precision]
        exporters.main_export(
            str(source),
            output=output,
            # Its word for products is another than the compiler's.
            compiler_kwargs={
                "auto_cast": "matmul" if cast == "matmult" else cast,
                "auto_cast_type": kind,
                "instance_type": self.target,
            },
            task=self.task.name,
            dynamic_batch_size=False,
            # Its cache of its own knows nothing of seeds: two models with random weights would be the same to it.
            disable_neuron_cache=True,
            compiler_workdir=folder / "compiler",
            inline_weights_to_neff=self.inlined,
            optlevel=OPTLEVEL,
            local_files_only=True,
            do_validation=False,
            library_name="transformers",
            **_axes(shape),
        )
        notes = {CONFIGURATION: (output / CONFIGURATION).read_text(encoding="utf-8"), ORDER: " ".join(inputs)}
        return Made(output / FILE, notes)

    def load(self, artefact: Artefact, cores: Cores) -> Graph:
        """Load a compiled graph through the class for the task, and put it onto its cores."""
        with TemporaryDirectory(prefix="inferbench-neuron-") as name:
            folder = Path(name)
            (folder / FILE).symlink_to(artefact.path.absolute())
            (folder / CONFIGURATION).write_text(artefact.notes[CONFIGURATION], encoding="utf-8")
            model = _class(self.task).from_pretrained(folder, local_files_only=True)
        # The class itself puts every model onto the first core.
        if cores != Cores(0, 1):
            placement(neuronx(), "set_neuron_cores")(model.model, start_nc=cores.start, nc_count=cores.count)
        return Graph(tuple(artefact.notes[ORDER].split()), model, places_of(model.model))


def refusal(model: Model, task: Task, inputs: Inputs) -> str:
    """Return why optimum-neuron can't be used for a model; nothing where it can."""
    if not _installed():
        return "optimum-neuron is not installed"
    if task.name not in CLASSES or (task.name in TEXT_ONLY and model.main_input_name != "input_ids"):
        return f"optimum-neuron has no class for {task.name} of {model.main_input_name}"
    try:
        # Importing the class registers the architectures that it knows.
        _class(task)
        wanted = set(_configuration(model, task).inputs)
    except Exception as error:  # noqa: BLE001  # by version, any of a dozen types; the fact tells which
        return f"optimum-neuron doesn't take {model.config.model_type} for {task.name}: {type(error).__name__}: {error}"
    if wanted != set(inputs):
        return f"optimum-neuron would feed {' '.join(sorted(wanted))} instead of {' '.join(sorted(inputs))}"
    return ""


def _configuration(model: Model, task: Task) -> Any:  # noqa: ANN401  # of a library without types
    tasks = import_module("optimum.exporters.tasks")
    utilities = import_module("optimum.neuron.utils")
    constructor = tasks.TasksManager.get_exporter_config_constructor(
        exporter="neuron", model_type=model.config.model_type, task=task.name, library_name="transformers"
    )
    return constructor(model.config, input_shapes=utilities.InputShapesArguments(**_axes(SHAPE)))


def _class(task: Task) -> Any:  # noqa: ANN401  # as above
    # By default its classes log a line in every call.
    import_module("optimum.utils.logging").set_verbosity_error()
    return getattr(import_module("optimum.neuron"), CLASSES[task.name])


def _installed() -> bool:
    try:
        return find_spec("optimum.neuron") is not None
    except ModuleNotFoundError:
        return False


def _axes(shape: Shape) -> dict[str, int]:
    length = {} if shape.sequence_length is None else {"sequence_length": shape.sequence_length}
    return {"batch_size": shape.batch_size, **length}
