"""Decides what to do about one benchmark: the heart of the operator, a pure function of facts and a time.

Every rule is level-triggered: it looks at what is there, never at what has just happened. What a decision needs to
remember is in the objects themselves: results say what has been measured, Jobs what is being tried, and the status what
was tried before and has been cleaned up since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from inferbench_operator.core import conditions, events, jobs, names, results
from inferbench_operator.core.attempts import Failure, Judgement, Stage, judge
from inferbench_operator.core.events import Event
from inferbench_operator.core.facts import Attempt, Benchmark, Observed, Result
from inferbench_operator.core.jobs import Manifest
from inferbench_operator.core.matrix import Cell, PlanGroup, expand, group, is_vision, spec_hash
from inferbench_operator.core.names import Reason
from inferbench_operator.core.placement import Placement, PlacementError, place
from inferbench_operator.core.settings import Settings
from inferbench_operator.models.benchmark import BenchmarkSpec, Reuse
from inferbench_operator.models.status import (
    BenchmarkStatus,
    CellCounts,
    CellState,
    CellStatus,
    Run,
    Trigger,
)

_MESSAGE_LENGTH = 200


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
    look_again_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class _Situation:
    """The facts of one run, sorted for the rules below."""

    benchmark: Benchmark
    spec: BenchmarkSpec
    run: Run
    cells: tuple[Cell, ...]
    placements: Mapping[str, Placement]
    """By name of accelerator."""
    measured: Mapping[str, Result]
    """Results of this run by cell."""
    reusable: Mapping[str, Result]
    """Results of earlier runs that stand in this one, by cell."""
    judgements: tuple[Judgement, ...]
    """Attempts of this run, oldest first."""
    before: Mapping[str, CellStatus] = field(default_factory=dict)
    """Status entries that this run has already written, by cell."""


def decide(observed: Observed, now: datetime, settings: Settings) -> Decision:
    """Return what to do about a benchmark at the time `now`, an aware UTC time in whole seconds."""
    benchmark = observed.benchmark
    if benchmark.deleting:
        return Decision()
    if benchmark.spec is None:
        return _refuse(observed, Reason.INVALID_SPEC, benchmark.spec_error, now)
    try:
        cells = _checked_cells(benchmark.spec)
        placements = _placements(benchmark.spec)
    except PlacementError as error:
        return _refuse(observed, error.reason, str(error), now)
    run = _current_run(benchmark, spec_hash(cells), now)
    before = _entries_of(benchmark.status, run)
    own = [attempt for attempt in observed.attempts if attempt.run == run.id]
    situation = _Situation(
        benchmark=benchmark,
        spec=benchmark.spec,
        run=run,
        cells=cells,
        placements=placements,
        measured={result.spec.cell: result for result in observed.results if result.status.run == run.id},
        reusable=_reusable(benchmark.spec, run, before, observed.results, _images(cells, placements, settings)),
        judgements=tuple(
            judge(attempt, benchmark.spec.execution, now)
            for attempt in sorted(own, key=lambda attempt: (attempt.number, attempt.name))
        ),
        before=before,
    )
    foreign = tuple(attempt for attempt in observed.attempts if attempt.run != run.id and not attempt.deleting)
    return _decide_run(situation, observed, foreign, now, settings)


def _decide_run(
    situation: _Situation, observed: Observed, foreign: Sequence[Attempt], now: datetime, settings: Settings
) -> Decision:
    benchmark = situation.benchmark
    if new_results := _new_results(situation, observed.results):
        # Nothing else before they are stored; the next look, at once, finds them and goes on from there.
        return Decision(results=new_results, look_again_at=now)
    entries = {cell.hash: _entry(situation, cell) for cell in situation.cells}
    entries |= _refused(situation, entries, observed.refusals)
    status = _status(situation, list(entries.values()), now, blocked=observed.blocked)
    # What is to go goes first: its devices are wanted, and a quota may leave no room for both.
    wanted = () if foreign else _new_jobs(situation, entries, settings)
    overdue = [judgement.attempt for judgement in situation.judgements if judgement.overdue]
    deadlines = [judgement.look_again_at for judgement in situation.judgements if judgement.look_again_at]
    if overdue or foreign or wanted or situation.run != benchmark.status.run:
        # What follows, new Jobs or their deadlines, has to wait until this decision's writes are done; no event
        # announces our own writes.
        deadlines.append(now)
    stale_results: tuple[Result, ...] = ()
    done = status.run.completion_time if status.run else None
    if done:
        expired = done + timedelta(seconds=situation.spec.execution.ttl_seconds_after_finished)
        if now >= expired:
            overdue = [judgement.attempt for judgement in situation.judgements]
        elif situation.judgements:
            deadlines.append(expired)
        current = {cell.hash for cell in situation.cells}
        stale_results = tuple(result for result in observed.results if result.spec.cell not in current)
    return Decision(
        status=status,
        urgent=_urgent(benchmark.status, status),
        events=events.between(benchmark.status, status),
        create_jobs=wanted,
        delete_jobs=tuple(attempt for attempt in (*foreign, *overdue) if not attempt.deleting),
        delete_results=stale_results,
        look_again_at=min(deadlines, default=None),
    )


def _refuse(observed: Observed, reason: str, message: str, now: datetime) -> Decision:
    """Say why the benchmark can't be run, and stop what an earlier version of it had started.

    What that has yielded stays in sight: a mistake in the specification makes no figure wrong.
    """
    benchmark = observed.benchmark
    skipped = {"state": CellState.SKIPPED, "reason": reason, "message": ""}
    entries = [
        entry if entry.state.terminal else entry.model_copy(update=skipped) for entry in benchmark.status.results
    ]
    status = benchmark.status.model_copy(
        update={
            "observed_generation": benchmark.generation,
            "conditions": conditions.of_refusal(benchmark, reason, message, now),
            "cells": _counts(entries) if entries else None,
            "results": entries,
        }
    )
    return Decision(
        status=status,
        urgent=_urgent(benchmark.status, status),
        events=events.between(benchmark.status, status),
        delete_jobs=tuple(attempt for attempt in observed.attempts if not attempt.deleting),
    )


def _checked_cells(spec: BenchmarkSpec) -> tuple[Cell, ...]:
    cells = expand(spec)
    if not cells:
        raise PlacementError(
            Reason.NO_CELLS, "exclude leaves no cell of the matrix; remove or narrow one of its entries."
        )
    by_hash: dict[str, Cell] = {}
    for cell in cells:
        if cell.sequence_length is None and not is_vision(cell.model):
            raise PlacementError(
                Reason.LENGTH_MISSING,
                f"include: {cell.title} needs a sequenceLength; only vision models have none (for one, set its task to "
                "image-classification).",
            )
        twin = by_hash.setdefault(cell.hash, cell)
        if twin is not cell:
            raise PlacementError(
                Reason.DUPLICATE_CELLS,
                f"{twin.title} and {cell.title} differ only in name and would be measured twice; remove one.",
            )
    return cells


def _placements(spec: BenchmarkSpec) -> dict[str, Placement]:
    exclusive = spec.execution.exclusive_node
    return {accelerator.name: place(accelerator, exclusive=exclusive) for accelerator in spec.accelerators}


def _current_run(benchmark: Benchmark, wanted: str, now: datetime) -> Run:
    run = benchmark.status.run
    if run and run.spec_hash == wanted:
        return run
    return Run(
        id=names.run_id(uid=benchmark.uid, spec_hash=wanted, generation=benchmark.generation),
        trigger=Trigger.SPEC_CHANGED if run else Trigger.CREATED,
        spec_hash=wanted,
        start_time=now,
    )


def _entries_of(status: BenchmarkStatus, run: Run) -> dict[str, CellStatus]:
    if status.run is None or status.run.id != run.id:
        return {}
    return {entry.cell: entry for entry in status.results}


def _reusable(
    spec: BenchmarkSpec,
    run: Run,
    before: Mapping[str, CellStatus],
    found: Iterable[Result],
    images: Mapping[str, str],
) -> dict[str, Result]:
    """Return results of earlier runs that stand: same cell, and same image as would measure it now.

    What this run has kept, it keeps: neither a new default image nor another `reuse` takes up a run that has ended.
    """
    reuse = spec.reuse is Reuse.UNCHANGED_CELLS
    kept = {cell for cell, entry in before.items() if entry.state is CellState.REUSED}
    return {
        result.spec.cell: result
        for result in found
        if result.status.run != run.id
        and (result.spec.cell in kept or (reuse and images.get(result.spec.cell) == result.status.runner_image))
    }


def _images(cells: Iterable[Cell], placements: Mapping[str, Placement], settings: Settings) -> dict[str, str]:
    return {cell.hash: jobs.image_of(cell, placements[cell.accelerator.name], settings) for cell in cells}


def _new_results(situation: _Situation, found: Sequence[Result]) -> tuple[ResultWrite, ...]:
    """Return the figures that are not stored yet. The first attempt that measured a cell wins: no cell counts twice."""
    cells = {cell.hash: cell for cell in situation.cells}
    stored = {result.spec.cell: result for result in found}
    writes: dict[str, ResultWrite] = {}
    for judgement in situation.judgements:
        pod = judgement.attempt.pod
        for cell, measured in judgement.measured.items():
            if cell in situation.measured or cell in writes or cell not in cells or not pod or not pod.terminated:
                continue
            finished = pod.terminated.finished_at
            manifest = results.result(situation.benchmark, cells[cell], measured, judgement.attempt, finished)
            writes[cell] = ResultWrite(manifest, replaces=stored.get(cell))
    return tuple(writes.values())


def _entry(situation: _Situation, cell: Cell) -> CellStatus:
    """Return the status entry of a cell: what is stored beats what is tried, which beats what is remembered."""
    tried = [judgement for judgement in situation.judgements if cell.hash in judgement.attempt.cells]
    before = situation.before.get(cell.hash)
    attempts = max([judgement.attempt.number for judgement in tried], default=0)
    attempts = max(attempts, before.attempts if before else 0)
    if stored := situation.measured.get(cell.hash):
        return results.entry(cell, state=CellState.SUCCEEDED, attempts=attempts, **results.figures(stored.status))
    if kept := situation.reusable.get(cell.hash):
        return results.entry(cell, state=CellState.REUSED, attempts=attempts, **results.figures(kept.status))
    latest = tried[-1] if tried and tried[-1].attempt.number >= attempts else None
    if latest and latest.stage is not Stage.ENDED:
        state = CellState.RUNNING if latest.stage is Stage.RUNNING else CellState.WAITING
        message = names.shortened(latest.message, _MESSAGE_LENGTH)
        return results.entry(cell, state=state, attempts=attempts, reason=latest.reason, message=message)
    return _retry_or_fail(situation, cell, attempts, _failure(cell, latest, before, attempts))


def _failure(cell: Cell, latest: Judgement | None, before: CellStatus | None, attempts: int) -> Failure | None:
    """Return why the last attempt failed: from its Job or, where that is gone or going, from the status."""
    told = before if before and before.attempts == attempts and before.attempts and before.has_failed else None
    if latest and not (latest.attempt.deleting and told):
        return latest.failed.get(cell.hash)
    if told:
        return Failure(told.reason, told.message, retryable=told.state is CellState.PENDING)
    if before and before.state in {CellState.WAITING, CellState.RUNNING}:
        return Failure(Reason.JOB_LOST, "The Job was removed before its runner had reported.")
    # Never tried, or its result was deleted after its Job: there is nothing left to show, so it is measured again.
    return None


def _retry_or_fail(situation: _Situation, cell: Cell, attempts: int, failure: Failure | None) -> CellStatus:
    if failure is None:
        return results.entry(cell, state=CellState.PENDING, attempts=attempts)
    final = not failure.retryable or attempts > situation.spec.execution.retries
    return results.entry(
        cell,
        state=CellState.FAILED if final else CellState.PENDING,
        attempts=attempts,
        reason=failure.reason,
        message=names.shortened(failure.message, _MESSAGE_LENGTH),
    )


def _refused(
    situation: _Situation, entries: Mapping[str, CellStatus], refusals: Mapping[str, str]
) -> dict[str, CellStatus]:
    """Return failed entries for the cells whose next Job the API server has refused."""
    failed: dict[str, CellStatus] = {}
    for plan in group(situation.cells) if refusals else ():
        missing = _missing(plan, entries)
        refusal = refusals.get(_next_job_name(situation, plan, entries))
        if missing and refusal:
            why = names.shortened(f"The API server refuses the Job; correct spec.runner: {refusal}", _MESSAGE_LENGTH)
            update = {"state": CellState.FAILED, "reason": Reason.JOB_REFUSED.value, "message": why}
            failed |= {cell.hash: entries[cell.hash].model_copy(update=update) for cell in missing}
    return failed


def _new_jobs(situation: _Situation, entries: Mapping[str, CellStatus], settings: Settings) -> tuple[Manifest, ...]:
    """Return Jobs for the cells that have none, group by group, within the limit of parallel Jobs."""
    if situation.run != situation.benchmark.status.run:
        # The run's identity must be stored before its first Job exists, or a crash could start another run beside it.
        return ()
    active = {
        judgement.attempt.plan
        for judgement in situation.judgements
        if judgement.stage is not Stage.ENDED or judgement.overdue
    }
    free = situation.spec.execution.max_parallel_jobs - len(active)
    wanted: list[Manifest] = []
    for plan in group(situation.cells):
        missing = _missing(plan, entries)
        if missing and plan.hash not in active and len(wanted) < free:
            placement = situation.placements[missing[0].accelerator.name]
            number = _next_attempt(plan, entries)
            wanted.append(jobs.job(situation.benchmark, situation.run.id, plan, missing, number, placement, settings))
    return tuple(wanted)


def _missing(plan: PlanGroup, entries: Mapping[str, CellStatus]) -> list[Cell]:
    return [cell for cell in plan.cells if entries[cell.hash].state is CellState.PENDING]


def _next_attempt(plan: PlanGroup, entries: Mapping[str, CellStatus]) -> int:
    return 1 + max(entries[cell.hash].attempts for cell in plan.cells)


def _next_job_name(situation: _Situation, plan: PlanGroup, entries: Mapping[str, CellStatus]) -> str:
    attempt = _next_attempt(plan, entries)
    name = situation.benchmark.name
    return names.job_name(benchmark=name, run=situation.run.id, plan=plan.hash, attempt=attempt)


def _status(situation: _Situation, entries: Sequence[CellStatus], now: datetime, *, blocked: str) -> BenchmarkStatus:
    counts = _counts(entries)
    finished = all(entry.state.terminal for entry in entries)
    run = situation.run
    if finished != (run.completion_time is not None):
        run = run.model_copy(update={"completion_time": now if finished else None})
    return BenchmarkStatus(
        observed_generation=situation.benchmark.generation,
        conditions=conditions.of_run(
            situation.benchmark, run, counts, entries, situation.judgements, now, blocked=blocked
        ),
        run=run,
        cells=counts,
        slowest_p95_microseconds=max((entry.p95_microseconds or 0 for entry in entries), default=0) or None,
        results=list(entries),
    )


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
