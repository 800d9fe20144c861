"""How long users wait for the operator: from `apply` to the first Job, and from a container's end to p95 in status."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, Final

from cluster.bench.figures import Figure, median_ms, p95_figure, significant
from cluster.bench.loads import runs
from cluster.bench.stage import Stage
from cluster.pods import Pod
from inferbench_operator.core.names import LABEL_BENCHMARK

_WARM_UP: Final = 3
_ALONE: Final = 40
_TOGETHER: Final = 20
_ROUNDS: Final = 2
_AIM_TO_JOB_MS: Final = 300
_AIM_TO_STATUS_MS: Final = 500
# Long enough for the operator to be at rest when the container ends, as it is after a measurement.
_RUN_SECONDS: Final = 0.4

# Kept suspended, so that nothing follows from it.
_BARE_JOB: Final[dict[str, Any]] = {
    "suspend": True,
    "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "bare", "image": "example.test/bare:1"}]}},
}


@dataclass(slots=True)
class _Times:
    """Nanoseconds, one entry for each benchmark."""

    to_job: list[int] = field(default_factory=list)
    to_status: list[int] = field(default_factory=list)
    of_agent: list[int] = field(default_factory=list)
    """The part of `to_status` until a client sees the container's end."""
    bare: list[int] = field(default_factory=list)
    """From creating a Job without any operator until a watch delivers it: the least that `to_job` could be."""


async def latency(stage: Stage) -> Sequence[Figure]:
    """Measure benchmarks that are applied one at a time, and many at once."""
    exits: dict[str, int] = {}

    def exited(pod: Pod) -> None:
        exits[pod.labels[LABEL_BENCHMARK]] = perf_counter_ns()

    stage.agent.script(runs(run_seconds=_RUN_SECONDS, exited=exited))
    await _follow(stage, [f"warm-up-{number}" for number in range(_WARM_UP)], exits, _Times())
    alone, together = _Times(), _Times()
    for number in range(_ALONE):
        alone.bare.append(await _bare_job(stage, f"bare-{number}"))
        await _follow(stage, [f"alone-{number}"], exits, alone)
    for number in range(_ROUNDS):
        names = [f"{number}-{one}" for one in range(_TOGETHER)]
        together.bare += await asyncio.gather(*(_bare_job(stage, f"bare-{name}") for name in names))
        await _follow(stage, [f"together-{name}" for name in names], exits, together)
    return _figures(alone, together)


async def _follow(stage: Stage, names: Sequence[str], exits: dict[str, int], times: _Times) -> None:
    """Apply the benchmarks at the same time, see them through, and take down their times."""
    applied = {}

    async def apply(name: str) -> None:
        applied[name] = perf_counter_ns()
        await stage.apply(name)

    await asyncio.gather(*(apply(name) for name in names))
    await stage.wait_until_completed(names)
    seen = stage.sightings
    for name in names:
        times.to_job.append(await seen.job.of(name) - applied[name])
        times.to_status.append(await seen.measured.of(name) - exits[name])
        times.of_agent.append(await seen.exit.of(name) - exits[name])


async def _bare_job(stage: Stage, name: str) -> int:
    """Create a Job that belongs to no benchmark; return the time until a watch delivers it."""
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": _BARE_JOB}
    began = perf_counter_ns()
    await stage.api.request("POST", f"/apis/batch/v1/namespaces/{stage.namespace}/jobs", manifest)
    return await stage.sightings.job.of(name) - began


def _figures(alone: _Times, together: _Times) -> Sequence[Figure]:
    at_once = f", {_TOGETHER} at once"
    return (
        p95_figure("apply to first Job, p95", alone.to_job, aim_ms=_AIM_TO_JOB_MS, detail=_beside_bare(alone)),
        p95_figure(
            f"apply to first Job{at_once}, p95", together.to_job, aim_ms=_AIM_TO_JOB_MS, detail=_beside_bare(together)
        ),
        p95_figure(
            "container exit to p95 in status, p95", alone.to_status, aim_ms=_AIM_TO_STATUS_MS, detail=_node_part(alone)
        ),
        p95_figure(
            f"container exit to p95 in status{at_once}, p95",
            together.to_status,
            aim_ms=_AIM_TO_STATUS_MS,
            detail=_node_part(together),
        ),
    )


def _beside_bare(times: _Times) -> str:
    bare = median_ms(times.bare)
    return f"p50 is {significant(median_ms(times.to_job) / bare)} x that of a bare Job ({significant(bare)})"


def _node_part(times: _Times) -> str:
    return f"the node's part of it: p50 {significant(median_ms(times.of_agent))}"
