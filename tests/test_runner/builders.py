"""Plans, a back end without any device, and processes that are none, with defaults for what no test cares about."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferbench_runner import run as run_module
from inferbench_runner.backends.base import Bound, Call, Facts, Rows, Source
from inferbench_runner.caveats import Circumstances
from inferbench_runner.child import ChildDiedError
from inferbench_runner.contract import Compilation, Correctness, Measurement, ModelRef, Phase, Plan, Shape
from inferbench_runner.errors import PhaseFailedError, RunnerError
from inferbench_runner.interval import Percentile
from inferbench_runner.measure import Series, Warmup
from inferbench_runner.noise import Counters
from inferbench_runner.outlet import Outlet
from inferbench_runner.probe import Host
from inferbench_runner.run import Run
from inferbench_runner.summary import Distribution, Figures, Round
from inferbench_runner.usage import Usage
from inferbench_runner.worker import (
    Bind,
    Command,
    Compile,
    Failure,
    Measure,
    OpenBackend,
    Prepare,
    Prepared,
    Refer,
    Referred,
    Release,
    Reply,
    Value,
    Warm,
    Worker,
)

TINY_BERT = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
"""Overrides that make a BERT whose call takes less than a millisecond."""

MS = 1_000_000
"""Nanoseconds."""

PERFECT = Correctness(
    reference="itself",
    cosine_similarity="1",
    min_cosine_similarity="0.99",
    max_relative_error="0",
    max_relative_error_allowed="0.01",
)

MADE = Compilation(milliseconds=5, compiler="scripted 1")

FIXED: dict[type[Command], Value] = {Bind: PERFECT, Compile: MADE, Release: None}

RIGHT: Rows = (np.zeros((1, 2), dtype=np.float32),)


def cell(index: int) -> str:
    """Return a cell hash."""
    return f"{index:010x}"


def plan_dict(
    *,
    model: Mapping[str, Any] | None = None,
    device: Mapping[str, Any] | None = None,
    shapes: tuple[tuple[int | None, int], ...] = ((8, 1),),
    measurement: Mapping[str, Any] | None = None,
    **others: object,
) -> dict[str, Any]:
    """Return a plan as it comes over the wire; shapes are pairs of length and batch size."""
    return {
        "model": {"id": "bert-base-uncased", "weights": "Random", "config": TINY_BERT} | dict(model or {}),
        "device": {"kind": "CPU"} | dict(device or {}),
        "shapes": [
            {"cell": cell(index), "sequenceLength": length, "batchSize": batch}
            for index, (length, batch) in enumerate(shapes)
        ],
        "measurement": {"minSamples": 3, "minSeconds": 0, "maxSeconds": 5} | dict(measurement or {}),
        **others,
    }


def plan(**fields: Any) -> Plan:  # noqa: ANN401  # passed through
    """Return a plan; see `plan_dict`."""
    return Plan.model_validate(plan_dict(**fields))


def host() -> Host:
    """Return a machine with one processor, so that a test keeps the others free."""
    return Host(
        cpu_model="test",
        cpu_flags=(),
        kernel="test",
        python="3",
        affinity=(0,),
        cpu_limit_millis=None,
        memory_limit_bytes=None,
    )


def tree(root: Path, files: Mapping[str, str]) -> Path:
    """Write files below the root, and return it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@dataclass
class FakeClock:
    """A clock that a call moves; reading it costs nothing."""

    now: int = 0

    def read(self) -> int:
        """Return the time in nanoseconds."""
        return self.now

    def call_of(self, *durations: int) -> Call:
        """Return a call that takes each duration in turn, the last one for ever."""
        left = list(durations)

        def call() -> None:
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call

    def wait_until(self, time_ns: int) -> None:
        """Stand in for `clock.wait_until`."""
        self.now = max(self.now, time_ns)


