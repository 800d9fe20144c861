"""The method of 2023 on a device: inputs that are there before the clock starts, and nobody who waits for an output."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

pytest.importorskip("torch", reason="install the torch extra to test the NVIDIA back end")

from inferbench_runner.adaptive import Quota
from inferbench_runner.contract import FailureReason
from inferbench_runner.errors import RunnerError
from inferbench_runner.summary import Round
from inferbench_runner.worker import Bind, Command, Failure, Measure, Prepare, Refer, Value, Warm, Worker
from test_runner.fake_cuda import LEGACY, FakeCuda, called, first, nvidia_backend, nvidia_model
from test_runner.on_device import OnDevice

pytestmark = pytest.mark.usefixtures("tf32_as_before")


FORWARD = ["start", "forward", "stop"]

UPLOAD = ["upload"] * 3


def test_a_call_is_the_forward_pass_and_nothing_else() -> None:
    """Its inputs are on the device before, its output stays there, and nobody waits for it or marks its time."""
    cuda = FakeCuda()
    loaded = nvidia_model(cuda, measurement=LEGACY)
    loaded.verify(first(loaded))
    with loaded.bound(first(loaded)) as bound, bound.worker():
        call: Any = bound.call
        assert cuda.logged(call) == ["forward"]
        assert [type(tensor) for tensor in call.keywords.values()] == [OnDevice] * 3
        assert isinstance(call().logits, OnDevice)
        assert bound.device_ns is None


def test_a_shape_that_was_not_verified_has_its_inputs_there_too() -> None:
    """They are uploaded when the shape is bound, each of them once."""
    cuda = FakeCuda()
    loaded = nvidia_model(cuda, measurement=LEGACY)
    with loaded.bound(first(loaded)) as bound, bound.worker():
        before = list(cuda.log)
        bound.call()
    assert before[-3:] == UPLOAD
    assert before.count("upload") == 3
    assert cuda.log[len(before) :] == ["forward"]


def test_what_is_verified_is_that_call_with_marks_and_somebody_who_waits() -> None:
    """The padded inputs, which nobody times, go to the device and come back as those of every other call."""
    cuda = FakeCuda()
    loaded = nvidia_model(cuda, measurement=LEGACY)
    log = cuda.logged(lambda: loaded.verify(first(loaded)))
    assert log[log.index("upload") :] == [
        *UPLOAD,
        *(*FORWARD, "synchronize"),
        *(*UPLOAD, *FORWARD, "download", "synchronize"),
    ]


@pytest.mark.parametrize("measurement", [{}, LEGACY], ids=["sound", "as in 2023"])
@pytest.mark.parametrize("number", [0, 1], ids=["timed", "padded"])
def test_an_output_that_the_device_computes_wrongly_is_refused(measurement: dict[str, Any], number: int) -> None:
    """Whichever of both calls it is, and whether its output comes from the device's memory or from the host's."""
    loaded = nvidia_model(FakeCuda(), measurement=measurement)
    forward = loaded._placed.forward  # noqa: SLF001  # what the device computes
    run, calls = forward.run, count()

    def wrong(**inputs: Any) -> Any:  # noqa: ANN401  # passed through
        output = run(**inputs)
        output.logits = -output.logits if next(calls) == number else output.logits
        return output

    forward.run = wrong
    with pytest.raises(RunnerError) as caught:
        loaded.verify(first(loaded))
    assert caught.value.reason is FailureReason.NUMERIC_MISMATCH


def test_the_measuring_process_makes_a_hundred_calls_after_ten() -> None:
    """From the first warm-up to the last sample the device is asked for forward passes and for nothing between them."""
    cuda = FakeCuda()
    backend = nvidia_backend(cuda, measurement=LEGACY)
    worker = Worker(backend.plan, lambda _plan, _host: backend)

    def told(command: Command) -> Value:
        value = worker.handle(command).value
        assert not isinstance(value, Failure), value
        return value

    for command in (Prepare(), Refer(0), Bind(0)):
        told(command)
    quota = Quota(100, 0, 10**10)
    assert cuda.logged(lambda: told(Warm(0, quota))) == ["forward"] * 10
    before = len(cuda.log)
    value = told(Measure(0, quota, 0, "x"))
    assert cuda.log[before:] == ["reset peak", *["forward"] * 100]
    assert isinstance(value, Round)
    assert (len(value.series.calls), len(value.series.device), len(value.end_to_end)) == (100, 0, 0)
    worker.close()


def test_calls_keep_what_a_training_step_would_need() -> None:
    """Autograd is on, and a fact; otherwise it is off."""
    assert called(nvidia_model(FakeCuda(), measurement=LEGACY)).logits.requires_grad
    assert nvidia_backend(FakeCuda(), measurement=LEGACY).facts["autograd"] == "on"
    assert not called(nvidia_model(FakeCuda())).logits.requires_grad
