"""A node leaves nothing behind, in whichever way it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from cluster.kubectl import run_kubectl
from cluster.observing import eventually
from cluster.real import NodeUnavailableError, RealNode, cleanup
from cluster.real.device_plugin import neuron
from cluster.real.images import BUSYBOX_IMAGE
from cluster.real.machine import run
from cluster.real.packages import find_or_unpack
from node_testing.traces import differences, traces

pytestmark = pytest.mark.node

CHECKPOINT = Path("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
TESTS = Path(__file__).parents[1]
STARTER = """
import sys, time
from cluster.real import RealNode
with RealNode() as node:
    print(node.control_plane.kubeconfig, flush=True)
    time.sleep(600)
"""
RUNNING = """
apiVersion: v1
kind: Pod
metadata: {{name: endless}}
spec:
  containers:
  - name: endless
    image: {image}
    command: [sleep, "10000"]
    volumeMounts: [{{name: memory, mountPath: /memory}}]
  volumes: [{{name: memory, emptyDir: {{medium: Memory}}}}]
"""


@pytest.fixture
def untouched() -> Iterator[None]:
    """Everything is as it was before, at the latest some seconds after the end of the test."""
    for top in cleanup.SHARED:
        # As on a machine that never had a node: one that has them already can't show that they are taken away.
        for folder, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):  # somebody has something in it
                Path(folder).rmdir()
    before = traces()
    yield
    eventually("nothing is left", lambda: differences(before, traces()), lambda found: not found, every=0.5, seconds=20)


def run_a_pod(kubeconfig: Path) -> None:
    """Have a container run, with a network, and with a file system of its own mounted."""
    run_kubectl(kubeconfig, "create", "--filename=-", stdin=RUNNING.format(image=BUSYBOX_IMAGE))
    run_kubectl(kubeconfig, "wait", "pod/endless", "--for=condition=Ready", "--timeout=60s")


@pytest.mark.usefixtures("untouched")
def test_a_node_that_is_stopped_leaves_nothing() -> None:
    """Containers that still run, mounts, control groups, links, addresses, tables, settings and files are gone."""
    before = traces()
    with RealNode() as node, neuron():
        run_a_pod(node.control_plane.kubeconfig)
        eventually("the kubelet has written down which devices there are", CHECKPOINT.exists)
        changed = differences(before, traces())
    kinds = {line[2:].partition(":")[0] for line in changed}
    assert kinds == set(before), "of each kind there was something to take away"


@pytest.mark.usefixtures("untouched")
def test_a_machine_that_is_a_node_already_is_left_alone() -> None:
    """Somebody else's kube-proxy has its tables under the same names: they stay, and the start is refused."""
    programs = find_or_unpack()
    run(programs, str(programs.nft), "add", "table", "ip", "kube-proxy")
    try:
        with pytest.raises(NodeUnavailableError, match="is a node of a cluster already"):
            RealNode().start()
        assert "table ip kube-proxy" in run(programs, str(programs.nft), "list", "tables")
    finally:
        run(programs, str(programs.nft), "delete", "table", "ip", "kube-proxy")


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("guard", ["guarded", "unguarded"])
def test_a_node_whose_starter_is_killed_leaves_nothing(guard: str) -> None:
    """The guard takes all away; where it is killed as well, the next start does."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True, env=env) as starter:
        assert starter.stdout is not None
        told = starter.stdout.readline().strip()
        assert told, "it started"
        run_a_pod(Path(told))
        if guard == "unguarded":
            (watching,) = (
                child for child in psutil.Process(starter.pid).children() if "cleanup.py" in " ".join(child.cmdline())
            )
            watching.kill()
        starter.send_signal(signal.SIGKILL)
    if guard == "unguarded":
        record = json.loads(Path("/run/inferbench-node/record.json").read_text())
        assert record["owner"] == starter.pid
        RealNode().start().stop()
