"""The folder that the processes of a run share, for what one of them compiles and others need; it goes with the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

SCRATCH_VARIABLE: Final = "INFERBENCH_SCRATCH"
"""Environment variable that tells a measuring process which folder that is."""


@contextmanager
def scratch_folder() -> Iterator[Path | None]:
    """Yield a new folder, and remove it with all that is in it; None where none can be made, which stops no run."""
    made: AbstractContextManager[str | None]
    try:
        # What can't be removed, or is written by a compiler that is just being killed, takes nothing from a report.
        made = TemporaryDirectory(prefix="inferbench-", ignore_cleanup_errors=True)
    except OSError:
        made = nullcontext()
    with made as name:
        yield Path(name) if name else None
