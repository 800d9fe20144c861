"""The supervisor: processes, rounds, reports, and what becomes of a plan when something fails or dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from inferbench_runner.backends.base import Source
from inferbench_runner.contract import (
    REPORT_MARK,
    Caveat,
    CellMeasured,
    CompactReport,
    FailureReason,
    FullReport,
    Phase,
    Plan,
    Position,
    Shape,
    Verdict,
)
from inferbench_runner.errors import (
    CompileFailedError,
    DeviceNotFoundError,
    DeviceOutOfMemoryError,
    DeviceTimeoutError,
    FetchFailedError,
    HardwareFaultError,
    ModelUnsupportedError,
    NumericMismatchError,
    OutOfMemoryError,
    ProcessCrashedError,
    ProcessExitedError,
    ProcessHungError,
    ProcessKilledError,
    RunnerError,
)
from inferbench_runner.worker import (
    Bind,
    Command,
    Compile,
    Failure,
    Measure,
    OpenBackend,
    Prepare,
    Refer,
    Release,
    Warm,
)
from test_runner.builders import (
    LAST_WORDS,
    MADE,
    MS,
    RIGHT,
    FakeBackend,
    Fate,
    InlineServant,
    Latencies,
    Outcome,
    ScriptedServant,
    Stage,
    cell,
    fails,
    make_run,
    plan,
    refusal,
    scripted_run,
    steady,
)

SHAPES = ((8, 1), (16, 1), (32, 2))
FETCHED = {"id": "a/b", "weights": "Pretrained", "config": {}}
SHORT = {"processes": 2, "minSamples": 300, "maxSeconds": 1, "targetHalfWidthPercent": 100}
"""Two processes that are content with what they get."""

SOUND = {"minSamples": 1000, "minSeconds": 10, "maxSeconds": 300}

DEATHS = [
    ProcessKilledError("SIGKILL"),
    ProcessCrashedError("SIGSEGV"),
    ProcessExitedError(3),
    ProcessHungError(60),
    OutOfMemoryError("the kernel ended the measuring process"),
]

Scripted = Callable[..., tuple[Outcome, CompactReport]]


@pytest.fixture(autouse=True)
def no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave this process's garbage collector alone: a measuring process has its own, and ends before it matters."""
    monkeypatch.setattr("inferbench_runner.worker.collector_paused", nullcontext)


def message(outcome: Outcome) -> CompactReport:
    """Return the termination message."""
    return CompactReport.model_validate_json(outcome.path.read_bytes())


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """Carry out a plan whose processes are scripted; return the run and its last termination message."""

    def carry_out(stage: Stage, shapes: Any = SHAPES, **fields: Any) -> tuple[Outcome, CompactReport]:  # noqa: ANN401
        measurement = SOUND | fields.pop("measurement", {})
        wanted = plan(shapes=shapes, measurement=measurement, **fields)
        outcome = scripted_run(tmp_path, wanted, stage, monkeypatch)
        outcome.run.carry_out()
        return outcome, message(outcome)

    return carry_out


def inline(
    tmp_path: Path,
    backend: FakeBackend,
    stage: Stage | None = None,
    **fields: Any,  # noqa: ANN401  # passed through
) -> tuple[Outcome, CompactReport]:
    """Carry out a plan with the real worker in this process; return the run and its last termination message.

    Calls take less than a microsecond here, which no target would suit: by default it is 100 of them in one process.
    """
    wanted = plan(**({"shapes": SHAPES, "measurement": {"profile": "Legacy2023"}} | fields))
    outcome = make_run(tmp_path, wanted, stage or Stage(), backend)
    outcome.run.carry_out()
    return outcome, message(outcome)


def caveats(outcome: Outcome, index: int) -> set[Caveat]:
    """Return the doubts about one shape."""
    found = {details.cell: details for details in outcome.run.to_full().cells}
    return {doubt.caveat for doubt in found[cell(index)].caveats}


def failures(report: CompactReport) -> list[tuple[str, Phase, FailureReason]]:
    """Return the failed shapes with their phase and reason."""
    return [(entry.cell, entry.phase, entry.reason) for entry in report.failed]


def cells(entries: Sequence[CellMeasured]) -> list[str]:
    """Return the shapes that were measured."""
    return [entry.cell for entry in entries]


# What a run is made of.


