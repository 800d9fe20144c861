"""Environments of their own, for libraries that don't go together with ours: installed once, into the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

READY = "ready"
"""Name of the file that says that an installation was finished."""


def environment(name: str, version: str, requirements: Sequence[str]) -> str:
    """Return a Python of this version that has these packages; skip the tests where it can't be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inferbench"
    cache.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256("\n".join(requirements).encode()).hexdigest()
    folder = cache / f"{name}-{digest[:12]}"
    python = folder / "bin" / "python"
    needed = f"Python {version} and a package index that has {', '.join(requirements)}"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / READY).is_file():
            shutil.rmtree(folder, ignore_errors=True)  # what an interrupted installation has left
            make = ("venv", "--python", _installed(version), str(folder))
            for arguments in (make, ("pip", "install", "--python", str(python), *requirements)):
                if refused := uv(*arguments):
                    pytest.skip(f"provide {needed}: {refused}")
            (folder / READY).touch()
    return str(python)


def uv(*arguments: str) -> str:
    """Run uv, the one beside our Python or another one; return its last words where it can't do what it is told."""
    beside = Path(sys.executable).with_name("uv")
    program = str(beside) if beside.is_file() else shutil.which("uv")
    if program is None:
        pytest.skip("install uv, so that older libraries can be installed beside ours")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    return " | ".join(done.stderr.strip().splitlines()[-3:]) if done.returncode else ""


def run_check(python: str, program: Path, *arguments: str, path: Sequence[Path] = ()) -> None:
    """Run a program to its end with a Python of another environment, and with nothing of ours on its path but this."""
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run(
        [python, str(program), *arguments], capture_output=True, text=True, env=variables, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


def written_checks(program: Path) -> set[str]:
    """Return the names of the checks in a program."""
    lines = program.read_text(encoding="utf-8").splitlines()
    return {line.split("(")[0].removeprefix("def check_") for line in lines if line.startswith("def check_")}


def tried_checks(test: Callable[..., None]) -> set[str]:
    """Return the names of the checks that a test is given, one after the other."""
    marks: list[pytest.Mark] = getattr(test, "pytestmark", [])
    return {str(row.values[0]) for mark in marks if mark.name == "parametrize" for row in mark.args[1]}


def _installed(version: str) -> str:
    """Return what uv is asked for: a version or, of pyenv, a path, since its commands fail for versions not in use."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    return next((str(path) for path in sorted(root.glob(f"versions/{version}.*/bin/python"))), version)
