"""The table: what a kubelet says of pods in each situation, as it was seen on a real node."""

from __future__ import annotations

from typing import Any, Final

from cluster import FOREVER, Exits, Interrupted, image_pull_failure, never_starts, oom_killed
from cluster.outcomes import (
    Rejected,
    config_failure,
    image_never_pulled,
    invalid_image_name,
    no_such_program,
    out_of,
    unhealthy_device,
)
from cluster.real.configuration import PAUSE_IMAGE
from cluster.real.device_plugin import NEURON
from cluster.states import Interruption, rejected
from tiers.rows import NODE, REGISTRY, Row
from tiers.sights import NAME, Json, Sight
from tiers.stage import Stage

_STARTING: Final = ("Pending", "Pending waiting ContainerCreating")
_RUNNING: Final = "Running running"

# Long enough that nothing is summed up with what comes before.
_RUN_SECONDS: Final = 2
_NUMBERS: Final = "".join(f"{number}\n" for number in range(1000, 3000))
_WIDE: Final = 99 * "x" + "\n"
_CATCHES: Final = 'trap "echo caught >/dev/termination-log; exit 0" TERM; while true; do sleep 0.1; done'
_IGNORES: Final = "while true; do sleep 0.1; done"
_DEADLINE_SECONDS: Final = 15

_FALLBACK: Final = {"terminationMessagePolicy": "FallbackToLogsOnError"}
_ABSENT: Final = f"{REGISTRY}/absent:1"
_ABSENT_TOLD: Final = (
    f'Back-off pulling image "{_ABSENT}": ErrImagePull: rpc error: code = NotFound desc = failed to pull and unpack '
    f'image "{_ABSENT}": failed to resolve reference "{_ABSENT}": {_ABSENT}: not found'
)
_VOLUME: Final = {"volumeMounts": [{"name": "volume", "mountPath": "/volume"}]}
_OF_SECRET: Final = {"volumes": [{"name": "volume", "secret": {"secretName": "hub"}}]}
_SMALL: Final = {"volumes": [{"name": "volume", "emptyDir": {"sizeLimit": "1Mi"}}]}
_LATE: Final = "Pod was active on the node longer than the specified deadline"
_RUNC: Final = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
)


