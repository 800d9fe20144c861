"""Parses API objects into facts. Only what a decision needs is kept, which also keeps the cache small."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from inferbench_operator.core import names
from inferbench_operator.core.facts import Attempt, Benchmark, Pod, Result, Termination
from inferbench_operator.core.reports import ReportError, last_words, parse_compact
from inferbench_operator.models.benchmark import BenchmarkSpec
from inferbench_operator.models.result import ResultSpec, ResultStatus
from inferbench_operator.models.status import BenchmarkStatus

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Key:
    """Namespace and name of a benchmark: what the queue and the cache go by."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class OwnedPod:
    """A pod and the name of the Job that made it."""

    job: str
    pod: Pod


def key_of(raw: Json) -> Key | None:
    """Return the benchmark that an object is, or belongs to by its label."""
    metadata = raw["metadata"]
    if raw.get("kind") == "InferenceBenchmark":
        return Key(metadata["namespace"], metadata["name"])
    name = metadata.get("labels", {}).get(names.LABEL_BENCHMARK)
    return Key(metadata["namespace"], name) if name else None


def owner_uid(raw: Json) -> str:
    """Return the UID of the object's controller, or nothing."""
    owners = raw["metadata"].get("ownerReferences", [])
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")


def benchmark(raw: Json) -> Benchmark:
    """Parse an `InferenceBenchmark`; a specification that does not fit the models becomes a sentence, not an error."""
    metadata = raw["metadata"]
    spec, error = _spec(raw.get("spec", {}))
    return Benchmark(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        generation=metadata["generation"],
        deleting="deletionTimestamp" in metadata,
        spec=spec,
        spec_error=error,
        status=_status(raw.get("status", {})),
    )


def attempt(raw: Json) -> Attempt:
    """Parse a Job."""
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status", {})
    labels = metadata.get("labels", {})
    container = spec["template"]["spec"]["containers"][0]
    final = {found["type"]: found for found in status.get("conditions", []) if found["status"] == "True"}
    failed = final.get("Failed", {})
    return Attempt(
        name=metadata["name"],
        uid=metadata["uid"],
        run=labels.get(names.LABEL_RUN, ""),
        plan=labels.get(names.LABEL_PLAN, ""),
        number=_number(labels.get(names.LABEL_ATTEMPT, "")),
        cells=_cells(metadata),
        image=container["image"],
        created_at=_time(metadata["creationTimestamp"]),
        deleting="deletionTimestamp" in metadata,
        suspended=bool(spec.get("suspend")),
        finished=bool(failed) or "Complete" in final,
        failed_reason=failed.get("reason", "Failed") if failed else "",
        failed_message=failed.get("message", ""),
    )


def pod(raw: Json) -> OwnedPod:
    """Parse a runner pod, and with it the termination message of its container."""
    metadata, status = raw["metadata"], raw.get("status", {})
    conditions = {found["type"]: found for found in status.get("conditions", [])}
    scheduled = conditions.get("PodScheduled", {})
    is_scheduled = scheduled.get("status") == "True"
    containers = status.get("containerStatuses", [])
    own: Json = next((found for found in containers if found["name"] == names.RUNNER_CONTAINER), {})
    state = own.get("state", {})
    waiting, terminated = state.get("waiting", {}), state.get("terminated")
    started = (state.get("running") or terminated or {}).get("startedAt")
    parsed = Pod(
        name=metadata["name"],
        phase=status.get("phase", "Pending"),
        created_at=_time(metadata["creationTimestamp"]),
        node=raw["spec"].get("nodeName", ""),
        scheduled_at=_time(scheduled["lastTransitionTime"]) if is_scheduled else None,
        unschedulable=scheduled.get("message", "") if scheduled.get("reason") == "Unschedulable" else "",
        started_at=_time(started) if started else None,
        waiting_reason=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        terminated=_termination(terminated, _cells(metadata)) if terminated else None,
        reason=status.get("reason", ""),
        message=status.get("message", ""),
    )
    return OwnedPod(job=metadata.get("labels", {}).get("batch.kubernetes.io/job-name", ""), pod=parsed)


def result(raw: Json) -> Result | None:
    """Parse a result object; None if it does not fit the models, in which case the cell counts as not measured."""
    metadata = raw["metadata"]
    try:
        spec = ResultSpec.model_validate(raw.get("spec", {}))
        status = ResultStatus.model_validate(raw.get("status", {}))
    except ValidationError:
        return None
    return Result(
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        spec=spec,
        status=status,
    )


def _spec(raw: Json) -> tuple[BenchmarkSpec | None, str]:
    try:
        return BenchmarkSpec.model_validate(raw), ""
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        first = problems[0]
        where = ".".join(str(part) for part in first["loc"])
        return None, f"spec.{where}: {first['msg']}; correct the field and apply again."


def _status(raw: Json) -> BenchmarkStatus:
    try:
        return BenchmarkStatus.model_validate(raw)
    except ValidationError:
        # Another version wrote it; all that matters of it is found again in results and Jobs.
        return BenchmarkStatus()


def _termination(raw: Json, cells: tuple[str, ...]) -> Termination:
    text = raw.get("message", "")
    report, error = None, ""
    if text:
        try:
            report = parse_compact(text, cells=cells)
        except ReportError as problem:
            error = str(problem)
    return Termination(
        exit_code=raw["exitCode"],
        reason=raw.get("reason", ""),
        finished_at=_time(raw["finishedAt"]),
        report=report,
        report_error=error,
        last_words=last_words(text) if error else "",
    )


def _cells(metadata: Json) -> tuple[str, ...]:
    listed = metadata.get("annotations", {}).get(names.ANNOTATION_CELLS, "")
    return tuple(listed.split(",")) if listed else ()


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
