"""Device plugins for a real kubelet that offer devices which this machine does not have.

Use:

    with neuron(2) as plugin:                    # in time the node has aws.amazon.com/neuron: 2
        plugin.set_health(1, healthy=False)      # and a moment later aws.amazon.com/neuron: 1
        plugin.allocations                       # what the kubelet asked for, container by container

A container that asks for a device gets the environment variable that the vendor's plugin sets, and a device file of the
vendor's name behind which is /dev/null.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Final, Protocol, Self

import grpc

from cluster.real.device_plugin_api import VERSION, Message, load_api

PLUGINS: Final = Path("/var/lib/kubelet/device-plugins")
"""Where the kubelet looks for sockets of plugins, whatever its --root-dir is."""
KUBELET_SOCKET: Final = "kubelet.sock"

NEURON: Final = "aws.amazon.com/neuron"
NVIDIA: Final = "nvidia.com/gpu"

_DEVICE_FILE: Final = "/dev/null"
_LOOK_SECONDS: Final = 0.1
_REGISTER_SECONDS: Final = 10.0
# The kubelet has one stream open and asks one thing at a time.
_THREADS: Final = 4

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FakeDevice:
    """One device of a node."""

    id: str
    """The kubelet's name for it."""
    visible: str
    """What the environment variable says of it."""
    path: str
    """Its device file in the container."""


class _WantedDevices(Protocol):
    devices_ids: Sequence[str]


class _AllocateRequest(Protocol):
    container_requests: Sequence[_WantedDevices]


class _PossibleDevices(Protocol):
    available_deviceIDs: Sequence[str]  # noqa: N815 - the API's name
    must_include_deviceIDs: Sequence[str]  # noqa: N815 - the API's name
    allocation_size: int


class _PreferredAllocationRequest(Protocol):
    container_requests: Sequence[_PossibleDevices]


@dataclass(frozen=True, slots=True)
class _Served:
    """A gRPC server on a socket of its own."""

    server: grpc.Server
    threads: ThreadPoolExecutor
    socket: Path

    def stop(self) -> None:
        self.server.stop(grace=None).wait()  # which also removes the socket
        self.threads.shutdown()


