"""Pods on a local node: their processes, logs, messages and ends."""

from __future__ import annotations

import subprocess

import psutil
import pytest

from cluster import ControlPlane, KubectlError, NodeAgent, cpu_node
from cluster.kubectl import find_kubectl
from cluster.observing import eventually, job_manifest, pod_when, read

pytestmark = pytest.mark.e2e

REPORTING = """
import os, pathlib, sys, time
print("first line", flush=True)
time.sleep(float(sys.argv[1]))
print("last line", flush=True)
pathlib.Path(os.environ["INFERBENCH_TERMINATION_MESSAGE_PATH"]).write_text("all is measured")
"""
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def node(agent: NodeAgent) -> None:
    """A local node."""
    agent.add_node(cpu_node("here"))


def logs(control_plane: ControlPlane, namespace: str, *options: str) -> str:
    """What `kubectl logs` prints for the Job."""
    return control_plane.kubectl("logs", "job/work", f"--namespace={namespace}", *options)


def start(control_plane: ControlPlane, namespace: str, manifest: str) -> None:
    """Create the object."""
    control_plane.kubectl("create", f"--namespace={namespace}", "--filename=-", stdin=manifest)


def is_running(pod: dict[str, dict[str, object]]) -> bool:
    """Whether the pod runs."""
    return pod["status"]["phase"] == "Running"


def ended(control_plane: ControlPlane, namespace: str) -> dict[str, object]:
    """State of the pod's container when it has ended."""
    pod = pod_when(
        control_plane, namespace, "the pod ends", lambda pod: pod["status"]["phase"] in {"Succeeded", "Failed"}
    )
    state: dict[str, object] = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    return state


def test_a_job_completes_and_its_message_and_logs_arrive(control_plane: ControlPlane, namespace: str) -> None:
    """The Job controller counts the pod, the status has the message, and kubectl logs shows the output."""
    start(control_plane, namespace, job_manifest("work", ["python", "-c", REPORTING, "0"]))
    control_plane.kubectl("wait", "job/work", f"--namespace={namespace}", "--for=condition=Complete", "--timeout=60s")
    state = ended(control_plane, namespace)
    assert (state["exitCode"], state["reason"], state["message"]) == (0, "Completed", "all is measured")
    assert logs(control_plane, namespace) == "first line\nlast line\n"
    assert logs(control_plane, namespace, "--tail=1") == "last line\n"
    assert logs(control_plane, namespace, "--limit-bytes=5") == "first"


