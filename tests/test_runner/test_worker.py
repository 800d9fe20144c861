"""What a measuring process does with each command, in this process, with a back end that a test controls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from inferbench_runner.adaptive import Quota
from inferbench_runner.backends.base import Source
from inferbench_runner.contract import FailureReason, Phase, Plan
from inferbench_runner.errors import DeviceNotFoundError, ModelUnsupportedError, NumericMismatchError, OutOfMemoryError
from inferbench_runner.measure import SETTLING_CALLS, SETTLING_NS, Warmup
from inferbench_runner.noise import Counters
from inferbench_runner.summary import Round
from inferbench_runner.usage import Usage
from inferbench_runner.worker import Bind, Command, Failure, Measure, Prepare, Prepared, Release, Reply, Warm, Worker
from test_runner.builders import MS, PERFECT, FakeBackend, fails, plan

SHAPES = ((8, 1), (16, 1), (32, 2))
FETCHED = {"id": "a/b", "weights": "Pretrained", "config": {}}
MINUTE = 60_000 * MS
QUOTA = Quota(calls=5, min_ns=0, max_ns=MINUTE)
LONG = Quota(calls=100, min_ns=0, max_ns=MINUTE)
SHARE = Quota(calls=20, min_ns=0, max_ns=MINUTE)


@pytest.fixture(autouse=True)
def no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave this process's garbage collector alone: a measuring process has its own, and ends before it matters."""
    monkeypatch.setattr("inferbench_runner.worker.collector_paused", nullcontext)


def measure(index: int, quota: Quota = QUOTA, process: int = 0) -> Measure:
    """Return the command to measure a round."""
    return Measure(index, quota, process, seed="0/0/0/1")


def ready(backend: FakeBackend, *indices: int, wanted: Plan | None = None) -> Worker:
    """Return a worker that holds these shapes ready."""
    worker = Worker(wanted or plan(shapes=SHAPES), backend.open)
    for command in (Prepare(), *(Bind(index) for index in indices)):
        assert not isinstance(worker.handle(command).value, Failure)
    return worker


def value(worker: Worker, command: Command) -> Any:  # noqa: ANN401  # the caller knows which
    """Return a reply's value, which is no failure."""
    found = worker.handle(command).value
    assert not isinstance(found, Failure), found
    return found


def failure(reply: Reply) -> tuple[Phase, FailureReason]:
    """Return a failure's phase and reason."""
    assert isinstance(reply.value, Failure)
    return reply.value.phase, reply.value.reason


def steps(backend: FakeBackend, kinds: Sequence[str]) -> list[tuple[str, int | None]]:
    """Return the steps of these kinds with the shape's length."""
    return [(name, shape and shape.sequence_length) for name, shape in backend.log if name in kinds]


def test_preparing_loads_the_model_and_tells_its_provenance() -> None:
    """Facts of the machine, the back end and the model come together; random weights fetch nothing."""
    backend = FakeBackend(facts={"device": "fake", "modelClass": "Fake"})
    prepared = value(Worker(plan(), backend.open), Prepare())
    assert isinstance(prepared, Prepared)
    assert prepared.source == Source()
    assert {"device", "modelClass", "cpuModel", "kernel"} <= set(prepared.facts)
    assert [name for name, _ in backend.log] == ["open", "load"]


@pytest.mark.parametrize(
    ("model", "source", "fetches", "phases"),
    [
        pytest.param(FETCHED, None, 1, [Phase.PROBE, Phase.FETCH, Phase.LOAD], id="the first process fetches"),
        pytest.param(FETCHED, Source(commit="known"), 0, [Phase.PROBE, Phase.LOAD], id="the others use what it has"),
        pytest.param({}, None, 0, [Phase.PROBE, Phase.LOAD], id="random weights are made here"),
    ],
)
def test_only_what_is_not_here_is_fetched(
    model: dict[str, object], source: Source | None, fetches: int, phases: list[Phase]
) -> None:
    """The source goes back to the supervisor, which gives it to the next process; each phase entered has a time."""
    backend = FakeBackend()
    reply = Worker(plan(model=model), backend.open).handle(Prepare(source))
    assert isinstance(reply.value, Prepared)
    assert backend.count("fetch") == fetches
    assert reply.value.source == (source or Source(commit="fetched" if fetches else None))
    assert list(reply.spent_ns) == phases


