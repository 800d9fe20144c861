"""Take away all that a real node leaves on the machine, whatever became of the one who started it.

Containers outlive their kubelet and containerd, and mounts, control groups, links and tables of the kernel outlive
everything. So a node is undone by a process of its own, the guard, which waits until the starter closes its end of a
pipe or dies, and then kills, unmounts and removes. Where the guard itself was killed, the next start does the same from
the record.

The paths are fixed, because a machine can have one node at a time: tables and control groups are global.

The guard runs as a script of its own under `python -I -S`, so it imports nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

RUN: Final = Path("/run/inferbench-node")
"""Sockets, settings, and what a restart of the machine would take away."""
DATA: Final = Path("/var/lib/inferbench-node")
"""Images, volumes, logs."""
RECORD: Final = RUN / "record.json"
CONTAINERD_SOCKET: Final = RUN / "containerd.sock"
CONTAINERD_CONFIG: Final = RUN / "containerd.toml"
KUBELET_SOCKET: Final = Path("/var/lib/kubelet/device-plugins/kubelet.sock")
"""For device plugins; the kubelet has it there whatever its root folder."""
KUBELET_CONFIG: Final = RUN / "kubelet.json"
PROXY_CONFIG: Final = RUN / "kube-proxy.json"
CGROUP: Final = "inferbench"
"""Control group above those of all pods, in every hierarchy."""
NETWORK: Final = "inferbench"
"""Of the CNI plugins."""
BRIDGE: Final = "inferbench0"
# What the kubelet, kube-proxy and the CNI plugins set.
SYSCTLS: Final = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "net/ipv4/conf/all/route_localnet",
    "net/ipv4/ip_forward",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)
# Folders with fixed names, in which others may have files, too.
SHARED: Final = (
    Path("/run/containerd"),
    Path("/run/netns"),
    Path("/var/lib/cni"),
    Path("/var/lib/kubelet"),
    Path("/var/log/containers"),
)

_PATIENCE_SECONDS: Final = 60.0
_CGROUPS: Final = Path("/sys/fs/cgroup")
_TASKS: Final = RUN / "containerd" / "io.containerd.runtime.v2.task"
_CHECKPOINT: Final = KUBELET_SOCKET.with_name("kubelet_internal_checkpoint")
_SANDBOXES: Final = DATA / "containerd" / "io.containerd.grpc.v1.cri" / "sandboxes"
_LOG_LINKS: Final = Path("/var/log/containers")
_CNI_RESULTS: Final = Path("/var/lib/cni/results")


@dataclass(frozen=True, slots=True)
class Record:
    """What has to be known to undo a node; written before anything is done."""

    owner: int
    """Process id of the starter."""
    address: str
    sysctls: Mapping[str, str]
    """Values from before, by path below /proc/sys."""
    present: tuple[str, ...]
    """Those of the shared folders that were there before."""
    ip: tuple[str, ...]
    nft: tuple[str, ...]
    environment: Mapping[str, str]
    """Environment for these two commands."""

    def write(self) -> None:
        """Write it to its place."""
        RUN.mkdir(mode=0o700, exist_ok=True)
        unfinished = RECORD.with_suffix(".new")
        unfinished.write_text(json.dumps(asdict(self)), encoding="utf-8")
        unfinished.rename(RECORD)

    @classmethod
    def read(cls) -> Record | None:
        """Read that of a node that is there, or was not undone; None without one."""
        try:
            found = json.loads(RECORD.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        parts = {key: tuple(found[key]) for key in ("present", "ip", "nft")}
        return cls(**(found | parts))


def read_sysctls() -> dict[str, str]:
    """Return the values that are to be put back in the end."""
    found = {name: Path("/proc/sys", name) for name in SYSCTLS}
    return {name: path.read_text().strip() for name, path in found.items() if path.exists()}


def hierarchies() -> list[Path]:
    """Return the root of each hierarchy of control groups: one in version 2, many in version 1."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    # Beside those of version 1 there may be one of version 2, without controllers, that runc uses as well.
    roots = (path for path in sorted(_CGROUPS.iterdir()) if not path.is_symlink())
    return [path for path in roots if (path / "cgroup.procs").exists()]


