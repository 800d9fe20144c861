"""Turns the state of a run into conditions that kubectl, kstatus, Argo CD and Flux read rightly.

kstatus walks the conditions in their order: `Reconciling=True` is in progress, `Stalled=True` is failed, and of `Ready`
only True means done. So a benchmark that failed for good is Ready=False *and* Stalled=True, and both of the first two
are listed only while they are true.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

from inferbench_operator.core.advice import advised
from inferbench_operator.core.assessment import Assessment
from inferbench_operator.core.attempts import Judgement, Stage
from inferbench_operator.core.facts import Benchmark
from inferbench_operator.core.names import Reason, shortened
from inferbench_operator.core.placement import SpecRefusedError
from inferbench_operator.models.gates import GateMode
from inferbench_operator.models.status import (
    CellCounts,
    CellState,
    CellStatus,
    Condition,
    ConditionStatus,
    ConditionType,
    GateState,
    GateStatus,
    Run,
)
from inferbench_runner.contract import Verdict

_ORDER = list(ConditionType)
_MESSAGE_LENGTH = 1024
# Reasons for which a pod waits that the scheduler has not said a word about yet.
_BEFORE_THE_SCHEDULER = {Reason.POD_MISSING, Reason.SCHEDULING}
_TRUE, _FALSE = ConditionStatus.TRUE, ConditionStatus.FALSE

Capacity = tuple[ConditionStatus, Reason, str]
"""Status, reason and message of the condition CapacityAvailable."""


class Conditions:
    """Collects the conditions of one decision and keeps the transition times of those that did not change."""

    def __init__(self, benchmark: Benchmark, now: datetime, found: Iterable[Condition] = ()) -> None:
        """Start from what the benchmark's status says now, and from what is decided already."""
        self._generation = benchmark.generation
        self._now = now
        self._before = {condition.type: condition for condition in benchmark.status.conditions}
        self._after = {condition.type: condition for condition in found}

    def set(self, kind: ConditionType, status: ConditionStatus, reason: str, message: str) -> None:
        """Set a condition."""
        before = self._before.get(kind)
        unchanged = before is not None and before.status == status
        self._after[kind] = Condition(
            type=kind,
            status=status,
            reason=reason,
            message=shortened(message, _MESSAGE_LENGTH),
            last_transition_time=before.last_transition_time if before and unchanged else self._now,
            observed_generation=self._generation,
        )

    def keep(self, kind: ConditionType, *, unless: Collection[str] = ()) -> None:
        """Keep a condition as it was, if it was there and for another reason than these."""
        before = self._before.get(kind)
        if before and before.reason not in unless:
            self._after[kind] = before.model_copy(update={"observed_generation": self._generation})

    def holds(self, kind: ConditionType) -> bool:
        """Whether a condition is set, and True."""
        return kind in self._after and self._after[kind].status is _TRUE

    def listed(self) -> list[Condition]:
        """Return the conditions in their order."""
        return sorted(self._after.values(), key=lambda condition: _ORDER.index(condition.type))


def of_refusal(benchmark: Benchmark, reason: str, message: str, now: datetime) -> list[Condition]:
    """Return the conditions of a benchmark that can't be run as it is written."""
    conditions = Conditions(benchmark, now)
    conditions.set(ConditionType.STALLED, _TRUE, reason, message)
    conditions.set(ConditionType.READY, _FALSE, reason, message)
    conditions.set(ConditionType.ACCEPTED, _FALSE, reason, message)
    # Since when it has been suspended tells by how much its deadline is put off.
    conditions.keep(ConditionType.SUSPENDED)
    return conditions.listed()


def not_accepted(
    conditions: Iterable[Condition], benchmark: Benchmark, error: SpecRefusedError, now: datetime
) -> list[Condition]:
    """Return the conditions of a run that goes on although something in the specification is wrong by now."""
    found = Conditions(benchmark, now, conditions)
    found.set(ConditionType.ACCEPTED, _FALSE, error.reason, str(error))
    return found.listed()


