"""Pods on simulated nodes: the scheduler's words, and scripted outcomes as a kubelet would report them."""

from __future__ import annotations

from typing import Any

import pytest

from cluster import (
    ControlPlane,
    Exits,
    Interrupted,
    NodeAgent,
    Outcome,
    Stuck,
    create_container_failure,
    eviction,
    image_pull_failure,
    in_turn,
    instance_node,
    killed,
    never_starts,
    oom_killed,
)
from cluster.observing import eventually, job_manifest, only_pod, pod_when, read
from cluster.outcomes import invalid_image_name, unhealthy_device
from inferbench_runner.contract import AcceleratorKind, CompactReport, Device, ModelRef, Plan, Shape

pytestmark = pytest.mark.e2e

NEURON = "aws.amazon.com/neuron"
PLAN = Plan(
    model=ModelRef(id="example/model"),
    device=Device(kind=AcceleratorKind.NEURON, cores=1),
    shapes=(Shape(cell="0123456789", sequence_length=8), Shape(cell="abcdef0123", sequence_length=512)),
)


def start(control_plane: ControlPlane, namespace: str, name: str = "work", plan: Plan | None = None) -> None:
    """Create a Job that asks for one Neuron device."""
    env = [{"name": "INFERBENCH_PLAN", "value": plan.model_dump_json()}] if plan else []
    manifest = job_manifest(name, device=NEURON, container={"env": env})
    control_plane.kubectl("create", f"--namespace={namespace}", "--filename=-", stdin=manifest)


def container_state(pod: dict[str, Any]) -> dict[str, Any]:
    """The container's state; empty while there is none."""
    statuses = pod["status"].get("containerStatuses") or [{}]
    state: dict[str, Any] = statuses[0].get("state", {})
    return state


def has_ended(pod: dict[str, Any]) -> bool:
    """Whether the pod is in its last phase."""
    return pod["status"]["phase"] in {"Succeeded", "Failed"}


@pytest.fixture(autouse=True)
def node(agent: NodeAgent) -> None:
    """One inf2.xlarge, with one Neuron device."""
    agent.add_node(instance_node("inf2", "inf2.xlarge"))


def test_a_node_looks_like_its_instance_type(control_plane: ControlPlane) -> None:
    """Capacity, labels and taint are those by which the operator and the scheduler choose."""
    node = read(control_plane, "default", "node", "inf2")
    assert node["status"]["allocatable"][NEURON] == "1"
    assert node["metadata"]["labels"]["node.kubernetes.io/instance-type"] == "inf2.xlarge"
    assert node["spec"]["taints"] == [{"key": NEURON, "effect": "NoSchedule"}]


def test_a_pod_succeeds_with_figures_for_its_plan(control_plane: ControlPlane, namespace: str) -> None:
    """Without a script the termination message is a report on all shapes."""
    start(control_plane, namespace, plan=PLAN)
    pod = pod_when(control_plane, namespace, "the pod ends", has_ended)
    report = CompactReport.model_validate_json(container_state(pod)["terminated"]["message"])
    assert [measured.cell for measured in report.measured] == [shape.cell for shape in PLAN.shapes]
    control_plane.kubectl("wait", "job/work", f"--namespace={namespace}", "--for=condition=Complete", "--timeout=60s")


def test_a_pod_too_many_is_told_what_is_missing(control_plane: ControlPlane, namespace: str, agent: NodeAgent) -> None:
    """The real scheduler names the extended resource in the pod's condition."""
    agent.script(Exits(run_seconds=600))
    start(control_plane, namespace, "first")
    pod_when(control_plane, namespace, "the first pod runs", lambda pod: "running" in container_state(pod))
    start(control_plane, namespace, "second")

    def messages() -> list[str]:
        pods = read(control_plane, namespace, "pods")["items"]
        conditions = [condition for pod in pods for condition in pod["status"].get("conditions", [])]
        return [condition["message"] for condition in conditions if condition.get("reason") == "Unschedulable"]

    (message,) = eventually("the scheduler gives up on the second pod", messages)
    assert "0/1 nodes are available: 1 Insufficient aws.amazon.com/neuron." in message


