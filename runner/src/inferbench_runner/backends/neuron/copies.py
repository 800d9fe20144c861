"""Copies of a graph, one for each call in flight, each on cores of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from threading import Lock, local

from inferbench_runner.backends.base import Call
from inferbench_runner.backends.inputs import Inputs
from inferbench_runner.backends.neuron.making import Graph
from inferbench_runner.backends.tasks import Model


class Copies:
    """Gives each thread that works a copy that no other one calls meanwhile."""

    def __init__(self, graphs: tuple[Graph, ...]) -> None:
        """Hold at least one."""
        self.graphs = graphs
        self._free = list(range(len(graphs)))
        heapify(self._free)
        self._lock = Lock()
        self._own = local()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Give this thread the first copy that is free."""
        with self._lock:
            number = heappop(self._free)
        before = getattr(self._own, "graph", None)
        self._own.graph = self.graphs[number]
        try:
            yield
        finally:
            self._own.graph = before
            with self._lock:
                heappush(self._free, number)

    def forward(self, inputs: Inputs) -> Model:
        """Run this thread's copy."""
        graph: Graph = self._own.graph
        return graph.forward(inputs)

    def call(self, inputs: Inputs) -> Call:
        """Return the call to time: of the only copy directly, so that nothing is looked up in it."""
        if len(self.graphs) == 1:
            graph = self.graphs[0]
            return lambda: graph.run(**inputs)
        return lambda: self.forward(inputs)
