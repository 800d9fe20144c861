"""How a container's end is told, with the kubelet's limits: exit codes and termination messages."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final

MESSAGE_BYTES: Final = 4096
"""The kubelet keeps this much of the termination message file: its end."""
LOG_BYTES: Final = 2048
LOG_LINES: Final = 80

KILLED: Final = 128 + signal.SIGKILL


def exit_code(returned: int) -> int:
    """A container's exit code for what `Popen.returncode` says, where a signal counts negative."""
    return returned if returned >= 0 else 128 - returned


def message(path: Path, log: Path, *, code: int, from_logs: bool) -> str:
    """The termination message: the end of the file, or that of the log where the policy allows for it.

    Args:
        path: File that stands for the container's terminationMessagePath; need not exist.
        log: The container's output.
        code: Exit code; the log counts for failures only.
        from_logs: Whether terminationMessagePolicy is FallbackToLogsOnError.
    """
    written = _end(path, MESSAGE_BYTES)
    if not written and from_logs and code:
        written = b"".join(_end(log, LOG_BYTES * LOG_LINES).splitlines(keepends=True)[-LOG_LINES:])[-LOG_BYTES:]
    # A cut character and other invalid bytes become replacement characters on their way through the API server.
    return written.decode("utf-8", errors="replace")


def _end(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - limit))
            return file.read(limit)
    except FileNotFoundError:
        return b""
