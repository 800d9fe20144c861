"""Runs a program to its end, timed from outside, and ends it with us: the runner as in a pod, and its peers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from time import perf_counter
from typing import Final

from pydantic import ValidationError

from cluster.errors import ClusterError
from cluster.processes import GuardedProcess
from inferbench_operator.core.reports import parse_full
from inferbench_runner.contract import TERMINATION_PATH_VARIABLE, CompactReport, FullReport, Plan

Watch = Callable[[int], None]
"""Is called again and again with the number of a process while it runs."""

_WATCH_SECONDS: Final = 0.05
_WORDS: Final = 2000
"""Characters of a program's output that are worth showing when it fails."""


class RunnerFailedError(ClusterError):
    """The runner did not measure what it was asked for."""

    def __init__(self, code: int, log: str) -> None:
        """Say how it ended, and its last words."""
        super().__init__(f"The runner ended with {code} and did not measure everything:\n{log[-_WORDS:]}")


class TooFewProcessorsError(ClusterError):
    """A measurement needs more processors than this process may use."""

    def __init__(self, wanted: int, allowed: int) -> None:
        """Say both numbers."""
        super().__init__(f"{wanted} processors are needed, and {allowed} may be used here.")


@dataclass(frozen=True, slots=True)
class Ended:
    """A program that has ended."""

    code: int
    seconds: float
    """From its start to its end, by our clock."""
    output: str
    """Standard output and standard error, as they came."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A runner that has carried out its plan."""

    seconds: float
    compact: CompactReport
    full: FullReport


def run(
    command: Sequence[str], folder: Path, *, environment: Mapping[str, str] | None = None, watch: Watch | None = None
) -> Ended:
    """Run a program in a folder of ours; without a watch, this process sleeps meanwhile."""
    log = folder / "output.log"
    with log.open("wb") as output:
        began = perf_counter()
        guarded = GuardedProcess.start(command, output=output, env=environment, cwd=folder)
    try:
        while watch and _lasts(guarded.process):
            watch(guarded.process.pid)
        code = guarded.process.wait()
        seconds = perf_counter() - began
    finally:
        guarded.stop(0)
    return Ended(code, seconds, log.read_text(encoding="utf-8", errors="replace"))


def _lasts(process: Popen[bytes]) -> bool:
    """Whether a process is still there after a short wait."""
    try:
        process.wait(_WATCH_SECONDS)
    except TimeoutExpired:
        return True
    return False


def run_plan(plan: Plan, folder: Path, *, watch: Watch | None = None) -> Ran:
    """Run the runner as a pod would.

    Raises:
        RunnerFailedError: It did not measure all shapes of the plan.
    """
    file, message = folder / "plan.json", termination(folder)
    file.write_text(plan.model_dump_json(), encoding="utf-8")
    message.unlink(missing_ok=True)
    environment = {**os.environ, TERMINATION_PATH_VARIABLE: str(message), "HOME": str(folder)}
    command = [sys.executable, "-m", "inferbench_runner", f"--plan={file}"]
    ended = run(command, folder, environment=environment, watch=watch)
    compact, full = compact_report(folder), parse_full(ended.output)
    if ended.code or full is None or compact is None or len(compact.measured) < len(plan.shapes):
        raise RunnerFailedError(ended.code, ended.output)
    return Ran(ended.seconds, compact, full)


def compact_report(folder: Path) -> CompactReport | None:
    """Return the report so far of a runner that was started in this folder; None before its first."""
    try:
        return CompactReport.model_validate_json(termination(folder).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def termination(folder: Path) -> Path:
    """Return the file that stands for a pod's termination message."""
    return folder / "termination"


@contextmanager
def processors(count: int) -> Iterator[None]:
    """Let what is started meanwhile use so many processors only: the runner takes as many threads as that.

    Raises:
        TooFewProcessorsError: There are not so many.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < count:
        raise TooFewProcessorsError(count, len(allowed))
    os.sched_setaffinity(0, allowed[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
