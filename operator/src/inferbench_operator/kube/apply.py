"""Carries a decision out: results first, then status, then Jobs to create, then clean-up.

Each step is safe to repeat, and a failure ends the pass, so that a crash or an error between any two steps leaves a
state from which the next pass ends in the same place.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from inferbench_operator.core.decide import Decision, ResultWrite
from inferbench_operator.core.events import Event
from inferbench_operator.core.facts import Benchmark, Observed
from inferbench_operator.core.jobs import Manifest
from inferbench_operator.core.names import MANAGER, digest
from inferbench_operator.core.settings import Settings
from inferbench_operator.kube import parse
from inferbench_operator.kube.cache import Cache
from inferbench_operator.kube.client import Client
from inferbench_operator.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    KubernetesError,
    RefusedError,
)
from inferbench_operator.kube.kinds import BENCHMARK, EVENT, JOB, RESULT, Kind
from inferbench_operator.kube.parse import Key
from inferbench_operator.models.base import API_VERSION

_EVENT_MESSAGE_LENGTH: Final = 1024

_logger = logging.getLogger(__name__)


class Applier:
    """Writes to the cluster on behalf of decisions, and into the cache what the API server answers."""

    def __init__(self, client: Client, cache: Cache, settings: Settings) -> None:
        """Remember where to write."""
        self._client = client
        self._cache = cache
        self._settings = settings
        self._status_written: dict[Key, datetime] = {}
        self._blocked: dict[Key, str] = {}
        self._refusals: dict[Key, tuple[tuple[str, int], Mapping[str, str]]] = {}

    async def apply(self, key: Key, observed: Observed, decision: Decision, now: datetime) -> datetime | None:
        """Carry the decision out; return when to look again because something was put off or refused."""
        benchmark = observed.benchmark
        for write in decision.results:
            await self._store(benchmark, write)
        put_off = await self._write_status(key, benchmark, decision, now)
        for manifest in decision.create_jobs:
            if not await self._create_job(benchmark, manifest):
                put_off = now
        for attempt in decision.delete_jobs:
            await self._client.delete(JOB, key.namespace, attempt.name, uid=attempt.uid)
            self._cache.remove(JOB, key, attempt.uid)
        for result in decision.delete_results:
            await self._client.delete(RESULT, key.namespace, result.name, uid=result.uid)
            self._cache.remove(RESULT, key, result.uid)
        return put_off

    def refusals(self, benchmark: Benchmark) -> Mapping[str, str]:
        """Return why the API server refused Jobs of this generation of the benchmark, by name of the Job.

        Kept until the status says so.
        """
        of, found = self._refusals.get(Key(benchmark.namespace, benchmark.name), (("", 0), {}))
        return found if of == (benchmark.uid, benchmark.generation) else {}

    def blocked(self, key: Key) -> str:
        """Return why the last Job of the benchmark could not be created for now; empty if it could."""
        return self._blocked.get(key, "")

    def forget(self, key: Key) -> None:
        """Forget a benchmark that is gone."""
        self._status_written.pop(key, None)
        self._refusals.pop(key, None)
        self._blocked.pop(key, None)

    async def _create_job(self, benchmark: Benchmark, manifest: Manifest) -> bool:
        """Create a Job; return whether the API server took it."""
        key = Key(benchmark.namespace, benchmark.name)
        try:
            await self._create(JOB, benchmark, manifest)
        except RefusedError as error:
            found = {**self.refusals(benchmark), manifest["metadata"]["name"]: error.detail}
            self._refusals[key] = ((benchmark.uid, benchmark.generation), found)
            return False
        except ForbiddenError as error:
            self._blocked[key] = error.detail
            raise
        self._blocked.pop(key, None)
        return True

    async def _store(self, benchmark: Benchmark, write: ResultWrite) -> None:
        manifest = write.manifest
        if write.replaces is None:
            await self._create(RESULT, benchmark, manifest)
            return
        guarded = {"resourceVersion": write.replaces.resource_version, "uid": write.replaces.uid}
        manifest = manifest | {"metadata": manifest["metadata"] | guarded}
        name = manifest["metadata"]["name"]
        try:
            stored = await self._client.replace(RESULT, benchmark.namespace, name, manifest)
        except ConflictError:
            await self._read_again(RESULT, benchmark, name)
            raise
        self._cache.put(RESULT, stored)

    async def _create(self, kind: Kind, benchmark: Benchmark, manifest: Manifest) -> None:
        """Create a child whose name is the same for the same purpose; one that is there already is the one wanted.

        Unless it belongs to an earlier benchmark of the same name, or is a result that this version of the models
        can't read: then it is in the way until it is gone.
        """
        name = manifest["metadata"]["name"]
        try:
            stored = await self._client.create(kind, benchmark.namespace, manifest)
        except AlreadyExistsError:
            stored = await self._client.get(kind, benchmark.namespace, name)
            unreadable = kind is RESULT and parse.result(stored) is None
            if unreadable or parse.owner_uid(stored) != benchmark.uid:
                await self._client.delete(kind, benchmark.namespace, name, uid=stored["metadata"]["uid"])
                raise
        self._cache.put(kind, stored)

    async def _write_status(self, key: Key, benchmark: Benchmark, decision: Decision, now: datetime) -> datetime | None:
        if decision.status is None or decision.status == benchmark.status:
            return None
        due = self._status_written.get(key, datetime.min.replace(tzinfo=UTC)) + self._settings.status_interval
        if not decision.urgent and now < due:
            return due
        manifest = {
            "apiVersion": API_VERSION,
            "kind": "InferenceBenchmark",
            "metadata": {
                "name": key.name,
                "namespace": key.namespace,
                "uid": benchmark.uid,
                "resourceVersion": benchmark.resource_version,
            },
            "status": decision.status.model_dump(mode="json", exclude_none=True),
        }
        try:
            stored = await self._client.replace_status(BENCHMARK, key.namespace, key.name, manifest)
        except ConflictError:
            await self._read_again(BENCHMARK, benchmark, key.name)
            raise
        self._cache.put(BENCHMARK, stored)
        self._status_written[key] = now
        run = decision.status.run
        for event in decision.events:
            await self._record(benchmark, event, run.id if run else benchmark.generation, now)
        return None

    async def _read_again(self, kind: Kind, benchmark: Benchmark, name: str) -> None:
        """Read what has changed, so that the next look does not depend on a watch that may be broken."""
        self._cache.put(kind, await self._client.get(kind, benchmark.namespace, name))

    async def _record(self, benchmark: Benchmark, event: Event, occasion: str | int, now: datetime) -> None:
        """Record an Event. Its name follows from what it tells and of what, so telling it twice is a conflict."""
        seen = now.isoformat()
        name = f"{benchmark.name}.{digest([benchmark.uid, occasion, event.reason, event.message], 16)}"
        manifest = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": benchmark.namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": "InferenceBenchmark",
                "name": benchmark.name,
                "namespace": benchmark.namespace,
                "uid": benchmark.uid,
                "resourceVersion": benchmark.resource_version,
            },
            "type": event.type,
            "reason": event.reason,
            "action": event.action,
            "message": event.message[:_EVENT_MESSAGE_LENGTH],
            "source": {"component": MANAGER},
            "reportingComponent": MANAGER,
            "firstTimestamp": seen,
            "lastTimestamp": seen,
            "count": 1,
        }
        try:
            await self._client.create(EVENT, benchmark.namespace, manifest)
        except AlreadyExistsError:
            return
        except KubernetesError as error:
            _logger.warning("%s/%s: Event %s was not recorded: %s", benchmark.namespace, benchmark.name, name, error)
