"""What the figures of a finished run are worth: whether the gates are kept, and which accelerator is best.

It is told once, when the run is over, and then stands: a baseline that changes later changes nothing, except where
there was none yet. Another specification of gates or comparison is looked at anew, without a new run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from inferbench_operator.core import comparison, gates, measured
from inferbench_operator.core.baselines import baseline_of
from inferbench_operator.core.facts import Benchmark, Observed, Result
from inferbench_operator.core.measured import labels_of
from inferbench_operator.core.names import Reason
from inferbench_operator.core.situation import Situation
from inferbench_operator.models.benchmark import BenchmarkSpec
from inferbench_operator.models.gates import BaselineKind, Gate
from inferbench_operator.models.status import CellStatus, Comparison, GateStatus, Run

LOOK_EVERY: Final = timedelta(minutes=1)
"""How often a baseline is looked for that is not there yet."""

_FOREIGN: Final = {BaselineKind.BENCHMARK, BaselineKind.CONFIG_MAP}


@dataclass(frozen=True, slots=True)
class Assessment:
    """What is said of a run; empty while it goes on."""

    gates: tuple[GateStatus, ...] = ()
    missed: tuple[GateStatus, ...] = ()
    """Those of them that count against the run."""
    comparison: tuple[Comparison, ...] = ()
    best: frozenset[str] = field(default_factory=frozenset)
    """Hashes of the cells that no other beats in latency and cost."""
    waits: bool = False
    """Whether a baseline of another benchmark or a ConfigMap may still come."""


def assess(situation: Situation, entries: Sequence[CellStatus], observed: Observed) -> Assessment:
    """Return what the figures of a run are worth, given the status entries of all its cells."""
    if not all(entry.state.terminal for entry in entries):
        return Assessment()
    spec, before = situation.spec, situation.benchmark.status
    results = {**situation.reusable, **situation.measured}
    told: dict[str, GateStatus] = {}
    stands = _stands(situation.benchmark, situation.run)
    if stands:
        told = {one.name: one for one in before.gates}
    wanted = [gate for gate in spec.gates if gate.name not in told or _is_open(gate, told[gate.name])]
    found = {**told, **_judged(wanted, entries, results, observed)}
    said = tuple(found[gate.name] for gate in spec.gates)
    return Assessment(
        gates=said,
        missed=tuple(found[gate.name] for gate in spec.gates if gates.is_missed(gate, found[gate.name])),
        waits=any(_is_open(gate, found[gate.name]) for gate in spec.gates),
        comparison=tuple(before.comparison) if stands else _compared(spec, entries, results),
        best=frozenset(entry.cell for entry in before.results if entry.pareto) if stands else _best(entries, results),
    )


def wanted_references(observed: Observed) -> frozenset[str]:
    """Return the ConfigMaps that have to be read for the next decision, by name."""
    return _wanted(observed.benchmark, BaselineKind.CONFIG_MAP)


def compared_benchmarks(observed: Observed) -> frozenset[str]:
    """Return the other benchmarks that have to be looked at for the next decision, by name."""
    return _wanted(observed.benchmark, BaselineKind.BENCHMARK) - {observed.benchmark.name}


def _wanted(benchmark: Benchmark, kind: BaselineKind) -> frozenset[str]:
    if benchmark.spec is None:
        return frozenset()
    run = benchmark.status.run
    told = {one.name: one for one in benchmark.status.gates} if run and _stands(benchmark, run) else {}
    return frozenset(
        gate.baseline_name or ""
        for gate in benchmark.spec.gates
        if gate.baseline is kind and (gate.name not in told or _is_open(gate, told[gate.name]))
    )


def _stands(benchmark: Benchmark, run: Run) -> bool:
    """Whether the status already tells all of this run, by this specification."""
    before = benchmark.status
    return bool(run == before.run and run.completion_time and before.observed_generation == benchmark.generation)


def _is_open(gate: Gate, told: GateStatus) -> bool:
    return told.reason == Reason.BASELINE_MISSING and gate.baseline in _FOREIGN


def _judged(
    wanted: Sequence[Gate], entries: Sequence[CellStatus], results: Mapping[str, Result], observed: Observed
) -> dict[str, GateStatus]:
    if not wanted:
        return {}
    run = [(labels_of(entry), entry.state, results[entry.cell]) for entry in entries if entry.cell in results]
    cells = {labels_of(entry): None for entry in entries} | {
        labels: measured.of_result(result, labels) for labels, _, result in run
    }
    return {gate.name: gates.judge(gate, cells, baseline_of(gate, run, observed)) for gate in wanted}


def _compared(
    spec: BenchmarkSpec, entries: Sequence[CellStatus], results: Mapping[str, Result]
) -> tuple[Comparison, ...]:
    if spec.compare is None:
        return ()
    found = [measured.of_result(results[entry.cell], labels_of(entry)) for entry in entries if entry.cell in results]
    return tuple(comparison.compare(spec.compare, found))


def _best(entries: Sequence[CellStatus], results: Mapping[str, Result]) -> frozenset[str]:
    known = [entry for entry in entries if entry.cell in results]
    best = comparison.pareto(measured.of_result(results[entry.cell], labels_of(entry)) for entry in known)
    return frozenset(entry.cell for entry in known if labels_of(entry) in best)