def _shell(script: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - any part of a container's specification
    """Return a container that runs a script after it was seen running."""
    return {"command": ["sh", "-c", f"sleep {_RUN_SECONDS}; {script}"], **fields}


def _stays(script: str) -> dict[str, Any]:
    return {"command": ["sh", "-c", script]}


def _runs(code: int, message: str = "") -> Exits:
    """Return a container that runs until it is told to end."""
    return Exits(run_seconds=FOREVER, stopped_exit_code=code, stopped_message=message)


def _variable(**source: Any) -> dict[str, Any]:  # noqa: ANN401 - any source of a variable
    return {"command": ["true"], "env": [{"name": "TOKEN", "valueFrom": source}]}


def _steps(code: int, reason: str) -> tuple[str, ...]:
    """Return the steps of a container that ends by itself."""
    end = f"terminated {reason} {code}"
    return (*_STARTING, _RUNNING, f"Running {end}", f"{_phase(code)} {end}")


def _stopped_steps(code: int, reason: str) -> tuple[str, ...]:
    """Return the steps of a container that ends because its pod is deleted."""
    return (*_STARTING, _RUNNING, f"deleted: {_RUNNING}", f"deleted: {_phase(code)} terminated {reason} {code}")


def _phase(code: int) -> str:
    return "Failed" if code else "Succeeded"


def _ended(code: int, reason: str, message: str = "", /, *, started: str = "then", **fields: Any) -> Sight:  # noqa: ANN401 - any field
    """Return what is said of a container that has ended."""
    state = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": "then"}
    return Sight(
        phase=_phase(code),
        container={"terminated": state | ({"message": message} if message else {})},
        known=True,
        conditions=_over("PodFailed" if code else "PodCompleted"),
    ).but(**fields)


def _never(**fields: Any) -> Sight:  # noqa: ANN401 - any field
    """Return what is said in the end of a container that never was."""
    state = {
        "exitCode": 137,
        "reason": "ContainerStatusUnknown",
        "message": "The container could not be located when the pod was terminated",
        "startedAt": "never",
        "finishedAt": "never",
    }
    conditions = _unready("False")
    return Sight(phase="Failed", container={"terminated": state}, conditions=conditions).but(**fields)


def _waits(reason: str, message: str = "", *, sandbox: bool = True) -> Sight:
    """Return what is said of a container that waits for something."""
    state = {"reason": reason, **({"message": message} if message else {})}
    return Sight(phase="Pending", container={"waiting": state}, conditions=_unready(str(sandbox)))


def _refused(reason: str, message: str) -> Sight:
    """Return what is said of a pod that was not admitted: nothing of its container."""
    return Sight(phase="Failed", reason=reason, message=f"Pod was rejected: {message}")


def _over(reason: str) -> Json:
    completed = reason == "PodCompleted"
    return {
        "PodReadyToStartContainers": "False",
        "Initialized": f"True {reason}" if completed else "True",
        "Ready": f"False {reason}",
        "ContainersReady": f"False {reason}",
        "PodScheduled": "True",
    }


def _unready(sandbox: str) -> Json:
    words = f"False ContainersNotReady containers with unready status: [{NAME}]"
    return {
        "PodReadyToStartContainers": sandbox,
        "Initialized": "True",
        "Ready": words,
        "ContainersReady": words,
        "PodScheduled": "True",
    }


def _disrupted(reason: str, message: str) -> Json:
    return {**_over("PodFailed"), "DisruptionTarget": f"True {reason} {message}"}


_EVICTED: Final = 'Usage of EmptyDir volume "volume" exceeds the limit "1Mi". '
_DRAINED: Final = ("EvictionByEvictionAPI", "Eviction API: evicting")
_TAINTED: Final = ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")

ENDS: Final = (
    Row(
        id="it succeeds",
        container=_shell("true"),
        script=Exits(),
        steps=_steps(0, "Completed"),
        end=_ended(0, "Completed"),
    ),
    Row(
        id="it fails",
        container=_shell("exit 3"),
        script=Exits(exit_code=3),
        steps=_steps(3, "Error"),
        end=_ended(3, "Error"),
    ),
    Row(
        id="it leaves a message",
        container=_shell("echo done >/dev/termination-log"),
        script=Exits(message="done\n"),
        steps=_steps(0, "Completed"),
        end=_ended(0, "Completed", "done\n"),
    ),
    Row(
        id="its message is too long, and the end of it is kept",
        container=_shell("busybox seq 1000 2999 >/dev/termination-log"),
        script=Exits(message=_NUMBERS),
        steps=_steps(0, "Completed"),
        end=_ended(0, "Completed", _NUMBERS[-4096:]),
    ),
    Row(
        id="it fails without a message, and its log stands in",
        container=_shell("echo words; exit 1", **_FALLBACK),
        script=Exits(exit_code=1, log="words\n"),
        steps=_steps(1, "Error"),
        end=_ended(1, "Error", "words\n"),
    ),
    Row(
        id="it fails without a message, and 80 lines of its log stand in",
        container=_shell("busybox seq 1000 2999; exit 1", **_FALLBACK),
        script=Exits(exit_code=1, log=_NUMBERS),
        steps=_steps(1, "Error"),
        end=_ended(1, "Error", "".join(f"{number}\n" for number in range(2920, 3000))),
    ),
    Row(
        id="it fails without a message, and 2,048 bytes of its log stand in",
        container=_shell(f"busybox yes {_WIDE.strip()} | busybox head -n 100; exit 1", **_FALLBACK),
        script=Exits(exit_code=1, log=100 * _WIDE),
        steps=_steps(1, "Error"),
        end=_ended(1, "Error", _WIDE[-48:] + 20 * _WIDE),
    ),
    Row(
        id="it fails without a message and without a log",
        container=_shell("exit 1", **_FALLBACK),
        script=Exits(exit_code=1),
        steps=_steps(1, "Error"),
        end=_ended(1, "Error"),
    ),
    Row(
        id="it fails with a message and a log",
        container=_shell("echo words; echo done >/dev/termination-log; exit 1", **_FALLBACK),
        script=Exits(exit_code=1, message="done\n", log="words\n"),
        steps=_steps(1, "Error"),
        end=_ended(1, "Error", "done\n"),
    ),
    Row(
        id="it succeeds without a message, and its log counts for nothing",
        container=_shell("echo words", **_FALLBACK),
        script=Exits(log="words\n"),
        steps=_steps(0, "Completed"),
        end=_ended(0, "Completed"),
    ),
    Row(
        id="it needs more memory than its limit",
        container=_shell("a=0123456789; while true; do a=$a$a; done", resources={"limits": {"memory": "32Mi"}}),
        script=oom_killed(),
        steps=_steps(137, "OOMKilled"),
        end=_ended(137, "OOMKilled"),
    ),
    Row(
        id="somebody kills it",
        container=_stays(_CATCHES),
        script=_runs(0, "caught\n"),
        once=_RUNNING,
        act=Stage.kill_container,
        steps=_steps(137, "Error"),
        end=_ended(137, "Error"),
    ),
)

DELETED: Final = (
    Row(
        id="it is deleted and ends well",
        container=_stays(_CATCHES),
        script=_runs(0, "caught\n"),
        once=_RUNNING,
        act=Stage.delete,
        steps=_stopped_steps(0, "Completed"),
        end=_ended(0, "Completed", "caught\n", deleting=True),
        gone=True,
    ),
    Row(
        id="it is deleted and ends with SIGTERM's code",
        container=_stays(_CATCHES.replace("exit 0", "exit 143")),
        script=_runs(143, "caught\n"),
        once=_RUNNING,
        act=Stage.delete,
        steps=_stopped_steps(143, "Error"),
        end=_ended(143, "Error", "caught\n", deleting=True),
        gone=True,
    ),
    Row(
        id="it is deleted and has to be killed",
        container=_stays(_IGNORES),
        script=_runs(137),
        once=_RUNNING,
        act=Stage.delete,
        steps=_stopped_steps(137, "Error"),
        end=_ended(137, "Error", deleting=True),
        gone=True,
    ),
    Row(
        id="it is deleted while its image does not come",
        container={"image": _ABSENT},
        script=image_pull_failure(),
        once="Pending waiting ImagePullBackOff",
        act=Stage.delete,
        steps=(
            *_STARTING,
            "Pending waiting ErrImagePull",
            "Pending waiting ImagePullBackOff",
            "deleted: Pending waiting ImagePullBackOff",
            "deleted: Pending waiting ContainerCreating",
            "deleted: Failed terminated ContainerStatusUnknown 137",
        ),
        end=_never(deleting=True),
        gone=True,
    ),
    Row(
        id="it is deleted while its volume does not come",
        container={"command": ["true"], **_VOLUME},
        pod=_OF_SECRET,
        script=never_starts(),
        once="Pending waiting ContainerCreating",
        act=Stage.delete,
        steps=(
            *_STARTING,
            "deleted: Pending waiting ContainerCreating",
            "deleted: Failed terminated ContainerStatusUnknown 137",
        ),
        end=_never(deleting=True),
        gone=True,
    ),
    Row(
        id="its Job's deadline passes",
        container=_stays(_CATCHES),
        job={"activeDeadlineSeconds": _DEADLINE_SECONDS},
        script=_runs(0, "caught\n"),
        steps=_stopped_steps(0, "Completed"),
        end=_ended(0, "Completed", "caught\n", deleting=True),
        gone=True,
    ),
    Row(
        id="it is drained",
        container=_stays(_IGNORES),
        script=_runs(137),
        once=_RUNNING,
        act=Stage.evict,
        steps=_stopped_steps(137, "Error"),
        end=_ended(137, "Error", deleting=True, conditions=_disrupted(*_DRAINED)),
        gone=True,
    ),
)

BY_ITS_NODE: Final = (
    Row(
        id="its own deadline passes",
        container=_stays(_CATCHES),
        pod={"activeDeadlineSeconds": _DEADLINE_SECONDS},
        script=_runs(0, "caught\n"),
        steps=(*_STARTING, _RUNNING, "Failed DeadlineExceeded terminated Completed 0"),
        end=_ended(
            0,
            "Completed",
            "caught\n",
            phase="Failed",
            reason="DeadlineExceeded",
            message=_LATE,
            conditions=_over("PodFailed"),
        ),
    ),
    Row(
        id="its own deadline passes while its image does not come",
        container={"image": _ABSENT},
        pod={"activeDeadlineSeconds": _DEADLINE_SECONDS},
        script=image_pull_failure(),
        steps=(
            *_STARTING,
            "Pending waiting ErrImagePull",
            "Pending waiting ImagePullBackOff",
            "[Failed DeadlineExceeded waiting ErrImagePull]",
            "[Failed DeadlineExceeded waiting ImagePullBackOff]",
            "Failed DeadlineExceeded terminated ContainerStatusUnknown 137",
        ),
        end=_never(reason="DeadlineExceeded", message=_LATE, conditions=_over("PodFailed")),
    ),
    Row(
        id="it takes more of the disk than it may",
        container={**_shell(f"busybox dd if=/dev/zero of=/volume/file bs=1M count=5; {_IGNORES}"), **_VOLUME},
        pod=_SMALL,
        # Unlike where the node itself is in need, its controllers are not told of a disruption.
        script=Interrupted(run_seconds=_RUN_SECONDS, interruption=Interruption("Evicted", _EVICTED)),
        steps=(
            *_STARTING,
            _RUNNING,
            "[Failed Evicted terminated Error 137]",
            "[Failed Evicted terminated ContainerStatusUnknown 137]",
        ),
        end=_ended(137, "Error", reason="Evicted", message=_EVICTED),
        # The container is removed at once, and the kubelet may look for it afterwards.
        or_end=_never(reason="Evicted", message=_EVICTED, restarts=1, conditions=_over("PodFailed")),
    ),
    Row(
        id="no device is well",
        container={"command": ["true"], "resources": {"limits": {NEURON: "1"}}},
        pod={"nodeName": NODE},
        script=unhealthy_device(NEURON),
        steps=("Pending", "Failed UnexpectedAdmissionError"),
        end=_refused(
            "UnexpectedAdmissionError",
            f"Allocate failed due to no healthy devices present; cannot allocate unhealthy devices {NEURON}, which is "
            "unexpected",
        ),
    ),
    Row(
        id="its node has too little of what it asks for",
        container={"command": ["true"], "resources": {"requests": {"cpu": "1000"}}},
        pod={"nodeName": NODE},
        script=out_of("cpu", 1_000_000),
        steps=("Pending", "Failed OutOfcpu"),
        end=_refused("OutOfcpu", "Node didn't have enough resource: cpu, requested: 1000000, used: N, capacity: N"),
    ),
    Row(
        id="its node is not of those that it asks for",
        container={"command": ["true"]},
        pod={"nodeName": NODE, "nodeSelector": {"inferbench.test/pool": "another"}},
        script=Rejected(
            rejected("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector")
        ),
        steps=("Pending", "Failed NodeAffinity"),
        end=_refused(
            "NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
        ),
    ),
    Row(
        id="its node gets a taint",
        container=_stays(_IGNORES),
        script=_runs(137),
        once=_RUNNING,
        act=Stage.taint_node,
        steps=_stopped_steps(137, "Error"),
        end=_ended(137, "Error", deleting=True, conditions=_disrupted(*_TAINTED)),
        gone=True,
        alone=True,
    ),
    Row(
        id="its node restarts",
        container=_stays(_IGNORES),
        script=_runs(137),
        once=_RUNNING,
        act=Stage.restart_node,
        steps=_steps(255, "Unknown"),
        end=_ended(255, "Unknown"),
        alone=True,
    ),
)

UNSTARTED: Final = (
    Row(
        id="a registry has no such image",
        container={"image": _ABSENT},
        script=image_pull_failure(),
        steps=(*_STARTING, "Pending waiting ErrImagePull", "Pending waiting ImagePullBackOff"),
        end=_waits("ImagePullBackOff", _ABSENT_TOLD),
    ),
    Row(
        id="its image is not on the node and may not be pulled",
        container={"image": _ABSENT, "imagePullPolicy": "Never"},
        script=image_never_pulled(),
        steps=(*_STARTING, "Pending waiting ErrImageNeverPull"),
        end=_waits("ErrImageNeverPull", f'Container image "{_ABSENT}" is not present with pull policy of Never'),
    ),
    Row(
        id="the name of its image is none",
        container={"image": "Runner:Latest"},
        script=invalid_image_name(),
        steps=(*_STARTING, "Pending waiting InvalidImageName"),
        end=_waits(
            "InvalidImageName",
            'Failed to apply default image tag "Runner:Latest": couldn\'t parse image name "Runner:Latest": invalid '
            "reference format: repository name (library/Runner) must be lowercase",
        ),
    ),
    Row(
        id="there is no such program",
        container={"command": ["no-such-program"]},
        script=no_such_program("no-such-program"),
        steps=(*_STARTING, "Pending terminated StartError 128", "Failed terminated StartError 128"),
        end=_ended(
            128,
            "StartError",
            f'{_RUNC}unable to start container process: exec: "no-such-program": executable file not found in $PATH: '
            "unknown",
            started="never",
        ),
    ),
    Row(
        id="a Secret of its variables is missing",
        container=_variable(secretKeyRef={"name": "hub", "key": "token"}),
        script=Exits(),
        steps=(*_STARTING, "Pending waiting CreateContainerConfigError"),
        end=_waits("CreateContainerConfigError", 'secret "hub" not found'),
    ),
    Row(
        id="a ConfigMap of its variables is missing",
        container={"command": ["true"], "envFrom": [{"configMapRef": {"name": "settings"}}]},
        script=Exits(),
        steps=(*_STARTING, "Pending waiting CreateContainerConfigError"),
        end=_waits("CreateContainerConfigError", 'configmap "settings" not found'),
    ),
    Row(
        id="a ConfigMap of its variables lacks the key",
        container=_variable(configMapKeyRef={"name": "kube-root-ca.crt", "key": "token"}),
        script=Exits(),
        steps=(*_STARTING, "Pending waiting CreateContainerConfigError"),
        end=_waits("CreateContainerConfigError", "couldn't find key token in ConfigMap NAMESPACE/kube-root-ca.crt"),
    ),
    Row(
        id="a Secret of its volumes is missing",
        container={"command": ["true"], **_VOLUME},
        pod=_OF_SECRET,
        script=never_starts(),
        steps=_STARTING,
        end=_waits("ContainerCreating", sandbox=False),
    ),
    Row(
        id="it is to run as root and must not",
        container={"command": ["true"], "securityContext": {"runAsNonRoot": True, "runAsUser": 0}},
        script=config_failure(
            'container\'s runAsUser breaks non-root policy (pod: "{pod}_{namespace}({uid})", container: {container})'
        ),
        steps=(*_STARTING, "Pending waiting CreateContainerConfigError"),
        end=_waits(
            "CreateContainerConfigError",
            f'container\'s runAsUser breaks non-root policy (pod: "POD_NAMESPACE(UID)", container: {NAME})',
        ),
    ),
    Row(
        id="its image runs as root and it must not",
        container={"image": PAUSE_IMAGE, "securityContext": {"runAsNonRoot": True}},
        script=config_failure(
            'container has runAsNonRoot and image will run as root (pod: "{pod}_{namespace}({uid})", container: '
            "{container})"
        ),
        steps=(*_STARTING, "Pending waiting CreateContainerConfigError"),
        end=_waits(
            "CreateContainerConfigError",
            f'container has runAsNonRoot and image will run as root (pod: "POD_NAMESPACE(UID)", container: {NAME})',
        ),
    ),
)

ROWS: Final = (*ENDS, *DELETED, *BY_ITS_NODE, *UNSTARTED)
