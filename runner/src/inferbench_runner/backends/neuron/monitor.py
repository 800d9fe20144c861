"""What `neuron-monitor` reports about this process: executions and their latencies, once in each of its periods.

It is the second witness of the device's work, for containers that hide the driver's counters. Its latencies are
percentiles over a period, so that no call has one of its own: they can't stand beside the samples.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeVar

from pydantic import BaseModel, Field, ValidationError

CONFIGURATION: Final = {
    "period": "1s",
    "neuron_runtimes": [{"tag_filter": ".*", "metrics": [{"type": "execution_stats"}]}],
    "system_metrics": [],
}
"""One second is its shortest period that doesn't disturb what is measured; this one is never on while it is."""

REPORTS: Final = 5
"""Reports in which an execution must show up."""

LEAVE_SECONDS: Final = 5

Output = TypeVar("Output")


class Latencies(BaseModel):
    """Percentiles over one period, in seconds."""

    p50: float
    p99: float


class LatencyStats(BaseModel):
    """Latencies of executions; None in a period without any."""

    total_latency: Latencies | None = None
    """From the runtime's start of an execution to its end."""
    device_latency: Latencies | None = None
    """On the device alone."""


class Executions(BaseModel):
    """Executions in one period, by their outcome."""

    completed: int = 0
    completed_with_err: int = 0
    completed_with_num_err: int = 0
    timed_out: int = 0
    incorrect_input: int = 0
    failed_to_queue: int = 0


class ExecutionStats(BaseModel):
    """The group of metrics about executions."""

    execution_summary: Executions = Executions()
    latency_stats: LatencyStats = LatencyStats()
    error: str = ""


class Metrics(BaseModel):
    """The groups of metrics of one process."""

    execution_stats: ExecutionStats = ExecutionStats()


class Runtime(BaseModel):
    """One process that uses a device."""

    pid: int
    error: str = ""
    report: Metrics = Metrics()


class Report(BaseModel):
    """One line of output."""

    neuron_runtime_data: list[Runtime] = Field(default_factory=list)

    def of(self, pid: int) -> ExecutionStats | None:
        """Return what it says about a process; None for nothing."""
        return next((one.report.execution_stats for one in self.neuron_runtime_data if one.pid == pid), None)


def parse_report(line: str) -> Report | None:
    """Return one report, or None where the line is none."""
    try:
        return Report.model_validate_json(line)
    except ValidationError:
        return None


def witnessed(call: Callable[[], Output]) -> tuple[Output, ExecutionStats | None]:
    """Call once while the monitor runs; return the output and the first report that has an execution of this process.

    The report is None where there is no monitor, or it saw nothing.
    """
    with _monitor() as lines:
        output = call()
        for line, _ in zip(lines, range(REPORTS), strict=False):
            report = parse_report(line)
            stats = report.of(os.getpid()) if report else None
            if stats and stats.execution_summary.completed > 0:
                return output, stats
    return output, None


@contextmanager
def _monitor() -> Iterator[Iterator[str]]:
    program = shutil.which("neuron-monitor")
    if program is None:
        yield iter(())
        return
    with TemporaryDirectory(prefix="inferbench-monitor-") as folder:
        path = Path(folder) / "monitor.json"
        path.write_text(json.dumps(CONFIGURATION), encoding="utf-8")
        with subprocess.Popen(  # noqa: S603  # the program beside the driver, with fixed arguments
            [program, "-c", str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            try:
                yield iter(process.stdout or ())
            finally:
                process.terminate()
                try:
                    process.wait(LEAVE_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
