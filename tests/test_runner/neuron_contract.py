"""What the back end asks of optimum-neuron, tried on the real one: run as a program where that is installed.

The first argument names a check. optimum-neuron's own code exports, saves, loads and calls; only the compiler and the
device are doubles.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "runner" / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from inferbench_runner.backends.base import Source
from inferbench_runner.contract import CACHE_VARIABLE, CacheOutcome, Plan
from test_runner.builders import host
from test_runner.neuron import SMALL, Machine, machine, neuron_plan

VIT = {"image_size": 32, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}

MODELS: list[tuple[dict[str, Any], int | None]] = [
    ({"task": "text-classification"}, 8),
    ({"task": "feature-extraction"}, 8),
    ({"task": "fill-mask"}, 8),
    ({"task": "token-classification"}, 8),
    ({"task": "question-answering"}, 8),
    ({"id": "roberta-base", "config": SMALL}, 8),
    ({"id": "albert-base-v2", "config": SMALL | {"embedding_size": 16}}, 8),
    (
        {
            "id": "distilbert-base-uncased",
            "config": {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 64, "vocab_size": 99},
        },
        8,
    ),
    ({"id": "google/vit-base-patch16-224", "config": VIT}, None),
]
"""Every task, and every architecture of the catalogue."""


def loaded(neuron: Machine, wanted: Plan, *, compiles_only: bool = False) -> Any:  # noqa: ANN401  # the back end's model
    """Return the plan's model, which is to be exported."""
    from inferbench_runner.backends.neuron.exporting import OptimumExport  # noqa: PLC0415  # heavy

    opened = (neuron.open_compiler if compiles_only else neuron.open)(wanted, host())
    model = opened.load(wanted.model, Source())
    assert isinstance(model.maker, OptimumExport), model.why
    for shape in wanted.shapes:
        model.refer(shape)
    return model


def show_device(neuron: Machine) -> None:
    """Let optimum-neuron see the device: it looks once, when it is imported."""
    import_module("optimum.neuron")
    system = import_module("optimum.neuron.utils.system")
    system.MAJORS_FILE = str(neuron.root / "proc/devices")
    system.get_neuron_major.cache_clear()
    assert system.get_neuron_major() == 241
    os.environ.pop("NEURON_PLATFORM_TARGET_OVERRIDE", None)


def check_signatures(neuron: Machine) -> None:
    """Every call that the back end makes binds to the real signature, keyword by keyword."""
    show_device(neuron)
    exporters = import_module("optimum.exporters.neuron")
    convert = import_module("optimum.exporters.neuron.convert")
    utilities = import_module("optimum.neuron.utils")
    tasks = import_module("optimum.exporters.tasks").TasksManager
    library = import_module("optimum.neuron")
    exporting = import_module("inferbench_runner.backends.neuron.exporting")
    assert utilities.NEURON_FILE_NAME == exporting.FILE
    real = exporters.main_export
    bound: list[inspect.BoundArguments] = []

    @wraps(real)
    def watched(*given: Any, **named: Any) -> Any:  # noqa: ANN401  # as the real one
        bound.append(inspect.signature(real).bind(*given, **named))
        return real(*given, **named)

    exporters.main_export = watched
    wanted = neuron_plan()
    model = loaded(neuron, wanted)
    model.compile(wanted.shapes[0])
    (arguments,) = (one.arguments for one in bound)
    axes = {field.name for field in dataclasses.fields(utilities.InputShapesArguments)}
    # What main_export has no parameter for ends up among the axes, without a word.
    assert set(arguments["input_shapes"]) == {"batch_size", "sequence_length"} <= axes
    export = inspect.signature(convert.export).parameters
    assert set(arguments["compiler_kwargs"]) == {"auto_cast", "auto_cast_type", "instance_type"} <= set(export)
    constructor = inspect.signature(tasks.get_exporter_config_constructor)
    constructor.bind(exporter="neuron", model_type="bert", task="fill-mask", library_name="transformers")
    for name in exporting.CLASSES.values():
        kind = getattr(library, name)
        inspect.signature(kind.from_pretrained).bind(Path(), local_files_only=True)
        takes = inspect.signature(kind.forward).parameters
        assert "pixel_values" in takes or {"input_ids", "attention_mask", "token_type_ids"} <= set(takes)
    trace = inspect.signature(import_module("torch_neuronx").trace).parameters
    assert {"compiler_args", "input_output_aliases", "inline_weights_to_neff", "cpu_backend"} <= set(trace)


