"""What the runner does with the libraries of the image for Inf1: run as a program where they are installed.

The first argument names a check. torch-neuron, its compiler and the device are doubles; Python, PyTorch, transformers
and the runner are the real ones. `write` and a folder write the models that the real command measures.
"""

from __future__ import annotations

import os
import pkgutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import inferbench_runner
from inferbench_runner.backends.base import Source
from inferbench_runner.child import Child
from inferbench_runner.contract import (
    CACHE_VARIABLE,
    CacheOutcome,
    CompactReport,
    FailureReason,
    FullReport,
    Plan,
)
from inferbench_runner.errors import RunnerError
from test_runner.builders import Outcome, Stage, cell, host, make_run, tree
from test_runner.neuron import (
    CORE,
    INF1_VERSIONS,
    QUICK,
    SDK,
    SMALL,
    VERSIONS,
    Machine,
    machine,
    neuron_plan,
    open_in_child,
    shapes,
)

INF1_SDK = Path(__file__).with_name("neuron_inf1_sdk")

CORES = range(4)

DEVICE_FILES = {
    "sys/devices/virtual/neuron_device/neuron0/core_count": f"{len(CORES)}\n",
    **{f"{CORE}{core}/stats/other_info/inference_count": "0\n" for core in CORES},
}
"""An inf1.xlarge has twice the cores."""

VIT = {key: value for key, value in SMALL.items() if key != "vocab_size"} | {"image_size": 32}


def executions(neuron: Machine) -> list[int]:
    """Return what each core has counted."""
    return [int((neuron.root / f"{CORE}{core}/stats/other_info/inference_count").read_text()) for core in CORES]


def carried_out(neuron: Machine, **fields: Any) -> Outcome:  # noqa: ANN401  # passed through
    """Carry a plan out in processes of its own."""
    outcome = make_run(neuron.root, neuron_plan(measurement=QUICK, **fields), Stage())
    outcome.run.open_backend, outcome.run.start = open_in_child, Child
    outcome.run.carry_out()
    return outcome


def loaded(neuron: Machine, wanted: Plan, *, compiles_only: bool = False) -> Any:  # noqa: ANN401  # the back end's model
    """Return the plan's model, which is to be traced by torch-neuron."""
    model = (neuron.open_compiler if compiles_only else neuron.open)(wanted, host()).load(wanted.model, Source())
    assert model.maker.library.__name__ == "torch_neuron"
    for shape in wanted.shapes:
        model.refer(shape)
    return model


def check_modules(neuron: Machine) -> None:
    """Every module can be imported, but for what only other images have."""
    del neuron
    modules = pkgutil.walk_packages(inferbench_runner.__path__, "inferbench_runner.")
    assert {lacking(module.name) for module in modules} <= {None, "pynvml"}


def lacking(name: str) -> str | None:
    """Import a module; return the name of what it would need."""
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        return error.name
    return None


def check_plans(neuron: Machine) -> None:
    """A tiny BERT and a tiny ViT are compiled, verified and measured on the first core, and reported."""
    for fields in (
        {"precision": "bf16", "shapes": shapes(8, 16)},
        {"precision": "fp16", "model": {"id": "google/vit-base-patch16-224", "config": VIT}, "shapes": ((None, 2),)},
    ):
        before = executions(neuron)
        outcome = carried_out(neuron, **fields)
        report = CompactReport.model_validate_json(outcome.path.read_bytes())
        assert not report.failed, report.failed
        assert {one.cell for one in report.measured} == {cell(index) for index in range(len(outcome.run.plan.shapes))}
        full = FullReport.model_validate_json(outcome.run.to_full().model_dump_json())
        assert [one.cell for one in full.cells] == [shape.cell for shape in outcome.run.plan.shapes]
        assert all(one.end_to_end for one in full.cells)
        first, *others = (now - then for now, then in zip(executions(neuron), before, strict=True))
        samples = sum(one.samples for one in report.measured)
        assert first > samples > 0
        assert not any(others)
        facts = outcome.run.facts
        assert facts["graphMaker"] == f"torch.neuron.trace of torch-neuron {INF1_VERSIONS['torch-neuron']}"
        assert facts["compiler"] == f"neuron-cc {INF1_VERSIONS['neuron-cc']}"
        cast = {"bf16": "fp32-cast-all", "fp16": "fp32-cast-all-fp16"}[str(fields["precision"])]
        assert facts["compilerArguments"] == f"--fast-math {cast} no-fast-relayout"
        assert (facts["deviceTarget"], facts["instanceType"]) == ("inf1", "inf1.xlarge")
        assert (facts["neuronCores"], facts["visibleCores"]) == ("4", "0")


