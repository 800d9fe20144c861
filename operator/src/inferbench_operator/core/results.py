"""Builds result objects and the benchmark's entries from what was measured."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from inferbench_operator.core import names
from inferbench_operator.core.facts import Attempt, Benchmark, Result
from inferbench_operator.core.jobs import Manifest, owner_reference
from inferbench_operator.core.matrix import Cell
from inferbench_operator.core.price import inference_cost
from inferbench_operator.core.reports import details_of, printable
from inferbench_operator.models.base import API_VERSION
from inferbench_operator.models.cost import InferenceCost
from inferbench_operator.models.figures import CaveatEntry, Latencies, LatencyFigures, Percentile
from inferbench_operator.models.result import EarlierMeasurement, ResultSpec, ResultStatus
from inferbench_operator.models.status import CellStatus
from inferbench_runner.contract import Caveat, CellDetails, CellMeasured, FullReport, provenance_hash

_HISTORY: Final = TypeAdapter(list[EarlierMeasurement])
_LATENCIES: Final = set(Latencies.model_fields)
_UNEXPLAINED: Final = "The runner's full report, which explains it, was not found in its log."


def result(
    benchmark: Benchmark,
    cell: Cell,
    measured: CellMeasured,
    attempt: Attempt,
    finished: datetime,
    *,
    earlier: Result | None = None,
) -> Manifest:
    """Return the result object of a cell that `attempt` measured, in the place of an `earlier` one if there is one."""
    report = attempt.full_report
    details = details_of(measured, report)
    spec = ResultSpec(
        cell=cell.hash,
        benchmark=benchmark.name,
        model=cell.model.name,
        model_id=cell.model.id,
        accelerator=cell.accelerator.name,
        execution=cell.accelerator.execution,
        precision=cell.precision,
        sequence_length=cell.sequence_length,
        batch_size=cell.batch_size,
    )
    status = ResultStatus(
        run=attempt.run,
        attempt=attempt.number,
        completion_time=finished,
        verdict=measured.verdict,
        caveats=_caveats(measured, details),
        latency=_latencies(measured, details),
        inferences_per_second=measured.inferences_per_second,
        cost=_cost(attempt, measured, cell),
        runner_image=attempt.image,
        node=attempt.pod.node if attempt.pod else "",
        provenance_hash=_provenance_hash(report, cell),
        history=_history(benchmark, earlier),
        **_details(details, report),
    )
    return {
        "apiVersion": API_VERSION,
        "kind": "InferenceBenchmarkResult",
        "metadata": {
            "name": names.result_name(benchmark=benchmark.name, cell=cell.hash),
            "namespace": benchmark.namespace,
            "labels": {
                names.LABEL_MANAGED_BY: names.MANAGER,
                names.LABEL_BENCHMARK: benchmark.name,
                names.LABEL_CELL: cell.hash,
                names.LABEL_RUN: attempt.run,
            },
            "ownerReferences": [owner_reference(benchmark)],
        },
        "spec": spec.model_dump(mode="json", exclude_none=True),
        "status": status.model_dump(mode="json", exclude_none=True),
    }


def _cost(attempt: Attempt, measured: CellMeasured, cell: Cell) -> InferenceCost | None:
    if attempt.usd_per_hour is None:
        return None
    return inference_cost(
        attempt.usd_per_hour, attempt.price_details, measured.inferences_per_second, cell.sequence_length
    )


def _history(benchmark: Benchmark, earlier: Result | None) -> list[EarlierMeasurement]:
    """Return what was measured before, the latest first."""
    length = benchmark.spec.history.runs if benchmark.spec else 0
    if earlier is None or not length:
        return []
    try:
        older = _HISTORY.validate_json(earlier.history)
    except ValidationError:
        # Another version wrote it.
        older = []
    status, call = earlier.status, earlier.status.latency.call
    latest = EarlierMeasurement(
        run=status.run,
        completion_time=status.completion_time,
        verdict=status.verdict,
        samples=call.samples,
        p95_microseconds=call.p95.value_microseconds,
        p95_low_microseconds=call.p95.low_microseconds,
        p95_high_microseconds=call.p95.high_microseconds,
        runner_image=status.runner_image,
        provenance_hash=status.provenance_hash,
        p50_microseconds=call.p50.value_microseconds,
        p50_low_microseconds=call.p50.low_microseconds,
        p50_high_microseconds=call.p50.high_microseconds,
        p99_microseconds=call.p99.value_microseconds,
        p99_low_microseconds=call.p99.low_microseconds,
        p99_high_microseconds=call.p99.high_microseconds,
        inferences_per_second=status.inferences_per_second,
        usd_per_million_inferences=status.cost.usd_per_million_inferences if status.cost else None,
        profile=status.provenance.get("profile", ""),
        load=status.provenance.get("load", ""),
    )
    return [latest, *older][:length]


def figures(status: ResultStatus) -> dict[str, Any]:
    """Return the headline figures of a result as fields of `CellStatus`."""
    call = status.latency.call
    return {
        "verdict": status.verdict,
        "samples": call.samples,
        "p50_microseconds": call.p50.value_microseconds,
        "p95_microseconds": call.p95.value_microseconds,
        "p95_low_microseconds": call.p95.low_microseconds,
        "p95_high_microseconds": call.p95.high_microseconds,
        "p99_microseconds": call.p99.value_microseconds,
        "inferences_per_second": status.inferences_per_second,
        "usd_per_million_inferences": status.cost.usd_per_million_inferences if status.cost else None,
    }


def entry(cell: Cell, **state: Any) -> CellStatus:  # noqa: ANN401 - the other fields of CellStatus
    """Return the benchmark's status entry of a cell."""
    return CellStatus(
        cell=cell.hash,
        model=cell.model.name,
        accelerator=cell.accelerator.name,
        precision=cell.precision,
        sequence_length=cell.sequence_length,
        batch_size=cell.batch_size,
        **state,
    )