def test_logs_are_followed_to_their_end(control_plane: ControlPlane, namespace: str) -> None:
    """`kubectl logs -f` gets a line while the pod runs, and ends with the container."""
    start(control_plane, namespace, job_manifest("work", ["python", "-c", REPORTING, "2"]))
    pod = pod_when(control_plane, namespace, "the pod runs", is_running)
    command = [find_kubectl(), f"--kubeconfig={control_plane.kubeconfig}", f"--namespace={namespace}", "logs", "-f"]
    with subprocess.Popen([*command, pod["metadata"]["name"]], stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "first line\n"
        assert follower.communicate()[0] == "last line\n"


def test_a_failure_shows_its_log_where_the_policy_says_so(control_plane: ControlPlane, namespace: str) -> None:
    """FallbackToLogsOnError makes the message from the log of a container that failed without one."""
    policy = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    command = ["sh", "-c", "echo no device; exit 3"]
    start(control_plane, namespace, job_manifest("work", command, container=policy))
    state = ended(control_plane, namespace)
    assert (state["exitCode"], state["reason"], state["message"]) == (3, "Error", "no device\n")


def test_an_unknown_program_is_a_start_error(control_plane: ControlPlane, namespace: str) -> None:
    """As with a container runtime, the exit code is 128 and the message names the program."""
    start(control_plane, namespace, job_manifest("work", ["no-such-program"]))
    state = ended(control_plane, namespace)
    assert (state["exitCode"], state["reason"]) == (128, "StartError")
    assert '"no-such-program": executable file not found' in str(state["message"])


def test_a_container_without_a_command_runs_the_entry_point(control_plane: ControlPlane, namespace: str) -> None:
    """The agent's setting stands for what the image would start."""
    start(control_plane, namespace, job_manifest("work"))
    assert ended(control_plane, namespace)["exitCode"] == 0
    assert logs(control_plane, namespace) == "the entry point\n"


def test_configuration_comes_from_objects_as_soon_as_they_exist(control_plane: ControlPlane, namespace: str) -> None:
    """The container waits, with the reason, for a ConfigMap that is missing, and starts when it comes."""
    source = {"configMapKeyRef": {"name": "settings", "key": "greeting"}}
    env = [{"name": "GREETING", "valueFrom": source}, {"name": "LINE", "value": "$(GREETING), $(UNKNOWN)"}]
    start(control_plane, namespace, job_manifest("work", ["sh", "-c", 'echo "$LINE"'], container={"env": env}))
    waiting = {"reason": "CreateContainerConfigError", "message": 'configmap "settings" not found'}
    pod_when(
        control_plane,
        namespace,
        "the container waits for its configuration",
        lambda pod: pod["status"].get("containerStatuses", [{}])[0].get("state") == {"waiting": waiting},
    )
    with pytest.raises(KubectlError, match="waiting to start: CreateContainerConfigError"):
        logs(control_plane, namespace)
    control_plane.kubectl(
        "create", "configmap", "settings", f"--namespace={namespace}", "--from-literal=greeting=good day"
    )
    assert ended(control_plane, namespace)["exitCode"] == 0
    assert logs(control_plane, namespace) == "good day, $(UNKNOWN)\n"


def test_paths_below_an_empty_dir_are_the_pods_own(control_plane: ControlPlane, namespace: str) -> None:
    """A path under the mount path of an emptyDir leads into the pod's folder."""
    manifest = job_manifest(
        "work",
        ["sh", "-c", 'echo kept > "$1/note" && cat "$NOTE"', "sh", "/no/such/place"],
        container={
            "env": [{"name": "NOTE", "value": "/no/such/place/note"}],
            "volumeMounts": [{"name": "cache", "mountPath": "/no/such/place"}],
        },
        pod={"volumes": [{"name": "cache", "emptyDir": {}}]},
    )
    start(control_plane, namespace, manifest)
    assert ended(control_plane, namespace)["exitCode"] == 0
    assert logs(control_plane, namespace) == "kept\n"


def test_deletion_terminates_and_then_kills_the_whole_group(control_plane: ControlPlane, namespace: str) -> None:
    """A pod that ignores SIGTERM is killed after its grace, with its children, and its object goes."""
    manifest = job_manifest("work", ["python", "-c", STUBBORN], pod={"terminationGracePeriodSeconds": 1})
    start(control_plane, namespace, manifest)
    child = psutil.Process(int(eventually("the child's pid is logged", lambda: running_log(control_plane, namespace))))
    control_plane.kubectl("delete", "job", "work", f"--namespace={namespace}", "--wait=false")
    eventually("the pod is gone", lambda: not read(control_plane, namespace, "pods")["items"])
    eventually("the child is gone", lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def running_log(control_plane: ControlPlane, namespace: str) -> str:
    """The log, or nothing while there is none."""
    try:
        return logs(control_plane, namespace)
    except KubectlError:
        return ""


def test_a_killed_container_has_exit_code_137(control_plane: ControlPlane, namespace: str, agent: NodeAgent) -> None:
    """SIGKILL from outside fails the pod as on a node."""
    start(control_plane, namespace, job_manifest("work", ["sleep", "600"]))
    pod = pod_when(control_plane, namespace, "the pod runs", is_running)
    agent.kill_container(namespace, pod["metadata"]["name"])
    assert ended(control_plane, namespace)["exitCode"] == 137
    control_plane.kubectl("wait", "job/work", f"--namespace={namespace}", "--for=condition=Failed", "--timeout=60s")


def test_a_pods_own_deadline_fails_it(control_plane: ControlPlane, namespace: str) -> None:
    """spec.activeDeadlineSeconds of the pod is the node's to enforce."""
    start(control_plane, namespace, job_manifest("work", ["sleep", "600"], pod={"activeDeadlineSeconds": 1}))
    assert ended(control_plane, namespace)["exitCode"] == 143
    status = read(control_plane, namespace, "pods")["items"][0]["status"]
    assert status["reason"] == "DeadlineExceeded"


def test_pods_go_on_through_a_restart_of_the_api_server(control_plane: ControlPlane, namespace: str) -> None:
    """The agent writes the status of what ended while the API server was away, and sees new pods after it."""
    start(control_plane, namespace, job_manifest("work", ["python", "-c", REPORTING, "1"]))
    pod_when(control_plane, namespace, "the pod runs", is_running)
    control_plane.restart("kube-apiserver")
    assert ended(control_plane, namespace)["message"] == "all is measured"
    control_plane.kubectl("delete", "job", "work", f"--namespace={namespace}")
    eventually("the pod is gone", lambda: not read(control_plane, namespace, "pods")["items"])
    start(control_plane, namespace, job_manifest("work", ["true"]))
    assert ended(control_plane, namespace)["exitCode"] == 0
