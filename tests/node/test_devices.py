"""Devices on a real node: a resource to the scheduler, a variable and a file to the one pod that has the device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from cluster.observing import eventually, read
from cluster.operator_process import ROLES, SERVICE_ACCOUNT, OperatorProcess
from cluster.pods import Json
from cluster.real import RealNode, images, packages
from cluster.real import node as parts
from cluster.real.device_plugin import NEURON, NVIDIA, FakeDevicePlugin, neuron, nvidia
from e2e_harness import Harness, benchmark

pytestmark = pytest.mark.node

INSUFFICIENT = f"0/1 nodes are available: 1 Insufficient {NEURON}."
UNHEALTHY = f"no healthy devices present; cannot allocate unhealthy devices {NEURON}"

SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}
# Tells what it was given, after it has written to the device.
TELL = 'for file in /dev/neuron*; do echo >$file && told="$told $file"; done; echo "$AWS_NEURON_VISIBLE_DEVICES:$told"'
SLEEP = "trap exit TERM; while true; do sleep 0.1; done"

# Stands for Python with the runner in it: it uses the device, waits where there is a gate until that is open, and has
# the same figures for each cell.
RUNNER = r"""#!/bin/sh
echo "devices: $AWS_NEURON_VISIBLE_DEVICES"
echo >/dev/neuron0 || exit 1
while [ -d /gate ] && [ ! -e /gate/open ]; do sleep 0.1; done
for cell in $(echo "$INFERBENCH_PLAN" | busybox grep -o '"cell":"[0-9a-f]*"' | busybox cut -d '"' -f 4); do
  figures="\"samples\":1000,\"meanMicroseconds\":900,\"p50Microseconds\":900,\"p90Microseconds\":1000"
  figures="$figures,\"p95Microseconds\":1100,\"p95LowMicroseconds\":1050,\"p95HighMicroseconds\":1150"
  figures="$figures,\"p99Microseconds\":1200,\"maxMicroseconds\":1300,\"inferencesPerSecond\":\"1111.1\""
  measured="$measured${measured:+,}{\"cell\":\"$cell\",$figures,\"verdict\":\"Valid\"}"
done
echo "{\"version\":2,\"measured\":[$measured]}" >/dev/termination-log
"""


@pytest.fixture(scope="module")
def only_plugin(node: RealNode) -> Iterator[FakeDevicePlugin]:  # noqa: ARG001 - which is to outlive it
    """The node's plugin, with one Neuron device."""
    with neuron() as plugin:
        yield plugin


@pytest.fixture
def plugin(node: RealNode, only_plugin: FakeDevicePlugin) -> Iterator[FakeDevicePlugin]:
    """The same, with its device healthy."""
    wait_for_devices(node, NEURON, "1")
    yield only_plugin
    only_plugin.set_health(0, healthy=True)


@pytest.fixture
def namespace(node: RealNode) -> Iterator[str]:
    """A new namespace, of which no pod holds a device in the end."""
    name = node.control_plane.create_namespace(f"test-{uuid4().hex[:8]}")
    yield name
    for kind in ("ib", "pods"):
        node.control_plane.kubectl("delete", kind, "--all", f"--namespace={name}", "--wait=true")


@pytest.fixture(scope="module")
def operator_kubeconfig(node: RealNode) -> Path:
    """Kubeconfig of the operator's service account, with the roles that it has in production."""
    node.control_plane.kubectl("apply", f"--filename={ROLES}")
    node.control_plane.wait_for_service_account(*SERVICE_ACCOUNT.split("/"))
    return node.control_plane.kubeconfig_for(SERVICE_ACCOUNT)


@pytest.fixture(scope="module")
def runner_image(node: RealNode, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image that stands for the runner's; its name."""
    folder = tmp_path_factory.mktemp("runner-image")
    script = folder / "python"
    script.write_text(RUNNER)
    script.chmod(0o755)
    with images.LayerWriter(folder / "runner.tar") as writer:
        writer.add(script, "/bin/python")
        layer = writer.done()
    busybox = next(
        image for image in images.small_images(packages.find_or_unpack(), folder) if image.name == images.BUSYBOX_IMAGE
    )
    layers, name = [*busybox.layers, layer], "inferbench.test/runner-double:1"
    node.load_images([images.Image(name, layers, environment=busybox.environment, user="65532")], folder)
    return name


@pytest.fixture
def harness(node: RealNode, namespace: str, operator_kubeconfig: Path, tmp_path: Path) -> Iterator[Harness]:
    """The operator beside the node."""
    agent: Any = None  # the pods are the kubelet's
    with OperatorProcess(operator_kubeconfig, tmp_path / "operator.log") as operator:
        yield Harness(node.control_plane, agent, operator, namespace)
    assert "Traceback" not in operator.log.read_text(), operator.log.read_text()


def wait_for_devices(node: RealNode, resource: str, allocatable: str) -> Json:
    """Wait until the node offers so many devices, and return its status."""

    def offers(found: Json) -> bool:
        return bool(found["allocatable"].get(resource) == allocatable)

    def look() -> Json:
        status: Json = json.loads(node.control_plane.kubectl("get", "node", parts.NAME, "--output=json"))["status"]
        return status

    return eventually(f"the node offers {allocatable} {resource}", look, offers)


def start(node: RealNode, namespace: str, name: str, script: str, devices: Json | None = None, **spec: object) -> None:
    """Start a restricted pod that asks for devices, or for one Neuron device, and runs a shell script."""
    container = {
        "name": "main",
        "image": images.BUSYBOX_IMAGE,
        "command": ["sh", "-c", script],
        "securityContext": SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"limits": devices or {NEURON: "1"}},
    }
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "containers": [container], **spec},
    }
    node.control_plane.kubectl("create", f"--namespace={namespace}", "--filename=-", stdin=json.dumps(manifest))


