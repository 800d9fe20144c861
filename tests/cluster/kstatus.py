"""What kstatus itself makes of objects, by the Go program in `kstatus/`, which is built as the control plane's is."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from cluster.go_program import GoProgram
from cluster.pods import Json

PROGRAM: Final = GoProgram(
    name="kstatus", title="kstatus", module=Path(__file__).with_name("kstatus"), takes="half a minute"
)

_SECONDS: Final = 60.0


def kstatus_of(objects: Iterable[Json]) -> list[str]:
    """Return Current, InProgress, Failed or Terminating for each object.

    Raises:
        BuildError: The program had to be built and could not.
    """
    # The program takes nothing without a kind, and goes by its own rules for the kinds that it knows.
    kind = {"apiVersion": "inferbench.dev/v1alpha1", "kind": "InferenceBenchmark"}
    lines = "".join(f"{json.dumps({**kind, **found})}\n" for found in objects)
    command = [PROGRAM.find_or_build()]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=_SECONDS, check=True)
    return done.stdout.splitlines()
