"""The peers' packages: installed once, each in a place of its own, so that neither they nor we change for the other.

optimum-benchmark doesn't work with the transformers that we use, so it gets a virtual environment, with the same
PyTorch. pyperf needs nothing but psutil, so a folder with pyperf alone is enough, beside our own environment.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from cluster.bench.running import run
from cluster.errors import ClusterError

OPTIMUM: Final = "optimum-benchmark==0.6.0"
PYPERF: Final = "pyperf==2.11.0"
_READY: Final = "ready"
"""Name of the file that says that an installation was finished."""


class NotInstalledError(ClusterError):
    """A peer can't be had here."""

    def __init__(self, what: str, why: str) -> None:
        """Say what and why."""
        super().__init__(f"{what} can't be installed: {why}")


@dataclass(frozen=True, slots=True)
class Peers:
    """Where the peers are, once they are there."""

    say: Callable[[str], None]

    def optimum(self) -> str:
        """Return the Python that has optimum-benchmark.

        Raises:
            NotInstalledError: It could not be installed.
        """
        # The last one that it works with.
        requirements = (OPTIMUM, "transformers==4.57.6", f"torch=={_version('torch')}")
        folder = _folder(requirements)
        python = folder / "bin" / "python"
        if not (folder / _READY).is_file():
            self.say(f"Installing {', '.join(requirements)} into {folder}, once (up to 6 GB; minutes).")
            shutil.rmtree(folder, ignore_errors=True)  # what an interrupted installation has left
            _uv("venv", "--python", sys.executable, str(folder), what=OPTIMUM)
            _uv("pip", "install", "--python", str(python), *requirements, what=OPTIMUM)
            (folder / _READY).touch()
        return str(python)

    def pyperf(self) -> Path:
        """Return the folder that holds pyperf.

        Raises:
            NotInstalledError: It could not be installed.
        """
        folder = _folder([PYPERF])
        if not (folder / _READY).is_file():
            self.say(f"Installing {PYPERF} into {folder}, once (1 MB).")
            shutil.rmtree(folder, ignore_errors=True)
            arguments = ("--no-deps", "--python", sys.executable, "--target", str(folder))
            _uv("pip", "install", *arguments, PYPERF, what=PYPERF)
            (folder / _READY).touch()
        return folder


def _folder(requirements: Sequence[str]) -> Path:
    """Return a folder in the user's cache for these packages and this Python."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256("\n".join([sys.version, sys.base_prefix, *requirements]).encode())
    return cache / "inferbench" / f"peers-{digest.hexdigest()[:12]}"


def _uv(*arguments: str, what: str) -> None:
    """Run uv, the one beside our Python or another one."""
    beside = Path(sys.executable).with_name("uv")
    program = str(beside) if beside.is_file() else shutil.which("uv")
    if not program:
        raise NotInstalledError(what, "there is no uv; install it with pip install uv")
    with TemporaryDirectory(prefix="inferbench-uv-") as folder:
        ended = run([program, *arguments], Path(folder))
    if ended.code:
        raise NotInstalledError(what, " | ".join(ended.output.strip().splitlines()[-3:]))


def _version(distribution: str) -> str:
    """Return our version without the part that says for which device it was built: no index has all of them."""
    return metadata.version(distribution).partition("+")[0]
