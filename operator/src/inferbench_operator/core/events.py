"""Kubernetes Events for what a person would want to know, told once: each follows from a change of the status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from inferbench_operator.core.advice import advised
from inferbench_operator.core.names import Reason, shortened
from inferbench_operator.models.status import (
    BenchmarkStatus,
    CellState,
    CellStatus,
    Condition,
    ConditionStatus,
    ConditionType,
)

_MESSAGE_LENGTH: Final = 900
_USUAL_WAITS: Final = frozenset({Reason.POD_MISSING, Reason.SCHEDULING, Reason.STARTING, Reason.UNSCHEDULABLE})
"""Reasons for which every pod waits for some seconds; those without a node have their own Event."""


@dataclass(frozen=True, slots=True)
class Event:
    """One Event on a benchmark."""

    type: Literal["Normal", "Warning"]
    reason: str
    action: str
    message: str


def between(before: BenchmarkStatus, after: BenchmarkStatus) -> tuple[Event, ...]:
    """Return the Events that tell a person how the status got from `before` to `after`."""
    return (
        *_refused(before, after),
        *_started(before, after),
        *_no_capacity(before, after),
        *_waits(before, after),
        *_failed(before, after),
        *_finished(before, after),
        *_gates(before, after),
    )


def _refused(before: BenchmarkStatus, after: BenchmarkStatus) -> tuple[Event, ...]:
    old, new = _condition(before, ConditionType.ACCEPTED), _condition(after, ConditionType.ACCEPTED)
    if (
        new is None
        or new.status is ConditionStatus.TRUE
        or (old and (old.status, old.message) == (new.status, new.message))
    ):
        return ()
    return (Event("Warning", new.reason, "Accept", new.message),)


def _started(before: BenchmarkStatus, after: BenchmarkStatus) -> tuple[Event, ...]:
    if after.run is None or (before.run and before.run.id == after.run.id):
        return ()
    total = after.cells.total if after.cells else 0
    reused = after.cells.reused if after.cells else 0
    kept = f", {reused} of them unchanged" if reused else ""
    return (Event("Normal", Reason.RUN_STARTED, "Run", f"Run {after.run.id} started: {total} cells{kept}."),)


def _no_capacity(before: BenchmarkStatus, after: BenchmarkStatus) -> tuple[Event, ...]:
    old = _condition(before, ConditionType.CAPACITY_AVAILABLE)
    new = _condition(after, ConditionType.CAPACITY_AVAILABLE)
    if new is None or new.status is not ConditionStatus.FALSE or (old and old.status is ConditionStatus.FALSE):
        return ()
    return (Event("Warning", new.reason, "Schedule", new.message),)


def _waits(before: BenchmarkStatus, after: BenchmarkStatus) -> tuple[Event, ...]:
    """One Event per reason for which cells have begun to wait, where the cluster gives one."""
    old = {entry.reason for entry in before.results if entry.state is CellState.WAITING and _same_run(before, after)}
    fresh: dict[str, CellStatus] = {}
    for entry in after.results:
        if entry.state is CellState.WAITING and entry.message and entry.reason not in _USUAL_WAITS | old:
            fresh.setdefault(entry.reason, entry)
    return tuple(
        Event(
            "Normal" if reason == Reason.QUEUED else "Warning",
            reason,
            "Wait",
            f"{entry.model} on {entry.accelerator} waits: {advised(reason, entry.message, _MESSAGE_LENGTH)}",
        )
        for reason, entry in fresh.items()
    )


def _same_run(before: BenchmarkStatus, after: BenchmarkStatus) -> bool:
    return bool(before.run and after.run and before.run.id == after.run.id)


def _failed(before: BenchmarkStatus, after: BenchmarkStatus) -> tuple[Event, ...]:
    """One Event per reason of failed attempts, not one per cell."""
    old = {entry.cell: (entry.reason, entry.attempts) for entry in before.results if entry.has_failed}
    fresh = [
        entry for entry in after.results if entry.has_failed and old.get(entry.cell) != (entry.reason, entry.attempts)
    ]
    by_reason: dict[str, list[CellStatus]] = {}
    for entry in fresh:
        by_reason.setdefault(entry.reason, []).append(entry)
    return tuple(
        Event("Warning", reason, "Measure", f"{_tally(entries)}: {entries[0].message}")
        for reason, entries in by_reason.items()
    )


def _finished(before: BenchmarkStatus, after: BenchmarkStatus) -> tuple[Event, ...]:
    old, new = _condition(before, ConditionType.SUCCEEDED), _condition(after, ConditionType.SUCCEEDED)
    if new is None or (_same_run(before, after) and old and old.status == new.status):
        return ()
    kind: Literal["Normal", "Warning"] = "Normal" if new.status is ConditionStatus.TRUE else "Warning"
    return (Event(kind, new.reason, "Run", new.message),)


def _gates(before: BenchmarkStatus, after: BenchmarkStatus) -> tuple[Event, ...]:
    """One Event if gates are missed, and one if some of them found a regression."""
    old, new = _condition(before, ConditionType.GATES_PASSED), _condition(after, ConditionType.GATES_PASSED)
    if new is None or new.status is ConditionStatus.TRUE or (_same_run(before, after) and old and old == new):
        return ()
    slower = [gate for gate in after.gates if gate.reason == Reason.REGRESSION]
    found = (Event("Warning", Reason.GATE_FAILED, "Judge", new.message),)
    if not slower:
        return found
    words = " ".join(f"{gate.name}: {gate.message}" for gate in slower)
    return (*found, Event("Warning", Reason.REGRESSION, "Judge", shortened(words, _MESSAGE_LENGTH)))


def _tally(entries: list[CellStatus]) -> str:
    again = sum(entry.state is CellState.PENDING for entry in entries)
    cells = "1 cell" if len(entries) == 1 else f"{len(entries)} cells"
    first = entries[0]
    where = f"of {first.model} on {first.accelerator}"
    return f"{cells} {where} failed" + (f", {again} to be tried again" if again else "")


def _condition(status: BenchmarkStatus, kind: ConditionType) -> Condition | None:
    return next((condition for condition in status.conditions if condition.type is kind), None)
