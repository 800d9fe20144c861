"""Containers of a pod on a simulated node: no process, only the states of a scripted outcome."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cluster.environment import Fetch, resolve_in_time
from cluster.outcomes import Exits, Interrupted, Outcome, Rejected, Stuck, Text, Unstartable, text_for
from cluster.pods import Container, Pod
from cluster.states import Running, Terminated, Waiting, never_started, now, start_error
from cluster.termination import KILLED, message
from cluster.workload import Publish, States


class SimulatedPod:
    """Plays one outcome, alike for all containers of the pod."""

    def __init__(self, pod: Pod, folder: Path, outcome: Outcome, fetch: Fetch) -> None:
        """Take what is needed; nothing is played yet."""
        self.interruption = outcome.interruption if isinstance(outcome, Rejected) else None
        self._pod = pod
        self._folder = folder
        self._outcome = outcome
        self._fetch = fetch
        self._ended = asyncio.Event()
        self._killed_for: str | None = None

    async def run(self, publish: Publish) -> States:
        """Play to the end."""
        match self._outcome:
            case Stuck():
                return await self._stay(self._outcome, publish)
            case Exits() | Interrupted():
                return await self._play(self._outcome, publish)
            case Unstartable():
                return self._for_all(start_error(self._outcome.message))
            case Rejected():
                return self._for_all(never_started())

    def stop(self, grace_seconds: float) -> None:
        """End the play now; a scripted container never needs its grace."""
        del grace_seconds
        self._ended.set()

    def kill(self, container: str | None, reason: str) -> None:
        """End the play with exit code 137; all containers end together."""
        del container
        self._killed_for = reason
        self._ended.set()

    def log(self, container: str) -> Path:
        """File with the scripted log."""
        return self._folder / f"{container}.log"

    async def _stay(self, outcome: Stuck, publish: Publish) -> States:
        for state in outcome.states:
            await publish(tuple(self._named(state, container) for container in self._pod.containers))
            if await self._ended_within(outcome.every):
                break
        await self._ended.wait()
        return self._for_all(never_started())

    def _named(self, state: Waiting, container: Container) -> Waiting:
        pod = self._pod
        message = state.message.format(
            image=container.image, container=container.name, pod=pod.name, namespace=pod.namespace, uid=pod.uid
        )
        return Waiting(state.reason, message)

    async def _play(self, outcome: Exits | Interrupted, publish: Publish) -> States:
        if not await self._is_configured(publish) or await self._ended_within(outcome.start_delay):
            return self._for_all(never_started())
        started = now()
        for container in self._pod.containers:
            self.log(container.name).write_text(text_for(outcome.log, self._pod), encoding="utf-8")
        await publish(self._for_all(Running(started)))
        stopped = await self._ended_within(outcome.run_seconds)
        code, reason, text = self._end(outcome, stopped=stopped)
        written = text_for(text, self._pod).encode()
        ended = now()
        return tuple(
            Terminated(code, reason, self._message(container, written, code), started, ended)
            for container in self._pod.containers
        )

    def _message(self, container: Container, written: bytes, code: int) -> str:
        path = self._folder / f"{container.name}.termination"
        path.write_bytes(written)
        return message(path, self.log(container.name), code=code, from_logs=container.message_from_logs)

    def _end(self, outcome: Exits | Interrupted, *, stopped: bool) -> tuple[int, str, Text]:
        if self._killed_for is not None:
            return KILLED, self._killed_for, ""
        if isinstance(outcome, Interrupted):
            if not stopped:
                self.interruption = outcome.interruption
            return KILLED, "Error", outcome.message
        code, text = (
            (outcome.stopped_exit_code, outcome.stopped_message) if stopped else (outcome.exit_code, outcome.message)
        )
        reason = None if stopped else outcome.reason
        return code, reason or ("Error" if code else "Completed"), text

    async def _is_configured(self, publish: Publish) -> bool:
        """Wait until all that the containers' environment names is there; False when the pod is to end before that."""

        async def wait(why: str) -> None:
            await publish(self._for_all(Waiting("CreateContainerConfigError", why)))

        for container in self._pod.containers:
            if await resolve_in_time(self._pod, container, self._fetch, wait, self._ended) is None:
                return False
        return True

    def _for_all(self, state: Waiting | Running | Terminated) -> States:
        return tuple(state for _ in self._pod.containers)

    async def _ended_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(None if seconds == float("inf") else seconds):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True
