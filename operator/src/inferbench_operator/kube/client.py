"""A thin client over the official package's transport: plain JSON in, plain JSON out.

The package's typed API classes would triple the operator's memory, so only its configuration (kubeconfig, service
account, token refresh, TLS) and its HTTP transport are used here.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client as transport
from kubernetes.aio import config

from inferbench_operator.kube import metrics
from inferbench_operator.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    KubernetesError,
    NoClusterError,
    NotFoundError,
    RefusedError,
)
from inferbench_operator.kube.kinds import EVENT, KUEUE_JOB_LABEL, WORKLOADS, Kind

Json = dict[str, Any]

_WARNINGS: Final = 50
_PAGE: Final = 500
_TIMEOUT_SECONDS: Final = 30.0
_LOG_TIMEOUT_SECONDS: Final = 5.0
# Not 403: a role or a quota may be given back without any change of the object.
_REFUSALS: Final = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})


class Client:
    """Requests to one API server."""

    def __init__(self, api: transport.ApiClient) -> None:
        """Use `connect` instead."""
        self._api = api

    @classmethod
    async def connect(cls) -> Self:
        """Connect as the pod's service account, or else as the current context of the kubeconfig.

        Raises:
            NoClusterError: There is neither.
        """
        configuration = transport.Configuration()
        try:
            config.load_incluster_config(configuration)
        except config.ConfigException:
            try:
                await config.load_kube_config(client_configuration=configuration)
            except Exception as error:
                # In a file that is no kubeconfig, the package's parser raises whatever it stumbles over.
                raise NoClusterError(error) from error
        return cls(transport.ApiClient(configuration))

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        await self._api.close()

    async def serves(self, kind: Kind) -> bool:
        """Return whether the API server knows a kind; every account may ask that."""
        try:
            found = await self._json("GET", kind.root, kind)
        except NotFoundError:
            return False
        return any(one["name"] == kind.plural for one in found["resources"])

    async def create(self, kind: Kind, namespace: str, manifest: Json) -> Json:
        """Create an object and return it as stored; a field that the API server does not know is refused."""
        return await self._json("POST", f"{kind.path(namespace)}?fieldValidation=Strict", kind, body=manifest)

    async def get(self, kind: Kind, namespace: str, name: str) -> Json:
        """Return an object."""
        return await self._json("GET", kind.path(namespace, name), kind)

    async def exists(self, kind: Kind, namespace: str, name: str, *, uid: str) -> bool:
        """Whether exactly this object is there and not on its way out."""
        try:
            found = await self.get(kind, namespace, name)
        except NotFoundError:
            return False
        return bool(found["metadata"]["uid"] == uid and not found["metadata"].get("deletionTimestamp"))

    async def replace(self, kind: Kind, namespace: str, name: str, manifest: Json) -> Json:
        """Replace an object; the manifest's resourceVersion guards against lost updates."""
        return await self._json("PUT", kind.path(namespace, name), kind, body=manifest)

    async def replace_status(self, kind: Kind, namespace: str, name: str, manifest: Json) -> Json:
        """Replace an object's status; the manifest's uid and resourceVersion guard against lost updates."""
        return await self._json("PUT", f"{kind.path(namespace, name)}/status", kind, body=manifest)

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str) -> None:
        """Delete exactly this object, its dependents in the background; one that is gone already is no error."""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        try:
            await self._json("DELETE", kind.path(namespace, name), kind, body=body)
        except (NotFoundError, ConflictError):
            # A conflict here says that the name belongs to another object by now.
            return

    async def list(self, kind: Kind, namespace: str | None) -> tuple[list[Json], int]:
        """Return all objects of a kind, in one namespace or (None) in all, and the resource version of the list."""
        items: list[Json] = []
        version = 0
        async for page in self.pages(kind, namespace):
            items += page["items"]
            version = int(page["metadata"]["resourceVersion"])
        return items, version

    async def pages(self, kind: Kind, namespace: str | None) -> AsyncIterator[Json]:
        """Yield all objects of a kind part by part, so that no more than one part has to be in memory."""
        token = ""
        while True:
            query = {"limit": _PAGE, "continue": token, "labelSelector": kind.selector}
            given = urlencode({key: value for key, value in query.items() if value})
            page = await self._json("GET", f"{kind.path(namespace)}?{given}", kind)
            yield page
            token = page["metadata"].get("continue", "")
            if not token:
                return

    async def log(self, namespace: str, pod: str, container: str, *, limit_bytes: int) -> str:
        """Return the end of a container's log."""
        query = {"container": container, "tailLines": 20, "limitBytes": limit_bytes}
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log?{urlencode(query)}"
        raw = await self._request("GET", path, "pods/log", seconds=_LOG_TIMEOUT_SECONDS)
        return raw.decode(errors="replace")

    async def latest_warning(self, namespace: str, kind: str, name: str) -> Json | None:
        """Return the latest Warning Event on an object; None where there is none."""
        about = f"involvedObject.kind={kind},involvedObject.name={name},type=Warning"
        query = urlencode({"fieldSelector": about, "limit": _WARNINGS})
        page = await self._json("GET", f"{EVENT.path(namespace)}?{query}", EVENT)
        items: list[Json] = page["items"]
        return max(items, key=_seen, default=None)

    async def queue_word(self, namespace: str, job_uid: str) -> Json | None:
        """Return what Kueue says about a Job that it holds: the condition of its Workload; None without one."""
        for kind in WORKLOADS:
            query = urlencode({"labelSelector": f"{KUEUE_JOB_LABEL}={job_uid}", "limit": 1})
            try:
                page = await self._json("GET", f"{kind.path(namespace)}?{query}", kind)
            except NotFoundError:
                # Kueue, or this version of it, is not installed.
                continue
            conditions = [one for item in page["items"] for one in item.get("status", {}).get("conditions") or []]
            return next(
                (one for one in conditions if one["type"] == "QuotaReserved" and one["status"] == "False"), None
            )
        return None

    async def _json(self, method: str, path: str, kind: Kind, *, body: Json | None = None) -> Json:
        raw = await self._request(method, path, kind.plural, body=body)
        parsed: Json = json.loads(raw)
        return parsed

    async def _request(
        self, method: str, path: str, resource: str, *, body: Json | None = None, seconds: float = _TIMEOUT_SECONDS
    ) -> bytes:
        headers: dict[str, str] = {"Accept": "application/json", "Content-Type": "application/json"}
        code = 0
        try:
            await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
            response = await self._api.call_api(
                method, self._api.configuration.host + path, headers, body, _request_timeout=seconds
            )
            raw: bytes = await response.read() or b""
            code = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise KubernetesError(method, path, 0, f"{type(error).__name__}: {error}") from error
        finally:
            metrics.api_request(method, resource, code)
        if code >= HTTPStatus.BAD_REQUEST:
            raise error_of(method, path, code, raw)
        return raw


def _seen(event: Json) -> str:
    """Return when an Event was last seen; the API writes all its times in the same form, so that text sorts them."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((str(time) for time in times if time), str(event["metadata"]["creationTimestamp"]))


def error_of(method: str, path: str, code: int, raw: bytes) -> KubernetesError:
    """Return what an answer of the API server with such a code is in our own words."""
    status = _status(raw)
    detail = str(status.get("message") or raw[:300].decode(errors="replace").strip())
    kind: type[KubernetesError] = KubernetesError
    if code == HTTPStatus.NOT_FOUND:
        kind = NotFoundError
    elif code == HTTPStatus.CONFLICT:
        kind = AlreadyExistsError if status.get("reason") == "AlreadyExists" else ConflictError
    elif code == HTTPStatus.FORBIDDEN:
        kind = ForbiddenError
    elif code in _REFUSALS:
        kind = RefusedError
    return kind(method, path.partition("?")[0], code, detail)


def _status(raw: bytes) -> Mapping[str, Any]:
    try:
        parsed = json.loads(raw)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
