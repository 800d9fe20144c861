"""The status of an `InferenceBenchmark`: what the operator says back."""

from __future__ import annotations

import operator
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from inferbench_operator.models.base import (
    ApiModel,
    BatchSize,
    Decimals,
    Microseconds,
    RunId,
    SequenceLength,
    ShortName,
    schema_extra,
)
from inferbench_operator.models.benchmark import MAX_CELLS
from inferbench_operator.models.execution import MAX_HISTORY
from inferbench_operator.models.gates import MAX_GATES
from inferbench_runner.contract import CellHash, Precision, Verdict

Reason = Annotated[str, StringConstraints(max_length=64, pattern=r"^([A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?)?$")]


MAX_RERUN_LENGTH = 64
MAX_COMPARISONS = 128


class ConditionType(StrEnum):
    """Types of conditions, in the order in which they are listed; kstatus reads the first three."""

    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    READY = "Ready"
    ACCEPTED = "Accepted"
    CAPACITY_AVAILABLE = "CapacityAvailable"
    SUCCEEDED = "Succeeded"
    GATES_PASSED = "GatesPassed"
    SUSPENDED = "Suspended"


class ConditionStatus(StrEnum):
    """Values of a condition's status."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(ApiModel):
    """One observation about the benchmark, as in all Kubernetes APIs."""

    type: ConditionType = Field(description="What is observed.")
    status: ConditionStatus = Field(description="True, False or Unknown.")
    reason: Annotated[Reason, StringConstraints(min_length=1)] = Field(
        description="Why, as one CamelCase word for programs."
    )
    message: Annotated[str, StringConstraints(max_length=1024)] = Field(
        default="", description="Why, as a sentence for people: what happened and what to do."
    )
    last_transition_time: datetime = Field(description="When status last changed.")
    observed_generation: int = Field(default=0, ge=0, description="Generation of the object that this speaks of.")


class CellState(StrEnum):
    """Where a cell is in its run."""

    PENDING = "pending"
    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"
    REUSED = "reused"

    @property
    def terminal(self) -> bool:
        """Whether nothing more happens to the cell in this run."""
        return self not in {CellState.PENDING, CellState.WAITING, CellState.RUNNING}

    @property
    def goes_on(self) -> bool:
        """Whether the cell has a Job that has not ended."""
        return self in {CellState.WAITING, CellState.RUNNING}


Count = Annotated[int, Field(ge=0, le=MAX_CELLS)]


class CellCounts(ApiModel):
    """How many cells are in which state."""

    total: Count = Field(default=0, description="Cells of the matrix.")
    pending: Count = Field(default=0, description="Cells that have no Job yet.")
    waiting: Count = Field(default=0, description="Cells whose pod waits for a node, an image or a volume.")
    running: Count = Field(default=0, description="Cells whose pod runs.")
    succeeded: Count = Field(default=0, description="Cells measured in this run.")
    failed: Count = Field(default=0, description="Cells given up in this run.")
    skipped: Count = Field(
        default=0,
        description="Cells that are not tried, because the benchmark is cancelled or not accepted, or the "
        "cost limit is reached.",
    )
    reused: Count = Field(default=0, description="Unchanged cells whose earlier result was kept.")
    progress: Annotated[str, StringConstraints(max_length=16)] = Field(
        default="0/0", description="Finished cells over all cells, for the CELLS column."
    )


class Trigger(StrEnum):
    """Why a run started."""

    CREATED = "Created"
    SPEC_CHANGED = "SpecChanged"
    RERUN = "Rerun"
    SCHEDULED = "Scheduled"

    @property
    def measures_anew(self) -> bool:
        """Whether the run measures cells whose specification has not changed."""
        return self in {Trigger.RERUN, Trigger.SCHEDULED}


class Run(ApiModel):
    """One pass over the matrix."""

    id: RunId = Field(description="Identity of the run; its Jobs carry it as label inferbench.dev/run.")
    trigger: Trigger = Field(description="Why the run started: Created, SpecChanged, Rerun or Scheduled.")
    spec_hash: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{10}$")] = Field(
        description="Hash of the part of the specification that makes a new run when it changes."
    )
    start_time: datetime = Field(description="When the run started.")
    completion_time: datetime | None = Field(default=None, description="When the last cell was finished.")
    rerun: Annotated[str, StringConstraints(max_length=MAX_RERUN_LENGTH)] = Field(
        default="",
        exclude_if=operator.not_,
        description="Value of the annotation inferbench.dev/rerun at that time; another one starts another run.",
    )
    paused_seconds: Annotated[int, Field(ge=0)] = Field(
        default=0, exclude_if=operator.not_, description="Time that the run was suspended, in seconds."
    )
    deadline_time: datetime | None = Field(
        default=None,
        description="When the run is given up, by execution.deadlineSeconds; later by the time that it is suspended.",
    )
    scheduled_time: datetime | None = Field(default=None, description="Tick of the schedule that started the run.")
    blocked_time: datetime | None = Field(
        default=None,
        description="Since when the API server lets no Job be created, as for a quota; cells fail for it after "
        "execution.schedulingDeadlineSeconds.",
    )


class Cost(ApiModel):
    """What a run has cost so far: the price of each pod's whole node, from being scheduled to its end."""

    estimated_usd: Decimals | None = Field(
        default=None,
        alias="estimatedUSD",
        description="What the run was expected to cost when it started, in US dollars, a decimal string: for each cell "
        "to measure the time that it took before, or measurement.maxSeconds, and three minutes for each Job.",
    )

    spent_usd: Decimals = Field(
        default="0",
        alias="spentUSD",
        description="Spent so far, in US dollars, a decimal string. Of several instance types the dearest "
        "counts; accelerators without a known price are left out.",
    )
    observed_time: datetime = Field(description="Until when it is counted.")


