"""Measuring processes that die, hang or run out of memory: real processes, real signals, at every phase."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from cluster.observing import eventually
from inferbench_runner.child import ALLOCATOR, Child, ChildDiedError, Patience
from inferbench_runner.contract import (
    TERMINATION_PATH_VARIABLE,
    Caveat,
    CompactReport,
    FailureReason,
    FullReport,
    Measurement,
    Phase,
    Plan,
    Profile,
    Verdict,
)
from inferbench_runner.outlet import Outlet
from inferbench_runner.run import Run
from inferbench_runner.worker import Compile, Prepare, Prepared
from test_runner.dying_backend import open_dying

pytestmark = pytest.mark.slow

SHAPES = (8, 16, 32)
ON = 16
"""The shape on which a process dies."""

REASONS = {
    "SIGKILL": FailureReason.PROCESS_KILLED,
    "SIGSEGV": FailureReason.PROCESS_CRASHED,
    "exit": FailureReason.PROCESS_EXITED,
    "memory": FailureReason.OUT_OF_MEMORY,
    "hang": FailureReason.PROCESS_HUNG,
}
PHASES = (Phase.PROBE, Phase.FETCH, Phase.LOAD, Phase.COMPILE, Phase.VERIFY, Phase.WARMUP, Phase.MEASURE)
OF_A_SHAPE = PHASES[3:]

IMPATIENT = Patience(prepare=6, bind=3, warmup=0, grace=3)

MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")


def plan_that_dies(tmp_path: Path, how: str, phase: Phase, process: int, processes: int) -> Plan:
    """Return a plan with three shapes and few samples."""
    marks = tmp_path / "processes"
    marks.mkdir()
    return Plan.model_validate(
        {
            "model": {"id": str(marks), "revision": f"{how} {phase} {ON} {process}"},
            "device": {"kind": "CPU"},
            "compileDeadlineSeconds": IMPATIENT.bind,
            "shapes": [{"cell": f"{length:010x}", "sequenceLength": length} for length in SHAPES],
            "measurement": {
                "minSamples": 120,
                "minSeconds": 0,
                "maxSeconds": 3,
                "targetHalfWidthPercent": 100,
                "processes": processes,
            },
        }
    )


@pytest.mark.parametrize(
    ("profile", "own", "expected"),
    [
        pytest.param("Sound", {}, ALLOCATOR, id="so that what is freed stays"),
        pytest.param(
            "Sound", {"MALLOC_TRIM_THRESHOLD_": "7"}, ALLOCATOR | {"MALLOC_TRIM_THRESHOLD_": "7"}, id="unless said"
        ),
        pytest.param("Legacy2023", {}, {}, id="and not as in 2023"),
    ],
)
def test_the_allocator_is_held_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str, own: dict[str, str], expected: dict[str, str]
) -> None:
    """The process is started with glibc's thresholds fixed, and its provenance has them; the parent's stay."""
    for name in ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    for name, text in own.items():
        monkeypatch.setenv(name, text)
    before = dict(os.environ)
    plan = plan_that_dies(tmp_path, "exit", Phase.MEASURE, 9, 1)
    plan = plan.model_copy(update={"measurement": Measurement(profile=Profile(profile))})
    child = Child(plan, open_dying)
    try:
        prepared = child.ask(Prepare(), 60, lambda _: None).value
    finally:
        child.close()
    assert isinstance(prepared, Prepared)
    assert prepared.facts["allocator"].split()[2:] == [f"{name}={text}" for name, text in sorted(expected.items())]
    assert dict(os.environ) == before


FAULTS = """
from resource import RUSAGE_SELF, getrusage
for _ in range(3):
    before = getrusage(RUSAGE_SELF).ru_minflt
    blocks = [bytearray(2**20 * 5) for _ in range(20)]
    del blocks
print(getrusage(RUSAGE_SELF).ru_minflt - before)
"""


def test_what_is_freed_stays() -> None:
    """A hundred megabytes in blocks come from the kernel anew each time, page by page, but not with our thresholds."""
    usual, held = (
        int(
            subprocess.run(
                [sys.executable, "-c", FAULTS], env=os.environ | more, capture_output=True, text=True, check=True
            ).stdout
        )
        for more in ({}, ALLOCATOR)
    )
    assert held < 100
    assert usual > 10_000


def cell(length: int) -> str:
    """Return the hash of a shape's cell."""
    return f"{length:010x}"


