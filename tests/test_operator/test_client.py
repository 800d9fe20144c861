"""The client against a server on this machine that answers what an API server may answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import unquote

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client as transport

from inferbench_operator.kube.client import Client
from inferbench_operator.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    KubernetesError,
    NotFoundError,
    RefusedError,
)
from inferbench_operator.kube.kinds import BENCHMARK, JOB, POD, RESULT

Json = dict[str, Any]


class Api:
    """Remembers requests and gives the answers that a test has laid out."""

    def __init__(self) -> None:
        """Nothing asked, nothing to answer."""
        self.requests: list[tuple[str, str, Any]] = []
        self.answers: list[tuple[int, Any]] = []

    def will(self, code: int, body: Any) -> None:  # noqa: ANN401 - any JSON value, or bytes
        """Lay out the next answer."""
        self.answers.append((code, body))

    async def answer(self, request: web.Request) -> web.Response:
        """Give the next answer."""
        text = await request.text()
        self.requests.append((request.method, request.path_qs, json.loads(text) if text else None))
        code, body = self.answers.pop(0)
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return web.Response(status=code, body=raw, content_type="application/json")


@pytest.fixture
def api() -> Api:
    """What the server on this machine is asked, and answers."""
    return Api()


@pytest.fixture
async def client(api: Api) -> AsyncIterator[Client]:
    """A client of it."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.answer)
    async with TestServer(app) as server:
        configuration = transport.Configuration()
        configuration.host = str(server.make_url("")).rstrip("/")
        async with Client(transport.ApiClient(configuration)) as made:
            yield made


def _status(code: int, reason: str, message: str = "words") -> Json:
    return {"kind": "Status", "code": code, "reason": reason, "message": message}


@pytest.mark.parametrize(
    ("code", "plurals", "serves"),
    [(200, ("inferencebenchmarks", "inferencebenchmarks/status"), True), (200, ("others",), False), (404, (), False)],
    ids=["it does", "it has others of the group", "it has none of the group"],
)
async def test_the_api_server_tells_what_it_serves(
    client: Client, api: Api, code: int, plurals: tuple[str, ...], *, serves: bool
) -> None:
    """In the list of its kinds, of which there is none for a group that it doesn't know."""
    api.will(code, {"resources": [{"name": name} for name in plurals]})
    assert await client.serves(BENCHMARK) is serves
    assert [path for _, path, _ in api.requests] == ["/apis/inferbench.dev/v1alpha1"]


async def test_a_queue_is_asked_in_the_versions_of_its_api(client: Client, api: Api) -> None:
    """The newest first; a Workload that has its quota, or none at all, says nothing."""
    waits = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "no quota for neuron"}
    items = [{"status": {"conditions": [{"type": "Admitted", "status": "False"}, waits]}}]
    api.will(404, _status(404, "NotFound"))
    api.will(200, {"items": items})
    assert await client.queue_word("team", "uid-1") == waits
    assert [path.partition("?")[0].split("/")[3] for _, path, _ in api.requests] == ["v1beta2", "v1beta1"]
    assert all("labelSelector=kueue.x-k8s.io/job-uid=uid-1" in unquote(path) for _, path, _ in api.requests)
    api.will(200, {"items": [{"status": {"conditions": [waits | {"status": "True"}]}}]})
    api.will(200, {"items": []})
    api.will(404, _status(404, "NotFound"))
    api.will(404, _status(404, "NotFound"))
    assert [await client.queue_word("team", "uid-1") for _ in range(3)] == [None] * 3


async def test_the_latest_warning_is_the_one_seen_last(client: Client, api: Api) -> None:
    """Whichever of its times an Event has; the server is asked for those of one object only."""
    early = {"metadata": {"creationTimestamp": "2026-01-05T12:00:09Z"}, "lastTimestamp": "2026-01-05T12:00:01Z"}
    late = {
        "metadata": {"creationTimestamp": "2026-01-05T12:00:00Z"},
        "series": {"lastObservedTime": "2026-01-05T12:00:03.1Z"},
    }
    middle = {"metadata": {"creationTimestamp": "2026-01-05T12:00:02Z"}}
    api.will(200, {"items": [early, late, middle], "metadata": {}})
    api.will(200, {"items": [], "metadata": {}})
    assert await client.latest_warning("team", "Job", "study-1") == late
    assert await client.latest_warning("team", "Job", "study-1") is None
    (_, path, _), _ = api.requests
    assert path.startswith("/api/v1/namespaces/team/events?")
    assert "fieldSelector=involvedObject.kind=Job,involvedObject.name=study-1,type=Warning" in unquote(path)


