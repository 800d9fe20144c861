"""What can go wrong while the embedded cluster is built, started or used; each message says what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class ClusterError(Exception):
    """Base of all errors of the embedded cluster; none of them goes away by trying again."""


class BinaryNotFoundError(ClusterError):
    """`$INFERBENCH_CONTROL_PLANE` names a file that is not there."""

    def __init__(self, variable: str, path: Path) -> None:
        """Say what happened and what to do."""
        super().__init__(f"${variable} names {path}, which is not a file; unset it to have the program built.")


class BuildError(ClusterError):
    """A program could not be compiled."""

    def __init__(self, step: str, output: str) -> None:
        """Say what happened and what to do."""
        super().__init__(f"A program could not be built, because {step} failed:\n{output.strip()[-4000:]}")


class ComponentError(ClusterError):
    """A component ended before it was ready, or was not ready in time."""

    def __init__(self, name: str, what: str, log: Path) -> None:
        """Say what happened and what to do."""
        super().__init__(f"{name} {what}. The end of its log:\n{_tail(log)}")


class NotStartedError(ClusterError):
    """The control plane was used before `start()` or after `stop()`."""

    def __init__(self) -> None:
        """Say what happened and what to do."""
        super().__init__("The control plane is not running: call start(), or use it as a context manager.")


class UnknownComponentError(ClusterError):
    """A component was asked for by a name that none has."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        """Say what happened and what to do."""
        super().__init__(f"There is no component {name!r}; there are {', '.join(known)}.")


class KubectlError(ClusterError):
    """The kubectl program is missing, or a command of it failed."""

    def __init__(self, arguments: Sequence[str], exit_code: int, stderr: str) -> None:
        """Say what happened and what to do."""
        super().__init__(f"kubectl {' '.join(arguments)} ended with {exit_code}: {stderr.strip()}")
        self.exit_code = exit_code
        self.stderr = stderr


class PodNotFoundError(ClusterError):
    """No node of the agent has such a pod (yet)."""

    def __init__(self, namespace: str, name: str) -> None:
        """Say what happened and what to do."""
        super().__init__(f"No node of this agent runs a pod {namespace}/{name}; wait until it has been scheduled.")


class NodeNotReadyError(ClusterError):
    """A registered node kept its taint."""

    def __init__(self, name: str, seconds: float) -> None:
        """Say what happened and what to do."""
        super().__init__(
            f"The node {name} was not ready within {seconds:g} s; look into the log of kube-controller-manager."
        )


class NoFreePortError(ClusterError):
    """All the ports that were tried are taken."""

    def __init__(self, first: int, last: int) -> None:
        """Say what happened and what to do."""
        super().__init__(f"No free loopback port was found between {first} and {last}.")


def _tail(log: Path, lines: int = 25) -> str:
    try:
        return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return "(it has no log)"
