"""The NVIDIA back end with real models, and the host in the place of the device: all but what only CUDA can do."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="install the torch extra to test the NVIDIA back end")

import torch

from inferbench_runner.adaptive import Quota
from inferbench_runner.backends import inputs, nvidia
from inferbench_runner.backends.nvml import open_monitor
from inferbench_runner.measure import closed_loop, concurrent_loop
from inferbench_runner.summary import Round
from inferbench_runner.worker import (
    Bind,
    Command,
    Compile,
    Failure,
    Measure,
    Prepare,
    Prepared,
    Refer,
    Release,
    Warm,
    Worker,
)
from test_runner.fake_cuda import COMPILE, GRAPHS, LEGACY, FakeCuda, called, first, nvidia_backend, nvidia_model
from test_runner.fake_nvml import UUID, fake_nvml
from test_runner.on_device import OnDevice
from test_runner.tiny import TINY_VIT

pytestmark = pytest.mark.usefixtures("tf32_as_before")

CALL = ["start", "forward", "stop", "download", "synchronize"]
"""What every call does once its inputs are on the device."""


@pytest.mark.parametrize("device", [{}, GRAPHS], ids=["eager", "graphs"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
@pytest.mark.parametrize(
    ("model", "length"),
    [
        ({}, 8),
        ({"task": "feature-extraction"}, 8),
        ({"task": "question-answering"}, 8),
        ({"id": "google/vit-base-patch16-224", "config": TINY_VIT}, None),
    ],
    ids=["classes", "vectors", "answers", "images"],
)
def test_outputs_pass_the_gate(
    device: dict[str, Any], precision: str, model: dict[str, Any], length: int | None
) -> None:
    """Each execution and precision gives the model's own output, with and without padding."""
    loaded = nvidia_model(FakeCuda(), device=device, precision=precision, model=model, shapes=((length, 2),))
    if loaded.compiles:
        loaded.compile(first(loaded))
    correctness = loaded.verify(first(loaded))
    assert float(correctness.max_relative_error) < float(correctness.max_relative_error_allowed) / 4


@pytest.mark.usefixtures("traced")
def test_a_compiled_model_passes_the_gate_and_its_recompilations_are_counted() -> None:
    """The first call compiles; a call of another kind in a window that is watched is counted as a new graph."""
    loaded = nvidia_model(FakeCuda(), device=COMPILE)
    compilation = loaded.compile(first(loaded))
    assert (compilation.compiler, compilation.arguments) == (
        f"inductor of torch {torch.__version__}",
        "dynamic=False mode=default",
    )
    loaded.verify(first(loaded))
    with loaded.bound(first(loaded)) as bound, bound.worker():
        assert bound.observe is not None
        ended = bound.observe()
        bound.call()
        assert ended().recompilations == 0
        ended = bound.observe()
        loaded._direct({"input_ids": torch.ones((1, 5), dtype=torch.long)})  # noqa: SLF001  # not the shape's own
        assert ended().recompilations == 1


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ["upload"] * 3 + CALL),
        ({"device": GRAPHS}, ["start", "replay", "forward", "stop", "download", "synchronize"]),
        ({"model": {"task": "question-answering"}}, ["upload"] * 3 + [*CALL[:3], "download", "download", CALL[-1]]),
        ({"model": {"task": "feature-extraction"}}, ["upload"] * 3 + CALL),
    ],
    ids=["eager", "graphs", "two outputs", "no pooler"],
)
def test_a_call_covers_its_copies_and_ends_synchronised(fields: dict[str, Any], expected: list[str]) -> None:
    """Host tensors in, host tensors out; device time is the forward pass alone."""
    cuda = FakeCuda()
    loaded = nvidia_model(cuda, **fields)
    loaded.compile(first(loaded))
    loaded.verify(first(loaded))
    with loaded.bound(first(loaded)) as bound, bound.worker():
        assert cuda.logged(bound.call) == expected
        assert not [one for one in bound.call.args[0].values() if isinstance(one, OnDevice)]  # type: ignore[attr-defined]
        assert bound.device_ns is not None


def test_the_weights_are_there_before_another_stream_can_use_them() -> None:
    """A model is moved once, with the first shape, and its copies are waited for."""
    cuda = FakeCuda()
    loaded = nvidia_model(cuda, shapes=((8, 1), (16, 1)))
    assert cuda.log == []
    for shape in loaded.plan.shapes:
        loaded.verify(shape)
    assert cuda.log[:3] == ["move", "synchronize", "upload"]
    assert cuda.log.count("move") == 1