def _latencies(measured: CellMeasured, details: CellDetails | None) -> Latencies:
    if details is None:
        return Latencies(call=_headline(measured))
    return Latencies.model_validate(details.model_dump(include=_LATENCIES))


def _headline(measured: CellMeasured) -> LatencyFigures:
    return LatencyFigures(
        samples=measured.samples,
        mean_microseconds=measured.mean_microseconds,
        p50=Percentile(value_microseconds=measured.p50_microseconds),
        p90=Percentile(value_microseconds=measured.p90_microseconds),
        p95=Percentile(
            value_microseconds=measured.p95_microseconds,
            low_microseconds=measured.p95_low_microseconds,
            high_microseconds=measured.p95_high_microseconds,
        ),
        p99=Percentile(value_microseconds=measured.p99_microseconds),
        max_microseconds=measured.max_microseconds,
    )


def _caveats(measured: CellMeasured, details: CellDetails | None) -> list[CaveatEntry]:
    """Return each doubt of either report once; the short one has no words for them."""
    found: dict[Caveat, str] = {}
    for entry in details.caveats if details else ():
        found.setdefault(entry.caveat, printable(entry.message))
    for caveat in measured.caveats:
        found.setdefault(caveat, _UNEXPLAINED)
    return [CaveatEntry(caveat=caveat, message=message) for caveat, message in found.items()]


def _provenance_hash(report: FullReport | None, cell: Cell) -> str | None:
    """Return the hash over what is stored, so that a reader can check it; the runner's own counts for nothing."""
    if report is None or not report.provenance:
        return None
    length = {} if cell.sequence_length is None else {"sequenceLength": str(cell.sequence_length)}
    return provenance_hash(report.provenance | length | {"batchSize": str(cell.batch_size)})


def _details(details: CellDetails | None, report: FullReport | None) -> dict[str, Any]:
    """Return the fields of `ResultStatus` that have the same names in the full report."""
    shared = report.model_dump(by_alias=False, exclude={"version", "cells"}) if report else {}
    apart = {*_LATENCIES, "cell", "caveats", "provenance_hash"}
    return shared | (details.model_dump(by_alias=False, exclude=apart) if details else {})
