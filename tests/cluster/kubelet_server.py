"""The kubelet's log endpoint, which the API server calls for `pods/log` and hence for `kubectl logs`.

Only who shows the API server's client certificate is answered. `follow`, `tailLines` and `limitBytes` are honoured;
`timestamps` and `sinceSeconds` are not, because the log files hold only what the container wrote.
"""

from __future__ import annotations

import asyncio
import ssl
import weakref
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from cluster.certificates import Certificates
from cluster.states import Running, Waiting
from cluster.worker import PodWorker

Find = Callable[[str, str], PodWorker | None]
"""Gives the worker of a pod by namespace and name."""

_POLL_SECONDS = 0.05
_CHUNK = 64 * 1024


class KubeletServer:
    """An HTTPS server on a free loopback port."""

    def __init__(self, find: Find, certificates: Certificates) -> None:
        """Prepare the server; `start()` opens the port."""
        self._find = find
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates.authority))
        self._tls.verify_mode = ssl.CERT_REQUIRED
        self._tls.load_cert_chain(certificates.server, certificates.server_key)
        self._transports: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()
        application = web.Application()
        application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        # Followers end with the server, not a minute later.
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)

    async def start(self) -> int:
        """Listen; return the port."""
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls).start()
        port: int = self._runner.addresses[0][1]
        return port

    async def stop(self) -> None:
        """Close the port and all connections."""
        # A closing TLS connection waits for the other side; the loop may be gone before that answers.
        for transport in self._transports:
            transport.abort()
        await self._runner.cleanup()

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        if request.transport is not None:
            self._transports.add(request.transport)
        namespace, name, container = (request.match_info[key] for key in ("namespace", "pod", "container"))
        worker = self._find(namespace, name)
        if worker is None:
            return web.Response(status=404, text=f'pod "{name}" not found')
        state = worker.state(container)
        if state is None:
            return web.Response(status=404, text=f'container "{container}" not found in pod "{name}"')
        if request.query.get("previous") == "true":
            text = f'previous terminated container "{container}" in pod "{name}" not found'
            return web.Response(status=400, text=text)
        if isinstance(state, Waiting):
            text = f'container "{container}" in pod "{name}" is waiting to start: {state.reason}'
            return web.Response(status=400, text=text)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        await _stream(response, request, worker, container)
        await response.write_eof()
        return response


async def _stream(response: web.StreamResponse, request: web.Request, worker: PodWorker, container: str) -> None:
    path = worker.workload.log(container)
    follow = request.query.get("follow") == "true"
    left = int(request.query["limitBytes"]) if "limitBytes" in request.query else None
    offset = tail_offset(path, int(request.query["tailLines"])) if "tailLines" in request.query else 0
    while left is None or left > 0:
        # Asked before reading: what was written until the end of the container is then read for certain.
        ended = not isinstance(worker.state(container), Running)
        chunk = _read(path, offset, _CHUNK if left is None else min(left, _CHUNK))
        if chunk:
            offset += len(chunk)
            left = None if left is None else left - len(chunk)
            await response.write(chunk)
        elif ended or not follow:
            return
        else:
            await asyncio.sleep(_POLL_SECONDS)


def tail_offset(path: Path, lines: int) -> int:
    """Where the last `lines` lines of a file begin; a last line without an end counts."""
    data = path.read_bytes() if path.exists() else b""
    kept = data.splitlines(keepends=True)[-lines:] if lines else []
    return len(data) - sum(map(len, kept))


def _read(path: Path, offset: int, size: int) -> bytes:
    if not path.exists():
        return b""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size)
