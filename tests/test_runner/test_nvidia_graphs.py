"""CUDA graphs of real models, which the stand-in for the device computes anew at each replay."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="install the torch extra to test the NVIDIA back end")

import torch

from inferbench_runner.backends import open_backend
from inferbench_runner.contract import FailureReason
from inferbench_runner.errors import RunnerError
from test_runner.builders import host, plan
from test_runner.fake_cuda import GRAPHS, LEGACY, FakeCuda, called, exhausted, first, nvidia_model

pytestmark = pytest.mark.usefixtures("tf32_as_before")


def test_a_graph_is_recorded_once_after_three_calls_on_a_stream_of_their_own() -> None:
    """Compiling a shape warms up aside and records; verifying and calling only replay, until the shape is let go."""
    cuda = FakeCuda()
    loaded = nvidia_model(cuda, device=GRAPHS, shapes=((8, 1), (16, 1)))
    one, other = loaded.plan.shapes
    log = cuda.logged(lambda: loaded.compile(one))
    begun = log.index("stream")
    assert log[begun : begun + 6] == ["stream", "forward", "forward", "forward", "end of stream", "capture"]
    compilation = loaded.compile(other)
    assert (compilation.compiler, compilation.arguments) == (f"CUDA graphs of torch {torch.__version__}", "warmups=3")
    assert cuda.log.count("capture") == 2
    for shape in (one, other):
        loaded.verify(shape)
        called(loaded, shape)
    assert cuda.log.count("capture") == 2
    assert loaded._graphs == {}  # noqa: SLF001
    loaded.compile(one)
    assert cuda.log.count("capture") == 3


def test_inputs_of_another_kind_have_a_graph_of_their_own() -> None:
    """What a tokenizer doesn't yield is not what another call has left there."""
    loaded = nvidia_model(FakeCuda(), device=GRAPHS, model={"task": "feature-extraction"})
    loaded.compile(first(loaded))
    with loaded.bound(first(loaded)) as bound, bound.worker():
        call: Any = bound.call
        inputs = dict(call.args[0])
        call.args[0]["token_type_ids"].fill_(1)
        typed = call().last_hidden_state
        del inputs["token_type_ids"]
        plain = call.func(inputs).last_hidden_state
        call.args[0]["token_type_ids"].fill_(0)
        assert torch.equal(call().last_hidden_state, plain)
        assert not torch.equal(typed, plain)


def test_a_model_that_no_graph_can_hold_fails_to_compile() -> None:
    """What CUDA says about a forbidden operation is quoted, with the execution as the way out."""
    loaded = nvidia_model(FakeCuda(), device=GRAPHS)
    words = RuntimeError("CUDA error: operation not permitted when stream is capturing")
    expected = r"CUDA graphs of torch .*device\.execution.*not permitted"
    with exhausted(loaded, words), pytest.raises(RunnerError, match=expected) as caught:
        loaded.compile(first(loaded))
    assert caught.value.reason is FailureReason.COMPILE_FAILED


@pytest.mark.parametrize(
    ("measurement", "field"),
    [
        ({"load": {"concurrency": 2}}, "measurement.load.concurrency"),
        (LEGACY, "measurement.profile"),
    ],
)
def test_what_a_graph_can_not_be_measured_in_is_refused(measurement: dict[str, Any], field: str) -> None:
    """Calls that overlap, and inputs that stay on the device, contradict one place for all inputs."""
    with pytest.raises(RunnerError, match=field) as caught:
        open_backend(plan(device={"kind": "NVIDIA"} | GRAPHS, measurement=measurement), host())
    assert caught.value.reason is FailureReason.INVALID_PLAN
