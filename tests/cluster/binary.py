"""Find the control plane's program, or build it from the Go module in `controlplane/`.

Look-up order: `$INFERBENCH_CONTROL_PLANE`, the user's cache folder (the name there holds the version and a hash of the
sources), then a build, which takes about ten minutes on two cores and happens once per machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cluster.errors import BinaryNotFoundError, BuildError
from cluster.processes import GuardedProcess
from cluster.toolchain import find_go

Progress = Callable[[str], None]
"""Is given one sentence at a time."""

BINARY_VARIABLE: Final = "INFERBENCH_CONTROL_PLANE"
KUBERNETES_VERSION: Final = "1.36.3"

_MODULE = Path(__file__).with_name("controlplane")
_SIGN_OF_LIFE_SECONDS = 30.0


def print_progress(sentence: str) -> None:
    """Print to standard error, at once."""
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


def find_or_build(progress: Progress = print_progress) -> Path:
    """Path of the program.

    Raises:
        BinaryNotFoundError: `$INFERBENCH_CONTROL_PLANE` is set but names no file.
        BuildError: It had to be built and could not.
    """
    named = os.environ.get(BINARY_VARIABLE)
    if named:
        path = Path(named)
        if not path.is_file():
            raise BinaryNotFoundError(BINARY_VARIABLE, path)
        return path.absolute()
    target = cached_path()
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(f"{target.name}.lock"), progress):
        if not target.is_file():  # another starter may have built it while we waited
            build(target, progress)
    return target


def cached_path() -> Path:
    """Where the program for these sources is kept, built or not."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256()
    for path in (_MODULE / "go.mod", *sorted(_MODULE.glob("*.go"))):
        digest.update(path.name.encode() + path.read_bytes())
    return cache / "inferbench" / f"control-plane-{KUBERNETES_VERSION}-{digest.hexdigest()[:12]}"


def build(target: Path, progress: Progress = print_progress) -> None:
    """Compile the program into `target`, which appears only when it is complete."""
    go = find_go(target.parent, progress)
    progress("Building the Kubernetes control plane, once: about ten minutes on two cores.")
    unfinished, log = (target.with_name(f"{target.name}.{os.getpid()}{end}") for end in ("", ".log"))
    started = time.monotonic()
    # No C compiler is needed, and a go.work file further up would bring other modules in.
    env = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    try:
        with log.open("wb") as output:
            compiler = GuardedProcess.start(build_command(go, unfinished), output=output, env=env, cwd=_MODULE)
        try:
            _wait(compiler, started, progress)
        finally:
            code = compiler.stop(grace_seconds=5)
        if code:
            step = "go build"
            raise BuildError(step, log.read_text(encoding="utf-8", errors="replace"))
        unfinished.rename(target)
    finally:
        unfinished.unlink(missing_ok=True)
        log.unlink(missing_ok=True)
    progress(f"Built {target} in {time.monotonic() - started:.0f} s.")


def build_command(go: Path, target: Path) -> list[str]:
    """The command that compiles the module in the current folder."""
    major, minor, _ = KUBERNETES_VERSION.split(".")
    version = "k8s.io/component-base/version"
    stamps = {"gitVersion": f"v{KUBERNETES_VERSION}", "gitMajor": major, "gitMinor": minor}
    flags = " ".join(["-s", "-w", *(f"-X {version}.{name}={value}" for name, value in stamps.items())])
    return [str(go), "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", str(target), "."]


def _wait(compiler: GuardedProcess, started: float, progress: Progress) -> None:
    while True:
        try:
            compiler.process.wait(timeout=_SIGN_OF_LIFE_SECONDS)
        except subprocess.TimeoutExpired:
            progress(f"Still building the control plane, {time.monotonic() - started:.0f} s so far.")
        else:
            return


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("Another process builds the control plane; waiting for it.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
