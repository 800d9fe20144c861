"""The cache of compiled graphs: what is in it is found, what is damaged is replaced, and nothing is trusted."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inferbench_runner.artefacts import (
    BLOCK_BYTES,
    ENTRY,
    GRAPH,
    TEMPORARY,
    Artefact,
    Artefacts,
    Ingredients,
    Miss,
    file_sha256,
)

WANTED = Ingredients(
    model="BertForSequenceClassification bert-base-uncased",
    weights="86b5e0934494bd15c9632b12f734a8a67f723594",
    task="text-classification",
    batch_size=1,
    sequence_length=128,
    compiler="neuronx-cc",
    compiler_version="2.21",
    arguments="--auto-cast none",
    target="inf2",
    inlined=True,
    maker="torch_neuronx.trace",
)


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """A graph that a compiler has made."""
    path = tmp_path / "made.pt"
    path.write_bytes(b"neff" * 1000)
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Artefacts:
    """A cache whose folder isn't there yet."""
    return Artefacts(tmp_path / "deep" / "cache")


def test_what_was_kept_is_found_with_its_notes(cache: Artefacts, graph: Path) -> None:
    """The same ingredients give the same graph; before, there is no entry, and looking makes no folder."""
    assert cache.look_up(WANTED) == Miss("no entry")
    assert not cache.folder.exists()
    cache.keep(WANTED, graph, {"inputs": "input_ids attention_mask"})
    found = cache.look_up(WANTED)
    assert isinstance(found, Artefact)
    assert found.path.read_bytes() == graph.read_bytes()
    assert found.notes == {"inputs": "input_ids attention_mask"}
    assert [path.name for path in cache.folder.iterdir()] == [WANTED.key]


@pytest.mark.parametrize("field", list(Ingredients.__dataclass_fields__))
def test_every_ingredient_is_part_of_the_key(field: str) -> None:
    """A graph that was made from anything else has another name."""
    value = getattr(WANTED, field)
    other = (not value) if isinstance(value, bool) else value + 1 if isinstance(value, int) else f"{value}!"
    assert replace(WANTED, **{field: other}).key != WANTED.key


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"compiler_version": "2.22"}, "entry of compiler neuronx-cc 2.21, now 2.22"),
        ({"target": "trn1"}, "entry of target inf2, now trn1"),
        ({"arguments": "--auto-cast all"}, "entry of arguments --auto-cast none, now --auto-cast all"),
        (
            {"compiler_version": "2.22", "maker": "optimum"},
            "entry of compiler neuronx-cc 2.21, now 2.22; of maker torch_neuronx.trace, now optimum",
        ),
        ({"sequence_length": 64}, "no entry"),
        ({"weights": "other"}, "no entry"),
    ],
)
def test_a_miss_says_in_what_the_nearest_entry_differs(
    cache: Artefacts, graph: Path, changed: dict[str, Any], reason: str
) -> None:
    """Of the same model and shape, the entry that is most like it explains the miss."""
    cache.keep(replace(WANTED, compiler_version="1.0", target="trn2", maker="older"), graph, {})
    cache.keep(WANTED, graph, {})
    assert cache.look_up(replace(WANTED, **changed)) == Miss(reason)


def truncate(place: Path) -> None:
    """Cut the graph off."""
    (place / GRAPH).write_bytes(b"neff")


def flip(place: Path) -> None:
    """Change the graph's content and not its size."""
    (place / GRAPH).write_bytes(b"foff" * 1000)


def lose(place: Path) -> None:
    """Remove the graph."""
    (place / GRAPH).unlink()


def blank(place: Path) -> None:
    """Leave an entry of zeros, as a crash of the machine does."""
    (place / ENTRY).write_bytes(b"\0" * 500)


def forget(place: Path) -> None:
    """Remove the entry's description."""
    (place / ENTRY).unlink()


def age(place: Path) -> None:
    """Write the description as another version would."""
    path = place / ENTRY
    path.write_text(path.read_text().replace('"version": 1', '"version": 9'), encoding="utf-8")


def impersonate(place: Path) -> None:
    """Let the description be that of another compiler."""
    path = place / ENTRY
    path.write_text(path.read_text().replace("2.21", "2.20"), encoding="utf-8")


