"""Parses API objects into facts. Only what a decision needs is kept, which also keeps the cache small."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from pydantic import ValidationError

from inferbench_operator.core import names
from inferbench_operator.core.comparison import COMPARED
from inferbench_operator.core.facts import Attempt, Benchmark, Pod, Result, Termination
from inferbench_operator.core.reports import ReportError, last_words, parse_compact
from inferbench_operator.models.benchmark import BenchmarkSpec
from inferbench_operator.models.result import ResultSpec, ResultStatus
from inferbench_operator.models.status import MAX_RERUN_LENGTH, BenchmarkStatus

Json = Mapping[str, Any]

# All that decisions need of a stored result; the rest is for readers, and would be most of the memory for it.
_FOR_DECISIONS: Final = frozenset(
    {
        "run",
        "attempt",
        "completionTime",
        "verdict",
        "inferencesPerSecond",
        "runnerImage",
        "node",
        "provenanceHash",
        "measureMilliseconds",
        "warmupMilliseconds",
    }
)
_COST_FOR_DECISIONS: Final = frozenset({"usdPerMillionInferences", "usdPerHour", "pricing"})


@dataclass(frozen=True, slots=True)
class Key:
    """Namespace and name of a benchmark: what the queue and the cache go by."""

    namespace: str
    name: str


def key_of(raw: Json) -> Key | None:
    """Return the benchmark that an object is, or belongs to by its label."""
    metadata = raw["metadata"]
    if raw.get("kind") == "InferenceBenchmark":
        return Key(metadata["namespace"], metadata["name"])
    name = _part(metadata, "labels").get(names.LABEL_BENCHMARK)
    return Key(metadata["namespace"], name) if name else None


def owner_uid(raw: Json) -> str:
    """Return the UID of the object's controller, or nothing."""
    owners = raw["metadata"].get("ownerReferences") or []
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
        rerun=_token(_part(metadata, "annotations").get(names.ANNOTATION_RERUN, "")),
    )


def _token(text: str) -> str:
    """Return a text of any length as one that the status can hold, another one for another text."""
    return text if len(text) <= MAX_RERUN_LENGTH else names.digest(text, MAX_RERUN_LENGTH)


def attempt(raw: Json) -> Attempt:
    """Parse a Job."""
    metadata, spec, status = raw["metadata"], raw["spec"], _part(raw, "status")
    labels = _part(metadata, "labels")
    container = spec["template"]["spec"]["containers"][0]
    true = {found["type"]: found for found in status.get("conditions") or [] if found.get("status") == "True"}
    failed = true.get("Failed", {})
    final = failed or true.get("Complete", {})
    created = _time(metadata["creationTimestamp"])
    annotations = _part(metadata, "annotations")
    return Attempt(
        name=metadata["name"],
        uid=metadata["uid"],
        run=labels.get(names.LABEL_RUN, ""),
        plan=labels.get(names.LABEL_PLAN, ""),
        number=_number(labels.get(names.LABEL_ATTEMPT, "")),
        cells=_cells(metadata),
        image=container["image"],
        created_at=created,
        started_at=_time(status["startTime"]) if status.get("startTime") else None,
        deleting="deletionTimestamp" in metadata,
        # A Job that its queue resumes keeps the condition until the time of its start is known.
        suspended=bool(spec.get("suspend")) or "Suspended" in true,
        finished_at=_time(final.get("lastTransitionTime") or metadata["creationTimestamp"]) if final else None,
        failed_reason=failed.get("reason") or "Failed" if failed else "",
        failed_message=failed.get("message") or "",
        usd_per_hour=_price(annotations.get(names.ANNOTATION_PRICE, "")),
        price_details=str(annotations.get(names.ANNOTATION_PRICE_DETAILS, "")),
    )