ENDS: dict[str, tuple[Outcome, dict[str, Any]]] = {
    "out of memory": (oom_killed(message="so far"), {"exitCode": 137, "reason": "OOMKilled", "message": "so far"}),
    "killed": (killed(), {"exitCode": 137, "reason": "Error"}),
    "failed": (Exits(exit_code=2, message="why"), {"exitCode": 2, "reason": "Error", "message": "why"}),
    "evicted": (eviction(), {"exitCode": 137, "reason": "Error"}),
    "too long a message": (Exits(message="a" + "b" * 4096), {"exitCode": 0, "message": "b" * 4096}),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_scripted_end_is_reported(case: str, control_plane: ControlPlane, namespace: str, agent: NodeAgent) -> None:
    """The terminated state is the scripted one, and an eviction marks the pod as disrupted."""
    outcome, expected = ENDS[case]
    agent.script(outcome)
    start(control_plane, namespace)
    pod = pod_when(control_plane, namespace, "the pod ends", has_ended)
    assert expected.items() <= container_state(pod)["terminated"].items()
    disrupted = [item for item in pod["status"]["conditions"] if item["type"] == "DisruptionTarget"]
    assert bool(disrupted) == (pod["status"].get("reason") == "Evicted") == isinstance(outcome, Interrupted)


STAYS: dict[str, tuple[Stuck, str, str]] = {
    "image": (image_pull_failure(), "ImagePullBackOff", 'Back-off pulling image "example.test/runner:1"'),
    "container": (create_container_failure("name is reserved"), "CreateContainerError", "name is reserved"),
    "image name": (invalid_image_name(), "InvalidImageName", "Failed to apply default image tag"),
    "nothing": (never_starts(), "ContainerCreating", ""),
}


@pytest.mark.parametrize("case", STAYS)
def test_a_container_that_never_starts_says_why(
    case: str, control_plane: ControlPlane, namespace: str, agent: NodeAgent
) -> None:
    """The pod stays Pending with the kubelet's reason, and can be deleted."""
    outcome, reason, message = STAYS[case]
    agent.script(outcome)
    start(control_plane, namespace)

    def waits(pod: dict[str, Any]) -> bool:
        waiting = container_state(pod).get("waiting", {})
        return waiting.get("reason") == reason and waiting.get("message", "").startswith(message)

    pod = pod_when(control_plane, namespace, f"the container waits for {reason}", waits)
    assert pod["status"]["phase"] == "Pending"
    control_plane.kubectl("delete", "job", "work", f"--namespace={namespace}")
    eventually("the pod is gone", lambda: not read(control_plane, namespace, "pods")["items"])


def test_a_container_waits_for_its_secret(control_plane: ControlPlane, namespace: str) -> None:
    """The kubelet says what is missing, and starts the container once it is there."""
    token = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    manifest = job_manifest("work", device=NEURON, container={"env": [token]})
    control_plane.kubectl("create", f"--namespace={namespace}", "--filename=-", stdin=manifest)
    waiting = {"reason": "CreateContainerConfigError", "message": 'secret "hub" not found'}
    pod_when(
        control_plane, namespace, "the secret is missed", lambda pod: container_state(pod).get("waiting") == waiting
    )
    control_plane.kubectl("create", "secret", "generic", "hub", "--from-literal=token=x", f"--namespace={namespace}")
    pod_when(control_plane, namespace, "the pod ends", has_ended)


def test_a_pod_can_be_rejected(control_plane: ControlPlane, namespace: str, agent: NodeAgent) -> None:
    """Nothing is known of its containers, as they were never made."""
    agent.script(unhealthy_device(NEURON))
    start(control_plane, namespace)
    status = pod_when(control_plane, namespace, "the pod ends", has_ended)["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "UnexpectedAdmissionError")
    assert "cannot allocate unhealthy devices" in status["message"]
    assert "containerStatuses" not in status


def test_a_node_can_fall_silent(control_plane: ControlPlane, namespace: str, agent: NodeAgent) -> None:
    """Its pods stay as they were last seen, and so does its object; nobody confirms that a pod has ended."""
    agent.script(Exits(run_seconds=600))
    start(control_plane, namespace)
    pod_when(control_plane, namespace, "the pod runs", lambda pod: "running" in container_state(pod))
    agent.silence_node("inf2")
    control_plane.kubectl("delete", "job", "work", f"--namespace={namespace}")
    pod = pod_when(control_plane, namespace, "the pod is to go", lambda pod: "deletionTimestamp" in pod["metadata"])
    assert "running" in container_state(pod)
    control_plane.kubectl("delete", "node", "inf2")


def test_outcomes_can_differ_from_pod_to_pod(control_plane: ControlPlane, namespace: str, agent: NodeAgent) -> None:
    """`in_turn` fails the first pod only."""
    agent.script(in_turn(Exits(exit_code=1)))
    start(control_plane, namespace, "first")
    assert pod_when(control_plane, namespace, "the first pod ends", has_ended)["status"]["phase"] == "Failed"
    control_plane.kubectl("delete", "job", "first", f"--namespace={namespace}")
    eventually("the pod is gone", lambda: not read(control_plane, namespace, "pods")["items"])
    start(control_plane, namespace, "second")
    assert pod_when(control_plane, namespace, "the second pod ends", has_ended)["status"]["phase"] == "Succeeded"


def test_a_running_pod_can_be_evicted(control_plane: ControlPlane, namespace: str, agent: NodeAgent) -> None:
    """A test can evict a pod at a moment of its choice."""
    agent.script(Exits(run_seconds=600, stopped_message="half"))
    start(control_plane, namespace)
    pod = pod_when(control_plane, namespace, "the pod runs", lambda pod: "running" in container_state(pod))
    agent.evict(namespace, pod["metadata"]["name"])
    pod = pod_when(control_plane, namespace, "the pod ends", has_ended)
    assert (pod["status"]["reason"], container_state(pod)["terminated"]["message"]) == ("Evicted", "half")


def test_logs_are_the_scripted_ones(control_plane: ControlPlane, namespace: str, agent: NodeAgent) -> None:
    """Kubectl logs works for simulated pods too."""
    agent.script(Exits(log=lambda pod: f"I am {pod.labels['job-name']}\n"))
    start(control_plane, namespace)
    pod_when(control_plane, namespace, "the pod ends", has_ended)
    assert control_plane.kubectl("logs", "job/work", f"--namespace={namespace}") == "I am work\n"


def test_a_new_agent_finds_the_containers_of_a_dead_one_lost(
    control_plane: ControlPlane, namespace: str, agent: NodeAgent
) -> None:
    """What ran under an agent that is gone has failed, as after a node's reboot."""
    agent.script(Exits(run_seconds=600))
    start(control_plane, namespace)
    pod_when(control_plane, namespace, "the pod runs", lambda pod: "running" in container_state(pod))
    agent.stop()
    with NodeAgent(control_plane) as successor:
        successor.add_node(instance_node("inf2", "inf2.xlarge"))
        pod = pod_when(control_plane, namespace, "the pod is found lost", has_ended)
        assert container_state(pod)["terminated"]["reason"] == "Unknown"
        assert only_pod(control_plane, namespace)["status"]["phase"] == "Failed"
        successor.remove_node("inf2")
