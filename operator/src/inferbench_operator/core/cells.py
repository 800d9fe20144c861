"""Says where each cell of a run stands, and which Job its missing cells are given next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from inferbench_operator.core import cost, jobs, names, results, retries
from inferbench_operator.core.advice import advised
from inferbench_operator.core.attempts import TYPED_WAITS, Failure, Judgement, Stage
from inferbench_operator.core.jobs import Manifest
from inferbench_operator.core.matrix import Cell, PlanGroup, group
from inferbench_operator.core.names import Reason
from inferbench_operator.core.placement import SpecRefusedError
from inferbench_operator.core.settings import Settings
from inferbench_operator.core.situation import Situation, run_over
from inferbench_operator.models.benchmark import Accelerator
from inferbench_operator.models.status import CellState, CellStatus
from inferbench_runner.contract import AcceleratorKind, FailureReason, Verdict

_MESSAGE_LENGTH = 200
_WAITED_IN_VAIN = {Reason.SCHEDULING_DEADLINE, Reason.START_DEADLINE, *TYPED_WAITS}
# Reasons that say nothing about the cell itself.
_OF_OTHERS = {Reason.STOPPED, Reason.OTHER_CELL_FAILED}
# Reasons for which a run that has started can start no more Jobs, and which a person may have brought about by an edit
# that changes no cell: they are told even while no Job is needed.
_EDITED = {Reason.PRICE_UNKNOWN, Reason.SCHEDULER_MISSING}


def entries(situation: Situation, refusals: Mapping[str, str], now: datetime) -> dict[str, CellStatus]:
    """Return the status entries of all cells by hash; `refusals` are Jobs that the API server does not take."""
    found = {cell.hash: _entry(situation, cell) for cell in situation.cells}
    if situation.spec.cancel:
        return {cell: entry if entry.state.terminal else _cancelled(entry) for cell, entry in found.items()}
    if situation.over:
        return {cell: _given_up(situation, entry) for cell, entry in found.items()}
    found |= _refused(situation, found, refusals) | _blocked(situation, found, now)
    return found | _unaffordable(situation, found)


def _given_up(situation: Situation, entry: CellStatus) -> CellStatus:
    if entry.state.terminal:
        return entry
    why = run_over(situation.spec)
    message = names.shortened(why.message, _MESSAGE_LENGTH)
    return entry.model_copy(update={"state": CellState.FAILED, "reason": why.reason, "message": message})


def _cancelled(entry: CellStatus) -> CellStatus:
    return entry.model_copy(update={"state": CellState.SKIPPED, "reason": Reason.CANCELLED.value, "message": ""})


def _unaffordable(situation: Situation, entries: Mapping[str, CellStatus]) -> dict[str, CellStatus]:
    """Return skipped entries for the cells that have no Job once no other can start without passing the cost limit."""
    limit = situation.spec.execution.max_cost_usd
    plans = [(plan, missing) for plan in _plans(situation) if (missing := _missing(plan, entries))]
    if limit is None or not plans or situation.spec.suspend or _going(situation) or unplaceable(situation, entries):
        return {}
    next_price = min(_price(situation, plan) for plan, _ in plans)
    needed = cost.commitment(situation.spec.execution, next_price)
    if needed <= Decimal(limit) - _spent(situation):
        return {}
    why = (
        f"Another Job may cost {needed:.3f} USD; {_spent(situation):.3f} of execution.maxCostUSD {limit} are spent: "
        "raise it, or lower measureDeadlineSeconds."
    )
    before = situation.before
    return {cell.hash: _too_dear(entries[cell.hash], before.get(cell.hash), why) for _, some in plans for cell in some}


def _too_dear(entry: CellStatus, before: CellStatus | None, why: str) -> CellStatus:
    if before and before.reason == Reason.COST_LIMIT and before.message.endswith(why) and not entry.reason:
        # Its Job, which said why it had failed, may be gone since.
        return before
    # A higher limit would buy the same failure again, so why it has failed is told as well.
    failed = f"{entry.reason}: {names.shortened(entry.message, 50)} " if entry.reason else ""
    message = failed + why if len(failed + why) <= _MESSAGE_LENGTH else names.shortened(why, _MESSAGE_LENGTH)
    update = {"state": CellState.SKIPPED, "reason": Reason.COST_LIMIT.value, "message": message, "verdict": None}
    return entry.model_copy(update=update)


def _spent(situation: Situation) -> Decimal:
    return Decimal(situation.cost.spent_usd) if situation.cost else Decimal(0)


def _going(situation: Situation) -> list[Judgement]:
    """Return the attempts that have a Job which may hold a node."""
    return [one for one in situation.judgements if one.stage is not Stage.ENDED or one.overdue]


def unplaceable(situation: Situation, entries: Mapping[str, CellStatus]) -> SpecRefusedError | None:
    """Return why a run that has started can't go on: there is no place for a Job that it still needs."""
    if all(entry.state.terminal for entry in entries.values()):
        return None
    needed = {entry.accelerator for entry in entries.values() if entry.state is CellState.PENDING}
    if situation.spec.suspend:
        needed = set()
    found = (why for name, why in situation.unplaced.items() if name in needed or why.reason in _EDITED)
    return next(found, None)


