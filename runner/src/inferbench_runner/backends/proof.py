"""Proof that the device which was asked for did the work: libraries fall back to the host with no more than a warning.

Each back end gathers the evidence that its device gives; what it must show is decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from inferbench_runner.backends.tasks import Model
from inferbench_runner.errors import DeviceUnusedError

Output = TypeVar("Output")


@dataclass(frozen=True)
class Evidence:
    """What a device showed during one call."""

    places: frozenset[str]
    """Where the model's weights are, in the library's words, such as cpu or cuda."""
    busy_ns: int
    """Time for which the device itself says that it worked in the call."""

    def require(self, kind: str, place: str) -> None:
        """Raise `DeviceUnusedError` unless all weights are in this place and the device worked."""
        if self.places != {place}:
            raise DeviceUnusedError(
                kind, f"the model's weights are on {' and '.join(sorted(self.places)) or 'nothing'}"
            )
        if self.busy_ns <= 0:
            raise DeviceUnusedError(kind, "it did nothing while the model was called")


def places(model: Model) -> frozenset[str]:
    """Return where the model's parameters and buffers are."""
    return frozenset(tensor.device.type for tensor in chain(model.parameters(), model.buffers()))


def watched(call: Callable[[], Output], model: Model, busy_ns: Callable[[], int]) -> tuple[Output, Evidence]:
    """Call once, and return the output with the evidence: `busy_ns` is a counter of the device's working time."""
    before = busy_ns()
    output = call()
    return output, Evidence(places(model), busy_ns() - before)
