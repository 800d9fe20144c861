"""The Neuron back end in whole runs, with real models and with libraries that keep the rules of Neuron's own."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="install the torch extra to test the Neuron back end")

import torch

from inferbench_runner.artefacts import ENTRY, GRAPH
from inferbench_runner.backends import open_backend, open_compiler
from inferbench_runner.backends.base import Source
from inferbench_runner.backends.neuron.arguments import compiler_arguments, inf1_arguments
from inferbench_runner.backends.neuron.native import TorchNeuron
from inferbench_runner.child import Child
from inferbench_runner.compiling import Filling
from inferbench_runner.contract import (
    CACHE_VARIABLE,
    CacheOutcome,
    CompactReport,
    FailureReason,
    Phase,
    Plan,
    Precision,
)
from inferbench_runner.errors import RunnerError
from inferbench_runner.outlet import Outlet
from test_runner.builders import Stage, cell, host, make_run
from test_runner.neuron import (
    INF1_VERSIONS,
    QUICK,
    VERSIONS,
    Ended,
    Machine,
    carried_out,
    neuron_plan,
    open_in_child,
    shapes,
)
from test_runner.tiny import write_bert

pytestmark = pytest.mark.filterwarnings("ignore:No Neuron device")


@pytest.fixture
def cache(tmp_path: Path, neuron: Machine) -> Path:
    """The folder of compiled graphs, which the environment names."""
    del neuron  # its environment is this one
    os.environ[CACHE_VARIABLE] = str(tmp_path / "cache")
    return tmp_path / "cache" / "neuron"


def test_a_plan_is_measured_with_all_that_identifies_its_graphs(tmp_path: Path, neuron: Machine) -> None:
    """Compiled, verified and measured on the first core, with the compiler's arguments in the report."""
    ended = carried_out(tmp_path, neuron, shapes=shapes(8, 16), precision="bf16")
    assert ended.measured == [0, 1]
    assert neuron.executions()[0] > 20
    assert neuron.executions()[1] == 0
    facts = ended.run.facts
    arguments = "--auto-cast all --auto-cast-type bf16 --optlevel 2 --target inf2 --model-type transformer"
    assert facts["compilerArguments"] == f"{arguments} --enable-mixed-precision-accumulation"
    assert facts["compiler"] == f"neuronx-cc {VERSIONS['neuronx-cc']}"
    assert facts["inlinedWeights"] == "yes"
    assert facts["inputOrder"] == "input_ids attention_mask token_type_ids"
    assert facts["visibleCores"] == "0"
    assert facts["instanceType"] == "inf2.xlarge"
    assert facts["target"] == "100 % within 1 s"
    assert facts["graphMaker"].startswith("torch_neuronx.trace of torch-neuronx 2.8.0")
    assert "optimum-neuron is not installed" in facts["graphMaker"]
    assert len(facts) <= 64
    for compilation in ended.compilations:
        assert compilation.arguments == facts["compilerArguments"]
        assert compilation.cache is CacheOutcome.OFF
        assert compilation.key == ""
    details = ended.run.to_full().cells[0]
    assert details.device is None
    assert details.end_to_end is not None
    assert details.device_use is not None
    assert details.device_use.peak_memory_mebibytes == 1
    assert details.device_use.monitor_p50_microseconds is None
    assert facts["deviceLatency"].startswith("not measured")


@pytest.mark.parametrize(
    ("model", "task", "length"),
    [
        ({"id": "bert-base-uncased"}, "fill-mask", 8),
        ({"id": "bert-base-uncased"}, "feature-extraction", 8),
        ({"id": "bert-base-uncased"}, "question-answering", 8),
        (
            {
                "id": "distilbert-base-uncased",
                "config": {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 64, "vocab_size": 99},
            },
            None,
            8,
        ),
        (
            {
                "id": "google/vit-base-patch16-224",
                "config": {
                    "image_size": 32,
                    "hidden_size": 32,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 2,
                    "intermediate_size": 64,
                },
            },
            None,
            None,
        ),
    ],
)
def test_other_tasks_and_architectures_pass_the_gate(
    neuron: Machine, model: dict[str, Any], task: str | None, length: int | None
) -> None:
    """Whatever a model returns comes back from its graph under its own name."""
    config = model.get("config")
    wanted = neuron_plan(model=model | {"task": task} | ({"config": config} if config else {}), shapes=((length, 2),))
    loaded, shape = _loaded(neuron, wanted), wanted.shapes[0]
    loaded.refer(shape)
    loaded.compile(shape)
    correctness = loaded.verify(shape)
    assert float(correctness.max_relative_error) < float(correctness.max_relative_error_allowed)


