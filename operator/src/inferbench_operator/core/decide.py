"""Decides what to do about one benchmark: the heart of the operator, a pure function of facts and a time.

Every rule is level-triggered: it looks at what is there, never at what has just happened. What a decision needs to
remember is in the objects themselves: results say what has been measured, Jobs what is being tried, and the status what
was tried before and has been cleaned up since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from inferbench_operator.core import assessment, cells, conditions, cost, events, preflight, results
from inferbench_operator.core.advice import advised
from inferbench_operator.core.assessment import Assessment
from inferbench_operator.core.cells import NewJobs
from inferbench_operator.core.events import Event
from inferbench_operator.core.facts import Attempt, Observed, Result
from inferbench_operator.core.jobs import Manifest
from inferbench_operator.core.measured import labels_of_result
from inferbench_operator.core.names import Reason
from inferbench_operator.core.placement import SpecRefusedError
from inferbench_operator.core.settings import Settings
from inferbench_operator.core.situation import Situation, survey
from inferbench_operator.core.supply import Shortage
from inferbench_operator.models.benchmark import BenchmarkSpec
from inferbench_operator.models.status import (
    BenchmarkStatus,
    CellCounts,
    CellState,
    CellStatus,
    ConditionStatus,
    ConditionType,
    PastRun,
    Run,
)


@dataclass(frozen=True, slots=True)
class ResultWrite:
    """A result object to create, or to put in the place of an older measurement of the same cell."""

    manifest: Manifest
    replaces: Result | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, in the order in which it must be done; an empty one means that all is as it should be."""

    results: tuple[ResultWrite, ...] = ()
    status: BenchmarkStatus | None = None
    """The status as it should be; None leaves it alone."""
    urgent: bool = False
    """Whether the status must be written now, and not at the next convenient time."""
    events: tuple[Event, ...] = ()
    """To be recorded after the status has been written."""
    create_jobs: tuple[Manifest, ...] = ()
    delete_jobs: tuple[Attempt, ...] = ()
    delete_results: tuple[Result, ...] = ()
    held: int = 0
    """Jobs that are not created because other benchmarks' Jobs take up the operator's own limit."""
    look_again_at: datetime | None = None


def decide(observed: Observed, now: datetime, settings: Settings) -> Decision:
    """Return what to do about a benchmark at the time `now`, an aware UTC time in whole seconds."""
    benchmark = observed.benchmark
    if benchmark.deleting:
        return Decision()
    if benchmark.spec is None:
        return _refuse(observed, Reason.INVALID_SPEC, benchmark.spec_error, now)
    try:
        situation = survey(observed, benchmark.spec, now, settings)
    except SpecRefusedError as error:
        message = " ".join((str(error), *_remarks(benchmark.spec, settings)))
        return _refuse(observed, error.reason, message, now)
    others = (attempt for attempt in observed.attempts if attempt.run != situation.run.id)
    foreign = tuple(attempt for attempt in others if not attempt.deleting)
    return _decide_run(situation, observed, foreign, now, settings)


def _decide_run(
    situation: Situation, observed: Observed, foreign: Sequence[Attempt], now: datetime, settings: Settings
) -> Decision:
    benchmark = situation.benchmark
    if new_results := _new_results(situation, observed.results):
        # Nothing else before they are stored; the next look, at once, finds them and goes on from there.
        return Decision(results=new_results, look_again_at=now)
    entries = cells.entries(situation, observed.refusals, now)
    # What is to go goes first: its devices are wanted, and a quota may leave no room for both.
    new = NewJobs() if foreign else cells.new_jobs(situation, entries, now, settings, observed.slots)
    lacking = preflight.shortages(situation, entries, observed.supply, settings.catalogue)
    told = [preflight.told(entry, lacking.get(cell)) for cell, entry in entries.items()]
    assessed = assessment.assess(situation, told, observed)
    status = _status(situation, told, now, _obstacle(observed, new.held), lacking, settings, assessed)
    done = status.run.completion_time if status.run else None
    expiry = done + timedelta(seconds=situation.spec.execution.ttl_seconds_after_finished) if done else None
    expired = expiry is not None and now >= expiry
    overdue = [one.attempt for one in situation.judgements if one.overdue]
    times = [
        *(one.look_again_at for one in situation.judgements),
        # What follows, new Jobs or their deadlines, has to wait until this decision's writes are done; no event
        # announces our own writes.
        now if overdue or foreign or new.manifests or situation.run != benchmark.status.run else None,
        new.next_at,
        cells.blocked_until(situation),
        now + preflight.LOOK_EVERY if lacking else None,
        now + assessment.LOOK_EVERY if assessed.waits else None,
        None if done else _deadline(situation, now),
        situation.next_tick,
        expiry if situation.judgements and not expired else None,
    ]
    surplus = [one.attempt for one in situation.judgements] if expired else overdue
    current = {cell.hash for cell in situation.cells}
    return Decision(
        status=status,
        urgent=_urgent(benchmark.status, status),
        events=events.between(benchmark.status, status),
        create_jobs=new.manifests,
        held=new.held,
        delete_jobs=tuple(attempt for attempt in (*foreign, *surplus) if not attempt.deleting),
        delete_results=tuple(one for one in observed.results if done and one.spec.cell not in current),
        look_again_at=min((time for time in times if time), default=None),
    )


