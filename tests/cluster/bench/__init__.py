"""`make bench`: measures the operator and the runner, and prints the figures beside their aims.

Figures, never an assertion: a shared or slow machine must not look like a fault. What the tables say holds for the
machine that is named below them, with its load before and after.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from typing import Final, TypeVar

from rich.console import Console

from cluster.bench import machine
from cluster.bench.figures import Figure, Requests
from cluster.bench.footprint import footprint
from cluster.bench.latency import latency
from cluster.bench.method import method
from cluster.bench.method.settings import Settings
from cluster.bench.node import node
from cluster.bench.runner import overhead, shares
from cluster.bench.stage import Stage, cluster, stage
from cluster.bench.table import console, facts_table, figure_line, figures_table, requests_table
from cluster.bench.traffic import traffic
from cluster.errors import ClusterError
from cluster.real import NodeUnavailableError, PackagesError

_T = TypeVar("_T")

PARTS: Final = ("latency", "traffic", "runner", "footprint", "method", "node")
"""What can be measured, in this order."""


def bench(only: Sequence[str] = ()) -> int:
    """Measure all parts, or only some, print the tables, and return the exit code."""
    # As Ctrl-C, so that the cluster is stopped and the runner ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    measuring = _Bench(console())
    before = machine.load()
    try:
        broken = [part for part in PARTS if part in (only or PARTS) and not measuring.measure(part)]
    except KeyboardInterrupt:
        measuring.out.print("Stopped and cleaned up; what was measured before:")
        measuring.show({})
        return 130
    measuring.show({**machine.facts(), "load before, after": f"{before}, {machine.load()}"})
    if broken:
        measuring.out.print(f"Not measured, because of an error (above): {', '.join(broken)}.")
    return 1 if broken else 0


class _Bench:
    """Collects the figures of the parts and shows them."""

    def __init__(self, out: Console) -> None:
        self.out = out
        self._figures: list[Figure] = []
        self._requests: dict[str, Requests] = {}
        self._facts: dict[str, str] = {}

    def measure(self, part: str) -> bool:
        """Measure one part; whether it worked."""
        try:
            {
                "latency": self._latency,
                "traffic": self._traffic,
                "runner": self._runner,
                "footprint": self._footprint,
                "method": self._method,
                "node": self._node,
            }[part]()
        except ClusterError as error:
            self.out.print(str(error), markup=False)
            return False
        return True

    def show(self, facts: dict[str, str]) -> None:
        """Print the tables."""
        if self._figures:
            self.out.print(figures_table(self._figures))
        if self._requests:
            self.out.print(requests_table(self._requests))
        self.out.print(facts_table(facts | self._facts))

    def _latency(self) -> None:
        self._say("Applying benchmarks, one at a time and many at once (a minute).")
        self._figures += self._on_stage(latency)

    def _traffic(self) -> None:
        self._say("Counting the requests of two runs (half a minute).")
        figures, self._requests = self._on_stage(traffic)
        self._figures += figures

    def _runner(self) -> None:
        self._say("Measuring the runner (four to six minutes).")
        self._figures.append(overhead())
        self._figures += shares()

    def _footprint(self) -> None:
        self._say("Measuring the operator at rest (five minutes and a half).")
        self._figures += self._on_stage(lambda scene: footprint(scene, self._say))

    def _method(self) -> None:
        settings = Settings.from_environment(os.environ)
        self._say("Comparing the runner with a loop written by hand and with its peers (35 minutes by default).")
        self._facts["method"] = settings.model_dump_json(exclude_unset=True)
        with closing(method(settings, self._say)) as found:
            for figure in found:
                self._figures.append(figure)
                self.out.print(figure_line(figure), highlight=False, soft_wrap=True)

    def _node(self) -> None:
        self._say("Applying benchmarks on a real node (two minutes and a half).")
        try:
            self._figures += node(self._say)
        except (NodeUnavailableError, PackagesError) as error:
            self._say(f"Left out: {' '.join(str(error).split())}")

    def _on_stage(self, work: Callable[[Stage], Awaitable[_T]]) -> _T:
        """Do the work on a cluster of its own, so that no part finds what another has left behind."""
        with cluster(self._say) as parts:

            async def play() -> _T:
                async with stage(*parts) as scene:
                    return await work(scene)

            return asyncio.run(play())

    def _say(self, sentence: str) -> None:
        self.out.print(sentence, markup=False, highlight=False)