def _loaded(neuron: Machine, wanted: Plan) -> Any:  # noqa: ANN401  # the model of the back end
    return neuron.open(wanted, host()).load(wanted.model, Source())


def test_a_fresh_process_measures_too(tmp_path: Path, neuron: Machine, cache: Path) -> None:
    """The environment reaches the measuring process, where the runtime reads it."""
    outcome = make_run(tmp_path, neuron_plan(measurement=QUICK), Stage())
    outcome.run.open_backend, outcome.run.start = open_in_child, Child
    outcome.run.carry_out()
    ended = Ended(outcome.run)
    assert ended.failed == {}
    assert ended.measured == [0]
    assert ended.compilations[0].cache is CacheOutcome.MISS
    assert neuron.executions()[0] > 10
    assert len(list(cache.iterdir())) == 1


FAULTS: list[tuple[str, Mapping[str, Any], Phase, FailureReason, str]] = [
    ("killed", {"when": "trace", "returncode": -9}, Phase.COMPILE, FailureReason.COMPILE_OUT_OF_MEMORY, "memory"),
    (
        "unsupported",
        {"when": "trace", "text": "neuronx-cc failed with 70", "log": "ERROR [neuronx-cc]: NCC_EVRF001 no sort"},
        Phase.COMPILE,
        FailureReason.COMPILE_FAILED,
        "NCC_EVRF001",
    ),
    (
        "busy",
        {"when": "load", "text": "status=9 message=NC"},
        Phase.COMPILE,
        FailureReason.DEVICE_BUSY,
        "exclusiveNode",
    ),
    (
        "busy by its log",
        {"when": "load", "text": "could not be initialized", "log": "ERROR NRT: NeuronCore(s) not available - nc1"},
        Phase.COMPILE,
        FailureReason.DEVICE_BUSY,
        "NeuronCore(s) not available",
    ),
    (
        "driver",
        {"when": "load", "text": "could not be initialized", "log": "Unable to determine Neuron Driver version."},
        Phase.COMPILE,
        FailureReason.RUNTIME_INCOMPATIBLE,
        "driver",
    ),
    (
        "no device",
        {"when": "load", "text": "could not be initialized", "log": "TDRV: No neuron device available"},
        Phase.COMPILE,
        FailureReason.DEVICE_NOT_FOUND,
        "aws.amazon.com/neuron",
    ),
    (
        "memory",
        {"when": "load", "text": "status=4 message=Allocation Failure"},
        Phase.COMPILE,
        FailureReason.DEVICE_OUT_OF_MEMORY,
        "smaller batch",
    ),
    (
        "timeout",
        {"when": "call", "text": "status=5 message=Timeout"},
        Phase.VERIFY,
        FailureReason.DEVICE_TIMEOUT,
        "limit",
    ),
    ("fault", {"when": "call", "text": "status=1202 message=HW"}, Phase.VERIFY, FailureReason.HARDWARE_ERROR, "fault"),
    ("input", {"when": "call", "text": "status=1002 message=Bad"}, Phase.VERIFY, FailureReason.BAD_INPUT, "inputs"),
    (
        "no number",
        {"when": "call", "text": "status=1003 message=Numerical Error"},
        Phase.VERIFY,
        FailureReason.NUMERIC_MISMATCH,
        "no number",
    ),
    ("NaN", {"when": "call", "nan": True}, Phase.VERIFY, FailureReason.NUMERIC_MISMATCH, "not finite"),
    (
        "mask and types swapped",
        {"when": "call", "swap": [1, 2]},
        Phase.VERIFY,
        FailureReason.NUMERIC_MISMATCH,
        "",
    ),
    ("idle", {"when": "call", "idle": True}, Phase.VERIFY, FailureReason.DEVICE_NOT_FOUND, "did nothing"),
    ("plain graph", {"when": "graph", "plain": True}, Phase.VERIFY, FailureReason.DEVICE_NOT_FOUND, "cpu"),
]


