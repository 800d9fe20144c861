"""Find the programs of a node (containerd, runc, CNI plugins, nft, busybox), or unpack them from Debian packages.

Look-up order: `$INFERBENCH_NODE_PACKAGES` (a folder; `/` for what is installed), the user's cache folder (the name
there holds a hash of the names and versions), then a download with apt-get, which installs and starts nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from cluster.errors import ClusterError
from cluster.go_program import Progress, print_progress

PACKAGES_VARIABLE: Final = "INFERBENCH_NODE_PACKAGES"
NAMES: Final = (
    "busybox-static",
    "containerd",
    "containernetworking-plugins",
    "nftables",
    "runc",
    # Libraries of these that a small installation may lack.
    "libedit2",
    "libjansson4",
    "libmnl0",
    "libnftables1",
    "libnftnl11",
    "libseccomp2",
    "libxtables12",
)
_PROGRAM_FOLDERS: Final = ("usr/bin", "usr/sbin", "bin", "sbin")


class PackagesError(ClusterError):
    """The programs of a node are not there and can't be had."""

    def __init__(self, why: str) -> None:
        """Say what happened and what to do."""
        super().__init__(
            f"{why.strip()}\nA real node needs Debian's or Ubuntu's packages {', '.join(NAMES)}: run `apt-get update` "
            f"where apt-get can download them, or set ${PACKAGES_VARIABLE} to the folder they are unpacked in (`/` if "
            "they are installed)."
        )


@dataclass(frozen=True, slots=True)
class Programs:
    """Where the programs of a node are."""

    root: Path
    containerd: Path
    ctr: Path
    runc: Path
    nft: Path
    busybox: Path
    cni: Path
    """Folder of the CNI plugins."""

    @classmethod
    def below(cls, root: Path) -> Self:
        """Find them below `root`.

        Raises:
            PackagesError: One is not there.
        """
        cni = root / "usr" / "lib" / "cni"
        if not (cni / "bridge").is_file():
            why = f"There is no CNI plugin {cni / 'bridge'}."
            raise PackagesError(why)
        containerd, ctr, runc, nft, busybox = (
            _program(root, name) for name in ("containerd", "ctr", "runc", "nft", "busybox")
        )
        return cls(root, containerd, ctr, runc, nft, busybox, cni)

    @property
    def search_paths(self) -> Mapping[str, str]:
        """Variables by which they find each other and their libraries."""
        folders = [str(self.root / folder) for folder in _PROGRAM_FOLDERS]
        libraries = [str(path) for path in sorted(self.root.glob("usr/lib/*-linux-gnu*"))]
        libraries += [str(path) for path in sorted(self.root.glob("lib/*-linux-gnu*"))]
        path = os.pathsep.join([*folders, os.environ.get("PATH", os.defpath)])
        return {"PATH": path, "LD_LIBRARY_PATH": os.pathsep.join(libraries)}


def find_or_unpack(progress: Progress = print_progress) -> Programs:
    """Return the programs of a node.

    Raises:
        PackagesError: They are not there, and could not be downloaded.
    """
    named = os.environ.get(PACKAGES_VARIABLE)
    if named:
        return Programs.below(Path(named).absolute())
    wanted = _versions()
    digest = hashlib.sha256("\n".join(wanted).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inferbench"
    target = cache / f"node-packages-{digest}"
    cache.mkdir(parents=True, exist_ok=True)
    with target.with_name(f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            progress(f"Downloading {len(wanted)} packages of a node, once (40 MB); nothing is installed.")
            _unpack(wanted, target)
    return Programs.below(target)


def _versions() -> list[str]:
    """Return `name=version` of each package, the version being the one that apt would install."""
    try:
        told = _run("apt-cache", "--no-all-versions", "show", *NAMES)
    except FileNotFoundError:
        why = "There is no apt-cache on this machine."
        raise PackagesError(why) from None
    fields = [line.split(": ", 1)[1] for line in told.splitlines() if line.startswith(("Package: ", "Version: "))]
    found = sorted({f"{name}={version}" for name, version in zip(fields[::2], fields[1::2], strict=True)})
    if len(found) != len(NAMES):
        why = f"apt knows only {', '.join(found) or 'none of them'}."
        raise PackagesError(why)
    return found


def _unpack(wanted: list[str], target: Path) -> None:
    """Download the packages and unpack them into `target`, which appears only when it is complete."""
    unfinished = target.with_name(f"{target.name}.{os.getpid()}")
    downloads = unfinished / "downloads"
    try:
        downloads.mkdir(parents=True)
        # As the user that we are: apt's own may not write here.
        _run("apt-get", "--option=APT::Sandbox::User=root", "download", "--quiet", *wanted, cwd=downloads)
        for package in sorted(downloads.glob("*.deb")):
            _run("dpkg-deb", "--extract", str(package), str(unfinished))
        shutil.rmtree(downloads)
        unfinished.rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode:
        raise PackagesError(done.stderr)
    return done.stdout


def _program(root: Path, name: str) -> Path:
    found = shutil.which(name, path=os.pathsep.join(str(root / folder) for folder in _PROGRAM_FOLDERS))
    if found is None:
        why = f"There is no program {name} below {root}."
        raise PackagesError(why)
    return Path(found)
