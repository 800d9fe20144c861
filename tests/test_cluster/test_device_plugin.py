"""The fake device plugins, against something that speaks to them as the kubelet does."""

from __future__ import annotations

import queue
import socket
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from cluster.observing import eventually
from cluster.real.device_plugin import KUBELET_SOCKET, FakeDevicePlugin, neuron, nvidia
from cluster.real.device_plugin_api import load_api

PATIENCE_SECONDS = 30.0
"""Far longer than anything here takes."""


class Kubelet:
    """The kubelet's side: takes one plugin in at a time, and listens to what it lists."""

    def __init__(self, folder: Path) -> None:
        """Prepare; the folder is that of the sockets."""
        self.folder = folder
        self.api = load_api()
        self.requests: queue.Queue[Any] = queue.Queue()
        """What the plugins registered with."""

    def start(self) -> None:
        """Remove whatever lies in the folder, as a kubelet does that starts, and take registrations."""
        for left in self.folder.iterdir():
            left.unlink()
        self._threads = ThreadPoolExecutor(2)
        self._server = grpc.server(self._threads)
        service = SimpleNamespace(Register=self._register)
        self.api.services.add_RegistrationServicer_to_server(service, self._server)
        self._server.add_insecure_port(f"unix:{self.folder / KUBELET_SOCKET}")
        self._server.start()

    def stop(self) -> None:
        """End, with all that was said to the plugin."""
        self._channel.close()
        self._server.stop(grace=None).wait()
        self._threads.shutdown()

    def _register(self, request: Any, _context: grpc.ServicerContext) -> object:  # noqa: ANN401 - generated
        # The plugin has to serve already, and the connection is kept.
        self._channel = grpc.insecure_channel(f"unix:{self.folder / request.endpoint}")
        self.plugin = self.api.services.DevicePluginStub(self._channel)
        self.options = self.plugin.GetDevicePluginOptions(self.api.messages.Empty(), timeout=PATIENCE_SECONDS)
        self._listings = self.plugin.ListAndWatch(self.api.messages.Empty(), timeout=PATIENCE_SECONDS)
        self.requests.put(request)
        return self.api.messages.Empty()

    def registration(self) -> Any:  # noqa: ANN401 - generated
        """Return the next registration, when it comes."""
        return self.requests.get(timeout=PATIENCE_SECONDS)

    def listed(self) -> dict[str, str]:
        """Return each device's health by the next listing, when it comes."""
        return {device.ID: device.health for device in next(self._listings).devices}

    def allocate(self, *ids: str) -> Any:  # noqa: ANN401 - generated
        """Return what a container gets with these devices."""
        request = self.api.messages.AllocateRequest(container_requests=[{"devices_ids": ids}])
        (answer,) = self.plugin.Allocate(request, timeout=PATIENCE_SECONDS).container_responses
        return answer


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for sockets, whose paths can't be as long as those of pytest's own folders."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@pytest.fixture
def kubelet(folder: Path) -> Iterator[Kubelet]:
    """A kubelet that runs."""
    running = Kubelet(folder)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def plugin(kubelet: Kubelet) -> Iterator[FakeDevicePlugin]:
    """A plugin with two Neuron devices, registered and listened to."""
    with neuron(2, folder=kubelet.folder) as running:
        kubelet.registration()
        assert kubelet.listed() == {"neuron0": "Healthy", "neuron1": "Healthy"}
        yield running


def test_a_plugin_registers_with_what_the_kubelet_wants_to_know(kubelet: Kubelet) -> None:
    """Version, resource, options, and a socket below the kubelet's folder."""
    with neuron(folder=kubelet.folder):
        request = kubelet.registration()
        assert (request.version, request.resource_name) == ("v1beta1", "aws.amazon.com/neuron")
        assert (kubelet.folder / request.endpoint).is_socket()
        assert request.options == kubelet.options
        assert request.options.get_preferred_allocation_available
        assert not request.options.pre_start_required


def test_a_neuron_device_comes_as_number_and_file(kubelet: Kubelet, plugin: FakeDevicePlugin) -> None:
    """AWS's variable holds the devices' numbers, in order, and each has its file."""
    given = kubelet.allocate("neuron1", "neuron0")
    assert dict(given.envs) == {"AWS_NEURON_VISIBLE_DEVICES": "0,1"}
    files = [(file.container_path, file.host_path, file.permissions) for file in given.devices]
    assert files == [("/dev/neuron0", "/dev/null", "rw"), ("/dev/neuron1", "/dev/null", "rw")]
    assert plugin.allocations == [("neuron0", "neuron1")]


