"""The real optimum-neuron does what the Neuron back end asks of it, in an environment of its own.

It needs an older transformers and PyTorch than ours, so they are installed once, beside ours, into the user's cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

REQUIREMENTS = (
    "optimum-neuron==0.4.5",
    "transformers==4.57.6",
    "torch==2.8.*",
    "pydantic>=2.12",
    "pillow>=11",
    "pytest>=9",  # which the builders of plans import
)

PROGRAM = Path(__file__).with_name("neuron_contract.py")

READY = "ready"
"""Name of the file that says that an installation was finished."""


@pytest.fixture(scope="module")
def interpreter() -> str:
    """A Python 3.11 that has optimum-neuron; making it takes some minutes and 6 GB, once."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inferbench"
    cache.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256("\n".join(REQUIREMENTS).encode()).hexdigest()
    folder = cache / f"neuron-{digest[:12]}"
    python = folder / "bin" / "python"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / READY).is_file():
            shutil.rmtree(folder, ignore_errors=True)  # what an interrupted installation has left
            install("venv", "--python", "3.11", str(folder))
            install("pip", "install", "--python", str(python), *REQUIREMENTS)
            (folder / READY).touch()
    return str(python)


def install(*arguments: str) -> None:
    """Run uv, the one beside our Python or another one; skip the tests where it can't do its work."""
    beside = Path(sys.executable).with_name("uv")
    program = str(beside) if beside.is_file() else shutil.which("uv")
    if program is None:
        pytest.skip("install uv, so that optimum-neuron can be installed")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        last = " | ".join(done.stderr.strip().splitlines()[-3:])
        pytest.skip(f"provide Python 3.11 and a package index that has {', '.join(REQUIREMENTS)}: {last}")


@pytest.mark.parametrize(
    "check",
    [
        pytest.param("signatures", id="every class, function and keyword is there"),
        pytest.param("round_trip", id="a model is exported, saved, loaded, called and found again"),
        pytest.param("tasks", id="each task and architecture passes the gate through its class"),
        pytest.param("copies", id="a second copy works on a core of its own"),
        pytest.param("ahead", id="what was compiled without a device is found with one"),
        pytest.param("unknown", id="what it does not know is traced directly"),
    ],
)
def test_the_real_library_does_what_is_asked_of_it(interpreter: str, check: str) -> None:
    """Only the compiler and the device are doubles; the words of the check say what is tried."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [interpreter, str(PROGRAM), check], capture_output=True, text=True, env=variables, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_every_check_is_run() -> None:
    """A check that nobody runs proves nothing."""
    text = PROGRAM.read_text(encoding="utf-8")
    written = {line.split("(")[0].removeprefix("def check_") for line in text.splitlines() if "def check_" in line}
    marks = test_the_real_library_does_what_is_asked_of_it.pytestmark
    run = {str(row.values[0]) for mark in marks if mark.name == "parametrize" for row in mark.args[1]}
    assert written == run
