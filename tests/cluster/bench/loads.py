"""What simulated pods do in measurements: run for a while, then report as much as a real runner does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cluster.outcomes import Exits, measured_report, plan_of, report_message
from cluster.pods import Pod
from inferbench_runner.contract import CellDetails, CellMeasured, FullReport, Interval, Latency, Phase
from inferbench_runner.report import full_line

# As many facts, and as long ones, as the runner finds on a CPU.
_PROVENANCE: Final = {f"fact{number}": "0123456789abcdef" * 2 for number in range(24)}


def runs(*, start_delay: float = 0.0, run_seconds: float, exited: Callable[[Pod], None] = lambda _pod: None) -> Exits:
    """Success after so many seconds; `exited` is called at the moment at which the container ends."""

    def message(pod: Pod) -> str:
        exited(pod)
        return report_message(pod)

    return Exits(start_delay=start_delay, run_seconds=run_seconds, message=message, log=full_log)


def full_log(pod: Pod) -> str:
    """Return a log whose last line is the full report for the pod's plan."""
    plan = plan_of(pod)
    if plan is None:
        return ""
    report = FullReport(
        cells=tuple(_details(cell) for cell in measured_report(plan).measured),
        phases_milliseconds=dict.fromkeys(Phase, 1000),
        peak_host_memory_mebibytes=900,
        provenance=_PROVENANCE,
    )
    return f"inferbench: ready\n{full_line(report).decode()}\n"


def _details(cell: CellMeasured) -> CellDetails:
    p95 = Interval(
        value_microseconds=cell.p95_microseconds,
        low_microseconds=cell.p95_low_microseconds,
        high_microseconds=cell.p95_high_microseconds,
    )
    return CellDetails(
        cell=cell.cell,
        call=Latency(
            samples=cell.samples,
            mean_microseconds=cell.mean_microseconds,
            min_microseconds=cell.p50_microseconds,
            p50=_exactly(cell.p50_microseconds),
            p90=_exactly(cell.p90_microseconds),
            p95=p95,
            p99=_exactly(cell.p99_microseconds),
            max_microseconds=cell.max_microseconds,
        ),
        warmup_calls=10,
        warmup_milliseconds=100,
        measure_milliseconds=10_000,
    )


def _exactly(microseconds: int) -> Interval:
    return Interval(value_microseconds=microseconds, low_microseconds=microseconds, high_microseconds=microseconds)
