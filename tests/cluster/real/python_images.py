"""Images of the runner and of the operator, built from this environment.

As in the images that are shipped, our own wheel is installed in an environment under /opt/venv, with the libraries that
it asks for. The interpreter, its standard library and the system's libraries are copies of those that run this; PyTorch
and what comes with it are too large to copy: they are read from a volume, which stands for the machine's own.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cluster.errors import ClusterError
from cluster.operator_process import REPOSITORY
from cluster.real.images import Image, Layer, LayerWriter
from inferbench_operator.core.settings import Settings
from inferbench_runner.contract import AcceleratorKind

# The operator takes this one where a benchmark names none.
RUNNER_IMAGE: Final = Settings().runner_images[AcceleratorKind.CPU]
OPERATOR_IMAGE: Final = "inferbench/operator:0.1.0"

LIBRARIES: Final = Path(sysconfig.get_path("purelib"))
"""Folder of this machine with the libraries that are too large for an image."""
LIBRARIES_MOUNT: Final = "/opt/libraries"
"""Where the runner's image looks for them."""

_PYTHON: Final = f"python{sys.version_info.major}.{sys.version_info.minor}"
_VENV: Final = "/opt/venv"
_SITE_PACKAGES: Final = f"{_VENV}/lib/{_PYTHON}/site-packages"
# Parts of the standard library that a service has no use for.
_LEFT_OUT: Final = {"dist-packages", "ensurepip", "idlelib", "lib2to3", "site-packages", "test", "tests", "tkinter"}
# The official images name no registry, but containerd does.
_REGISTRY: Final = "docker.io/"


class WheelError(ClusterError):
    """Our own wheel could not be built."""

    def __init__(self, output: str) -> None:
        """Say what happened."""
        super().__init__(f"The wheel could not be built:\n{output.strip()[-4000:]}")


@dataclass(frozen=True, slots=True)
class PythonImages:
    """The two images."""

    runner: Image
    operator: Image


def python_images(folder: Path) -> PythonImages:
    """Write the layers into `folder` and return the images."""
    base = _base(folder)
    wheel = _wheel(folder)
    runner = _environment(folder / "runner.tar", wheel, extras=(), libraries=True)
    operator = _environment(folder / "operator.tar", wheel, extras=("operator",))
    variables = {"HOME": "/tmp", "PATH": f"{_VENV}/bin", "PYTHONDONTWRITEBYTECODE": "1"}  # noqa: S108 - in the pod

    def image(name: str, module: str, layer: Layer) -> Image:
        return Image(f"{_REGISTRY}{name}", [base, layer], ("python", "-m", module), variables, user="10001:0")

    return PythonImages(
        image(RUNNER_IMAGE, "inferbench_runner", runner), image(OPERATOR_IMAGE, "inferbench_operator", operator)
    )


def _base(folder: Path) -> Layer:
    """Write the interpreter, its standard library, and the libraries of the system that it and PyTorch need."""
    interpreter, library = Path(sys.executable).resolve(), Path(sysconfig.get_path("stdlib"))
    modules = [path for path in library.glob("lib-dynload/*.so") if _is_of_use(path.relative_to(library))]
    binaries = [interpreter, *modules, *LIBRARIES.glob("torch/lib/*.so")]
    with LayerWriter(folder / "python.tar") as writer:
        writer.add(interpreter, f"/usr/local/bin/{_PYTHON}")
        writer.add(library, f"/usr/local/lib/{_PYTHON}", _is_of_use)
        for path, source in _shared_libraries(binaries).items():
            writer.add(source, path)
        return writer.done()


def _is_of_use(path: Path) -> bool:
    unwanted = path.name.startswith(("_tkinter", "config-")) or path.name.endswith((".opt-1.pyc", ".opt-2.pyc"))
    return _LEFT_OUT.isdisjoint(path.parts) and not unwanted


def _shared_libraries(binaries: Sequence[Path]) -> dict[str, Path]:
    """Return the system's libraries that the binaries need: where an image has to have them, and where they are.

    All are put where the C library is, as the loader finds them there without its cache; the loader has its own path.
    """
    told = subprocess.run(["/usr/bin/ldd", *binaries], capture_output=True, text=True, check=False).stdout
    found = {name: Path(path) for name, path in re.findall(r"(\S+) => (/\S+)", told)}
    loader = next(Path(path) for path in re.findall(r"^\s+(/\S+/ld-\S+)", told, re.MULTILINE))
    folder = found["libc.so.6"].parent
    system = {f"{folder}/{name}": path.resolve() for name, path in found.items() if not path.is_relative_to(LIBRARIES)}
    return system | {str(loader): loader.resolve()}


def _wheel(folder: Path) -> Path:
    """Build our own wheel and return the folder that it is unpacked in."""
    command = [sys.executable, "-m", "hatchling", "build", "--target=wheel", f"--directory={folder}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    if done.returncode:
        raise WheelError(done.stdout + done.stderr)
    unpacked = folder / "wheel"
    for path in folder.glob("*.whl"):
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(unpacked)
    subprocess.run([sys.executable, "-m", "compileall", "-q", unpacked], check=True)
    return unpacked


def _environment(path: Path, wheel: Path, *, extras: Sequence[str], libraries: bool = False) -> Layer:
    """Write the environment with the wheel and what it asks for."""
    (metadata,) = wheel.glob("*.dist-info")
    with LayerWriter(path) as writer:
        writer.add_link(f"{_VENV}/bin/python", f"/usr/local/bin/{_PYTHON}")
        writer.add_text(f"{_VENV}/pyvenv.cfg", "home = /usr/local/bin\ninclude-system-site-packages = false\n")
        if libraries:
            # Behind the image's own, and without the links to sources that are in there.
            writer.add_text(f"{_SITE_PACKAGES}/libraries.pth", f"{LIBRARIES_MOUNT}\n")
        writer.add(wheel, _SITE_PACKAGES)
        for found in needed(Distribution.at(metadata), extras):
            for file in found.files or ():
                if ".." not in file.parts and file.suffix != ".pth":
                    writer.add(Path(str(file.locate())), f"{_SITE_PACKAGES}/{file}")
        return writer.done()


def needed(top: Distribution, extras: Sequence[str]) -> list[Distribution]:
    """Return the distributions of this environment that an installer would add to `top` with these extras."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    open_ends = [(top, frozenset(extras))]
    while open_ends:
        parent, wanted = open_ends.pop()
        for text in parent.requires or ():
            requirement = Requirement(text)
            marker = requirement.marker
            key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
            if key not in seen and (not marker or any(marker.evaluate({"extra": extra}) for extra in {"", *wanted})):
                seen.add(key)
                found[key[0]] = distribution(key[0])
                open_ends.append((found[key[0]], key[1]))
    return list(found.values())
