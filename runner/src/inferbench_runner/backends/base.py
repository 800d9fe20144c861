"""What the runner asks of a back end, whatever the device: the seam for every other kind, and for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferbench_runner.contract import Compilation, Correctness, ModelRef, Shape
from inferbench_runner.usage import Usage

Call = Callable[[], object]
"""One inference, host tensors in and host tensors out, finished when it returns."""

Worker = Callable[[], AbstractContextManager[None]]
"""What a thread enters once around all its calls, such as a mode that is kept per thread and costs time to enter."""

Facts = Mapping[str, str]
"""Provenance entries: what a reader has to know to repeat or to doubt a number."""


@dataclass(frozen=True)
class Source:
    """Where a model's files are on this machine."""

    directory: Path | None = None
    """None for a model that is built from the catalogue."""
    commit: str | None = None
    """The hub's commit of the files, where it is known."""


Rows: TypeAlias = tuple[NDArray[np.float32], ...]
"""What is compared of a shape's right outputs: for each input that is tried, a row for each decision or vector."""


def _nothing() -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True)
class Bound:
    """The calls to measure, with inputs of one shape bound by name; several threads may call at the same time."""

    call: Call
    end_to_end: Call | None = None
    """Text or image in, label out; None where the model has no usable processor."""
    device_ns: Callable[[], int] | None = None
    """The device's own time in the last `call`, in nanoseconds; None where it can't be had."""
    worker: Worker = _nothing
    observe: Callable[[], Callable[[], Usage]] | None = None
    """Begins to watch the device; what it returns ends the watching, and says what the device did meanwhile."""


class LoadedModel(Protocol):
    """A model on its device, ready to be called with any shape it can take."""

    @property
    def facts(self) -> Facts:
        """Provenance that is known only now."""
        ...

    def refer(self, shape: Shape, known: Rows | None = None) -> Rows:
        """Return what `verify` compares with, computed on the CPU in fp32: for every shape, before any is verified.

        What another process has computed for the same shape is known, and taken as it is: that saves the time of the
        slowest calls, and a process whose model is another one is found out.

        Raises:
            RunnerError: The model has no output for this shape, or the host has not enough memory for it.
        """
        ...

    @property
    def compiles(self) -> bool:
        """Whether there is anything to compile."""
        ...

    def compile(self, shape: Shape) -> Compilation:
        """Make what will be called with inputs of this shape, after `refer`; for a model that compiles only.

        Raises:
            RunnerError: The compiler failed, or what it made can't be loaded.
        """
        ...

    def verify(self, shape: Shape) -> Correctness:
        """Run once and compare the output with that of the same model on the CPU in fp32.

        Raises:
            RunnerError: The output is not one that this model can have, or differs by more than the tolerance.
        """
        ...

    def bound(self, shape: Shape) -> AbstractContextManager[Bound]:
        """Return a context that yields the calls to measure, with inputs of this shape bound by name."""
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