def reports(plan: Plan, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> tuple[CompactReport, FullReport]:
    """Carry the plan out and return both reports."""
    path = tmp_path / "message"
    Run(plan, Outlet(path, may_create=True), open_dying, patience=IMPATIENT).carry_out()
    line = capsysbinary.readouterr().out.split(b" ", 1)[1]
    return CompactReport.model_validate_json(path.read_bytes()), FullReport.model_validate_json(line)


@pytest.mark.parametrize("phase", OF_A_SHAPE)
@pytest.mark.parametrize("how", REASONS)
def test_a_process_that_dies_on_a_shape_costs_that_shape_only(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], how: str, phase: Phase
) -> None:
    """The shape has a typed failure in the right phase; the others are measured to the end, in a new process."""
    compact, full = reports(plan_that_dies(tmp_path, how, phase, 0, 1), tmp_path, capsysbinary)
    # What hangs while it compiles is a compiler that takes too long.
    reason = FailureReason.COMPILE_FAILED if (how, phase) == ("hang", Phase.COMPILE) else REASONS[how]
    assert [(one.cell, one.phase, one.reason) for one in compact.failed] == [(cell(ON), phase, reason)]
    assert {one.cell for one in compact.measured} == {cell(8), cell(32)} == {one.cell for one in full.cells}
    assert all(one.samples >= 120 for one in compact.measured)
    assert not any(Caveat.FEWER_PROCESSES in one.caveats for one in compact.measured)
    assert compact.doing is None


@pytest.mark.parametrize("phase", PHASES[:3])
@pytest.mark.parametrize("how", REASONS)
def test_a_process_that_dies_before_any_shape_costs_one_process(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], how: str, phase: Phase
) -> None:
    """What the first process measured stands, marked as the work of fewer processes than were asked for.

    The files are fetched once: in that phase only the first process can die, which leaves nothing to stand.
    """
    first = phase is Phase.FETCH
    compact, _ = reports(plan_that_dies(tmp_path, how, phase, 0 if first else 1, 2), tmp_path, capsysbinary)
    if first:
        assert {(one.cell, one.phase, one.reason) for one in compact.failed} == {
            (cell(length), phase, REASONS[how]) for length in SHAPES
        }
        return
    assert compact.failed == ()
    assert [one.cell for one in compact.measured] == [cell(length) for length in SHAPES]
    for one in compact.measured:
        assert Caveat.FEWER_PROCESSES in one.caveats
        assert one.verdict is not Verdict.VALID