def _deadline(situation: Situation, now: datetime) -> datetime | None:
    """Return when the time of a whole run that goes on is up."""
    deadline = situation.run.deadline_time
    if deadline is None or situation.over or situation.spec.suspend:
        return None
    # That of a complete run which is taken up again may have passed: it is put off once the status is written.
    return max(deadline, now)


def _refuse(observed: Observed, reason: str, message: str, now: datetime) -> Decision:
    """Say why the benchmark can't be run, and stop what an earlier version of it had started.

    What that has yielded stays in sight: a mistake in the specification makes no figure wrong.
    """
    benchmark = observed.benchmark
    entries = [entry if entry.state.terminal else _skipped(entry, reason) for entry in benchmark.status.results]
    status = benchmark.status.model_copy(
        update={
            "observed_generation": benchmark.generation,
            "conditions": conditions.of_refusal(benchmark, reason, message, now),
            "cells": _counts(entries) if entries else None,
            "cost": cost.settled(benchmark.status, observed.attempts, now),
            "results": entries,
        }
    )
    return Decision(
        status=status,
        urgent=_urgent(benchmark.status, status),
        events=events.between(benchmark.status, status),
        delete_jobs=tuple(attempt for attempt in observed.attempts if not attempt.deleting),
    )


def _skipped(entry: CellStatus, reason: str) -> CellStatus:
    stops = (entry.stops or 0) + entry.state.goes_on
    update = {"state": CellState.SKIPPED, "reason": reason, "message": "", "deadline_time": None}
    return entry.model_copy(update=update | {"stops": stops or None})


def _new_results(situation: Situation, found: Sequence[Result]) -> tuple[ResultWrite, ...]:
    """Return the figures that are not stored yet. The first attempt that measured a cell wins: no cell counts twice."""
    by_hash = {cell.hash: cell for cell in situation.cells}
    stored = {result.spec.cell: result for result in found}
    # A cell that was measured under another hash, such as with another image, has the same history.
    alike = {
        labels_of_result(result): result
        for result in sorted(found, key=lambda result: result.status.completion_time)
        if result.spec.cell not in by_hash
    }
    writes: dict[str, ResultWrite] = {}
    for judgement in situation.judgements:
        pod = judgement.attempt.pod
        for cell, measured in judgement.measured.items():
            if cell in situation.measured or cell in writes or cell not in by_hash or not pod or not pod.terminated:
                continue
            finished = pod.terminated.finished_at
            earlier = stored.get(cell) or alike.get(by_hash[cell].labels)
            manifest = results.result(
                situation.benchmark, by_hash[cell], measured, judgement.attempt, finished, earlier=earlier
            )
            writes[cell] = ResultWrite(manifest, replaces=stored.get(cell))
    return tuple(writes.values())


def _status(
    situation: Situation,
    entries: Sequence[CellStatus],
    now: datetime,
    obstacle: tuple[Reason, str] | None,
    lacking: Mapping[str, Shortage],
    settings: Settings,
    assessed: Assessment,
) -> BenchmarkStatus:
    entries = [_marked(entry, assessed) for entry in entries]
    counts = _counts(entries)
    finished = all(entry.state.terminal for entry in entries)
    run = situation.run
    if finished and run.completion_time is None:
        run = run.model_copy(update={"completion_time": now})
    elif run.completion_time and not finished:
        # It goes on, for a result that is gone or a retry that is allowed now; meanwhile its clock stood still.
        idle = int((now - run.completion_time).total_seconds())
        run = run.model_copy(update={"completion_time": None, "paused_seconds": run.paused_seconds + max(idle, 0)})
    before, remarks = situation.benchmark.status, _remarks(situation.spec, settings)
    capacity = conditions.capacity_of(situation.judgements, preflight.in_words(entries, lacking), entries)
    found = conditions.of_run(situation.benchmark, run, counts, entries, capacity, now, obstacle=obstacle)
    error = cells.unplaceable(situation, {entry.cell: entry for entry in entries})
    if error is None and finished:
        error = situation.unscheduled
    if error:
        # Its Jobs measure what is asked for all the same, so they go on.
        message = " ".join((str(error), *remarks))
        found = conditions.of_refusal(situation.benchmark, error.reason, message, now)
    else:
        found = conditions.with_gates(found, situation.benchmark, assessed, now)
        found = conditions.with_remarks(found, remarks)
    if situation.unscheduled and not error:
        # The run goes on to its end, and what is wrong is told meanwhile.
        found = conditions.not_accepted(found, situation.benchmark, situation.unscheduled, now)
    status = BenchmarkStatus(
        observed_generation=situation.benchmark.generation,
        conditions=found,
        run=run,
        cells=counts,
        cost=situation.cost,
        history=_history(situation, run),
        gates=list(assessed.gates),
        comparison=list(assessed.comparison),
        next_schedule_time=situation.next_tick,
        slowest_p95_microseconds=max((entry.p95_microseconds or 0 for entry in entries), default=0) or None,
        results=entries,
    )
    if cost.stable(before.cost, status.cost) and status.model_copy(update={"cost": before.cost}) == before:
        return before
    return status


