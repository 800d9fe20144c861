"""What the runner costs: its share of every sample, and the part of its life that goes into measuring."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter_ns
from typing import Final

from cluster.bench.figures import Figure, Spread, differences, percentile, significant
from cluster.bench.running import run_plan
from inferbench_runner.adaptive import Quota
from inferbench_runner.backends.base import Bound
from inferbench_runner.contract import AcceleratorKind, Device, Measurement, ModelRef, Phase, Plan, Shape, Weights
from inferbench_runner.measure import closed_loop, collector_paused

_CALLS: Final = 500_000
_PAIRS: Final = 15
_AIM_MICROSECONDS: Final = 1
_MODEL: Final = "distilbert/distilbert-base-uncased"
_LENGTHS: Final = (8, 32, 128)
# As they are but for their longest times, which only a busy machine would need.
_MEASUREMENTS: Final = {
    "the quick start's 1 s a cell": Measurement(
        min_samples=130, min_seconds=1, max_seconds=20, target_half_width_percent=20
    ),
    "the default 10 s a cell": Measurement(max_seconds=40),
}


def overhead() -> Figure:
    """Compare the measuring loop with a bare one, in turns, so that both see the same moods of the machine."""
    with collector_paused():
        _loop_ns(), _bare_ns()
        pairs = [(_loop_ns(), _bare_ns()) for _ in range(_PAIRS)]
        empty = percentile(sorted(closed_loop(Bound(_nothing), _QUOTA).calls), 50)
    return _overhead_figure(differences(pairs), empty)


def shares() -> Iterator[Figure]:
    """Run the real runner on a real model, and compare its measuring phase with its whole life."""
    for title, measurement in _MEASUREMENTS.items():
        yield _share(title, measurement)


def _nothing() -> None:
    """Do nothing."""


_QUOTA: Final = Quota(calls=_CALLS, min_ns=0, max_ns=10**12)


def _loop_ns() -> float:
    return closed_loop(Bound(_nothing), _QUOTA).busy_ns / _CALLS


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
    with tempfile.TemporaryDirectory(prefix="inferbench-bench-") as name:
        ran = run_plan(plan, Path(name))
    seconds, phases = ran.seconds, ran.full.phases_milliseconds
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
