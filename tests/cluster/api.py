"""The node agent's client of the API server: JSON in, JSON out, and one error type."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, TypeVar

import aiohttp

from cluster.pods import Json

MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"

# A watch without a bookmark (one a minute) for this long is dead, though nobody closed it.
_SILENCE_SECONDS = 90
_RETRY_SECONDS = 0.2
_T = TypeVar("_T")


class ApiError(Exception):
    """The API server refused a request; trying again helps when `temporary`."""

    def __init__(self, status: int, message: str) -> None:
        """Hold the HTTP status and the server's sentence."""
        super().__init__(f"{status}: {message}")
        self.status = status

    @property
    def temporary(self) -> bool:
        """Whether the same request may succeed later."""
        # A starting API server forbids what its roles allow, until it has read them; the agent's own never change.
        passing = {HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS}
        return self.status in passing or self.status >= HTTPStatus.INTERNAL_SERVER_ERROR


class Api:
    """A client with a bearer token; made and used inside one event loop."""

    def __init__(self, server: str, token: str, tls: ssl.SSLContext) -> None:
        """Open a session; `close()` ends it."""
        self._session = aiohttp.ClientSession(
            base_url=server,
            headers={"Authorization": f"Bearer {token}"},
            connector=aiohttp.TCPConnector(ssl=tls, limit=0),
            timeout=aiohttp.ClientTimeout(total=30),
        )

    async def close(self) -> None:
        """End all connections."""
        await self._session.close()
        # The server answers the end of each TLS connection; a loop that is closed before that leaves open sockets.
        await asyncio.sleep(0.1)

    async def request(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        """Send one request and return the answer's object.

        Raises:
            ApiError: The server answered with an error.
            aiohttp.ClientError: It did not answer.
        """
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type}
        async with self._session.request(method, path, data=data, params=params, headers=headers) as response:
            text = await response.text()
            if response.status >= HTTPStatus.BAD_REQUEST:
                raise ApiError(response.status, text)
            answer: dict[str, Any] = json.loads(text)
            return answer

    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[Json, None]:
        """Yield the events of one watch request until the server ends it.

        Raises:
            ApiError: The server refused; 410 means that the resource version is too old.
            aiohttp.ClientError: The connection broke.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_read=_SILENCE_SECONDS)
        query = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": "300", **params}
        async with self._session.get(path, params=query, timeout=timeout) as response:
            if response.status >= HTTPStatus.BAD_REQUEST:
                raise ApiError(response.status, await response.text())
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise ApiError(event["object"].get("code", 500), event["object"].get("message", ""))
                    yield event


async def persist(call: Callable[[], Awaitable[_T]]) -> _T:
    """Repeat a request while the server is away or asks for patience.

    Raises:
        ApiError: The server refused for good.
    """
    while True:
        try:
            return await call()
        except ApiError as error:
            if not error.temporary:
                raise
        except (aiohttp.ClientError, TimeoutError, OSError):
            pass
        await asyncio.sleep(_RETRY_SECONDS)
