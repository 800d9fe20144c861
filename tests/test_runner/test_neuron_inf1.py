"""The first generation of Inferentia, with a double of its library, which ended with PyTorch 1.13 and Python 3.10."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="install the torch extra to test the Neuron back end")

from inferbench_runner.artefacts import GRAPH
from inferbench_runner.backends.neuron.arguments import inf1_arguments
from inferbench_runner.contract import CacheOutcome, FailureReason, Precision
from inferbench_runner.errors import RunnerError
from test_runner.builders import host
from test_runner.neuron import INF1_VERSIONS, Machine, carried_out, neuron_plan

pytestmark = pytest.mark.filterwarnings("ignore:No Neuron device")


def test_the_first_generation_has_16_bits_only() -> None:
    """What its compiler calls no cast still multiplies in bfloat16."""
    assert inf1_arguments(Precision.BF16) == ("--fast-math", "fp32-cast-all", "no-fast-relayout")
    assert inf1_arguments(Precision.FP16) == ("--fast-math", "fp32-cast-all-fp16", "no-fast-relayout")


@pytest.mark.parametrize(("precision", "cast"), [("bf16", "fp32-cast-all"), ("fp16", "fp32-cast-all-fp16")])
def test_the_first_generation_is_traced_by_its_own_library(
    tmp_path: Path, neuron: Machine, graphs: Path, precision: str, cast: str
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
    header = next(graphs.iterdir()) / GRAPH
    assert f'"arguments": ["--fast-math", "{cast}", "no-fast-relayout"]'.encode() in header.read_bytes()
    first, second = neuron.executions()
    assert first > 2 * 2
    assert second == 0


def test_the_first_generations_copies_have_cores_of_their_own(tmp_path: Path, neuron: Machine) -> None:
    """As those of the others, by what its library calls experimental."""
    neuron.be_inf1()
    ended = carried_out(tmp_path, neuron, precision="bf16", measurement={"load": {"concurrency": 2}})
    assert ended.measured == [0], ended.failed
    assert all(count > 2 for count in neuron.executions())


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
def test_the_first_generations_libraries_are_in_an_image_of_their_own(
    neuron: Machine, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """The way out is another one than for those of the later generations."""
    neuron.be_inf1()
    if missing == "torch_neuron":
        monkeypatch.setitem(sys.modules, missing, None)
    else:
        neuron.remove("neuron_cc")
    with pytest.raises(RunnerError, match=rf"{missing} is missing; use the image runner-neuron-inf1") as caught:
        neuron.load(neuron_plan(precision="bf16"))
    assert caught.value.reason is FailureReason.MISSING_DEPENDENCY