@dataclass(frozen=True, slots=True)
class NewJobs:
    """Jobs to create now, and others for which it is too early."""

    manifests: tuple[Manifest, ...] = ()
    held: int = 0
    """How many more there would be if the operator's own limit were higher."""
    next_at: datetime | None = None
    """When the first of those may be created that wait before they try again."""


def new_jobs(
    situation: Situation, entries: Mapping[str, CellStatus], now: datetime, settings: Settings, slots: int | None
) -> NewJobs:
    """Return Jobs for the cells that have none, group by group, within the limits of parallel Jobs.

    Of the operator's own limit, `slots` are left.
    """
    if situation.run != situation.benchmark.status.run:
        # The run's identity must be stored before its first Job exists, or a crash could start another run beside it.
        return NewJobs()
    if situation.spec.suspend or situation.spec.cancel or situation.over or unplaceable(situation, entries):
        return NewJobs()
    going = _going(situation)
    active = {judgement.attempt.plan for judgement in going}
    room = _Room(situation, going, now)
    broken = _broken_nodes(situation)
    wanted: list[Manifest] = []
    later: list[datetime] = []
    held = 0
    # The cheapest first, so that a mistake which all of them share costs little.
    for plan in sorted(_plans(situation), key=lambda plan: _price(situation, plan)):
        missing = _missing(plan, entries)
        if not missing or plan.hash in active:
            continue
        if (due := retries.due(situation, [entries[cell.hash] for cell in missing])) and due > now:
            later.append(due)
            continue
        if not room.take(missing[0].accelerator):
            continue
        if slots is not None and len(wanted) >= slots:
            held += 1
        else:
            placement = replace(situation.placements[missing[0].accelerator.name], avoid=broken)
            number = _next_attempt(plan, entries)
            wanted.append(jobs.job(situation.benchmark, situation.run.id, plan, missing, number, placement, settings))
    return NewJobs(tuple(wanted), held, min(later, default=None))


class _Room:
    """How many more Jobs there may be, in all and on each accelerator, and what they may cost."""

    def __init__(self, situation: Situation, going: Sequence[Judgement], now: datetime) -> None:
        """Count those that go on."""
        policy = situation.spec.execution
        by_cell = {cell.hash: cell.accelerator.name for cell in situation.cells}
        used = [by_cell.get(one.attempt.cells[0], "") if one.attempt.cells else "" for one in going]
        self._left = policy.max_parallel_jobs - len({one.attempt.plan for one in going})
        self._used = Counter(used)
        self._commitments: dict[str, Decimal] = {}
        """What a Job may cost, by accelerator; empty without a limit."""
        self._money = Decimal(0)
        if policy.max_cost_usd is not None:
            self._commitments = {
                name: cost.commitment(policy, place.usd_per_hour or Decimal(0))
                for name, place in situation.placements.items()
            }
            committed = sum(cost.committed(one, policy, now) for one in going)
            self._money = Decimal(policy.max_cost_usd) - _spent(situation) - committed

    def take(self, accelerator: Accelerator) -> bool:
        """Take a place on an accelerator if there is one left."""
        limit = accelerator.max_parallel_jobs
        price = self._commitments.get(accelerator.name, Decimal(0))
        if self._left <= 0 or (limit is not None and self._used[accelerator.name] >= limit) or price > self._money:
            return False
        self._left -= 1
        self._used[accelerator.name] += 1
        self._money -= price
        return True


def _price(situation: Situation, plan: PlanGroup) -> Decimal:
    """Return the price of an hour, for an order: that of a CPU node without a price comes first, of others last."""
    placement = situation.placements[plan.cells[0].accelerator.name]
    if placement.usd_per_hour is not None:
        return placement.usd_per_hour
    return Decimal(0) if placement.kind is AcceleratorKind.CPU else Decimal("Infinity")


