"""Kopf's connection to the API server: one over which a refused watch does not end the operator.

By itself Kopf ends everything when the API server refuses one of its watches: at once where there is no such kind (any
more), and after a minute where there is no right to it (yet), be it in one namespace among many.
"""

from __future__ import annotations

import functools
import logging
from http import HTTPStatus
from typing import Final

import aiohttp
import kopf

from inferbench_operator.kube.client import error_of

# Kopf has its own ways with these: it logs in again, or waits as long as it is told to.
_KOPFS_OWN: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS})

_logger = logging.getLogger(__name__)


class RefusedWatchError(aiohttp.ClientConnectionError):
    """The API server refuses a watch; Kopf tries again for ever, as after any lost connection."""


@functools.lru_cache(maxsize=1)
def patient(found: kopf.ConnectionInfo) -> kopf.AiohttpSession:
    """Return a connection to the same API server in which a watch waits until it is allowed.

    The same credentials give the same connection: so Kopf knows those again that were refused before.
    """
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=found.as_ssl_context()),
        headers=found.as_http_headers(),
        middlewares=(_Patience(),),
    )
    # What is refused is told once below, and not at each try.
    logging.getLogger("kopf._cogs.clients.watching").addFilter(_is_news)
    return kopf.AiohttpSession(server=found.server, aiohttp_session=session)


def _is_news(record: logging.LogRecord) -> bool:
    return RefusedWatchError.__name__ not in record.getMessage()


class _Patience:
    """Makes a lost connection of every watch that is refused, and of the listing before it."""

    def __init__(self) -> None:
        self._refused: set[str] = set()

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        response = await handler(request)
        path, query = request.url.path, request.url.query
        is_watch = "watch" in query
        # Without a query, Kopf asks what the API server serves; nothing is wrong with a 404 there.
        if response.status < HTTPStatus.BAD_REQUEST or response.status in _KOPFS_OWN or not query:
            if is_watch:
                self._refused.discard(path)
            return response
        error = error_of(request.method, path, response.status, await response.read())
        # Who can't even list is told of where everything is listed.
        is_news = is_watch and path not in self._refused
        _logger.log(logging.WARNING if is_news else logging.DEBUG, "A watch has to wait: %s", error)
        if is_watch:
            self._refused.add(path)
        raise RefusedWatchError(str(error))
