"""A whole world on virtual time: the real reconciler, cache, queue and applier between a simulated API and cluster.

Everything that can go wrong is given as data, so that hypothesis can choose it and make it small: faults of single
writes, late, doubled and lost watch events, what becomes of each runner, and what people do meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from unittest.mock import patch

from inferbench_operator.core.decide import Decision, decide
from inferbench_operator.core.facts import Observed
from inferbench_operator.core.settings import Settings
from inferbench_operator.kube import reconciler as engine
from inferbench_operator.kube.kinds import BENCHMARK, JOB, POD, RESULT, Kind
from inferbench_operator.kube.parse import Key
from inferbench_operator.kube.reconciler import RESYNC_SECONDS, Reconciler
from operator_testing.builders import SETTINGS
from operator_testing.cluster import Cluster, Outcome
from operator_testing.kstatus import kstatus
from operator_testing.server import Crash, Faults, Json, Server, ServerClient, create_benchmark
from operator_testing.soundness import assert_sound
from operator_testing.virtual_time import EPOCH, VirtualCalendar, VirtualLoop

NAME: Final = "study"
KEY: Final = Key("team", NAME)
LOST: Final = -1.0
"""Delay of a watch event that never arrives."""
_MOST: Final = 20_000
"""Decisions of a world that looks at something without end; others come to a few hundred."""
_LONG: Final = 6 * 3600.0
_WATCHED: Final = (BENCHMARK, RESULT, JOB, POD)

Act = Callable[["World"], None]


@dataclass(frozen=True, slots=True)
class Script:
    """Everything that happens in one world besides the operator's own doing."""

    spec: Json
    faults: Faults = field(default_factory=Faults)
    outcomes: Sequence[Outcome] = ()
    """Of the pods, in the order in which they find a node; all later ones end well."""
    delays: Sequence[float] = (0.05,)
    """Seconds that watch events take, in turn and from the start again; LOST ones never arrive."""
    acts: Sequence[tuple[float, Act]] = ()
    """What people do, and how many seconds after the benchmark was created."""
    nodes: int = 4
    deadly: frozenset[str] = frozenset()
    """Cells that no runner survives."""


