"""A small API server in memory: versions, UIDs, conflicts, watches; and a client whose requests can go wrong."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from inferbench_operator.kube.client import Client
from inferbench_operator.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    KubernetesError,
    NotFoundError,
)
from inferbench_operator.kube.kinds import BENCHMARK, JOB, Kind
from operator_testing.virtual_time import now

Json = dict[str, Any]
Watcher = Callable[[Kind, str, Json], None]

_JOB_NAME = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")


@dataclass(eq=False)
class Server:
    """All objects by kind and name, which is not used twice, not even in two namespaces."""

    objects: dict[tuple[Kind, str], Json] = field(default_factory=dict)
    watchers: list[Watcher] = field(default_factory=list)
    version: int = 100
    readable: set[Kind] = field(default_factory=set)
    """Kinds that the operator may list by a role that is optional."""
    listed: list[Kind] = field(default_factory=list)
    """Those of them that it has listed, or tried to."""
    clock: Callable[[], datetime] = now
    """What the calendar says."""

    def all(self, kind: Kind) -> list[Json]:
        """Return copies of all objects of a kind."""
        return [copied(raw) for (of, _), raw in self.objects.items() if of is kind]

    def find(self, kind: Kind, name: str) -> Json | None:
        """Return a copy of an object, or None."""
        found: Json | None = copied(self.objects.get((kind, name)))
        return found

    def create(self, kind: Kind, manifest: Mapping[str, Any]) -> Json:
        """Store a new object."""
        raw: Json = copied(dict(manifest))
        name = raw["metadata"]["name"]
        if (kind, name) in self.objects:
            raise _error(AlreadyExistsError, name, 409)
        if kind is JOB:
            assert len(name) <= 63
            assert _JOB_NAME.match(name)
        raw["metadata"] |= {
            "uid": f"{kind.plural}-{self.version + 1}",
            "creationTimestamp": written(self.clock()),
            "generation": 1,
        }
        return self._put(kind, name, raw, "ADDED")

    def change(self, kind: Kind, name: str, change: Callable[[Json], None]) -> Json | None:
        """Change an object that is there; whoever changes the specification also counts up the generation."""
        raw = self.find(kind, name)
        if raw is None:
            return None
        before = copied(raw)
        change(raw)
        if raw == before:
            return raw
        if raw.get("spec") != before.get("spec"):
            raw["metadata"]["generation"] += 1
        return self._put(kind, name, raw, "MODIFIED")

    def delete(self, kind: Kind, name: str) -> None:
        """Delete an object."""
        raw = self.objects.pop((kind, name), None)
        if raw:
            self.version += 1
            raw["metadata"]["resourceVersion"] = str(self.version)
            self._tell(kind, "DELETED", raw)

    def _put(self, kind: Kind, name: str, raw: Json, event: str) -> Json:
        self.version += 1
        raw["metadata"]["resourceVersion"] = str(self.version)
        self.objects[kind, name] = raw
        self._tell(kind, event, raw)
        stored: Json = copied(raw)
        return stored

    def _tell(self, kind: Kind, event: str, raw: Json) -> None:
        for watcher in list(self.watchers):
            watcher(kind, event, copied(raw))


def copied(raw: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return a copy of a JSON value; several times faster than a deep copy."""
    return json.loads(json.dumps(raw))


def stamp(later: float = 0) -> str:
    """Return the time in so many seconds as the API server writes it."""
    return written(now() + timedelta(seconds=later))


def written(time: datetime) -> str:
    """Return a time as the API server writes it: in whole seconds."""
    return time.replace(microsecond=0).isoformat().replace("+00:00", "Z")


class Crash(BaseException):
    """The operator's process has died."""


class Fault(StrEnum):
    """What can happen to one write."""

    DIES_BEFORE = "the operator dies before the write"
    DIES_AFTER = "the operator dies after the write"
    FAILS_BEFORE = "the server answers 500"
    FAILS_AFTER = "the answer is lost on the way back"
    CONFLICTS = "someone else has just written"


@dataclass(eq=False)
class Faults:
    """Which writes go wrong, by their number since the world began."""

    by_number: Mapping[int, Fault] = field(default_factory=dict)
    writes: int = 0


