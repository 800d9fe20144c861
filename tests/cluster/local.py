"""Containers of a pod on a local node: processes of this machine, with the pod's own command and environment.

No image is pulled. What the image would bring, the machine has to have: `python` is the agent's own, and
`LocalSettings.entrypoint` stands for the image's entry point. Each pod has a folder of its own as home, temporary and
working directory, and its emptyDir volumes in there. Its limits, its security context and other volumes count for
nothing, and it is never restarted, whatever its restartPolicy.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster.environment import Fetch, Mounts, expand, resolve_in_time
from cluster.pods import Container, Pod
from cluster.processes import GuardedProcess
from cluster.states import ContainerState, Interruption, Running, Terminated, Waiting, never_started, now, start_error
from cluster.termination import exit_code, message
from cluster.workload import Publish, States
from inferbench_runner.contract import TERMINATION_PATH_VARIABLE

_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """What this machine gives to the processes of all pods."""

    entrypoint: tuple[str, ...] = ("python", "-m", "inferbench_runner")
    """Command of containers that name none."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that an image would set, such as thread limits and offline switches; the pod's own ones win."""


class LocalPod:
    """Runs the pod's containers side by side."""

    def __init__(self, pod: Pod, folder: Path, settings: LocalSettings, fetch: Fetch) -> None:
        """Take what is needed; nothing is started yet."""
        self.interruption: Interruption | None = None
        self._pod = pod
        self._folder = folder
        self._settings = settings
        self._fetch = fetch
        self._states: list[ContainerState] = [Waiting() for _ in pod.containers]
        self._processes: dict[str, GuardedProcess] = {}
        self._reasons: dict[str, str] = {}
        self._stopping = asyncio.Event()
        self._kill: asyncio.TimerHandle | None = None

    async def run(self, publish: Publish) -> States:
        """Run all containers to their ends."""
        if self._pod.init_containers:
            await self._stay(publish, Waiting("CreateContainerConfigError", "the node agent runs no init containers"))
        try:
            numbered = enumerate(self._pod.containers)
            await asyncio.gather(*(self._run_container(number, item, publish) for number, item in numbered))
        finally:
            if self._kill:
                self._kill.cancel()
            for process in self._processes.values():
                process.stop(grace_seconds=0)  # only when cancelled there are any left
        return tuple(self._states)

    def stop(self, grace_seconds: float) -> None:
        """Send SIGTERM now and SIGKILL after the grace."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._signal(signal.SIGTERM)
        if self._kill:
            self._kill.cancel()
        self._kill = asyncio.get_running_loop().call_later(grace_seconds, self._signal, signal.SIGKILL)

    def kill(self, container: str | None, reason: str) -> None:
        """Send SIGKILL to the container's process group."""
        for name, process in self._processes.items():
            if container in {None, name}:
                self._reasons[name] = reason
                process.signal_group(signal.SIGKILL)

    def log(self, container: str) -> Path:
        """File with standard output and standard error, as they come."""
        return self._folder / f"{container}.log"

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            process.signal_group(number)

    async def _stay(self, publish: Publish, state: Waiting) -> None:
        self._states = [state for _ in self._states]
        await publish(tuple(self._states))
        await self._stopping.wait()

    async def _run_container(self, number: int, container: Container, publish: Publish) -> None:
        mounts = Mounts.create(self._pod, container, self._folder / "volumes")
        env = await self._environment(number, container, mounts, publish)
        if env is None:
            self._states[number] = never_started()
            return
        path = self._folder / f"{container.name}.termination"
        env[TERMINATION_PATH_VARIABLE] = str(path)
        started = now()
        if not self._start(number, container, mounts, env):
            return
        self._states[number] = Running(started)
        await publish(tuple(self._states))
        process = self._processes[container.name]
        # Polling needs neither a thread for each container nor a system with pidfds.
        while process.process.poll() is None:  # noqa: ASYNC110  (see the comment)
            await asyncio.sleep(_POLL_SECONDS)
        code = exit_code(process.reap())
        del self._processes[container.name]
        reason = self._reasons.get(container.name) or ("Error" if code else "Completed")
        text = message(path, self.log(container.name), code=code, from_logs=container.message_from_logs)
        self._states[number] = Terminated(code, reason, text, started, now())
        if any(not isinstance(state, Terminated) for state in self._states):
            await publish(tuple(self._states))

    async def _environment(
        self, number: int, container: Container, mounts: Mounts, publish: Publish
    ) -> dict[str, str] | None:
        """Resolve the environment, as often as it takes; None when the pod is to end before it is there."""

        async def wait(why: str) -> None:
            self._states[number] = Waiting("CreateContainerConfigError", why)
            await publish(tuple(self._states))

        env = await resolve_in_time(self._pod, container, self._fetch, wait, self._stopping)
        if env is None:
            return None
        home = str(self._folder)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"
        own = {"PATH": path, "HOME": home, "TMPDIR": home, "HOSTNAME": self._pod.name}
        # Only what the pod says is about its mounts; our own paths may well lie below the same names.
        return {**own, **self._settings.environment, **{name: mounts.translate(env[name]) for name in env}}

    def _start(self, number: int, container: Container, mounts: Mounts, env: dict[str, str]) -> bool:
        """Start the process; False when there is no such program or folder, and then that is the state."""
        command = [mounts.translate(expand(part, env)) for part in (*container.command, *container.args)]
        if not container.command:
            command = [*self._settings.entrypoint, *command]
        cwd = Path(mounts.translate(container.working_dir)) if container.working_dir else self._folder
        program = shutil.which(command[0], path=env["PATH"])
        if program and cwd.is_dir():
            with self.log(container.name).open("ab") as output:
                self._processes[container.name] = GuardedProcess.start(command, output=output, env=env, cwd=cwd)
            return True
        what = f'exec: "{command[0]}": executable file not found in $PATH' if cwd.is_dir() else f"chdir to cwd ({cwd})"
        text = f"failed to create containerd task: unable to start container process: {what}"
        self._states[number] = start_error(text)
        return False
