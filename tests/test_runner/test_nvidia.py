"""The NVIDIA back end with real models, and the host in the place of the device: all but what only CUDA can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="install the torch extra to test the NVIDIA back end")

import torch

from inferbench_runner.adaptive import Quota
from inferbench_runner.backends import cudacalls, inductor, open_backend
from inferbench_runner.backends.nvidia import NVIDIAModel
from inferbench_runner.backends.nvml import open_monitor
from inferbench_runner.backends.tasks import TASKS
from inferbench_runner.backends.tf32 import allow_tf32
from inferbench_runner.contract import FailureReason, Shape
from inferbench_runner.errors import DeviceUnusedError, OutOfMemoryError, RunnerError
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
from test_runner.builders import host, plan
from test_runner.fake_cuda import UUID, FakeCuda, fake_nvml, nvidia_backend, nvidia_model
from test_runner.tiny import TINY_VIT

GRAPHS = {"execution": "CUDAGraphs"}
COMPILE = {"execution": "Compile"}
LEGACY = {"profile": "Legacy2023"}
OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.72 GiB."

CALL = ["start", "forward", "stop", "download", "synchronize"]
"""What every call does once its inputs are on the device."""


@pytest.fixture(autouse=True)
def _switches() -> Iterator[None]:
    """Leave the switches of TF32 as they were."""
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let PyTorch trace and guard as always, and leave out the generation of code, which takes half a minute."""

    def compiled(model: Any) -> Callable[..., Any]:  # noqa: ANN401  # a model
        found: Callable[..., Any] = torch.compile(model, dynamic=False, backend="eager")
        return found

    monkeypatch.setattr(inductor, "compiled", compiled)
    torch._dynamo.reset()  # noqa: SLF001  # graphs of other tests
    yield
    torch._dynamo.reset()  # noqa: SLF001


def first(loaded: NVIDIAModel) -> Shape:
    """Return the first shape of the plan."""
    return loaded.plan.shapes[0]


def called(loaded: NVIDIAModel, shape: Shape | None = None) -> Any:  # noqa: ANN401  # an output
    """Return the output of one call as it is timed."""
    with loaded.bound(shape or first(loaded)) as bound, bound.worker():
        return bound.call()


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
    assert (compilation.compiler, compilation.arguments) == (inductor.COMPILER, "dynamic=False mode=default")
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
        ({"measurement": LEGACY}, ["forward"]),
    ],
    ids=["eager", "graphs", "two outputs", "no pooler", "as in 2023"],
)
def test_a_call_covers_its_copies_and_ends_synchronised(fields: dict[str, Any], expected: list[str]) -> None:
    """Host tensors in, host tensors out; device time is the forward pass alone; in 2023 there was neither."""
    cuda = FakeCuda()
    loaded = nvidia_model(cuda, **fields)
    loaded.compile(first(loaded))
    loaded.verify(first(loaded))
    with loaded.bound(first(loaded)) as bound, bound.worker():
        assert cuda.logged(bound.call) == expected
        assert (bound.device_ns is None) == (fields.get("measurement") == LEGACY)


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
    """A second output, such as the pooler's, is not copied, and an answer has both of its ends."""
    assert set(vars(called(nvidia_model(FakeCuda(), model={"task": task})))) == names


def test_the_loop_reads_the_devices_own_time() -> None:
    """Each sample has the time between the marks of its own call."""
    loaded = nvidia_model(FakeCuda())
    with loaded.bound(first(loaded)) as bound:
        series = closed_loop(bound, Quota(3, 0, 10**9))
    assert list(series.device) == [1000, 2000, 3000]


def test_the_method_of_2023_keeps_autograd_and_its_inputs_on_the_device() -> None:
    """The output is the device's own tensor with what a training step would need."""
    loaded = nvidia_model(FakeCuda(), measurement=LEGACY)
    assert called(loaded).logits.requires_grad
    assert nvidia_backend(FakeCuda(), measurement=LEGACY).facts["autograd"] == "on"
    assert not called(nvidia_model(FakeCuda())).logits.requires_grad