@pytest.mark.parametrize(
    ("code", "body", "error"),
    [
        pytest.param(404, _status(404, "NotFound"), NotFoundError, id="not there"),
        pytest.param(409, _status(409, "AlreadyExists"), AlreadyExistsError, id="there already"),
        pytest.param(409, _status(409, "Conflict"), ConflictError, id="changed meanwhile"),
        pytest.param(409, b"plain words", ConflictError, id="a conflict without a reason"),
        pytest.param(422, _status(422, "Invalid"), RefusedError, id="invalid"),
        pytest.param(400, _status(400, "BadRequest"), RefusedError, id="malformed"),
        pytest.param(403, _status(403, "Forbidden"), ForbiddenError, id="a right or a quota that may come back"),
        pytest.param(401, _status(401, "Unauthorized"), KubernetesError, id="a token that may be renewed"),
        pytest.param(429, _status(429, "TooManyRequests"), KubernetesError, id="too many requests"),
        pytest.param(500, _status(500, "InternalError"), KubernetesError, id="a fault of the server"),
        pytest.param(503, b"<html>upstream</html>", KubernetesError, id="a proxy's page"),
        pytest.param(500, b"[]", KubernetesError, id="JSON that is no status"),
        pytest.param(500, b"\xff\xfe", KubernetesError, id="bytes that are no text"),
        pytest.param(500, b"", KubernetesError, id="nothing"),
    ],
)
async def test_answers_become_our_own_errors(
    api: Api, client: Client, code: int, body: object, error: type[KubernetesError]
) -> None:
    """Exactly this kind of error, with the server's words."""
    api.will(code, body)
    with pytest.raises(KubernetesError) as caught:
        await client.get(JOB, "team", "x")
    assert type(caught.value) is error
    assert caught.value.code == code
    assert f"answered {code}" in str(caught.value)
    if isinstance(body, dict):
        assert caught.value.detail == "words"


async def test_a_server_that_is_not_there_is_an_error_like_others() -> None:
    """No exception of the HTTP library leaves the client."""
    configuration = transport.Configuration()
    configuration.host = "http://127.0.0.1:1"
    async with Client(transport.ApiClient(configuration)) as client:
        with pytest.raises(KubernetesError) as caught:
            await client.get(JOB, "team", "x")
    assert caught.value.code == 0
    assert "was not reached" in str(caught.value)


async def test_requests_are_what_the_api_expects(api: Api, client: Client) -> None:
    """Paths, methods and bodies."""
    manifest = {"metadata": {"name": "x"}}
    for _ in range(5):
        api.will(200, {"metadata": {}})
    await client.create(JOB, "team", manifest)
    await client.get(POD, "team", "x")
    await client.replace(RESULT, "team", "x", manifest)
    await client.replace_status(BENCHMARK, "team", "x", manifest)
    await client.delete(JOB, "team", "x", uid="u")
    root = "/apis/inferbench.dev/v1alpha1/namespaces/team"
    assert api.requests == [
        ("POST", "/apis/batch/v1/namespaces/team/jobs?fieldValidation=Strict", manifest),
        ("GET", "/api/v1/namespaces/team/pods/x", None),
        ("PUT", f"{root}/inferencebenchmarkresults/x", manifest),
        ("PUT", f"{root}/inferencebenchmarks/x/status", manifest),
        (
            "DELETE",
            "/apis/batch/v1/namespaces/team/jobs/x",
            {"propagationPolicy": "Background", "preconditions": {"uid": "u"}},
        ),
    ]


@pytest.mark.parametrize("code", [404, 409])
async def test_deleting_what_is_gone_is_no_error(api: Api, client: Client, code: int) -> None:
    """Neither if the object is gone, nor if another one has its name by now."""
    api.will(code, _status(code, "Whatever"))
    await client.delete(JOB, "team", "x", uid="u")


async def test_a_deletion_that_failed_is_an_error(api: Api, client: Client) -> None:
    """It has to be tried again."""
    api.will(500, _status(500, "InternalError"))
    with pytest.raises(KubernetesError):
        await client.delete(JOB, "team", "x", uid="u")


async def test_a_long_list_is_read_page_by_page(api: Api, client: Client) -> None:
    """With the label selector in each request; the version is the list's."""
    api.will(200, {"metadata": {"resourceVersion": "7", "continue": "a+b"}, "items": [{"n": 1}]})
    api.will(200, {"metadata": {"resourceVersion": "7"}, "items": [{"n": 2}]})
    assert await client.list(JOB, None) == ([{"n": 1}, {"n": 2}], 7)
    assert [path for _, path, _ in api.requests] == [
        "/apis/batch/v1/jobs?limit=500&labelSelector=inferbench.dev/benchmark",
        "/apis/batch/v1/jobs?limit=500&continue=a%2Bb&labelSelector=inferbench.dev/benchmark",
    ]


async def test_half_a_list_is_an_error(api: Api, client: Client) -> None:
    """What the second page would have held must not be taken for gone."""
    api.will(200, {"metadata": {"resourceVersion": "7", "continue": "x"}, "items": []})
    api.will(410, _status(410, "Expired"))
    with pytest.raises(KubernetesError):
        await client.list(JOB, "team")


async def test_the_end_of_a_log_is_read_whatever_its_bytes(api: Api, client: Client) -> None:
    """A runner may print anything."""
    api.will(200, b"caf\xe9\n")
    assert await client.log("team", "pod", "runner", limit_bytes=9) == "caf\ufffd\n"
    (_, path, _) = api.requests[0]
    assert path == "/api/v1/namespaces/team/pods/pod/log?container=runner&tailLines=20&limitBytes=9"