def test_a_gpu_comes_as_uuid_and_file(kubelet: Kubelet) -> None:
    """NVIDIA's variable holds UUIDs."""
    with nvidia(2, folder=kubelet.folder):
        assert kubelet.registration().resource_name == "nvidia.com/gpu"
        second = sorted(kubelet.listed())[1]
        assert second == "GPU-00000000-0000-0000-0000-000000000001"
        given = kubelet.allocate(second)
    assert dict(given.envs) == {"NVIDIA_VISIBLE_DEVICES": second}
    assert [file.container_path for file in given.devices] == ["/dev/nvidia1"]


@pytest.mark.usefixtures("plugin")
def test_what_must_be_included_comes_first_and_then_the_lowest(kubelet: Kubelet) -> None:
    """The kubelet's own choice among devices would be any."""
    wanted = {"available_deviceIDs": ["neuron1", "neuron0"], "allocation_size": 1}
    requests = [wanted, wanted | {"must_include_deviceIDs": ["neuron1"]}]
    request = kubelet.api.messages.PreferredAllocationRequest(container_requests=requests)
    answer = kubelet.plugin.GetPreferredAllocation(request, timeout=PATIENCE_SECONDS)
    assert [list(container.deviceIDs) for container in answer.container_responses] == [["neuron0"], ["neuron1"]]


@pytest.mark.usefixtures("plugin")
def test_a_kubelet_that_asks_before_each_start_gets_an_answer(kubelet: Kubelet) -> None:
    """PreStartContainer belongs to the service, although the options say that nobody has to call it."""
    request = kubelet.api.messages.PreStartContainerRequest(devices_ids=["neuron0"])
    answer = kubelet.plugin.PreStartContainer(request, timeout=PATIENCE_SECONDS)
    assert answer == kubelet.api.messages.PreStartContainerResponse()


def test_a_change_of_health_is_told_at_once(kubelet: Kubelet, plugin: FakeDevicePlugin) -> None:
    """One listing for each change, with all devices in it."""
    plugin.set_health(1, healthy=False)
    assert kubelet.listed() == {"neuron0": "Healthy", "neuron1": "Unhealthy"}
    plugin.set_health(1, healthy=True)
    assert kubelet.listed() == {"neuron0": "Healthy", "neuron1": "Healthy"}


def test_a_plugin_registers_again_with_a_new_kubelet(kubelet: Kubelet, plugin: FakeDevicePlugin) -> None:
    """It comes by itself, on a socket that is there, and with the health that it had."""
    plugin.set_health(0, healthy=False)
    kubelet.stop()
    kubelet.start()
    assert (kubelet.folder / kubelet.registration().endpoint).is_socket()
    assert kubelet.listed() == {"neuron0": "Unhealthy", "neuron1": "Healthy"}
    assert dict(kubelet.allocate("neuron1").envs) == {"AWS_NEURON_VISIBLE_DEVICES": "1"}
    eventually("the plugin counts it", lambda: plugin.registrations == 2)


def test_a_kubelet_that_stays_is_left_alone(kubelet: Kubelet, plugin: FakeDevicePlugin) -> None:
    """One registration is enough, however often the plugin looks."""
    sleep(0.5)
    assert kubelet.requests.empty()
    assert plugin.registrations == 1


def test_a_plugin_waits_for_a_kubelet(folder: Path) -> None:
    """It may be there first, also beside a socket that an earlier kubelet has left."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(folder / KUBELET_SOCKET))
    with neuron(folder=folder) as plugin:
        eventually("the plugin tries", lambda: len(list(folder.iterdir())) == 2)
        assert plugin.registrations == 0
        late = Kubelet(folder)
        late.start()
        late.registration()
        assert late.listed() == {"neuron0": "Healthy"}
        late.stop()


def test_a_plugin_that_ends_hangs_up_and_leaves_nothing(kubelet: Kubelet) -> None:
    """The kubelet's stream breaks, by which it takes all devices for unhealthy."""
    with neuron(folder=kubelet.folder):
        kubelet.registration()
        kubelet.listed()
    with pytest.raises(grpc.RpcError) as broken:
        kubelet.listed()
    assert broken.value.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
    assert [left.name for left in kubelet.folder.iterdir()] == [KUBELET_SOCKET]