class GateState(StrEnum):
    """What a gate says."""

    PASSED = "Passed"
    FAILED = "Failed"
    UNDECIDED = "Undecided"


class GateStatus(ApiModel):
    """What one gate says of the run."""

    name: ShortName = Field(description="Name of the gate.")
    state: GateState = Field(
        description="Passed, Failed or Undecided. Undecided counts as the gate's onUndecided says."
    )
    reason: Reason = Field(
        description="Why, as one word: WithinLimit, LimitExceeded, Regression, IntervalTooWide, BaselineMissing, "
        "BaselineDiffers, FiguresMissing or NoSuchCells."
    )
    message: Annotated[str, StringConstraints(max_length=512)] = Field(
        description="Why, as a sentence: the cell that decided it, its figure and the limit."
    )
    cells: Count = Field(default=0, description="Cells that the gate looks at.")
    failed: Count = Field(default=0, description="Those of them that miss it.")
    undecided: Count = Field(default=0, description="Those of them of which it can't be told.")


class Comparison(ApiModel):
    """One model on one accelerator compared with the same model on the baseline, over all cells that both have."""

    model: ShortName = Field(description="Name of the model.")
    accelerator: ShortName = Field(description="Name of the accelerator.")
    baseline: ShortName = Field(description="Name of the accelerator that it is compared with.")
    precision: Precision = Field(description="Precision on the accelerator.")
    cells: Count = Field(default=0, description="Pairs of cells with the same sequence length and batch size.")
    speedup: Decimals | None = Field(
        default=None,
        description="Geometric mean, over the pairs, of the baseline's p95 over the accelerator's, a decimal string: "
        "above 1 the accelerator is faster. Absent where nothing can be compared; message says why.",
    )
    speedup_low: Decimals | None = Field(
        default=None,
        description="Lower bound of its 95 % interval by a bootstrap over the pairs and within their intervals.",
    )
    speedup_high: Decimals | None = Field(default=None, description="Upper bound of the same interval.")
    min_speedup: Decimals | None = Field(default=None, description="Smallest ratio of a pair.")
    max_speedup: Decimals | None = Field(default=None, description="Largest ratio of a pair.")
    crossover_sequence_length: SequenceLength | None = Field(
        default=None,
        description="Shortest length, in tokens, from which on the other one of the two is faster than at shorter "
        "lengths; absent where one of them is faster at all lengths.",
    )
    message: Annotated[str, StringConstraints(max_length=320)] = Field(
        default="", exclude_if=operator.not_, description="What could not be compared, and why."
    )


class PastRun(ApiModel):
    """What became of an earlier run."""

    id: RunId = Field(description="Identity of the run.")
    trigger: Trigger = Field(description="Why the run started: Created, SpecChanged, Rerun or Scheduled.")
    start_time: datetime = Field(description="When the run started.")
    completion_time: datetime | None = Field(
        default=None, description="When its last cell was finished; absent where another run took its place before."
    )
    reason: Reason = Field(
        default="", exclude_if=operator.not_, description="How it ended, as one word, such as RunSucceeded."
    )
    total: Count = Field(default=0, description="Cells of the matrix.")
    succeeded: Count = Field(default=0, description="Cells measured in it.")
    reused: Count = Field(default=0, exclude_if=operator.not_, description="Cells whose earlier result it kept.")
    failed: Count = Field(default=0, exclude_if=operator.not_, description="Cells given up in it.")
    skipped: Count = Field(default=0, exclude_if=operator.not_, description="Cells that were not tried in it.")
    slowest_p95_microseconds: Microseconds | None = Field(
        default=None, description="Largest p95 of all its cells, in microseconds."
    )
    spent_usd: Decimals | None = Field(
        default=None, alias="spentUSD", description="What it cost, in US dollars, a decimal string."
    )


