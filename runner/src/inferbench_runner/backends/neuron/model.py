"""A model on Neuron cores: compiled shape by shape, proved and verified copy by copy, and called by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Final

import torch

from inferbench_runner.artefacts import Artefacts, Ingredients
from inferbench_runner.backends.base import Bound, Call, Facts, Rows
from inferbench_runner.backends.host import HostModel, keeps_autograd, typed_memory
from inferbench_runner.backends.inductor import graphs as compiled_graphs
from inferbench_runner.backends.inductor import peak_memory_mebibytes
from inferbench_runner.backends.inputs import Inputs, make_inputs
from inferbench_runner.backends.libraries import version
from inferbench_runner.backends.neuron.copies import Copies
from inferbench_runner.backends.neuron.counters import Counters
from inferbench_runner.backends.neuron.devices import Devices, neighbours, parse_listing, run_neuron_ls
from inferbench_runner.backends.neuron.failures import typed_failures
from inferbench_runner.backends.neuron.making import Cores, Graph, Made, Maker, obtained
from inferbench_runner.backends.neuron.monitor import Latencies, device_latency, is_there
from inferbench_runner.backends.neuron.native import ARGUMENTS, TorchNeuron
from inferbench_runner.backends.neuron.witness import DESCRIPTION, Witness
from inferbench_runner.backends.tasks import Model
from inferbench_runner.clock import now_ns, to_milliseconds
from inferbench_runner.contract import CACHE_VARIABLE, CacheOutcome, Compilation, Correctness, Plan, Shape
from inferbench_runner.errors import DeviceNotFoundError
from inferbench_runner.usage import Usage
from inferbench_runner.words import one_line

FOLDER = "neuron"
"""Folder of these graphs in the cache of artefacts."""

TEXT_CHARACTERS = 256
"""Longest reason of a miss that the contract takes."""

ASKED: Final = "percentiles by neuron-monitor, over calls of their own before the samples: it tells no time of one call"

NOT_ASKED: Final = "not measured: there is no neuron-monitor, and nothing else tells it"


@dataclass(frozen=True)
class NeuronModel:
    """A model whose weights stay in fp32 on the host: what a precision means is the compiler's business."""

    host: HostModel
    plan: Plan
    maker: Maker | TorchNeuron
    target: str
    weights: str
    """Commit of the files, or a hash of what they are made from."""
    names: tuple[str, ...]
    """The model's inputs, in the order of its graphs."""
    devices: Devices | None
    measures: bool = True
    """Whether graphs are loaded and called; else they are only compiled, and have to be kept."""
    why: str = ""
    """Why the graphs are not made by optimum-neuron."""
    _copies: dict[Shape, Copies] = field(default_factory=dict)
    _verified: dict[Shape, Bound] = field(default_factory=dict)
    _latencies: dict[Shape, Latencies | None] = field(default_factory=dict)
    """What the monitor has told of each shape's calls; None where it told nothing, or another process has asked it."""

    @property
    def facts(self) -> Facts:
        """Provenance of the model."""
        maker = self.maker
        compiler = {
            "graphMaker": maker.name + (f" ({self.why})" if self.why else ""),
            "inputOrder": " ".join(self.names),
            "precision": self.plan.precision,
            "deviceProof": DESCRIPTION,
            "deviceLatency": ASKED if is_there() else NOT_ASKED,
        }
        if isinstance(maker, TorchNeuron):
            return {**self.host.facts, **compiler, "compilerArguments": ARGUMENTS}
        return {
            **self.host.facts,
            **compiler,
            "compiler": f"{maker.compiler} {maker.version}",
            "compilerArguments": " ".join(maker.arguments),
            "inlinedWeights": "yes" if maker.inlined else "no",
        }

    def refer(self, shape: Shape, known: Rows | None = None) -> Rows:
        """Return the right outputs for a shape."""
        if known is not None:
            # The process that has computed them asks the monitor too, and once is enough.
            self._latencies.setdefault(shape, None)
        return self.host.references.add(shape, known)

    @property
    def compiles(self) -> bool:
        """There is no other way to a Neuron core."""
        return True

    def compile(self, shape: Shape) -> Compilation:
        """Compile the graph of this shape, or find it in the cache, and load a copy for each call in flight."""
        begun, inputs = now_ns(), self._inputs(shape)
        if isinstance(self.maker, TorchNeuron):
            with typed_failures(self.maker.name):
                self._copies[shape] = Copies((self.maker.make(self.host.model, inputs),))
            return self._told(begun, self.maker.name, ARGUMENTS)
        maker, ingredients, artefacts = self.maker, self._ingredients(self.maker, shape), self._artefacts

        def make(folder: Path) -> Made:
            with typed_failures(compiler):
                return maker.make(self.host.model, inputs, shape, folder)

        compiler = f"{maker.compiler} {maker.version}"
        with obtained(artefacts, ingredients, make, must_keep=not self.measures) as found:
            if self.measures:
                with typed_failures():
                    self._copies[shape] = Copies(tuple(maker.load(found.artefact, cores) for cores in self._blocks))
        return self._told(begun, compiler, " ".join(maker.arguments)).model_copy(
            update={
                "cache": found.outcome,
                "miss": one_line(found.miss, TEXT_CHARACTERS),
                "key": ingredients.key if artefacts else "",
            }
        )

    def verify(self, shape: Shape) -> Correctness:
        """Call each copy once as it will be timed and once with padding, and compare with the references."""
        try:
            bound = self._bind(shape)
            copies = self._copies[shape]
            with bound.worker():
                found = [
                    self._verified_copy(shape, graph, cores)
                    for graph, cores in zip(copies.graphs, self._blocks, strict=True)
                ]
        except BaseException:
            self._copies.pop(shape, None)
            raise
        self._verified[shape] = bound
        return found[0]

    @contextmanager
    def bound(self, shape: Shape) -> Iterator[Bound]:
        """Yield the calls on inputs of this shape, and let the graph go afterwards."""
        try:
            with typed_failures(listening=False):
                yield self._verified.pop(shape) if shape in self._verified else self._bind(shape)
        finally:
            self._copies.pop(shape, None)

    def _verified_copy(self, shape: Shape, graph: Graph, cores: Cores) -> Correctness:
        witness = Witness(self._counters, self._held[cores.start : cores.start + cores.count])

        def watch(call: Call) -> Model:
            with typed_failures():
                return witness.watch(call, graph.places)

        inputs = self._inputs(shape)
        return self._referred.verify(shape, partial(graph.forward, inputs), graph.forward, watch)

    def _bind(self, shape: Shape) -> Bound:
        copies = self._copies[shape]

        @contextmanager
        def worker() -> Iterator[None]:
            with copies.taken(), nullcontext() if keeps_autograd(self.plan) else torch.inference_mode():
                yield

        call = copies.call(self._inputs(shape))

        def ask() -> Latencies | None:
            with worker():
                return device_latency(call)

        return Bound(
            call=call,
            end_to_end=self.host.end_to_end.bind(shape, copies.forward),
            worker=worker,
            observe=partial(self._observe, shape, ask),
        )

    def _inputs(self, shape: Shape) -> Inputs:
        with typed_memory():
            return make_inputs(self.host.model, shape, self.plan.seed)

    @cached_property
    def _referred(self) -> HostModel:
        """The model on the host, from the first comparison on, when all that it is compared with is there."""
        self.host.references.complete()
        return self.host

    @cached_property
    def _counters(self) -> Counters:
        return Counters.of(self.devices, self._held) if self.devices else Counters((), ())

    @property
    def _held(self) -> tuple[int, ...]:
        """The cores that were claimed for this process, by the runtime's numbers, which the environment names."""
        return self.devices.allowed(os.environ) if self.devices else ()

    @property
    def _blocks(self) -> list[Cores]:
        """The cores of each copy."""
        each = self.plan.device.cores or 1
        return [Cores(number * each, each) for number in range(self.plan.measurement.load.concurrency)]

    @property
    def _artefacts(self) -> Artefacts | None:
        folder = os.environ.get(CACHE_VARIABLE)
        return Artefacts(Path(folder) / FOLDER) if folder else None

    def _ingredients(self, maker: Maker, shape: Shape) -> Ingredients:
        facts = self.host.facts
        return Ingredients(
            model=f"{facts['modelClass']} {self.plan.model.id}",
            weights=self.weights,
            task=self.host.task.name,
            batch_size=shape.batch_size,
            sequence_length=shape.sequence_length,
            compiler=maker.compiler,
            compiler_version=maker.version,
            arguments=" ".join(maker.arguments),
            target=self.target,
            inlined=maker.inlined,
            maker=f"{maker.name}, {_libraries()}",
        )

    def _told(self, begun: int, compiler: str, arguments: str) -> Compilation:
        return Compilation(
            milliseconds=to_milliseconds(now_ns() - begun),
            peak_memory_mebibytes=peak_memory_mebibytes(),
            compiler=one_line(compiler, TEXT_CHARACTERS),
            arguments=arguments,
            cache=CacheOutcome.OFF,
        )

    def _observe(self, shape: Shape, ask: Callable[[], Latencies | None]) -> Callable[[], Usage]:
        """Begin to watch the device, which is looked at before and after the calls and never between them."""
        if shape not in self._latencies:
            self._latencies[shape] = ask()
        native, latency = isinstance(self.maker, TorchNeuron), self._latencies.get(shape)
        before = compiled_graphs() if native else 0

        def ended() -> Usage:
            devices = self.devices
            try:
                listed = parse_listing(run_neuron_ls()) if devices else []
            except DeviceNotFoundError:
                # What was measured was: a listing that fails takes nothing of it away.
                listed = []
            return Usage(
                neighbours=neighbours(listed, devices.numbers, os.getpid()) if devices and listed else None,
                peak_memory_bytes=self._counters.memory_bytes(),
                recompilations=compiled_graphs() - before if native else 0,
                monitor_p50_microseconds=latency.p50_microseconds if latency else None,
                monitor_p99_microseconds=latency.p99_microseconds if latency else None,
            )

        return ended


def _libraries() -> str:
    return f"torch {torch.__version__}, transformers {version('transformers')}"
