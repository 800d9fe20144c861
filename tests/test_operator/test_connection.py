"""Kopf's connection, against a server on this machine that refuses what an API server may refuse."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, suppress

import aiohttp
import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from inferbench_operator.handlers.connection import patient

Get = Callable[[str], AbstractAsyncContextManager[aiohttp.ClientResponse]]

JOBS = "/apis/batch/v1/namespaces/team/jobs"
LIST = f"{JOBS}?limit=500"
WATCH = f"{JOBS}?watch=true&resourceVersion=1"


class Api:
    """Answers every request with the same code."""

    code = 200

    async def answer(self, _request: web.Request) -> web.Response:
        """Answer as an API server does."""
        return web.json_response({"message": "jobs.batch is forbidden"}, status=self.code)


@pytest.fixture
def api() -> Api:
    """What the server on this machine answers."""
    return Api()


@pytest.fixture
async def get(api: Api) -> AsyncIterator[Get]:
    """How Kopf asks it."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.answer)
    async with TestServer(app) as server:
        connection = patient(kopf.ConnectionInfo(server=str(server.make_url("")).rstrip("/")))
        async with connection.aiohttp_session as session:
            yield lambda path: session.get(connection.server + path)


@pytest.fixture(autouse=True)
def no_filter() -> Iterator[None]:
    """Leave Kopf's log as it was."""
    yield
    logging.getLogger("kopf._cogs.clients.watching").filters.clear()


@pytest.mark.parametrize("path", [LIST, WATCH], ids=["list", "watch"])
@pytest.mark.parametrize("code", [403, 404, 410, 500, 503])
async def test_a_refused_watch_is_a_lost_connection(get: Get, api: Api, path: str, code: int) -> None:
    """Of these alone Kopf tries again without end."""
    api.code = code
    with pytest.raises(aiohttp.ClientConnectionError, match=rf"GET {JOBS}: the API server answered {code}: jobs.batch"):
        async with get(path):
            pass


@pytest.mark.parametrize(
    ("path", "code"),
    [(LIST, 200), (WATCH, 200), (LIST, 401), (WATCH, 401), (LIST, 429), ("/apis/inferbench.dev/v1alpha1", 404)],
)
async def test_what_kopf_knows_how_to_take_reaches_it(get: Get, api: Api, path: str, code: int) -> None:
    """An answer, a token that has expired, a request for patience, a group that is not there."""
    api.code = code
    async with get(path) as response:
        assert response.status == code
        assert await response.json() == {"message": "jobs.batch is forbidden"}


async def test_a_refusal_is_told_once(get: Get, api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """Until the same watch has worked in between: who may list may still not watch. Of lists it is told elsewhere."""
    steps = [(LIST, 403), (WATCH, 403), (LIST, 200), (WATCH, 403), (WATCH, 200), (WATCH, 403)]
    told = []
    for path, code in steps:
        api.code = code
        caplog.clear()
        with suppress(aiohttp.ClientConnectionError):
            async with get(path):
                pass
        told.append([record.message for record in caplog.records])
    sentence = f"A watch has to wait: GET {JOBS}: the API server answered 403: jobs.batch is forbidden"
    assert told == [[], [sentence], [], [], [], [sentence]]


async def test_kopf_does_not_tell_it_again(get: Get, api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """It would at every try; it goes on telling of everything else."""
    api.code = 403
    with pytest.raises(aiohttp.ClientConnectionError) as refused:
        async with get(LIST):
            pass
    caplog.clear()
    for error in (refused.value, TimeoutError()):
        logging.getLogger("kopf._cogs.clients.watching").error("Request attempt #1/9 failed; will retry: %r", error)
    assert [record.message for record in caplog.records] == ["Request attempt #1/9 failed; will retry: TimeoutError()"]


async def test_refused_credentials_are_known_again() -> None:
    """Kopf compares what it logs in with; it would log in with the same ones without end."""
    first, again, renewed = (
        patient(kopf.ConnectionInfo(server="https://api.test", username=name)) for name in ("one", "one", "other")
    )
    for connection in (first, renewed):
        await connection.aiohttp_session.close()
    assert first == again
    assert first != renewed
