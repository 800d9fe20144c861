"""The engine: passes, their outcomes, and what it does without news; on virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any
from unittest.mock import patch

import pytest
from prometheus_client import REGISTRY

from inferbench_operator.core.decide import Decision, decide
from inferbench_operator.core.facts import Observed
from inferbench_operator.kube import reconciler as engine
from inferbench_operator.kube.errors import KubernetesError
from inferbench_operator.kube.kinds import BENCHMARK, JOB, Kind
from inferbench_operator.kube.reconciler import Reconciler
from operator_testing.builders import (
    SETTINGS,
    spec_json,
)
from operator_testing.recorded import recorded
from operator_testing.server import Fault, Faults, Json, Server, ServerClient, create_benchmark
from operator_testing.virtual_time import VirtualCalendar
from operator_testing.world import run_here


def on_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test in a loop whose clock jumps."""

    def run() -> None:
        with patch.object(engine, "datetime", VirtualCalendar):
            run_here(test())

    run.__doc__ = test.__doc__
    return run


def _passes(result: str) -> float:
    return REGISTRY.get_sample_value("inferbench_operator_reconciles_total", {"result": result}) or 0.0


def _server() -> Server:
    server = Server()
    create_benchmark(server, "study", spec_json())
    return server


@on_virtual_time
async def test_what_is_there_at_the_start_is_taken_up() -> None:
    """Without any watch event."""
    server = _server()
    before = _passes("success")
    async with Reconciler(ServerClient(server), SETTINGS, (None,)):
        await asyncio.sleep(1)
    assert len(server.all(JOB)) == 1
    assert _passes("success") > before


@on_virtual_time
async def test_a_watch_event_causes_a_pass() -> None:
    """A benchmark that is created later."""
    server = Server()
    async with Reconciler(ServerClient(server), SETTINGS, (None,)) as reconciler:
        await asyncio.sleep(1)
        reconciler.saw(BENCHMARK, create_benchmark(server, "study", spec_json()), deleted=False)
        await asyncio.sleep(1)
    assert len(server.all(JOB)) == 1


@on_virtual_time
async def test_what_the_watch_has_missed_is_found_by_listing() -> None:
    """Within five minutes."""
    server = Server()
    async with Reconciler(ServerClient(server), SETTINGS, (None,)):
        await asyncio.sleep(1)
        create_benchmark(server, "study", spec_json())
        await asyncio.sleep(engine.RESYNC_SECONDS + 1)
    assert len(server.all(JOB)) == 1


@pytest.mark.parametrize(
    ("fault", "outcome"), [(Fault.CONFLICTS, "conflict"), (Fault.FAILS_BEFORE, "error"), (Fault.FAILS_AFTER, "error")]
)
def test_a_pass_that_failed_is_repeated(fault: Fault, outcome: str) -> None:
    """It is counted by its outcome, and the next one finishes the work."""

    async def test() -> None:
        server = _server()
        before = _passes(outcome)
        async with Reconciler(ServerClient(server, Faults({1: fault})), SETTINGS, (None,)):
            await asyncio.sleep(5)
        assert _passes(outcome) >= before + 1
        assert len(server.all(JOB)) == 1

    with patch.object(engine, "datetime", VirtualCalendar):
        run_here(test())


def test_a_fault_of_our_own_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """One benchmark breaks the rules' code; the other is measured."""

    def faulty(facts: Observed, *rest: Any) -> Decision:  # noqa: ANN401 - passed on
        if facts.benchmark.name == "study":
            message = "a fault"
            raise ZeroDivisionError(message)
        return decide(facts, *rest)

    async def test() -> None:
        server = _server()
        create_benchmark(server, "other", spec_json())
        before = _passes("error")
        async with Reconciler(ServerClient(server), SETTINGS, (None,)):
            await asyncio.sleep(600)
        assert [job["metadata"]["labels"]["inferbench.dev/benchmark"] for job in server.all(JOB)] == ["other"]
        # It is tried again and again, but ever more seldom.
        assert 5 < _passes("error") - before < 25

    with patch.object(engine, "datetime", VirtualCalendar), patch.object(engine, "decide", faulty):
        run_here(test())
    assert "team/study: the pass failed" in caplog.text


class _LateClient(ServerClient):
    """Can't list anything at first."""

    refused = 3

    async def list(self, kind: Kind, namespace: str | None) -> tuple[list[Json], int]:
        """List after three failures."""
        if self.refused:
            self.refused -= 1
            method = "GET"
            raise KubernetesError(method, "jobs", 503, "starting")
        return await super().list(kind, namespace)


def test_nothing_is_done_before_everything_is_listed(caplog: pytest.LogCaptureFixture) -> None:
    """With half of the facts a run would be started twice."""

    async def test() -> None:
        server = _server()
        async with Reconciler(_LateClient(server), SETTINGS, (None,)):
            assert server.all(JOB) == []
            await asyncio.sleep(1)
            assert len(server.all(JOB)) == 1

    with patch.object(engine, "datetime", VirtualCalendar), caplog.at_level(logging.WARNING):
        run_here(test())
    assert caplog.text.count("Listing failed") == 3


@on_virtual_time
async def test_a_deleted_benchmark_is_forgotten() -> None:
    """No pass writes anything for it any more."""
    server = _server()
    async with Reconciler(ServerClient(server), SETTINGS, (None,)) as reconciler:
        await asyncio.sleep(1)
        raw = server.find(BENCHMARK, "study")
        assert raw
        server.delete(BENCHMARK, "study")
        reconciler.saw(BENCHMARK, raw, deleted=True)
        version = server.version
        await asyncio.sleep(1000)
    assert server.version == version


@on_virtual_time
async def test_an_event_of_a_stranger_is_no_news() -> None:
    """An object without our label."""
    async with Reconciler(ServerClient(Server()), SETTINGS, (None,)) as reconciler:
        reconciler.saw(JOB, recorded("job_failed", labels={}), deleted=False)
        reconciler.saw(JOB, recorded("job_failed", labels={}), deleted=True)
    assert reconciler.cache.known() == []
