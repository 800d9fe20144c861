"""One real node on this machine: containerd, kubelet and kube-proxy beside an embedded control plane.

Needs root on Linux. Nothing is installed, and nothing stays behind: see `cleanup.py`.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from cluster.binary import find_or_build
from cluster.certificates import API_SERVER_USER
from cluster.components import RealNodeOptions
from cluster.controlplane import ControlPlane
from cluster.credentials import write_kubeconfig
from cluster.errors import ClusterError, ComponentError, NotStartedError, UnknownComponentError
from cluster.go_program import Progress, print_progress
from cluster.ports import free_ports
from cluster.processes import GuardedProcess
from cluster.real import cleanup, configuration
from cluster.real.images import Image, small_images, write_archive
from cluster.real.machine import Claim
from cluster.real.packages import Programs, find_or_unpack

NAME: Final = "real"
"""Of the node."""
CONTAINERD: Final = "containerd"
KUBELET: Final = "kubelet"
KUBE_PROXY: Final = "kube-proxy"
# In the order in which they start.
_PARTS: Final = (CONTAINERD, KUBELET, KUBE_PROXY)

_READY_SECONDS: Final = 120.0
_STOP_SECONDS: Final = 10.0


class RealNode:
    """A control plane with one real node; a context manager, or `start()` and `stop()`."""

    def __init__(self, *, manifests: Sequence[Path] = (), progress: Progress = print_progress) -> None:
        """Prepare a node; nothing runs yet.

        Args:
            manifests: CRD files to apply before the controllers start.
            progress: Is told in sentences what takes long.
        """
        self._manifests = tuple(manifests)
        self._progress = progress
        self._claim: Claim | None = None
        self._plane: ControlPlane | None = None
        self._binary = Path()
        self._programs: Programs | None = None
        self._commands: dict[str, tuple[str, ...]] = {}
        self._running: dict[str, GuardedProcess] = {}
        self._kubelet_since = 0
        self._proxy_health_port = 0

    def __enter__(self) -> Self:
        """Start it."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop it."""
        self.stop()

    def start(self) -> Self:
        """Start the control plane and the node, and return when the node is ready for pods.

        Raises:
            ClusterError: This machine can't have a node, or a part did not become ready.
        """
        self._programs = find_or_unpack(self._progress)
        self._binary = find_or_build(self._progress)
        self._claim = Claim.take(self._programs, self._progress)
        try:
            node = RealNodeOptions(NAME, self._claim.address)
            self._plane = ControlPlane(manifests=self._manifests, node=node, progress=self._progress)
            self._plane.start()
            self._plane.kubectl("apply", "--filename=-", stdin=_KUBELET_API_ADMIN)
            self._configure(self._plane, node, self._programs)
            self.start_part(CONTAINERD)
            images = cleanup.DATA / "images"
            images.mkdir()
            self.load_images(small_images(self._programs, images), images)
            for name in (KUBELET, KUBE_PROXY):
                self.start_part(name)
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop everything and take all traces away; safe to call twice.

        Raises:
            CleanupError: Something is still there.
        """
        for name in reversed(_PARTS):
            self.stop_part(name)
        if self._plane is not None:
            self._plane.stop()
            self._plane = None
        if self._claim is not None:
            claim, self._claim = self._claim, None
            claim.release()

    @property
    def control_plane(self) -> ControlPlane:
        """The control plane, for kubectl and for faults of its own."""
        if self._plane is None:
            raise NotStartedError
        return self._plane

    def log(self, name: str) -> Path:
        """Log file of one part."""
        if name not in _PARTS:
            raise UnknownComponentError(name, _PARTS)
        return cleanup.DATA / f"{name}.log"

    def start_part(self, name: str) -> None:
        """Start a part that does not run; only containerd is waited for."""
        log = self.log(name)
        if name == KUBELET:
            self._kubelet_since = int(time.time())
        if name not in self._running:
            with log.open("ab") as output:
                self._running[name] = GuardedProcess.start(
                    self._commands[name], output=output, env=self._environment, cwd=cleanup.DATA
                )
        if name == CONTAINERD:
            self._wait(CONTAINERD, "did not answer", self._containerd_answers)

    def stop_part(self, name: str) -> None:
        """Ask a part to end, and wait for it; the pods go on."""
        process = self._running.pop(name, None)
        if process is not None:
            process.stop(_STOP_SECONDS)

    def kill_part(self, name: str) -> None:
        """End a part with SIGKILL; the pods go on."""
        process = self._running.pop(name, None)
        if process is not None:
            process.signal_group(signal.SIGKILL)
            process.reap()

    def crash(self) -> None:
        """End all of the node at once, pods included, as a power failure would; its disk keeps what it has."""
        for name in _PARTS:
            self.kill_part(name)
        cleanup.stop_everything()

    def reboot(self) -> None:
        """Crash the node and start it again; return when it is ready."""
        self.crash()
        cleanup.make_cgroups()
        for name in _PARTS:
            self.start_part(name)
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Return when the kubelet that runs now says that its node is ready, and services are reachable."""
        self._wait(KUBELET, "did not make its node ready", self._is_ready)
        self._wait(KUBE_PROXY, "did not set up the services", lambda: _answers(self._proxy_health_port))

    def load_images(self, images: Sequence[Image], folder: Path) -> None:
        """Give images to containerd; the archive is written into `folder` and removed."""
        archive = folder / "images.tar"
        write_archive(archive, images)
        done = self._ctr("--namespace=k8s.io", "images", "import", str(archive))
        archive.unlink()
        if done.returncode:
            raise ComponentError(CONTAINERD, f"took no images: {done.stderr.strip()}", self.log(CONTAINERD))

    @contextmanager
    def containerd_events(self, path: Path) -> Iterator[None]:
        """Have containerd write its events, each with its time, into a file meanwhile."""
        with path.open("wb") as output:
            follower = GuardedProcess.start(self._ctr_command("events"), output=output, env=self._environment)
        try:
            yield
        finally:
            follower.stop(_STOP_SECONDS)

    def termination_messages(self, pod_uid: str) -> list[Path]:
        """Return the files in which a pod's containers write their termination messages, as far as there are any."""
        return sorted((cleanup.DATA / "kubelet" / "pods" / pod_uid / "containers").glob("*/*"))

    def _configure(self, plane: ControlPlane, node: RealNodeOptions, programs: Programs) -> None:
        """Write all settings and the commands that read them."""
        layout = plane.layout
        cleanup.DATA.mkdir(mode=0o711)
        configuration.CNI_CONFIG.mkdir()
        kubelet, proxy = cleanup.RUN / "kubelet.kubeconfig", cleanup.RUN / "kube-proxy.kubeconfig"
        write_kubeconfig(kubelet, layout.server, layout.certificates.authority, layout.tokens.kubelet)
        write_kubeconfig(proxy, layout.server, layout.certificates.authority, layout.tokens.kube_proxy)
        ports = free_ports(4)
        self._proxy_health_port = ports[0]
        files = {
            cleanup.CONTAINERD_CONFIG: configuration.containerd(programs),
            configuration.CNI_CONFIG / "10-bridge.conflist": configuration.cni(),
            cleanup.KUBELET_CONFIG: configuration.kubelet(layout, node, port=ports[1], health_port=ports[2]),
            cleanup.PROXY_CONFIG: configuration.kube_proxy(node, proxy, health_port=ports[0], metrics_port=ports[3]),
        }
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
        kubelet_flags = (
            f"--kubeconfig={kubelet}",
            f"--hostname-override={node.name}",
            f"--node-ip={node.address}",
            f"--root-dir={cleanup.DATA / 'kubelet'}",
        )
        self._commands = {
            CONTAINERD: (str(programs.containerd), f"--config={cleanup.CONTAINERD_CONFIG}"),
            KUBELET: (str(self._binary), KUBELET, f"--config={cleanup.KUBELET_CONFIG}", *kubelet_flags),
            KUBE_PROXY: (str(self._binary), KUBE_PROXY, f"--config={cleanup.PROXY_CONFIG}"),
        }

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, **(self._programs.search_paths if self._programs else {})}

    def _containerd_answers(self) -> bool:
        return cleanup.CONTAINERD_SOCKET.exists() and self._ctr("version").returncode == 0

    def _ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = self._ctr_command(f"--timeout={_READY_SECONDS:g}s", *arguments)
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)

    def _ctr_command(self, *arguments: str) -> list[str]:
        program = str(self._programs.ctr) if self._programs else "ctr"
        return [program, f"--address={cleanup.CONTAINERD_SOCKET}", *arguments]

    def _is_ready(self) -> bool:
        """Whether the node is ready by a heartbeat of the kubelet that runs now."""
        with suppress(ClusterError):
            text = self.control_plane.kubectl("get", "node", NAME, "--ignore-not-found", "--output=json")
            node: dict[str, Any] = json.loads(text or "{}")
            conditions = {found["type"]: found for found in node.get("status", {}).get("conditions", [])}
            if ready := conditions.get("Ready"):
                heartbeat = datetime.fromisoformat(ready["lastHeartbeatTime"]).timestamp()
                return ready["status"] == "True" and heartbeat >= self._kubelet_since and not node["spec"].get("taints")
        return False

    def _wait(self, name: str, failure: str, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while not holds():
            process = self._running.get(name)
            if process is None or process.process.poll() is not None:
                raise ComponentError(name, "does not run any more", self.log(name))
            if time.monotonic() > deadline:
                raise ComponentError(name, f"{failure} within {_READY_SECONDS:g} s", self.log(name))
            time.sleep(0.1)


def check_node() -> None:
    """Return if this machine can have a real node; nothing is started.

    Raises:
        ClusterError: It can't, and the message says why.
    """
    Claim.take(find_or_unpack(), print_progress).release()


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


# For pods/log and exec: the kubelet asks the API server whether the API server may.
_KUBELET_API_ADMIN = f"""
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: inferbench-kubelet-api-admin}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:kubelet-api-admin}}
subjects:
- {{apiGroup: rbac.authorization.k8s.io, kind: User, name: {API_SERVER_USER}}}
"""