def test_every_process_measures_every_shape(scripted: Scripted) -> None:
    """Three processes, one after the other, share the samples of each shape, and each is let go before the next."""
    stage = Stage()
    outcome, report = scripted(stage)
    assert cells(report.measured) == [cell(0), cell(1), cell(2)]
    assert [servant.ended for servant in stage.servants] == ["closed"] * 3
    rounds = stage.rounds()
    assert [process for process, _ in rounds] == sorted(process for process, _ in rounds)
    for index in range(3):
        counts = [rounds.count((process, index)) for process in range(3)]
        assert counts == [outcome.run.design.rounds] * 3
    for details in outcome.run.to_full().cells:
        assert len(details.process_p95_microseconds) == 3
        assert details.rounds == 3 * outcome.run.design.rounds
    assert {entry.verdict for entry in report.measured} == {Verdict.VALID}


def test_a_process_first_makes_all_shapes_ready(scripted: Scripted) -> None:
    """All references are computed before any shape is compiled, verified and warmed up; then come the rounds."""
    stage = Stage()
    scripted(stage)
    first = [command for process, command in stage.asked if process == 0]
    head = [(type(command), getattr(command, "index", None)) for command in first[:13]]
    references = [(Refer, 0), (Refer, 1), (Refer, 2)]
    assert head == [
        (Prepare, None),
        *references,
        *((kind, index) for index in range(3) for kind in (Compile, Bind, Warm)),
    ]
    assert {type(command) for command in first[13:-3]} == {Measure}
    assert [(type(command), getattr(command, "index", None)) for command in first[-3:]] == [
        (Release, 0),
        (Release, 1),
        (Release, 2),
    ]


def test_what_is_right_is_computed_once(scripted: Scripted) -> None:
    """The first process computes it on the CPU, and those that follow are told."""
    stage = Stage()
    scripted(stage)
    known = [(process, command.known) for process, command in stage.asked if isinstance(command, Refer)]
    assert known == [(process, RIGHT if process else None) for process in range(3) for _ in range(3)]


def test_a_process_that_died_before_it_measured_has_told_nothing(scripted: Scripted) -> None:
    """Its successor computes what is right again, and asks the device what is asked once."""
    stage = Stage([Fate(Warm, ProcessCrashedError("SIGSEGV"), index=1)])
    scripted(stage)
    known = [command.known for process, command in stage.asked if isinstance(command, Refer) and process == 1]
    assert known == [None, None]


def test_shapes_take_turns_in_an_order_that_the_seed_decides(scripted: Scripted) -> None:
    """Each round has all shapes once, in shuffled order: another one for another seed, the same for the same seed."""
    orders = []
    for seed in (1, 1, 2):
        stage = Stage()
        scripted(stage, seed=seed)
        orders.append([index for _, index in stage.rounds()])
    turns = [tuple(orders[0][at : at + 3]) for at in range(0, len(orders[0]), 3)]
    assert all(sorted(turn) == [0, 1, 2] for turn in turns)
    assert len(set(turns)) == 6
    assert orders[0] == orders[1] != orders[2]


def test_a_shape_that_has_enough_leaves_the_rounds_to_the_others(scripted: Scripted) -> None:
    """A noisy shape goes on until its interval is narrow or its time is up; the quiet ones don't wait with it."""
    quiet, noisy = steady(), steady(relative=0.5, seed=1)
    stage = Stage(latencies=lambda index, calls: (noisy if index == 1 else quiet)(index, calls))
    outcome, report = scripted(stage, measurement={"maxSeconds": 60})
    rounds = [index for _, index in stage.rounds()]
    assert rounds.count(0) == rounds.count(2) == 3 * outcome.run.design.rounds < rounds.count(1)
    samples = [entry.samples for entry in report.measured]
    assert samples[1] > 2 * samples[0]
    assert report.measured[1].verdict is Verdict.INCONCLUSIVE
    assert caveats(outcome, 1) == {Caveat.TARGET_MISSED}


def test_open_loop_seeds_differ_between_shapes_processes_and_rounds(scripted: Scripted) -> None:
    """No two rounds have the same arrivals."""
    stage = Stage()
    scripted(stage)
    seeds = [command.seed for _, command in stage.asked if isinstance(command, Measure)]
    assert len(set(seeds)) == len(seeds)


