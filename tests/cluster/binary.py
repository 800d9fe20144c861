"""Find the control plane's program, or build it from the Go module in `controlplane/`.

Look-up order: `$INFERBENCH_CONTROL_PLANE`, the user's cache folder (the name there holds the version and a hash of the
sources), then a build, which takes about ten minutes on two cores and happens once per machine.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from cluster.errors import BinaryNotFoundError
from cluster.go_program import GoProgram, Progress, print_progress

BINARY_VARIABLE: Final = "INFERBENCH_CONTROL_PLANE"
KUBERNETES_VERSION: Final = "1.36.3"


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
    return _PROGRAM.find_or_build(progress)


def cached_path() -> Path:
    """Where the program for these sources is kept, built or not."""
    return _PROGRAM.cached_path


def _linker_flags() -> str:
    major, minor, _ = KUBERNETES_VERSION.split(".")
    version = "k8s.io/component-base/version"
    stamps = {"gitVersion": f"v{KUBERNETES_VERSION}", "gitMajor": major, "gitMinor": minor}
    return " ".join(["-s", "-w", *(f"-X {version}.{name}={value}" for name, value in stamps.items())])


_PROGRAM: Final = GoProgram(
    name=f"control-plane-{KUBERNETES_VERSION}",
    title="the Kubernetes control plane",
    module=Path(__file__).with_name("controlplane"),
    takes="ten minutes",
    linker_flags=_linker_flags(),
)
