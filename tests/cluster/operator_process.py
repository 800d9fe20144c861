"""Run the operator against a cluster as in production: a process of its own under its own service account.

Used by the end-to-end tests, which also kill it, and by the demo.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from cluster.errors import ComponentError
from cluster.ports import free_ports
from cluster.processes import GuardedProcess

REPOSITORY: Final = Path(__file__).parents[2]
CRDS: Final = tuple(sorted((REPOSITORY / "crds").glob("*.yaml")))
ROLES: Final = REPOSITORY / "charts" / "inferbench" / "rbac.yaml"
NAMESPACED_ROLE: Final = ROLES.with_name("rbac-namespaced.yaml")
SERVICE_ACCOUNT: Final = "inferbench-system/inferbench-operator"

_NAME: Final = "the operator"
_READY_SECONDS: Final = 60.0
_GRACE_SECONDS: Final = 30.0


@dataclass(slots=True)
class OperatorProcess:
    """The operator as a process of this machine; a context manager, or `start()` and `stop()`."""

    kubeconfig: Path
    """Of the operator's service account."""
    log: Path
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables besides those of this process."""
    metrics_port: int = field(default_factory=lambda: free_ports(1)[0])
    _process: GuardedProcess | None = None

    def __enter__(self) -> Self:
        """Start it."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop it."""
        self.stop()

    def start(self) -> Self:
        """Start it and return when it answers on /metrics, that is after it has listed all that it may.

        Raises:
            ComponentError: It ended, or did not answer in time; the message holds the end of its log.
        """
        command = [sys.executable, "-m", "inferbench_operator", "--metrics-address=127.0.0.1"]
        command += [f"--metrics-port={self.metrics_port}", *self.arguments]
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PYTHONUNBUFFERED": "1", **self.environment}
        with self.log.open("ab") as output:
            self._process = GuardedProcess.start(command, output=output, env=environment)
        deadline = time.monotonic() + _READY_SECONDS
        while not self._answers():
            if self._process.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise ComponentError(_NAME, "was not ready", self.log)
            time.sleep(0.05)
        return self

    def stop(self) -> int | None:
        """Ask it to end, wait, and return its exit code; None if it does not run."""
        process, self._process = self._process, None
        return process.stop(_GRACE_SECONDS) if process else None

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would."""
        process, self._process = self._process, None
        if process:
            process.signal_group(signal.SIGKILL)
            process.reap()

    @property
    def pid(self) -> int:
        """Process id; 0 while it does not run."""
        return self._process.process.pid if self._process else 0

    def metrics(self) -> str:
        """Return what a scrape of /metrics gives."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            body: bytes = answer.read()
        return body.decode()

    def _answers(self) -> bool:
        try:
            self.metrics()
        except OSError:
            return False
        return True