def test_the_first_process_fetches_for_all(tmp_path: Path) -> None:
    """Later processes use the files that the first one has fetched."""
    backend, stage = FakeBackend(), Stage()
    inline(tmp_path, backend, stage, model=FETCHED, shapes=((8, 1),), measurement=SHORT | {"processes": 3})
    assert (backend.count("fetch"), backend.count("load")) == (1, 3)
    sources = [command.source for _, command in stage.asked if isinstance(command, Prepare)]
    assert sources == [None, Source(commit="fetched"), Source(commit="fetched")]


def test_phases_that_were_not_entered_are_absent(tmp_path: Path) -> None:
    """Random weights fetch nothing and eager execution compiles nothing: neither has a time, not even zero."""
    outcome, report = inline(tmp_path, FakeBackend())
    assert (cells(report.measured), report.failed) == ([cell(0), cell(1), cell(2)], ())
    full = outcome.run.to_full()
    assert set(full.phases_milliseconds) == set(Phase) - {Phase.FETCH, Phase.COMPILE}
    assert [details.cell for details in full.cells] == [cell(0), cell(1), cell(2)]
    assert full.wall_milliseconds


def test_a_shape_says_how_it_was_compiled(scripted: Scripted) -> None:
    """Each process compiles anew; what the first one did is told, as the later ones may find it in a cache."""
    stage = Stage()
    outcome, _ = scripted(stage)
    assert {details.compilation for details in outcome.run.to_full().cells} == {MADE}
    assert sum(isinstance(command, Compile) for _, command in stage.asked) == 9


def test_a_graph_that_can_not_be_compiled_fails_its_shape(scripted: Scripted) -> None:
    """The other shapes' graphs are compiled and measured all the same."""
    stage = Stage([Fate(Compile, refusal(Phase.COMPILE, CompileFailedError("ncc 2", "too large")), index=1)])
    _, report = scripted(stage)
    assert failures(report) == [(cell(1), Phase.COMPILE, FailureReason.COMPILE_FAILED)]
    assert cells(report.measured) == [cell(0), cell(2)]


def test_provenance_says_how_it_was_measured(tmp_path: Path) -> None:
    """What the supervisor knows joins what the processes tell of machine, back end and model."""
    load = {"mode": "Open", "ratePerSecond": 1_000_000, "concurrency": 2}
    outcome, _ = inline(tmp_path, FakeBackend(), seed=7, image="runner:1", measurement={"load": load, "processes": 1})
    facts = outcome.run.to_full().provenance
    expected = {"image": "runner:1", "weights": "Random", "weightsSeed": "7", "inputSeed": "7", "profile": "Sound"}
    expected |= {"load": "Open 2, Poisson 1000000/s", "processes": "1", "device": "fake"}
    assert expected.items() <= facts.items()
    assert {"runner", "kernel", "cpuModel", "affinity", "processors", "model", "revision", "config"} <= set(facts)


def test_the_published_method_is_one_round_of_one_process(scripted: Scripted) -> None:
    """A hundred samples, percentiles between two of them, and a doubt about the method."""
    stage = Stage()
    outcome, report = scripted(stage, measurement={"profile": "Legacy2023"})
    assert len(stage.servants) == 1
    assert sorted(stage.rounds()) == [(0, 0), (0, 1), (0, 2)]
    assert [entry.samples for entry in report.measured] == [100] * 3
    assert caveats(outcome, 0) == {Caveat.LEGACY_METHOD, Caveat.TOO_FEW_SAMPLES}
    details = outcome.run.to_full().cells[0]
    assert details.call.p95.value_microseconds == details.interpolated_p95_microseconds


# Reports while there is work to do.


def watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shapes: tuple[tuple[int, int], ...] = SHAPES
) -> list[tuple[Command, CompactReport]]:
    """Carry out a scripted plan; return each command with the message as it was while the command was carried out."""
    seen: list[tuple[Command, CompactReport]] = []
    outcome = scripted_run(tmp_path, plan(shapes=shapes, measurement=SOUND), Stage(), monkeypatch)
    answer = ScriptedServant._answer  # noqa: SLF001  # looked at from inside

    def look(servant: ScriptedServant, command: Command) -> Any:  # noqa: ANN401  # passed through
        seen.append((command, message(outcome)))
        return answer(servant, command)

    monkeypatch.setattr(ScriptedServant, "_answer", look)
    outcome.run.carry_out()
    seen.append((Prepare(), message(outcome)))
    return seen


