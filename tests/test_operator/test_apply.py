"""Decisions are carried out in their order, each step safe to repeat; on the API server in memory."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from inferbench_operator.core.decide import Decision, ResultWrite, decide
from inferbench_operator.core.facts import Observed
from inferbench_operator.kube.apply import Applier
from inferbench_operator.kube.cache import Cache
from inferbench_operator.kube.errors import AlreadyExistsError, ConflictError, KubernetesError, RefusedError
from inferbench_operator.kube.kinds import BENCHMARK, EVENT, JOB, RESULT, Kind
from inferbench_operator.kube.parse import Key
from operator_testing.builders import NOW, SETTINGS, spec_json
from operator_testing.recorded import recorded
from operator_testing.server import Fault, Faults, Json, Server, ServerClient, create_benchmark
from operator_testing.world import run_here

KEY = Key("team", "study")


class Bench:
    """One benchmark on a server, and an applier for it."""

    def __init__(self, faults: Faults | None = None, client: type[ServerClient] = ServerClient, **fields: Any) -> None:  # noqa: ANN401 - any part of a specification
        """Create the benchmark and take it into the cache."""
        self.server = Server()
        self.client = client(self.server, faults)
        self.cache = Cache()
        self.applier = Applier(self.client, self.cache, SETTINGS)
        self.cache.put(BENCHMARK, create_benchmark(self.server, "study", spec_json(**fields)))

    @property
    def observed(self) -> Observed:
        """What the cache says, with the refusals that the applier remembers."""
        found = self.cache.observe(KEY)
        assert found
        return replace(found, refusals=self.applier.refusals(found.benchmark))

    def decision(self) -> Decision:
        """What to do now."""
        return decide(self.observed, NOW, SETTINGS)

    async def apply(self, decision: Decision | None = None, *, seconds: float = 0) -> Any:  # noqa: ANN401 - a time or none
        """Carry a decision out, so many seconds later."""
        return await self.applier.apply(
            KEY, self.observed, decision or self.decision(), NOW + timedelta(seconds=seconds)
        )

    def wrote(self) -> list[tuple[str, str]]:
        """Return the writes so far, without Events, and forget them."""
        found = [(verb, kind.plural) for verb, kind, _ in self.client.writes if kind is not EVENT]
        self.client.writes.clear()
        return found


def on_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test in a loop whose clock jumps."""

    def run() -> None:
        run_here(test())

    run.__doc__ = test.__doc__
    return run


def _result() -> Json:
    return {key: recorded("result")[key] for key in ("apiVersion", "kind", "spec", "status")} | {
        "metadata": {
            key: recorded("result")["metadata"][key] for key in ("name", "namespace", "labels", "ownerReferences")
        }
    }


def _owned(bench: Bench, manifest: Json) -> Json:
    manifest["metadata"]["ownerReferences"][0]["uid"] = bench.observed.benchmark.uid
    return manifest


@on_virtual_time
async def test_status_comes_before_jobs_and_its_events_after_it() -> None:
    """The first pass stores the run, the second makes the Job."""
    bench = Bench()
    await bench.apply()
    assert [(verb, kind.plural) for verb, kind, _ in bench.client.writes] == [
        ("PUT status", "inferencebenchmarks"),
        ("POST", "events"),
    ]
    bench.wrote()
    await bench.apply()
    assert bench.wrote() == [("POST", "jobs")]
    assert [attempt.number for attempt in bench.observed.attempts] == [1]


@on_virtual_time
async def test_everything_at_once_keeps_its_order() -> None:
    """Results, status, new Jobs, and only then what is to be removed."""
    bench = Bench()
    await bench.apply()
    await bench.apply()
    (old,) = bench.observed.attempts
    changed = bench.observed.benchmark.status.model_copy(update={"slowest_p95_microseconds": 7})
    manifest = recorded("job_failed", name="next", namespace="team")
    bench.wrote()
    await bench.apply(
        Decision(
            results=(ResultWrite(_owned(bench, _result())),),
            status=changed,
            urgent=True,
            create_jobs=(manifest,),
            delete_jobs=(old,),
        )
    )
    assert bench.wrote() == [
        ("POST", "inferencebenchmarkresults"),
        ("PUT status", "inferencebenchmarks"),
        ("POST", "jobs"),
        ("DELETE", "jobs"),
    ]
    assert old.uid not in {attempt.uid for attempt in bench.observed.attempts}