def test_each_phase_is_told_before_it_begins() -> None:
    """The last word of a process that dies is the phase that it dies in."""
    told: list[Phase] = []
    seen: dict[str, list[Phase]] = {}

    def look(step: str) -> None:
        seen.setdefault(step, list(told))

    backend = FakeBackend(
        on_open=lambda: look("open"),
        on_fetch=lambda: look("fetch"),
        on_load=lambda: look("load"),
        on_verify=lambda _: look("verify"),
        on_call=lambda _: look("call"),
    )
    worker = Worker(plan(model=FETCHED), backend.open, on_phase=told.append)
    for command in (Prepare(), Bind(0)):
        value(worker, command)
    value(worker, Warm(0, SHARE))
    assert [seen[step][-1] for step in ("open", "fetch", "load", "verify", "call")] == [
        Phase.PROBE,
        Phase.FETCH,
        Phase.LOAD,
        Phase.VERIFY,
        Phase.WARMUP,
    ]
    value(worker, measure(0))
    assert told == [Phase.PROBE, Phase.FETCH, Phase.LOAD, Phase.VERIFY, Phase.WARMUP, Phase.MEASURE]


def test_times_are_told_once() -> None:
    """Each reply has the time of its own command, so that the supervisor can add them up."""
    worker = ready(FakeBackend(), 0)
    assert set(worker.handle(Warm(0, SHARE)).spent_ns) == {Phase.WARMUP}
    assert set(worker.handle(measure(0)).spent_ns) == {Phase.MEASURE}
    assert worker.handle(Release(0)).spent_ns == {}


@pytest.mark.parametrize(
    ("backend", "phase", "reason"),
    [
        pytest.param(
            FakeBackend(on_open=fails(DeviceNotFoundError("Neuron"))),
            Phase.PROBE,
            FailureReason.DEVICE_NOT_FOUND,
            id="no device",
        ),
        pytest.param(
            FakeBackend(on_fetch=fails(OSError("disk"))), Phase.FETCH, FailureReason.INTERNAL_ERROR, id="unforeseen"
        ),
        pytest.param(
            FakeBackend(on_load=fails(ModelUnsupportedError("no"))),
            Phase.LOAD,
            FailureReason.MODEL_UNSUPPORTED,
            id="no such model",
        ),
        pytest.param(
            FakeBackend(on_load=fails(MemoryError())), Phase.LOAD, FailureReason.OUT_OF_MEMORY, id="too large"
        ),
    ],
)
def test_preparing_may_fail(backend: FakeBackend, phase: Phase, reason: FailureReason) -> None:
    """A failure is a reply, with its phase and its typed reason; what is unforeseen has a traceback for the log."""
    reply = Worker(plan(model=FETCHED), backend.open).handle(Prepare())
    assert failure(reply) == (phase, reason)
    assert isinstance(reply.value, Failure)
    assert ("Traceback" in reply.value.trace) == (reason is FailureReason.INTERNAL_ERROR)
    assert phase in reply.spent_ns


def test_a_shape_is_verified_and_then_held_ready() -> None:
    """Binding answers with the comparison, and keeps the inputs until they are let go."""
    backend = FakeBackend()
    worker = ready(backend)
    assert value(worker, Bind(1)) == PERFECT
    assert [shape.sequence_length for shape in backend.held] == [16]
    assert steps(backend, ["verify", "bound"]) == [("verify", 16), ("bound", 16)]
    assert value(worker, Release(1)) is None
    assert backend.held == []


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        pytest.param(
            FakeBackend(on_verify=fails(NumericMismatchError("off"))),
            FailureReason.NUMERIC_MISMATCH,
            id="the output is wrong",
        ),
        pytest.param(
            FakeBackend(on_bound=fails(OutOfMemoryError())),
            FailureReason.OUT_OF_MEMORY,
            id="the inputs don't fit",
        ),
    ],
)
def test_binding_may_fail(backend: FakeBackend, reason: FailureReason) -> None:
    """A shape that can't be bound leaves nothing behind, and the worker goes on."""
    worker = ready(backend)
    assert failure(worker.handle(Bind(0))) == (Phase.VERIFY, reason)
    assert backend.held == []
    backend.on_verify = backend.on_bound = lambda _: None
    assert value(worker, Bind(0)) == PERFECT


