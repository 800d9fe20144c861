"""The operator's own limit of parallel Jobs: never passed, and served in the order in which runs started."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest

from inferbench_operator.kube import reconciler as engine
from inferbench_operator.kube.kinds import BENCHMARK, JOB, POD, RESULT, Kind
from inferbench_operator.kube.parse import Key
from inferbench_operator.kube.reconciler import Reconciler
from inferbench_operator.kube.turns import Turns
from operator_testing.builders import SETTINGS, spec_json
from operator_testing.cluster import Cluster
from operator_testing.server import Json, Server, ServerClient, create_benchmark
from operator_testing.virtual_time import VirtualCalendar
from operator_testing.world import run_here

NOON = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
EARLY, LATE = Key("team", "early"), Key("team", "late")


def test_without_a_limit_nobody_waits() -> None:
    """Neither now nor later."""
    turns = Turns(None)
    turns.take(LATE, NOON, creates=9, held=0)
    assert turns.slots(EARLY, NOON, 99) is None
    assert turns.next(0) == []


def test_places_that_are_being_taken_are_taken() -> None:
    """Two passes at the same time don't take the same one; when a pass is over, the cache knows its Jobs."""
    turns = Turns(3)
    turns.take(EARLY, NOON, creates=2, held=0)
    assert turns.slots(LATE, NOON, 0) == 1
    turns.done(EARLY)
    assert turns.slots(LATE, NOON, 2) == 1


def test_who_came_first_is_served_first() -> None:
    """What an earlier run waits for is kept for it, and not the other way round."""
    turns = Turns(3)
    turns.take(EARLY, NOON, creates=0, held=2)
    turns.take(LATE, NOON + timedelta(seconds=1), creates=0, held=2)
    assert turns.slots(LATE, NOON + timedelta(seconds=1), 0) == 1
    assert turns.slots(EARLY, NOON, 0) == 3
    assert turns.next(2) == [EARLY, LATE]
    assert turns.next(3) == []
    turns.forget(EARLY)
    assert turns.slots(LATE, NOON + timedelta(seconds=1), 0) == 3


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_many_benchmarks_share_the_limit(limit: int) -> None:
    """All are measured in the end, and at no time there are more Jobs than that."""
    server, most, order = Server(), 0, list[str]()

    def active() -> int:
        return sum(not job.get("status", {}).get("conditions") for job in server.all(JOB))

    async def test() -> None:
        nonlocal most
        Cluster(server, nodes=9)
        two = [{"name": name, "id": name} for name in ("a", "b")]
        for name in ("third", "first", "second"):
            create_benchmark(server, name, spec_json(models=two, execution={"ttlSecondsAfterFinished": 100_000}))
            await asyncio.sleep(2)
        settings = replace(SETTINGS, max_parallel_jobs=limit)
        async with Reconciler(ServerClient(server), settings, (None,)) as reconciler:

            def saw(kind: Kind, event: str, raw: Json) -> None:
                nonlocal most
                if kind in {BENCHMARK, JOB, POD, RESULT}:
                    asyncio.get_running_loop().call_later(0.05, _tell, reconciler, kind, event, raw)
                if kind is JOB and event == "ADDED":
                    most = max(most, active())
                    order.append(raw["metadata"]["labels"]["inferbench.dev/benchmark"])

            server.watchers.append(saw)
            await asyncio.sleep(600)

    with patch.object(engine, "datetime", VirtualCalendar):
        run_here(test())
    assert most == limit
    statuses: list[Any] = [raw["status"]["cells"] for raw in server.all(BENCHMARK)]
    assert [cells["succeeded"] for cells in statuses] == [2, 2, 2]
    assert sorted(order) == ["first"] * 2 + ["second"] * 2 + ["third"] * 2


def _tell(reconciler: Reconciler, kind: Kind, event: str, raw: Json) -> None:
    reconciler.saw(kind, raw, deleted=event == "DELETED")


def test_a_benchmark_that_waits_for_its_turn_says_so() -> None:
    """It is in progress, and nothing of it runs."""
    server = Server()

    async def test() -> None:
        for name in ("one", "two"):
            create_benchmark(server, name, spec_json())
        async with Reconciler(ServerClient(server), replace(SETTINGS, max_parallel_jobs=1), (None,)):
            await asyncio.sleep(60)

    with patch.object(engine, "datetime", VirtualCalendar):
        run_here(test())
    told = {
        raw["metadata"]["name"]: {found["type"]: found["reason"] for found in raw["status"]["conditions"]}
        for raw in server.all(BENCHMARK)
    }
    assert len(server.all(JOB)) == 1
    assert {each["Reconciling"] for each in told.values()} == {"Waiting", "WaitingForTurn"}