def check_round_trip(neuron: Machine) -> None:
    """A tiny BERT is exported, saved, loaded and called by the real code, and found again in the cache."""
    show_device(neuron)
    os.environ[CACHE_VARIABLE] = str(neuron.root / "cache")
    for precision in ("fp32", "bf16", "fp16", "tf32"):
        wanted = neuron_plan(precision=precision, shapes=((8, 2),))
        shape, keys = wanted.shapes[0], set()
        for outcome in (CacheOutcome.MISS, CacheOutcome.HIT):
            model = loaded(neuron, wanted)
            made = model.compile(shape)
            assert made.cache is outcome, made.miss
            keys.add(made.key)
            model.verify(shape)
            with model.bound(shape) as ready, ready.worker():
                assert ready.call().logits.shape == (2, 2)
                assert ready.end_to_end is not None
                assert len(ready.end_to_end()) == 2
        assert len(keys) == 1
        folder = neuron.root / "cache" / "neuron" / keys.pop()
        header = json.loads((folder / "graph.pt").read_bytes().split(b"\n", 1)[0].removeprefix(b"NEURON-DOUBLE "))
        # What we record is what the compiler was really told.
        assert " ".join(header["arguments"]) == made.arguments, (header["arguments"], made.arguments)
        assert header["target"] == "inf2"
        assert model.facts["graphMaker"].startswith("NeuronModelForSequenceClassification of optimum-neuron 0.4.5")
    assert sum(neuron.executions()) > 8


def check_tasks(neuron: Machine) -> None:
    """Each task and architecture passes the gate through its class, mask and types included."""
    show_device(neuron)
    for fields, length in MODELS:
        wanted = neuron_plan(model=fields, shapes=((length, 2),))
        model = loaded(neuron, wanted)
        model.compile(wanted.shapes[0])
        correctness = model.verify(wanted.shapes[0])
        assert float(correctness.max_relative_error) < float(correctness.max_relative_error_allowed), fields


def check_copies(neuron: Machine) -> None:
    """With two calls in flight, the second copy is moved off the first core, where the class puts every model."""
    show_device(neuron)
    wanted = neuron_plan(measurement={"load": {"concurrency": 2}})
    model = loaded(neuron, wanted)
    model.compile(wanted.shapes[0])
    model.verify(wanted.shapes[0])
    assert all(count > 0 for count in neuron.executions()), neuron.executions()


def check_ahead(neuron: Machine) -> None:
    """Without a device, the real code yields no model, but its export gives the graph that the device then finds."""
    os.environ[CACHE_VARIABLE] = str(neuron.root / "cache")
    devices = (neuron.root / "proc/devices").read_text()
    neuron.remove_device()
    os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "inf2"
    wanted = neuron_plan()
    ahead = loaded(neuron, wanted, compiles_only=True).compile(wanted.shapes[0])
    assert ahead.cache is CacheOutcome.MISS
    (neuron.root / "proc/devices").write_text(devices)
    show_device(neuron)
    model = loaded(neuron, wanted)
    found = model.compile(wanted.shapes[0])
    assert (found.cache, found.key) == (CacheOutcome.HIT, ahead.key), found.miss
    model.verify(wanted.shapes[0])


def check_unknown(neuron: Machine) -> None:
    """What optimum-neuron doesn't know, or would feed otherwise, is traced directly, and the reason is a fact."""
    from inferbench_runner.backends.neuron.tracing import Trace  # noqa: PLC0415  # heavy

    show_device(neuron)
    for fields, words, length in (
        ({"config": SMALL | {"type_vocab_size": 1}}, "would feed", 8),
        ({"id": "google/vit-base-patch16-224", "config": VIT, "task": "feature-extraction"}, "no class", None),
    ):
        wanted = neuron_plan(model=fields, shapes=((length, 1),))
        model = neuron.load(wanted)
        assert isinstance(model.maker, Trace)
        assert words in model.facts["graphMaker"], model.facts["graphMaker"]
        model.refer(wanted.shapes[0])
        model.compile(wanted.shapes[0])
        model.verify(wanted.shapes[0])


CHECKS: dict[str, Callable[[Machine], None]] = {
    name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, machine(Path(folder) / "machine") as made:
        CHECKS[sys.argv[1]](made)
