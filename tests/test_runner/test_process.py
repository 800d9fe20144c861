"""The runner as a process: exit codes, signals, and one whole run with a real model library."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inferbench_runner.contract import (
    DEADLINE_EXIT_CODE,
    REPORT_MARK,
    TERMINATION_PATH_VARIABLE,
    CompactReport,
    FailureReason,
    FullReport,
    Phase,
)
from test_runner.builders import cell, plan_dict

FAKE_RUNNER = Path(__file__).with_name("fake_runner.py")
DEADLINE_SECONDS = 20


def environment(tmp_path: Path, **plan_fields: Any) -> dict[str, str]:  # noqa: ANN401  # passed through
    """Return the variables that a pod would give its runner."""
    return {
        **os.environ,
        "INFERBENCH_PLAN": json.dumps(plan_dict(**plan_fields)),
        TERMINATION_PATH_VARIABLE: str(tmp_path / "message"),
    }


def message(tmp_path: Path) -> CompactReport:
    """Return the termination message."""
    return CompactReport.model_validate_json((tmp_path / "message").read_bytes())


@contextmanager
def endless_second_shape(tmp_path: Path, **plan: object) -> Iterator[subprocess.Popen[str]]:
    """Yield a runner whose first shape is done and whose second one goes on.

    Its back end sleeps as many milliseconds as the shape has tokens: 1 for the first, 100,000 for the second.
    """
    variables = environment(tmp_path, shapes=((1, 1), (100_000, 1)), measurement={"maxSeconds": 3600}, **plan)
    runner = subprocess.Popen(
        [sys.executable, FAKE_RUNNER], env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not (tmp_path / "message").exists() or not message(tmp_path).measured:
            assert time.monotonic() < deadline, "the first shape was not reported in time"
            assert runner.poll() is None, runner.communicate()[1]
            time.sleep(0.02)
        yield runner
    finally:
        runner.kill()
        runner.communicate()


def test_a_killed_runner_leaves_what_it_measured(tmp_path: Path) -> None:
    """After kill -9 in the middle of the second shape the first one's figures stand."""
    with endless_second_shape(tmp_path) as runner:
        runner.send_signal(signal.SIGKILL)
        runner.wait(DEADLINE_SECONDS)
    assert [entry.cell for entry in message(tmp_path).measured] == [cell(0)]


def test_a_stopped_runner_exits_promptly_and_reports(tmp_path: Path) -> None:
    """SIGTERM ends the runner with 143 within a second or two, with both reports of what was measured."""
    with endless_second_shape(tmp_path) as runner:
        runner.send_signal(signal.SIGTERM)
        out, _ = runner.communicate(timeout=5)
    assert runner.returncode == 143
    assert [details.cell for details in FullReport.model_validate_json(out.removeprefix(REPORT_MARK)).cells] == [
        cell(0)
    ]
    assert [entry.cell for entry in message(tmp_path).measured] == [cell(0)]


def test_a_runner_whose_deadline_passes_ends_by_itself_and_reports(tmp_path: Path) -> None:
    """What was measured before the plan's deadline stands, and the exit code tells a deadline from a crash."""
    with endless_second_shape(tmp_path, deadlineSeconds=3) as runner:
        out, _ = runner.communicate(timeout=DEADLINE_SECONDS)
    assert runner.returncode == DEADLINE_EXIT_CODE
    assert len(FullReport.model_validate_json(out.removeprefix(REPORT_MARK)).cells) == 1
    assert [entry.cell for entry in message(tmp_path).measured] == [cell(0)]


def test_an_invalid_plan_exits_with_2_and_names_the_field(tmp_path: Path) -> None:
    """Every cell that can be made out is reported as failed, and the sentence is on standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "inferbench_runner"],
        env=environment(tmp_path, precision="fp64"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("inferbench: precision: ")
    failed = message(tmp_path).failed
    assert [(entry.cell, entry.phase, entry.reason) for entry in failed] == [
        (cell(0), Phase.PROBE, FailureReason.INVALID_PLAN)
    ]


def test_an_error_of_the_runner_itself_exits_with_1(tmp_path: Path) -> None:
    """A full report that nobody can receive is no success."""
    code = (
        "import sys; from test_runner.builders import FakeBackend; from inferbench_runner.__main__ import main\n"
        "sys.stdout = None\nsys.exit(main([], FakeBackend().open))"
    )
    variables = environment(tmp_path) | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert [entry.cell for entry in message(tmp_path).measured] == [cell(0)]


def test_a_whole_run(tmp_path: Path) -> None:
    """A tiny random model goes through all phases; a length that it can't take fails alone; the exit code is 0."""
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(plan_dict(shapes=((8, 1), (513, 1), (4, 3)), seed=5)), encoding="utf-8")
    variables = environment(tmp_path) | {"HF_HUB_OFFLINE": "1"}
    del variables["INFERBENCH_PLAN"]
    done = subprocess.run(
        [sys.executable, "-m", "inferbench_runner", "--plan", plan],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = message(tmp_path)
    assert [entry.cell for entry in report.measured] == [cell(0), cell(2)]
    assert [(entry.cell, entry.reason) for entry in report.failed] == [(cell(1), FailureReason.SEQUENCE_TOO_LONG)]
    marked = [line for line in done.stdout.splitlines() if line.startswith(REPORT_MARK)]
    assert len(marked) == 1
    full = FullReport.model_validate_json(marked[0].removeprefix(REPORT_MARK))
    assert set(full.phases_milliseconds) == set(Phase) - {Phase.FETCH, Phase.COMPILE}
    wanted = {"runner", "torch", "transformers", "python", "kernel", "cpuModel", "threads", "affinity", "cpuLimit"}
    wanted |= {"memoryLimitBytes", "precision", "attention", "modelCommit", "execution", "weightsSeed", "inputSeed"}
    assert wanted <= set(full.provenance)
    assert full.provenance["weightsSeed"] == "5"


def test_a_missing_library_is_named_with_the_extra_that_brings_it(tmp_path: Path) -> None:
    """Without the model libraries every shape fails with the command to install them, and the exit code is 0."""
    code = (
        "import runpy, sys; sys.modules['torch'] = None; sys.argv = ['x']\n"
        "runpy.run_module('inferbench_runner', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    failed = message(tmp_path).failed[0]
    assert failed.reason is FailureReason.MISSING_DEPENDENCY
    assert failed.message == (
        "Python module torch is missing; install it with pip install 'inferbench-operator[torch]'."
    )
