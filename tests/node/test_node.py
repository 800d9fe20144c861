"""The node itself: it runs pods as a kubelet does, survives faults of its parts, and is the only one."""

from __future__ import annotations

import json

import pytest

from cluster.observing import eventually, job_manifest, pod_when, read
from cluster.pods import Json
from cluster.real import NodeUnavailableError, RealNode
from cluster.real.images import BUSYBOX_IMAGE
from cluster.real.node import CONTAINERD, KUBELET

pytestmark = pytest.mark.node

SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def run(node: RealNode, namespace: str, script: str, **container: object) -> None:
    """Start a Job of one restricted pod that runs a shell script."""
    manifest = job_manifest(
        "work",
        ["sh", "-c", script],
        container={"image": BUSYBOX_IMAGE, "securityContext": SECURITY} | container,
        pod={"automountServiceAccountToken": False},
    )
    node.control_plane.kubectl("create", f"--namespace={namespace}", "--filename=-", stdin=manifest)


def finished(node: RealNode, namespace: str) -> Json:
    """Wait for the end of the pod and return the state of its container."""

    def is_over(pod: Json) -> bool:
        return pod["status"]["phase"] in {"Succeeded", "Failed"}

    pod = pod_when(node.control_plane, namespace, "the pod has ended", is_over)
    state: Json = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    return state


def running(node: RealNode, namespace: str) -> Json:
    """Wait until the pod runs and return it."""
    return pod_when(node.control_plane, namespace, "the pod runs", lambda pod: pod["status"]["phase"] == "Running")


def test_a_restricted_job_runs_in_a_container(node: RealNode, restricted: str) -> None:
    """Its user, capabilities, root folder and network are those of a container, and its last words arrive."""
    run(
        node,
        restricted,
        # In one stream: two of them may be mixed in any order.
        "exec 2>&1; id -u; grep CapEff /proc/self/status; touch /file; ls -d /var/run/secrets;"
        " nc -w 5 $KUBERNETES_SERVICE_HOST 443 </dev/null && echo reached; echo done >/dev/termination-log",
    )

    state = finished(node, restricted)

    assert (state["reason"], state["exitCode"], state["message"]) == ("Completed", 0, "done\n")
    log = node.control_plane.kubectl("logs", f"--namespace={restricted}", "job/work")
    assert log.splitlines() == [
        "10001",
        "CapEff:\t0000000000000000",
        "touch: /file: Read-only file system",
        "ls: /var/run/secrets: No such file or directory",
        "reached",
    ]


def test_a_pod_that_is_not_restricted_is_refused(node: RealNode, restricted: str) -> None:
    """The namespace's label is in force: the Job gets no pod, and an Event says why."""
    run(node, restricted, "true", securityContext={})

    def told(events: list[Json]) -> bool:
        return any("violates PodSecurity" in event["message"] for event in events)

    eventually("the refusal is told", lambda: read(node.control_plane, restricted, "events")["items"], told)
    assert read(node.control_plane, restricted, "pods")["items"] == []


def test_a_container_over_its_memory_limit_is_killed_by_the_kernel(node: RealNode, restricted: str) -> None:
    """The control group of the container has the limit, and the kubelet says OOMKilled."""
    limit = {"memory": "32Mi"}
    run(node, restricted, "exec dd if=/dev/zero of=/dev/null bs=256M", resources={"limits": limit, "requests": limit})

    state = finished(node, restricted)

    assert (state["reason"], state["exitCode"]) == ("OOMKilled", 137)


@pytest.mark.parametrize("part", [KUBELET, CONTAINERD])
def test_a_pod_survives_the_death_of_a_part_of_its_node(node: RealNode, restricted: str, part: str) -> None:
    """A container goes on without kubelet or containerd, and its last words arrive once it is back."""
    run(node, restricted, "sleep 5; echo survived >/dev/termination-log")
    uid = running(node, restricted)["metadata"]["uid"]

    node.kill_part(part)
    node.start_part(part)

    assert finished(node, restricted)["message"] == "survived\n"
    assert [pod["metadata"]["uid"] for pod in read(node.control_plane, restricted, "pods")["items"]] == [uid]


def test_a_reboot_ends_all_containers(node: RealNode, restricted: str) -> None:
    """The pod of a Job fails, and the node runs new ones."""
    run(node, restricted, "sleep 1000")
    running(node, restricted)

    node.reboot()

    state = finished(node, restricted)
    assert state["exitCode"] != 0, json.dumps(state)
    node.control_plane.kubectl("delete", "job", "work", f"--namespace={restricted}")
    run(node, restricted, "echo again >/dev/termination-log")
    assert finished(node, restricted)["message"] == "again\n"


@pytest.mark.usefixtures("node")
def test_a_machine_has_one_node_at_a_time() -> None:
    """A second one is refused, and the first goes on."""
    with pytest.raises(NodeUnavailableError, match="has a real node already"):
        RealNode().start()
