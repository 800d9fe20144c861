"""One pod on one node, from its binding to its removal: drives the workload and writes the pod's status.

    bound -> Pending (ContainerCreating) -> Running -> Succeeded or Failed -> (deleted by somebody) -> removed

A pod that ends by itself is first shown as running with containers that have ended, until its sandbox is gone.

A deletion is a kubelet's to finish: end the containers within the grace, write the last status, and only then remove
the object. A node's own interruption (deadline, eviction) ends the pod as Failed and leaves the object.
"""

from __future__ import annotations

import asyncio
from functools import partial
from http import HTTPStatus

from cluster.api import STRATEGIC_PATCH, Api, ApiError, persist
from cluster.pods import Json, Pod
from cluster.states import DEADLINE_EXCEEDED, ContainerState, Interruption, Terminated, Waiting, now, pod_status
from cluster.workload import States, Workload


class PodWorker:
    """Owns one pod; all its methods are called in the agent's event loop."""

    def __init__(self, api: Api, pod: Pod, workload: Workload) -> None:
        """Take over the pod; `run()` does the work."""
        self.pod = pod
        self.workload = workload
        self.states: States = tuple(Waiting() for _ in pod.containers)
        self._api = api
        self._path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        self._started = now()
        self._interruption: Interruption | None = None
        self._deleting = asyncio.Event()
        self._gone = False

    async def run(self) -> None:
        """Bring the pod to its end, then wait until it is deleted, and remove it."""
        deadline = None
        if self.pod.active_deadline_seconds is not None:
            loop, grace = asyncio.get_running_loop(), self.pod.grace_seconds
            seconds = self.pod.active_deadline_seconds
            deadline = loop.call_later(seconds, partial(self.interrupt, DEADLINE_EXCEEDED, grace_seconds=grace))
        try:
            if self.workload.interruption is None:
                await self._publish(self.states)
            states = await self.workload.run(self._publish)
        finally:
            if deadline:
                deadline.cancel()
        self._interruption = self._interruption or self.workload.interruption
        await self._publish_before_last(states)
        await self._publish(states)
        await self._deleting.wait()
        await self._remove()

    def interrupt(self, interruption: Interruption, *, grace_seconds: float) -> None:
        """End the pod from the node's side; nothing happens to one that has ended."""
        if not self.finished:
            self._interruption = interruption
            self.workload.stop(grace_seconds)

    def delete(self, grace_seconds: float) -> None:
        """Somebody deletes the pod."""
        self._deleting.set()
        self.workload.stop(grace_seconds)

    def vanish(self) -> None:
        """The object is gone already: end the containers at once and write nothing more."""
        self._gone = True
        self.delete(0)

    @property
    def finished(self) -> bool:
        """Whether all containers have ended."""
        return all(isinstance(state, Terminated) for state in self.states)

    def state(self, container: str) -> ContainerState | None:
        """Present state of a container by name."""
        names = [item.name for item in self.pod.containers]
        return self.states[names.index(container)] if container in names else None

    async def _publish_before_last(self, states: States) -> None:
        """Write what a kubelet writes on the way to the end."""
        waiting = any(isinstance(state, Waiting) for state in self.states)
        if self._interruption:
            if waiting and not self._interruption.rejection:
                await self._publish(self.states, final=True)
        elif not self._deleting.is_set():
            await self._publish(states, ending=True)
        elif waiting:
            await self._publish(tuple(Waiting() for _ in states))

    async def _publish(self, states: States, *, ending: bool = False, final: bool = False) -> None:
        self.states = states
        if self._gone:
            return
        # An interruption shows only once no container runs any more, as the phase is final.
        interruption = self._interruption if final or self.finished else None
        status = pod_status(self.pod, states, started=self._started, interruption=interruption, ending=ending)
        # The uid refuses the write for a later pod of the same name.
        body = {"metadata": {"uid": self.pod.uid}, "status": status}
        await self._unless_gone("PATCH", f"{self._path}/status", body, content_type=STRATEGIC_PATCH)

    async def _remove(self) -> None:
        if not self._gone:
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.pod.uid}}
            await self._unless_gone("DELETE", self._path, options)

    async def _unless_gone(self, method: str, path: str, body: Json, content_type: str = "application/json") -> None:
        try:
            await persist(lambda: self._api.request(method, path, body, content_type=content_type))
        except ApiError as error:
            if error.status not in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
                raise
            self.vanish()