def _broken_nodes(situation: Situation) -> tuple[str, ...]:
    """Return the nodes whose devices reported a fault of their own."""
    found = {
        judgement.attempt.pod.node
        for judgement in situation.judgements
        if judgement.attempt.pod
        and any(failure.reason == FailureReason.HARDWARE_ERROR for failure in judgement.failed.values())
    }
    return tuple(sorted(found - {""}))


def _entry(situation: Situation, cell: Cell) -> CellStatus:
    """Return the status entry of a cell: what is stored beats what is tried, which beats what is remembered."""
    tried = [judgement for judgement in situation.judgements if cell.hash in judgement.attempt.cells]
    before = situation.before.get(cell.hash)
    attempts = max([judgement.attempt.number for judgement in tried], default=0)
    attempts = max(attempts, before.attempts if before else 0)
    found = _state(situation, cell, tried, attempts)
    if before is None:
        return found
    # Those of a failure are counted with it; otherwise they are what they were.
    disruptions, stops = found.disruptions or before.disruptions, found.stops or before.stops
    if stops and found.state.goes_on and _is_stopped(before, attempts):
        # The operator died when it had told of the stop, and before it removed the Job.
        stops -= 1
    return found.model_copy(update={"disruptions": disruptions, "stops": stops or None})


def _state(situation: Situation, cell: Cell, tried: Sequence[Judgement], attempts: int) -> CellStatus:
    before = situation.before.get(cell.hash)
    if stored := situation.measured.get(cell.hash):
        return results.entry(cell, state=CellState.SUCCEEDED, attempts=attempts, **results.figures(stored.status))
    if kept := situation.reusable.get(cell.hash):
        return results.entry(cell, state=CellState.REUSED, attempts=attempts, **results.figures(kept.status))
    latest = tried[-1] if tried and tried[-1].attempt.number >= attempts else None
    if latest and latest.stage is not Stage.ENDED:
        state = CellState.RUNNING if latest.stage is Stage.RUNNING else CellState.WAITING
        message = names.shortened(latest.message, _MESSAGE_LENGTH)
        due = latest.look_again_at
        return results.entry(
            cell, state=state, attempts=attempts, reason=latest.reason, message=message, deadline_time=due
        )
    return _retry_or_fail(situation, cell, attempts, _failure(cell, latest, before, attempts))


def _failure(cell: Cell, latest: Judgement | None, before: CellStatus | None, attempts: int) -> Failure | None:
    """Return why the last attempt failed: from its Job or, where that is gone, from the status."""
    if latest:
        return latest.failed.get(cell.hash)
    if before and before.attempts == attempts and before.attempts and before.has_failed:
        return Failure(before.reason, before.message, retryable=before.state is CellState.PENDING)
    if before and before.state.goes_on:
        return Failure(Reason.JOB_LOST, "The Job was removed before its runner had reported.")
    # Never tried, or its result was deleted after its Job: there is nothing left to show, so it is measured again.
    return None


def _retry_or_fail(situation: Situation, cell: Cell, attempts: int, failure: Failure | None) -> CellStatus:
    if failure is None:
        return results.entry(cell, state=CellState.PENDING, attempts=attempts)
    disruptions, stops = _cut_short(situation.before.get(cell.hash), attempts, failure)
    policy = situation.spec.execution
    if failure.reason in _OF_OTHERS:
        # Each death is held against the cell that the runner died on, so that it ends.
        final = False
    elif failure.reason in names.DISRUPTIONS:
        final = disruptions > policy.disruption_retries
    else:
        final = not failure.retryable or attempts - disruptions - stops > policy.retries
    return results.entry(
        cell,
        state=CellState.FAILED if final else CellState.PENDING,
        attempts=attempts,
        disruptions=disruptions or None,
        stops=stops or None,
        reason=failure.reason,
        message=_told(situation, failure),
        verdict=Verdict.INVALID if failure.reason == FailureReason.NUMERIC_MISMATCH else None,
    )


def _told(situation: Situation, failure: Failure) -> str:
    """Return why a cell failed, and where it waited in vain what to do, and which nodes it was not given, as broken."""
    message = failure.message
    if failure.reason not in _WAITED_IN_VAIN:
        return names.shortened(message, _MESSAGE_LENGTH)
    avoided = ", ".join(_broken_nodes(situation))
    start = f"Not on {avoided}, whose device has failed: "
    if avoided and failure.reason == Reason.SCHEDULING_DEADLINE and not message.startswith(start):
        message = start + message
    return advised(failure.reason, message, _MESSAGE_LENGTH)


