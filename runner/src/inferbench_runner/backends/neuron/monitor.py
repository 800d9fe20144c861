"""What `neuron-monitor` reports about this process: executions and their latencies, once in each of its periods.

It is the second witness of the device's work, for containers that hide the driver's counters, and the only one that
tells how long the device took. Its latencies are percentiles over a period, so that no call has one of its own, and it
would disturb what is measured: hence it is asked before the samples, about calls that are made for it alone.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Annotated, Final, TypeVar

from pydantic import BaseModel, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from inferbench_runner.clock import NS_PER_SECOND, now_ns

PROGRAM: Final = "neuron-monitor"

CONFIGURATION: Final = {
    "period": "1s",
    "neuron_runtimes": [{"tag_filter": ".*", "metrics": [{"type": "execution_stats"}]}],
    "system_metrics": [],
}
"""One second is its shortest period that doesn't disturb what is measured; this one is never on while it is."""

REPORTS: Final = 5
"""Reports in which an execution must show up."""

LATENCY_REPORTS: Final = 3
"""Reports in one of which the device's time must show up; so many seconds are spent on it at most."""

SILENCE_SECONDS: Final = 5
"""Time after which a monitor that has said nothing is not asked further: several of its periods."""

LEAVE_SECONDS: Final = 5
"""Time that it gets to end."""

MICROSECONDS: Final = 1_000_000
"""In a second."""

END: Final = ""
"""Stands for the end of its lines."""

Seconds = Annotated[float, Field(ge=0, le=86_400)]

Output = TypeVar("Output")


class Latencies(BaseModel):
    """Percentiles over one period, in seconds."""

    p50: Seconds
    p99: Seconds

    @property
    def p50_microseconds(self) -> int:
        """The median, in the reports' unit."""
        return round(self.p50 * MICROSECONDS)

    @property
    def p99_microseconds(self) -> int:
        """The 99th percentile, in the reports' unit."""
        return round(self.p99 * MICROSECONDS)


def _or_nothing(value: object, parse: ValidatorFunctionWrapHandler) -> object:
    """Take a part of a report that is not as documented for one that is missing: the rest of it still counts."""
    try:
        return parse(value)
    except ValidationError:
        return None


class LatencyStats(BaseModel):
    """Latencies of executions; None in a period without any."""

    device_latency: Annotated[Latencies | None, WrapValidator(_or_nothing)] = None
    """On the device alone."""


class Executions(BaseModel):
    """Executions in one period, by their outcome."""

    completed: int = 0
    completed_with_num_err: int = 0
    """Those whose arithmetic gave no number; the runtime may give their output out all the same."""


class ExecutionStats(BaseModel):
    """The group of metrics about executions."""

    execution_summary: Executions = Executions()
    latency_stats: Annotated[LatencyStats | None, WrapValidator(_or_nothing)] = None


class Metrics(BaseModel):
    """The groups of metrics of one process."""

    execution_stats: ExecutionStats = ExecutionStats()


class Runtime(BaseModel):
    """One process that uses a device."""

    pid: int
    report: Metrics = Metrics()


class Report(BaseModel):
    """One line of output."""

    neuron_runtime_data: list[Annotated[Runtime | None, WrapValidator(_or_nothing)]] = Field(default_factory=list)

    def of(self, pid: int) -> ExecutionStats | None:
        """Return what it says about a process; None for nothing."""
        return next((one.report.execution_stats for one in self.neuron_runtime_data if one and one.pid == pid), None)


def parse_report(line: str) -> Report | None:
    """Return one report, or None where the line is none."""
    try:
        return Report.model_validate_json(line)
    except ValidationError:
        return None


def is_there() -> bool:
    """Whether there is a monitor to ask."""
    return shutil.which(PROGRAM) is not None


def witnessed(call: Callable[[], Output]) -> tuple[Output, ExecutionStats | None]:
    """Call once while the monitor runs; return the output and the first report that has an execution of this process.

    The report is None where there is no monitor, or it saw nothing.
    """
    with _monitor() as monitor:
        output = call()
        for stats in monitor.reports(REPORTS):
            if stats.execution_summary.completed > 0 or stats.execution_summary.completed_with_num_err > 0:
                return output, stats
    return output, None


def device_latency(call: Callable[[], object]) -> Latencies | None:
    """Call over and over while the monitor runs, until it tells how long the device took; None where it never does."""
    with _monitor() as monitor:
        for stats in monitor.reports(LATENCY_REPORTS, call):
            if stats.latency_stats and stats.latency_stats.device_latency:
                return stats.latency_stats.device_latency
    return None


@dataclass(frozen=True)
class Monitor:
    """A monitor that runs, and what it has said so far."""

    lines: SimpleQueue[str]

    def reports(self, most: int, meanwhile: Callable[[], object] | None = None) -> Iterator[ExecutionStats]:
        """Yield what its next reports say about this process; until each is there, something is done over and over."""
        for _ in range(most):
            line = self._next(meanwhile)
            if line == END:
                return
            report = parse_report(line)
            if report and (stats := report.of(os.getpid())):
                yield stats

    def _next(self, meanwhile: Callable[[], object] | None) -> str:
        """Return the next line, or the end where none comes in time."""
        if meanwhile is None:
            with suppress(Empty):
                return self.lines.get(timeout=SILENCE_SECONDS)
            return END
        begun = now_ns()
        while self.lines.empty() and now_ns() - begun < SILENCE_SECONDS * NS_PER_SECOND:
            meanwhile()
        return END if self.lines.empty() else self.lines.get()


@contextmanager
def _monitor() -> Iterator[Monitor]:
    """Run the monitor for as long as the context is; where it can't be run, it says nothing."""
    lines = SimpleQueue[str]()
    with ExitStack() as stack:
        process = _started(stack) if is_there() else None
        if process is None:
            lines.put(END)
            yield Monitor(lines)
            return
        listener = Thread(target=_listen, args=(process.stdout, lines), daemon=True)
        try:
            listener.start()
            yield Monitor(lines)
        finally:
            _end(process)
            listener.join(LEAVE_SECONDS)
            if process.stdout and not listener.is_alive():
                process.stdout.close()


def _started(stack: ExitStack) -> subprocess.Popen[str] | None:
    """Start the monitor; None where it can't be run, or the disk has no room for its settings."""
    with suppress(OSError):
        folder = stack.enter_context(TemporaryDirectory(prefix="inferbench-monitor-", ignore_cleanup_errors=True))
        configuration = Path(folder) / "monitor.json"
        configuration.write_text(json.dumps(CONFIGURATION), encoding="utf-8")
        return subprocess.Popen(  # noqa: S603  # the program beside the driver, with fixed arguments
            [shutil.which(PROGRAM) or PROGRAM, "-c", str(configuration)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            # A session of its own, so that what it starts ends with it.
            start_new_session=True,
        )
    return None


def _listen(stream: Iterable[str], lines: SimpleQueue[str]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(END)


def _end(process: subprocess.Popen[str]) -> None:
    """End it and all that it has started, in peace or else by force."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        # The second one is for those as well that have outlived their leader.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(LEAVE_SECONDS)
