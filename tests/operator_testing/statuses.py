"""Keeps whatever tools read of benchmarks, version by version, so that all of it can be judged in the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final

import aiohttp

from cluster import ControlPlane
from cluster.api import Api, ApiError
from cluster.components import Layout
from operator_testing.gitops import RERUN

Json = dict[str, Any]

_PATH: Final = "/apis/inferbench.dev/v1alpha1/inferencebenchmarks"
_RETRY_SECONDS: Final = 0.2
_STOP_SECONDS: Final = 60.0


class StatusCollection:
    """What was ever seen of any benchmark, each thing once."""

    def __init__(self) -> None:
        """Start without any."""
        self._seen: dict[str, Json] = {}

    @property
    def objects(self) -> list[Json]:
        """What was seen, as objects with the fields that tools read."""
        return list(self._seen.values())

    def add(self, raw: Json) -> None:
        """Keep what tools read of an object."""
        status = raw.get("status", {})
        if not status.get("conditions") and status.get("observedGeneration", -1) >= 0:
            # By hand, in a test of the definitions: the operator writes none without conditions.
            return
        read = _what_tools_read(raw)
        # A time alone makes no difference to any of them.
        self._seen.setdefault(json.dumps(_without_times(read), sort_keys=True), read)

    @contextmanager
    def following(self, control_plane: ControlPlane) -> Iterator[None]:
        """Keep all versions of all benchmarks of a cluster meanwhile, but for those while its API server is away."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="statuses", daemon=True)
        thread.start()
        stopping = asyncio.Event()
        work = asyncio.run_coroutine_threadsafe(self._follow_until(stopping, control_plane.layout), loop)
        try:
            yield
        finally:
            loop.call_soon_threadsafe(stopping.set)
            try:
                work.result(_STOP_SECONDS)
            finally:
                loop.call_soon_threadsafe(loop.stop)
                thread.join()
                loop.close()

    async def _follow_until(self, stopping: asyncio.Event, layout: Layout) -> None:
        tls = ssl.create_default_context(cafile=str(layout.certificates.authority))
        api = Api(layout.server, layout.tokens.admin, tls)
        following, stop = asyncio.create_task(self._follow(api)), asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait({following, stop}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
            # What the watch has not told yet.
            await self._list(api)
        finally:
            for task in (following, stop):
                task.cancel()
            await asyncio.gather(following, stop, return_exceptions=True)
            await api.close()

    async def _follow(self, api: Api) -> None:
        while True:
            try:
                version = await self._list(api)
                while True:
                    async with contextlib.aclosing(api.watch(_PATH, {"resourceVersion": version})) as events:
                        async for event in events:
                            version = event["object"]["metadata"]["resourceVersion"]
                            if event["type"] != "BOOKMARK":
                                self.add(event["object"])
            except ApiError as error:
                # The version is too old, or the kind was taken away.
                if not (error.temporary or error.status in {HTTPStatus.GONE, HTTPStatus.NOT_FOUND}):
                    raise
            except (aiohttp.ClientError, TimeoutError, OSError):
                pass
            await asyncio.sleep(_RETRY_SECONDS)

    async def _list(self, api: Api) -> str:
        listed = await api.request("GET", _PATH)
        for raw in listed["items"]:
            self.add(raw)
        version: str = listed["metadata"]["resourceVersion"]
        return version


def _what_tools_read(raw: Json) -> Json:
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status", {})
    annotations = {key: value for key, value in metadata.get("annotations", {}).items() if key == RERUN}
    return {
        "metadata": _fields(metadata, "generation", "deletionTimestamp") | {"annotations": annotations},
        "spec": _fields(spec, "suspend", "cancel", "schedule"),
    } | ({"status": _fields(status, "observedGeneration", "conditions", "run", "cells")} if "status" in raw else {})


def _fields(of: Json, *names: str) -> Json:
    return {name: of[name] for name in names if name in of}


def _without_times(value: Any) -> Any:  # noqa: ANN401 - any JSON
    match value:
        case dict():
            return {key: "Time" if key.endswith("Time") else _without_times(item) for key, item in value.items()}
        case list():
            return [_without_times(item) for item in value]
    return value
