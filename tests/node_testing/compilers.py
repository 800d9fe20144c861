"""This machine's g++ for runners, whose image on the test node has none, unlike those that are shipped."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any, Final

from cluster.controlplane import ControlPlane
from cluster.real.provisioning import RUNNER, lend_folder

_SYSTEM: Final = Path("/usr")
_HEADERS: Final = Path(sysconfig.get_path("include"))
_IN_IMAGE: Final = f"/usr/local/include/python{sys.version_info.major}.{sys.version_info.minor}"
# The linker looks for it beside the C library, and the image has none; all else there is the image's own.
_VECTORS: Final = f"lib/{sysconfig.get_config_var('MULTIARCH')}/libmvec.so.1"
_MOUNTS: Final = {
    # The image's own interpreter is in /usr/local, which is not hidden.
    **{f"/usr/{part}": part for part in ("bin", "include", "lib", "libexec") if (_SYSTEM / part).is_dir()},
    **({f"/{_VECTORS}": _VECTORS} if (_SYSTEM / _VECTORS).exists() else {}),
}
"""What is below the machine's /usr, by where a runner sees it."""


def with_compiler(control_plane: ControlPlane, namespace: str) -> dict[str, Any]:
    """Lend the compiler to the namespace, and return `spec.runner` of a benchmark that uses it."""
    lend_folder(control_plane, namespace, "system", _SYSTEM)
    lend_folder(control_plane, namespace, "headers", _HEADERS)
    return {
        "volumes": [*RUNNER["volumes"], *({"name": claim, **_claim(claim)} for claim in ("system", "headers"))],
        "volumeMounts": [
            *RUNNER["volumeMounts"],
            *({"name": "system", "mountPath": at, "subPath": part, "readOnly": True} for at, part in _MOUNTS.items()),
            {"name": "headers", "mountPath": _IN_IMAGE, "readOnly": True},
        ],
        "env": [{"name": "PATH", "value": "/opt/venv/bin:/usr/bin"}],
    }


def _claim(name: str) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": name, "readOnly": True}}