def _cut_short(before: CellStatus | None, attempts: int, failure: Failure) -> tuple[int, int]:
    """Return how many attempts at a cell were disrupted, and how many stopped, the present one included.

    What the status has told of is counted there already.
    """
    told = bool(before and before.attempts == attempts and (before.has_failed or before.state is CellState.SKIPPED))
    disrupted = failure.reason in names.DISRUPTIONS and not told
    stopped = failure.reason in _OF_OTHERS and not told
    earlier = (before.disruptions or 0, before.stops or 0) if before else (0, 0)
    return earlier[0] + disrupted, earlier[1] + stopped


def _is_stopped(entry: CellStatus, attempts: int) -> bool:
    """Whether an entry tells that its last attempt was stopped, be it for good."""
    told = entry.state is CellState.SKIPPED or (entry.has_failed and entry.reason == Reason.STOPPED)
    return told and entry.attempts == attempts


def _plans(situation: Situation) -> Iterator[PlanGroup]:
    """Yield the cells by Job: one that a runner died on is tried by itself, so that it takes no other along again."""
    culprits = {judgement.culprit for judgement in situation.judgements}
    for plan in group(situation.cells):
        rest = tuple(cell for cell in plan.cells if cell.hash not in culprits)
        alone = [cell for cell in plan.cells if cell.hash in culprits]
        if rest:
            # Under a name of its own: it has been tried less often than those that it is without.
            yield PlanGroup(names.digest([plan.hash, *(cell.hash for cell in rest)], 10), rest) if alone else plan
        for cell in alone:
            yield PlanGroup(names.digest([plan.hash, cell.hash], 10), (cell,)) if len(plan.cells) > 1 else plan


def _refused(
    situation: Situation, entries: Mapping[str, CellStatus], refusals: Mapping[str, str]
) -> dict[str, CellStatus]:
    """Return failed entries for the cells whose next Job the API server has refused, now or before a restart."""
    told = _refused_before(situation)
    failed: dict[str, CellStatus] = {}
    for plan in _plans(situation) if refusals or told else ():
        missing = _missing(plan, entries)
        refusal = refusals.get(_next_job_name(situation, plan, entries)) if missing else None
        if refusal:
            why = f"The API server refuses the Job; correct spec.runner: {refusal}"
            told |= dict.fromkeys((cell.hash for cell in missing), names.shortened(why, _MESSAGE_LENGTH))
        for cell in missing:
            if why := told.get(cell.hash, ""):
                update = {"state": CellState.FAILED, "reason": Reason.JOB_REFUSED.value, "message": why}
                failed[cell.hash] = entries[cell.hash].model_copy(update=update)
    return failed


def blocked_until(situation: Situation) -> datetime | None:
    """Return when cells fail because no Job could be created for them; None while one can be."""
    since = situation.run.blocked_time
    if since is None:
        return None
    return since + timedelta(seconds=situation.spec.execution.scheduling_deadline_seconds)


def _blocked(situation: Situation, entries: Mapping[str, CellStatus], now: datetime) -> dict[str, CellStatus]:
    """Return failed entries for the cells that nobody may create a Job for, once that has lasted long enough."""
    until = blocked_until(situation)
    if until is None or now < until or not situation.blocked:
        return {}
    seconds = situation.spec.execution.scheduling_deadline_seconds
    why = f"No Job could be created within schedulingDeadlineSeconds ({seconds} s): {situation.blocked}"
    message = names.shortened(why, _MESSAGE_LENGTH)
    update = {"state": CellState.FAILED, "reason": Reason.JOB_REFUSED.value, "message": message}
    pending = (entry for entry in entries.values() if entry.state is CellState.PENDING)
    return {entry.cell: entry.model_copy(update=update) for entry in pending}


def _refused_before(situation: Situation) -> dict[str, str]:
    """Return what the status says of refused Jobs, by cell: a run that has failed for them does not begin again."""
    benchmark = situation.benchmark
    if benchmark.status.observed_generation != benchmark.generation:
        return {}
    entries = situation.before.values()
    return {entry.cell: entry.message for entry in entries if entry.has_failed and entry.reason == Reason.JOB_REFUSED}


def _missing(plan: PlanGroup, entries: Mapping[str, CellStatus]) -> list[Cell]:
    return [cell for cell in plan.cells if entries[cell.hash].state is CellState.PENDING]


def _next_attempt(plan: PlanGroup, entries: Mapping[str, CellStatus]) -> int:
    return 1 + max(entries[cell.hash].attempts for cell in plan.cells)


def _next_job_name(situation: Situation, plan: PlanGroup, entries: Mapping[str, CellStatus]) -> str:
    attempt = _next_attempt(plan, entries)
    name = situation.benchmark.name
    return names.job_name(benchmark=name, run=situation.run.id, plan=plan.hash, attempt=attempt)
