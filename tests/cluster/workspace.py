"""Temporary folders that are cleared away even when their owner is killed: the next owner does it.

Each folder's name holds its owner's process id, and a lock inside, which the system releases with the owner's death,
tells whether it is still in use (a process id alone may have been given to somebody else since).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PREFIX: Final = "inferbench-cluster-"
_LOCK = "owner.lock"


@dataclass(frozen=True, slots=True)
class Workspace:
    """A private temporary folder and the lock that marks it as used."""

    path: Path
    lock: int

    @classmethod
    def create(cls) -> Workspace:
        """Make a folder of our own, after the folders of dead owners were removed."""
        remove_stale()
        path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        lock = os.open(path / f"{_LOCK}.new", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Only a lock that is held ever appears under the name that others look at.
        (path / f"{_LOCK}.new").rename(path / _LOCK)
        return cls(path, lock)

    def remove(self) -> None:
        """Delete the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def remove_stale() -> list[Path]:
    """Remove the folders whose owners are dead; return them."""
    removed = []
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if _is_stale(path):
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
    return removed


def _is_stale(path: Path) -> bool:
    owner = path.name.removeprefix(PREFIX).partition("-")[0]
    if not owner.isdecimal() or path.stat().st_uid != os.getuid():
        return False
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return not _is_alive(int(owner))  # it died, or is still, between making the folder and locking it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(lock)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
