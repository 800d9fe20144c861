"""Proof that the device did the work: what the loaded graph is, and counters that moved while it was called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from inferbench_runner.backends.base import Call
from inferbench_runner.backends.neuron.counters import EXECUTIONS, Counters
from inferbench_runner.backends.neuron.devices import KIND
from inferbench_runner.backends.neuron.failures import without_number
from inferbench_runner.backends.neuron.monitor import witnessed
from inferbench_runner.backends.neuron.tracing import PLACE
from inferbench_runner.backends.proof import Evidence
from inferbench_runner.backends.tasks import Model
from inferbench_runner.errors import DeviceUnusedError
from inferbench_runner.words import listed

DESCRIPTION: Final = (
    "a compiled graph, and executions in each verified call: counted by the driver (inference_count) on the copy's own "
    "cores where it tells them apart, or by neuron-monitor"
)


@dataclass(frozen=True)
class Witness:
    """Who tells of the device's work for one copy of a graph."""

    counters: Counters
    """Of all cores that this process holds."""
    cores: tuple[int, ...]
    """The copy's own, by the runtime's numbers."""

    def watch(self, call: Call, places: frozenset[str]) -> Model:
        """Call once, and return the output.

        Raises:
            DeviceUnusedError: The graph is none of the device's, it ran on another copy's cores, nobody counted an
                execution, or nobody counts any.
            NumericMismatchError: The device computed something that is no number.
        """
        before = self.counters.counts()
        if before:
            output = call()
            executions = self._own(before, self.counters.counts())
        else:
            output, executions = _monitored(call)
        # Executions are counted and not their time; the rule only asks for more than none.
        Evidence(places, executions).require(KIND, PLACE)
        return output

    def _own(self, before: Mapping[int | None, int], after: Mapping[int | None, int]) -> int:
        """Return the executions on the copy's own cores; where cores can't be told apart, those on all of them."""
        counted = {core: count - before.get(core, 0) for core, count in after.items()}
        own = sum(count for core, count in counted.items() if core is None or core in self.cores)
        worked = sorted(core for core, count in counted.items() if core is not None and count > 0)
        if worked and own <= 0:
            raise DeviceUnusedError(KIND, f"the copy for {_named(self.cores)} ran on {_named(worked)}")
        return own


def _monitored(call: Call) -> tuple[Model, int]:
    output, stats = witnessed(call)
    if stats is None:
        raise DeviceUnusedError(KIND, f"neither its driver's {EXECUTIONS} nor neuron-monitor tells of any work")
    found = stats.execution_summary
    if found.completed_with_num_err:
        detail = f"neuron-monitor counted {found.completed_with_num_err} such executions"
        raise without_number(detail)
    return output, found.completed


def _named(cores: Sequence[int]) -> str:
    return f"core{'s' if len(cores) > 1 else ''} {listed([str(core) for core in cores], 'and')}"
