"""Start and stop a real Kubernetes control plane on the loopback address, without containers and without root.

etcd, kube-apiserver, kube-controller-manager and kube-scheduler run as four processes of one program (`binary.py`).
They hold all their data in one temporary folder and end with the process that started them, even when that one is
killed. There are no nodes until a `NodeAgent` brings some.
"""

from __future__ import annotations

import atexit
import http.client
import shutil
import signal
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from cluster.binary import find_or_build
from cluster.components import API_SERVER, CONTROLLER_MANAGER, Component, Layout, RealNodeOptions, components
from cluster.credentials import write_kubeconfig
from cluster.errors import ComponentError, KubectlError, NotStartedError, UnknownComponentError
from cluster.go_program import Progress, print_progress
from cluster.kubectl import cache_folder, run_kubectl
from cluster.processes import GuardedProcess
from cluster.workspace import Workspace

READY_SECONDS: Final = 120.0
"""How long a component may take until it is ready; it takes about one second where nothing else runs."""
# The API server and etcd would wait longer for their clients; nothing is lost when they are killed, as a killed process
# leaves its written pages to the system.
_STOP_SECONDS = 1.0


class ControlPlane:
    """One control plane; a context manager, or `start()` and `stop()`."""

    def __init__(
        self,
        *,
        manifests: Sequence[Path] = (),
        node: RealNodeOptions | None = None,
        progress: Progress = print_progress,
    ) -> None:
        """Prepare a control plane; nothing runs yet.

        Args:
            manifests: CRD files to apply before the controllers start. The garbage collector looks for new kinds only
                every 30 seconds, so a kind that is there when it starts spares the tests that wait.
            node: The real node that is to join, if any.
            progress: Is told in sentences what takes long (building the program).
        """
        self._manifests = tuple(manifests)
        self._node = node
        self._progress = progress
        self._workspace: Workspace | None = None
        self._layout: Layout | None = None
        self._binary = Path()
        self._components: dict[str, Component] = {}
        self._running: dict[str, GuardedProcess] = {}

    def __enter__(self) -> Self:
        """Start it."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop it."""
        self.stop()

    def start(self) -> Self:
        """Start all components and return when they are ready.

        Raises:
            ClusterError: The program could not be found or built, or a component did not become ready.
        """
        self._binary = find_or_build(self._progress)
        self._workspace = Workspace.create()
        atexit.register(self.stop)
        try:
            folder = self._workspace.path
            self._layout = Layout.create(folder, self._node)
            self._components = {component.name: component for component in components(self._layout)}
            self._write_kubeconfig("admin", self._layout.tokens.admin)
            self._write_kubeconfig("node-agent", self._layout.tokens.node_agent)
            for name in self._components:
                if name == CONTROLLER_MANAGER:
                    self._prepare_objects()
                self._launch(name)
            for name in self._components:
                self._wait_until_ready(name)
            self.wait_for_service_account("default", "default")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop all components, the API server's clients first, and remove all files; safe to call twice."""
        atexit.unregister(self.stop)
        processes = list(reversed(self._running.values()))
        for process in processes:
            process.signal_group(signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS
        for process in processes:
            process.stop(max(0.0, deadline - time.monotonic()))
        self._running.clear()
        self._layout = None
        if self._workspace is not None:
            self._workspace.remove()
            self._workspace = None

    def stop_component(self, name: str) -> None:
        """Stop one component, as a fault would; the others go on."""
        self._component(name)
        process = self._running.pop(name, None)
        if process is not None:
            process.stop(_STOP_SECONDS)

    def start_component(self, name: str) -> None:
        """Start one component that was stopped and return when it is ready."""
        self._component(name)
        if name not in self._running:
            self._launch(name)
        self._wait_until_ready(name)

    def restart(self, name: str) -> None:
        """Stop and start one component."""
        self.stop_component(name)
        self.start_component(name)

    @property
    def server(self) -> str:
        """URL of the API server."""
        return self._require_layout().server

    @property
    def folder(self) -> Path:
        """Temporary folder of this control plane; also a place for files that have to go with it."""
        return self._require_layout().folder

    @property
    def layout(self) -> Layout:
        """Ports, keys and tokens, for the parts that join the cluster."""
        return self._require_layout()

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig file of an administrator (group system:masters)."""
        return self.folder / "admin.kubeconfig"

    @property
    def node_agent_kubeconfig(self) -> Path:
        """Kubeconfig file of the node agent's user, who may do what a kubelet may, on any node."""
        return self.folder / "node-agent.kubeconfig"

    def log(self, name: str) -> Path:
        """Log file of one component."""
        self._component(name)
        return self.folder / f"{name}.log"

    def kubeconfig_for(self, service_account: str) -> Path:
        """Kubeconfig file of a service account, `namespace/name`, which must exist; its token is valid for a day."""
        namespace, _, name = service_account.partition("/")
        token = self.kubectl("create", "token", name, f"--namespace={namespace}", "--duration=24h").strip()
        return self._write_kubeconfig(f"{namespace}-{name}", token, namespace)

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        """Run kubectl as the administrator and return what it printed.

        Raises:
            KubectlError: It failed; the message holds its standard error.
        """
        return run_kubectl(self.kubeconfig, *arguments, stdin=stdin, timeout=timeout)

    def create_namespace(self, name: str) -> str:
        """Create a namespace in which pods can be created at once, and return its name."""
        self.kubectl("create", "namespace", name)
        self.wait_for_service_account(name, "default")
        return name

    def wait_for_service_account(self, namespace: str, name: str) -> None:
        """Return when the service account is there: without it, the API server refuses a pod that names none."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            with suppress(KubectlError):
                self.kubectl("get", "serviceaccount", name, f"--namespace={namespace}")
                return
            if time.monotonic() > deadline:
                what = f"did not create the service account {namespace}/{name} within {READY_SECONDS:g} s"
                raise ComponentError(CONTROLLER_MANAGER, what, self.log(CONTROLLER_MANAGER))
            time.sleep(0.1)

    def _prepare_objects(self) -> None:
        self._wait_until_ready(API_SERVER)
        self.kubectl("apply", "--filename=-", stdin=_NODE_AGENT_ROLE)
        for manifest in self._manifests:
            self.kubectl("apply", "--server-side", f"--filename={manifest}")
        if self._manifests:
            self.kubectl("wait", "crd", "--all", "--for=condition=Established", "--timeout=60s")
            # It was filled before the new kinds were there, and not every command looks again.
            shutil.rmtree(cache_folder(self.kubeconfig), ignore_errors=True)

    def _launch(self, name: str) -> None:
        command = [str(self._binary), name, *self._components[name].arguments]
        with self.log(name).open("ab") as log:
            self._running[name] = GuardedProcess.start(command, output=log, cwd=self.folder)

    def _wait_until_ready(self, name: str) -> None:
        component, layout = self._components[name], self._require_layout()
        context = ssl.create_default_context(cafile=str(layout.certificates.authority))
        if component.needs_client_certificate:
            context.load_cert_chain(layout.certificates.client, layout.certificates.client_key)
        deadline = time.monotonic() + READY_SECONDS
        while not _answers(component, context):
            code = self._running[name].process.poll()
            if code is not None:
                raise ComponentError(name, f"ended with {code} before it was ready", self.log(name))
            if time.monotonic() > deadline:
                raise ComponentError(name, f"was not ready within {READY_SECONDS:g} s", self.log(name))
            time.sleep(0.05)

    def _write_kubeconfig(self, name: str, token: str, namespace: str = "default") -> Path:
        layout = self._require_layout()
        path = layout.folder / f"{name}.kubeconfig"
        return write_kubeconfig(path, layout.server, layout.certificates.authority, token, namespace)

    def _component(self, name: str) -> Component:
        self._require_layout()
        if name not in self._components:
            raise UnknownComponentError(name, list(self._components))
        return self._components[name]

    def _require_layout(self) -> Layout:
        if self._layout is None:
            raise NotStartedError
        return self._layout


def _answers(component: Component, context: ssl.SSLContext) -> bool:
    connection = http.client.HTTPSConnection(component.address, component.port, timeout=5, context=context)
    try:
        connection.request("GET", component.ready_path)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


# What a kubelet may do, for all nodes, and the removal of a node, which is a cloud's part.
_NODE_AGENT_ROLE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: inferbench-node-agent}
rules:
- {apiGroups: [""], resources: [nodes], verbs: [create, delete, get, list, patch, update, watch]}
- {apiGroups: [""], resources: [nodes/status, pods/status], verbs: [patch, update]}
- {apiGroups: [""], resources: [pods], verbs: [delete, get, list, watch]}
- {apiGroups: [""], resources: [configmaps, secrets], verbs: [get]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create, delete, get, patch, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: inferbench-node-agent}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: inferbench-node-agent}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: inferbench-node-agent}
"""
