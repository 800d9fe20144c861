"""Proof that the device did the work: what the loaded graph is, and counters that moved while it was called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from inferbench_runner.backends.base import Call
from inferbench_runner.backends.neuron.counters import EXECUTIONS, Counters
from inferbench_runner.backends.neuron.devices import KIND
from inferbench_runner.backends.neuron.monitor import witnessed
from inferbench_runner.backends.neuron.tracing import PLACE
from inferbench_runner.backends.proof import Evidence
from inferbench_runner.backends.tasks import Model
from inferbench_runner.errors import DeviceUnusedError

DESCRIPTION: Final = (
    "a compiled graph, and executions that the driver (inference_count) or neuron-monitor counted in each verified call"
)


@dataclass(frozen=True)
class Witness:
    """Who tells of the device's work."""

    counters: Counters

    def watch(self, call: Call, places: frozenset[str]) -> Model:
        """Call once, and return the output.

        Raises:
            DeviceUnusedError: The graph is none of the device's, nobody counted an execution, or nobody counts any.
        """
        before = self.counters.count()
        if before is None:
            output, stats = witnessed(call)
            if stats is None:
                raise DeviceUnusedError(KIND, f"neither its driver's {EXECUTIONS} nor neuron-monitor tells of any work")
            executions = stats.execution_summary.completed
        else:
            output = call()
            executions = (self.counters.count() or 0) - before
        # The driver counts executions and not their time; the rule only asks for more than none.
        Evidence(places, executions).require(KIND, PLACE)
        return output
