"""Says when cells may be tried again: at once the first time, and after twice as long each time from then on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from inferbench_operator.core.facts import Attempt
from inferbench_operator.core.situation import Situation
from inferbench_operator.models.status import CellStatus

_PROMPT: Final = 2
"""Attempts that follow each other at once."""
_FIRST_DELAY: Final = timedelta(seconds=10)
_LONGEST_DELAY: Final = timedelta(minutes=5)


def due(situation: Situation, missing: Sequence[CellStatus]) -> datetime | None:
    """Return when cells may be tried: the first retry at once, each later one after twice the time of the last.

    What has gone wrong twice, such as a node that shuts down, is not mended in a second.
    """
    failures: int = max(entry.attempts - (entry.stops or 0) for entry in missing)
    hashes = {entry.cell for entry in missing}
    ends = [_end(one.attempt) for one in situation.judgements if hashes & set(one.attempt.cells)]
    if failures < _PROMPT or not ends:
        return None
    return max(ends) + min(_FIRST_DELAY * (1 << (failures - _PROMPT)), _LONGEST_DELAY)


def _end(attempt: Attempt) -> datetime:
    """Return when an attempt ended, so far as its Job and its pod tell."""
    pod = attempt.pod
    if pod and pod.terminated:
        return pod.terminated.finished_at
    return attempt.finished_at or attempt.created_at