@pytest.mark.parametrize("measurement", [{}, LEGACY], ids=["sound", "as in 2023"])
def test_what_was_verified_is_what_is_timed(monkeypatch: pytest.MonkeyPatch, measurement: dict[str, Any]) -> None:
    """A shape's inputs are made once for both."""
    made: list[object] = []

    def make_inputs(*arguments: Any) -> Any:  # noqa: ANN401  # passed on
        made.append(inputs.make_inputs(*arguments))
        return made[-1]

    monkeypatch.setattr(nvidia, "make_inputs", make_inputs)
    loaded = nvidia_model(FakeCuda(), measurement=measurement)
    loaded.verify(first(loaded))
    called(loaded)
    assert len(made) == 1


@pytest.mark.parametrize("device", [{}, GRAPHS], ids=["eager", "graphs"])
def test_each_call_copies_the_inputs_anew(device: dict[str, Any]) -> None:
    """What changes in the bound tensors on the host changes the output of the next call."""
    loaded = nvidia_model(FakeCuda(), device=device, model={"task": "feature-extraction"})
    with loaded.bound(first(loaded)) as bound, bound.worker():
        call: Any = bound.call
        one, same = call().last_hidden_state, call().last_hidden_state
        call.args[0]["input_ids"].fill_(7)
        other = call().last_hidden_state
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("task", "names"),
    [
        ("feature-extraction", {"last_hidden_state"}),
        ("question-answering", {"start_logits", "end_logits"}),
        ("fill-mask", {"logits"}),
    ],
)
def test_only_what_the_task_needs_comes_back(task: str, names: set[str]) -> None:
    """A second output, such as the pooler's, is not copied, and an answer has both of its ends, all on the host."""
    found = vars(called(nvidia_model(FakeCuda(), model={"task": task})))
    assert set(found) == names
    assert not [tensor for tensor in found.values() if isinstance(tensor, OnDevice)]


def test_the_loop_reads_the_devices_own_time() -> None:
    """Each sample has the time between the marks of its own call."""
    loaded = nvidia_model(FakeCuda())
    with loaded.bound(first(loaded)) as bound:
        series = closed_loop(bound, Quota(3, 0, 10**9))
    assert list(series.device) == [1000, 2000, 3000]


def test_calls_that_overlap_have_a_stream_each() -> None:
    """Three threads call at the same time, each on a stream of its own; a single caller needs none."""
    cuda = FakeCuda()
    loaded = nvidia_model(cuda, measurement={"load": {"concurrency": 3}})
    with loaded.bound(first(loaded)) as bound:
        concurrent_loop(bound, Quota(6, 0, 10**10), 3)
    assert cuda.log.count("stream") == cuda.log.count("end of stream") == 3
    alone = FakeCuda()
    called(nvidia_model(alone))
    assert "stream" not in alone.log


def test_a_shape_is_watched_with_and_without_the_drivers_library() -> None:
    """Energy comes from the driver; the peak of the memory from PyTorch where the driver does not tell."""
    energies = iter([5000, 6500])
    monitor = open_monitor(UUID, fake_nvml(nvmlDeviceGetTotalEnergyConsumption=lambda _: next(energies)), {})
    for watched, energy in ((monitor, 1500), (None, None)):
        loaded = nvidia_model(FakeCuda(), watched)
        with loaded.bound(first(loaded)) as bound:
            assert bound.observe is not None
            usage = bound.observe()()
        assert (usage.energy_millijoules, usage.peak_memory_bytes) == (energy, 7 * 2**20)


@pytest.mark.parametrize("device", [{}, GRAPHS], ids=["eager", "graphs"])
def test_the_measuring_process_goes_through_all_its_steps(device: dict[str, Any]) -> None:
    """Prepared, referred, compiled, bound, warmed up and measured: samples with device time, use, and end to end."""
    cuda, monitor = FakeCuda(), open_monitor(UUID, fake_nvml(), {})
    backend = nvidia_backend(cuda, monitor, device=device, shapes=((8, 1), (16, 2)))
    worker = Worker(backend.plan, lambda _plan, _host: backend)
    quota = Quota(20, 0, 10**9)
    commands: list[Command] = [Prepare(), Refer(0), Refer(1)]
    commands += [Compile(0), Compile(1)] if device else []
    commands += [Bind(0), Warm(0, quota), Bind(1), Warm(1, quota)]
    commands += [Measure(0, quota, 0, "x"), Measure(1, quota, 0, "x")]
    for command in commands:
        value = worker.handle(command).value
        assert not isinstance(value, Failure), value
        if isinstance(value, Prepared):
            assert value.compiles == bool(device)
        if isinstance(value, Round):
            assert len(value.series.device) == len(value.series.calls) >= 20
            assert value.usage is not None
            assert value.usage.energy_millijoules == 0
            assert value.end_to_end
    captures = cuda.log.count("capture")
    worker.handle(Measure(0, quota, 0, "y"))
    assert cuda.log.count("capture") == captures
    worker.handle(Release(0))
    worker.close()