def test_an_empty_report_comes_first(tmp_path: Path) -> None:
    """Whether reports can be written at all is known before anything is loaded."""
    reports = []

    def look() -> None:
        reports.append(CompactReport.model_validate_json((tmp_path / "message").read_bytes()))

    inline(tmp_path, FakeBackend(on_open=look))
    assert (reports[0].measured, reports[0].failed) == ((), ())


def test_the_report_says_what_is_being_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever kills the container, the shape and the phase that it was in are known; in the end there is none."""
    seen = watched(tmp_path, monkeypatch)
    for command, report in seen[:-1]:
        index = getattr(command, "index", None)
        on = None if index is None else cell(index)
        assert report.doing == Position(cell=on, phase=LAST_WORDS[type(command)])
    assert seen[-1][1].doing is None


@pytest.mark.parametrize("shapes", [SHAPES, SHAPES[:1]], ids=["of three shapes", "of a single shape"])
def test_figures_are_published_while_they_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shapes: tuple[tuple[int, int], ...]
) -> None:
    """What was measured so far is in the message, marked as of too few processes, until all have done their share."""
    seen = watched(tmp_path, monkeypatch, shapes)
    rounds = [report for command, report in seen if isinstance(command, Measure)]
    # Among the first process's rounds, and not only when it is done.
    first = rounds[: len(rounds) // 3]
    assert sum(bool(report.measured) for report in first) >= len(first) - 5
    for report in rounds:
        for entry in report.measured:
            assert entry.verdict is Verdict.INCONCLUSIVE
            assert Caveat.FEWER_PROCESSES in entry.caveats
    samples = [report.measured[0].samples for report in rounds if report.measured]
    assert samples == sorted(samples)
    # Provisional figures lag behind by a quarter at most, and by what one round takes.
    assert samples[-1] >= seen[-1][1].measured[0].samples / 1.25 - 40
    assert {entry.verdict for entry in seen[-1][1].measured} == {Verdict.VALID}


def test_people_are_told(scripted: Scripted) -> None:
    """The log says what is measured, when a process is ready, and each shape's figures as they come."""
    outcome, _ = scripted(Stage())
    assert outcome.said[0] == "bert-base-uncased: Random weights, CPU, fp32"
    assert [line for line in outcome.said if "is ready" in line] == [
        f"bert-base-uncased: process {number} of 3 is ready" for number in (1, 2, 3)
    ]
    figures = [line for line in outcome.said if ": p95 " in line]
    assert [line.partition(":")[0] for line in figures] == [
        f"bert-base-uncased {x}" for x in ("8x1", "16x1", "32x2")
    ] * 3
    assert all("FewerProcesses" in line for line in figures[:6])
    assert all("Valid" in line for line in figures[6:])


# What fails.


@pytest.mark.parametrize(
    ("backend", "phase", "reason"),
    [
        pytest.param(
            FakeBackend(on_open=fails(DeviceNotFoundError("Neuron"))),
            Phase.PROBE,
            FailureReason.DEVICE_NOT_FOUND,
            id="there is no device",
        ),
        pytest.param(
            FakeBackend(on_fetch=fails(FetchFailedError("a/b", OSError("down")))),
            Phase.FETCH,
            FailureReason.FETCH_FAILED,
            id="the files don't come",
        ),
        pytest.param(
            FakeBackend(on_load=fails(ModelUnsupportedError("no"))),
            Phase.LOAD,
            FailureReason.MODEL_UNSUPPORTED,
            id="the model can't be loaded",
        ),
        pytest.param(
            FakeBackend(on_load=fails(MemoryError())), Phase.LOAD, FailureReason.OUT_OF_MEMORY, id="it is too large"
        ),
    ],
)
def test_a_failure_before_the_shapes_fails_them_all(
    tmp_path: Path, backend: FakeBackend, phase: Phase, reason: FailureReason
) -> None:
    """Without a model there is no number for any shape: each says why, and no second process tries again."""
    stage = Stage()
    outcome, report = inline(tmp_path, backend, stage, model=FETCHED, measurement=SHORT)
    assert failures(report) == [(cell(index), phase, reason) for index in range(3)]
    assert [servant.ended for servant in stage.servants] == ["closed"]
    assert outcome.run.to_full().cells == ()