def test_a_process_that_dies_later_keeps_what_the_others_measured(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A crash in the second of three processes loses its shape; the others have samples of all three."""
    plan = plan_that_dies(tmp_path, "SIGSEGV", Phase.MEASURE, 1, 3)
    compact, full = reports(plan, tmp_path, capsysbinary)
    assert [one.cell for one in compact.failed] == [cell(ON)]
    for one in full.cells:
        # The second process's share was begun by the one that died, and finished by another.
        assert len(one.process_p95_microseconds) in {3, 4}
        assert one.call.samples >= 120
    assert not any(Caveat.FEWER_PROCESSES in one.caveats for one in compact.measured)


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """Yield a control group of 400 MiB in this process's own; it has no processes at the end."""
    mine = next(
        (line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line), ""
    )
    group = MEMORY_GROUPS / mine.lstrip("/") / f"inferbench-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"needs root and a writable memory controller (version 1) under {MEMORY_GROUPS}: {error.strerror}")
    (group / "memory.limit_in_bytes").write_text(str(400 * 2**20), encoding="ascii")
    yield group
    # Python's own helper of multiprocessing leaves a moment after its parent.
    eventually("the control group is empty", (group / "cgroup.procs").read_text, lambda text: not text)
    group.rmdir()


def test_the_kernel_ends_the_child_and_not_the_supervisor(tmp_path: Path, memory_group: Path) -> None:
    """Under a real memory limit the measuring process is the victim; its shape says so, and the others go on."""
    plan = plan_that_dies(tmp_path, "fill", Phase.MEASURE, 0, 1)
    code = (
        "import os, sys; from pathlib import Path\n"
        "Path(sys.argv[1], 'cgroup.procs').write_text(str(os.getpid()))\n"
        "from inferbench_runner.__main__ import main; from test_runner.dying_backend import open_dying\n"
        "sys.exit(main([], open_dying))"
    )
    variables = {
        **os.environ,
        "INFERBENCH_PLAN": plan.model_dump_json(),
        "PYTHONPATH": str(Path(__file__).parents[1]),
        TERMINATION_PATH_VARIABLE: str(tmp_path / "message"),
    }
    done = subprocess.run(
        [sys.executable, "-c", code, memory_group], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    compact = CompactReport.model_validate_json((tmp_path / "message").read_bytes())
    assert [(one.cell, one.phase, one.reason) for one in compact.failed] == [
        (cell(ON), Phase.MEASURE, FailureReason.OUT_OF_MEMORY)
    ]
    assert "kernel" in compact.failed[0].message
    assert {one.cell for one in compact.measured} == {cell(8), cell(32)}


def test_a_child_is_a_fresh_process_that_leaves_when_told(tmp_path: Path) -> None:
    """Two children have two process ids, neither of them ours, and are gone once closed."""
    plan = plan_that_dies(tmp_path, "exit", Phase.REPORT, 99, 1)
    for _ in range(2):
        child = Child(plan, open_dying)
        child.ask(Prepare(), 30, lambda _: None)
        child.close()
    pids = [int(mark.name) for mark in Path(plan.model.id).iterdir()]
    assert len({*pids, os.getpid()}) == 3
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_compiler_is_ended_with_the_process_that_started_it(tmp_path: Path) -> None:
    """What a process has started, and hangs on, does not take the time of the next one when it is ended."""
    plan = plan_that_dies(tmp_path, "compiler", Phase.COMPILE, 0, 1)
    child = Child(plan, open_dying)
    for command in (Prepare(), Compile(SHAPES.index(ON))):
        child.ask(command, 60, lambda _: None)
    (mark,) = Path(plan.model.id).iterdir()
    (compiler,) = psutil.Process(int(mark.name)).children()
    try:
        assert compiler.cmdline() == ["/bin/sleep", "1000"]
        child.kill()
        eventually("the compiler is gone", lambda: _is_gone(compiler))
    finally:
        with suppress(psutil.NoSuchProcess):
            compiler.kill()


def test_a_child_whose_supervisor_is_gone_ends_by_itself(tmp_path: Path) -> None:
    """The end of the pipe is the end of the child: nothing is left behind by a supervisor that was killed."""
    plan = plan_that_dies(tmp_path, "exit", Phase.REPORT, 99, 1)
    code = (
        "import os, signal, sys\n"
        "from inferbench_runner.child import Child; from inferbench_runner.contract import Plan\n"
        "from inferbench_runner.worker import Prepare; from test_runner.dying_backend import open_dying\n"
        "Child(Plan.model_validate_json(sys.argv[1]), open_dying).ask(Prepare(), 30, lambda _: None)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code, plan.model_dump_json()], env=variables, capture_output=True, check=False
    )
    # The output's pipe is held by the child too, so that it has an end only when the child is gone.
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = [int(mark.name) for mark in Path(plan.model.id).iterdir()]
    assert len(pids) == 1
    assert not Path(f"/proc/{pids[0]}").exists() or _is_zombie(pids[0])


def _is_gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _is_zombie(pid: int) -> bool:
    return ") Z " in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")


def test_a_dead_child_says_so_once_more(tmp_path: Path) -> None:
    """A second question to a child that died is answered in the same way, not by a hang."""
    child = Child(plan_that_dies(tmp_path, "SIGSEGV", Phase.LOAD, 0, 1), open_dying)
    for _ in range(2):
        with pytest.raises(ChildDiedError, match="SIGSEGV"):
            child.ask(Prepare(), 30, lambda _: None)
    child.close()