@pytest.mark.parametrize("fault", [Fault.CONFLICTS, Fault.FAILS_BEFORE, Fault.FAILS_AFTER])
def test_nothing_follows_a_write_that_failed(fault: Fault) -> None:
    """A status that was not stored must not be followed by Jobs, deletions or Events."""

    async def test() -> None:
        bench = Bench(Faults({1: fault}))
        decision = bench.decision()
        manifest = recorded("job_failed", name="next", namespace="team")
        with pytest.raises(ConflictError if fault is Fault.CONFLICTS else KubernetesError):
            await bench.apply(replace(decision, create_jobs=(manifest,)))
        assert [verb for verb, _, _ in bench.client.writes] == ["PUT status"]

    run_here(test())


@on_virtual_time
async def test_a_status_that_has_not_changed_is_not_written() -> None:
    """However often it is decided."""
    bench = Bench()
    await bench.apply()
    await bench.apply()
    bench.wrote()
    await bench.apply(replace(bench.decision(), status=bench.observed.benchmark.status))
    assert bench.wrote() == []


@on_virtual_time
async def test_unimportant_changes_wait_for_two_seconds() -> None:
    """The time is returned; an urgent change, or one after the two seconds, is written."""
    bench = Bench()
    await bench.apply()
    bench.wrote()
    for urgent, seconds, written in [(False, 1.9, False), (True, 1.9, True), (False, 3.8, False), (False, 3.9, True)]:
        old = bench.observed.benchmark.status
        changed = old.model_copy(update={"slowest_p95_microseconds": (old.slowest_p95_microseconds or 0) + 1})
        put_off = await bench.apply(Decision(status=changed, urgent=urgent), seconds=seconds)
        assert (bench.wrote() != []) is written
        assert (put_off is None) is written
        if put_off:
            assert put_off == NOW + timedelta(seconds=2 if seconds < 2 else 3.9)


@on_virtual_time
async def test_the_own_write_is_seen_at_once() -> None:
    """The next pass needs no watch event."""
    bench = Bench()
    await bench.apply()
    assert bench.observed.benchmark.status.run
    assert bench.observed.benchmark.resource_version == str(bench.server.version - 1)


@on_virtual_time
async def test_an_event_is_recorded_once() -> None:
    """Telling the same of the same run again is a conflict that nobody minds; of another run it is news."""
    bench = Bench()
    decision = bench.decision()
    await bench.apply(decision)
    first = bench.observed.benchmark.status
    await bench.apply(replace(decision, status=first.model_copy(update={"slowest_p95_microseconds": 1})))
    assert len(bench.server.all(EVENT)) == 1
    assert first.run
    other = first.model_copy(update={"run": first.run.model_copy(update={"id": "ffffffff"})})
    await bench.apply(replace(decision, status=other))
    assert len(bench.server.all(EVENT)) == 2
    for event in bench.server.all(EVENT):
        assert event["involvedObject"]["uid"] == bench.observed.benchmark.uid
        assert event["reason"] == "RunStarted"


@on_virtual_time
async def test_an_event_that_can_t_be_recorded_stops_nothing() -> None:
    """It is only a message."""
    bench = Bench(Faults({2: Fault.FAILS_BEFORE}))
    await bench.apply()
    await bench.apply()
    assert len(bench.server.all(JOB)) == 1


@on_virtual_time
async def test_a_job_that_is_there_already_is_the_one_wanted() -> None:
    """The answer to its creation had been lost."""
    bench = Bench()
    await bench.apply()
    (job,) = bench.decision().create_jobs
    bench.server.create(JOB, job)
    await bench.apply()
    assert [attempt.name for attempt in bench.observed.attempts] == [job["metadata"]["name"]]