@pytest.mark.parametrize(
    ("phase", "held"),
    [
        pytest.param(Phase.VERIFY, 1, id="while it is verified, with one other held ready"),
        pytest.param(Phase.WARMUP, 2, id="while it warms up, held beside that one"),
        pytest.param(Phase.MEASURE, 3, id="while it is measured, with all held ready"),
    ],
)
def test_a_failing_shape_fails_alone(tmp_path: Path, phase: Phase, held: int) -> None:
    """The second shape fails in this phase; the first and the third have all their figures from the same process."""
    backend, stage = FakeBackend(), Stage()

    def strike(shape: Shape) -> None:
        if shape.sequence_length == 16 and len(backend.held) == held:
            message = "not finite"
            raise NumericMismatchError(message)

    backend.on_verify = backend.on_call = strike
    outcome, report = inline(tmp_path, backend, stage)
    assert failures(report) == [(cell(1), phase, FailureReason.NUMERIC_MISMATCH)]
    assert report.failed[0].message == "not finite"
    assert cells(report.measured) == [cell(0), cell(2)]
    assert [entry.samples for entry in report.measured] == [100, 100]
    assert (backend.held, len(stage.servants)) == ([], 1)
    assert Caveat.NOT_INTERLEAVED not in caveats(outcome, 0)


def test_a_shape_that_failed_is_left_alone_by_later_processes(scripted: Scripted) -> None:
    """What failed in the first process is not tried in the others."""
    stage = Stage([Fate(Bind, refusal(Phase.VERIFY, NumericMismatchError("off")), index=1)])
    _, report = scripted(stage)
    assert failures(report) == [(cell(1), Phase.VERIFY, FailureReason.NUMERIC_MISMATCH)]
    touched = {process for process, command in stage.asked if getattr(command, "index", None) == 1}
    assert touched == {0}
    assert {entry.verdict for entry in report.measured} == {Verdict.VALID}


def test_an_unexpected_error_is_typed_and_its_traceback_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What nobody foresaw is an internal error of the shape, in one clean line, with the traceback in the log."""
    backend = FakeBackend(on_verify=fails(ZeroDivisionError("bad\x1bthing\nhere")))
    _, report = inline(tmp_path, backend, shapes=((8, 1),))
    assert report.failed[0].reason is FailureReason.INTERNAL_ERROR
    assert report.failed[0].message.endswith("bad thing here")
    assert "ZeroDivisionError" in report.failed[0].message
    assert "Traceback" in capsys.readouterr().err


def test_an_answer_of_the_wrong_kind_is_a_fault_of_the_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that answers one command as if it were another stops the run, which reports all the same."""
    outcome = scripted_run(tmp_path, plan(), Stage(), monkeypatch)
    monkeypatch.setattr(ScriptedServant, "_answer", lambda *_: Source())
    with pytest.raises(TypeError, match="Prepare was answered by Source"):
        outcome.run.carry_out()
    assert message(outcome) == CompactReport()


# What dies.


STEPS = [
    (Refer, Phase.VERIFY, 1),
    (Compile, Phase.COMPILE, 1),
    (Bind, Phase.VERIFY, 1),
    (Warm, Phase.WARMUP, 1),
    (Measure, Phase.MEASURE, 5),
]
"""Commands, the phase that each is carried out in, and which of its kind for a shape."""


@pytest.mark.parametrize(
    ("death", "command", "phase", "number", "process"),
    [
        pytest.param(death, *step, process, id=f"{death.reason} in {step[0].__name__} of process {process + 1}")
        for death, step, process in [
            *((death, STEPS[-1], 0) for death in DEATHS),
            *((DEATHS[1], step, process) for step in STEPS for process in (0, 2)),
        ]
    ],
)
def test_a_process_that_dies_takes_one_shape_with_it(
    scripted: Scripted, death: RunnerError, command: type[Command], phase: Phase, number: int, process: int
) -> None:
    """The shape that it was on fails with the cause and the phase; a new process goes on with the rest of the share."""
    stage = Stage([Fate(command, death, index=1, number=number, process=process)])
    outcome, report = scripted(stage)
    assert failures(report) == [(cell(1), phase, death.reason)]
    assert report.failed[0].message == str(death)
    assert cells(report.measured) == [cell(0), cell(2)]
    assert len(stage.servants) == 4
    assert {servant.ended for servant in stage.servants} == {"closed", "died"}
    # Nothing is lost or measured twice: both have as many rounds as ever, and no doubt.
    for index in (0, 2):
        assert sum(on == index for _, on in stage.rounds()) == 3 * outcome.run.design.rounds
        assert caveats(outcome, index) == set()
        assert {entry.verdict for entry in report.measured} == {Verdict.VALID}
    replacement = [command for number, command in stage.asked if number == process + 1]
    assert 1 not in {getattr(command, "index", None) for command in replacement}


