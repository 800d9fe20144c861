"""Keeps compiled graphs from one run to the next, each under a hash of all that it was made from.

    <folder>/<key>/graph.pt     the compiled graph
                  /entry.json   what it was made from, its size and its SHA-256

Several pods may share the folder, and any of them may be killed at any time, so nothing in it is trusted: an entry
appears complete by one rename or not at all, and one that is not what it says is a miss, and is replaced.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

GRAPH: Final = "graph.pt"
ENTRY: Final = "entry.json"

KEY_DIGITS: Final = 32
"""Hex digits of SHA-256 that name an entry."""

ENTRY_BYTES: Final = 2**20
"""Longest entry.json that is read: ours have a few kilobytes."""

BLOCK_BYTES: Final = 2**20
"""Bytes of a graph that are in memory at a time while its hash is computed."""

NEIGHBOURS: Final = 1000
"""Most other entries that are looked at for the reason of a miss."""

TEMPORARY: Final = ".making-"
"""Prefix of what is not an entry yet."""

ABANDONED_SECONDS: Final = 86_400
"""Age at which what is not an entry yet is held to be left over from a writer that was killed."""

TAKEN: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR})
"""Codes by which a rename says that something has that name already."""

WHAT: Final = ("model", "weights", "task", "batch_size", "sequence_length")
"""Ingredients that say which graph it is; the others say how it is made."""


@dataclass(frozen=True)
class Ingredients:
    """All that a compiled graph is made from: where one of them differs, it is another graph."""

    model: str
    """Class of the model and its id."""
    weights: str
    """Commit of the files, or a hash of what they are made from."""
    task: str
    batch_size: int
    sequence_length: int | None
    compiler: str
    compiler_version: str
    arguments: str
    target: str
    """Family of devices that it is made for."""
    inlined: bool
    """Whether the weights are part of the graph."""
    maker: str
    """Way in which the graph is traced, and the versions of the libraries that do it."""

    @property
    def key(self) -> str:
        """Name of the entry."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


class Entry(BaseModel):
    """Content of entry.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    ingredients: Ingredients
    size: int = Field(ge=0)
    """Bytes of the graph."""
    sha256: str
    """Of the graph."""
    notes: dict[str, str] = Field(default_factory=dict)
    """What its maker needs besides the graph in order to call it."""


@dataclass(frozen=True)
class Artefact:
    """A compiled graph that is what it says."""

    path: Path
    notes: Mapping[str, str]


@dataclass(frozen=True)
class Miss:
    """Why there is no graph to be had."""

    reason: str


@dataclass(frozen=True)
class Artefacts:
    """The cache in one folder, which need not exist yet."""

    folder: Path

    def look_up(self, ingredients: Ingredients) -> Artefact | Miss:
        """Return the graph if it is there and whole, or why it is not."""
        place = self.folder / ingredients.key
        found = _read(place)
        if found is None:
            return Miss(self._nearest(ingredients))
        if isinstance(found, Miss):
            return found
        if found.ingredients != ingredients:
            return Miss(_differences(found.ingredients, ingredients))
        return _checked(place / GRAPH, found)

    def keep(self, ingredients: Ingredients, graph: Path, notes: Mapping[str, str]) -> None:
        """Store a graph; where another writer was faster with a whole one, that stays.

        Raises:
            OSError: The folder can't be written, or has no room.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=TEMPORARY, dir=self.folder, ignore_cleanup_errors=True) as name:
            temporary = Path(name)
            self._sweep(temporary)
            made = temporary / "entry"
            made.mkdir()
            shutil.copyfile(graph, made / GRAPH)
            entry = Entry(
                ingredients=ingredients,
                size=(made / GRAPH).stat().st_size,
                sha256=file_sha256(made / GRAPH),
                notes=dict(notes),
            )
            (made / ENTRY).write_text(entry.model_dump_json(indent=2) + "\n", encoding="utf-8")
            # The name must not reach the disk before the content: a crash would leave an entry of zeros.
            for path in (made / GRAPH, made / ENTRY, made):
                _sync(path)
            self._put(made, ingredients, temporary)

    def _put(self, made: Path, ingredients: Ingredients, temporary: Path) -> None:
        """Give the entry its name, in place of one that is damaged."""
        place = self.folder / ingredients.key
        for attempt in range(3):
            try:
                made.rename(place)
            except OSError as error:
                if error.errno not in TAKEN:
                    raise
            else:
                return
            if isinstance(self.look_up(ingredients), Artefact):
                return
            with suppress(FileNotFoundError):
                place.rename(temporary / f"replaced-{attempt}")
        msg = "other writers keep replacing the entry"
        raise OSError(errno.EBUSY, msg)

    def _sweep(self, mine: Path) -> None:
        """Remove what killed writers have left; the folder's own clock tells how long ago."""
        now = mine.stat().st_mtime
        for path in self.folder.glob(f"{TEMPORARY}*"):
            with suppress(OSError):
                if now - path.stat().st_mtime > ABANDONED_SECONDS:
                    shutil.rmtree(path, ignore_errors=True)

    def _nearest(self, wanted: Ingredients) -> str:
        """Say in what the entry that is most like the wanted one differs."""
        same = [
            entry.ingredients
            for entry in self._entries()
            if all(getattr(entry.ingredients, name) == getattr(wanted, name) for name in WHAT)
        ]
        if not same:
            return "no entry"
        return _differences(min(same, key=lambda one: len(_differing(one, wanted))), wanted)

    def _entries(self) -> Iterator[Entry]:
        try:
            names = sorted(islice((path.name for path in self.folder.iterdir()), NEIGHBOURS))
        except OSError:
            return
        for name in names:
            if not name.startswith(TEMPORARY) and isinstance(entry := _read(self.folder / name), Entry):
                yield entry


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file that may be larger than the memory."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _read(place: Path) -> Entry | Miss | None:
    """Return what entry.json says, why it says nothing, or None where there is no such entry."""
    path = place / ENTRY
    try:
        with path.open("rb") as file:
            text = file.read(ENTRY_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return Miss(f"damaged: it has no {ENTRY}") if place.exists() else None
    except OSError as error:
        return Miss(f"damaged: {ENTRY} can't be read ({error.strerror or error})")
    try:
        return Entry.model_validate_json(text)
    except ValidationError:
        return Miss(f"damaged: {ENTRY} is not one of this version")


def _checked(graph: Path, entry: Entry) -> Artefact | Miss:
    """Return the graph if it is the one that the entry was written for."""
    try:
        size = graph.stat().st_size
        if size != entry.size:
            return Miss(f"damaged: {GRAPH} has {size} bytes instead of {entry.size}")
        if file_sha256(graph) != entry.sha256:
            return Miss(f"damaged: {GRAPH} has another SHA-256 than {ENTRY} says")
    except OSError as error:
        return Miss(f"damaged: {GRAPH} can't be read ({error.strerror or error})")
    return Artefact(graph, entry.notes)


def _differing(found: Ingredients, wanted: Ingredients) -> list[str]:
    return [name for name, value in asdict(wanted).items() if getattr(found, name) != value]


def _differences(found: Ingredients, wanted: Ingredients) -> str:
    """Say what an entry was made from, and what is wanted now."""
    told = [
        f"{name.replace('_', ' ')} {getattr(found, name)}, now {getattr(wanted, name)}"
        if name != "compiler_version"
        else f"compiler {found.compiler} {found.compiler_version}, now {wanted.compiler_version}"
        for name in _differing(found, wanted)
    ]
    return f"entry of {'; of '.join(told)}"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
