"""A registry for containerd, as far as tests need one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@contextmanager
def registry_without_images() -> Iterator[str]:
    """Serve a registry on the loopback address, where containerd asks for no TLS; yield its name."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            """Answer that there is no such thing, as the base class asks for it in this spelling."""
            self.send_error(HTTPStatus.NOT_FOUND)

        do_GET = do_HEAD  # noqa: N815 - see above

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"localhost:{server.server_port}"
        server.shutdown()
