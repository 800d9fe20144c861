"""Sorts the facts of one benchmark for its run: which run it is in, which cells there are, what has been tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from inferbench_operator.core import cost, jobs, names
from inferbench_operator.core.attempts import Failure, Judgement, Stage, judge
from inferbench_operator.core.facts import Attempt, Benchmark, Observed, Result
from inferbench_operator.core.matrix import Cell, expand, is_vision, merged, spec_hash
from inferbench_operator.core.names import Reason
from inferbench_operator.core.placement import Placement, SpecRefusedError, nowhere, place
from inferbench_operator.core.schedule import InvalidScheduleError, is_due, next_tick
from inferbench_operator.core.settings import Settings
from inferbench_operator.models.benchmark import BenchmarkSpec, Reuse
from inferbench_operator.models.cost import Pricing
from inferbench_operator.models.execution import OnSuspend
from inferbench_operator.models.instances import Catalogue
from inferbench_operator.models.status import (
    BenchmarkStatus,
    CellState,
    CellStatus,
    ConditionStatus,
    ConditionType,
    Cost,
    Run,
    Trigger,
)

_OF_NO_ATTEMPT: Final = frozenset({Reason.JOB_REFUSED, Reason.RUN_DEADLINE})
"""Reasons for which a cell fails that say nothing about its last attempt."""
_WITHOUT_POD: Final = frozenset({Reason.SCHEDULING_DEADLINE, Reason.STOPPED})
"""Reasons that are told of Jobs which may never have had a pod, and which go on should they not be removed."""


@dataclass(frozen=True, slots=True)
class Situation:
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
    over: bool = False
    """Whether the time of the whole run is up."""
    next_tick: datetime | None = None
    """Of the schedule; None without one, and while it is suspended."""
    cost: Cost | None = None
    """Of the run so far; None where no accelerator has a price."""
    past_cost: Cost | None = None
    """Of the run that the status tells of, which may be the one before."""
    unplaced: Mapping[str, SpecRefusedError] = field(default_factory=dict)
    """Why there can be no more Jobs on an accelerator, by its name, although the run has started."""
    blocked: str = ""
    """Why no Job can be created for now; empty if one can."""
    unscheduled: InvalidScheduleError | None = None
    """Why there can be no further run by the schedule."""


def survey(observed: Observed, spec: BenchmarkSpec, now: datetime, settings: Settings) -> Situation:
    """Sort the facts of a benchmark, whose specification is `spec`, for the run that it is in or should be in.

    Raises:
        SpecRefusedError: The specification can't be run as it is written.
    """
    benchmark = observed.benchmark
    cells = _checked_cells(spec)
    placements, unplaced = _placements(spec, settings.catalogue)
    tick, unscheduled = None, None
    try:
        tick = None if spec.schedule is None else next_tick(spec.schedule, now)
    except InvalidScheduleError as error:
        # It has no part in a run that has started.
        spec, unscheduled = spec.model_copy(update={"schedule": None}), error
    run = _with_deadline(_current_run(benchmark, spec, spec_hash(cells), now), benchmark, spec, now)
    started = benchmark.status.run is not None and benchmark.status.run.id == run.id
    if not started and (found := next(iter(unplaced.values()), unscheduled)):
        raise found
    over = _is_over(run, now) and not spec.suspend
    before = _entries_of(benchmark.status, run)
    own = [attempt for attempt in observed.attempts if attempt.run == run.id]
    if started:
        run = _blocked(run, spec, observed.blocked, own, now)
    measured = {result.spec.cell: result for result in observed.results if result.status.run == run.id}
    reusable: dict[str, Result] = {}
    if not run.trigger.measures_anew:
        reusable = _reusable(spec, run, before, observed.results, _images(cells, placements, settings))

    def estimate() -> Decimal:
        missing = [cell for cell in cells if cell.hash not in measured and cell.hash not in reusable]
        prices = {name: placement.usd_per_hour or Decimal(0) for name, placement in placements.items()}
        return cost.estimated(missing, prices, spec.measurement, observed.results)

    return Situation(
        benchmark=benchmark,
        spec=spec,
        run=run,
        cells=cells,
        placements=placements,
        measured=measured,
        reusable=reusable,
        judgements=tuple(
            _judged(attempt, spec, before, now, over=over)
            for attempt in sorted(own, key=lambda attempt: (attempt.number, attempt.name))
        ),
        before=before,
        over=over,
        next_tick=None if spec.suspend or spec.cancel else tick,
        cost=_cost(benchmark.status, run, own, placements, now, estimate),
        past_cost=cost.settled(benchmark.status, observed.attempts, now),
        unplaced=unplaced,
        blocked=observed.blocked,
        unscheduled=unscheduled,
    )


def _cost(
    status: BenchmarkStatus,
    run: Run,
    attempts: Iterable[Attempt],
    placements: Mapping[str, Placement],
    now: datetime,
    estimate: Callable[[], Decimal],
) -> Cost | None:
    """Return what the run has cost, and what it was expected to cost when it started."""
    before = status.cost if status.run and status.run.id == run.id else None
    if before is None and all(placement.price is None for placement in placements.values()):
        return None
    found = cost.spent(before, attempts, run.start_time, now)
    return found if before else found.model_copy(update={"estimated_usd": cost.written(estimate())})


def _is_over(run: Run, now: datetime) -> bool:
    """Whether the run's time is up; one that was complete by then stays as it was."""
    return bool(run.deadline_time and (run.completion_time or now) >= run.deadline_time)


