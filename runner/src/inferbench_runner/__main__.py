"""Command line of the runner: `python -m inferbench_runner [measure] [--plan FILE]`, or `compile` to fill the cache.

Exit codes: 0 when the report was delivered, even if shapes failed for a reason it names; 1 for an error of the runner
itself; 2 for an invalid plan; 124 when the plan's deadline has passed; 128 plus the signal's number when told to stop
(143 for SIGTERM); with the last two, what was measured is reported. An invalid plan is reported for those cells whose
hashes can be read from it, and else by an empty report.

`compile [--plan FILE] [--target FAMILY]` makes the graphs of a plan and keeps them in the folder that INFERBENCH_CACHE
names, on a machine with the device or without it. It ends with 0 if all of them are there then, and with 1 if not; its
termination message names the shapes that failed. The other codes are the same.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from inferbench_runner.backends import open_backend, open_compiler
from inferbench_runner.child import Child
from inferbench_runner.compiling import Filling
from inferbench_runner.contract import (
    DEADLINE_EXIT_CODE,
    INVALID_PLAN_EXIT_CODE,
    PLAN_VARIABLE,
    CellFailed,
    CompactReport,
    FailureReason,
    Phase,
)
from inferbench_runner.outlet import Outlet, say
from inferbench_runner.planfile import PlanError, parse_plan, plan_text
from inferbench_runner.report import MESSAGE_CHARACTERS
from inferbench_runner.run import Run
from inferbench_runner.scratch import scratch_folder
from inferbench_runner.words import one_line
from inferbench_runner.worker import OpenBackend

DELIVERED: Final = 0
INTERNAL: Final = 1

COMPILE: Final = "compile"
COMMANDS: Final = ("measure", COMPILE)


def main(arguments: Sequence[str] | None = None, open_backend: OpenBackend = open_backend) -> int:
    """Measure what the plan asks for and return the exit code."""
    parser = argparse.ArgumentParser(prog="inferbench_runner", description="Measure one model on one device.")
    parser.add_argument("command", nargs="?", choices=COMMANDS, default=COMMANDS[0], help="the default is %(default)s")
    parser.add_argument("--plan", type=Path, help=f"file with the plan's JSON; the default is {PLAN_VARIABLE}")
    parser.add_argument("--target", help="family of devices to compile for; the default is that of the device here")
    options = parser.parse_args(arguments)
    if options.target and options.command != COMPILE:
        parser.error(f"--target belongs to {COMPILE}; a measurement uses the device that is there")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    outlet = Outlet.from_environment(os.environ)
    try:
        plan = parse_plan(plan_text(options.plan, os.environ))
    except PlanError as error:
        return _refuse(error, outlet)
    if plan.deadline_seconds:
        signal.signal(signal.SIGALRM, _stop)
        signal.alarm(plan.deadline_seconds)
    try:
        if options.command == COMPILE:
            filling = Filling(plan, outlet, partial(open_compiler, target=options.target))
            return DELIVERED if filling.carry_out() else INTERNAL
        with scratch_folder() as scratch:
            Run(plan, outlet, open_backend, partial(Child, scratch=scratch), on_report=_ignore_stops).carry_out()
    except Exception:  # noqa: BLE001  # the outermost frame: everything else has a typed reason
        traceback.print_exc()
        return INTERNAL
    return DELIVERED


def _refuse(error: PlanError, outlet: Outlet) -> int:
    for sentence in error.sentences:
        say(sentence)
    message = one_line(str(error), MESSAGE_CHARACTERS)
    outlet.publish(
        CompactReport(
            failed=tuple(
                CellFailed(cell=cell, phase=Phase.PROBE, reason=FailureReason.INVALID_PLAN, message=message)
                for cell in error.cells
            )
        )
    )
    return INVALID_PLAN_EXIT_CODE


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    """Leave by way of the frames' own clean-up, which delivers the report; a second signal must not cut that short."""
    _ignore_stops()
    sys.exit(DEADLINE_EXIT_CODE if number == signal.SIGALRM else 128 + number)


def _ignore_stops() -> None:
    for stop in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(stop, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
