"""Builders of facts: each hides what a test does not care about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from inferbench_operator.core.facts import Attempt, Benchmark, Observed, Pod, Result, Termination
from inferbench_operator.core.matrix import Cell, expand, group, spec_hash
from inferbench_operator.core.names import run_id
from inferbench_operator.core.settings import Settings
from inferbench_operator.models.benchmark import BenchmarkSpec
from inferbench_operator.models.result import ResultSpec, ResultStatus
from inferbench_operator.models.status import BenchmarkStatus
from inferbench_runner.contract import (
    CellDetails,
    CellFailed,
    CellMeasured,
    CompactReport,
    FailureReason,
    FullReport,
    Interval,
    Latency,
    Phase,
    Position,
    Verdict,
)

NOW: Final = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
SETTINGS: Final = Settings()
UID: Final = "11111111-1111-1111-1111-111111111111"
NAMESPACE: Final = "team"
NAME: Final = "study"
IMAGE: Final = "inferbench/runner-cpu:0.1.0"


def ago(seconds: float) -> datetime:
    """Return the time so many seconds before NOW."""
    return NOW - timedelta(seconds=seconds)


def spec_json(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - any part of a specification
    """Return a specification as people write it: one small model on any node, with `fields` over it."""
    return {
        "models": [{"name": "bert", "id": "google-bert/bert-base-uncased"}],
        "accelerators": [{"name": "cpu", "kind": "CPU"}],
    } | fields


def spec(**fields: Any) -> BenchmarkSpec:  # noqa: ANN401 - any part of a specification
    """Return a parsed specification."""
    return BenchmarkSpec.model_validate(spec_json(**fields))


def cells_of(wanted: BenchmarkSpec) -> tuple[Cell, ...]:
    """Return the cells of a specification."""
    return expand(wanted)


def benchmark(wanted: BenchmarkSpec | None = None, **changes: Any) -> Benchmark:  # noqa: ANN401 - any field
    """Return a benchmark that the operator has not seen yet."""
    fresh = Benchmark(
        namespace=NAMESPACE,
        name=NAME,
        uid=UID,
        resource_version="7",
        generation=1,
        deleting=False,
        spec=wanted or spec(),
        spec_error="",
        status=BenchmarkStatus(),
    )
    return replace(fresh, **changes)


def run_of(of: Benchmark) -> str:
    """Return the identity of the run that this generation of a benchmark starts."""
    assert of.spec
    return run_id(uid=of.uid, spec_hash=spec_hash(expand(of.spec)), generation=of.generation)


def attempt_of(
    of: Benchmark,
    cells: Iterable[str] | None = None,
    *,
    number: int = 1,
    **changes: Any,  # noqa: ANN401 - any field
) -> Attempt:
    """Return an attempt at the first plan of a benchmark, a minute old."""
    assert of.spec
    plan = group(expand(of.spec))[0]
    made = Attempt(
        name=f"{of.name}-{plan.hash}-{number}",
        uid=f"job-{number}",
        run=run_of(of),
        plan=plan.hash,
        number=number,
        cells=tuple(cells) if cells is not None else tuple(cell.hash for cell in plan.cells),
        image=IMAGE,
        created_at=ago(60),
    )
    return replace(made, **changes)


def pod(**changes: Any) -> Pod:  # noqa: ANN401 - any field
    """Return a pod that nobody has looked at yet, a minute old."""
    return replace(Pod(name="study-pod", phase="Pending", created_at=ago(60)), **changes)


def running(**changes: Any) -> Pod:  # noqa: ANN401 - any field
    """Return a pod whose runner has been running for half a minute."""
    made = pod(phase="Running", node="node-1", scheduled_at=ago(50), started_at=ago(30))
    return replace(made, **changes)


def ended(
    said: CompactReport | None = None,
    *,
    exit_code: int = 0,
    reason: str = "",
    report_error: str = "",
    last_words: str = "",
    **changes: Any,  # noqa: ANN401 - any field of the pod
) -> Pod:
    """Return a pod whose runner has ended, and what it said."""
    end = Termination(
        exit_code=exit_code,
        reason=reason or ("Error" if exit_code else "Completed"),
        finished_at=ago(5),
        report=said,
        report_error=report_error,
        last_words=last_words,
    )
    return replace(running(phase="Failed" if exit_code else "Succeeded", terminated=end), **changes)


def measured(cell: str, p95: int = 5000) -> CellMeasured:
    """Return plausible figures of a cell around its p95 in microseconds."""
    return CellMeasured(
        cell=cell,
        samples=1000,
        mean_microseconds=max(p95 - 900, 1),
        p50_microseconds=max(p95 - 1000, 1),
        p90_microseconds=p95 - 100,
        p95_microseconds=p95,
        p95_low_microseconds=p95 - 50,
        p95_high_microseconds=p95 + 50,
        p99_microseconds=p95 + 100,
        max_microseconds=p95 + 1000,
        inferences_per_second="240.5",
        verdict=Verdict.VALID,
    )


def failed(cell: str, reason: FailureReason = FailureReason.INTERNAL_ERROR, message: str = "It broke.") -> CellFailed:
    """Return a typed failure of a cell."""
    return CellFailed(cell=cell, phase=Phase.MEASURE, reason=reason, message=message)


def report(*entries: CellMeasured | CellFailed, doing: Position | None = None) -> CompactReport:
    """Return a compact report of the entries, and of what the runner was at when it wrote it."""
    return CompactReport(
        doing=doing,
        measured=tuple(entry for entry in entries if isinstance(entry, CellMeasured)),
        failed=tuple(entry for entry in entries if isinstance(entry, CellFailed)),
    )


def details(entry: CellMeasured, **changes: Any) -> CellDetails:  # noqa: ANN401 - any field of the latency
    """Return details that agree with the figures, except for `changes`."""
    call = Latency(
        samples=entry.samples,
        mean_microseconds=entry.mean_microseconds,
        min_microseconds=1,
        p50=Interval(value_microseconds=entry.p50_microseconds),
        p90=Interval(value_microseconds=entry.p90_microseconds),
        p95=Interval(
            value_microseconds=entry.p95_microseconds,
            low_microseconds=entry.p95_low_microseconds,
            high_microseconds=entry.p95_high_microseconds,
        ),
        p99=Interval(value_microseconds=entry.p99_microseconds),
        max_microseconds=entry.max_microseconds,
    )
    return CellDetails(
        cell=entry.cell,
        call=call.model_copy(update=changes),
        warmup_calls=20,
        warmup_milliseconds=300,
        measure_milliseconds=9000,
    )


def full_report(*cells: CellDetails) -> FullReport:
    """Return a full report."""
    return FullReport(
        cells=cells,
        phases_milliseconds={Phase.LOAD: 1200},
        peak_host_memory_mebibytes=700,
        provenance={"torch": "2.9.0"},
    )


def result_of(of: Benchmark, cell: Cell, *, run: str = "0123abcd", p95: int = 5000, image: str = IMAGE) -> Result:
    """Return a stored result of a cell; without a run, of an earlier one."""
    figures = measured(cell.hash, p95)
    status = {
        "run": run,
        "attempt": 1,
        "completionTime": ago(3600).isoformat(),
        "verdict": "Valid",
        "latency": {
            "call": {
                "samples": figures.samples,
                "meanMicroseconds": figures.mean_microseconds,
                "p50": {"valueMicroseconds": figures.p50_microseconds},
                "p90": {"valueMicroseconds": figures.p90_microseconds},
                "p95": {
                    "valueMicroseconds": p95,
                    "lowMicroseconds": p95 - 50,
                    "highMicroseconds": p95 + 50,
                },
                "p99": {"valueMicroseconds": figures.p99_microseconds},
                "maxMicroseconds": figures.max_microseconds,
            }
        },
        "inferencesPerSecond": "240.5",
        "runnerImage": image,
    }
    identity = {
        "cell": cell.hash,
        "benchmark": of.name,
        "model": cell.model.name,
        "modelId": cell.model.id,
        "accelerator": cell.accelerator.name,
        "precision": cell.precision,
        "sequenceLength": cell.sequence_length,
        "batchSize": cell.batch_size,
    }
    return Result(
        name=f"{of.name}-{cell.hash}",
        uid=f"result-{cell.hash}",
        resource_version="9",
        spec=ResultSpec.model_validate(identity),
        status=ResultStatus.model_validate(status),
    )


def observed(of: Benchmark, *facts: Attempt | Result, **changes: Any) -> Observed:  # noqa: ANN401 - any field
    """Return all that is known of a benchmark."""
    seen = Observed(
        benchmark=of,
        attempts=tuple(fact for fact in facts if isinstance(fact, Attempt)),
        results=tuple(fact for fact in facts if isinstance(fact, Result)),
    )
    return replace(seen, **changes)
