"""What to do about each wait, in the cluster's own words."""

from __future__ import annotations

import pytest

from inferbench_operator.core.advice import advice, advised

PREEMPTION = "preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling."


@pytest.mark.parametrize(
    ("reason", "message", "words"),
    [
        (
            "Unschedulable",
            (
                "0/4 nodes are available: 1 Insufficient aws.amazon.com/neuron, 1 node(s) didn't match Pod's node "
                f"affinity/selector, 2 node(s) had untolerated taint(s). {PREEMPTION}"
            ),
            "device plugin",
        ),
        (
            "Unschedulable",
            "0/4 nodes are available: 1 node(s) didn't match pod anti-affinity rules, 3 Insufficient nvidia.com/gpu.",
            "exclusiveNode",
        ),
        ("Unschedulable", "0/1 nodes are available: 1 Insufficient memory.", "runner.resources"),
        ("Unschedulable", "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory.", "runner.resources"),
        (
            "Unschedulable",
            (
                "0/4 nodes are available: 2 node(s) had untolerated taint(s), 2 node(s) didn't match Pod's node "
                "affinity/selector."
            ),
            "instanceTypes",
        ),
        ("Unschedulable", "0/1 nodes are available: 1 node(s) had untolerated taint(s).", "runner.tolerations"),
        ("Unschedulable", "0/1 nodes are available: 1 node(s) were unschedulable.", "Uncordon"),
        ("Unschedulable", "pod has unbound immediate PersistentVolumeClaims.", "runner.volumes"),
        ("Unschedulable", 'persistentvolumeclaim "models" not found', "runner.volumes"),
        ("QuotaExceeded", 'pods "a" is forbidden: exceeded quota: none, requested: pods=1', "maxParallelJobs"),
        ("PodRefused", 'error looking up service account x: serviceaccount "nobody" not found', "serviceAccountName"),
        ("PodRefused", "no PriorityClass with name later was found", "priorityClassName"),
        (
            "PodRefused",
            'violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false',
            "securityContext",
        ),
        ("CreateContainerConfigError", 'secret "hub" not found', "Create it"),
        ("ImagePullBackOff", 'Back-off pulling image "x": not found', "imagePullSecrets"),
        ("FailedMount", "Unable to attach or mount volumes", "runner.volumes"),
        ("CreateContainerError", "nvml error: driver not loaded", "device driver"),
    ],
)
def test_what_to_do(reason: str, message: str, words: str) -> None:
    """Of several causes it is about the one that is closest to being mended."""
    assert words in advice(reason, message)


def test_what_is_not_known_to_help_is_not_said() -> None:
    """No advice beats a wrong one."""
    assert advice("ContainerCreating", "") == ""
    assert advised("FailedSync", "something new", 100) == "something new"


def test_advice_follows_the_message_where_there_is_room() -> None:
    """Once; and never in the place of the cluster's own words."""
    said = advised("PodRefused", "no PriorityClass with name later was found", 200)
    assert said == "no PriorityClass with name later was found. Create it, or correct runner.priorityClassName."
    assert advised("PodRefused", said, 200) == said
    assert advised("PodRefused", "no PriorityClass with name later was found", 60).startswith("no PriorityClass")
    assert "Create" not in advised("PodRefused", "no PriorityClass with name later was found", 60)
    assert len(advised("PodRefused", "no PriorityClass with name " + "x" * 900, 200)) == 200