def _marked(entry: CellStatus, assessed: Assessment) -> CellStatus:
    return entry.model_copy(update={"pareto": True}) if entry.cell in assessed.best else entry


def _remarks(spec: BenchmarkSpec, settings: Settings) -> list[str]:
    """Return what is wrong with the operator's own table, so far as it may concern this benchmark."""
    return settings.catalogue.remarks(name for accelerator in spec.accelerators for name in accelerator.instance_types)


def _history(situation: Situation, run: Run) -> list[PastRun]:
    """Return the earlier runs; a new run makes one of the run before it."""
    before, length = situation.benchmark.status, situation.spec.history.runs
    past = before.run
    if past is None or past.id == run.id:
        return before.history[:length]
    counts = before.cells or CellCounts()
    ended = PastRun(
        id=past.id,
        trigger=past.trigger,
        start_time=past.start_time,
        completion_time=past.completion_time,
        reason=_outcome(before) if past.completion_time else Reason.SUPERSEDED,
        total=counts.total,
        succeeded=counts.succeeded,
        reused=counts.reused,
        failed=counts.failed,
        skipped=counts.skipped,
        slowest_p95_microseconds=before.slowest_p95_microseconds,
        spent_usd=situation.past_cost.spent_usd if situation.past_cost else None,
    )
    return [ended, *before.history][:length]


def _outcome(status: BenchmarkStatus) -> str:
    """Return how a run ended, whatever has been refused since."""
    skipped = (entry.reason for entry in status.results if entry.state is CellState.SKIPPED)
    if status.cells and status.cells.failed:
        return Reason.CELLS_FAILED
    if reason := next(skipped, None):
        return reason
    missed = any(
        one.type is ConditionType.GATES_PASSED and one.status is ConditionStatus.FALSE for one in status.conditions
    )
    return Reason.GATE_FAILED if missed else Reason.RUN_SUCCEEDED


def _obstacle(observed: Observed, held: int) -> tuple[Reason, str] | None:
    """Return what keeps the operator from creating a Job."""
    if observed.blocked:
        reason = Reason.QUOTA_EXCEEDED if "exceeded quota" in observed.blocked else Reason.JOB_REFUSED
        why = f"The API server does not let the operator create a Job: {observed.blocked}"
        return reason, advised(reason, why, len(why) + 100)
    if held:
        return Reason.WAITING_FOR_TURN, f"Jobs that wait until the operator's limit leaves them a place: {held}."
    return None


def _counts(entries: Sequence[CellStatus]) -> CellCounts:
    by_state = {state.value: sum(entry.state is state for entry in entries) for state in CellState}
    done = sum(entry.state.terminal for entry in entries)
    return CellCounts(total=len(entries), progress=f"{done}/{len(entries)}", **by_state)


def _urgent(before: BenchmarkStatus, after: BenchmarkStatus) -> bool:
    """Whether something changed that a person or a tool may be waiting for, not only a count on the way."""
    if before.observed_generation != after.observed_generation or before.run != after.run:
        return True
    old = {condition.type: (condition.status, condition.reason) for condition in before.conditions}
    new = {condition.type: (condition.status, condition.reason) for condition in after.conditions}
    return old != new or _outcomes(before) != _outcomes(after)


def _outcomes(status: BenchmarkStatus) -> dict[str, tuple[CellState, int]]:
    """Return what has become of cells; a failure must be written down before its Job is removed or another is made."""
    return {
        entry.cell: (entry.state, entry.attempts)
        for entry in status.results
        if entry.state.terminal or entry.has_failed
    }