@pytest.mark.parametrize(("fault", "phase", "reason", "words"), [pytest.param(*row[1:], id=row[0]) for row in FAULTS])
def test_what_goes_wrong_has_its_reason_and_phase(
    tmp_path: Path, neuron: Machine, fault: Mapping[str, Any], phase: Phase, reason: FailureReason, words: str
) -> None:
    """Each way in which compiler, runtime and device fail is one typed failure of the shape, with a way out."""
    neuron.fail(fault)
    failed = carried_out(tmp_path, neuron).failed[0]
    assert (failed.phase, failed.reason) == (phase, reason), failed.message
    assert words in failed.message


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"when": "trace", "shape": [1, 16], "text": "neuronx-cc failed with 70"}, FailureReason.COMPILE_FAILED),
        ({"when": "load", "shape": [1, 16], "text": "status=4 message=x"}, FailureReason.DEVICE_OUT_OF_MEMORY),
    ],
)
def test_a_shape_that_can_not_be_had_does_not_stop_the_others(
    tmp_path: Path, neuron: Machine, fault: Mapping[str, Any], reason: FailureReason
) -> None:
    """One shape's graph fails; the others are measured in the same process."""
    neuron.fail(fault)
    ended = carried_out(tmp_path, neuron, shapes=shapes(8, 16, 4))
    assert {index: failed.reason for index, failed in ended.failed.items()} == {1: reason}
    assert ended.measured == [0, 2]


def test_a_fault_in_the_middle_of_the_measuring_is_typed(neuron: Machine) -> None:
    """The runtime fails a call that nobody verifies; the graph is let go."""
    wanted = neuron_plan(measurement=QUICK)
    loaded = _loaded(neuron, wanted)
    shape = wanted.shapes[0]
    loaded.refer(shape)
    loaded.compile(shape)
    loaded.verify(shape)
    context = loaded.bound(shape)
    bound = context.__enter__()
    neuron.fail({"when": "call", "text": "Failed to execute the model status=101 message=x"})
    with pytest.raises(RuntimeError, match="status=101") as raised:
        bound.call()
    with pytest.raises(RunnerError) as caught:
        context.__exit__(raised.type, raised.value, raised.tb)
    assert caught.value.reason is FailureReason.HARDWARE_ERROR


def test_a_call_runs_on_what_its_graph_was_compiled_for_only(neuron: Machine) -> None:
    """A graph is static: inputs of another shape are refused, by a failure of their own."""
    wanted = neuron_plan(shapes=shapes(8, 16))
    loaded = _loaded(neuron, wanted)
    one, other = wanted.shapes
    for shape in wanted.shapes:
        loaded.refer(shape)
    loaded.compile(one)
    loaded._copies[other] = loaded._copies[one]  # noqa: SLF001  # a mistake that the back end doesn't make
    with pytest.raises(RunnerError) as caught:
        loaded.verify(other)
    assert caught.value.reason is FailureReason.BAD_INPUT


def test_without_a_device_nothing_is_measured_on_the_processor(tmp_path: Path, neuron: Machine) -> None:
    """The libraries would only warn; here it is a failure, before they are imported."""
    neuron.remove_device()
    failed = carried_out(tmp_path, neuron).failed[0]
    assert (failed.phase, failed.reason) == (Phase.PROBE, FailureReason.DEVICE_NOT_FOUND)
    assert "torch_neuronx" not in sys.modules


def test_the_real_machine_has_no_device(neuron: Machine) -> None:
    """The usual way in looks at the real files, and finds none here."""
    del neuron
    if Path("/dev/neuron0").exists():
        pytest.skip("this machine has a Neuron device")
    with pytest.raises(RunnerError) as caught:
        open_backend(neuron_plan(), host())
    assert caught.value.reason is FailureReason.DEVICE_NOT_FOUND


def test_more_cores_than_there_are(tmp_path: Path, neuron: Machine) -> None:
    """An inf2.xlarge has two."""
    failed = carried_out(tmp_path, neuron, device={"cores": 3}).failed[0]
    assert (failed.phase, failed.reason) == (Phase.PROBE, FailureReason.INVALID_PLAN)
    assert failed.message.startswith("device.cores: 3 is more than the 2 there are")