@dataclass
class FakeBackend:
    """A back end, and a model, whose every step a test may replace, and which writes down what it is asked."""

    facts: Facts = field(default_factory=lambda: {"device": "fake"})
    on_open: Callable[[], None] = lambda: None
    on_fetch: Callable[[], None] = lambda: None
    on_load: Callable[[], None] = lambda: None
    on_refer: Callable[[Shape], None] = lambda _: None
    on_compile: Callable[[Shape], Compilation] | None = None
    """None for a model that is called as it is."""
    on_verify: Callable[[Shape], None] = lambda _: None
    on_bound: Callable[[Shape], None] = lambda _: None
    on_call: Callable[[Shape], object] = lambda _: None
    on_error: Callable[[BaseException], object] = lambda _: None
    """Told of what goes through a bound shape's context; may raise something else instead."""
    on_let_go: Callable[[Shape], None] = lambda _: None
    on_observe: Callable[[], Callable[[], Usage]] | None = None
    """None for a device that nobody watches."""
    end_to_end: bool = False
    """Whether the model has a usable processor; an end-to-end call then is a call of the model, no more."""
    held: list[Shape] = field(default_factory=list)
    """Shapes whose inputs are bound now."""
    log: list[tuple[str, Shape | None]] = field(default_factory=list)
    """Steps with their shapes: open, fetch, load, refer, compile, verify, bound, call, end_to_end, let go, an error."""

    def open(self, _plan: Plan, _host: Host) -> FakeBackend:
        """Stand in for `open_backend`."""
        self.log.append(("open", None))
        self.on_open()
        return self

    def fetch(self, _model: ModelRef) -> Source:
        """Fetch nothing."""
        self.log.append(("fetch", None))
        self.on_fetch()
        return Source(commit="fetched")

    def load(self, _model: ModelRef, _source: Source) -> FakeBackend:
        """Be the model too."""
        self.log.append(("load", None))
        self.on_load()
        return self

    def refer(self, shape: Shape, known: Rows | None = None) -> Rows:
        """Compute nothing, unless it is known already."""
        self.log.append(("refer", shape))
        self.on_refer(shape)
        return RIGHT if known is None else known

    @property
    def compiles(self) -> bool:
        """Whether the test does."""
        return self.on_compile is not None

    def compile(self, shape: Shape) -> Compilation:
        """Make what the test makes."""
        self.log.append(("compile", shape))
        assert self.on_compile is not None
        return self.on_compile(shape)

    def verify(self, shape: Shape) -> Correctness:
        """Accept the shape unless the test says otherwise."""
        self.log.append(("verify", shape))
        self.on_verify(shape)
        return PERFECT

    @contextmanager
    def bound(self, shape: Shape) -> Iterator[Bound]:
        """Yield the test's call."""
        self.log.append(("bound", shape))
        self.on_bound(shape)
        self.held.append(shape)
        try:
            yield Bound(
                call=lambda: self._called("call", shape),
                end_to_end=(lambda: self._called("end_to_end", shape)) if self.end_to_end else None,
                observe=self.on_observe,
            )
        except BaseException as error:
            self.log.append((type(error).__name__, shape))
            self.on_error(error)
            raise
        finally:
            self.held.remove(shape)
            self.log.append(("let go", shape))
            self.on_let_go(shape)

    def count(self, step: str, length: int | None = None) -> int:
        """Return how often a step was taken, of any shape or of one length."""
        return sum(
            name == step and (length is None or (shape is not None and shape.sequence_length == length))
            for name, shape in self.log
        )

    def _called(self, kind: str, shape: Shape) -> None:
        self.log.append((kind, shape))
        self.on_call(shape)


def fails(error: BaseException) -> Callable[..., None]:
    """Return a step that raises."""

    def step(*_: object) -> None:
        raise error

    return step


LAST_WORDS = {
    Prepare: Phase.LOAD,
    Refer: Phase.VERIFY,
    Compile: Phase.COMPILE,
    Bind: Phase.VERIFY,
    Warm: Phase.WARMUP,
    Measure: Phase.MEASURE,
}
"""The phase that a process enters last when it carries a command out; none for letting a shape go."""


