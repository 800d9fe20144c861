"""Labels, annotations, reasons and the deterministic names of children: every word that others may rely on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

from inferbench_operator.models.base import GROUP

LABEL_BENCHMARK: Final = f"{GROUP}/benchmark"
LABEL_RUN: Final = f"{GROUP}/run"
LABEL_PLAN: Final = f"{GROUP}/plan"
LABEL_ATTEMPT: Final = f"{GROUP}/attempt"
LABEL_CELL: Final = f"{GROUP}/cell"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
"""On nodes, as the next one."""
LABEL_ARCHITECTURE: Final = "kubernetes.io/arch"
ANNOTATION_RERUN: Final = f"{GROUP}/rerun"
"""On a benchmark: any new value starts another run."""
ANNOTATION_PRICE: Final = f"{GROUP}/usd-per-hour"
"""On a Job and its pod: what an hour of its node costs, in US dollars; absent where that is not known."""
ANNOTATION_PRICE_DETAILS: Final = f"{GROUP}/price"
"""On a Job and its pod: terms, source and day of that price, and the part of the node that is used, as JSON."""
ANNOTATION_CELLS: Final = f"{GROUP}/cells"
"""On a Job and its pod: the hashes of the cells that it was given, separated by commas."""

MANAGER: Final = "inferbench-operator"
RUNNER_CONTAINER: Final = "runner"


def shortened(text: str, length: int) -> str:
    """Return a text that is cut, visibly, where it is longer than `length` characters.

    It loses its middle: errors that enclose each other say first what failed, and last why.
    """
    if len(text) <= length:
        return text
    kept = length // 4
    return f"{text[: length - kept - 1]}…{text[-kept:]}"


class Reason(StrEnum):
    """Reason words of conditions, cells and Events that the operator itself gives; the runner has its own list."""

    ACCEPTED = "Accepted"
    INVALID_SPEC = "InvalidSpec"
    UNKNOWN_INSTANCE_TYPE = "UnknownInstanceType"
    MIXED_KINDS = "MixedAcceleratorKinds"
    KIND_MISMATCH = "AcceleratorKindMismatch"
    DEVICE_COUNT = "DeviceCountImpossible"
    CORE_COUNT = "CoreCountImpossible"
    SCHEDULER_MISSING = "SchedulerNameMissing"
    SELECTOR_CONFLICT = "NodeSelectorConflict"
    RESOURCE_MISMATCH = "ResourceNameMismatch"
    INVALID_SCHEDULE = "InvalidSchedule"
    PRICE_UNKNOWN = "PriceUnknown"
    DUPLICATE_CELLS = "DuplicateCells"
    LENGTH_MISSING = "SequenceLengthMissing"
    NO_CELLS = "NoCells"

    RUN_STARTED = "RunStarted"
    RUN_SUCCEEDED = "RunSucceeded"
    SUPERSEDED = "Superseded"
    MEASURING = "Measuring"
    WAITING = "Waiting"
    WAITING_FOR_TURN = "WaitingForTurn"
    WAITING_FOR_CAPACITY = "WaitingForCapacity"
    CELLS_FAILED = "CellsFailed"
    COST_LIMIT = "CostLimitReached"
    GATES_PASSED = "GatesPassed"
    GATES_UNDECIDED = "GatesUndecided"
    GATE_FAILED = "GateFailed"
    WITHIN_LIMIT = "WithinLimit"
    LIMIT_EXCEEDED = "LimitExceeded"
    REGRESSION = "Regression"
    INTERVAL_TOO_WIDE = "IntervalTooWide"
    BASELINE_MISSING = "BaselineMissing"
    BASELINE_DIFFERS = "BaselineDiffers"
    FIGURES_MISSING = "FiguresMissing"
    NO_SUCH_CELLS = "NoSuchCells"
    SUSPENDED = "Suspended"
    CANCELLED = "Cancelled"
    STOPPED = "Stopped"

    NOT_OFFERED = "NotOffered"
    UNSCHEDULABLE = "Unschedulable"
    SCHEDULED = "PodsScheduled"
    POD_MISSING = "PodMissing"
    POD_REFUSED = "PodRefused"
    QUOTA_EXCEEDED = "QuotaExceeded"
    SCHEDULING = "Scheduling"
    QUEUED = "Queued"
    QUEUE_MISSING = "QueueMissing"
    STARTING = "ContainerCreating"

    SCHEDULING_DEADLINE = "SchedulingDeadlineExceeded"
    START_DEADLINE = "StartDeadlineExceeded"
    MEASURE_DEADLINE = "MeasureDeadlineExceeded"
    RUN_DEADLINE = "RunDeadlineExceeded"
    JOB_FAILED = "JobFailed"
    JOB_REFUSED = "JobRefused"
    JOB_LOST = "JobLost"
    EVICTED = "Evicted"
    PREEMPTED = "Preempted"
    DRAINED = "Drained"
    NODE_LOST = "NodeLost"
    NODE_SHUTDOWN = "NodeShutdown"
    POD_LOST = "PodLost"
    OUT_OF_MEMORY = "OutOfMemory"
    OTHER_CELL_FAILED = "OtherCellFailed"
    RUNNER_KILLED = "RunnerKilled"
    RUNNER_FAILED = "RunnerFailed"
    NO_REPORT = "NoReport"
    REPORT_INVALID = "ReportInvalid"


DISRUPTIONS: Final = frozenset(
    {Reason.PREEMPTED, Reason.DRAINED, Reason.NODE_LOST, Reason.NODE_SHUTDOWN, Reason.POD_LOST}
)
"""Reasons for which the cluster took a pod away: none of them is held against its cells' retries."""


def digest(value: Any, length: int) -> str:  # noqa: ANN401 - any JSON value
    """Return the first `length` hex digits of SHA-256 over the canonical JSON of `value`."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:length]


def run_id(*, uid: str, spec_hash: str, generation: int, occasion: Sequence[str] = ()) -> str:
    """Return the identity of the run that this generation of the benchmark starts.

    The occasion tells runs of the same generation apart: the run before, and what asks for another. All of it is in the
    object, so an operator that crashed before it wrote the identity down finds it again.
    """
    return digest([uid, spec_hash, generation, *occasion], 8)


def job_name(*, benchmark: str, run: str, plan: str, attempt: int) -> str:
    """Return the name of a Job: the same for the same attempt, so that creating it twice is a conflict."""
    stem = benchmark.replace(".", "-")[:40].rstrip("-")
    return f"{stem}-{digest([run, plan], 10)}-{attempt}"


def result_name(*, benchmark: str, cell: str) -> str:
    """Return the name of a cell's result object."""
    return f"{benchmark}-{cell}"
