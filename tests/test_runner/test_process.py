"""The runner as a process: exit codes, signals, what it costs, and one whole run with a real model library."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from inferbench_runner.contract import (
    DEADLINE_EXIT_CODE,
    REPORT_MARK,
    TERMINATION_PATH_VARIABLE,
    Caveat,
    CompactReport,
    FailureReason,
    FullReport,
    Phase,
    Position,
)
from test_runner.builders import cell, plan_dict
from test_runner.fake_backends import ENDLESS

FAKE_RUNNER = Path(__file__).with_name("fake_runner.py")

PATIENCE_SECONDS = 60
"""Time after which something that should have happened fails a test: far more than it takes."""


def environment(tmp_path: Path, **plan_fields: Any) -> dict[str, str]:  # noqa: ANN401  # passed through
    """Return the variables that a pod would give its runner, with a folder of its own for temporary files."""
    temporary = tmp_path / "temporary"
    temporary.mkdir(exist_ok=True)
    return {
        **os.environ,
        "TMPDIR": str(temporary),
        "INFERBENCH_PLAN": json.dumps(plan_dict(**plan_fields)),
        TERMINATION_PATH_VARIABLE: str(tmp_path / "message"),
    }


def message(tmp_path: Path) -> CompactReport:
    """Return the termination message."""
    return CompactReport.model_validate_json((tmp_path / "message").read_bytes())


def temporary_files(tmp_path: Path) -> list[Path]:
    """Return what the runner's folder for temporary files holds."""
    return list((tmp_path / "temporary").iterdir())


def report_in(out: str) -> FullReport:
    """Return the report that is the only line on standard output."""
    assert out.startswith(REPORT_MARK)
    assert out.count("\n") == 1
    return FullReport.model_validate_json(out.removeprefix(REPORT_MARK))


