"""What a measuring process does when it is told: prepare, bind a shape, warm it up, measure a round, let it go.

It decides nothing. Which shape comes next, and when there are enough samples, is the supervisor's business (`run`),
which waits in another process while this one measures.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from math import ceil

from typing_extensions import Self

from inferbench_runner.adaptive import Quota
from inferbench_runner.backends import open_backend
from inferbench_runner.backends.base import Backend, Bound, LoadedModel, Rows, Source
from inferbench_runner.clock import now_ns
from inferbench_runner.contract import Compilation, Correctness, FailureReason, LoadMode, Phase, Plan, Profile, Weights
from inferbench_runner.errors import PhaseFailedError
from inferbench_runner.measure import (
    END_TO_END_EVERY,
    SETTLING_CALLS,
    SETTLING_NS,
    Series,
    Warmup,
    closed_loop,
    collector_paused,
    concurrent_loop,
    open_loop,
    settle,
    warm_up,
)
from inferbench_runner.noise import read_counters
from inferbench_runner.phases import Phases
from inferbench_runner.probe import Host, probe_host
from inferbench_runner.summary import Round

OpenBackend = Callable[[Plan, Host], Backend]


@dataclass(frozen=True)
class Prepare:
    """Load the model, from files that another process has fetched already if there are any."""

    source: Source | None = None


@dataclass(frozen=True)
class Refer:
    """Compute the right output for a shape, before the first one is bound, unless another process has done so."""

    index: int
    known: Rows | None = None


@dataclass(frozen=True)
class Compile:
    """Compile a shape's graph, or find it in the cache."""

    index: int


@dataclass(frozen=True)
class Bind:
    """Verify a shape's output and hold its inputs ready."""

    index: int


@dataclass(frozen=True)
class Warm:
    """Warm a shape up, for a share of so many calls and so much time."""

    index: int
    share: Quota


@dataclass(frozen=True)
class Measure:
    """Measure one round of a shape."""

    index: int
    quota: Quota
    process: int
    seed: str
    """Seed of the arrivals of an open loop."""


@dataclass(frozen=True)
class Release:
    """Let a shape's inputs and buffers go."""

    index: int


Command = Prepare | Refer | Compile | Bind | Warm | Measure | Release


@dataclass(frozen=True)
class Prepared:
    """What is known once the model is loaded."""

    source: Source
    facts: Mapping[str, str]
    compiles: bool = False
    """Whether each shape's graph is to be compiled."""


@dataclass(frozen=True)
class Referred:
    """What a shape's outputs are compared with, in this process and in those that follow."""

    rows: Rows


@dataclass(frozen=True)
class Failure:
    """Why a command could not be carried out."""

    phase: Phase
    reason: FailureReason
    sentence: str
    trace: str = ""
    """Of an unexpected exception."""

    @classmethod
    def from_error(cls, error: PhaseFailedError) -> Self:
        """Keep what crosses the boundary between two processes."""
        internal = error.reason is FailureReason.INTERNAL_ERROR
        trace = "".join(traceback.format_exception(error.cause)) if internal else ""
        return cls(error.phase, error.reason, error.sentence, trace)


Value = Prepared | Referred | Compilation | Correctness | Warmup | Round | Failure | None


@dataclass(frozen=True)
class Reply:
    """The outcome of one command, and the time that each phase took, in nanoseconds."""

    value: Value
    spent_ns: Mapping[Phase, int]