def _with_deadline(run: Run, benchmark: Benchmark, spec: BenchmarkSpec, now: datetime) -> Run:
    """Return the run with the time at which it is given up, which suspension puts off."""
    paused, since = run.paused_seconds, _stopped_since(benchmark.status)
    if since and not spec.suspend and run == benchmark.status.run:
        paused += max(int((now - max(since, run.start_time)).total_seconds()), 0)
    seconds = spec.execution.deadline_seconds
    deadline = None if seconds is None else run.start_time + timedelta(seconds=seconds + paused)
    return run.model_copy(update={"paused_seconds": paused, "deadline_time": deadline})


def _blocked(run: Run, spec: BenchmarkSpec, why: str, attempts: Iterable[Attempt], now: datetime) -> Run:
    """Return the run with the time since when no Job can be created; others that go on free their place some time."""
    goes_on = any(not (attempt.finished_at or attempt.deleting) for attempt in attempts)
    if goes_on or spec.suspend or spec.cancel or run.completion_time:
        return run.model_copy(update={"blocked_time": None})
    return run.model_copy(update={"blocked_time": now}) if why and run.blocked_time is None else run


def _stopped_since(status: BenchmarkStatus) -> datetime | None:
    """Return since when the run has stood still: it is suspended, or was refused with all of its Jobs."""
    stood = [
        one.last_transition_time
        for one in status.conditions
        if one.type is ConditionType.SUSPENDED
        or (
            (one.type, one.status) == (ConditionType.ACCEPTED, ConditionStatus.FALSE)
            and any(entry.state is CellState.SKIPPED and entry.reason == one.reason for entry in status.results)
        )
    ]
    return min(stood, default=None)


def _judged(
    attempt: Attempt, spec: BenchmarkSpec, before: Mapping[str, CellStatus], now: datetime, *, over: bool
) -> Judgement:
    told = [before[cell] for cell in attempt.cells if cell in before and before[cell].attempts == attempt.number]
    # Since when a queue is missing is known from nobody else.
    missing = (entry.deadline_time for entry in told if entry.reason == Reason.QUEUE_MISSING)
    judgement = judge(attempt, spec.execution, now, next(missing, None))
    return _stopped(spec, _remembered(judgement, before), over=over)


def _remembered(judgement: Judgement, before: Mapping[str, CellStatus]) -> Judgement:
    """Return what the status has told of an attempt that has ended: what becomes of its pod afterwards changes nothing.

    The pod is drained with its node, deleted by a person, or gone, and would then look like one that was taken away.
    """
    attempt = judgement.attempt
    told = {
        cell: Failure(entry.reason, entry.message, retryable=entry.state is CellState.PENDING)
        for cell, entry in before.items()
        if cell in attempt.cells
        and (entry.attempts, entry.has_failed) == (attempt.number, True)
        and entry.reason not in _OF_NO_ATTEMPT
    }
    lost_its_pod = not attempt.pod and not any(why.reason in _WITHOUT_POD for why in told.values())
    if not told or not (judgement.stage is Stage.ENDED or attempt.finished_at or lost_its_pod):
        return judgement
    # The same reason as found now, which knows better whether a retry can help if more of them are allowed.
    news = {cell: why for cell, why in judgement.failed.items() if cell not in told or told[cell].reason == why.reason}
    end = replace(judgement, stage=Stage.ENDED, reason="", message="", look_again_at=None)
    return replace(end, failed=told | news)


def _stopped(spec: BenchmarkSpec, judgement: Judgement, *, over: bool) -> Judgement:
    """Return the end of an attempt that goes on although its benchmark is cancelled, or suspended at once, or over."""
    stops = spec.cancel or (spec.suspend and spec.execution.on_suspend is OnSuspend.STOP)
    if not (stops or over) or judgement.stage is Stage.ENDED:
        return judgement
    why = "cancelled" if spec.cancel else "suspended"
    failure = Failure(Reason.STOPPED, f"Its Job was removed because the benchmark was {why}.")
    if over:
        failure = run_over(spec, f"{judgement.reason}: {judgement.message}" if judgement.message else "")
    failed = dict.fromkeys(judgement.attempt.cells, failure)
    return Judgement(judgement.attempt, Stage.ENDED, failed=failed, overdue=not judgement.attempt.deleting)


