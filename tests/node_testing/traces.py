"""What a node could leave on a machine, seen without its own knowledge of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from cluster.real.packages import Programs, find_or_unpack

# Folders that container runtimes, network plugins and kubelets are known to use, and those of temporary files.
FOLDERS = (
    "/etc/cni",
    "/etc/containerd",
    "/opt",
    "/run",
    "/usr/libexec/kubernetes",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/inferbench-node",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
)
# How the programs of a node are called; a shim, which outlives its container, is in no namespace of its own.
PROGRAMS = ("containerd", "kube-proxy", "kubelet", "runc")
# Other programs of the machine may end meanwhile, and their control groups with them.
PASSING = ("control groups", "processes in namespaces", "processes of a node")
# These change by themselves.
VOLATILE = ("kernel/ns_last_pid", "kernel/pty/nr", "kernel/random", "net/netfilter/nf_conntrack_count")


def traces() -> dict[str, set[str]]:
    """Return all that is there now, by kind."""
    kinds: dict[str, Callable[[], Iterator[str]]] = {
        "mounts": _mounts,
        "control groups": lambda: (folder for folder, _, _ in os.walk("/sys/fs/cgroup")),
        "links": lambda: iter(psutil.net_if_stats()),
        "addresses": _addresses,
        "tables": lambda: _tables(find_or_unpack()),
        "settings": _settings,
        "files": _files,
        "processes in namespaces": _contained,
        "processes of a node": _of_a_node,
    }
    return {kind: set(look()) for kind, look in kinds.items()}


def differences(before: dict[str, set[str]], after: dict[str, set[str]]) -> list[str]:
    """Return in words what came and what went, but for what others end by themselves."""
    return [
        f"{sign} {kind}: {one}"
        for kind in before
        for sign, some in (("+", after[kind] - before[kind]), ("-", before[kind] - after[kind]))
        for one in sorted(some)
        if sign == "+" or kind not in PASSING
    ]


def _mounts() -> Iterator[str]:
    return (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())


def _addresses() -> Iterator[str]:
    for link, found in psutil.net_if_addrs().items():
        yield from (f"{link} {one.address}" for one in found)


def _tables(programs: Programs) -> Iterator[str]:
    environment = {**os.environ, **programs.search_paths}
    told = subprocess.run([programs.nft, "list", "tables"], env=environment, capture_output=True, text=True, check=True)
    return iter(told.stdout.splitlines())


def _settings() -> Iterator[str]:
    for top in ("kernel", "net", "vm"):
        for folder, _, names in os.walk(f"/proc/sys/{top}"):
            for path in (Path(folder, name) for name in names):
                with suppress(OSError):
                    if not str(path.relative_to("/proc/sys")).startswith(VOLATILE):
                        yield f"{path} = {path.read_bytes()!r}"


def _files() -> Iterator[str]:
    for top in FOLDERS:
        if Path(top).exists():
            yield top
        for folder, folders, files in os.walk(top):
            yield from (f"{folder}/{name}" for name in (*folders, *files))


def _contained() -> Iterator[str]:
    ours = Path("/proc/self/ns/mnt").readlink()
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if Path(f"/proc/{process.pid}/ns/mnt").readlink() != ours:
                yield f"{process.pid} {' '.join(process.cmdline())}"


def _of_a_node() -> Iterator[str]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            # One of ours is a program of many roles, and the role is its first argument.
            if any(Path(word).name.startswith(PROGRAMS) for word in process.cmdline()[:2]):
                yield f"{process.pid} {' '.join(process.cmdline())}"