class FakeDevicePlugin:
    """One plugin, for one resource; a context manager, or `start()` and `stop()`.

    It may be started before the kubelet, and registers again whenever the kubelet has been restarted.
    """

    def __init__(self, resource: str, devices: Sequence[FakeDevice], *, variable: str, folder: Path = PLUGINS) -> None:
        """Prepare a plugin; nothing runs yet.

        Args:
            resource: The name under which pods ask for the devices.
            devices: All of them, healthy at first.
            variable: Environment variable that tells a container which devices are its own.
            folder: Where the kubelet's socket is and the plugin's is to be.
        """
        self.resource = resource
        self.devices = tuple(devices)
        self.allocations: list[tuple[str, ...]] = []
        """Devices given to each container, in the order in which the kubelet asked."""
        self.registrations = 0
        """How often a kubelet has taken the plugin in."""
        self._variable = variable
        self._folder = folder
        self._healthy = [True] * len(self.devices)
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"device-plugin {resource}", daemon=True)
        self._api = load_api()

    def __enter__(self) -> Self:
        """Start it."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop it."""
        self.stop()

    def start(self) -> Self:
        """Start to look out for a kubelet."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """End, as a plugin whose pod is deleted: the kubelet takes all devices for unhealthy."""
        self._stopping.set()
        self._thread.join()

    def set_health(self, device: int, *, healthy: bool) -> None:
        """Change a device's health, by its place among the devices; the kubelet is told at once."""
        with self._changed:
            self._healthy[device] = healthy
            self._changed.notify_all()

    def _run(self) -> None:
        served: _Served | None = None
        known: tuple[int, int] | None = None
        while not self._stopping.wait(_LOOK_SECONDS):
            kubelet = _identity(self._folder / KUBELET_SOCKET)
            if kubelet is None or kubelet == known:
                continue
            if served is not None and not served.socket.exists():  # a kubelet that starts removes all sockets
                served.stop()
                served = None
            served = served or self._serve()
            if self._register(served.socket.name):
                known = kubelet
        if served is not None:
            served.stop()

    def _serve(self) -> _Served:
        socket = self._folder / f"{self.resource.replace('/', '-')}.sock"
        threads = ThreadPoolExecutor(_THREADS, thread_name_prefix=self._thread.name)
        server = grpc.server(threads)
        service = SimpleNamespace(
            GetDevicePluginOptions=lambda _request, _context: self._options(),
            ListAndWatch=self._list_and_watch,
            GetPreferredAllocation=self._prefer,
            Allocate=self._allocate,
            PreStartContainer=lambda _request, _context: self._api.messages.PreStartContainerResponse(),
        )
        self._api.services.add_DevicePluginServicer_to_server(service, server)
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        return _Served(server, threads, socket)

    def _register(self, endpoint: str) -> bool:
        request = self._api.messages.RegisterRequest(
            version=VERSION, endpoint=endpoint, resource_name=self.resource, options=self._options()
        )
        with grpc.insecure_channel(f"unix:{self._folder / KUBELET_SOCKET}") as channel:
            try:
                self._api.services.RegistrationStub(channel).Register(request, timeout=_REGISTER_SECONDS)
            except grpc.RpcError as error:
                _log.warning("The kubelet did not take %s in: %s", self.resource, error)
                return False
        self.registrations += 1
        return True

    def _options(self) -> Message:
        return self._api.messages.DevicePluginOptions(get_preferred_allocation_available=True)

    def _list_and_watch(self, _request: Message, context: grpc.ServicerContext) -> Iterator[Message]:
        context.add_callback(self._wake)
        told: list[bool] | None = None
        while True:
            told = self._news(told, context)
            if not context.is_active():
                return
            yield self._api.messages.ListAndWatchResponse(
                devices=[
                    self._api.messages.Device(ID=device.id, health="Healthy" if healthy else "Unhealthy")
                    for device, healthy in zip(self.devices, told, strict=True)
                ]
            )

    def _news(self, told: list[bool] | None, context: grpc.ServicerContext) -> list[bool]:
        """Return each device's health, once it is not as told, or nobody listens any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._healthy != told or not context.is_active())
            return list(self._healthy)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _prefer(self, request: _PreferredAllocationRequest, _context: grpc.ServicerContext) -> Message:
        """Prefer the first ones: the kubelet by itself takes any."""
        return self._api.messages.PreferredAllocationResponse(
            container_responses=[
                self._api.messages.ContainerPreferredAllocationResponse(deviceIDs=self._first(wanted))
                for wanted in request.container_requests
            ]
        )

    def _first(self, wanted: _PossibleDevices) -> list[str]:
        must = list(wanted.must_include_deviceIDs)
        others = [
            device.id for device in self.devices if device.id in wanted.available_deviceIDs and device.id not in must
        ]
        return [*must, *others][: wanted.allocation_size]

    def _allocate(self, request: _AllocateRequest, _context: grpc.ServicerContext) -> Message:
        return self._api.messages.AllocateResponse(
            container_responses=[self._give(wanted.devices_ids) for wanted in request.container_requests]
        )

    def _give(self, ids: Sequence[str]) -> Message:
        given = [device for device in self.devices if device.id in ids]
        self.allocations.append(tuple(device.id for device in given))
        return self._api.messages.ContainerAllocateResponse(
            envs={self._variable: ",".join(device.visible for device in given)},
            devices=[
                self._api.messages.DeviceSpec(container_path=device.path, host_path=_DEVICE_FILE, permissions="rw")
                for device in given
            ],
        )


def neuron(count: int = 1, *, folder: Path = PLUGINS) -> FakeDevicePlugin:
    """Offer Inferentia or Trainium devices, as AWS's plugin does: by their numbers."""
    devices = [FakeDevice(f"neuron{number}", str(number), f"/dev/neuron{number}") for number in range(count)]
    return FakeDevicePlugin(NEURON, devices, variable="AWS_NEURON_VISIBLE_DEVICES", folder=folder)


def nvidia(count: int = 1, *, folder: Path = PLUGINS) -> FakeDevicePlugin:
    """Offer GPUs, as NVIDIA's plugin does where it also passes the device files: by their UUIDs."""
    names = [f"GPU-{uuid.UUID(int=number)}" for number in range(count)]
    devices = [FakeDevice(name, name, f"/dev/nvidia{number}") for number, name in enumerate(names)]
    return FakeDevicePlugin(NVIDIA, devices, variable="NVIDIA_VISIBLE_DEVICES", folder=folder)


def _identity(socket: Path) -> tuple[int, int] | None:
    """What differs between two sockets of the same name, one after the other; None without one."""
    try:
        found = socket.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns
