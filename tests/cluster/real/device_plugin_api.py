"""The kubelet's device plugin API in Python, generated from Kubernetes' own definition of it.

The definition is in the Go module k8s.io/kubelet, which comes from Go's cache, or from a proxy and is
then checked against `go.sum`. What is generated stays in the user's cache folder.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final

import grpc

from cluster.binary import KUBERNETES_VERSION, cached_path
from cluster.errors import BuildError
from cluster.go_program import print_progress
from cluster.toolchain import find_go

VERSION: Final = "v1beta1"
"""Version of the API, as a plugin tells it to the kubelet."""

Message = object
"""A message of the API, of which a type checker knows nothing, as it is not there before it is generated."""

_MODULE: Final = f"k8s.io/kubelet@v{KUBERNETES_VERSION.replace('1.', '0.', 1)}"
_DEFINITION: Final = f"pkg/apis/deviceplugin/{VERSION}/api.proto"
# Among Python's modules, and in protobuf's own register, "api" could be anybody's.
_NAME: Final = f"deviceplugin_{VERSION}"
_GO_MODULE: Final = Path(__file__).parents[1] / "controlplane"


@dataclass(frozen=True, slots=True)
class DevicePluginApi:
    """What was generated."""

    messages: ModuleType
    """Has the classes of all messages."""
    services: ModuleType
    """Has the clients (`…Stub`) and what adds a service to a server (`add_…Servicer_to_server`)."""


@cache
def load_api() -> DevicePluginApi:
    """Import what was generated, after it was generated where this machine does not have it yet.

    Raises:
        BuildError: The definition could not be had, or not be compiled.
    """
    # What grpcio-tools generates may refuse to run with an older grpcio.
    folder = cached_path().with_name(f"deviceplugin-{KUBERNETES_VERSION}-grpc-{grpc.__version__}")
    if not folder.is_dir():
        _generate(folder)
    sys.path.insert(0, str(folder))  # one of the modules imports the other by its name
    try:
        return DevicePluginApi(importlib.import_module(f"{_NAME}_pb2"), importlib.import_module(f"{_NAME}_pb2_grpc"))
    finally:
        sys.path.remove(str(folder))


def _generate(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        # Not copied with its mode: Go's cache is read-only.
        shutil.copyfile(_definition(folder.parent), made / f"{_NAME}.proto")
        command = [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=.", "--python_out=.", "--grpc_python_out=."]
        _run("compiling the device plugin API", [*command, f"{_NAME}.proto"], made)
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise


def _definition(cache_folder: Path) -> Path:
    go = find_go(cache_folder, print_progress)
    # In the folder of our Go module, whose go.sum has the checksum.
    told = _run(f"downloading {_MODULE}", [str(go), "mod", "download", "-json", _MODULE], _GO_MODULE)
    return Path(json.loads(told)["Dir"]) / _DEFINITION


def _run(step: str, command: list[str], folder: Path) -> str:
    env = {**os.environ, "GOWORK": "off"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(step, done.stdout + done.stderr)
    return done.stdout