def wait_until(condition: Callable[[], bool], runner: subprocess.Popen[str]) -> None:
    """Return when the condition holds; fail when the runner has ended before that."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        assert runner.poll() is None, runner.communicate()[1]
        time.sleep(0.02)


@contextmanager
def started(backend: str, variables: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Yield a runner with this back end in a process group of its own, all of which is ended afterwards."""
    runner = subprocess.Popen(
        [sys.executable, FAKE_RUNNER, backend],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield runner
    finally:
        with suppress(ProcessLookupError):
            os.killpg(runner.pid, signal.SIGKILL)
        runner.communicate()


@contextmanager
def endless_second_shape(tmp_path: Path, **plan: object) -> Iterator[subprocess.Popen[str]]:
    """Yield a runner whose first shape has figures and whose second one is in a call that never ends."""
    endless = Position(cell=cell(1), phase=Phase.MEASURE)
    measurement = {"processes": 1, "maxSeconds": 3600}
    variables = environment(tmp_path, shapes=((1, 1), (ENDLESS, 1)), measurement=measurement, **plan)
    with started("open_sleepy", variables) as runner:
        wait_until((tmp_path / "message").exists, runner)
        wait_until(lambda: message(tmp_path).doing == endless and asleep(runner), runner)
        yield runner


def asleep(runner: subprocess.Popen[str]) -> bool:
    """Whether the measuring process has taken no processor time for a while: the endless call has begun."""
    (child,) = children(runner)
    before = child.cpu_times()
    time.sleep(0.3)
    return child.cpu_times()[:2] == before[:2]


def children(runner: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the measuring processes: those that run an interpreter, and not Python's own resource tracker."""
    found = psutil.Process(runner.pid).children(recursive=True)
    return [process for process in found if any("spawn_main" in word for word in process.cmdline())]


def test_a_killed_runner_leaves_what_it_measured(tmp_path: Path) -> None:
    """After kill -9 in the middle of a call the other shape's figures stand, and what it was doing is known."""
    with endless_second_shape(tmp_path) as runner:
        runner.send_signal(signal.SIGKILL)
        runner.wait(PATIENCE_SECONDS)
    report = message(tmp_path)
    assert [entry.cell for entry in report.measured][:1] == [cell(0)]
    assert Caveat.FEWER_PROCESSES in report.measured[0].caveats
    assert report.doing == Position(cell=cell(1), phase=Phase.MEASURE)


def test_a_stopped_runner_reports_and_leaves_nobody_behind(tmp_path: Path) -> None:
    """SIGTERM ends the runner with 143, with both reports of what was measured, and its process and folder with it."""
    with endless_second_shape(tmp_path) as runner:
        (child,) = children(runner)
        (scratch,) = temporary_files(tmp_path)
        assert child.environ()["INFERBENCH_SCRATCH"] == str(scratch)
        runner.send_signal(signal.SIGTERM)
        out, _ = runner.communicate(timeout=PATIENCE_SECONDS)
        assert runner.returncode == 143
        assert not child.is_running()
    assert temporary_files(tmp_path) == []
    details, report = report_in(out).cells, message(tmp_path)
    assert details[0].cell == report.measured[0].cell == cell(0)
    assert details[0].call.samples == report.measured[0].samples
    assert report.doing is None


def test_a_runner_whose_deadline_passes_reports(tmp_path: Path) -> None:
    """The alarm of the plan's deadline ends it with a code of its own, with what was measured before."""
    with endless_second_shape(tmp_path, deadlineSeconds=3600) as runner:
        (child,) = children(runner)
        runner.send_signal(signal.SIGALRM)
        out, _ = runner.communicate(timeout=PATIENCE_SECONDS)
        assert runner.returncode == DEADLINE_EXIT_CODE
        assert not child.is_running()
    assert temporary_files(tmp_path) == []
    assert report_in(out).cells[0].cell == message(tmp_path).measured[0].cell == cell(0)


def test_a_deadline_passes_by_itself(tmp_path: Path) -> None:
    """The alarm is set from the plan: a runner that could go on for an hour ends after a second."""
    measurement = {"minSeconds": 3600, "maxSeconds": 3600}
    variables = environment(tmp_path, shapes=((1, 1),), measurement=measurement, deadlineSeconds=1)
    done = run([FAKE_RUNNER, "open_sleepy"], variables, expected=DEADLINE_EXIT_CODE)
    report_in(done.stdout)
    assert message(tmp_path).doing is None


def run(arguments: list[str | Path], variables: dict[str, str], expected: int = 0) -> subprocess.CompletedProcess[str]:
    """Run Python to its end, which must have this exit code, and leave no temporary files."""
    done = subprocess.run([sys.executable, *arguments], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == expected, done.stderr
    assert list(Path(variables["TMPDIR"]).iterdir()) == []
    return done


def test_an_invalid_plan_exits_with_2_and_names_the_field(tmp_path: Path) -> None:
    """Every cell that can be made out is reported as failed, and the sentence is on standard error."""
    done = run(["-m", "inferbench_runner"], environment(tmp_path, precision="fp64"), expected=2)
    assert done.stderr.startswith("inferbench: precision: ")
    failed = message(tmp_path).failed
    assert [(entry.cell, entry.phase, entry.reason) for entry in failed] == [
        (cell(0), Phase.PROBE, FailureReason.INVALID_PLAN)
    ]


def test_an_error_of_the_runner_itself_exits_with_1(tmp_path: Path) -> None:
    """A full report that nobody can receive is no success; the termination message stands."""
    code = (
        "import sys; from test_runner.fake_backends import open_sleepy; from inferbench_runner.__main__ import main\n"
        "sys.stdout = None\nsys.exit(main([], open_sleepy))"
    )
    variables = environment(tmp_path, shapes=((1, 1),), measurement={"profile": "Legacy2023"})
    run(["-c", code], variables | {"PYTHONPATH": str(Path(__file__).parents[1])}, expected=1)
    assert [entry.cell for entry in message(tmp_path).measured] == [cell(0)]


def test_what_a_library_prints_never_mixes_with_the_report(tmp_path: Path) -> None:
    """Standard output is the report's line and nothing else; what both processes say is on standard error."""
    measurement = {"processes": 2, "minSamples": 1, "maxSeconds": 1, "targetHalfWidthPercent": 100}
    done = run([FAKE_RUNNER, "open_talkative"], environment(tmp_path, measurement=measurement))
    (details,) = report_in(done.stdout).cells
    assert len(details.process_p95_microseconds) == 2
    assert done.stderr.count("opened\n") == done.stderr.count("verified\n") == 2
    assert done.stderr.count("called\n") == details.call.samples + details.warmup_calls


def test_the_supervisor_takes_no_time_from_what_is_measured(tmp_path: Path) -> None:
    """While the measuring process keeps a processor busy for a second, the supervisor uses less than 5 % of that."""
    measurement = {"processes": 1, "minSeconds": 600, "maxSeconds": 3600}
    variables = environment(tmp_path, shapes=((5, 1),), measurement=measurement)
    with started("open_busy", variables) as runner:
        wait_until((tmp_path / "message").exists, runner)
        wait_until(lambda: message(tmp_path).doing == Position(cell=cell(0), phase=Phase.MEASURE), runner)
        (child,), supervisor = children(runner), psutil.Process(runner.pid)

        def used(process: psutil.Process) -> float:
            times = process.cpu_times()
            return times.user + times.system

        worked, supervised = used(child), used(supervisor)
        wait_until(lambda: used(child) - worked > 1, runner)
        assert used(supervisor) - supervised < 0.05 * (used(child) - worked)


@dataclass(frozen=True)
class WholeRun:
    """What a run with a real model left behind."""

    compact: CompactReport
    full: FullReport
    heavy: set[str]
    """Model libraries that the supervisor had imported by the end."""


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    """A tiny random model, measured on one processor, so that its threads don't wait for each other's turn."""
    pytest.importorskip("torch", reason="install the torch extra to measure a model")
    folder = tmp_path_factory.mktemp("whole")
    measurement = {"processes": 1, "minSamples": 60, "maxSeconds": 2, "targetHalfWidthPercent": 100}
    shapes = ((8, 1), (513, 1), (4, 3))
    (folder / "plan.json").write_text(json.dumps(plan_dict(shapes=shapes, measurement=measurement, seed=5)))
    variables = environment(folder) | {"HF_HUB_OFFLINE": "1"}
    del variables["INFERBENCH_PLAN"]
    code = (
        "import os, sys; from inferbench_runner.__main__ import main\n"
        "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); code = main()\n"
        "print(*(name for name in ('torch', 'transformers') if name in sys.modules), file=sys.stderr); sys.exit(code)"
    )
    done = run(["-c", code, "--plan", folder / "plan.json"], variables)
    return WholeRun(message(folder), report_in(done.stdout), set(done.stderr.splitlines()[-1].split()))


def test_a_whole_run(whole_run: WholeRun) -> None:
    """A tiny random model goes through all phases; a length that it can't take fails alone; the exit code is 0."""
    report, full = whole_run.compact, whole_run.full
    assert [entry.cell for entry in report.measured] == [cell(0), cell(2)]
    assert [(entry.cell, entry.reason) for entry in report.failed] == [(cell(1), FailureReason.SEQUENCE_TOO_LONG)]
    assert set(full.phases_milliseconds) == set(Phase) - {Phase.FETCH, Phase.COMPILE}
    wanted = {"runner", "torch", "transformers", "python", "kernel", "cpuModel", "threads", "affinity", "cpuLimit"}
    wanted |= {"memoryLimitBytes", "precision", "attention", "modelCommit", "execution", "weightsSeed", "inputSeed"}
    assert wanted <= set(full.provenance)
    assert full.provenance["weightsSeed"] == "5"
    assert full.peak_host_memory_mebibytes
    for details in full.cells:
        assert details.correctness is not None
        assert details.provenance_hash


def test_the_supervisor_never_imports_a_model_library(whole_run: WholeRun) -> None:
    """It waits, judges and writes: what the measuring processes tell it comes without their libraries."""
    assert whole_run.heavy == set()


def test_the_command_line_is_a_module(tmp_path: Path) -> None:
    """`python -m inferbench_runner` measures what the environment's plan asks for, in processes that find it."""
    variables = environment(tmp_path, device={"kind": "Neuron"})
    done = run(["-m", "inferbench_runner"], variables)
    assert report_in(done.stdout).cells == ()
    failed = message(tmp_path).failed[0]
    assert (failed.phase, failed.reason) == (Phase.PROBE, FailureReason.DEVICE_NOT_FOUND)


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has an NVIDIA device")
def test_a_machine_without_the_device_says_so_at_once(tmp_path: Path) -> None:
    """Asked for NVIDIA, a runner on a CPU node never measures there: it says what is missing within ten seconds."""
    variables = environment(tmp_path, device={"kind": "NVIDIA"}, shapes=((8, 1), (16, 1)))
    begun = time.monotonic()
    done = run(["-m", "inferbench_runner"], variables)
    assert time.monotonic() - begun < 10
    assert report_in(done.stdout).cells == ()
    failed = message(tmp_path).failed
    assert [(one.cell, one.phase, one.reason) for one in failed] == [
        (cell(index), Phase.PROBE, FailureReason.DEVICE_NOT_FOUND) for index in range(2)
    ]
    assert "NVIDIA driver" in failed[0].message
    assert "instanceTypes" in failed[0].message


def test_a_missing_library_is_named_with_the_extra_that_brings_it(tmp_path: Path) -> None:
    """Without the model libraries every shape fails with the command to install them, and the exit code is 0."""
    run([FAKE_RUNNER, "open_without_torch"], environment(tmp_path))
    failed = message(tmp_path).failed[0]
    assert failed.reason is FailureReason.MISSING_DEPENDENCY
    assert failed.message == (
        "Python module torch is missing; install it with pip install 'inferbench-operator[torch]'."
    )
