"""Everything that happens to benchmarks, Jobs and pods, version by version, as the API server tells a watch.

A test that looks at objects now and then may miss a state, and may see two objects at different times. Here nothing is
missed, and since one etcd numbers the versions of all kinds, they have one order.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from cluster import ControlPlane
from cluster.api import Api
from cluster.observing import NeverHappenedError

Json = dict[str, Any]

BENCHMARKS: Final = "inferencebenchmarks"
JOBS: Final = "jobs"
PODS: Final = "pods"
RESULTS: Final = "inferencebenchmarkresults"

_FOLLOWED: Final = (BENCHMARKS, JOBS, PODS)
_GROUPS: Final = {
    BENCHMARKS: "/apis/inferbench.dev/v1alpha1",
    RESULTS: "/apis/inferbench.dev/v1alpha1",
    JOBS: "/apis/batch/v1",
}
_REQUEST_SECONDS: Final = 60.0
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Version:
    """One version of one object."""

    revision: int
    kind: str
    raw: Json
    deleted: bool

    @property
    def uid(self) -> str:
        """UID of the object."""
        found: str = self.raw["metadata"]["uid"]
        return found


def path_of(kind: str, namespace: str = "", name: str = "") -> str:
    """Path of objects of a kind, or of one, at the API server."""
    parts = [_GROUPS.get(kind, "/api/v1"), *(["namespaces", namespace] if namespace else []), kind]
    return "/".join([*parts, name] if name else parts)


class Chronicle:
    """Follows the whole cluster from its start on; a context manager. Its methods may be called from any thread."""

    def __init__(self, control_plane: ControlPlane) -> None:
        """Prepare; nothing is followed yet."""
        self._layout = control_plane.layout
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chronicle", daemon=True)
        self._versions: defaultdict[str, list[Version]] = defaultdict(list)
        self._news = threading.Condition()
        self._failure: BaseException | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def __enter__(self) -> Self:
        """Start to follow."""
        self._thread.start()
        self._call(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop."""
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def request(
        self, method: str, path: str, body: Json | None = None, *, content_type: str = "application/json"
    ) -> Json:
        """Send one request as administrator and return the answer's object."""
        return self._call(self._api.request(method, path, body, content_type=content_type))

    def versions(self, namespace: str) -> list[Version]:
        """Return all versions of all objects of a namespace so far, in the order in which they were told."""
        with self._news:
            return list(self._versions[namespace])

    def wait(self, namespace: str, number: int, seconds: float) -> Version | None:
        """Return the version of that number in the namespace, as soon as it is there; None if it does not come."""
        with self._news:
            self._news.wait_for(lambda: self._failure or len(self._versions[namespace]) > number, timeout=seconds)
            if self._failure:
                raise self._failure
            told = self._versions[namespace]
            return told[number] if len(told) > number else None

    async def _start(self) -> None:
        tls = ssl.create_default_context(cafile=str(self._layout.certificates.authority))
        self._api = Api(self._layout.server, self._layout.tokens.admin, tls)
        for kind in _FOLLOWED:
            listed = await self._api.request("GET", path_of(kind), params={"limit": "1"})
            following = self._follow(kind, listed["metadata"]["resourceVersion"])
            self._tasks.append(asyncio.create_task(following, name=kind))

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._api.close()

    async def _follow(self, kind: str, version: str) -> None:
        try:
            while True:
                async with contextlib.aclosing(self._api.watch(path_of(kind), {"resourceVersion": version})) as events:
                    async for event in events:
                        version = event["object"]["metadata"]["resourceVersion"]
                        if event["type"] != "BOOKMARK":
                            self._tell(Version(int(version), kind, event["object"], event["type"] == "DELETED"))
        except Exception as error:  # noqa: BLE001 - it is raised again in whoever waits
            self._failure = error
            with self._news:
                self._news.notify_all()

    def _tell(self, version: Version) -> None:
        with self._news:
            self._versions[version.raw["metadata"]["namespace"]].append(version)
            self._news.notify_all()

    def _call(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_REQUEST_SECONDS)


class Story:
    """One namespace of the chronicle, read from its first version on: waiting reads on, so that no state is missed."""

    def __init__(self, chronicle: Chronicle, namespace: str, patience_seconds: float) -> None:
        """Start before the first version; no fact is waited for longer than that."""
        self._chronicle = chronicle
        self._namespace = namespace
        self._patience = patience_seconds
        self._read = 0
        self._present: dict[tuple[str, str], Json] = {}

    def until(self, what: str, kind: str, holds: Callable[[Json], object], *, deleted: bool = False) -> Json:
        """Read on until an object of a kind is as wanted, or was when the reading stopped, and return it.

        Or until such an object is deleted.
        """
        deadline = time.monotonic() + self._patience
        present = [] if deleted else [raw for (of, _), raw in self._present.items() if of == kind]
        found = next((raw for raw in present if holds(raw)), None)
        while found is None:
            version = self._chronicle.wait(self._namespace, self._read, deadline - time.monotonic())
            if version is None:
                raise NeverHappenedError(what, self._patience, "see the notes")
            self._read += 1
            if version.deleted:
                self._present.pop((version.kind, version.uid), None)
            else:
                self._present[version.kind, version.uid] = version.raw
            if (version.kind, version.deleted) == (kind, deleted) and holds(version.raw):
                found = version.raw
        return found

    def versions(self, kind: str) -> Iterator[Version]:
        """Yield all versions of all objects of a kind so far, also those that were not read yet."""
        return (version for version in self._chronicle.versions(self._namespace) if version.kind == kind)

    def catch_up(self) -> None:
        """Return when the chronicle has told all that is there now: each kind is followed by itself."""
        for kind in _FOLLOWED:
            for raw in self._chronicle.request("GET", path_of(kind, self._namespace))["items"]:
                uid, revision = raw["metadata"]["uid"], int(raw["metadata"]["resourceVersion"])
                number = 0
                while (version := self._chronicle.wait(self._namespace, number, self._patience)) is None or not (
                    version.uid == uid and version.revision >= revision
                ):
                    if version is None:
                        what = f"all is told of {kind} {raw['metadata']['name']}"
                        raise NeverHappenedError(what, self._patience, "see the notes")
                    number += 1

    def told(self) -> str:
        """Return all of it, a line for each version, for a test that fails."""
        versions = sorted(self._chronicle.versions(self._namespace), key=lambda version: version.revision)
        return "\n".join(_line(version) for version in versions)


def _line(version: Version) -> str:
    raw, status = version.raw, version.raw.get("status", {})
    name = f"{version.revision} {version.kind} {raw['metadata']['name']}{' deleted' if version.deleted else ''}"
    said = [
        f"{found['type']}={found['status']} {found.get('reason', '')}: {found.get('message', '')}"
        for found in status.get("conditions", [])
        if found["status"] == "True" or found["type"] in {"Ready", "PodScheduled", "CapacityAvailable"}
    ]
    cells = [
        " ".join(
            str(entry[field]) for field in ("state", "reason", "attempts", "disruptions", "stops") if field in entry
        )
        for entry in status.get("results", [])
    ]
    containers = [str(found.get("state"))[:200] for found in status.get("containerStatuses", [])]
    return "\n    ".join([name, *cells, *containers, *said])