def test_a_shape_without_a_model_is_an_internal_error() -> None:
    """Commands out of order are the supervisor's fault: they fail, and nothing breaks."""
    worker = Worker(plan(), FakeBackend().open)
    assert failure(worker.handle(Bind(0))) == (Phase.VERIFY, FailureReason.INTERNAL_ERROR)
    assert failure(worker.handle(Warm(0, SHARE))) == (Phase.WARMUP, FailureReason.INTERNAL_ERROR)
    assert failure(worker.handle(measure(0))) == (Phase.MEASURE, FailureReason.INTERNAL_ERROR)


class DeviceError(Exception):
    """What a device's library raises."""


@pytest.mark.parametrize(("command", "phase"), [(Warm(0, SHARE), Phase.WARMUP), (measure(0), Phase.MEASURE)])
def test_a_failing_call_goes_through_the_bound_context(command: Command, phase: Phase) -> None:
    """The back end's own context sees the exception, may give it a type, and lets the shape go; others stay ready."""
    backend = FakeBackend()
    worker = ready(backend, 0, 1)
    message = "the device is gone"
    backend.on_call = fails(DeviceError(message))
    assert failure(worker.handle(command)) == (phase, FailureReason.INTERNAL_ERROR)
    assert steps(backend, ["DeviceError", "let go"]) == [("DeviceError", 8), ("let go", 8)]
    assert [shape.sequence_length for shape in backend.held] == [16]
    backend.on_call = lambda _: None
    assert isinstance(value(worker, measure(1)), Round)
    assert value(worker, Release(0)) is None


def test_a_context_gives_a_failure_its_type() -> None:
    """What the context raises instead of a library's own exception is what the supervisor hears."""
    backend = FakeBackend(on_error=fails(OutOfMemoryError()))
    worker = ready(backend, 0)
    backend.on_call = fails(DeviceError())
    assert failure(worker.handle(measure(0))) == (Phase.MEASURE, FailureReason.OUT_OF_MEMORY)
    assert backend.held == []


def test_letting_go_twice_is_no_fault() -> None:
    """A shape that has failed has let go of itself; being told to is harmless."""
    worker = ready(FakeBackend(), 0)
    assert value(worker, Release(0)) is None
    assert value(worker, Release(0)) is None


def test_a_failure_while_letting_go_is_a_reply_too() -> None:
    """A device that can't free its buffers fails one command: the process and its other shapes live."""
    backend = FakeBackend(on_let_go=fails(DeviceError("the buffers stick")))
    worker = ready(backend, 0)
    assert isinstance(worker.handle(Release(0)).value, Failure)


def test_a_warm_up_is_counted_and_a_round_holds_its_samples() -> None:
    """The reply to each has what was seen; the process's number goes into the round."""
    backend = FakeBackend()
    worker = ready(backend, 0)
    warmup = value(worker, Warm(0, SHARE))
    assert isinstance(warmup, Warmup)
    assert warmup.calls == backend.count("call") >= 10
    one = value(worker, measure(0, process=2))
    assert isinstance(one, Round)
    assert (one.process, len(one.series.calls)) == (2, 5)
    assert backend.count("call") == warmup.calls + 5
    assert one.series.elapsed_ns >= sum(one.series.calls)
    assert one.counters.own_ns is not None


def test_settling_calls_come_only_after_another_shape() -> None:
    """A round right after the shape's own warm-up or round needs none; after another shape's it has some, untimed.

    They are few beside the samples, and never none: a cold first call of few would decide the p95.
    """
    backend = FakeBackend()
    worker = ready(backend, 0, 1)
    settled = []
    for command in (Warm(0, SHARE), Warm(1, SHARE), *(measure(index, LONG) for index in (1, 0, 0, 1))):
        before = backend.count("call")
        reply = value(worker, command)
        if isinstance(reply, Round):
            assert backend.count("call") - before == reply.settling + len(reply.series.calls) == reply.settling + 100
            settled.append((command.index, reply.settling > 0))
            assert reply.settling <= 2
    assert settled == [(1, False), (0, True), (0, False), (1, True)]
    assert value(worker, measure(0)).settling > 0


