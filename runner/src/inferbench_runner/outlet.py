"""Delivers reports: the termination message after every shape, one line on standard output at the end."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from typing_extensions import Self

from inferbench_runner.contract import (
    COMPACT_REPORT_BYTES,
    DEFAULT_TERMINATION_PATH,
    TERMINATION_PATH_VARIABLE,
    CompactReport,
    FullReport,
)
from inferbench_runner.report import compact_bytes, full_line
from inferbench_runner.words import one_line

LINE_CHARACTERS: Final = 300
"""Longest progress line."""


def say(text: str) -> None:
    """Print one progress line for people on standard error."""
    sys.stderr.write(f"inferbench: {one_line(text, LINE_CHARACTERS)}\n")
    sys.stderr.flush()


@dataclass
class Outlet:
    """Where this runner's reports go."""

    path: Path
    may_create: bool
    """Whether a missing file is made: not at the kubelet's own place, which exists in pods only."""
    say: Callable[[str], None] = say
    _warned: bool = field(default=False, init=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Use the file that the environment names, or the kubelet's default."""
        named = environment.get(TERMINATION_PATH_VARIABLE)
        return cls(path=Path(named or DEFAULT_TERMINATION_PATH), may_create=bool(named))

    def publish(self, report: CompactReport) -> None:
        """Rewrite the termination message; where that is impossible, warn once and go on."""
        try:
            self._rewrite(compact_bytes(report))
        except OSError as error:
            # Outside a pod there is no such file, and nobody who would read it.
            if not self._warned and (self.may_create or error.errno != errno.ENOENT):
                self._warned = True
                self.say(f"no termination message in {self.path} ({error.strerror}); the last line has the details")

    def deliver(self, report: FullReport) -> None:
        """Print the full report as one line on standard output."""
        sys.stdout.buffer.write(full_line(report) + b"\n")
        sys.stdout.buffer.flush()

    def _rewrite(self, text: bytes) -> None:
        """Replace the file's content in place: the kubelet mounts this one file, so a rename can't replace it.

        A single write covers the old content completely, with blanks after a shorter text, and only then is the file
        cut to size. A crash before, between or after the two leaves a file that parses: the old report or the new one.
        """
        flags = os.O_WRONLY | os.O_CLOEXEC | (os.O_CREAT if self.may_create else 0)
        descriptor = os.open(self.path, flags, 0o644)
        try:
            padded = text.ljust(min(os.fstat(descriptor).st_size, COMPACT_REPORT_BYTES))
            os.pwrite(descriptor, padded, 0)
            os.ftruncate(descriptor, len(text))
        finally:
            os.close(descriptor)