def pod(raw: Json) -> Pod:
    """Parse a runner pod, and with it the termination message of its container."""
    metadata, status = raw["metadata"], _part(raw, "status")
    conditions = {found["type"]: found for found in status.get("conditions") or []}
    scheduled = conditions.get("PodScheduled", {})
    disruption = conditions.get("DisruptionTarget", {})
    is_disrupted = disruption.get("status") == "True"
    is_scheduled = scheduled.get("status") == "True"
    containers = status.get("containerStatuses") or []
    own: Json = next((found for found in containers if found["name"] == names.RUNNER_CONTAINER), {})
    state = _part(own, "state")
    waiting, terminated = _part(state, "waiting"), state.get("terminated")
    started = (state.get("running") or terminated or {}).get("startedAt")
    created = metadata["creationTimestamp"]
    return Pod(
        name=metadata["name"],
        phase=status.get("phase", "Pending"),
        created_at=_time(created),
        node=raw["spec"].get("nodeName") or "",
        scheduled_at=_time(scheduled.get("lastTransitionTime") or created) if is_scheduled else None,
        unschedulable=scheduled.get("message") or "" if scheduled.get("reason") == "Unschedulable" else "",
        started_at=_time(started) if started else None,
        waiting_reason=waiting.get("reason") or "",
        waiting_message=waiting.get("message") or "",
        # Of a container that the kubelet has lost track of, neither start nor end is known.
        terminated=_termination(terminated, _cells(metadata), started or created) if terminated else None,
        reason=status.get("reason") or "",
        message=status.get("message") or "",
        disruption=disruption.get("reason") or "DisruptionTarget" if is_disrupted else "",
        disruption_message=disruption.get("message") or "" if is_disrupted else "",
        gone_at=_time(metadata["deletionTimestamp"]) if metadata.get("deletionTimestamp") else None,
    )


def result(raw: Json) -> Result | None:
    """Parse a result object; None if it does not fit the models, in which case the cell counts as not measured."""
    metadata = raw["metadata"]
    try:
        spec = ResultSpec.model_validate(raw.get("spec", {}))
        status = ResultStatus.model_validate(_for_decisions(raw.get("status", {})))
    except ValidationError:
        return None
    return Result(
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        spec=spec,
        status=status,
        history=json.dumps(_part(raw, "status").get("history") or [], separators=(",", ":")),
    )


def _for_decisions(status: Json) -> Json:
    kept = {name: value for name, value in status.items() if name in _FOR_DECISIONS}
    for name, fields in (("latency", {"call"}), ("cost", _COST_FOR_DECISIONS), ("provenance", COMPARED)):
        part = status.get(name)
        if isinstance(part, Mapping):
            # The same texts are in most results: each is kept once.
            kept[name] = {key: _interned(value) for key, value in part.items() if key in fields}
    return kept


def _interned(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    return sys.intern(value) if type(value) is str else value


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


def _termination(raw: Json, cells: tuple[str, ...], started: str) -> Termination:
    text = raw.get("message") or ""
    report, error = None, ""
    if text:
        try:
            report = parse_compact(text, cells=cells)
        except ReportError as problem:
            error = str(problem)
    return Termination(
        exit_code=raw.get("exitCode") or 0,
        reason=raw.get("reason") or "",
        finished_at=_time(raw.get("finishedAt") or started),
        report=report,
        report_error=error,
        last_words=last_words(text) if error else "",
    )


def _cells(metadata: Json) -> tuple[str, ...]:
    listed = _part(metadata, "annotations").get(names.ANNOTATION_CELLS, "")
    return tuple(listed.split(",")) if listed else ()


def _part(raw: Json, name: str) -> Json:
    """Return a part of an object, which may be missing or null."""
    found: Json = raw.get(name) or {}
    return found


def _price(text: str) -> Decimal | None:
    """Return a price that is one; anybody may have written something else."""
    try:
        found = Decimal(text)
    except ArithmeticError:
        return None
    return found if found.is_finite() and found >= 0 else None


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
