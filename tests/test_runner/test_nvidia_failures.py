"""What a device does not do, or has no room for, is a failure with a reason and never a number."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="install the torch extra to test the NVIDIA back end")

import torch

from inferbench_runner.backends import cudacalls
from inferbench_runner.backends.tasks import TASKS
from inferbench_runner.contract import FailureReason
from inferbench_runner.errors import DeviceUnusedError, OutOfMemoryError, RunnerError
from test_runner.fake_cuda import COMPILE, GRAPHS, LEGACY, FakeCuda, called, exhausted, first, nvidia_model
from test_runner.on_device import to_host

pytestmark = pytest.mark.usefixtures("tf32_as_before")

OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.72 GiB."


@pytest.mark.parametrize("measurement", [{}, LEGACY], ids=["sound", "as in 2023"])
@pytest.mark.parametrize(
    ("cuda", "words"),
    [(FakeCuda(falls_back=True), "on cpu"), (FakeCuda(step_ns=0), "did nothing")],
    ids=["elsewhere", "idle"],
)
def test_work_that_the_device_did_not_do_is_refused(cuda: FakeCuda, words: str, measurement: dict[str, Any]) -> None:
    """Tensors in another place, or no time between the marks, end in a failure and not in a number."""
    loaded = nvidia_model(cuda, measurement=measurement)
    with pytest.raises(RunnerError, match=words) as caught:
        loaded.verify(first(loaded))
    assert caught.value.reason is FailureReason.DEVICE_NOT_FOUND


@pytest.mark.parametrize("measurement", [{}, LEGACY], ids=["sound", "as in 2023"])
def test_an_output_that_is_elsewhere_is_refused(measurement: dict[str, Any]) -> None:
    """Weights on the device are not enough: what is verified looks at where its output is."""
    loaded = nvidia_model(FakeCuda(), measurement=measurement)
    forward = loaded._placed.forward  # noqa: SLF001  # what falls back

    def elsewhere(**inputs: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=to_host(forward(**inputs).logits))

    loaded._placed.forward = elsewhere  # noqa: SLF001
    with pytest.raises(DeviceUnusedError, match="the model's output is on cpu"):
        loaded.verify(first(loaded))


@pytest.mark.parametrize("measurement", [{}, LEGACY], ids=["sound", "as in 2023"])
def test_a_weight_that_is_elsewhere_is_refused(measurement: dict[str, Any]) -> None:
    """An output on the device is not enough either: a layer that stayed on the host took the time of its copies."""
    loaded = nvidia_model(FakeCuda(), measurement=measurement)
    loaded._placed.register_buffer("stray", torch.zeros(1))  # noqa: SLF001  # what was not moved
    with pytest.raises(DeviceUnusedError, match="the model's weights are on cpu and cuda"):
        loaded.verify(first(loaded))


def test_each_call_looks_at_where_its_output_is() -> None:
    """Also those that are timed, long after the shape was verified."""
    output = SimpleNamespace(logits=torch.zeros(1, 2))
    call = cudacalls.returning(lambda _: output, FakeCuda(), TASKS["text-classification"])
    with pytest.raises(DeviceUnusedError, match="the model's output is on cpu"):
        call({})


@pytest.mark.parametrize("device", [{}, GRAPHS, COMPILE], ids=["eager", "graphs", "compiled"])
@pytest.mark.usefixtures("traced")
def test_a_batch_that_does_not_fit_is_typed_and_lets_go(device: dict[str, Any]) -> None:
    """Memory of the device has a reason of its own, in whatever step it runs out, and the shape can be tried again."""
    loaded = nvidia_model(FakeCuda(), device=device)
    shape = first(loaded)
    with exhausted(loaded, torch.OutOfMemoryError(OUT_OF_MEMORY)):
        for step in (loaded.compile, loaded.verify, lambda one: called(loaded, one)):
            if step == loaded.compile and not device:
                continue
            with pytest.raises(RunnerError, match="total capacity") as caught:
                step(shape)
            assert caught.value.reason is FailureReason.DEVICE_OUT_OF_MEMORY
            assert loaded._graphs == {}  # noqa: SLF001  # what takes up the memory
    loaded.compile(shape)
    loaded.verify(shape)


def test_memory_of_the_host_is_told_apart() -> None:
    """PyTorch's words for a failed allocation on the host don't blame the device."""
    loaded = nvidia_model(FakeCuda())
    words = RuntimeError("DefaultCPUAllocator: can't allocate memory")
    with exhausted(loaded, words), pytest.raises(OutOfMemoryError):
        loaded.verify(first(loaded))
