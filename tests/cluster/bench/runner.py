"""What the runner costs: its share of every sample, and the part of its life that goes into measuring."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Final

from cluster.bench.figures import Figure, Spread, differences, significant
from cluster.errors import ClusterError
from cluster.processes import GuardedProcess
from inferbench_operator.core.reports import parse_full
from inferbench_runner.contract import (
    TERMINATION_PATH_VARIABLE,
    AcceleratorKind,
    Device,
    Measurement,
    ModelRef,
    Phase,
    Plan,
    Shape,
    Weights,
)
from inferbench_runner.measure import Limits, collector_paused, measure
from inferbench_runner.summary import percentile

_CALLS: Final = 500_000
_PAIRS: Final = 15
_AIM_MICROSECONDS: Final = 1
_MODEL: Final = "distilbert/distilbert-base-uncased"
_LENGTHS: Final = (8, 32, 128)
# As they are but for their longest times, which only a busy machine would need.
_MEASUREMENTS: Final = {
    "the quick start's 1 s a cell": Measurement(min_samples=130, min_seconds=1, max_seconds=20),
    "the default 10 s a cell": Measurement(max_seconds=40),
}


class RunnerFailedError(ClusterError):
    """The runner did not measure what it was asked for."""

    def __init__(self, code: int, log: str) -> None:
        """Say how it ended, and its last words."""
        super().__init__(f"The runner ended with {code} and without a full report:\n{log[-2000:]}")


def overhead() -> Figure:
    """Compare the measuring loop with a bare one, in turns, so that both see the same moods of the machine."""
    with collector_paused():
        _loop_ns(), _bare_ns()
        pairs = [(_loop_ns(), _bare_ns()) for _ in range(_PAIRS)]
        empty = percentile(sorted(measure(_nothing, Limits(_CALLS, 0, 10**12)).samples), 50).value
    return _overhead_figure(differences(pairs), empty)


def shares() -> Iterator[Figure]:
    """Run the real runner on a real model, and compare its measuring phase with its whole life."""
    for title, measurement in _MEASUREMENTS.items():
        yield _share(title, measurement)


def _nothing() -> None:
    """Do nothing."""


def _loop_ns() -> float:
    return measure(_nothing, Limits(_CALLS, 0, 10**12)).window_ns / _CALLS


def _bare_ns() -> float:
    call = _nothing
    began = perf_counter_ns()
    for _ in range(_CALLS):
        call()
    return (perf_counter_ns() - began) / _CALLS


def _overhead_figure(spread: Spread, empty_ns: int) -> Figure:
    detail = (
        f"quartiles {significant(spread.low / 1000)} to {significant(spread.high / 1000)}, {_PAIRS} pairs of "
        f"{_CALLS:,} calls in turns; an empty call reads as {empty_ns / 1000:.3g}"
    )
    return Figure("runner's overhead per sample", spread.middle / 1000, "µs", _AIM_MICROSECONDS, detail)


def _share(title: str, measurement: Measurement) -> Figure:
    plan = Plan(
        model=ModelRef(id=_MODEL, weights=Weights.RANDOM),
        device=Device(kind=AcceleratorKind.CPU),
        shapes=tuple(Shape(cell=f"{number:010x}", sequence_length=length) for number, length in enumerate(_LENGTHS)),
        measurement=measurement,
    )
    seconds, phases = _run(plan)
    measuring = phases[Phase.MEASURE] / 1000
    others = ", ".join(
        f"{phase} {significant(spent / 1000)}" for phase, spent in phases.items() if phase is not Phase.MEASURE
    )
    named = sum(phases.values()) / 1000
    detail = (
        f"{significant(measuring)} of {significant(seconds)} s; {others}, start and end "
        f"{significant(max(seconds - named, 0))} s"
    )
    return Figure(f"share of the runner's time spent measuring, {title}", 100 * measuring / seconds, "%", None, detail)


def _run(plan: Plan) -> tuple[float, dict[Phase, int]]:
    """Run a plan as a pod would; return the process's whole wall time in seconds and its phases in milliseconds."""
    with tempfile.TemporaryDirectory(prefix="inferbench-bench-") as name:
        folder = Path(name)
        file, log = folder / "plan.json", folder / "runner.log"
        file.write_text(plan.model_dump_json(), encoding="utf-8")
        environment = {**os.environ, TERMINATION_PATH_VARIABLE: str(folder / "termination"), "HOME": name}
        command = [sys.executable, "-m", "inferbench_runner", f"--plan={file}"]
        with log.open("wb") as output:
            began = perf_counter()
            process = GuardedProcess.start(command, output=output, env=environment, cwd=folder)
        try:
            code = process.process.wait()
            seconds = perf_counter() - began
        finally:
            process.stop(0)
        text = log.read_text(encoding="utf-8", errors="replace")
    report = parse_full(text)
    if report is None or Phase.MEASURE not in report.phases_milliseconds:
        raise RunnerFailedError(code, text)
    return seconds, dict(report.phases_milliseconds)