@pytest.mark.parametrize("death", DEATHS, ids=lambda death: death.reason)
def test_a_first_process_that_dies_before_any_shape_fails_them_all(scripted: Scripted, death: RunnerError) -> None:
    """Nothing has any samples then, and a second process would die of the same."""
    stage = Stage([Fate(Prepare, death)])
    _, report = scripted(stage)
    assert failures(report) == [(cell(index), Phase.LOAD, death.reason) for index in range(3)]
    assert len(stage.servants) == 1


@pytest.mark.parametrize("first", [0, 1])
def test_a_process_that_cannot_be_started_costs_its_share(scripted: Scripted, first: int) -> None:
    """The kernel may refuse a new process: all shapes fail if it was the first; what others measured stands."""
    stage = Stage()
    start = stage.start

    def refusing(wanted: Plan, opens: OpenBackend) -> InlineServant | ScriptedServant:
        if len(stage.servants) >= first:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return start(wanted, opens)

    stage.start = refusing  # type: ignore[method-assign]
    outcome, report = scripted(stage)
    if first:
        assert cells(report.measured) == [cell(0), cell(1), cell(2)]
        assert all(Caveat.FEWER_PROCESSES in caveats(outcome, index) for index in range(3))
    else:
        assert failures(report) == [(cell(index), Phase.PROBE, FailureReason.INTERNAL_ERROR) for index in range(3)]
        assert "temporarily unavailable" in report.failed[0].message


def test_a_process_that_dies_without_a_word_has_not_got_beyond_its_start(scripted: Scripted) -> None:
    """An interpreter that can't even begin fails all shapes in the first phase."""
    death = ProcessExitedError(1)
    _, report = scripted(Stage([Fate(Prepare, death, silent=True)]))
    assert failures(report) == [(cell(index), Phase.PROBE, death.reason) for index in range(3)]


@pytest.mark.parametrize("command", [Refer, Compile, Bind, Warm, Measure, Release])
@pytest.mark.parametrize("process", [0, 2])
def test_a_process_that_is_killed_between_two_commands_costs_one_shape_at_most(
    scripted: Scripted, command: type[Command], process: int
) -> None:
    """Which shape is to blame is unknown then; the others have all their figures, and no doubt."""
    stage = Stage([Fate(command, ProcessKilledError("SIGKILL"), index=1, process=process, silent=True)])
    _, report = scripted(stage)
    assert len(report.failed) <= 1
    assert len(report.measured) == 3 - len(report.failed)
    assert {entry.verdict for entry in report.measured} == {Verdict.VALID}


@pytest.mark.parametrize("process", [1, 2])
@pytest.mark.parametrize(
    "end",
    [ProcessCrashedError("SIGSEGV"), refusal(Phase.LOAD, OutOfMemoryError())],
    ids=["dies", "can't load the model"],
)
def test_a_later_process_that_never_gets_ready_leaves_the_figures_there_are(
    scripted: Scripted,
    end: RunnerError | Failure,
    process: int,
) -> None:
    """Its share is missing, which is a doubt about every shape and the end of none."""
    stage = Stage([Fate(Prepare, end, process=process)])
    outcome, report = scripted(stage)
    assert (cells(report.measured), report.failed) == ([cell(0), cell(1), cell(2)], ())
    for index in range(3):
        assert Caveat.FEWER_PROCESSES in caveats(outcome, index)
        assert report.measured[index].verdict is Verdict.INCONCLUSIVE
        assert len(outcome.run.to_full().cells[index].process_p95_microseconds) == 2
    assert len(stage.servants) == 3


def test_every_shape_may_take_a_process_with_it(scripted: Scripted) -> None:
    """Where each shape kills its process, each has its own failure, and the run ends."""
    crash = ProcessCrashedError("SIGSEGV")
    stage = Stage([Fate(Measure, crash, index=index, number=2) for index in range(3)])
    _, report = scripted(stage)
    assert sorted(failures(report)) == [(cell(index), Phase.MEASURE, crash.reason) for index in range(3)]
    assert [servant.ended for servant in stage.servants] == ["died"] * 3