def capacity_of(judgements: Sequence[Judgement], lacking: str, cells: Sequence[CellStatus]) -> Capacity | None:
    """Return whether there are nodes for the pods, given what the cluster lacks; None if nothing is known."""
    homeless = [
        judgement
        for judgement in judgements
        if judgement.stage is Stage.WAITING and judgement.reason == Reason.UNSCHEDULABLE
    ]
    if homeless and lacking:
        return _FALSE, Reason.UNSCHEDULABLE, f"{homeless[0].message} {lacking}"
    if homeless:
        return _FALSE, Reason.UNSCHEDULABLE, advised(Reason.UNSCHEDULABLE, homeless[0].message, _MESSAGE_LENGTH)
    if lacking:
        return _FALSE, Reason.NOT_OFFERED, lacking
    # The oldest come first.
    latest = {judgement.attempt.plan: judgement for judgement in judgements}.values()
    reasons = {why.reason for judgement in latest for why in judgement.failed.values()}
    # The Job that waited in vain may be gone, and an earlier one with a node be left.
    if Reason.SCHEDULING_DEADLINE in reasons | {cell.reason for cell in cells}:
        return None
    if any(judgement.attempt.pod and judgement.attempt.pod.scheduled_at for judgement in judgements):
        return _TRUE, Reason.SCHEDULED, "Every pod that was created has found a node."
    return None


def with_remarks(conditions: Iterable[Condition], remarks: Iterable[str]) -> list[Condition]:
    """Return the conditions, with what is to be said besides at the end of Accepted."""
    return [
        condition.model_copy(update={"message": shortened(" ".join((condition.message, *remarks)), _MESSAGE_LENGTH)})
        if condition.type is ConditionType.ACCEPTED
        else condition
        for condition in conditions
    ]


def of_run(
    benchmark: Benchmark,
    run: Run,
    counts: CellCounts,
    cells: Sequence[CellStatus],
    capacity: Capacity | None,
    now: datetime,
    *,
    obstacle: tuple[Reason, str] | None = None,
) -> list[Condition]:
    """Return the conditions of a benchmark whose run goes on or has ended."""
    conditions = Conditions(benchmark, now)
    suspended, cancelled = (benchmark.spec.suspend, benchmark.spec.cancel) if benchmark.spec else (False, False)
    same_run = benchmark.status.run is not None and benchmark.status.run.id == run.id
    conditions.set(ConditionType.ACCEPTED, _TRUE, Reason.ACCEPTED, f"Cells in the matrix: {counts.total}.")
    finished = all(cell.state.terminal for cell in cells)
    if capacity:
        conditions.set(ConditionType.CAPACITY_AVAILABLE, *capacity)
    elif same_run:
        idle = cancelled or (suspended and not (counts.running or counts.waiting))
        conditions.keep(ConditionType.CAPACITY_AVAILABLE, unless=_settled(finished=finished, idle=idle))
    if suspended:
        conditions.set(ConditionType.SUSPENDED, _TRUE, Reason.SUSPENDED, "No Job is started; set suspend to false.")
    if not finished and suspended and not (counts.running or counts.waiting):
        # Nothing goes on, and nothing is wrong: in progress by kstatus's rules, until it is resumed.
        message = f"{counts.progress} cells finished; the others wait until suspend is false."
        conditions.set(ConditionType.READY, _FALSE, Reason.SUSPENDED, message)
    elif not finished:
        reason, message = _progress(counts, cells, obstacle, capacity)
        conditions.set(ConditionType.RECONCILING, _TRUE, reason, message)
        conditions.set(ConditionType.READY, _FALSE, reason, message)
    elif cancelled and counts.skipped:
        message = f"{counts.skipped} of {counts.total} cells were given up; set cancel to false to measure them."
        conditions.set(ConditionType.STALLED, _TRUE, Reason.CANCELLED, message)
        conditions.set(ConditionType.READY, _FALSE, Reason.CANCELLED, message)
        conditions.set(ConditionType.SUCCEEDED, _FALSE, Reason.CANCELLED, message)
    elif limited := [cell for cell in cells if cell.reason == Reason.COST_LIMIT]:
        message = f"{len(limited)} of {counts.total} cells were not measured. {limited[0].message}"
        if failed := [cell for cell in cells if cell.state is CellState.FAILED]:
            message = f"{message} {_failure_message(failed, counts)}"
        conditions.set(ConditionType.STALLED, _TRUE, Reason.COST_LIMIT, message)
        conditions.set(ConditionType.READY, _FALSE, Reason.COST_LIMIT, message)
        conditions.set(ConditionType.SUCCEEDED, _FALSE, Reason.COST_LIMIT, message)
    elif failed := [cell for cell in cells if cell.state is CellState.FAILED]:
        message = _failure_message(failed, counts)
        conditions.set(ConditionType.STALLED, _TRUE, Reason.CELLS_FAILED, message)
        conditions.set(ConditionType.READY, _FALSE, Reason.CELLS_FAILED, message)
        conditions.set(ConditionType.SUCCEEDED, _FALSE, Reason.CELLS_FAILED, message)
    else:
        reused = f", {counts.reused} of them kept from earlier runs" if counts.reused else ""
        doubtful = sum(cell.verdict is not Verdict.VALID for cell in cells)
        doubts = f" {doubtful} of them should not be relied on; see their verdicts." if doubtful else ""
        message = f"{_cells(counts.total)} figures{reused}.{doubts}"
        conditions.set(ConditionType.READY, _TRUE, Reason.RUN_SUCCEEDED, message)
        conditions.set(ConditionType.SUCCEEDED, _TRUE, Reason.RUN_SUCCEEDED, message)
    return conditions.listed()