@pytest.mark.parametrize("kind", [JOB, RESULT], ids=["Job", "result"])
def test_a_child_of_an_earlier_benchmark_is_in_the_way_until_it_is_gone(kind: Kind) -> None:
    """It is removed, and the pass is to be tried again."""

    async def test() -> None:
        bench = Bench()
        await bench.apply()
        (job,) = bench.decision().create_jobs
        foreign = recorded("job_failed", name=job["metadata"]["name"]) if kind is JOB else _result()
        bench.server.create(kind, foreign)
        own = job if kind is JOB else _owned(bench, _result())
        decision = Decision(create_jobs=(job,)) if kind is JOB else Decision(results=(ResultWrite(own),))
        with pytest.raises(AlreadyExistsError):
            await bench.apply(decision)
        assert bench.server.all(kind) == []
        await bench.apply(decision)
        (stored,) = bench.server.all(kind)
        assert stored["metadata"]["ownerReferences"][0]["uid"] == bench.observed.benchmark.uid

    run_here(test())


@on_virtual_time
async def test_an_unreadable_result_is_in_the_way_until_it_is_gone() -> None:
    """Taken for the one wanted, it would be written over and over, and never found."""
    bench = Bench()
    manifest = _owned(bench, _result())
    bench.server.create(RESULT, manifest | {"status": {}})
    with pytest.raises(AlreadyExistsError):
        await bench.apply(Decision(results=(ResultWrite(manifest),)))
    await bench.apply(Decision(results=(ResultWrite(manifest),)))
    assert len(bench.observed.results) == 1


@on_virtual_time
async def test_a_result_is_replaced_only_as_it_was_seen() -> None:
    """Someone else's change in between is a conflict."""
    bench = Bench()
    manifest = _owned(bench, _result())
    await bench.apply(Decision(results=(ResultWrite(manifest),)))
    (seen,) = bench.observed.results
    newer = manifest | {"status": manifest["status"] | {"run": "ffffffff"}}
    await bench.apply(Decision(results=(ResultWrite(newer, replaces=seen),)))
    (replaced,) = bench.observed.results
    assert (replaced.uid, replaced.status.run) == (seen.uid, "ffffffff")
    with pytest.raises(ConflictError):
        await bench.apply(Decision(results=(ResultWrite(manifest, replaces=seen),)))


@on_virtual_time
async def test_only_the_very_job_is_deleted() -> None:
    """Another one of the same name stays."""
    bench = Bench()
    await bench.apply()
    await bench.apply()
    (attempt,) = bench.observed.attempts
    await bench.apply(Decision(delete_jobs=(replace(attempt, uid="another"),)))
    assert len(bench.server.all(JOB)) == 1
    await bench.apply(Decision(delete_jobs=(attempt, attempt)))
    assert bench.server.all(JOB) == []


class _RefusingClient(ServerClient):
    """Refuses all Jobs, as an admission policy does."""

    async def create(self, kind: Kind, namespace: str, manifest: Json) -> Json:
        """Create anything but Jobs."""
        if kind is JOB:
            method = "POST"
            raise RefusedError(method, "jobs", 422, "spec.template: Invalid value")
        return await super().create(kind, namespace, manifest)


@on_virtual_time
async def test_a_refused_job_fails_its_cells() -> None:
    """Looked at again at once; remembered for this generation only, and forgotten with the benchmark."""
    bench = Bench(client=_RefusingClient)
    await bench.apply()
    assert await bench.apply(seconds=3) == NOW + timedelta(seconds=3)
    decision = bench.decision()
    assert decision.status
    (entry,) = decision.status.results
    assert (entry.state.value, entry.reason) == ("failed", "JobRefused")
    assert "spec.template: Invalid value" in entry.message
    of = bench.observed.benchmark
    assert bench.applier.refusals(of)
    assert not bench.applier.refusals(replace(of, generation=of.generation + 1))
    assert not bench.applier.refusals(replace(of, uid="another"))
    bench.applier.forget(KEY)
    assert not bench.applier.refusals(of)
