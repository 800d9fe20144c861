"""Plays the kubelets of a cluster's nodes: registers Node objects, runs the pods bound to them, serves their logs.

On a local node each container is a process of this machine (`local.py`); since a process has no mounts of its own, the
variable INFERBENCH_TERMINATION_MESSAGE_PATH names the file that stands for its terminationMessagePath. On a simulated
node pods play scripted outcomes (`outcomes.py`), once all that their environment names is there. Pods that no longer
fit their node are refused only by a script, unlike by a real kubelet: the scheduler sees to that.

The agent's event loop runs in a thread of its own, so that its methods can be called from tests of any kind.
"""

from __future__ import annotations

import asyncio
import shutil
import ssl
import threading
from collections.abc import Callable, Coroutine, Sequence
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from cluster.api import Api, ApiError, persist
from cluster.controlplane import ControlPlane
from cluster.environment import Fetch, decode_data
from cluster.errors import PodNotFoundError
from cluster.kubelet_server import KubeletServer
from cluster.local import LocalPod, LocalSettings
from cluster.nodes import Node
from cluster.outcomes import Outcome, Script, choose, node_lost
from cluster.pods import Json, Pod
from cluster.registration import Registration
from cluster.simulated import SimulatedPod
from cluster.states import evicted
from cluster.watching import PodWatch
from cluster.worker import PodWorker
from cluster.workload import Workload
from cluster.workspace import Workspace

_T = TypeVar("_T")
_CALL_SECONDS: Final = 60.0