@dataclass
class Worker:
    """One measuring process's model and the shapes that it holds ready."""

    plan: Plan
    open_backend: OpenBackend = open_backend
    on_phase: Callable[[Phase], object] = lambda _: None
    """Told of each phase before it begins: the last word of a process that dies in it."""
    _model: LoadedModel | None = None
    _bound: dict[int, tuple[ExitStack, Bound]] = field(default_factory=dict)
    _resources: ExitStack = field(default_factory=ExitStack)
    _last: int | None = None
    _call_ns: dict[int, int] = field(default_factory=dict)
    """How long each shape's call took in its warm-up."""

    def __post_init__(self) -> None:
        """Time the phases."""
        self._phases = Phases(on_enter=self.on_phase)

    def handle(self, command: Command) -> Reply:
        """Carry one command out; a failure is a reply too."""
        value: Value = None
        try:
            match command:
                case Prepare():
                    value = self._prepare(command)
                case Refer():
                    value = self._refer(command)
                case Compile():
                    value = self._compile(command)
                case Bind():
                    value = self._bind(command)
                case Warm():
                    value = self._warm(command)
                case Measure():
                    value = self._measure(command)
                case Release():
                    self._release(command)
        except PhaseFailedError as error:
            value = Failure.from_error(error)
        return Reply(value, self._phases.take())

    def close(self) -> None:
        """Let everything go."""
        for stack, _ in self._bound.values():
            stack.close()
        self._resources.close()

    def _prepare(self, command: Prepare) -> Prepared:
        model = self.plan.model
        with self._phases.step(Phase.PROBE):
            host = probe_host()
            backend = self.open_backend(self.plan, host)
            facts = host.to_facts() | dict(backend.facts)
        source = command.source or Source()
        if model.weights is Weights.PRETRAINED and command.source is None:
            with self._phases.step(Phase.FETCH):
                source = backend.fetch(model)
        with self._phases.step(Phase.LOAD):
            self._model = backend.load(model, source)
            self._resources.enter_context(collector_paused())
        # Plain strings only: a library's own kind of string would bring the library to whoever unpickles it.
        facts = {name: str(value) for name, value in (facts | dict(self._model.facts)).items()}
        return Prepared(source, facts, self._model.compiles)

    def _refer(self, command: Refer) -> Referred:
        with self._phases.step(Phase.VERIFY):
            return Referred(self._loaded.refer(self.plan.shapes[command.index], command.known))

    def _compile(self, command: Compile) -> Compilation:
        with self._phases.step(Phase.COMPILE):
            return self._loaded.compile(self.plan.shapes[command.index])

    @property
    def _loaded(self) -> LoadedModel:
        if self._model is None:
            msg = "a shape is named before the model is loaded"
            raise RuntimeError(msg)
        return self._model

    def _bind(self, command: Bind) -> Correctness:
        shape = self.plan.shapes[command.index]
        with self._phases.step(Phase.VERIFY), ExitStack() as stack:
            correctness = self._loaded.verify(shape)
            bound = stack.enter_context(self._loaded.bound(shape))
            self._bound[command.index] = (stack.pop_all(), bound)
        return correctness

    def _warm(self, command: Warm) -> Warmup:
        legacy = self.plan.measurement.profile is Profile.LEGACY_2023
        with self._phases.step(Phase.WARMUP), self._guarded(command.index) as bound:
            with bound.worker():
                warmup = warm_up(bound.call, command.share, adaptive=not legacy)
            if bound.end_to_end and not legacy:
                settle(replace(bound, call=bound.end_to_end))
        self._last, self._call_ns[command.index] = command.index, warmup.call_ns
        return warmup

    def _measure(self, command: Measure) -> Round:
        legacy = self.plan.measurement.profile is Profile.LEGACY_2023
        with self._phases.step(Phase.MEASURE), self._guarded(command.index) as bound:
            short = self._call_ns.get(command.index, 0) < SETTLING_NS
            settling = SETTLING_CALLS if short and not legacy and self._last != command.index else 0
            settle(bound, settling)
            settling += self._threads
            observed = bound.observe() if bound.observe else None
            # Asking the device takes time of the processor's, which is no noise: it stays outside.
            before, begun_ns = read_counters(), now_ns()
            series = self._series(bound, command)
            counters = read_counters() - before
            usage = observed() if observed else None
            end_to_end: Sequence[int] = ()
            if bound.end_to_end and not legacy:
                wanted = ceil(len(series.calls) / END_TO_END_EVERY)
                quota = Quota(wanted, 0, command.quota.max_ns // END_TO_END_EVERY)
                end_to_end = closed_loop(replace(bound, call=bound.end_to_end, device_ns=None), quota).calls
        self._last = command.index
        return Round(command.process, begun_ns, series, end_to_end, settling, counters, usage)

    @property
    def _threads(self) -> int:
        """Threads of their own that a round's calls are made in, each of which begins with an untimed call."""
        load = self.plan.measurement.load
        return load.concurrency if load.mode is LoadMode.OPEN or load.concurrency > 1 else 0

    def _series(self, bound: Bound, command: Measure) -> Series:
        load = self.plan.measurement.load
        if load.mode is LoadMode.OPEN:
            return open_loop(bound, command.quota, load, command.seed)
        if load.concurrency > 1:
            return concurrent_loop(bound, command.quota, load.concurrency)
        return closed_loop(bound, command.quota)

    def _release(self, command: Release) -> None:
        stack, _ = self._bound.pop(command.index, (ExitStack(), None))
        try:
            stack.close()
        except Exception as error:
            raise PhaseFailedError(Phase.MEASURE, error) from error

    @contextmanager
    def _guarded(self, index: int) -> Iterator[Bound]:
        """Yield the bound shape; an exception lets it go, by way of its own contexts, which give it its type."""
        try:
            yield self._bound[index][1]
        except BaseException:
            stack, _ = self._bound.pop(index, (ExitStack(), None))
            with stack:
                raise