def run_over(spec: BenchmarkSpec, last: str = "") -> Failure:
    """Return why cells fail that are not measured when the time of the whole run is up, and what they waited for."""
    seconds = spec.execution.deadline_seconds
    why = f"The run was not over within execution.deadlineSeconds ({seconds} s)"
    way = f". Last: {last}" if last else "; raise it, or measure fewer cells."
    return Failure(Reason.RUN_DEADLINE, why + way, retryable=False)


def _checked_cells(spec: BenchmarkSpec) -> tuple[Cell, ...]:
    cells = expand(spec)
    if not cells:
        raise SpecRefusedError(
            Reason.NO_CELLS, "exclude leaves no cell of the matrix; remove or narrow one of its entries."
        )
    by_hash: dict[str, Cell] = {}
    for cell in cells:
        if cell.sequence_length is None and not is_vision(cell.model):
            raise SpecRefusedError(
                Reason.LENGTH_MISSING,
                f"include: {cell.title} needs a sequenceLength; only vision models have none (for one, set its task to "
                "image-classification).",
            )
        twin = by_hash.setdefault(cell.hash, cell)
        if twin is not cell:
            raise SpecRefusedError(
                Reason.DUPLICATE_CELLS,
                f"{twin.title} and {cell.title} differ only in name and would be measured twice; remove one.",
            )
    return cells


def _placements(spec: BenchmarkSpec, catalogue: Catalogue) -> tuple[dict[str, Placement], dict[str, SpecRefusedError]]:
    """Return where pods for each accelerator may run, and for which accelerators there can be none, and why."""
    found: dict[str, Placement] = {}
    unplaced: dict[str, SpecRefusedError] = {}
    for accelerator in spec.accelerators:
        runner = merged(spec.runner, accelerator.runner)
        try:
            found[accelerator.name] = place(
                accelerator,
                catalogue,
                exclusive=spec.execution.exclusive_node,
                runner=runner,
                pricing=spec.pricing,
                copies=spec.measurement.load.concurrency,
            )
        except SpecRefusedError as error:
            found[accelerator.name] = nowhere(accelerator)
            unplaced[accelerator.name] = error
    unknown = sorted(name for name, placement in found.items() if placement.price is None)
    for name in unknown if spec.pricing is not Pricing.ON_DEMAND else ():
        if types := found[name].instance_types:
            field = f"usdPerHour{spec.pricing}"
            unpriced = SpecRefusedError(
                Reason.PRICE_UNKNOWN,
                f"pricing is {spec.pricing}, but not every instance type of accelerator {name} has such a price; give "
                f"{' and '.join(types)} a {field} in the operator's table of instance types, or set pricing to "
                "OnDemand.",
            )
            unplaced.setdefault(name, unpriced)
    for name in unknown if spec.execution.max_cost_usd is not None else ():
        unpriced = SpecRefusedError(
            Reason.PRICE_UNKNOWN,
            f"execution.maxCostUSD: the price of accelerator {name} is not known; name instanceTypes that have a "
            "price, give them one in the operator's table of instance types, or remove maxCostUSD.",
        )
        unplaced.setdefault(name, unpriced)
    return found, unplaced


def _current_run(benchmark: Benchmark, spec: BenchmarkSpec, wanted: str, now: datetime) -> Run:
    run, tick = benchmark.status.run, benchmark.status.next_schedule_time
    trigger = _trigger(benchmark, spec, wanted, now)
    if run and trigger is None:
        return run
    occasion: list[str] = []
    if run and trigger is Trigger.RERUN:
        occasion = [run.id, benchmark.rerun]
    elif run and trigger is Trigger.SCHEDULED and tick:
        occasion = [run.id, tick.isoformat()]
    return Run(
        id=names.run_id(uid=benchmark.uid, spec_hash=wanted, generation=benchmark.generation, occasion=occasion),
        trigger=trigger or Trigger.CREATED,
        spec_hash=wanted,
        start_time=now,
        rerun=benchmark.rerun or (run.rerun if run else ""),
        scheduled_time=tick if trigger is Trigger.SCHEDULED else None,
    )


def _trigger(benchmark: Benchmark, spec: BenchmarkSpec, wanted: str, now: datetime) -> Trigger | None:
    """Return why a new run starts; None if the present one goes on, or stands."""
    run = benchmark.status.run
    if run is None:
        return Trigger.CREATED
    if run.spec_hash != wanted:
        return Trigger.SPEC_CHANGED
    if benchmark.rerun and benchmark.rerun != run.rerun:
        return Trigger.RERUN
    if spec.schedule and run.completion_time and not (spec.suspend or spec.cancel):
        return Trigger.SCHEDULED if is_due(spec.schedule, benchmark.status.next_schedule_time, now) else None
    return None


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
