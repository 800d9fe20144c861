"""Builds result objects and the benchmark's entries from what was measured."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from inferbench_operator.core import names
from inferbench_operator.core.facts import Attempt, Benchmark
from inferbench_operator.core.jobs import Manifest, owner_reference
from inferbench_operator.core.matrix import Cell
from inferbench_operator.core.reports import details_of
from inferbench_operator.models.base import API_VERSION
from inferbench_operator.models.result import Latencies, LatencyFigures, Percentile, ResultSpec, ResultStatus
from inferbench_operator.models.status import CellStatus
from inferbench_runner.contract import CellDetails, CellMeasured, FullReport


def result(benchmark: Benchmark, cell: Cell, measured: CellMeasured, attempt: Attempt, finished: datetime) -> Manifest:
    """Return the result object of a cell that `attempt` measured."""
    details = details_of(measured, attempt.full_report)
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
        latency=Latencies(call=_call_latency(measured, details)),
        inferences_per_second=measured.inferences_per_second,
        runner_image=attempt.image,
        node=attempt.pod.node if attempt.pod else "",
        **_details(details, attempt.full_report),
    )
    return {
        "apiVersion": API_VERSION,
        "kind": "InferenceBenchmarkResult",
        "metadata": {
            "name": names.result_name(benchmark=benchmark.name, cell=cell.hash),
            "namespace": benchmark.namespace,
            "labels": {
                "app.kubernetes.io/managed-by": names.MANAGER,
                names.LABEL_BENCHMARK: benchmark.name,
                names.LABEL_CELL: cell.hash,
                names.LABEL_RUN: attempt.run,
            },
            "ownerReferences": [owner_reference(benchmark)],
        },
        "spec": spec.model_dump(mode="json", exclude_none=True),
        "status": status.model_dump(mode="json", exclude_none=True),
    }


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


def _call_latency(measured: CellMeasured, details: CellDetails | None) -> LatencyFigures:
    if details:
        return LatencyFigures.model_validate(details.call.model_dump())
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


def _details(details: CellDetails | None, report: FullReport | None) -> dict[str, Any]:
    shared = (
        {
            "phases_milliseconds": report.phases_milliseconds,
            "peak_host_memory_mebibytes": report.peak_host_memory_mebibytes,
            "provenance": report.provenance,
        }
        if report
        else {}
    )
    own = (
        {
            "warmup_calls": details.warmup_calls,
            "warmup_milliseconds": details.warmup_milliseconds,
            "measure_milliseconds": details.measure_milliseconds,
        }
        if details
        else {}
    )
    return shared | own
