"""The engine: passes, their outcomes, and what it does without news; on virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from prometheus_client import REGISTRY

from inferbench_operator.core.decide import Decision, decide
from inferbench_operator.core.facts import Observed
from inferbench_operator.kube import reconciler as engine
from inferbench_operator.kube.errors import ForbiddenError, KubernetesError
from inferbench_operator.kube.kinds import BENCHMARK, JOB, POD, WATCHED, Kind
from inferbench_operator.kube.listings import RETRY_SECONDS
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


class _ShutClient(ServerClient):
    """May not list some kinds in some namespaces."""

    def __init__(self, server: Server, *shut: tuple[Kind, str | None], code: int = 403) -> None:
        """Shut a kind in a namespace; (None) in all."""
        super().__init__(server)
        self.shut = set(shut)
        self._code = code

    async def list(self, kind: Kind, namespace: str | None) -> tuple[list[Json], int]:
        """List, if it may."""
        if (kind, namespace) in self.shut:
            refusal = ForbiddenError if self._code == 403 else KubernetesError
            method = "GET"
            raise refusal(method, f"{namespace}/{kind.plural}", self._code, "not now")
        return await super().list(kind, namespace)


def _served(server: Server) -> set[str]:
    """Return the benchmarks that have a Job."""
    return {job["metadata"]["labels"]["inferbench.dev/benchmark"] for job in server.all(JOB)}


@pytest.mark.parametrize("kind", WATCHED, ids=lambda kind: kind.plural)
def test_nothing_is_done_before_everything_is_listed(caplog: pytest.LogCaptureFixture, kind: Kind) -> None:
    """With half of the facts a run would be started twice, be it a whole cluster that can't be listed for a minute."""

    async def test() -> None:
        server = _server()
        client = _ShutClient(server, (kind, None), code=503)
        async with Reconciler(client, SETTINGS, (None,)) as reconciler:
            raw = server.find(BENCHMARK, "study")
            assert raw
            reconciler.saw(BENCHMARK, raw, deleted=False)
            await asyncio.sleep(60)
            assert server.all(JOB) == []
            client.shut.clear()
            await asyncio.sleep(RETRY_SECONDS)
            assert len(server.all(JOB)) == 1

    with patch.object(engine, "datetime", VirtualCalendar), caplog.at_level(logging.WARNING):
        run_here(test())
    assert caplog.text.count("in all namespaces are left alone") == 1, "it is said once, not at each try"
    assert "ClusterRole" not in caplog.text, "no right is missing"


@pytest.mark.parametrize("kind", WATCHED, ids=lambda kind: kind.plural)
def test_a_namespace_that_cannot_be_listed_holds_up_no_other(caplog: pytest.LogCaptureFixture, kind: Kind) -> None:
    """Its own benchmarks are left alone, whatever the watches tell of them, until all of it can be listed."""

    async def test() -> None:
        server = _server()
        raw = create_benchmark(server, "barred", spec_json(), namespace="shut")
        client = _ShutClient(server, (kind, "shut"))
        async with Reconciler(client, SETTINGS, ("shut", "team")) as reconciler:
            reconciler.saw(BENCHMARK, raw, deleted=False)
            await asyncio.sleep(engine.RESYNC_SECONDS + 60)
            assert _served(server) == {"study"}
            assert server.find(BENCHMARK, "barred") == raw
            client.shut.clear()
            await asyncio.sleep(RETRY_SECONDS)
            assert _served(server) == {"barred", "study"}

    with patch.object(engine, "datetime", VirtualCalendar), caplog.at_level(logging.INFO):
        run_here(test())
    said = [record.message for record in caplog.records if "namespace shut" in record.message]
    assert len(said) == 2, said
    assert f"GET shut/{kind.plural}: the API server answered 403" in said[0]
    assert "the operator's Role in it, or the namespace itself" in said[0]
    assert "from now on" in said[1]


@on_virtual_time
async def test_a_namespace_whose_right_is_taken_away_is_left_alone() -> None:
    """What is known of it grows old, and deadlines would pass for it; it is found at the next listing of everything."""
    server = _server()
    client = _ShutClient(server)
    async with Reconciler(client, SETTINGS, ("team",)) as reconciler:
        await asyncio.sleep(1)
        jobs = server.all(JOB)
        client.shut = {(POD, "team")}
        await asyncio.sleep(engine.RESYNC_SECONDS)
        reconciler.saw(BENCHMARK, create_benchmark(server, "later", spec_json()), deleted=False)
        await asyncio.sleep(3600)
        assert server.all(JOB) == jobs != [], "its pod may have been placed and ended long ago"
        client.shut.clear()
        await asyncio.sleep(RETRY_SECONDS)
        assert "later" in _served(server)


@on_virtual_time
async def test_a_namespace_that_is_left_alone_waits_for_no_turn() -> None:
    """Under a limit of all Jobs, its benchmarks keep no place from the others."""
    server = _server()
    create_benchmark(server, "barred", spec_json(), namespace="shut")
    client = _ShutClient(server)
    settings = replace(SETTINGS, max_parallel_jobs=1)
    async with Reconciler(client, settings, ("team", "shut")) as reconciler:
        await asyncio.sleep(1)
        assert _served(server) == {"study"}, "the only place is taken, and the other benchmark waits for it"
        client.shut = {(POD, "shut")}
        await asyncio.sleep(engine.RESYNC_SECONDS)
        reconciler.saw(BENCHMARK, create_benchmark(server, "last", spec_json()), deleted=False)
        await asyncio.sleep(1)
        assert _served(server) == {"study"}
        for kind in (BENCHMARK, JOB):
            raw = server.all(kind)[0]
            server.delete(kind, raw["metadata"]["name"])
            reconciler.saw(kind, raw, deleted=True)
        await asyncio.sleep(1)
        assert _served(server) == {"last"}


class _BareClient(ServerClient):
    """Of a cluster without our kinds."""

    installed = False

    async def serves(self, kind: Kind) -> bool:
        """Return whether a kind is there."""
        return self.installed or kind in {JOB, POD}


def test_it_waits_for_its_kinds_to_be_installed(caplog: pytest.LogCaptureFixture) -> None:
    """Kopf would never watch kinds that are not there when it starts."""

    async def test() -> None:
        client = _BareClient(_server())
        started = asyncio.Event()

        async def live() -> None:
            async with Reconciler(client, SETTINGS, (None,)):
                started.set()

        life = asyncio.create_task(live())
        await asyncio.sleep(60)
        assert not started.is_set()
        client.installed = True
        await asyncio.sleep(RETRY_SECONDS)
        assert started.is_set()
        await life

    run_here(test())
    said = [record.message for record in caplog.records]
    assert said == [
        "Waiting for the cluster: it has no inferencebenchmarks and no inferencebenchmarkresults; apply the CRDs."
    ]


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
