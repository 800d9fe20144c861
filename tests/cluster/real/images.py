"""Container images without a registry or an engine: layers as tar files, and archives of the kind that docker saves."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from cluster.real.configuration import PAUSE_IMAGE
from cluster.real.packages import Programs

BUSYBOX_IMAGE: Final = "inferbench.test/busybox:1"

_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}

Keep = Callable[[Path], bool]
"""Says whether a file or a folder belongs into a layer, by its path below the folder that is added."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer that is complete: an uncompressed tar file."""

    path: Path
    digest: str


class LayerWriter:
    """Writes one layer; a context manager. All files belong to root and can be read by everybody."""

    def __init__(self, path: Path) -> None:
        """Begin with an empty layer."""
        self._path = path
        self._tar = tarfile.open(path, "w")  # noqa: SIM115 - closed by `__exit__`

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Complete the file."""
        self._tar.close()

    def add_text(self, path: str, text: str, *, mode: int = 0o644) -> None:
        """Add a file with this content."""
        data = text.encode()
        entry = tarfile.TarInfo(path.lstrip("/"))
        entry.size, entry.mode = len(data), mode
        self._tar.addfile(entry, io.BytesIO(data))

    def add_link(self, path: str, target: str) -> None:
        """Add a symbolic link."""
        entry = tarfile.TarInfo(path.lstrip("/"))
        entry.type, entry.linkname = tarfile.SYMTYPE, target
        self._tar.addfile(entry)

    def add(self, source: Path, path: str, keep: Keep = lambda _: True) -> None:
        """Add a file, or a folder with all in it that is to be kept, as `path`."""
        top = path.lstrip("/")

        def adopt(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
            if not keep(Path(entry.name).relative_to(top)):
                return None
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
            return entry

        self._tar.add(source, top, filter=adopt)

    def done(self) -> Layer:
        """Complete the file and return the layer."""
        self._tar.close()
        with self._path.open("rb") as file:
            return Layer(self._path, hashlib.file_digest(file, "sha256").hexdigest())


@dataclass(frozen=True, slots=True)
class Image:
    """An image: its layers, from the lowest up, and what its containers do."""

    name: str
    layers: Sequence[Layer]
    entrypoint: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""

    def config(self) -> bytes:
        """Return the image's configuration."""
        return json.dumps(
            {
                "architecture": _ARCHITECTURES[platform.machine()],
                "os": "linux",
                "config": {
                    "Entrypoint": list(self.entrypoint),
                    "Env": [f"{name}={value}" for name, value in self.environment.items()],
                    "User": self.user,
                },
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in self.layers]},
            }
        ).encode()


def write_archive(path: Path, images: Iterable[Image]) -> None:
    """Write images, with the layers that they share only once, into an archive that `ctr images import` takes."""
    manifest, written = [], set()
    with tarfile.open(path, "w") as tar:

        def add(name: str, data: bytes) -> None:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))

        for image in images:
            config = image.config()
            config_name = f"{hashlib.sha256(config).hexdigest()}.json"
            add(config_name, config)
            for layer in image.layers:
                if layer.digest not in written:
                    tar.add(layer.path, f"{layer.digest}/layer.tar")
                    written.add(layer.digest)
            layers = [f"{layer.digest}/layer.tar" for layer in image.layers]
            manifest.append({"Config": config_name, "RepoTags": [image.name], "Layers": layers})
        add("manifest.json", json.dumps(manifest).encode())


def small_images(programs: Programs, folder: Path) -> tuple[Image, ...]:
    """Return the image of all sandboxes, and one with a shell and the usual small programs."""
    with LayerWriter(folder / "busybox.tar") as writer:
        writer.add(programs.busybox, "/bin/busybox")
        for name in ("cat", "dd", "env", "id", "ls", "mount", "nc", "sh", "sleep", "true", "wget"):
            writer.add_link(f"/bin/{name}", "busybox")
        layer = writer.done()
    path = {"PATH": "/bin"}
    return (
        Image(PAUSE_IMAGE, [layer], ("sleep", "1000000000"), path),
        Image(BUSYBOX_IMAGE, [layer], ("sh",), path, user="10001:0"),
    )