def test_a_process_that_dies_of_letting_go_costs_no_figures(scripted: Scripted) -> None:
    """By then the shapes have what they need: none of them was being measured, so none has failed."""
    stage = Stage([Fate(Release, ProcessCrashedError("SIGSEGV"), index=0, process=2)])
    _, report = scripted(stage)
    assert report.failed == ()
    assert cells(report.measured) == [cell(0), cell(1), cell(2)]


# What does not fit.


def crowded(room: int, too_big: int | None = None, error: RunnerError | None = None) -> FakeBackend:
    """Return a back end whose memory holds so many shapes at once; one length may fit into none."""
    backend = FakeBackend()

    def bound(shape: Shape) -> None:
        if len(backend.held) >= room or shape.sequence_length == too_big:
            raise error or OutOfMemoryError

    backend.on_bound = bound
    return backend


@pytest.mark.parametrize("room", [1, 2])
@pytest.mark.parametrize("error", [OutOfMemoryError(), DeviceOutOfMemoryError("CUDA")], ids=["host", "device"])
def test_shapes_that_do_not_fit_together_are_measured_one_after_the_other(
    tmp_path: Path, room: int, error: RunnerError
) -> None:
    """Each of them fits alone: all are measured, by every process, and each says that they could not take turns."""
    stage, backend = Stage(), crowded(room, error=error)
    outcome, report = inline(tmp_path, backend, stage, measurement=SHORT)
    assert (cells(report.measured), report.failed) == ([cell(0), cell(1), cell(2)], ())
    for index in range(3):
        assert Caveat.NOT_INTERLEAVED in caveats(outcome, index)
        assert Caveat.FEWER_PROCESSES not in caveats(outcome, index)
    for process in range(2):
        order = [index for number, index in stage.rounds() if number == process]
        changes = sum(before != after for before, after in pairwise(order))
        assert changes == 2
    assert backend.held == []
    assert sum("one after the other" in line for line in outcome.said) == 1


def test_a_shape_that_fits_nowhere_fails_alone(tmp_path: Path) -> None:
    """The others fit together, so they still take turns, and nothing is held against them."""
    stage = Stage()
    outcome, report = inline(tmp_path, crowded(9, too_big=16), stage, measurement=SHORT)
    assert failures(report) == [(cell(1), Phase.VERIFY, FailureReason.OUT_OF_MEMORY)]
    assert cells(report.measured) == [cell(0), cell(2)]
    for index in (0, 2):
        assert Caveat.NOT_INTERLEAVED not in caveats(outcome, index)
    for process in range(2):
        order = [index for number, index in stage.rounds() if number == process]
        turns = [sorted(order[at : at + 2]) for at in range(0, 2 * outcome.run.design.rounds, 2)]
        assert turns == [[0, 2]] * outcome.run.design.rounds


@pytest.mark.parametrize(
    ("command", "phase"), [(Warm, Phase.WARMUP), (Measure, Phase.MEASURE)], ids=["while warming up", "while measuring"]
)
def test_memory_may_run_out_later_too(scripted: Scripted, command: type[Command], phase: Phase) -> None:
    """Buffers that a call needs may not fit beside the other shapes': the shape is tried alone, and it fits."""
    stage = Stage([Fate(command, refusal(phase, OutOfMemoryError()), index=2, number=1, process=0)])
    outcome, report = scripted(stage)
    assert (cells(report.measured), report.failed) == ([cell(0), cell(1), cell(2)], ())
    assert Caveat.NOT_INTERLEAVED in caveats(outcome, 2)
    assert len(stage.servants) == 3


@pytest.mark.parametrize(
    "error",
    [HardwareFaultError("Xid 79"), ProcessCrashedError("an illegal memory access"), DeviceTimeoutError("NRT 5")],
    ids=lambda error: error.reason,
)
def test_a_device_that_is_lost_costs_one_shape(scripted: Scripted, error: RunnerError) -> None:
    """Nothing works in that process any more: the rest goes on in a new one, and what was measured stands."""
    stage = Stage([Fate(Measure, refusal(Phase.MEASURE, error), index=1, number=3, process=0)])
    outcome, report = scripted(stage)
    assert failures(report) == [(cell(1), Phase.MEASURE, error.reason)]
    assert {entry.verdict for entry in report.measured} == {Verdict.VALID}
    assert len(stage.servants) == 4
    assert sum("answers no more" in line for line in outcome.said) == 1
    for index in (0, 2):
        assert sum(on == index for _, on in stage.rounds()) == 3 * outcome.run.design.rounds