def make_cgroups() -> None:
    """Make the control group that the kubelet is told to use."""
    for root in hierarchies():
        (root / CGROUP).mkdir(exist_ok=True)


def undo(record: Record) -> None:
    """Take everything away."""
    stop_everything()
    _put_network_back(record)
    for name, value in record.sysctls.items():
        Path("/proc/sys", name).write_text(value)
    _clear_shared_folders(record)
    shutil.rmtree(DATA, ignore_errors=True)
    shutil.rmtree(RUN, ignore_errors=True)
    for folder in (DATA, RUN):
        if folder.exists():
            message = f"{folder} could not be removed"
            raise OSError(message)


def stop_everything() -> None:
    """End all processes of the node at once and free what they held, as a power failure of the node would."""
    _until("all processes have ended", lambda: not _kill())
    _until("nothing is mounted", lambda: not _unmount())
    _until("no control group is left", lambda: not _remove_cgroups())
    for path in _TASKS.glob("*/*/address"):
        Path(path.read_text().removeprefix("unix://")).unlink(missing_ok=True)
    for name in ("addresses", "containerd", "runc"):
        shutil.rmtree(RUN / name, ignore_errors=True)


def _until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            message = f"It did not happen within {_PATIENCE_SECONDS:g} s that {what}."
            raise TimeoutError(message)
        time.sleep(0.05)


def _kill() -> set[int]:
    """Send SIGKILL to all processes of the node and return those that were there."""
    found = {*_own_processes(), *_contained_processes()}
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


def _own_processes() -> Iterator[int]:
    """Yield the node's programs, and containerd's shims, which know its socket."""
    own = {f"--config={path}".encode() for path in (CONTAINERD_CONFIG, KUBELET_CONFIG, PROXY_CONFIG)}
    own.add(str(CONTAINERD_SOCKET).encode())
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if not own.isdisjoint(path.read_bytes().split(b"\0")):
                yield int(path.parent.name)


def _contained_processes() -> Iterator[int]:
    for root in hierarchies():
        for path in (root / CGROUP).glob("**/cgroup.procs"):
            with suppress(OSError):
                yield from map(int, path.read_text().split())


def _unmount() -> list[str]:
    """Unmount all that is below the node's folders and return what was mounted."""
    inside = tuple(f"{folder}/" for folder in (RUN, DATA))
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    found = [point for point in points if point.startswith(inside)]
    for point in reversed(found):
        subprocess.run(["/bin/umount", "--lazy", point], check=False, capture_output=True)
    return found


def _remove_cgroups() -> list[Path]:
    """Remove the node's control groups and return those that still have a process."""
    tops = [root / CGROUP for root in hierarchies()]
    for top in tops:
        for folder, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):
                Path(folder).rmdir()
    return [top for top in tops if top.exists()]


def _put_network_back(record: Record) -> None:
    def run(*command: str) -> str:
        # What is not there need not be removed.
        done = subprocess.run(command, env=record.environment, capture_output=True, text=True, check=False)
        return done.stdout

    run(*record.ip, "link", "delete", BRIDGE)
    run(*record.ip, "address", "delete", f"{record.address}/32", "dev", "lo")
    for family in ("ip", "ip6"):
        run(*record.nft, "delete", "table", family, "kube-proxy")


def _clear_shared_folders(record: Record) -> None:
    for link in _LOG_LINKS.glob("*"):
        if link.is_symlink() and link.readlink().is_relative_to(DATA):
            link.unlink()
    for sandbox in _SANDBOXES.glob("*"):
        for path in _CNI_RESULTS.glob(f"*-{sandbox.name}-*"):
            path.unlink()
    for path in (KUBELET_SOCKET, _CHECKPOINT):
        path.unlink(missing_ok=True)
    for top in SHARED:
        if str(top) not in record.present:
            for folder, _, _ in os.walk(top, topdown=False):
                with suppress(OSError):  # somebody else has put something into it meanwhile
                    Path(folder).rmdir()


def main() -> None:
    """Wait for the end of the standard input, and undo what the record says."""
    os.chdir("/")
    sys.stdin.read()
    record = Record.read()
    if record:
        undo(record)


if __name__ == "__main__":
    main()