class NodeAgent:
    """All nodes of one control plane; a context manager, or `start()` and `stop()`."""

    def __init__(self, control_plane: ControlPlane, *, local: LocalSettings | None = None) -> None:
        """Prepare an agent without nodes; `local` is what local nodes give to every pod."""
        self._control_plane = control_plane
        self._local = local or LocalSettings()
        self._scripts: list[Script] = []
        self._nodes: dict[str, Node] = {}
        self._workers: dict[str, PodWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="node-agent", daemon=True)

    def __enter__(self) -> Self:
        """Start it."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop it."""
        self.stop()

    def start(self) -> Self:
        """Start the agent's thread, its log server and its watch."""
        self._workspace = Workspace.create()
        self._thread.start()
        self._call(self._start())
        return self

    def stop(self) -> None:
        """End all processes, remove all files; the Node objects stay, as of machines that lost their power.

        Raises:
            Exception: What went wrong inside the agent, which would otherwise pass for a pod that is slow.
        """
        if self.stopped:
            return
        failures = self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._workspace.remove()
        if failures:
            raise failures[0]

    def add_node(self, node: Node) -> Node:
        """Register a node and return once pods can be scheduled on it."""
        # Known first: a pod may be bound to it as soon as the API server has it.
        self._nodes[node.name] = node
        self._call(self._registration.add(node))
        return node

    def remove_node(self, name: str) -> None:
        """Take a node away, as a cloud does with a machine: its processes end, its object is deleted.

        Its pods stay until the pod garbage collector notices that their node is gone, as in any cluster.
        """
        self.silence_node(name)
        self._call(self._registration.remove(name))

    def silence_node(self, name: str) -> None:
        """Take a machine's power away: its processes end, nobody renews its lease, and its object stays."""
        self._nodes.pop(name)
        self._call(self._silence_node(name))

    @property
    def stopped(self) -> bool:
        """Whether it has been stopped, for good."""
        return self._loop.is_closed()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes there are."""
        return tuple(self._nodes)

    def script(self, script: Script | Outcome) -> None:
        """Say what happens to pods on simulated nodes; later scripts are asked first, an outcome is for all pods."""
        self._scripts.append(script if callable(script) else lambda _pod: script)

    def clear_scripts(self) -> None:
        """Forget all scripts: pods succeed again."""
        self._scripts.clear()

    def kill_container(self, namespace: str, pod: str, container: str | None = None, *, reason: str = "Error") -> None:
        """Kill a container (or all) of a pod with SIGKILL; with reason OOMKilled it looks like the kernel's doing."""
        self._call(self._on_worker(namespace, pod, lambda worker: worker.workload.kill(container, reason)))

    def evict(self, namespace: str, pod: str, resource: str = "memory") -> None:
        """Evict a pod as a kubelet does when a resource of its node runs out."""
        self._call(self._on_worker(namespace, pod, lambda worker: worker.interrupt(evicted(resource), grace_seconds=1)))

    async def _start(self) -> None:
        layout = self._control_plane.layout
        tls = ssl.create_default_context(cafile=str(layout.certificates.authority))
        self._api = Api(layout.server, layout.tokens.node_agent, tls)
        self._server = KubeletServer(self._find, layout.certificates)
        self._registration = Registration(self._api, await self._server.start())
        watch = PodWatch(self._api, listed=self._on_list, changed=self._on_change)
        self._services = [asyncio.create_task(watch.run()), asyncio.create_task(self._registration.renew())]

    async def _stop(self) -> list[Exception]:
        tasks = [*self._services, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.stop()
        await self._api.close()
        return [result for result in results if isinstance(result, Exception)]

    def _on_list(self, manifests: Sequence[Json]) -> None:
        present = {manifest["metadata"]["uid"] for manifest in manifests}
        for uid in self._workers.keys() - present:
            self._forget(uid)
        for manifest in manifests:
            self._on_change("MODIFIED", manifest)

    def _on_change(self, kind: str, manifest: Json) -> None:
        pod = Pod.parse(manifest)
        if kind == "DELETED":
            self._forget(pod.uid)
            return
        if pod.node not in self._nodes:
            return
        if pod.uid not in self._workers:
            if pod.finished:
                return  # under an earlier agent; the API server needs no kubelet to delete it
            self._adopt(pod)
        if pod.deletion_grace_seconds is not None:
            self._workers[pod.uid].delete(pod.deletion_grace_seconds)

    def _adopt(self, pod: Pod) -> None:
        folder = self._workspace.path / pod.uid
        folder.mkdir()
        worker = PodWorker(self._api, pod, self._workload(pod))
        self._workers[pod.uid] = worker
        self._tasks[pod.uid] = asyncio.create_task(worker.run())

    def _workload(self, pod: Pod) -> Workload:
        folder = self._workspace.path / pod.uid
        if pod.phase != "Pending":
            # It ran under an earlier agent, and its processes ended with that one.
            return SimulatedPod(pod, folder, node_lost(), self._reader(pod.namespace))
        if self._nodes[pod.node].local:
            return LocalPod(pod, folder, self._local, self._reader(pod.namespace))
        return SimulatedPod(pod, folder, choose(self._scripts, pod), self._reader(pod.namespace))

    def _reader(self, namespace: str) -> Fetch:
        async def fetch(kind: str, name: str) -> dict[str, str] | None:
            path = f"/api/v1/namespaces/{namespace}/{kind}s/{name}"
            try:
                return decode_data(kind, await persist(lambda: self._api.request("GET", path)))
            except ApiError as error:
                if error.status == HTTPStatus.NOT_FOUND:
                    return None
                raise

        return fetch

    def _forget(self, uid: str) -> None:
        worker = self._workers.pop(uid, None)
        if worker is None:
            return
        worker.vanish()
        self._tasks[uid].add_done_callback(lambda _task: self._clean(uid))

    def _clean(self, uid: str) -> None:
        self._tasks.pop(uid, None)
        shutil.rmtree(self._workspace.path / uid, ignore_errors=True)

    async def _silence_node(self, name: str) -> None:
        self._registration.forget(name)
        tasks = [self._tasks[uid] for uid, worker in self._workers.items() if worker.pod.node == name]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _find(self, namespace: str, name: str) -> PodWorker | None:
        # The newest: an older pod of the same name may still be on its way out.
        found = [
            worker for worker in self._workers.values() if (worker.pod.namespace, worker.pod.name) == (namespace, name)
        ]
        return found[-1] if found else None

    async def _on_worker(self, namespace: str, name: str, act: Callable[[PodWorker], None]) -> None:
        worker = self._find(namespace, name)
        if worker is None:
            raise PodNotFoundError(namespace, name)
        act(worker)

    def _call(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_SECONDS)
