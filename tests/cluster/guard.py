"""Run a command so that it cannot outlive the process that asked for it, not even when that one is killed.

`guard.py FD COMMAND...` becomes COMMAND, after it has left a watcher behind. The starter holds the other end of the
pipe FD: one byte on it dismisses the watcher; its end without that byte means that the starter died, and the watcher
kills the command's whole process group. A death signal (PR_SET_PDEATHSIG) would not reach the
command's own children, and would come already when the starting *thread* ends.

It runs as a script of its own under `python -I -S`, so it imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def watch(lifeline: int, group: int) -> None:
    """Wait for the starter's byte or its death; in the latter case kill the process group."""
    # Not to hold a terminal, or the pipe of somebody who reads the command's output to its end.
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.chdir("/")
    if not os.read(lifeline, 1):
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it may have ended by itself
            os.killpg(group, signal.SIGKILL)


def main() -> None:
    """Leave the watcher behind and become the command."""
    lifeline, command = int(sys.argv[1]), sys.argv[2:]
    group = os.getpid()  # the starter made this process the leader of a session, hence of a group
    middle = os.fork()
    if middle == 0:
        # A session of its own, so that a signal to the group leaves the watcher alone; a second fork, so that the
        # command does not find a child that it never started.
        os.setsid()
        if os.fork() == 0:
            watch(lifeline, group)
        os._exit(0)
    os.waitpid(middle, 0)
    os.close(lifeline)
    # Python ignores these two, and a new program would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606  (no shell is wanted)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        os._exit(127)


if __name__ == "__main__":
    main()