@dataclass
class Fate:
    """What befalls the process that is given a certain command: death, a refusal, or a stop of the whole runner."""

    command: type[Command]
    end: RunnerError | Failure | SystemExit
    index: int | None = None
    """Of the shape; None for any."""
    number: int = 1
    """At which such command of the process it strikes."""
    process: int | None = None
    """Number of the process from 0, replacements included; None for any, once."""
    silent: bool = False
    """Whether it strikes before the process has told which phase it enters."""
    _seen: dict[int, int] = field(default_factory=dict)
    _struck: bool = False

    def strikes(self, command: Command, process: int) -> bool:
        """Whether this command is the one."""
        fits = isinstance(command, self.command) and self.index in {None, getattr(command, "index", None)}
        if not fits or self.process not in {None, process} or (self._struck and self.process is None):
            return False
        self._seen[process] = self._seen.get(process, 0) + 1
        self._struck = self._seen[process] == self.number
        return self._struck


def refusal(phase: Phase, error: Exception) -> Failure:
    """Return what a process answers when a phase has failed."""
    return Failure.from_error(PhaseFailedError(phase, error))


Latencies = Callable[[int, int], Sequence[int]]
"""The latencies of one round, in nanoseconds: from the shape's index and the number of calls."""


def steady(duration: int = 10 * MS, *, relative: float = 0.002, seed: int = 0) -> Latencies:
    """Return independent lognormal latencies around one value, the same for all shapes."""
    generator = np.random.default_rng(seed)

    def latencies(_index: int, calls: int) -> list[int]:
        noise = np.exp(relative * generator.standard_normal(calls))
        return [int(value) for value in duration * noise]

    return latencies


@dataclass
class Stage:
    """What the processes of one run have in common, and all that they were told; `start` stands in for `Child`."""

    fates: Sequence[Fate] = ()
    latencies: Latencies | None = None
    """Scripted rounds; None lets the plan's back end measure in this process."""
    clock: FakeClock = field(default_factory=lambda: FakeClock(10**15))
    """Of scripted rounds."""
    servants: list[InlineServant | ScriptedServant] = field(default_factory=list)
    asked: list[tuple[int, Command]] = field(default_factory=list)
    """Each command with the number of the process that got it."""

    def start(self, plan: Plan, open_backend: OpenBackend) -> InlineServant | ScriptedServant:
        """Start a process."""
        number = len(self.servants)
        servant: InlineServant | ScriptedServant = (
            ScriptedServant(self, number) if self.latencies else InlineServant(self, number, plan, open_backend)
        )
        self.servants.append(servant)
        return servant

    def strike(self, command: Command, process: int, on_phase: Callable[[Phase], object]) -> Failure | None:
        """Write a command down, and let fate have its way."""
        self.asked.append((process, command))
        for fate in self.fates:
            if fate.strikes(command, process):
                if type(command) in LAST_WORDS and not fate.silent:
                    on_phase(LAST_WORDS[type(command)])
                if isinstance(fate.end, Failure):
                    return fate.end
                if isinstance(fate.end, SystemExit):
                    raise fate.end
                self.servants[process].ended = "died"
                raise ChildDiedError(fate.end)
        return None

    def rounds(self) -> list[tuple[int, int]]:
        """Return the process and the shape's index of each round that was asked for, in order."""
        return [(process, command.index) for process, command in self.asked if isinstance(command, Measure)]


class InlineServant:
    """A measuring process that is this one: the real worker, called directly."""

    def __init__(self, stage: Stage, number: int, plan: Plan, open_backend: OpenBackend) -> None:
        """Make the worker."""
        self.ended = ""
        self._stage, self._number = stage, number
        self._on_phase: Callable[[Phase], object] = lambda _: None
        self._worker = Worker(plan, open_backend, on_phase=self._enter)

    def ask(self, command: Command, _seconds: float, on_phase: Callable[[Phase], object]) -> Reply:
        """Let the worker carry it out."""
        assert not self.ended
        if failure := self._stage.strike(command, self._number, on_phase):
            return Reply(failure, {})
        self._on_phase = on_phase
        return self._worker.handle(command)

    def close(self) -> None:
        """Write down that it was let go."""
        self.ended = self.ended or "closed"

    def kill(self) -> None:
        """Write down that it was ended."""
        self.ended = self.ended or "killed"

    def _enter(self, phase: Phase) -> None:
        self._on_phase(phase)


