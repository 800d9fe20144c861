"""The parts of a real node that need no root: images, packages, settings, and what is written down for the clean-up."""

from __future__ import annotations

import hashlib
import json
import tarfile
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from cluster.real import PackagesError, cleanup
from cluster.real.images import Image, Layer, LayerWriter, write_archive
from cluster.real.packages import PACKAGES_VARIABLE, find_or_unpack
from cluster.real.python_images import needed


def layer(folder: Path, name: str, text: str) -> Layer:
    """Write a layer of one file."""
    with LayerWriter(folder / f"{name}.tar") as writer:
        writer.add_text(f"/{name}", text)
        return writer.done()


def test_an_image_is_what_its_layers_hash_to(tmp_path: Path) -> None:
    """The configuration lists the uncompressed layers, and is named by its own hash."""
    path = tmp_path / "archive.tar"
    image = Image("a.test/one:1", [layer(tmp_path, "a", "1")], ("run",), {"PATH": "/bin"}, user="10001:0")
    write_archive(path, [image])

    with tarfile.open(path) as archive:
        content = {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]
    (entry,) = json.loads(content["manifest.json"])
    assert entry["RepoTags"] == ["a.test/one:1"]
    assert entry["Config"] == f"{hashlib.sha256(content[entry['Config']]).hexdigest()}.json"
    config = json.loads(content[entry["Config"]])
    (written,) = entry["Layers"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(content[written]).hexdigest()}"]
    assert config["config"] == {"Entrypoint": ["run"], "Env": ["PATH=/bin"], "User": "10001:0"}


def test_images_share_their_layers(tmp_path: Path) -> None:
    """One that two images have is in the archive once, and in the order of each."""
    base, top = layer(tmp_path, "base", "1"), layer(tmp_path, "top", "2")
    path = tmp_path / "archive.tar"
    write_archive(path, [Image("a.test/one:1", [base]), Image("a.test/two:1", [base, top])])

    with tarfile.open(path) as archive:
        names = archive.getnames()
        manifest = json.loads(archive.extractfile("manifest.json").read())  # type: ignore[union-attr]
    assert len(names) == len(set(names))
    assert [entry["Layers"] for entry in manifest] == [
        [f"{base.digest}/layer.tar"],
        [f"{base.digest}/layer.tar", f"{top.digest}/layer.tar"],
    ]


def test_files_of_a_layer_belong_to_root_and_can_be_read(tmp_path: Path) -> None:
    """Whatever they are on this machine: a container has another user. What is not to be kept is left out."""
    source = tmp_path / "source"
    (source / "private").mkdir(parents=True, mode=0o700)
    (source / "private" / "program").touch(mode=0o700)
    (source / "private" / "data").touch(mode=0o600)
    (source / "unwanted").touch()
    with LayerWriter(tmp_path / "layer.tar") as writer:
        writer.add(source, "/opt/it", lambda path: path.name != "unwanted")
        written = writer.done()

    with tarfile.open(written.path) as archive:
        found = {entry.name: (oct(entry.mode), entry.uid, entry.gid) for entry in archive}
    assert found == {
        "opt/it": ("0o755", 0, 0),
        "opt/it/private": ("0o755", 0, 0),
        "opt/it/private/program": ("0o755", 0, 0),
        "opt/it/private/data": ("0o644", 0, 0),
    }


def test_an_image_gets_what_an_installer_would_install() -> None:
    """The operator's requirements and theirs; of the extras only those that are asked for."""
    ours = Distribution.from_name("inferbench-operator")
    operator = {found.name.lower() for found in needed(ours, ["operator"])}
    runner = {found.name.lower() for found in needed(ours, [])}
    assert {"kopf", "kubernetes", "aiohttp", "multidict", "pydantic", "pydantic_core"} <= operator
    assert not {"torch", "transformers", "pytest", "rich"} & operator
    assert {"numpy", "pydantic", "pydantic_core"} <= runner
    assert "kopf" not in runner


def test_missing_programs_are_named_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without them is refused, in a sentence that names the packages and the variable."""
    monkeypatch.setenv(PACKAGES_VARIABLE, str(tmp_path))
    with pytest.raises(PackagesError, match=r"(?s)containernetworking-plugins.*INFERBENCH_NODE_PACKAGES"):
        find_or_unpack()


def test_what_is_to_be_undone_survives_its_author(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record reads as it was written; without one there is nothing to undo."""
    monkeypatch.setattr(cleanup, "RUN", tmp_path / "run")
    monkeypatch.setattr(cleanup, "RECORD", tmp_path / "run" / "record.json")
    assert cleanup.Record.read() is None
    record = cleanup.Record(7, "198.18.0.1", {"vm/x": "1"}, ("/run/a",), ("busybox", "ip"), ("nft",), {"PATH": "/bin"})
    record.write()
    assert cleanup.Record.read() == record
