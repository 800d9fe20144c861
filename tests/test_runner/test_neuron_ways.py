"""What Neuron's compilers are told, PyTorch's own compiler as another way, and what is refused before either."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="install the torch extra to test the Neuron back end")

import torch

from inferbench_runner.backends.neuron.arguments import compiler_arguments
from inferbench_runner.backends.neuron.native import TorchNeuron
from inferbench_runner.contract import FailureReason, Precision
from inferbench_runner.errors import RunnerError
from test_runner.builders import host
from test_runner.neuron import Machine, neuron_plan

pytestmark = pytest.mark.filterwarnings("ignore:No Neuron device")


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
    loaded = neuron.load(wanted)
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
