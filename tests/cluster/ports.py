"""Free ports on the loopback address."""

from __future__ import annotations

import secrets
import socket

from cluster.errors import NoFreePortError

# Below the range from which systems serve outgoing connections, so that none of those can take a port between our look
# and its use; among starters, chance keeps them apart.
_FIRST, _LAST = 20_000, 32_000


def free_ports(count: int) -> list[int]:
    """`count` different ports on which nobody listens now."""
    ports: set[int] = set()
    for _ in range(1000):
        port = _FIRST + secrets.randbelow(_LAST - _FIRST)
        if port not in ports and _is_free(port):
            ports.add(port)
        if len(ports) == count:
            return sorted(ports)
    raise NoFreePortError(_FIRST, _LAST)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