def pod_in(node: RealNode, namespace: str, name: str, phase: str) -> Json:
    """Wait until the pod is in the phase, and return its status."""

    def look() -> Json:
        status: Json = read(node.control_plane, namespace, "pod", name)["status"]
        return status

    ends = {phase, "Failed", "Succeeded"}
    status = eventually(f"the pod {name} is {phase}", look, lambda status: status["phase"] in ends)
    assert status["phase"] == phase, status
    return status


def waits_for_a_device(node: RealNode, namespace: str, name: str) -> None:
    """Wait until the scheduler says that there is no device for the pod."""

    def told() -> list[str]:
        status: Json = read(node.control_plane, namespace, "pod", name)["status"]
        return [found.get("message", "") for found in status.get("conditions", []) if found["type"] == "PodScheduled"]

    eventually("the scheduler misses a device", told, lambda words: any(INSUFFICIENT in word for word in words))


def test_a_pod_gets_the_variable_and_the_file(node: RealNode, namespace: str, plugin: FakeDevicePlugin) -> None:
    """Without rights or capabilities of its own it may write to the device, and the plugin knows what it has given."""
    given = len(plugin.allocations)

    start(node, namespace, "one", f"({TELL}) >/dev/termination-log")

    state = pod_in(node, namespace, "one", "Succeeded")["containerStatuses"][0]["state"]["terminated"]
    assert state["message"] == "0: /dev/neuron0\n"
    assert plugin.allocations[given:] == [("neuron0",)]


def test_gpus_are_given_by_their_uuids(node: RealNode, namespace: str) -> None:
    """A pod that asks for two of three gets both, and the lowest."""
    uuids = [f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in range(2)]
    tell = 'echo "$NVIDIA_VISIBLE_DEVICES" /dev/nvidia* >/dev/termination-log'
    with nvidia(3):
        wait_for_devices(node, NVIDIA, "3")
        start(node, namespace, "two", tell, {NVIDIA: "2"})
        state = pod_in(node, namespace, "two", "Succeeded")["containerStatuses"][0]["state"]["terminated"]
    assert state["message"] == f"{','.join(uuids)} /dev/nvidia0 /dev/nvidia1\n"


@pytest.mark.usefixtures("plugin")
def test_a_second_pod_waits_for_the_only_device(node: RealNode, namespace: str) -> None:
    """It says so in the scheduler's words, and runs when the first one has ended."""
    start(node, namespace, "first", SLEEP)
    pod_in(node, namespace, "first", "Running")

    start(node, namespace, "second", "true")

    waits_for_a_device(node, namespace, "second")
    node.control_plane.kubectl("delete", "pod", "first", f"--namespace={namespace}")
    pod_in(node, namespace, "second", "Succeeded")


def test_a_device_that_turns_unhealthy_is_no_longer_offered(
    node: RealNode, namespace: str, plugin: FakeDevicePlugin
) -> None:
    """The scheduler sends no pod, and the kubelet refuses one that comes all the same, until it is well again."""
    plugin.set_health(0, healthy=False)

    status = wait_for_devices(node, NEURON, "0")
    assert status["capacity"][NEURON] == "1"
    start(node, namespace, "sent", "true", nodeName=parts.NAME)
    refused = pod_in(node, namespace, "sent", "Failed")
    assert refused["reason"] == "UnexpectedAdmissionError"
    assert refused["message"] == f"Pod was rejected: Allocate failed due to {UNHEALTHY}, which is unexpected"
    start(node, namespace, "waiting", "true")
    waits_for_a_device(node, namespace, "waiting")

    plugin.set_health(0, healthy=True)
    pod_in(node, namespace, "waiting", "Succeeded")


def test_a_pod_goes_on_when_its_device_turns_unhealthy(
    node: RealNode, namespace: str, plugin: FakeDevicePlugin
) -> None:
    """The kubelet does not end it, but says of its device what the plugin says."""
    start(node, namespace, "one", SLEEP)
    pod_in(node, namespace, "one", "Running")

    plugin.set_health(0, healthy=False)

    def told() -> Json:
        container: Json = pod_in(node, namespace, "one", "Running")["containerStatuses"][0]
        device: Json = container["allocatedResourcesStatus"][0]["resources"][0]
        return device

    eventually("it is told", told, lambda device: device == {"resourceID": "neuron0", "health": "Unhealthy"})