def test_a_long_call_settles_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another shape has left in the caches is of no account in a call that takes longer than filling them."""
    worker = ready(FakeBackend(), 0, 1)
    found = []
    for call_ns in (SETTLING_NS - 1, SETTLING_NS):
        warmup = Warmup(10, 10 * call_ns, call_ns, call_ns, settled=True)
        monkeypatch.setattr("inferbench_runner.worker.warm_up", lambda *_, given=warmup, **__: given)
        value(worker, Warm(0, SHARE))
        value(worker, measure(1))
        found.append(value(worker, measure(0)).settling)
    assert found == [SETTLING_CALLS, 0]


@pytest.mark.parametrize(("calls", "expected"), [(1, 1), (7, 1), (8, 2), (50, 8)])
def test_one_end_to_end_call_comes_for_each_seven_calls(calls: int, expected: int) -> None:
    """They come after the round, rounded up, and not among its samples; the warm-up has settled them too."""
    backend = FakeBackend(end_to_end=True)
    worker = ready(backend, 0)
    value(worker, Warm(0, SHARE))
    warm, before = backend.count("end_to_end"), backend.count("call")
    assert warm == SETTLING_CALLS
    one = value(worker, measure(0, Quota(calls, 0, MINUTE)))
    assert (len(one.series.calls), len(one.end_to_end)) == (calls, expected)
    assert (backend.count("call") - before, backend.count("end_to_end")) == (calls, warm + expected)
    kinds = [name for name, _ in backend.log if name in {"call", "end_to_end"}]
    assert kinds[-expected:] == ["end_to_end"] * expected


def test_the_device_is_watched_around_the_counters_and_these_are_read_around_the_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asking a device takes time of the processor's, which is no noise; what comes after a round is not watched."""
    log: list[str] = []

    def observe() -> Callable[[], Usage]:
        log.append("watch")

        def end() -> Usage:
            log.append("watched")
            return Usage(energy_millijoules=7)

        return end

    def read_counters() -> Counters:
        log.append("counters")
        return Counters()

    backend = FakeBackend(on_observe=observe, on_call=lambda _: log.append("call"), end_to_end=True)
    monkeypatch.setattr("inferbench_runner.worker.read_counters", read_counters)
    worker = ready(backend, 0)
    one = value(worker, measure(0, Quota(2, 0, MINUTE)))
    settling = ["call"] * one.settling
    assert log == [*settling, "watch", "counters", "call", "call", "counters", "watched", "call"]
    assert settling
    assert one.usage == Usage(energy_millijoules=7)
    assert len(one.end_to_end) == 1


def test_without_a_processor_there_is_no_end_to_end_call() -> None:
    """A model without a tokenizer has call latencies only."""
    worker = ready(FakeBackend(), 0)
    value(worker, Warm(0, SHARE))
    assert value(worker, measure(0)).end_to_end == ()


def test_the_published_method_is_followed_to_the_letter() -> None:
    """Exactly ten warm-ups, no settling, no end-to-end calls: its samples are the 100 calls that follow."""
    backend = FakeBackend(end_to_end=True)
    worker = ready(backend, 0, 1, wanted=plan(shapes=SHAPES, measurement={"profile": "Legacy2023"}))
    assert value(worker, Warm(0, SHARE)).calls == 10
    assert value(worker, Warm(1, SHARE)).calls == 10
    one = value(worker, measure(0, Quota(100, 0, MINUTE)))
    assert (len(one.series.calls), one.settling, len(one.end_to_end)) == (100, 0, 0)
    assert (backend.count("call"), backend.count("end_to_end")) == (120, 0)


@pytest.mark.parametrize(
    ("load", "has_service"),
    [
        pytest.param({}, False, id="one call at a time"),
        pytest.param({"concurrency": 3}, False, id="three at a time"),
        pytest.param({"mode": "Open", "ratePerSecond": 10_000, "concurrency": 2}, True, id="as they arrive"),
    ],
)
def test_the_plans_load_chooses_the_loop(load: dict[str, Any], has_service: bool) -> None:  # noqa: FBT001  # a column
    """Only an open loop knows when calls were due; several threads may finish more calls than were asked for."""
    backend = FakeBackend()
    worker = ready(backend, 0, wanted=plan(measurement={"load": load}))
    one = value(worker, measure(0, Quota(30, 0, MINUTE)))
    series = one.series
    assert len(series.calls) == backend.count("call") - one.settling >= 10
    assert len(series.service) == len(series.asked_ns) == (len(series.calls) if has_service else 0)
