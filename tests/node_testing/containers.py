"""The processes of runners as the machine sees them, and what they are writing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from cluster.observing import eventually
from cluster.real.cleanup import CGROUP, DATA, hierarchies
from inferbench_runner.contract import CompactReport


def supervisors() -> Iterator[int]:
    """Yield the first process of each runner that is in a container."""
    ours = Path("/proc/self/ns/mnt").readlink()
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):  # it has ended, or is not for us to look at
            contained = Path(f"/proc/{process.pid}/ns/mnt").readlink() != ours
            if contained and process.cmdline()[1:3] == ["-m", "inferbench_runner"]:
                yield process.pid


def running_supervisor() -> int:
    """Wait for a runner and return its first process."""
    (found,) = eventually("a runner runs", lambda: list(supervisors()), seconds=180)
    return found


def first_process(container_id: str) -> int:
    """Return the first process of a container, by the id that its pod's status shows."""
    digest = container_id.rpartition("/")[2]
    found = (path for root in hierarchies() for path in (root / CGROUP).glob(f"**/*{digest}*/cgroup.procs"))
    return min(int(process) for path in found for process in path.read_text().split())


def confinement(pid: int) -> dict[str, object]:
    """Return how the kernel confines a process."""
    proc = Path("/proc", str(pid))
    fields = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines())
    mounts = [line.split() for line in (proc / "mountinfo").read_text().splitlines()]
    (root,) = (mount for mount in mounts if mount[4] == "/")
    return {
        "user": int(fields["Uid"].split()[0]),
        "capabilities": {fields[f"Cap{one}"] for one in ("Eff", "Prm", "Inh", "Bnd", "Amb")},
        "no new privileges": fields["NoNewPrivs"],
        "seccomp": fields["Seccomp"],
        "root folder": root[5].split(",")[0],
        "token": any((proc / "root" / folder).exists() for folder in ("var/run/secrets", "run/secrets")),
    }


def report_so_far(pod_uid: str) -> CompactReport:
    """Return what the runner of a pod has written for the kubelet; an empty report where that is nothing yet."""
    for path in (DATA / "kubelet" / "pods" / pod_uid / "containers" / "runner").glob("*"):
        if text := path.read_text():
            return CompactReport.model_validate_json(text)
    return CompactReport()