class World:
    """One world; `play` runs a script in a new one."""

    def __init__(self, script: Script) -> None:
        """Build it; nothing happens yet."""
        self.script = script
        self.server = Server()
        self.cluster = Cluster(self.server, nodes=script.nodes, outcomes=iter(script.outcomes), deadly=script.deadly)
        self.jobs: list[Json] = []
        """All Jobs that were ever created."""
        self.decisions = 0
        self.crashes = 0
        self.reconciler: Reconciler | None = None
        self._delays = itertools.cycle(script.delays)
        self._arrivals: dict[str, float] = {}
        self._life: asyncio.Task[None] | None = None
        self.server.watchers += [self._witness, self._carry]

    @property
    def benchmark(self) -> Json:
        """The benchmark as stored."""
        found = self.server.find(BENCHMARK, NAME)
        assert found
        return found

    @property
    def status(self) -> Json:
        """The benchmark's status as stored."""
        status: Json = self.benchmark["status"]
        return status

    @property
    def results(self) -> dict[str, Json]:
        """All results by cell."""
        return {raw["spec"]["cell"]: raw for raw in self.server.all(RESULT)}

    @property
    def states(self) -> dict[str, str]:
        """States of all cells."""
        return {entry["cell"]: entry["state"] for entry in self.status.get("results", [])}

    async def live(self) -> None:
        """Let the operator live, die and live again until the benchmark is settled, and its Jobs are cleaned up."""
        create_benchmark(self.server, NAME, self.script.spec)
        loop = asyncio.get_running_loop()
        start = loop.time()
        for seconds, act in self.script.acts:
            loop.call_later(seconds, act, self)
        keeper = asyncio.create_task(self._keep_alive())
        last = max((seconds for seconds, _ in self.script.acts), default=0.0)
        # What a lost event told is found by listing everything.
        last += RESYNC_SECONDS + 10 if LOST in self.script.delays else 10
        try:
            while loop.time() < start + last or not self.settled or self.server.all(JOB) or self.server.all(POD):
                assert not keeper.done(), keeper.exception()
                assert loop.time() < start + _LONG, f"not settled after hours: {self.status}"
                await asyncio.sleep(5)
            await self._assert_quiet()
        finally:
            keeper.cancel()
            with suppress(asyncio.CancelledError):
                await keeper
            if self._life:
                await asyncio.wait({self._life})

    @property
    def settled(self) -> bool:
        """Whether tools would say that the benchmark is done, well or badly."""
        return kstatus(self.benchmark) != "InProgress"

    def kill(self) -> None:
        """Kill the operator between two steps of whatever it does."""
        if self._life:
            self.crashes += 1
            self._life.cancel()

    async def _assert_quiet(self) -> None:
        """Assert that a settled benchmark is left alone."""
        await asyncio.sleep(10)
        version, decisions = self.server.version, self.decisions
        await asyncio.sleep(700)
        assert self.server.version == version, "something is still written"
        assert self.decisions - decisions <= 4, "it is looked at over and over"

    async def _keep_alive(self) -> None:
        while True:
            self._life = asyncio.create_task(self._one_life())
            try:
                await asyncio.wait({self._life})
            finally:
                self.reconciler = None
                self._life.cancel()
            if not self._life.cancelled() and (error := self._life.exception()):
                if not isinstance(error, BaseExceptionGroup) or error.split(Crash)[1]:
                    raise error
                self.crashes += 1
            await asyncio.sleep(1)

    async def _one_life(self) -> None:
        client = ServerClient(self.server, self.script.faults)
        async with Reconciler(client, SETTINGS, (None,)) as reconciler:
            self.reconciler = reconciler
            await asyncio.sleep(30 * _LONG)

    def _witness(self, kind: Kind, event: str, raw: Json) -> None:
        if kind is JOB and event == "ADDED":
            self.jobs.append(raw)

    def _carry(self, kind: Kind, event: str, raw: Json) -> None:
        """Carry a watch event to the operator, unless it dies meanwhile. Events of one object keep their order."""
        delay = next(self._delays)
        if delay == LOST or kind not in _WATCHED:
            return
        loop = asyncio.get_running_loop()
        uid = raw["metadata"]["uid"]
        arrival = max(loop.time() + delay, self._arrivals.get(uid, 0.0))
        self._arrivals[uid] = arrival
        loop.call_at(arrival, self._deliver, self.reconciler, kind, event, raw)

    def _deliver(self, to: Reconciler | None, kind: Kind, event: str, raw: Json) -> None:
        if to is not None and to is self.reconciler:
            to.saw(kind, raw, deleted=event == "DELETED")

    def checked_decide(self, observed: Observed, now: datetime, settings: Settings) -> Decision:
        """Decide, and check what must hold of every decision."""
        self.decisions += 1
        assert self.decisions < _MOST, "it is looked at over and over"
        thorough = self.decisions % 8 == 0
        before = repr(observed) if thorough else ""
        decision = decide(observed, now, settings)
        if thorough:
            assert decide(observed, now, settings) == decision, "the same facts lead to the same decision"
            assert repr(observed) == before, "the facts are left as they were"
        assert_sound(observed, decision, now)
        return decision


def play(script: Script) -> World:
    """Run a script to its end and return the world as it is then."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        with ExitStack() as stack:
            # Only the engine asks for the time; everything else is told.
            stack.enter_context(patch.object(engine, "datetime", VirtualCalendar))
            world = World(script)
            stack.enter_context(patch.object(engine, "decide", world.checked_decide))
            loop.run_until_complete(world.live())
            return world
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def run_here(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on virtual time."""
    loop = VirtualLoop()
    try:
        loop.run_until_complete(main)
    finally:
        loop.close()


def cells_of_jobs(jobs: Iterable[Json]) -> list[str]:
    """Return the cells that Jobs were given, as often as they were given."""
    return [cell for job in jobs for cell in job["metadata"]["annotations"]["inferbench.dev/cells"].split(",")]


__all__ = ["EPOCH", "KEY", "LOST", "NAME", "Script", "World", "cells_of_jobs", "play", "run_here"]