def check_copies(neuron: Machine) -> None:
    """With two calls in flight, each has a copy on a core of its own."""
    wanted = neuron_plan(precision="bf16", measurement={"load": {"concurrency": 2}})
    model = loaded(neuron, wanted)
    model.compile(wanted.shapes[0])
    model.verify(wanted.shapes[0])
    assert [count > 0 for count in executions(neuron)] == [True, True, False, False]


def check_ahead(neuron: Machine) -> None:
    """What was compiled without a device is found with one."""
    os.environ[CACHE_VARIABLE] = str(neuron.root / "cache")
    devices = (neuron.root / "proc/devices").read_text()
    neuron.remove_device()
    os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "inf1"
    wanted = neuron_plan(precision="bf16")
    ahead = loaded(neuron, wanted, compiles_only=True).compile(wanted.shapes[0])
    assert ahead.cache is CacheOutcome.MISS
    del os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"]
    (neuron.root / "proc/devices").write_text(devices)
    model = loaded(neuron, wanted)
    found = model.compile(wanted.shapes[0])
    assert (found.cache, found.key) == (CacheOutcome.HIT, ahead.key), found.miss
    model.verify(wanted.shapes[0])


def check_failures(neuron: Machine) -> None:
    """A compiler that gives up is a failure with its own last words, and not a graph that works on the processor."""
    neuron.fail({"when": "trace", "log": "ERROR: An Internal Compiler Error has occurred"})
    (failed,) = CompactReport.model_validate_json(carried_out(neuron, precision="bf16").path.read_bytes()).failed
    assert failed.reason is FailureReason.COMPILE_FAILED
    assert "Internal Compiler Error" in failed.message


def check_refusals(neuron: Machine) -> None:
    """The devices multiply in 16 bits only, and PyTorch's own compiler has nothing for them."""
    for fields, reason, words in (
        ({"precision": "fp32"}, FailureReason.PRECISION_UNSUPPORTED, "bf16"),
        ({"device": {"execution": "TorchNeuron"}}, FailureReason.EXECUTION_UNSUPPORTED, "Trace"),
    ):
        caught = refusal(partial(neuron.open, neuron_plan(**fields), host()))
        assert caught.reason is reason
        assert words in str(caught)


def refusal(attempt: Callable[[], object]) -> RunnerError:
    """Return the failure that an attempt ends with."""
    try:
        attempt()
    except RunnerError as error:
        return error
    msg = "it was not refused"
    raise AssertionError(msg)


def write(folder: Path) -> None:
    """Write a tiny BERT and a tiny ViT as they are published, each with what it needs end to end."""
    import transformers  # noqa: PLC0415  # heavy

    bert = transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL))
    bert.save_pretrained(folder / "bert")
    words = folder / "vocab.txt"
    words.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nred\ngreen\nblue\n", encoding="utf-8")
    transformers.BertTokenizerFast(str(words)).save_pretrained(folder / "bert")
    vit = transformers.ViTForImageClassification(transformers.ViTConfig(**VIT))
    vit.save_pretrained(folder / "vit")
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder / "vit")


CHECKS: dict[str, Callable[[Machine], None]] = {
    name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    name, *others = sys.argv[1:]
    if name == "write":
        write(Path(others[0]))
        sys.exit()
    with tempfile.TemporaryDirectory() as folder, machine(Path(folder) / "machine") as made:
        made.be_inf1()
        tree(made.root, DEVICE_FILES)
        for other in VERSIONS:
            made.remove(other.replace("-", "_"))
        sys.path[sys.path.index(str(SDK))] = str(INF1_SDK)
        os.environ["PYTHONPATH"] = os.environ["PYTHONPATH"].replace(str(SDK), str(INF1_SDK))
        CHECKS[name](made)
