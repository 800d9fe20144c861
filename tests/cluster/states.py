"""The state of a pod on a node, and the status that a kubelet makes of it.

Shapes, reason words and sentences are those of kubelet 1.36 with containerd, which never fills a terminated
container's `signal`: a killed one shows only in its exit code, 128 + the signal's number.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from dataclasses import dataclass
from typing import Any, Final

from cluster.pods import Container, Pod

Status = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A container that was not started yet."""

    reason: str = "ContainerCreating"
    message: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """A running container."""

    started: dt.datetime


@dataclass(frozen=True, slots=True)
class Terminated:
    """A container that has ended."""

    exit_code: int
    reason: str
    message: str
    started: dt.datetime | None
    """None where there never was a container."""
    finished: dt.datetime | None


ContainerState = Waiting | Running | Terminated

_NEVER: Final = dt.datetime.fromtimestamp(0, dt.UTC)


@dataclass(frozen=True, slots=True)
class Interruption:
    """Why the node itself ended a pod."""

    reason: str
    message: str
    disruption: bool = False
    """Whether the pod gets the condition DisruptionTarget."""
    rejection: bool = False
    """Whether the pod was never admitted, so that nothing is known of containers."""


DEADLINE_EXCEEDED = Interruption("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")


def evicted(resource: str = "memory") -> Interruption:
    """The kubelet's eviction of a pod, on a node that runs out of a resource."""
    message = f"The node was low on resource: {resource}. Threshold quantity: 100Mi, available: 52Mi. "
    return Interruption("Evicted", message, disruption=True)


def rejected(reason: str, message: str) -> Interruption:
    """The kubelet's refusal of a pod that the scheduler has bound to its node."""
    return Interruption(reason, f"Pod was rejected: {message}", rejection=True)


def never_started() -> Terminated:
    """What a kubelet says of a container that was not started before its pod ended."""
    text = "The container could not be located when the pod was terminated"
    return Terminated(137, "ContainerStatusUnknown", text, None, None)


def start_error(message: str) -> Terminated:
    """What a kubelet says of a container whose program the runtime could not start."""
    return Terminated(128, "StartError", message, _NEVER, now())


def now() -> dt.datetime:
    """The present time as the API server keeps it, in whole seconds."""
    return dt.datetime.now(dt.UTC).replace(microsecond=0)


def pod_status(
    pod: Pod,
    states: tuple[ContainerState, ...],
    *,
    started: dt.datetime,
    interruption: Interruption | None = None,
    ending: bool = False,
) -> Status:
    """The status that a kubelet writes.

    Args:
        pod: Whose it is.
        states: Of its containers, in their order.
        started: When the kubelet first saw it.
        interruption: Why the node has ended it, if it has.
        ending: Whether its sandbox is still to be taken down, before which no pod that ends by itself is over.
    """
    if interruption and interruption.rejection:
        return {
            "phase": "Failed",
            "observedGeneration": pod.generation,
            "startTime": timestamp(started),
            "reason": interruption.reason,
            "message": interruption.message,
        }
    phase = "Failed" if interruption else _phase(states)
    shown = ("Running" if any(_was_started(state) for state in states) else "Pending") if ending else phase
    status: Status = {
        "phase": shown,
        "observedGeneration": pod.generation,
        "startTime": timestamp(started),
        "conditions": _conditions(pod, states, phase, interruption, sandbox=shown in {"Pending", "Running"}),
        "containerStatuses": [
            _container_status(pod, container, state) for container, state in zip(pod.containers, states, strict=True)
        ],
        "hostIP": "127.0.0.1",
        "hostIPs": [{"ip": "127.0.0.1"}],
    }
    if any(_has_sandbox(state) for state in states):
        status |= {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
    if interruption:
        status |= {"reason": interruption.reason, "message": interruption.message}
    return status


def timestamp(time: dt.datetime) -> str:
    """A time as the API server writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _phase(states: tuple[ContainerState, ...]) -> str:
    ended = [state for state in states if isinstance(state, Terminated)]
    if len(ended) == len(states):
        return "Failed" if any(state.exit_code for state in ended) else "Succeeded"
    return "Pending" if any(isinstance(state, Waiting) for state in states) else "Running"


def _was_started(state: ContainerState) -> bool:
    return isinstance(state, Running) or (isinstance(state, Terminated) and state.started not in {None, _NEVER})


def _has_sandbox(state: ContainerState) -> bool:
    """Whether a container has come so far that the pod must have a sandbox, and with it an address."""
    if isinstance(state, Waiting):
        return state.reason != Waiting().reason
    return isinstance(state, Running) or state.started is not None


def _conditions(
    pod: Pod,
    states: tuple[ContainerState, ...],
    phase: str,
    interruption: Interruption | None,
    *,
    sandbox: bool,
) -> list[dict[str, Any]]:
    # Other conditions, such as the scheduler's PodScheduled, stay: the patch merges by type.
    running = all(isinstance(state, Running) for state in states)
    # Of a pod that is deleted before it had a container, it is not said that it has failed.
    over = phase if interruption or any(_has_sandbox(state) for state in states) else ""
    reason = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(over, "ContainersNotReady")
    unready = [
        container.name
        for container, state in zip(pod.containers, states, strict=True)
        if not isinstance(state, Running)
    ]
    message = "" if over in {"Succeeded", "Failed"} else f"containers with unready status: [{' '.join(unready)}]"
    readiness = (running, "" if running else reason, "" if running else message)
    rows = {
        "PodReadyToStartContainers": (sandbox and any(_has_sandbox(state) for state in states), "", ""),
        "Initialized": (True, "PodCompleted" if phase == "Succeeded" else "", ""),
        "Ready": readiness,
        "ContainersReady": readiness,
    }
    if interruption and interruption.disruption:
        rows["DisruptionTarget"] = (True, "TerminationByKubelet", interruption.message)
    return [
        {
            "type": kind,
            "status": str(value),
            "reason": why or None,
            "message": words or None,
            "lastTransitionTime": timestamp(now()),
            "observedGeneration": pod.generation,
        }
        for kind, (value, why, words) in rows.items()
    ]


def _container_status(pod: Pod, container: Container, state: ContainerState) -> Status:
    status: Status = {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "ready": isinstance(state, Running),
        "started": isinstance(state, Running),
        "restartCount": 0,
    }
    if isinstance(state, Running) or (isinstance(state, Terminated) and state.started is not None):
        status["containerID"] = container_id(pod, container)
        status["imageID"] = f"{container.image}@sha256:{hashlib.sha256(container.image.encode()).hexdigest()}"
    match state:
        case Waiting(reason, message):
            status["state"] = {"waiting": {"reason": reason} | ({"message": message} if message else {})}
        case Running(started):
            status["state"] = {"running": {"startedAt": timestamp(started)}}
        case Terminated():
            terminated = {
                "exitCode": state.exit_code,
                "reason": state.reason,
                "startedAt": state.started and timestamp(state.started),
                "finishedAt": state.finished and timestamp(state.finished),
                **({"containerID": status["containerID"]} if "containerID" in status else {}),
            }
            status["state"] = {"terminated": terminated | ({"message": state.message} if state.message else {})}
    return status


def container_id(pod: Pod, container: Container) -> str:
    """An id for the container of this pod; no container is started twice, so it needs no count."""
    return f"containerd://{hashlib.sha256(f'{pod.uid}/{container.name}'.encode()).hexdigest()}"
