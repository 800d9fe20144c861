"""The control plane itself: ends with its owner, collects garbage, and knows rights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cluster import ControlPlane, KubectlError
from cluster.kubectl import run_kubectl
from cluster.observing import eventually, job_manifest, only_pod, read

pytestmark = pytest.mark.e2e

STARTER = """
import sys, time
from cluster import ControlPlane
with ControlPlane() as control_plane:
    print(control_plane.folder, flush=True)
    time.sleep(600)
"""
TESTS = Path(__file__).parents[1]


def programs_in(folder: Path) -> list[int]:
    """Processes that name the folder in their command."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        command = process.info["cmdline"] or []
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(str(folder) in part for part in command):
            found.append(process.pid)
    return found


def test_nothing_outlives_a_starter_that_is_killed(tmp_path: Path) -> None:
    """After SIGKILL no component runs, and the next start removes the folder."""
    env = {**os.environ, "PYTHONPATH": str(TESTS), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True, env=env) as starter:
        assert starter.stdout is not None
        folder = Path(starter.stdout.readline().strip())
        assert len(programs_in(folder)) >= 4
        starter.send_signal(signal.SIGKILL)
    eventually("no component runs", lambda: programs_in(folder), holds=lambda pids: not pids)
    assert folder.is_dir()
    again = "from cluster.workspace import Workspace; Workspace.create().remove()"
    subprocess.run([sys.executable, "-c", again], env=env, check=True)
    assert list(tmp_path.iterdir()) == []


def test_an_owners_deletion_takes_its_children_along(control_plane: ControlPlane, namespace: str) -> None:
    """The garbage collector deletes the Job, and with it the pod, of a deleted owner."""
    control_plane.kubectl("create", "configmap", "owner", f"--namespace={namespace}")
    uid = read(control_plane, namespace, "configmap", "owner")["metadata"]["uid"]
    job = json.loads(job_manifest("work", ["true"]))
    job["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}]
    control_plane.kubectl("create", f"--namespace={namespace}", "--filename=-", stdin=json.dumps(job))
    only_pod(control_plane, namespace)
    control_plane.kubectl("delete", "configmap", "owner", f"--namespace={namespace}")
    for kind in ("jobs", "pods"):
        eventually(f"the {kind} are gone", lambda kind=kind: not read(control_plane, namespace, kind)["items"])


def test_a_service_account_can_do_what_its_role_allows(control_plane: ControlPlane, namespace: str) -> None:
    """Its kubeconfig lists pods, which its role allows, and no secrets."""
    within = f"--namespace={namespace}"
    control_plane.kubectl("create", "serviceaccount", "reader", within)
    control_plane.kubectl("create", "role", "reader", "--verb=list", "--resource=pods", within)
    account = f"--serviceaccount={namespace}:reader"
    control_plane.kubectl("create", "rolebinding", "reader", "--role=reader", account, within)
    kubeconfig = control_plane.kubeconfig_for(f"{namespace}/reader")
    assert json.loads(run_kubectl(kubeconfig, "get", "pods", "--output=json"))["items"] == []
    with pytest.raises(KubectlError, match='cannot list resource "secrets"'):
        run_kubectl(kubeconfig, "get", "secrets")


def test_data_outlives_a_restart_of_etcd(control_plane: ControlPlane, namespace: str) -> None:
    """A component can be restarted without loss."""
    control_plane.kubectl("create", "configmap", "kept", f"--namespace={namespace}")
    control_plane.restart("etcd")
    eventually("the object can be read again", lambda: exists(control_plane, namespace, "kept"))


def exists(control_plane: ControlPlane, namespace: str, name: str) -> bool:
    """Whether the ConfigMap can be read."""
    try:
        read(control_plane, namespace, "configmap", name)
    except KubectlError:
        return False
    return True
