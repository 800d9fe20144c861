"""What the runner asks of a back end, whatever the device: the seam for every other kind, and for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from inferbench_runner.contract import ModelRef, Shape

Call = Callable[[], object]
"""One inference, host tensors in and host tensors out, finished when it returns."""

Facts = Mapping[str, str]
"""Provenance entries: what a reader has to know to repeat or to doubt a number."""


@dataclass(frozen=True)
class Source:
    """Where a model's files are on this machine."""

    directory: Path | None = None
    """None for a model that is built from the catalogue."""
    commit: str | None = None
    """The hub's commit of the files, where it is known."""


class LoadedModel(Protocol):
    """A model on its device, ready to be called with any shape it can take."""

    @property
    def facts(self) -> Facts:
        """Provenance that is known only now."""
        ...

    def verify(self, shape: Shape) -> None:
        """Run once and raise a `RunnerError` unless the output is one that this model can have."""
        ...

    def bound(self, shape: Shape) -> AbstractContextManager[Call]:
        """Return a context that yields the call to measure, with inputs of this shape bound by name."""
        ...


class Backend(Protocol):
    """One kind of device with a precision and a way of execution that it supports."""

    @property
    def facts(self) -> Facts:
        """Provenance of the device and the libraries."""
        ...

    def fetch(self, model: ModelRef) -> Source:
        """Bring the files of a pretrained model here."""
        ...

    def load(self, model: ModelRef, source: Source) -> LoadedModel:
        """Build the model on the device, from files or, with random weights, from its configuration."""
        ...
