"""A measuring process, seen from both ends: `serve` runs in it, `Child` holds it.

Each is a fresh interpreter, so that nothing of one measurement (heap, device context, compiled code) reaches the next,
and so that a crash ends one shape and not the run. The supervisor blocks on the pipe while a child works: it takes no
processor time from what is measured.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, Protocol

from inferbench_runner.clock import NS_PER_SECOND, now_ns
from inferbench_runner.contract import Phase, Plan, Profile
from inferbench_runner.errors import (
    OutOfMemoryError,
    ProcessCrashedError,
    ProcessExitedError,
    ProcessHungError,
    ProcessKilledError,
    RunnerError,
)
from inferbench_runner.measure import WARMUP_NS
from inferbench_runner.probe import descendants, oom_kills
from inferbench_runner.scratch import SCRATCH_VARIABLE
from inferbench_runner.worker import Command, OpenBackend, Reply, Worker

FIRST_VICTIM: Final = "1000"
"""Out-of-memory score that makes the kernel end the child and not the supervisor, which can still report."""

LEAVE_SECONDS: Final = 10
"""Time that a child gets to let its device go."""

STOPS: Final = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals that come from outside; all others are a crash of the process itself."""


@dataclass(frozen=True)
class Patience:
    """Seconds after which a child that does not answer is held to hang."""

    prepare: int = 1800
    """Imports, download and loading."""
    bind: int = 900
    """One reference output on the CPU, or one output that is compared with it."""
    warmup: int = WARMUP_NS // NS_PER_SECOND
    """Longest warm-up."""
    grace: int = 60
    """On top of the time that a warm-up or a round may take."""


ALLOCATOR: Final = {"MALLOC_MMAP_THRESHOLD_": str(32 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(4 * 2**30)}
"""Bytes from which on glibc asks the kernel for memory of its own, and which it keeps before it gives any back.

Without these it moves both with each block that is freed, so that whether a call's memory is there, or comes page by
page from the kernel, depends on what was called before: at 512 tokens that was a tenth of the latency. The first is
the largest it takes. Where they are set, in runner.env, or another allocator is loaded, that stays.
"""


class ChildDiedError(Exception):
    """Retry: as its cause says. A measuring process ended, or was ended, before it had answered."""

    def __init__(self, cause: RunnerError) -> None:
        """Hold the typed reason."""
        self.cause = cause
        super().__init__(str(cause))

    @property
    def hung(self) -> bool:
        """Whether it was ended because it did not answer in time."""
        return isinstance(self.cause, ProcessHungError)


class Servant(Protocol):
    """Who carries commands out: a process, or in tests the worker itself."""

    def ask(self, command: Command, seconds: float, on_phase: Callable[[Phase], object]) -> Reply:
        """Return the reply to a command; raise `ChildDiedError` where there is none within so many seconds."""
        ...

    def close(self) -> None:
        """Let it go in peace."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


def serve(connection: Connection, plan: Plan, open_backend: OpenBackend) -> None:
    """Carry out commands until the supervisor closes the pipe, or is gone."""
    # Ctrl-C reaches the whole group; the supervisor alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Standard output belongs to the report; what a library prints goes the way of all other talk.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_VICTIM, encoding="ascii")
    worker = Worker(plan, open_backend, on_phase=connection.send)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            connection.send(worker.handle(connection.recv()))
    worker.close()
    sys.stderr.flush()
    # Taking a model library's interpreter down costs a second, and its complaints would end up in the log.
    os._exit(0)


class Child:
    """A measuring process and the pipe to it."""

    def __init__(self, plan: Plan, open_backend: OpenBackend, scratch: Path | None = None) -> None:
        """Start it, with a folder that it shares with the other processes of its run."""
        context = get_context("spawn")
        self._oom_kills = oom_kills()
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, plan, open_backend), daemon=True)
        allocator = {} if plan.measurement.profile is Profile.LEGACY_2023 else ALLOCATOR
        with _environment(allocator | ({SCRATCH_VARIABLE: str(scratch)} if scratch else {})):
            self._process.start()
        # Only the child holds the other end now, so that its death is the end of the stream.
        theirs.close()

    def ask(self, command: Command, seconds: float, on_phase: Callable[[Phase], object]) -> Reply:
        """Return the reply to a command, and tell of each phase that the child enters meanwhile.

        Raises:
            ChildDiedError: The child ended, or did not answer in time and was ended.
        """
        deadline = now_ns() + round(seconds * NS_PER_SECOND)
        try:
            self._connection.send(command)
            while self._connection.poll(max(deadline - now_ns(), 0) / NS_PER_SECOND):
                message = self._connection.recv()
                if isinstance(message, Reply):
                    return message
                on_phase(Phase(message))
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise ChildDiedError(self._post_mortem()) from error
        self.kill()
        raise ChildDiedError(ProcessHungError(round(seconds)))

    def close(self) -> None:
        """Close the pipe, which ends the child, and wait for it."""
        self._connection.close()
        self._process.join(LEAVE_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End it at once, if it still lives, and a compiler that it has started."""
        started = descendants(self._process.pid) if self._process.is_alive() and self._process.pid else []
        self._process.kill()
        self._process.join()
        for number in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    def _post_mortem(self) -> RunnerError:
        self._process.join(LEAVE_SECONDS)
        code = self._process.exitcode
        if code is None:
            self.kill()
            return ProcessHungError(LEAVE_SECONDS)
        if code >= 0:
            return ProcessExitedError(code)
        if -code == signal.SIGKILL and self._killed_for_memory():
            return OutOfMemoryError("the kernel ended the measuring process")
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return ProcessKilledError(name) if -code in STOPS else ProcessCrashedError(name)

    def _killed_for_memory(self) -> bool:
        now = oom_kills()
        return now is not None and now > (self._oom_kills or 0)


@contextlib.contextmanager
def _environment(defaults: Mapping[str, str]) -> Iterator[None]:
    """Let a process that is started meanwhile have these variables, unless this one has others."""
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