def test_a_compiler_that_takes_too_long_is_not_tried_again(scripted: Scripted) -> None:
    """Its process is ended, and the sentence names the deadline; the other shapes go on."""
    stage = Stage([Fate(Compile, ProcessHungError(1800), index=1, process=0)])
    _, report = scripted(stage)
    assert failures(report) == [(cell(1), Phase.COMPILE, FailureReason.COMPILE_FAILED)]
    assert "execution.compileDeadlineSeconds" in report.failed[0].message
    assert not report.failed[0].reason.retryable


def test_a_shape_without_a_reference_is_not_tried(scripted: Scripted) -> None:
    """What the host has no memory for in full precision can't be verified; the others take turns all the same."""
    stage = Stage([Fate(Refer, refusal(Phase.VERIFY, OutOfMemoryError()), index=1, process=0)])
    outcome, report = scripted(stage)
    assert failures(report) == [(cell(1), Phase.VERIFY, FailureReason.OUT_OF_MEMORY)]
    assert [type(command) for _, command in stage.asked if getattr(command, "index", None) == 1] == [Refer]
    assert Caveat.NOT_INTERLEAVED not in caveats(outcome, 0)


def test_the_only_shape_of_a_plan_needs_no_second_try(tmp_path: Path) -> None:
    """Where no other shape takes up memory, there is nothing to let go of."""
    backend = crowded(9, too_big=8)
    _, report = inline(tmp_path, backend, shapes=((8, 1),))
    assert failures(report) == [(cell(0), Phase.VERIFY, FailureReason.OUT_OF_MEMORY)]
    assert backend.count("verify") == 1


# What stops the whole run.


def full(capfd: pytest.CaptureFixture[str]) -> FullReport:
    """Return the log line on standard output."""
    return FullReport.model_validate_json(capfd.readouterr().out.removeprefix(REPORT_MARK))


@pytest.mark.parametrize(
    ("command", "number", "process", "reported"),
    [
        pytest.param(Prepare, 1, 0, 0, id="before anything was measured"),
        pytest.param(Measure, 7, 0, 3, id="in the middle of the first process"),
        pytest.param(Warm, 2, 1, 3, id="between two processes' rounds"),
    ],
)
def test_a_stop_request_delivers_what_was_measured(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    command: type[Command],
    number: int,
    process: int,
    reported: int,
) -> None:
    """An exit passes through; both reports have the figures so far, and the process is ended at once."""
    stage = Stage([Fate(command, SystemExit(143), number=number, process=process)])
    outcome = scripted_run(tmp_path, plan(shapes=SHAPES, measurement=SOUND), stage, monkeypatch)
    with pytest.raises(SystemExit) as stopped:
        outcome.run.carry_out()
    assert stopped.value.code == 143
    assert stage.servants[-1].ended == "killed"
    report, details = message(outcome), full(capfd).cells
    assert report.doing is None
    assert (len(report.measured), len(details), report.failed) == (reported, reported, ())
    for entry, detail in zip(report.measured, details, strict=True):
        assert entry.samples == detail.call.samples == sum(len(one.series.calls) for one in rounds_of(outcome, entry))
        assert Caveat.FEWER_PROCESSES in entry.caveats


def rounds_of(outcome: Outcome, entry: CellMeasured) -> Iterator[Any]:
    """Yield all rounds that a shape had when the run was over."""
    for found in outcome.run.cells:
        if found.shape.cell == entry.cell:
            yield from found.rounds


def test_a_noisy_hosts_time_is_limited(scripted: Scripted) -> None:
    """With calls that never settle, a shape takes its longest time and not more than a round beyond it per process."""
    noisy: Latencies = steady(100 * MS, relative=0.3)
    stage = Stage(latencies=noisy)
    begun = stage.clock.now
    outcome, report = scripted(stage, shapes=((8, 1),), measurement={"maxSeconds": 60})
    assert report.measured[0].verdict is Verdict.INCONCLUSIVE
    longest = 3 * outcome.run.design.quota.calls * 100 * MS * 2
    assert 60_000 * MS <= stage.clock.now - begun <= 60_000 * MS + longest
