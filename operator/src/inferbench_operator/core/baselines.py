"""Finds what gates compare with: an earlier run, another benchmark's last one, or a stored reference."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from pydantic import Field, TypeAdapter, ValidationError

from inferbench_operator.core import measured
from inferbench_operator.core.facts import Observed, Reference, Result
from inferbench_operator.core.measured import Labels, Measured
from inferbench_operator.models.base import (
    ApiModel,
    BatchSize,
    Decimals,
    Microseconds,
    SequenceLength,
    ShortName,
)
from inferbench_operator.models.gates import BaselineKind, Gate, GateMetric
from inferbench_operator.models.result import EarlierMeasurement
from inferbench_operator.models.status import CellState
from inferbench_runner.contract import Precision, Verdict

REFERENCE_KEY: Final = "reference.json"
"""Key of a ConfigMap under which the reference is."""

_FIELDS: Final[Mapping[GateMetric, str]] = MappingProxyType(
    {
        GateMetric.P50: "p50Microseconds",
        GateMetric.P95: "p95Microseconds",
        GateMetric.P99: "p99Microseconds",
        GateMetric.THROUGHPUT: "inferencesPerSecond",
        GateMetric.COST: "usdPerMillionInferences",
    }
)


@dataclass(frozen=True, slots=True)
class Baseline:
    """Figures that the cells of a run are held against."""

    title: str
    """What it is, for sentences."""
    cells: Mapping[Labels, Measured] = field(default_factory=dict)
    problem: str = ""
    """Why there is none; empty otherwise."""
    broken: bool = False
    """Whether that is a mistake, which time does not mend."""
    fields: bool = False
    """Whether people write its figures, and so may have misspelt a field or its unit."""

    def field_of(self, metric: GateMetric) -> str:
        """Return in what field the figure would be, for sentences."""
        return f": its entry has no {_FIELDS[metric]}" if self.fields else ""


class _Entry(ApiModel):
    """One cell of a stored reference, with those fields of a status entry that are of use here.

    A figure without bounds is taken as exact.
    """

    model: ShortName
    accelerator: ShortName
    precision: Precision = Precision.FP32
    sequence_length: SequenceLength | None = None
    batch_size: BatchSize = 1
    verdict: Verdict = Verdict.VALID
    p50_microseconds: Microseconds | None = None
    p95_microseconds: Microseconds | None = None
    p95_low_microseconds: Microseconds | None = None
    p95_high_microseconds: Microseconds | None = None
    p99_microseconds: Microseconds | None = None
    inferences_per_second: Decimals | None = None
    usd_per_million_inferences: Decimals | None = Field(default=None, alias="usdPerMillionInferences")

    def to_measured(self) -> Measured:
        """Convert to figures."""
        labels = Labels(self.model, self.accelerator, self.precision, self.sequence_length, self.batch_size)
        p50, p95, p99 = (
            measured.percentile(value, value if low is None else low, value if high is None else high)
            for value, low, high in (
                (self.p50_microseconds, None, None),
                (self.p95_microseconds, self.p95_low_microseconds, self.p95_high_microseconds),
                (self.p99_microseconds, None, None),
            )
        )
        figures = measured.figures(p50, p95, p99, self.inferences_per_second, self.usd_per_million_inferences)
        return Measured(labels, self.verdict, figures)


_ENTRIES: Final = TypeAdapter(list[_Entry])


def baseline_of(gate: Gate, run: Iterable[tuple[Labels, CellState, Result]], observed: Observed) -> Baseline | None:
    """Return what a gate compares the cells of the run with; None for a fixed limit."""
    name = gate.baseline_name or ""
    match gate.baseline:
        case None:
            return None
        case BaselineKind.PREVIOUS_RUN:
            return _previous(run)
        case BaselineKind.BENCHMARK:
            return _of_benchmark(name, observed)
        case BaselineKind.CONFIG_MAP:
            return _of_reference(f"ConfigMap {name}", observed.references.get(name, Reference()))


def _previous(run: Iterable[tuple[Labels, CellState, Result]]) -> Baseline:
    """Return what was measured before, of each cell by itself; one that was not measured anew is as it was."""
    cells = {}
    for labels, state, result in run:
        earlier = _latest(result)
        if state is CellState.REUSED:
            cells[labels] = measured.of_result(result, labels)
        elif earlier:
            cells[labels] = measured.of_earlier(labels, earlier)
    if cells:
        return Baseline("the run before", cells)
    return Baseline("the run before", problem="No earlier run has measured these cells; the next one can be compared.")


def _latest(result: Result) -> EarlierMeasurement | None:
    try:
        found = json.loads(result.history)
        return EarlierMeasurement.model_validate(found[0]) if found else None
    except (ValueError, LookupError, TypeError):
        # Another version wrote it.
        return None


def _of_benchmark(name: str, observed: Observed) -> Baseline:
    title = f"benchmark {name}"
    if name == observed.benchmark.name:
        problem = f"Benchmark {name} is this one itself; to compare it with its earlier run, use baseline: PreviousRun."
        return Baseline(title, problem=problem, broken=True)
    other = observed.siblings.get(name)
    if other is None:
        return Baseline(title, problem=f"There is no benchmark {name} in this namespace to compare with.")
    run = other.benchmark.status.run
    if run is None or run.completion_time is None:
        return Baseline(title, problem=f"Benchmark {name} has not finished its run.")
    found = (measured.of_result(result) for result in other.results)
    return Baseline(title, {one.labels: one for one in found})


def _of_reference(title: str, reference: Reference) -> Baseline:
    if reference.problem:
        return Baseline(title, problem=reference.problem, broken=reference.broken)
    try:
        entries = _ENTRIES.validate_json(reference.text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        why = f"{title}: {REFERENCE_KEY} is no list of entries like those of status.results: {where} {first['msg']}"
        return Baseline(title, problem=why[:400], broken=True)
    found = (entry.to_measured() for entry in entries)
    return Baseline(title, {one.labels: one for one in found}, fields=True)