def obstruct(place: Path) -> None:
    """Put a file in the entry's place."""
    shutil.rmtree(place)
    place.write_text("in the way", encoding="utf-8")


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (truncate, "damaged: graph.pt has 4 bytes instead of 4000"),
        (flip, "damaged: graph.pt has another SHA-256"),
        (lose, "damaged: graph.pt can't be read"),
        (blank, "damaged: entry.json is not one of this version"),
        (forget, "damaged: it has no entry.json"),
        (age, "damaged: entry.json is not one of this version"),
        (impersonate, "entry of compiler neuronx-cc 2.20, now 2.21"),
        (obstruct, "damaged: it has no entry.json"),
    ],
)
def test_a_damaged_entry_is_a_miss_and_is_replaced(
    cache: Artefacts, graph: Path, harm: Callable[[Path], None], reason: str
) -> None:
    """Whatever has happened to an entry, it is not used, the reason is told, and the next writer puts it right."""
    cache.keep(WANTED, graph, {})
    harm(cache.folder / WANTED.key)
    found = cache.look_up(WANTED)
    assert isinstance(found, Miss)
    assert found.reason.startswith(reason)
    cache.keep(WANTED, graph, {})
    assert isinstance(cache.look_up(WANTED), Artefact)
    assert [path.name for path in cache.folder.iterdir()] == [WANTED.key]


def test_many_writers_leave_one_whole_entry(cache: Artefacts, graph: Path) -> None:
    """Writers of the same graph at the same time disturb neither each other nor a reader."""

    def work(_: int) -> bool:
        cache.keep(WANTED, graph, {})
        return isinstance(cache.look_up(WANTED), Artefact)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(64)))
    assert [path.name for path in cache.folder.iterdir()] == [WANTED.key]


def test_a_whole_entry_is_not_replaced(cache: Artefacts, graph: Path) -> None:
    """The first writer's graph stays: somebody may be reading it."""
    cache.keep(WANTED, graph, {"writer": "first"})
    cache.keep(WANTED, graph, {"writer": "second"})
    found = cache.look_up(WANTED)
    assert isinstance(found, Artefact)
    assert found.notes["writer"] == "first"


def test_a_full_disk_leaves_nothing_behind(cache: Artefacts, graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the system's own, and no half of an entry takes up the rest of the room."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space left"):
        cache.keep(WANTED, graph, {})
    assert list(cache.folder.iterdir()) == []
    assert cache.look_up(WANTED) == Miss("no entry")


def test_what_killed_writers_left_is_swept_away_when_it_is_old(cache: Artefacts, graph: Path) -> None:
    """A leftover of two days ago goes; one of an hour ago may belong to a writer that still works."""
    cache.folder.mkdir(parents=True)
    old, young = (cache.folder / f"{TEMPORARY}{name}" for name in ("old", "young"))
    for path, hours in ((old, 48), (young, 1)):
        path.mkdir()
        (path / GRAPH).write_bytes(b"half")
        then = path.stat().st_mtime - hours * 3600
        os.utime(path, (then, then))
    cache.keep(WANTED, graph, {})
    assert {path.name for path in cache.folder.iterdir()} == {WANTED.key, young.name}


def test_strangers_in_the_folder_do_no_harm(cache: Artefacts, graph: Path) -> None:
    """Other files and folders, and descriptions that are endless, are not entries."""
    cache.folder.mkdir(parents=True)
    (cache.folder / "lost+found").mkdir()
    (cache.folder / "README").write_text("hello", encoding="utf-8")
    (cache.folder / "huge").mkdir()
    (cache.folder / "huge" / ENTRY).write_bytes(b" " * (2**20 + 10))
    assert cache.look_up(WANTED) == Miss("no entry")
    cache.keep(WANTED, graph, {})
    assert isinstance(cache.look_up(WANTED), Artefact)


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 1])
def test_a_files_hash_is_that_of_its_whole_content(tmp_path: Path, size: int) -> None:
    """It is read in blocks, of which the last one may be shorter or missing."""
    path = tmp_path / "file"
    path.write_bytes(bytes(range(251)) * (size // 251) + b"x" * (size % 251))
    assert file_sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()
