"""What the operator costs while it has nothing to do: memory without benchmarks and with many, and CPU time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

import psutil

from cluster.bench.figures import Figure, last_resync, significant
from cluster.bench.loads import runs
from cluster.bench.stage import Stage, models
from inferbench_operator.kube.reconciler import RESYNC_SECONDS

BENCHMARKS: Final = 100
_LENGTHS: Final = (8, 16, 32, 64, 128)
_MODELS: Final = 2
_AIM_MEBIBYTES: Final = 120
_AIM_PERCENT: Final = 0.5
_SETTLE_SECONDS: Final = 5.0
_IDLE_SECONDS: Final = 40.0
# A listing of everything starts up to this much before and after its time is due, and takes a second.
_EARLY_SECONDS: Final = 2.0
_LATE_SECONDS: Final = 8.0


async def footprint(stage: Stage, say: Callable[[str], None]) -> Sequence[Figure]:
    """Measure the operator's process from outside, so that measuring costs it nothing."""
    process = psutil.Process(stage.operator.pid)
    await asyncio.sleep(_SETTLE_SECONDS)
    empty = _resident_mebibytes(process)
    cells = await _fill(stage, say)
    full = _resident_mebibytes(process)
    processor = await _processor(stage, process, say)
    # To list everything takes memory, and not all of it goes back to the system.
    listed = _resident_mebibytes(process)
    many = f"{BENCHMARKS} finished benchmarks x {cells} cells"
    detail = f"{significant(full)} after the runs, {significant(listed)} after listing everything"
    return (
        Figure("operator's RSS, no benchmarks", empty, "MiB", _AIM_MEBIBYTES),
        Figure(f"operator's RSS, {many}", max(full, listed), "MiB", _AIM_MEBIBYTES, detail),
        processor,
    )


async def _fill(stage: Stage, say: Callable[[str], None]) -> int:
    """Carry out many benchmarks at once; return how many cells each has."""
    cells = len(_LENGTHS) * _MODELS
    say(f"Filling the cluster with {BENCHMARKS} benchmarks of {cells} cells.")
    stage.agent.script(runs(run_seconds=0.1))
    names = [f"finished-{number}" for number in range(BENCHMARKS)]
    await asyncio.gather(*(stage.apply(name, models=models(_MODELS), sequenceLengths=list(_LENGTHS)) for name in names))
    await stage.wait_until_completed(names)
    await asyncio.sleep(_SETTLE_SECONDS)
    return cells


async def _processor(stage: Stage, process: psutil.Process, say: Callable[[str], None]) -> Figure:
    """Measure a quiet stretch and one listing of everything, and put the two together as they are over time."""
    listed = last_resync(stage.operator.metrics())
    say(f"Looking at the idle operator for {_IDLE_SECONDS:.0f} s.")
    quiet = await _spent(process, _IDLE_SECONDS) / _IDLE_SECONDS
    due = listed + RESYNC_SECONDS - time.time()
    say(f"Waiting for its next listing of everything, in {max(due, 0):.0f} s.")
    await asyncio.sleep(max(due - _EARLY_SECONDS, 0))
    window = _EARLY_SECONDS + _LATE_SECONDS
    listing = await _spent(process, window) - quiet * window
    percent = 100 * (quiet + listing / RESYNC_SECONDS)
    detail = (
        f"{100 * quiet:.2f} in {_IDLE_SECONDS:.0f} s without events, and {significant(listing)} s of CPU every "
        f"{RESYNC_SECONDS:.0f} s for listing everything"
    )
    if last_resync(stage.operator.metrics()) == listed:
        detail = f"{detail} (it was not seen to list)"
    return Figure(f"operator's CPU at rest, {BENCHMARKS} benchmarks", percent, "% of a core", _AIM_PERCENT, detail)


async def _spent(process: psutil.Process, seconds: float) -> float:
    """Return the processor seconds that the process uses during the next `seconds`."""
    before = _processor_seconds(process)
    await asyncio.sleep(seconds)
    return _processor_seconds(process) - before


def _processor_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _resident_mebibytes(process: psutil.Process) -> float:
    return process.memory_info().rss / 2**20