class CellStatus(ApiModel):
    """State and headline figures of one cell."""

    cell: CellHash = Field(
        description="Hash of the cell; its result is the InferenceBenchmarkResult <benchmark>-<cell>."
    )
    model: ShortName = Field(description="Name of the model.")
    accelerator: ShortName = Field(description="Name of the accelerator.")
    precision: Precision = Field(description="Precision of the cell.")
    sequence_length: SequenceLength | None = Field(default=None, description="Sequence length in tokens.")
    batch_size: BatchSize = Field(description="Batch size, in inputs per call.")
    state: CellState = Field(description="pending, waiting, running, succeeded, failed, skipped or reused.")
    reason: Reason = Field(
        default="", exclude_if=operator.not_, description="Why the cell waits or failed, as one word."
    )
    message: Annotated[str, StringConstraints(max_length=200)] = Field(
        default="", exclude_if=operator.not_, description="Why the cell waits or failed, as a sentence."
    )
    attempts: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=0, description="Jobs that were given this cell in this run."
    )
    disruptions: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        default=None,
        description="Those of them that the cluster cut short; they count against execution.disruptionRetries.",
    )
    stops: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        default=None,
        description="Those of them that suspend, cancel, a mistake in the specification or the death of another cell "
        "cut short; they count against nothing.",
    )
    deadline_time: datetime | None = Field(
        default=None, description="When the wait, or the work, of the cell's Job is given up."
    )
    verdict: Verdict | None = Field(
        default=None, description="How far the figures may be trusted: Valid, Inconclusive, Noisy or Invalid."
    )
    samples: Annotated[int, Field(ge=1)] | None = Field(default=None, description="Timed calls behind the figures.")
    p50_microseconds: Microseconds | None = Field(default=None, description="Median call latency, in microseconds.")
    p95_microseconds: Microseconds | None = Field(
        default=None, description="95th percentile of the call latency, in microseconds."
    )
    p95_low_microseconds: Microseconds | None = Field(
        default=None, description="Lower bound of the 95 % confidence interval of p95, in microseconds."
    )
    p95_high_microseconds: Microseconds | None = Field(
        default=None, description="Upper bound of the 95 % confidence interval of p95, in microseconds."
    )
    p99_microseconds: Microseconds | None = Field(
        default=None, description="99th percentile of the call latency, in microseconds."
    )
    inferences_per_second: Decimals | None = Field(default=None, description="Inputs per second, a decimal string.")
    usd_per_million_inferences: Decimals | None = Field(
        default=None,
        alias="usdPerMillionInferences",
        description="Cost of a million inputs on the whole node, in US dollars, a decimal string.",
    )
    pareto: bool | None = Field(
        default=None,
        description="True where no other cell of the model at this sequence length has a lower p95 at no higher cost "
        "per inference; once the run is over, where costs are known.",
    )

    @property
    def has_failed(self) -> bool:
        """Whether the cell's last attempt failed, be it given up or waiting for another."""
        return self.state is CellState.FAILED or (self.state is CellState.PENDING and bool(self.reason))


class BenchmarkStatus(ApiModel):
    """What the operator last saw and did."""

    observed_generation: int = Field(
        default=-1, description="Generation that this status speaks of; -1 until the operator has seen the object."
    )
    conditions: Annotated[
        list[Condition],
        Field(max_length=16, json_schema_extra=schema_extra(list_type="map", list_map_keys=["type"])),
    ] = Field(
        default_factory=list,
        description="Ready, Accepted, CapacityAvailable, Succeeded and GatesPassed; Reconciling, Stalled and "
        "Suspended only while true.",
    )
    run: Run | None = Field(default=None, description="The latest run.")
    cells: CellCounts | None = Field(default=None, description="Number of cells by state.")
    cost: Cost | None = Field(
        default=None, description="What the latest run has cost; absent where no accelerator has a known price."
    )
    gates: Annotated[
        list[GateStatus],
        Field(max_length=MAX_GATES, json_schema_extra=schema_extra(list_type="map", list_map_keys=["name"])),
    ] = Field(default_factory=list, exclude_if=operator.not_, description="What the gates say, once the run is over.")
    comparison: Annotated[list[Comparison], Field(max_length=MAX_COMPARISONS)] = Field(
        default_factory=list,
        exclude_if=operator.not_,
        description="How the accelerators compare with spec.compare's baseline, once the run is over.",
    )
    next_schedule_time: datetime | None = Field(default=None, description="Next tick of the schedule.")
    slowest_p95_microseconds: Microseconds | None = Field(
        default=None, description="Largest p95 of all cells, in microseconds."
    )
    history: Annotated[list[PastRun], Field(max_length=MAX_HISTORY)] = Field(
        default_factory=list, exclude_if=operator.not_, description="Earlier runs, the latest first."
    )
    results: Annotated[
        list[CellStatus],
        Field(max_length=MAX_CELLS, json_schema_extra=schema_extra(list_type="map", list_map_keys=["cell"])),
    ] = Field(default_factory=list, description="One entry per cell: state and headline figures.")