class ServerClient(Client):
    """The operator's client, on the server in memory, in one life of the operator."""

    def __init__(self, server: Server, faults: Faults | None = None) -> None:
        """Connect."""
        super().__init__(None)  # nothing is sent over a network
        self._server = server
        self._faults = faults or Faults()
        self.dead = False
        self.writes: list[tuple[str, Kind, str]] = []

    async def create(self, kind: Kind, namespace: str, manifest: Json) -> Json:
        """Create an object."""
        del namespace
        name = manifest["metadata"]["name"]
        with _Write(self, "POST", kind, name):
            return self._server.create(kind, manifest)

    async def get(self, kind: Kind, namespace: str, name: str) -> Json:
        """Return an object."""
        del namespace
        self._alive()
        found = self._server.find(kind, name)
        if found is None:
            raise _error(NotFoundError, name, 404)
        return found

    async def replace(self, kind: Kind, namespace: str, name: str, manifest: Json) -> Json:
        """Replace an object."""
        del namespace
        with _Write(self, "PUT", kind, name):
            self._guard(kind, name, manifest)
            kept = {key: manifest[key] for key in ("spec", "status")}
            return self._stored(self._server.change(kind, name, lambda raw: raw.update(copied(kept))))

    async def replace_status(self, kind: Kind, namespace: str, name: str, manifest: Json) -> Json:
        """Replace an object's status."""
        del namespace
        with _Write(self, "PUT status", kind, name):
            self._guard(kind, name, manifest)
            kept = {"status": manifest["status"]}
            return self._stored(self._server.change(kind, name, lambda raw: raw.update(copied(kept))))

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str) -> None:
        """Delete exactly this object."""
        del namespace
        with _Write(self, "DELETE", kind, name):
            found = self._server.find(kind, name)
            if found and found["metadata"]["uid"] == uid:
                self._server.delete(kind, name)

    async def latest_warning(self, namespace: str, kind: str, name: str) -> Json | None:
        """Return nothing: here nobody writes Events but the operator."""
        del namespace, kind, name
        self._alive()
        nothing: Json | None = None
        return nothing

    async def queue_word(self, namespace: str, job_uid: str) -> Json | None:
        """Return nothing: here is no queue."""
        del namespace, job_uid
        self._alive()
        nothing: Json | None = None
        return nothing

    async def serves(self, kind: Kind) -> bool:
        """Return that all kinds are there."""
        del kind
        self._alive()
        return True

    async def list(self, kind: Kind, namespace: str | None) -> tuple[list[Json], int]:
        """Return all objects of a kind, as a listing has them: without their kind."""
        self._alive()
        items = [raw for raw in self._server.all(kind) if namespace in {None, raw["metadata"]["namespace"]}]
        for item in items:
            item.pop("kind", None)
        return items, self._server.version

    async def pages(self, kind: Kind, namespace: str | None) -> AsyncIterator[Json]:
        """Yield all objects of a kind that the operator may list by an optional role."""
        del namespace
        self._alive()
        self._server.listed.append(kind)
        if kind not in self._server.readable:
            raise _error(ForbiddenError, kind.plural, 403)
        yield {"items": self._server.all(kind), "metadata": {"resourceVersion": str(self._server.version)}}

    async def log(self, namespace: str, pod: str, container: str, *, limit_bytes: int) -> str:
        """Return a log without a report."""
        del namespace, container, limit_bytes
        self._alive()
        return f"nothing to see in {pod}\n"

    def begin(self, verb: str, kind: Kind, name: str) -> Fault | None:
        """Count a write and return what is to go wrong with it."""
        self._alive()
        self._faults.writes += 1
        self.writes.append((verb, kind, name))
        return self._faults.by_number.get(self._faults.writes)

    def die(self) -> None:
        """End this life of the operator."""
        self.dead = True
        raise Crash

    def _alive(self) -> None:
        if self.dead:
            raise Crash

    def _guard(self, kind: Kind, name: str, manifest: Json) -> None:
        found = self._server.find(kind, name)
        if found is None:
            raise _error(NotFoundError, name, 404)
        for guard in ("uid", "resourceVersion"):
            if manifest["metadata"][guard] != found["metadata"][guard]:
                raise _error(ConflictError, name, 409)

    @staticmethod
    def _stored(raw: Json | None) -> Json:
        assert raw
        return raw


def _error(kind: type[KubernetesError], name: str, code: int) -> KubernetesError:
    return kind("request for", name, code, "as a real server would answer")


class _Write:
    """One write of the client, with what may go wrong before and after it."""

    def __init__(self, client: ServerClient, verb: str, kind: Kind, name: str) -> None:
        self._client, self._verb, self._name = client, verb, name
        self._fault = client.begin(verb, kind, name)

    def __enter__(self) -> None:
        if self._fault is Fault.DIES_BEFORE:
            self._client.die()
        if self._fault is Fault.FAILS_BEFORE:
            raise KubernetesError(self._verb, self._name, 500, "etcd is away")
        if self._fault is Fault.CONFLICTS:
            raise ConflictError(self._verb, self._name, 409, "it has changed")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._fault is Fault.DIES_AFTER:
            self._client.die()
        if kind is None and self._fault is Fault.FAILS_AFTER:
            raise KubernetesError(self._verb, self._name, 0, "connection reset")


def create_benchmark(server: Server, name: str, spec: Json, namespace: str = "team") -> Json:
    """Store a benchmark as the API server does: with the status that the schema gives it."""
    return server.create(
        BENCHMARK,
        {
            "apiVersion": "inferbench.dev/v1alpha1",
            "kind": "InferenceBenchmark",
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
            "status": {"observedGeneration": -1},
        },
    )
