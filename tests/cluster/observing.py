"""What tests need to look at a cluster: wait for a fact, read an object, make a small Job."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from cluster.controlplane import ControlPlane
from cluster.errors import ClusterError
from cluster.pods import Json

PATIENCE_SECONDS: Final = 120.0
"""How long to wait for a fact before the test fails; far longer than it ever takes."""


_T = TypeVar("_T")


class NeverHappenedError(ClusterError):
    """A fact that was waited for did not come true."""

    def __init__(self, what: str, seconds: float, last: object) -> None:
        """Say what was waited for and what was seen last."""
        super().__init__(f"It did not happen within {seconds:g} s that {what}; seen last: {last}")


def eventually(
    what: str,
    look: Callable[[], _T],
    holds: Callable[[_T], object] = bool,
    *,
    seconds: float = PATIENCE_SECONDS,
    every: float = 0.1,
) -> _T:
    """Look `every` so many seconds until what is seen holds, and return it."""
    deadline = time.monotonic() + seconds
    while not holds(seen := look()):
        if time.monotonic() > deadline:
            raise NeverHappenedError(what, seconds, seen)
        time.sleep(every)
    return seen


def read(control_plane: ControlPlane, namespace: str, kind: str, name: str = "") -> dict[str, Any]:
    """One object, or the list of all in the namespace."""
    names = [name] if name else []
    text = control_plane.kubectl("get", kind, *names, f"--namespace={namespace}", "--output=json")
    found: dict[str, Any] = json.loads(text)
    return found


def only_pod(control_plane: ControlPlane, namespace: str) -> dict[str, Any]:
    """The one pod of the namespace; waits until it is there."""
    pods = eventually(
        f"there is a pod in {namespace}", lambda: read(control_plane, namespace, "pods")["items"], holds=bool
    )
    pod: dict[str, Any] = pods[0]
    return pod


def pod_when(
    control_plane: ControlPlane, namespace: str, what: str, holds: Callable[[dict[str, Any]], object]
) -> dict[str, Any]:
    """The one pod of the namespace, as soon as it is as wanted."""
    return eventually(what, lambda: only_pod(control_plane, namespace), holds=holds)


def job_manifest(
    name: str,
    command: Sequence[str] = (),
    *,
    device: str = "",
    container: Json | None = None,
    pod: Json | None = None,
) -> str:
    """A Job of one pod, which asks for one `device`; `container` and `pod` add to the specifications."""
    containers: list[dict[str, Any]] = [{"name": "runner", "image": "example.test/runner:1"}]
    tolerations = []
    if command:
        containers[0]["command"] = list(command)
    if device:
        containers[0]["resources"] = {"limits": {device: "1"}}
        tolerations = [{"key": device, "operator": "Exists", "effect": "NoSchedule"}]
    containers[0] |= container or {}
    spec = {"restartPolicy": "Never", "containers": containers, "tolerations": tolerations, **(pod or {})}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"backoffLimit": 0, "template": {"spec": spec}},
    }
    return json.dumps(job)
