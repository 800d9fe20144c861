"""What a node does with a pod's containers, be it real or played: the interface that `worker.py` drives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from cluster.states import ContainerState, Interruption

States = tuple[ContainerState, ...]
"""One state for each container, in the pod's order."""
Publish = Callable[[States], Awaitable[None]]


class Workload(Protocol):
    """The containers of one pod."""

    interruption: Interruption | None
    """Set when the node, not the container, ended the pod."""

    async def run(self, publish: Publish) -> States:
        """Start the containers, publish their states, return the last ones; a cancel ends all processes."""
        ...

    def stop(self, grace_seconds: float) -> None:
        """Ask the containers to end, and kill them after the grace; a later call can only shorten it."""
        ...

    def kill(self, container: str | None, reason: str) -> None:
        """Kill one container, or all, as if the system did it; `reason` goes into its state."""
        ...

    def log(self, container: str) -> Path:
        """File with the container's output."""
        ...
