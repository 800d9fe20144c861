"""What a run has cost so far, and what its Jobs may still cost.

A pod costs the price of its whole node, of the dearest that its accelerator allows, from being scheduled to its end.
The price is that of the time when its Job was made, and stands in the Job. How long a node is there before and after,
and what else runs on it, is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from inferbench_operator.core.attempts import DEADLINE_GRACE, Judgement, Stage
from inferbench_operator.core.facts import Attempt, Result
from inferbench_operator.core.matrix import Cell, group
from inferbench_operator.models.execution import ExecutionPolicy
from inferbench_operator.models.measurement import Measurement
from inferbench_operator.models.status import BenchmarkStatus, Cost

_HOUR: Final = Decimal(3600)
_STEP: Final = Decimal("0.000001")
_JOB_SECONDS: Final = Decimal(180)
NOT_WORTH_WRITING: Final = timedelta(minutes=1)
"""For how long what is spent meanwhile is not written if nothing else in the status has changed."""


def spent(before: Cost | None, attempts: Iterable[Attempt], start: datetime, now: datetime) -> Cost:
    """Return what a run that began at `start` has cost until `now`, given what it had until an earlier moment.

    Only the time since that moment is added, for each attempt with a price, so that Jobs that have been removed since
    then still count, and none counts twice.
    """
    before = before or Cost(observed_time=start)
    costs = (_seconds(one, before.observed_time, now) * one.usd_per_hour for one in attempts if one.usd_per_hour)
    added = sum(costs, Decimal(0)) / _HOUR
    if not added:
        return before
    return before.model_copy(update={"spent_usd": written(Decimal(before.spent_usd) + added), "observed_time": now})


def estimated(
    cells: Sequence[Cell], prices: Mapping[str, Decimal], measurement: Measurement, results: Iterable[Result]
) -> Decimal:
    """Return what it is expected to cost to measure some cells, in US dollars, given prices by accelerator.

    A cell takes as long as it took before, warm-up included, or measurement.maxSeconds where it is measured for the
    first time; a Job takes three minutes besides, to start, to load the model and to verify it.
    """
    before = {result.spec.cell: result.status for result in results}
    total = Decimal(0)
    for plan in group(cells):
        seconds = _JOB_SECONDS
        for cell in plan.cells:
            earlier = before.get(cell.hash)
            if earlier and earlier.measure_milliseconds is not None:
                seconds += Decimal(earlier.measure_milliseconds + (earlier.warmup_milliseconds or 0)) / 1000
            else:
                seconds += measurement.max_seconds
        total += seconds * prices.get(plan.cells[0].accelerator.name, Decimal(0)) / _HOUR
    return total


def written(usd: Decimal) -> str:
    """Write an amount of US dollars to a millionth."""
    return f"{usd.quantize(_STEP).normalize():f}"


def settled(status: BenchmarkStatus, attempts: Iterable[Attempt], now: datetime) -> Cost | None:
    """Return what the run of a status has cost until `now`; None where no price is known."""
    run = status.run
    own = [attempt for attempt in attempts if run and attempt.run == run.id]
    if run is None or (status.cost is None and not any(attempt.usd_per_hour for attempt in own)):
        return None
    return spent(status.cost, own, run.start_time, now)


def commitment(policy: ExecutionPolicy, usd_per_hour: Decimal) -> Decimal:
    """Return what a new Job may cost, in US dollars."""
    seconds = policy.start_deadline_seconds + policy.measure_deadline_seconds
    return (seconds + _whole_seconds(DEADLINE_GRACE)) * usd_per_hour / _HOUR


def committed(judgement: Judgement, policy: ExecutionPolicy, now: datetime) -> Decimal:
    """Return what an attempt may cost from `now` on, in US dollars."""
    attempt, price = judgement.attempt, judgement.attempt.usd_per_hour or Decimal(0)
    if judgement.stage is Stage.ENDED and not judgement.overdue:
        return Decimal(0)
    pod = attempt.pod
    if pod and pod.started_at:
        end = pod.started_at + timedelta(seconds=policy.measure_deadline_seconds) + DEADLINE_GRACE
        return max(_whole_seconds(end - now), 0) * price / _HOUR
    waited = _whole_seconds(now - pod.scheduled_at) if pod and pod.scheduled_at else 0
    return max(commitment(policy, price) - waited * price / _HOUR, Decimal(0))


def stable(before: Cost | None, after: Cost | None) -> bool:
    """Whether the difference alone is not worth a write of the status."""
    return bool(before and after and after.observed_time - before.observed_time < NOT_WORTH_WRITING)


def _seconds(attempt: Attempt, since: datetime, now: datetime) -> Decimal:
    """Return for how many seconds after `since` an attempt has had a node."""
    pod = attempt.pod
    if pod is None or pod.scheduled_at is None:
        return Decimal(0)
    ended = pod.terminated.finished_at if pod.terminated else attempt.finished_at
    return Decimal(max(_whole_seconds(min(ended or now, now) - max(pod.scheduled_at, since)), 0))


def _whole_seconds(time: timedelta) -> int:
    return int(time.total_seconds())
