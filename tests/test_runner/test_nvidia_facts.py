"""What of a device can be asked for, and what a report says about it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="install the torch extra to test the NVIDIA back end")

import torch

from inferbench_runner.backends.nvml import open_monitor
from inferbench_runner.backends.tf32 import allow_tf32
from inferbench_runner.contract import FailureReason
from inferbench_runner.errors import RunnerError
from test_runner.fake_cuda import COMPILE, GRAPHS, FakeCuda, called, nvidia_backend, nvidia_model
from test_runner.fake_nvml import UUID, fake_nvml

pytestmark = pytest.mark.usefixtures("tf32_as_before")


@pytest.mark.parametrize(
    ("capability", "precision", "supported"),
    [
        ((5, 2), "fp16", "use fp32"),
        ((7, 5), "bf16", "fp32 or fp16"),
        ((7, 5), "tf32", "fp32 or fp16"),
    ],
)
def test_a_precision_that_the_device_lacks_is_refused(
    capability: tuple[int, int], precision: str, supported: str
) -> None:
    """The sentence names the device, its compute capability, and what it has."""
    with pytest.raises(RunnerError, match=f"Fake GPU with compute capability .* {supported}") as caught:
        nvidia_backend(FakeCuda(capability=capability), precision=precision)
    assert caught.value.reason is FailureReason.PRECISION_UNSUPPORTED


@pytest.mark.parametrize(("capability", "precision"), [((5, 3), "fp16"), ((8, 0), "bf16"), ((8, 0), "tf32")])
def test_the_first_devices_with_a_precision_are_accepted(capability: tuple[int, int], precision: str) -> None:
    """The limits themselves count as enough."""
    assert nvidia_backend(FakeCuda(capability=capability), precision=precision).facts["device"] == "Fake GPU"


@pytest.mark.parametrize(("precision", "expected"), [("fp32", "off"), ("tf32", "on"), ("bf16", "off")])
def test_both_switches_of_tf32_follow_the_precision(precision: str, expected: str) -> None:
    """Neither keeps its default; the references are computed without TF32 in any case."""
    allow_tf32(allowed=expected == "off")
    cuda = FakeCuda()
    backend = nvidia_backend(cuda, precision=precision)
    assert (backend.facts["matmulTF32"], backend.facts["cudnnTF32"]) == (expected, expected)
    during: list[bool] = []
    loaded = nvidia_model(cuda, precision=precision)
    during += [torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32]
    called(loaded)
    after = [torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32]
    assert (during, after) == ([False, False], [expected == "on"] * 2)


def test_facts_say_what_has_to_be_equal() -> None:
    """Execution, precision, switches, libraries, driver, device and its limits are there, and short."""
    cuda, monitor = FakeCuda(), open_monitor(UUID, fake_nvml(), {})
    facts = dict(nvidia_backend(cuda, monitor, device=GRAPHS, precision="tf32").facts)
    facts |= nvidia_model(cuda, monitor, device=GRAPHS, precision="tf32").facts
    wanted = {
        "execution": "CUDAGraphs",
        "compiler": f"CUDA graphs of torch {torch.__version__}",
        "compilerArguments": "warmups=3",
        "precision": "tf32",
        "autograd": "off",
        "device": "Fake GPU",
        "computeCapability": "9.0",
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "driver": "580.65.06",
        "cudaDriver": "13.2",
        "powerLimit": "300 W",
        "attention": "sdpa",
    }
    assert {name: facts[name] for name in wanted} == wanted
    assert "events" in facts["deviceProof"]
    assert len(facts) <= 45
    assert max(len(value) for value in facts.values()) <= 256


def test_facts_name_the_compiler_where_there_is_one() -> None:
    """With its version and arguments, for each execution."""
    found = [nvidia_backend(FakeCuda(), device=device).facts for device in ({}, COMPILE, GRAPHS)]
    assert [(facts["execution"], facts.get("compiler"), facts.get("compilerArguments")) for facts in found] == [
        ("Eager", None, None),
        ("Compile", f"inductor of torch {torch.__version__}", "dynamic=False mode=default"),
        ("CUDAGraphs", f"CUDA graphs of torch {torch.__version__}", "warmups=3"),
    ]
