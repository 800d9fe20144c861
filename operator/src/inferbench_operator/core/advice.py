"""What to do about a wait, by what the cluster says about it."""

from __future__ import annotations

import re
from typing import Final

from inferbench_operator.core.names import shortened

_DEVICES: Final = "Such devices are taken or not there: wait, add a node, or see whether the device plugin runs."
_VOLUMES: Final = "See the PersistentVolumeClaims that runner.volumes names."

_ADVICE: Final = tuple(
    (re.compile(pattern), advice)
    for pattern, advice in (
        # The scheduler asks taint, affinity, resources, volumes and neighbours in this order and tells of each node the
        # first that failed, so that of several the last one is about the node that would come closest.
        (
            r"anti-affinity rules",
            "Another runner has the node: wait, add one, or set execution.exclusiveNode to false.",
        ),
        (r"volume node affinity conflict|unbound immediate PersistentVolumeClaims|persistentvolumeclaim \"", _VOLUMES),
        (r"Insufficient (cpu|memory)\b", "Add a larger node, or lower runner.resources."),
        (r"Insufficient ", _DEVICES),
        (
            r"didn't match Pod's node affinity/selector",
            "Add a node that fits instanceTypes, runner.nodeSelector and runner.affinity, or correct these.",
        ),
        (r"untolerated taint", "Add the taint to runner.tolerations, or add a node without it."),
        (r"node\(s\) were unschedulable", "Uncordon the node, or add one."),
        (r"exceeded quota", "Raise the quota of the namespace, or lower execution.maxParallelJobs."),
        (r"serviceaccount \".*\" not found", "Create it, or correct runner.serviceAccountName."),
        (r"RuntimeClass \".*\" not found", "Create it, or correct runner.runtimeClassName."),
        (r"no PriorityClass with name", "Create it, or correct runner.priorityClassName."),
        (
            r"violates PodSecurity",
            "Correct runner.securityContext and runner.volumes, or relax the namespace's standard.",
        ),
        (
            r"(secret|configmap) \".*\" not found",
            "Create it, or correct runner.env, runner.envFrom, runner.volumes or runner.imagePullSecrets.",
        ),
        (
            r"ErrImagePull|ImagePullBackOff",
            "See that runner.image exists and that runner.imagePullSecrets may pull it.",
        ),
        (r"FailedMount|FailedAttachVolume", _VOLUMES),
        (
            r"CreateContainerError|RunContainerError|FailedCreatePodSandBox",
            "See the container runtime and the device driver of the node.",
        ),
    )
)


def advice(reason: str, message: str) -> str:
    """Return what to do about a wait, as a sentence; empty where nothing is known to help."""
    said = f"{reason}: {message}"
    return next((what for pattern, what in _ADVICE if pattern.search(said)), "")


def advised(reason: str, message: str, length: int) -> str:
    """Return the message with what to do about it; where there is no room for both, the message alone, cut."""
    what = advice(reason, message)
    end = message if not message or message.endswith((".", "…")) else f"{message}."
    whole = f"{end} {what}"
    return shortened(message, length) if not what or what in message or len(whole) > length else whole
