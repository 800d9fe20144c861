"""Traced graphs: made by a compiler for one shape, kept as a file, loaded onto cores and called by name.

A compiled graph takes tensors by position. The order is written down when it is made and looked up when it is called,
so that a mask can't end up where token types belong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Protocol

import torch

from inferbench_runner.artefacts import Artefact, Artefacts, Ingredients, Miss
from inferbench_runner.backends.inputs import MASK, TOKENS, Inputs
from inferbench_runner.backends.tasks import Model
from inferbench_runner.contract import CacheOutcome, Shape
from inferbench_runner.errors import ArtefactsUnwritableError

ORDER = "inputs"
"""Note with the names of the inputs in the graph's order."""

RETURNED = "outputs"
"""Note with the names of what it returns, in the graph's order."""


@dataclass(frozen=True)
class Cores:
    """A block of cores, counted among those that this process sees."""

    start: int
    count: int


@dataclass(frozen=True)
class Graph:
    """A compiled graph on its cores."""

    names: tuple[str, ...]
    """Its inputs, in the order in which it takes them."""
    run: Callable[..., Model]
    """Takes the inputs by name; host tensors in and host tensors out."""
    places: frozenset[str]
    """Where it works, in the words of `proof`."""

    def forward(self, inputs: Inputs) -> Model:
        """Run it; an input that a tokenizer leaves out is what the model itself would put in its place."""
        return self.run(**{name: inputs[name] if name in inputs else _default(name, inputs) for name in self.names})


@dataclass(frozen=True)
class Made:
    """What a compiler has made."""

    path: Path
    notes: Mapping[str, str]


class Maker(Protocol):
    """One way of making graphs."""

    @property
    def name(self) -> str:
        """What traces the model, and in which version."""
        ...

    @property
    def compiler(self) -> str:
        """The compiler's program."""
        ...

    @property
    def version(self) -> str:
        """The compiler's version."""
        ...

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the compiler is told."""
        ...

    @property
    def inlined(self) -> bool:
        """Whether the weights become part of the graph, so that no call has to bring them to the device."""
        ...

    def make(self, model: Model, inputs: Inputs, shape: Shape, folder: Path) -> Made:
        """Compile the model for inputs of this shape, in a folder of its own."""
        ...

    def load(self, artefact: Artefact, cores: Cores) -> Graph:
        """Load a compiled graph onto cores."""
        ...


class ByName(torch.nn.Module):
    """A model that takes tensors in a fixed order and calls the real one by name; a tuple of tensors comes out."""

    def __init__(self, model: Model, names: tuple[str, ...]) -> None:
        """Wrap the model."""
        super().__init__()
        self.model = model
        self.names = names
        self.returned: tuple[str, ...] = ()

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the model, and write down which of its outputs come out in which order."""
        output = self.model(**dict(zip(self.names, tensors, strict=True)))
        kept = {name: value for name, value in output.items() if isinstance(value, torch.Tensor)}
        self.returned = tuple(kept)
        return tuple(kept.values())

    @property
    def notes(self) -> dict[str, str]:
        """What has to be known to call a graph of it."""
        return {ORDER: " ".join(self.names), RETURNED: " ".join(self.returned)}


def positional(module: Callable[..., Any], notes: Mapping[str, str], places: frozenset[str]) -> Graph:
    """Return a graph that takes its inputs by position, as one that is called by name."""
    names, returned = tuple(notes[ORDER].split()), tuple(notes[RETURNED].split())

    def run(**inputs: torch.Tensor) -> Model:
        found = module(*(inputs[name] for name in names))
        values = (found,) if isinstance(found, torch.Tensor) else found
        return SimpleNamespace(**dict(zip(returned, values, strict=True)))

    return Graph(names, run, places)


@dataclass(frozen=True)
class Obtained:
    """A graph's file, and whether it was there already."""

    artefact: Artefact
    outcome: CacheOutcome
    miss: str = ""


@contextmanager
def obtained(
    artefacts: Artefacts | None, ingredients: Ingredients, make: Callable[[Path], Made], *, must_keep: bool
) -> Iterator[Obtained]:
    """Yield a graph's file, from the cache or newly made; it is there for as long as the context is.

    Raises:
        ArtefactsUnwritableError: It can't be kept, and has to be. Else it is used all the same, and the miss says so.
    """
    found = artefacts.look_up(ingredients) if artefacts else Miss("")
    if isinstance(found, Artefact):
        yield Obtained(found, CacheOutcome.HIT)
        return
    with TemporaryDirectory(prefix="inferbench-neuron-", ignore_cleanup_errors=True) as name:
        made = make(Path(name))
        artefact = Artefact(made.path, made.notes)
        if artefacts is None:
            yield Obtained(artefact, CacheOutcome.OFF)
            return
        reason = found.reason
        try:
            artefacts.keep(ingredients, made.path, made.notes)
        except OSError as error:
            if must_keep:
                raise ArtefactsUnwritableError(str(artefacts.folder), error) from error
            reason += f"; not stored: {error.strerror or error}"
        yield Obtained(artefact, CacheOutcome.MISS, reason)


def _default(name: str, inputs: Inputs) -> torch.Tensor:
    like = torch.ones_like if name == MASK else torch.zeros_like
    return like(inputs[TOKENS])