def _settled(*, finished: bool, idle: bool) -> set[Reason]:
    """Return the reasons for a lack of nodes that are over: in the end it may be why the run has failed.

    Until then, what was not offered is there now; and where nobody wants a node any more, nobody lacks one.
    """
    return (set() if finished else {Reason.NOT_OFFERED}) | ({Reason.UNSCHEDULABLE} if idle else set())


def with_gates(
    conditions: Iterable[Condition], benchmark: Benchmark, assessed: Assessment, now: datetime
) -> list[Condition]:
    """Return the conditions with what the gates say; with Enforce, a run that misses one is not what was asked for."""
    if not assessed.gates:
        return list(conditions)
    found = Conditions(benchmark, now, conditions)
    status, reason, message = _gates(assessed)
    found.set(ConditionType.GATES_PASSED, status, reason, message)
    enforced = benchmark.spec is not None and benchmark.spec.gate_mode is GateMode.ENFORCE
    if assessed.missed and enforced and found.holds(ConditionType.SUCCEEDED):
        found.set(ConditionType.STALLED, _TRUE, reason, message)
        found.set(ConditionType.READY, _FALSE, reason, message)
    return found.listed()


def _gates(assessed: Assessment) -> tuple[ConditionStatus, Reason, str]:
    """Return status, reason and message of the condition GatesPassed."""
    total, missed = len(assessed.gates), assessed.missed
    if missed:
        return _FALSE, Reason.GATE_FAILED, f"Gates missed: {len(missed)} of {total}. {_named(missed)}"
    if undecided := [one for one in assessed.gates if one.state is GateState.UNDECIDED]:
        message = f"No gate is missed; undecided, and so passed: {len(undecided)} of {total}. {_named(undecided)}"
        return _TRUE, Reason.GATES_UNDECIDED, message
    return _TRUE, Reason.GATES_PASSED, f"Gates passed: {total} of {total}."


def _named(gates: Sequence[GateStatus]) -> str:
    return " ".join(f"{one.name}: {one.message}" for one in gates)


def _cells(count: int) -> str:
    return "The cell has" if count == 1 else f"All {count} cells have"


def _progress(
    counts: CellCounts, cells: Sequence[CellStatus], obstacle: tuple[Reason, str] | None, capacity: Capacity | None
) -> tuple[Reason, str]:
    tally = (
        f"{counts.progress} cells finished; {counts.running} running, {counts.waiting} waiting, "
        f"{counts.pending} not started."
    )
    if obstacle:
        reason, message = obstacle
        return reason, f"{tally} {message}"
    if counts.running:
        return Reason.MEASURING, tally
    waiting = next((cell for cell in cells if cell.state is CellState.WAITING and cell.message), None)
    if capacity and capacity[1] == Reason.NOT_OFFERED and (not waiting or waiting.reason in _BEFORE_THE_SCHEDULER):
        return Reason.WAITING_FOR_CAPACITY, f"{tally} {capacity[2]}"
    if waiting is None:
        return Reason.WAITING, tally
    known = {Reason.UNSCHEDULABLE.value: Reason.WAITING_FOR_CAPACITY, Reason.QUEUED.value: Reason.QUEUED}
    reason = known.get(waiting.reason, Reason.WAITING)
    return reason, f"{tally} {waiting.reason}: {advised(waiting.reason, waiting.message, _MESSAGE_LENGTH)}"


def _failure_message(failed: Sequence[CellStatus], counts: CellCounts) -> str:
    first = failed[0]
    length = f" length {first.sequence_length}" if first.sequence_length else ""
    return (
        f"Failed cells: {len(failed)} of {counts.total}. First: {first.model} on {first.accelerator} {first.precision}"
        f"{length} batch {first.batch_size}: {first.reason}: {first.message}"
    )