@pytest.mark.parametrize("measurement", [{}, LEGACY], ids=["sound", "as in 2023"])
@pytest.mark.parametrize(
    ("cuda", "words"),
    [(FakeCuda(place="cuda"), "on cpu"), (FakeCuda(step_ns=0), "did nothing")],
    ids=["elsewhere", "idle"],
)
def test_work_that_the_device_did_not_do_is_refused(cuda: FakeCuda, words: str, measurement: dict[str, Any]) -> None:
    """Tensors in another place, or no time between the marks, end in a failure and not in a number."""
    loaded = nvidia_model(cuda, measurement=measurement)
    with pytest.raises(RunnerError, match=words) as caught:
        loaded.verify(first(loaded))
    assert caught.value.reason is FailureReason.DEVICE_NOT_FOUND


def test_an_output_that_was_computed_elsewhere_is_refused() -> None:
    """Weights on the device are not enough: a call looks at where its own output is."""
    output = SimpleNamespace(logits=torch.zeros(1, 2))
    call = cudacalls.returning(lambda _: output, FakeCuda(place="cuda"), TASKS["text-classification"])
    with pytest.raises(DeviceUnusedError, match="the model's output is on cpu"):
        call({})


def exhaust(loaded: NVIDIAModel, error: Exception) -> None:
    """Let the model's next forward passes end like this."""
    forward = loaded.host.model.forward

    @wraps(forward)
    def limited(**_: object) -> None:
        raise error

    loaded.host.model.forward = limited


@pytest.mark.parametrize("device", [{}, GRAPHS, COMPILE], ids=["eager", "graphs", "compiled"])
@pytest.mark.usefixtures("traced")
def test_a_batch_that_does_not_fit_is_typed_and_lets_go(device: dict[str, Any]) -> None:
    """Memory of the device has a reason of its own, in whatever step it runs out, and the shape can be tried again."""
    loaded = nvidia_model(FakeCuda(), device=device)
    shape, forward = first(loaded), loaded._placed.forward  # noqa: SLF001  # to put the right one back
    exhaust(loaded, torch.OutOfMemoryError(OUT_OF_MEMORY))
    for step in (loaded.compile, loaded.verify, lambda one: called(loaded, one)):
        if step == loaded.compile and not device:
            continue
        with pytest.raises(RunnerError, match="total capacity") as caught:
            step(shape)
        assert caught.value.reason is FailureReason.DEVICE_OUT_OF_MEMORY
        assert loaded._graphs == {}  # noqa: SLF001  # what takes up the memory
    loaded.host.model.forward = forward
    loaded.compile(shape)
    loaded.verify(shape)


def test_memory_of_the_host_is_told_apart() -> None:
    """PyTorch's words for a failed allocation on the host don't blame the device."""
    loaded = nvidia_model(FakeCuda())
    loaded._placed  # noqa: B018, SLF001  # the references are complete
    exhaust(loaded, RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    with pytest.raises(OutOfMemoryError):
        loaded.verify(first(loaded))


def test_a_model_that_no_graph_can_hold_fails_to_compile() -> None:
    """What CUDA says about a forbidden operation is quoted, with the execution as the way out."""
    loaded = nvidia_model(FakeCuda(), device=GRAPHS)
    loaded._placed  # noqa: B018, SLF001
    exhaust(loaded, RuntimeError("CUDA error: operation not permitted when stream is capturing"))
    with pytest.raises(RunnerError, match=r"CUDA graphs of torch .*device\.execution.*not permitted") as caught:
        loaded.compile(first(loaded))
    assert caught.value.reason is FailureReason.COMPILE_FAILED


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
        "compiler": cudacalls.COMPILER,
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
    assert "compiler" not in nvidia_backend(cuda).facts


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
