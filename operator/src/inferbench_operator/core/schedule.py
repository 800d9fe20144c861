"""When a benchmark with a schedule starts its next run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from inferbench_operator.core.names import Reason
from inferbench_operator.core.placement import SpecRefusedError
from inferbench_operator.models.execution import Schedule

LATEST: Final = timedelta(minutes=5)
"""Delay after which a tick counts as missed: as long as an operator needs that is restarted, and no longer."""

_STEP: Final = timedelta(seconds=1)


class InvalidScheduleError(SpecRefusedError):
    """The schedule is none, or never comes."""

    def __init__(self, field: str, problem: str) -> None:
        """Name the field, and what to do about it."""
        super().__init__(Reason.INVALID_SCHEDULE, f"schedule.{field}: {problem}.")


def next_tick(schedule: Schedule, after: datetime) -> datetime:
    """Return the first tick after a time, in UTC; clock changes of the time zone are as in cron.

    Raises:
        InvalidScheduleError: The expression or the time zone is none, or the tick never comes.
    """
    field, named = "timeZone", schedule.time_zone
    try:
        zone = ZoneInfo(named)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidScheduleError(field, f"{named} is no time zone; use a name such as Europe/Berlin") from error
    field, named = "cron", schedule.cron
    try:
        return next(CronSim(named, after.astimezone(zone))).astimezone(UTC)
    except CronSimError as error:
        raise InvalidScheduleError(field, f"{named!r} is no cron expression ({error}); correct it") from error
    except StopIteration:
        raise InvalidScheduleError(field, f"{named!r} names a day that never comes; correct it") from None


def is_due(schedule: Schedule, tick: datetime | None, now: datetime) -> bool:
    """Whether the tick that was announced has come, not long ago; the schedule may have been changed since."""
    if tick is None or not tick <= now <= tick + LATEST:
        return False
    return next_tick(schedule, tick - _STEP) == tick
