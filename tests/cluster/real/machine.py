"""What a real node asks of the machine: root on Linux, a lock, an address, and a guard that takes all away again."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from cluster.errors import ClusterError
from cluster.go_program import Progress
from cluster.real import cleanup
from cluster.real.packages import Programs

# Some of those that are set aside for measuring networks; nobody else's packets have one.
_ADDRESSES: Final = tuple(f"198.18.0.{last}" for last in range(1, 255))
# In the abstract namespace, where an address goes with the last process that holds it.
_LOCK: Final = "\0inferbench-node"
# Numbers of capabilities, as in the kernel's headers.
_NET_ADMIN: Final = 12
_SYS_ADMIN: Final = 21
# A starter that was killed is still being cleaned up after for some seconds.
_LOCK_SECONDS: Final = 60.0


class NodeUnavailableError(ClusterError):
    """This machine can't have a real node, or not now."""


class CleanupError(ClusterError):
    """Something of the node is still there."""

    def __init__(self, output: str) -> None:
        """Say what happened and what to do."""
        super().__init__(
            f"Not all of the node could be taken away:\n{output.strip()}\nThe next start tries again; what it needs to "
            f"know is in {cleanup.RECORD}."
        )


@dataclass(frozen=True, slots=True)
class Claim:
    """This machine, held for one node."""

    address: str
    """The node's, on the loopback device."""
    _guard: subprocess.Popen[str]
    _lock: socket.socket

    @classmethod
    def take(cls, programs: Programs, progress: Progress) -> Self:
        """Take the machine, after what an earlier node has left was taken away.

        Raises:
            NodeUnavailableError: It is not ours to take.
            CleanupError: What an earlier node has left can't be taken away.
        """
        _refuse_unless_root_on_linux()
        lock = _lock()
        try:
            if left := cleanup.Record.read():
                progress("Taking away what an earlier node has left behind.")
                _undo(left)
            _refuse_beside_another_node(programs)
            address = _free_address()
            record = cleanup.Record(
                owner=os.getpid(),
                address=address,
                sysctls=cleanup.read_sysctls(),
                present=tuple(str(path) for path in cleanup.SHARED if path.exists()),
                ip=(str(programs.busybox), "ip"),
                nft=(str(programs.nft),),
                environment=programs.search_paths,
            )
            record.write()
            claim = cls(address, _start_guard(lock), lock)
        except BaseException:
            lock.close()
            raise
        try:
            run(programs, *record.ip, "address", "add", f"{address}/32", "dev", "lo")
            _make_cgroups()
        except BaseException:
            claim.release()
            raise
        return claim

    def release(self) -> None:
        """Have the guard take everything away, and give the machine back.

        Raises:
            CleanupError: Something is still there.
        """
        output, _ = self._guard.communicate()
        self._lock.close()
        if self._guard.returncode:
            raise CleanupError(output)


def _make_cgroups() -> None:
    try:
        cleanup.make_cgroups()
    except OSError as error:
        message = f"Control groups can't be made here ({error}): this may be a container, and a node needs a machine."
        raise NodeUnavailableError(message) from error


def run(programs: Programs, *command: str) -> str:
    """Run one of the programs and return what it prints.

    Raises:
        NodeUnavailableError: It failed.
    """
    environment = {**os.environ, **programs.search_paths}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"{' '.join(command)} failed: {done.stderr.strip()}"
        raise NodeUnavailableError(message)
    return done.stdout


def _undo(left: cleanup.Record) -> None:
    try:
        cleanup.undo(left)
    except OSError as error:
        raise CleanupError(str(error)) from error


def _refuse_unless_root_on_linux() -> None:
    # In a container, root may be without these.
    if sys.platform != "linux" or os.geteuid() != 0 or not _may(_NET_ADMIN, _SYS_ADMIN):
        message = (
            "A real node needs Linux and root, for control groups, mounts and links: run this as root on a machine of "
            "its own, or in a virtual one."
        )
        raise NodeUnavailableError(message)


def _may(*capabilities: int) -> bool:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return all(int(fields["CapEff"], 16) >> one & 1 for one in capabilities)


def _lock() -> socket.socket:
    """Take the lock, which we and the guard hold."""
    lock = socket.socket(socket.AF_UNIX)
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            lock.bind(_LOCK)
        except OSError:
            record = cleanup.Record.read()
            if time.monotonic() > deadline or (record and Path(f"/proc/{record.owner}").exists()):
                lock.close()
                owner = f"process {record.owner}" if record else "another process"
                message = f"This machine has a real node already, of {owner}, and can have one at a time."
                raise NodeUnavailableError(message) from None
        else:
            return lock
        time.sleep(0.2)


def _refuse_beside_another_node(programs: Programs) -> None:
    """Refuse where somebody else's kubelet or kube-proxy has its fixed places."""
    with socket.socket(socket.AF_UNIX) as probe:
        kubelet = probe.connect_ex(str(cleanup.KUBELET_SOCKET)) == 0
    if kubelet or "kube-proxy" in run(programs, str(programs.nft), "list", "tables"):
        message = (
            "This machine is a node of a cluster already: it has a kubelet, or a kube-proxy's tables of nftables. Use "
            "another machine, or stop them and remove the tables."
        )
        raise NodeUnavailableError(message)


def _free_address() -> str:
    """Return the first of the addresses that no interface of this machine has."""
    for address in _ADDRESSES:
        with socket.socket() as probe:
            try:
                probe.bind((address, 0))
            except OSError:
                return address
    message = f"All addresses from {_ADDRESSES[0]} to {_ADDRESSES[-1]} are taken."
    raise NodeUnavailableError(message)


def _start_guard(lock: socket.socket) -> subprocess.Popen[str]:
    """Start the process that undoes the node when its standard input ends, with us or before."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", cleanup.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=(lock.fileno(),),
        start_new_session=True,
    )
