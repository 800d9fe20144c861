"""Holds what cells without a node ask for against what the cluster offers, before the scheduler has waited for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from inferbench_operator.core.advice import advised
from inferbench_operator.core.facts import Attempt, Observed, Supply
from inferbench_operator.core.matrix import merged
from inferbench_operator.core.names import Reason
from inferbench_operator.core.situation import Situation
from inferbench_operator.core.supply import Shortage, shortage
from inferbench_operator.models.instances import Catalogue
from inferbench_operator.models.status import CellState, CellStatus

LOOK_EVERY: Final = timedelta(minutes=1)
"""How often the cluster is looked at, at most, and also at least while it lacks something."""
_MESSAGE_LENGTH: Final = 200


def is_due(observed: Observed, now: datetime) -> bool:
    """Whether it matters what the cluster offers: while cells have no node, or a new run may begin."""
    benchmark, status = observed.benchmark, observed.benchmark.status
    if benchmark.spec is None or benchmark.deleting or benchmark.spec.suspend or benchmark.spec.cancel:
        return False
    if status.observed_generation != benchmark.generation:
        return True
    if status.run is None:
        return False
    tick = status.next_schedule_time
    if benchmark.rerun not in {"", status.run.rerun} or (tick and tick <= now):
        return True
    placed = _placed(attempt for attempt in observed.attempts if attempt.run == status.run.id)
    return any(_has_no_node(entry, placed) for entry in status.results)


def shortages(
    situation: Situation, entries: Mapping[str, CellStatus], supply: Supply | None, catalogue: Catalogue
) -> Mapping[str, Shortage]:
    """Return what the cluster lacks for cells that have no node, by hash of the cell."""
    if supply is None:
        return {}
    placed = _placed(judgement.attempt for judgement in situation.judgements)
    waiting = [entry for entry in entries.values() if _has_no_node(entry, placed)]
    wanted = {entry.accelerator for entry in waiting} - situation.unplaced.keys()
    by_accelerator = {
        one.name: shortage(situation.placements[one.name], merged(situation.spec.runner, one.runner), supply, catalogue)
        for one in situation.spec.accelerators
        if one.name in wanted
    }
    return {entry.cell: why for entry in waiting if (why := by_accelerator.get(entry.accelerator))}


def in_words(entries: Iterable[CellStatus], lacking: Mapping[str, Shortage]) -> str:
    """Return what is lacking, once for each accelerator; empty if nothing is."""
    of = {entry.accelerator: lacking[entry.cell] for entry in entries if entry.cell in lacking}
    return " ".join(f"Accelerator {name}: {why}" for name, why in of.items())


def told(entry: CellStatus, why: Shortage | None) -> CellStatus:
    """Return the entry of a cell that waits with what is lacking, or else what to do, as far as there is room."""
    if entry.state is not CellState.WAITING:
        return entry
    if why is None:
        message = advised(entry.reason, entry.message, _MESSAGE_LENGTH)
    else:
        # That no scheduler has spoken yet is no news then.
        before = "" if entry.reason == Reason.SCHEDULING else entry.message
        messages = (f"{before} {words}".strip() for words in (str(why), why.short))
        message = next((found for found in messages if len(found) <= _MESSAGE_LENGTH), entry.message)
    return entry.model_copy(update={"message": message})


def _placed(attempts: Iterable[Attempt]) -> set[tuple[str, int]]:
    """Return cells, and the number of the attempt, whose pod has a node."""
    return {
        (cell, attempt.number)
        for attempt in attempts
        if attempt.pod and attempt.pod.scheduled_at
        for cell in attempt.cells
    }


def _has_no_node(entry: CellStatus, placed: set[tuple[str, int]]) -> bool:
    waits = entry.state is CellState.WAITING and (entry.cell, entry.attempts) not in placed
    return waits or entry.state is CellState.PENDING