def test_libraries_that_are_missing_are_named(neuron: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """With where they are to be had."""
    monkeypatch.setitem(sys.modules, "torch_neuronx", None)
    with pytest.raises(RunnerError, match=r"torch_neuronx.*runner-neuronx.*AWS's pip repository") as caught:
        _loaded(neuron, neuron_plan())
    assert caught.value.reason is FailureReason.MISSING_DEPENDENCY


def test_a_library_without_trace_is_incompatible(neuron: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """From PyTorch 2.10 on, there is no trace any more."""
    import torch_neuronx  # noqa: PLC0415  # the double, from the fixture on

    monkeypatch.delattr(torch_neuronx, "trace")
    with pytest.raises(RunnerError, match="use TorchNeuron") as caught:
        _loaded(neuron, neuron_plan())
    assert caught.value.reason is FailureReason.RUNTIME_INCOMPATIBLE


# The cache.


def test_the_second_run_finds_the_graphs_of_the_first(tmp_path: Path, neuron: Machine, cache: Path) -> None:
    """A miss that says why, then a hit with the same key, and nothing is compiled any more."""
    first = carried_out(tmp_path, neuron, shapes=shapes(8, 16)).compilations
    assert {(one.cache, one.miss) for one in first} == {(CacheOutcome.MISS, "no entry")}
    neuron.fail({"when": "trace", "text": "neuronx-cc failed with 1"})
    ended = carried_out(tmp_path, neuron, shapes=shapes(8, 16))
    assert ended.measured == [0, 1]
    assert [(one.cache, one.miss, one.key) for one in ended.compilations] == [
        (CacheOutcome.HIT, "", one.key) for one in first
    ]
    assert {path.name for path in cache.iterdir()} == {one.key for one in first}


@pytest.mark.parametrize(
    ("fields", "miss"),
    [
        ({"seed": 1}, "no entry"),
        ({"model": {"task": "fill-mask"}}, "no entry"),
        ({"precision": "bf16"}, "entry of arguments --auto-cast none"),
    ],
)
def test_another_graph_has_another_key(
    tmp_path: Path, neuron: Machine, cache: Path, fields: dict[str, Any], miss: str
) -> None:
    """Other weights, another task or precision: all of it is compiled anew."""
    carried_out(tmp_path, neuron)
    (found,) = carried_out(tmp_path, neuron, **fields).compilations
    assert found.cache is CacheOutcome.MISS
    assert found.miss.startswith(miss)
    assert len(list(cache.iterdir())) == 2


def test_a_graph_of_another_compiler_is_made_anew(tmp_path: Path, neuron: Machine, cache: Path) -> None:
    """The old one would not load; the miss names both versions, and both stay."""
    carried_out(tmp_path, neuron)
    neuron.install(neuronx_cc="2.22.0")
    ended = carried_out(tmp_path, neuron)
    assert ended.measured == [0]
    assert ended.compilations[0].miss == "entry of compiler neuronx-cc 2.21.33363.0, now 2.22.0"
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("name", [GRAPH, ENTRY])
def test_a_damaged_graph_is_made_anew(tmp_path: Path, neuron: Machine, cache: Path, name: str) -> None:
    """It never reaches the device, and the next run finds a whole one."""
    carried_out(tmp_path, neuron)
    path = next(cache.iterdir()) / name
    path.write_bytes(path.read_bytes()[:-9])
    (found,) = carried_out(tmp_path, neuron).compilations
    assert found.miss.startswith("damaged: ")
    (again,) = carried_out(tmp_path, neuron).compilations
    assert again.cache is CacheOutcome.HIT


def full(*_: object, **__: object) -> None:
    """Be a disk without room."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_does_not_stop_a_measurement(
    tmp_path: Path, neuron: Machine, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph is used and not kept, and the report says so."""
    monkeypatch.setattr(shutil, "copyfile", full)
    ended = carried_out(tmp_path, neuron)
    assert ended.measured == [0]
    assert ended.compilations[0].miss == "no entry; not stored: No space left on device"
    assert list(cache.iterdir()) == []


def test_a_cache_that_can_not_be_made_does_not_stop_a_measurement(tmp_path: Path, neuron: Machine) -> None:
    """Neither for graphs nor, though PyTorch makes its own when it is imported, for anything else."""
    del neuron  # its environment is this one
    (tmp_path / "cache").write_text("no folder", encoding="utf-8")
    os.environ[CACHE_VARIABLE] = str(tmp_path / "cache")
    outcome = make_run(tmp_path, neuron_plan(measurement=QUICK), Stage())
    outcome.run.open_backend, outcome.run.start = open_in_child, Child
    outcome.run.carry_out()
    ended = Ended(outcome.run)
    assert ended.measured == [0], ended.failed
    assert ended.compilations[0].miss.startswith("no entry; not stored: ")


# Compiling ahead.


def filled(tmp_path: Path, neuron: Machine, wanted: Plan) -> tuple[Filling, bool, list[str]]:
    """Fill the cache in this process; return the pass, whether all went well and what was said."""
    said: list[str] = []
    outlet = Outlet(tmp_path / "message", may_create=True, say=said.append)
    filling = Filling(wanted, outlet, neuron.open_compiler, Stage().start)
    return filling, filling.carry_out(), said


def test_graphs_that_were_compiled_without_a_device_are_found_by_the_measurement(
    tmp_path: Path, neuron: Machine, cache: Path
) -> None:
    """For the family of the device that measures, under the very same key."""
    wanted = neuron_plan(shapes=shapes(8, 16), measurement=QUICK)
    devices = (neuron.root / "proc/devices").read_text()
    neuron.remove_device()
    os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "inf2"
    _, done, said = filled(tmp_path, neuron, wanted)
    assert done, said
    assert all("Miss (no entry)" in line for line in said)
    assert neuron.executions() == [0, 0]
    (neuron.root / "proc/devices").write_text(devices)
    ended = carried_out(tmp_path, neuron, shapes=shapes(8, 16))
    assert {one.cache for one in ended.compilations} == {CacheOutcome.HIT}
    assert {one.key for one in ended.compilations} == {path.name for path in cache.iterdir()}


def test_compiling_again_finds_everything(tmp_path: Path, neuron: Machine, cache: Path) -> None:
    """With a device too, nothing is loaded onto it."""
    for outcome in ("Miss", "Hit"):
        _, done, said = filled(tmp_path, neuron, neuron_plan())
        assert done
        assert f": {outcome}" in said[0]
    assert neuron.executions() == [0, 0]
    assert len(list(cache.iterdir())) == 1


def test_a_graph_that_can_not_be_kept_fails_the_compile_command(
    tmp_path: Path, neuron: Machine, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeping it is all that was asked for: the sentence names the variable, and the termination message has it."""
    monkeypatch.setattr(shutil, "copyfile", full)
    filling, done, _ = filled(tmp_path, neuron, neuron_plan())
    assert not done
    assert (filling.failed[0].phase, filling.failed[0].reason) == (Phase.COMPILE, FailureReason.CACHE_UNWRITABLE)
    assert str(cache) in filling.failed[0].message
    assert CACHE_VARIABLE in filling.failed[0].message
    report = CompactReport.model_validate_json((tmp_path / "message").read_bytes())
    assert report.failed == tuple(filling.failed)


def test_one_shape_that_does_not_compile_leaves_the_others(tmp_path: Path, neuron: Machine, cache: Path) -> None:
    """All that can be had is in the cache afterwards."""
    neuron.fail({"when": "trace", "shape": [1, 16], "returncode": -9})
    filling, done, _ = filled(tmp_path, neuron, neuron_plan(shapes=shapes(8, 16, 4)))
    assert not done
    assert [(one.cell, one.reason) for one in filling.failed] == [(cell(1), FailureReason.COMPILE_OUT_OF_MEMORY)]
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize(
    ("variables", "fields", "target", "words"),
    [
        ({CACHE_VARIABLE: ""}, {}, "inf2", CACHE_VARIABLE),
        ({}, {}, None, "--target"),
        ({}, {"device": {"execution": "TorchNeuron"}}, "trn2", "device.execution"),
        ({}, {"device": {"kind": "CPU"}}, "trn2", "--target: CPU has no families"),
        ({}, {"precision": "fp32"}, "inf1", "fp32"),
    ],
)
def test_what_can_not_be_compiled_ahead_is_refused(
    neuron: Machine, cache: Path, variables: dict[str, str], fields: dict[str, Any], target: str | None, words: str
) -> None:
    """Before anything heavy is done."""
    del neuron, cache
    os.environ.update(variables)
    with pytest.raises(RunnerError, match=words):
        open_compiler(neuron_plan(**fields), host(), target)


# Precisions and other ways.


@pytest.mark.parametrize(
    ("precision", "casts"),
    [
        (Precision.FP32, ("--auto-cast", "none")),
        (Precision.BF16, ("--auto-cast", "all", "--auto-cast-type", "bf16")),
        (Precision.FP16, ("--auto-cast", "all", "--auto-cast-type", "fp16")),
        (Precision.TF32, ("--auto-cast", "matmult", "--auto-cast-type", "tf32")),
    ],
)
def test_the_compiler_is_always_told_the_precision(precision: Precision, casts: tuple[str, ...]) -> None:
    """What it would do by itself has changed between releases."""
    assert compiler_arguments(precision, "inf2", transformer=True)[: len(casts)] == casts
    assert compiler_arguments(precision, "trn1", transformer=False)[-4:] == (
        "--target",
        "trn1",
        "--model-type",
        "generic",
    )


def test_the_first_generation_has_16_bits_only() -> None:
    """What its compiler calls no cast still multiplies in bfloat16."""
    assert inf1_arguments(Precision.BF16) == ("--fast-math", "fp32-cast-all", "no-fast-relayout")
    assert inf1_arguments(Precision.FP16) == ("--fast-math", "fp32-cast-all-fp16", "no-fast-relayout")


@pytest.mark.parametrize(
    ("fields", "reason", "words"),
    [
        ({"device": {"execution": "Eager"}}, FailureReason.EXECUTION_UNSUPPORTED, ["Eager", "Trace or TorchNeuron"]),
        (
            {"device": {"execution": "TorchNeuron"}, "precision": "tf32"},
            FailureReason.PRECISION_UNSUPPORTED,
            ["TorchNeuron on Neuron inf2", "fp32, bf16 or fp16"],
        ),
        (
            {"device": {"execution": "TorchNeuron"}, "measurement": {"load": {"concurrency": 2}}},
            FailureReason.INVALID_PLAN,
            ["measurement.load.concurrency: TorchNeuron has one copy", "Trace"],
        ),
        (
            {"device": {"execution": "TorchNeuron", "cores": 2}},
            FailureReason.INVALID_PLAN,
            ["device.cores: TorchNeuron has one copy", "on one core", "Trace"],
        ),
        (
            {"device": {"cores": 2}},
            FailureReason.INVALID_PLAN,
            ["device.cores: a traced graph runs on one core", "measurement.load.concurrency"],
        ),
    ],
)
def test_what_the_device_can_not_do_is_refused(
    neuron: Machine, fields: dict[str, Any], reason: FailureReason, words: list[str]
) -> None:
    """With what it can do instead."""
    with pytest.raises(RunnerError) as caught:
        neuron.open(neuron_plan(**fields), host())
    assert caught.value.reason is reason
    assert all(word in str(caught.value) for word in words)


def test_torch_neuron_needs_a_newer_pytorch(neuron: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 2.10, `trace` is the way."""
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    wanted = neuron_plan(device={"execution": "TorchNeuron"})
    loaded = _loaded(neuron, wanted)
    loaded.refer(wanted.shapes[0])
    with pytest.raises(RunnerError, match=r"2\.10") as caught:
        loaded.compile(wanted.shapes[0])
    assert caught.value.reason is FailureReason.RUNTIME_INCOMPATIBLE


def test_torch_neuron_compiles_for_its_device_and_copies_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model and its inputs are moved, the back end is Neuron's, and host tensors come out."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr("inferbench_runner.backends.neuron.native.PLACE", "cpu")

    def compiled(model: Any, **how: Any) -> Any:  # noqa: ANN401  # as the real one
        asked.append(how)
        return model

    monkeypatch.setattr(torch, "compile", compiled)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 2)

        def forward(self, pixel_values: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logits": self.layer(pixel_values)}

    model = Model()
    graph = TorchNeuron(Precision.BF16).make(model, {"pixel_values": torch.ones(1, 3)})
    assert asked == [{"backend": "cpu", "dynamic": False}]
    output = graph.forward({"pixel_values": torch.ones(1, 3)})
    assert output.logits.dtype is torch.bfloat16
    assert model.layer.weight.dtype is torch.float32
    assert graph.places == {"cpu"}


@pytest.mark.parametrize(("precision", "cast"), [("bf16", "fp32-cast-all"), ("fp16", "fp32-cast-all-fp16")])
def test_the_first_generation_is_traced_by_its_own_library(
    tmp_path: Path, neuron: Machine, cache: Path, precision: str, cast: str
) -> None:
    """Behind the same interface: compiled by name, kept as a file, loaded onto its cores, found again and measured."""
    neuron.be_inf1()
    for outcome in (CacheOutcome.MISS, CacheOutcome.HIT):
        ended = carried_out(tmp_path, neuron, precision=precision)
        assert ended.measured == [0], ended.failed
        facts = ended.run.facts
        assert facts["compilerArguments"] == f"--fast-math {cast} no-fast-relayout"
        assert facts["compiler"] == f"neuron-cc {INF1_VERSIONS['neuron-cc']}"
        assert facts["graphMaker"] == f"torch.neuron.trace of torch-neuron {INF1_VERSIONS['torch-neuron']}"
        assert facts["deviceTarget"] == "inf1"
        assert [(one.arguments, one.cache) for one in ended.compilations] == [(facts["compilerArguments"], outcome)]
    header = next(cache.iterdir()) / GRAPH
    assert f'"arguments": ["--fast-math", "{cast}", "no-fast-relayout"]'.encode() in header.read_bytes()
    first, second = neuron.executions()
    assert first > 20
    assert second == 0


def test_the_first_generations_copies_have_cores_of_their_own(tmp_path: Path, neuron: Machine) -> None:
    """As those of the others, by what its library calls experimental."""
    neuron.be_inf1()
    ended = carried_out(tmp_path, neuron, precision="bf16", measurement={"load": {"concurrency": 2}})
    assert ended.measured == [0], ended.failed
    assert all(count > 10 for count in neuron.executions())


@pytest.mark.parametrize(
    ("fields", "reason", "words"),
    [
        ({}, FailureReason.PRECISION_UNSUPPORTED, "Neuron inf1 has no fp32; use bf16 or fp16"),
        ({"precision": "tf32"}, FailureReason.PRECISION_UNSUPPORTED, "Neuron inf1 has no tf32"),
        ({"device": {"execution": "TorchNeuron"}}, FailureReason.EXECUTION_UNSUPPORTED, "use Trace"),
    ],
)
def test_what_the_first_generation_can_not_do_is_refused(
    neuron: Machine, fields: dict[str, Any], reason: FailureReason, words: str
) -> None:
    """It multiplies in 16 bits only, and PyTorch's own compiler has nothing for it."""
    neuron.be_inf1()
    with pytest.raises(RunnerError, match=words) as caught:
        neuron.open(neuron_plan(**fields), host())
    assert caught.value.reason is reason


@pytest.mark.parametrize("missing", ["torch_neuron", "neuroncc"])
def test_the_first_generations_libraries_are_in_no_image(
    neuron: Machine, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """The way out is another one than for those of the later generations."""
    neuron.be_inf1()
    if missing == "torch_neuron":
        monkeypatch.setitem(sys.modules, missing, None)
    else:
        neuron.remove("neuron_cc")
    with pytest.raises(RunnerError, match=rf"{missing} is missing; no image has it.*AWS's pip") as caught:
        _loaded(neuron, neuron_plan(precision="bf16"))
    assert caught.value.reason is FailureReason.MISSING_DEPENDENCY


def test_keys_hold_for_pretrained_files_too(neuron: Machine, cache: Path, tmp_path: Path) -> None:
    """Files without a commit are told apart by their content."""
    del cache
    keys = []
    for number in range(2):
        directory = tmp_path / "model"
        model = write_bert(directory)
        if number:
            with torch.no_grad():
                model.classifier.weight.mul_(2)
            model.save_pretrained(directory)
        wanted = neuron_plan(model={"id": str(directory), "weights": "Pretrained", "config": {}})
        backend = neuron.open(wanted, host())
        loaded = backend.load(wanted.model, backend.fetch(wanted.model))
        loaded.refer(wanted.shapes[0])
        found = loaded.compile(wanted.shapes[0])
        assert found is not None
        loaded.verify(wanted.shapes[0])
        keys.append(found.key)
    assert len(set(keys)) == 2
