"""Programs whose sources are Go modules of this repository: built once per machine, kept in the user's cache folder."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cluster.errors import BuildError
from cluster.processes import GuardedProcess
from cluster.toolchain import find_go

Progress = Callable[[str], None]
"""Is given one sentence at a time."""

_SIGN_OF_LIFE_SECONDS: Final = 30.0


def print_progress(sentence: str) -> None:
    """Print to standard error, at once."""
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


@dataclass(frozen=True, slots=True)
class GoProgram:
    """One program and where it comes from."""

    name: str
    """Begin of its name in the cache; a hash of the sources follows."""
    title: str
    """What it is, for people."""
    module: Path
    """Folder of the module, whose main package it is."""
    takes: str
    """How long it takes to build, for people."""
    linker_flags: str = "-s -w"

    @property
    def cached_path(self) -> Path:
        """Where the program for these sources is kept, built or not."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        digest = hashlib.sha256()
        for path in (self.module / "go.mod", *sorted(self.module.glob("*.go"))):
            digest.update(path.name.encode() + path.read_bytes())
        return cache / "inferbench" / f"{self.name}-{digest.hexdigest()[:12]}"

    def find_or_build(self, progress: Progress = print_progress) -> Path:
        """Path of the program.

        Raises:
            BuildError: It had to be built and could not.
        """
        target = self.cached_path
        if target.is_file():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with self._locked(target.with_name(f"{target.name}.lock"), progress):
            if not target.is_file():  # another starter may have built it while we waited
                self._build(target, progress)
        return target

    def _build(self, target: Path, progress: Progress) -> None:
        """Compile the program into `target`, which appears only when it is complete."""
        go = find_go(target.parent, progress)
        progress(f"Building {self.title}, once: about {self.takes} on two cores.")
        unfinished, log = (target.with_name(f"{target.name}.{os.getpid()}{end}") for end in ("", ".log"))
        started = time.monotonic()
        # No C compiler is needed, and a go.work file further up would bring other modules in.
        env = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
        command = [str(go), "build", "-trimpath", "-buildvcs=false", "-ldflags", self.linker_flags]
        try:
            with log.open("wb") as output:
                compiler = GuardedProcess.start(
                    [*command, "-o", str(unfinished), "."], output=output, env=env, cwd=self.module
                )
            try:
                self._wait(compiler, started, progress)
            finally:
                code = compiler.stop(grace_seconds=5)
            if code:
                step = f"go build of {self.title}"
                raise BuildError(step, log.read_text(encoding="utf-8", errors="replace"))
            unfinished.rename(target)
        finally:
            unfinished.unlink(missing_ok=True)
            log.unlink(missing_ok=True)
        progress(f"Built {target} in {time.monotonic() - started:.0f} s.")

    def _wait(self, compiler: GuardedProcess, started: float, progress: Progress) -> None:
        while True:
            try:
                compiler.process.wait(timeout=_SIGN_OF_LIFE_SECONDS)
            except subprocess.TimeoutExpired:
                progress(f"Still building {self.title}, {time.monotonic() - started:.0f} s so far.")
            else:
                return

    @contextmanager
    def _locked(self, path: Path, progress: Progress) -> Iterator[None]:
        with path.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress(f"Another process builds {self.title}; waiting for it.")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
