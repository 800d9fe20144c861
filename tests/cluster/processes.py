"""Start programs that end with us, whatever becomes of us; see `guard.py` for how."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_GUARD = Path(__file__).with_name("guard.py")


@dataclass(frozen=True, slots=True)
class GuardedProcess:
    """A running program that leads a process group of its own."""

    process: subprocess.Popen[bytes]
    lifeline: int
    """Our end of the pipe to the watcher."""

    @classmethod
    def start(
        cls, command: Sequence[str], *, output: IO[bytes], env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> GuardedProcess:
        """Start `command` with its standard output and error going to `output`."""
        theirs, ours = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARD), str(theirs), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=cwd,
                pass_fds=(theirs,),
                start_new_session=True,
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        return cls(process, ours)

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the program and its descendants; nothing happens when all have ended."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def stop(self, grace_seconds: float) -> int:
        """Ask the program to end, kill it after the grace, and return its exit code as Popen has it."""
        if self.process.poll() is None:
            self.signal_group(signal.SIGTERM)
            try:
                self.process.wait(timeout=grace_seconds)
            except subprocess.TimeoutExpired:
                self.signal_group(signal.SIGKILL)
        return self.reap()

    def reap(self) -> int:
        """Wait for the end of the program, kill what it left running, dismiss the watcher; call it once."""
        code = self.process.wait()
        self.signal_group(signal.SIGKILL)
        with suppress(BrokenPipeError):
            os.write(self.lifeline, b"x")
        os.close(self.lifeline)
        return code
