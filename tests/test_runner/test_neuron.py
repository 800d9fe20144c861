"""The Neuron back end in whole runs, with real models and with libraries that keep the rules of Neuron's own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="install the torch extra to test the Neuron back end")

from inferbench_runner.backends import open_backend
from inferbench_runner.child import Child
from inferbench_runner.contract import CacheOutcome, FailureReason, Phase
from inferbench_runner.errors import RunnerError
from test_runner.builders import Stage, host, make_run
from test_runner.neuron import QUICK, VERSIONS, Ended, Machine, carried_out, neuron_plan, open_in_child, shapes

pytestmark = pytest.mark.filterwarnings("ignore:No Neuron device")


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
    loaded, shape = neuron.load(wanted), wanted.shapes[0]
    loaded.refer(shape)
    loaded.compile(shape)
    correctness = loaded.verify(shape)
    assert float(correctness.max_relative_error) < float(correctness.max_relative_error_allowed)


def test_a_fresh_process_measures_too(tmp_path: Path, neuron: Machine, graphs: Path) -> None:
    """The environment reaches the measuring process, where the runtime reads it."""
    outcome = make_run(tmp_path, neuron_plan(measurement=QUICK), Stage())
    outcome.run.open_backend, outcome.run.start = open_in_child, Child
    outcome.run.carry_out()
    ended = Ended(outcome.run)
    assert ended.failed == {}
    assert ended.measured == [0]
    assert ended.compilations[0].cache is CacheOutcome.MISS
    assert neuron.executions()[0] > 10
    assert len(list(graphs.iterdir())) == 1


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
    loaded = neuron.load(wanted)
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
    loaded = neuron.load(wanted)
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
        neuron.load(neuron_plan())
    assert caught.value.reason is FailureReason.MISSING_DEPENDENCY


def test_a_library_without_trace_is_incompatible(neuron: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """From PyTorch 2.10 on, there is no trace any more."""
    import torch_neuronx  # noqa: PLC0415  # the double, from the fixture on

    monkeypatch.delattr(torch_neuronx, "trace")
    with pytest.raises(RunnerError, match="use TorchNeuron") as caught:
        neuron.load(neuron_plan())
    assert caught.value.reason is FailureReason.RUNTIME_INCOMPATIBLE