def test_a_plugin_is_back_after_a_restart_of_the_kubelet(
    node: RealNode, namespace: str, plugin: FakeDevicePlugin
) -> None:
    """The pod that has the device goes on with it, and nobody else gets it before its end."""
    start(node, namespace, "first", SLEEP)
    pod_in(node, namespace, "first", "Running")
    registrations = plugin.registrations

    node.kill_part(parts.KUBELET)
    node.start_part(parts.KUBELET)

    eventually("the plugin registers again", lambda: plugin.registrations == registrations + 1)
    node.wait_until_ready()
    wait_for_devices(node, NEURON, "1")
    start(node, namespace, "second", TELL)
    waits_for_a_device(node, namespace, "second")
    assert pod_in(node, namespace, "first", "Running")["containerStatuses"][0]["restartCount"] == 0
    node.control_plane.kubectl("delete", "pod", "first", f"--namespace={namespace}")
    pod_in(node, namespace, "second", "Succeeded")


def test_a_plugin_that_ends_takes_its_devices_along(node: RealNode) -> None:
    """The kubelet waits for it to come back, and offers none meanwhile."""
    with nvidia(2):
        wait_for_devices(node, NVIDIA, "2")
    assert wait_for_devices(node, NVIDIA, "0")["capacity"][NVIDIA] == "2"


def on_neuron(name: str, image: str, *, gate: Path | None = None) -> dict[str, Any]:
    """Return a benchmark of two cells that asks for one device, and whose runner waits at the gate."""
    runner: dict[str, object] = {"image": image}
    if gate is not None:
        runner["volumes"] = [{"name": "gate", "hostPath": {"path": str(gate)}}]
        runner["volumeMounts"] = [{"name": "gate", "mountPath": "/gate", "readOnly": True}]
    accelerators = [{"name": "inf2", "kind": "Neuron"}]
    return benchmark(name, accelerators=accelerators, runner=runner, execution={"retries": 0})


@pytest.mark.usefixtures("plugin")
def test_two_benchmarks_take_turns_on_the_only_device(harness: Harness, runner_image: str, tmp_path: Path) -> None:
    """The second waits, told in the scheduler's words, until the first is done; each runner sees the device."""
    gate = tmp_path / "gate"
    gate.mkdir(mode=0o755)
    harness.apply(on_neuron("first", runner_image, gate=gate))
    eventually("the first runs", lambda: harness.status("first").get("cells", {}).get("running") == 2)

    harness.apply(on_neuron("second", runner_image))

    capacity = eventually(
        "the second waits",
        lambda: harness.condition("second", "CapacityAvailable"),
        lambda found: found.get("status") == "False",
    )
    assert INSUFFICIENT in capacity["message"]
    assert harness.condition("second", "Ready")["reason"] == "WaitingForCapacity"
    assert {entry["state"] for entry in harness.status("second")["results"]} == {"waiting"}
    assert harness.status("first")["cells"]["running"] == 2
    (gate / "open").touch()
    for name in ("first", "second"):
        assert harness.wait_until_finished(name)["cells"]["succeeded"] == 2
    assert harness.condition("second", "CapacityAvailable")["status"] == "True"
    pods = {pod["metadata"]["labels"]["inferbench.dev/benchmark"]: pod for pod in harness.list("pods")}
    for pod in pods.values():
        assert harness.kubectl("logs", pod["metadata"]["name"]) == "devices: 0\n"
    first, second = (
        pods[name]["status"]["containerStatuses"][0]["state"]["terminated"] for name in ("first", "second")
    )
    assert second["startedAt"] >= first["finishedAt"]


def test_a_benchmark_waits_until_its_device_is_well(
    node: RealNode, harness: Harness, runner_image: str, plugin: FakeDevicePlugin
) -> None:
    """A device that is unhealthy in good time is missing capacity, no failure."""
    plugin.set_health(0, healthy=False)
    wait_for_devices(node, NEURON, "0")

    harness.apply(on_neuron("patient", runner_image))

    eventually("it waits", lambda: INSUFFICIENT in harness.condition("patient", "CapacityAvailable").get("message", ""))
    plugin.set_health(0, healthy=True)
    assert harness.wait_until_finished("patient")["cells"]["succeeded"] == 2


def test_a_device_that_turns_unhealthy_under_a_pod_is_a_typed_failure(
    node: RealNode, harness: Harness, runner_image: str, plugin: FakeDevicePlugin
) -> None:
    """The scheduler still counts on it, the kubelet refuses the pod, and the benchmark says why."""
    # While there is no kubelet, nobody tells the scheduler.
    node.kill_part(parts.KUBELET)
    harness.apply(on_neuron("unlucky", runner_image))
    eventually("the pod has a node", lambda: [pod for pod in harness.list("pods") if pod["spec"].get("nodeName")])
    plugin.set_health(0, healthy=False)
    node.start_part(parts.KUBELET)

    status = harness.wait_until_finished("unlucky")

    assert {(entry["state"], entry["reason"]) for entry in status["results"]} == {
        ("failed", "UnexpectedAdmissionError")
    }
    assert all(UNHEALTHY in entry["message"] for entry in status["results"])
    assert harness.condition("unlucky", "Stalled")["reason"] == "CellsFailed"
