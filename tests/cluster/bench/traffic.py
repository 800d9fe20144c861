"""How many requests the operator sends to the API server for a whole run, by its own counter."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from cluster.bench.figures import Figure, Requests, requests
from cluster.bench.loads import runs
from cluster.bench.stage import Stage, models

_AIM: Final = 6
# Every change of state outlasts the shortest time between two writes of a status, so that none is merged with the next:
# no real run costs more.
_STATE_SECONDS: Final = 2.5
_SETTLE_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class _Run:
    title: str
    cells: int
    spec: dict[str, Any]


_RUNS: Final = (
    _Run(
        "2 plans x 3 cells",
        6,
        {"models": models(2), "execution": {"maxParallelJobs": 1, "exclusiveNode": False}},
    ),
    _Run(
        "8 plans x 8 cells",
        64,
        {"models": models(8), "sequenceLengths": [8, 16, 32, 64, 128, 256, 384, 512]},
    ),
)


async def traffic(stage: Stage) -> tuple[Sequence[Figure], dict[str, Requests]]:
    """Carry out two benchmarks; return requests per cell, and the requests themselves by title of the run."""
    stage.agent.script(runs(start_delay=_STATE_SECONDS, run_seconds=_STATE_SECONDS))
    found: dict[str, Requests] = {}
    figures = []
    for number, run in enumerate(_RUNS):
        before = requests(stage.operator.metrics())
        await stage.apply(f"traffic-{number}", **run.spec)
        await stage.wait_until_completed([f"traffic-{number}"])
        await asyncio.sleep(_SETTLE_SECONDS)
        found[run.title] = requests(stage.operator.metrics()) - before
        total = found[run.title].total()
        detail = f"{total} requests for {run.cells} cells"
        figures.append(Figure(f"API requests per cell, {run.title}", total / run.cells, "", _AIM, detail))
    return figures, found