class ScriptedServant:
    """A measuring process without a model, a device or a clock of its own: its stage says how long calls take."""

    def __init__(self, stage: Stage, number: int) -> None:
        """Take part in a run."""
        self.ended = ""
        self._stage, self._number = stage, number

    def ask(self, command: Command, _seconds: float, on_phase: Callable[[Phase], object]) -> Reply:
        """Answer at once."""
        assert not self.ended
        value: Value = self._stage.strike(command, self._number, on_phase)
        if value is None and type(command) in LAST_WORDS:
            on_phase(LAST_WORDS[type(command)])
            value = self._answer(command)
        return Reply(value, {})

    def close(self) -> None:
        """Write down that it was let go."""
        self.ended = self.ended or "closed"

    def kill(self) -> None:
        """Write down that it was ended."""
        self.ended = self.ended or "killed"

    def _answer(self, command: Command) -> Value:
        match command:
            case Prepare():
                return Prepared(command.source or Source(), {"device": "scripted"}, compiles=True)
            case Warm():
                return Warmup(10, 100 * MS, first_ns=20 * MS, call_ns=10 * MS, settled=True)
            case Measure():
                return self._round(command)
            case Refer():
                return Referred(RIGHT if command.known is None else command.known)
            case Bind() | Compile() | Release():
                return FIXED[type(command)]

    def _round(self, command: Measure) -> Round:
        begun, latencies = self._stage.clock.now, self._stage.latencies
        assert latencies is not None
        samples = array("q", latencies(command.index, command.quota.calls))
        spent = sum(samples)
        self._stage.clock.now += spent
        return Round(command.process, begun, Series(samples, elapsed_ns=spent, busy_ns=spent, completed=len(samples)))


@dataclass
class Outcome:
    """A run that is over, or was stopped, with the reports that it published."""

    run: Run
    path: Path
    said: list[str] = field(default_factory=list)


def make_run(tmp_path: Path, wanted: Plan, stage: Stage, backend: FakeBackend | None = None) -> Outcome:
    """Return a run that was not begun yet, whose processes are the stage's."""
    said: list[str] = []
    outlet = Outlet(tmp_path / "message", may_create=True, say=said.append)
    run = Run(wanted, outlet, (backend or FakeBackend()).open, stage.start)
    return Outcome(run, outlet.path, said)


def scripted_run(tmp_path: Path, wanted: Plan, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """Return a run whose processes are scripted, under the stage's clock: it takes as long as its arithmetic."""
    stage.latencies = stage.latencies or steady()
    monkeypatch.setattr(run_module, "now_ns", stage.clock.read)
    return make_run(tmp_path, wanted, stage)


def percentile(value: int, *, half_width: float = 0.01, effective: int = 1000) -> Percentile:
    """Return a percentile with a symmetric interval."""
    return Percentile(value, round(value * (1 - half_width)), round(value * (1 + half_width)), effective)


def distribution(scale: int = MS, count: int = 1000, *, half_width: float = 0.01) -> Distribution:
    """Return latencies around ten times the scale."""
    return Distribution(
        count=count,
        mean=10 * scale,
        minimum=9 * scale,
        p50=percentile(10 * scale),
        p90=percentile(11 * scale),
        p95=percentile(12 * scale, half_width=half_width),
        p99=percentile(13 * scale),
        maximum=14 * scale,
        interpolated_p95=12 * scale,
    )


SPOTLESS = Figures(
    call=distribution(),
    end_to_end=None,
    device=None,
    service=None,
    queue=None,
    blocks=21,
    rounds=21,
    process_p95=(12 * MS, 12 * MS, 12 * MS),
    processes_disagree=False,
    round_spread=0.0,
    drift=0.0,
    gap=0.0,
    calls_per_second=100.0,
    in_flight=1.0,
    achieved=None,
    warmup_calls=30,
    warmup_ns=300 * MS,
    warmups_settled=True,
    first_ns=20 * MS,
    measured_ns=10_000 * MS,
    counters=Counters(),
    usage=None,
    histogram="",
)
"""Figures that nothing can be said against."""


def circumstances(**fields: Any) -> Circumstances:  # noqa: ANN401  # passed through
    """Return circumstances that nothing can be said against either."""
    quiet = Circumstances(measurement=Measurement(), processes=3, interleaved=True, step_ns=50)
    return replace(quiet, **fields)
