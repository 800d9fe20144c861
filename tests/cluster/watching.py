"""Follow all pods that are bound to nodes, across disconnects and restarts of the API server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import aiohttp

from cluster.api import Api, ApiError, persist
from cluster.pods import Json

_PATH = "/api/v1/pods"
_BOUND = {"fieldSelector": "spec.nodeName!="}
_PAUSE_SECONDS = 0.1


class PodWatch:
    """Lists once, then watches from there; lists again only when the server has forgotten that version."""

    def __init__(
        self, api: Api, *, listed: Callable[[Sequence[Json]], None], changed: Callable[[str, Json], None]
    ) -> None:
        """Take the callbacks: `listed` gets all pods there are, `changed` an event type and a pod."""
        self._api = api
        self._listed = listed
        self._changed = changed
        self._version: str | None = None

    async def run(self) -> None:
        """Follow for ever; cancel it to end."""
        while True:
            if self._version is None:
                await self._list()
            try:
                await self._follow()
            except ApiError as error:
                # Whatever it refuses the version for, a new list is safe; only haste is not.
                if not error.temporary:
                    self._version = None
            except (aiohttp.ClientError, TimeoutError, OSError):
                pass
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _list(self) -> None:
        answer = await persist(lambda: self._api.request("GET", _PATH, params=_BOUND))
        self._version = answer["metadata"]["resourceVersion"]
        self._listed(answer["items"])

    async def _follow(self) -> None:
        assert self._version is not None
        events = self._api.watch(_PATH, {**_BOUND, "resourceVersion": self._version})
        # Closed here, not by the garbage collector some time later.
        async with contextlib.aclosing(events):
            async for event in events:
                if event["type"] != "BOOKMARK":
                    self._changed(event["type"], event["object"])
                self._version = event["object"]["metadata"]["resourceVersion"]
