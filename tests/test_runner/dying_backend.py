"""A back end whose process dies where the plan says so; opened by name in the processes that tests start.

The plan's model revision says how, in which phase, on which shape (by length) and in which process, counted from 0:
"SIGKILL measure 16 0". The model id is a directory, in which each process leaves a file when it opens the back end.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inferbench_runner.backends.base import Bound, Rows, Source
from inferbench_runner.contract import Compilation, Correctness, ModelRef, Phase, Plan, Shape
from inferbench_runner.probe import Host

PERFECT = Correctness(
    reference="itself",
    cosine_similarity="1",
    min_cosine_similarity="1",
    max_relative_error="0",
    max_relative_error_allowed="0",
)

HELD: list[bytearray] = []

STARTED: list[subprocess.Popen[bytes]] = []


class DyingBackend:
    """Back end and model in one."""

    facts: dict[str, str] = {}  # noqa: RUF012  # never written

    def __init__(self, plan: Plan) -> None:
        """Read what the plan asks for, and count this process."""
        self.how, phase, length, process = (plan.model.revision or "").split()
        self.phase, self.length = Phase(phase), int(length)
        marks = Path(plan.model.id)
        self.here = len(list(marks.iterdir())) == int(process)
        (marks / str(os.getpid())).touch()
        self.calls = 0
        self.reach(Phase.PROBE)

    def reach(self, phase: Phase, shape: Shape | None = None) -> None:
        """Die if this is the place."""
        if self.here and phase is self.phase and (shape is None or shape.sequence_length == self.length):
            die(self.how)

    def fetch(self, _model: ModelRef) -> Source:
        """Fetch nothing."""
        self.reach(Phase.FETCH)
        return Source()

    def load(self, _model: ModelRef, _source: Source) -> DyingBackend:
        """Be the model too."""
        self.reach(Phase.LOAD)
        return self

    def refer(self, _shape: Shape, _known: Rows | None = None) -> Rows:
        """Compute nothing."""
        return ()

    compiles = True

    def compile(self, shape: Shape) -> Compilation:
        """Make nothing."""
        self.reach(Phase.COMPILE, shape)
        return Compilation(milliseconds=0, compiler="none")

    def verify(self, shape: Shape) -> Correctness:
        """Accept every shape."""
        self.reach(Phase.VERIFY, shape)
        return PERFECT

    @contextmanager
    def bound(self, shape: Shape) -> Iterator[Bound]:
        """Yield a call of a few microseconds; the eleventh is the first that is measured."""
        made = 0

        def call() -> None:
            nonlocal made
            made += 1
            self.reach(Phase.WARMUP if made == 1 else Phase.MEASURE if made == 20 else Phase.REPORT, shape)
            time.sleep(0.0001)

        yield Bound(call)


def die(how: str) -> None:
    """End this process, or hang, or start what goes on by itself, as a compiler does that its caller waits for."""
    match how:
        case "compiler":
            STARTED.append(subprocess.Popen(["/bin/sleep", "1000"]))
        case "hang":
            while True:
                time.sleep(3600)
        case "exit":
            os._exit(3)
        case "memory":
            # As under a memory limit that refuses instead of killing: the allocation fails.
            used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, resource.RLIM_INFINITY))
            try:
                HELD.append(bytearray(2**30))
            finally:
                resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        case "fill":
            while True:
                HELD.append(bytearray(os.urandom(2**20)) * 16)
        case _:
            os.kill(os.getpid(), signal.Signals[how])
            time.sleep(3600)


def open_dying(plan: Plan, _host: Host) -> DyingBackend:
    """Stand in for `open_backend`."""
    return DyingBackend(plan)
