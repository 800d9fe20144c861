"""When a schedule's ticks come, and which of them are missed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from inferbench_operator.core.names import Reason
from inferbench_operator.core.schedule import InvalidScheduleError, is_due, next_tick
from inferbench_operator.models.execution import Schedule

MONDAY = datetime(2026, 1, 5, 3, 0, tzinfo=UTC)


def _schedule(cron: str = "0 3 * * 1", zone: str = "Etc/UTC") -> Schedule:
    return Schedule(cron=cron, time_zone=zone)


@pytest.mark.parametrize(
    ("cron", "zone", "after", "expected"),
    [
        ("0 3 * * 1", "Etc/UTC", "2026-01-01T00:00:00Z", "2026-01-05T03:00:00Z"),
        ("0 3 * * 1", "Etc/UTC", "2026-01-05T03:00:00Z", "2026-01-12T03:00:00Z"),
        ("0 3 * * 1", "Asia/Tokyo", "2026-01-01T00:00:00Z", "2026-01-04T18:00:00Z"),
        # Europe's clocks go forward on 29 March 2026 and back on 25 October, at 01:00 UTC.
        ("0 12 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T10:00:00Z"),
        ("0 12 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T11:00:00Z"),
        ("*/15 * * * *", "Etc/UTC", "2026-01-05T03:14:59Z", "2026-01-05T03:15:00Z"),
        ("0 0 29 2 *", "Etc/UTC", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"),
    ],
)
def test_the_next_tick(cron: str, zone: str, after: str, expected: str) -> None:
    """It lies after the time, and is told in UTC whatever the time zone."""
    found = next_tick(_schedule(cron, zone), datetime.fromisoformat(after))
    assert (found, found.tzinfo) == (datetime.fromisoformat(expected), UTC)


@pytest.mark.parametrize(
    ("cron", "zone", "words"),
    [
        ("0 3 * * 9", "Etc/UTC", ["schedule.cron: '0 3 * * 9'", "correct it"]),
        ("0 3 31 2 *", "Etc/UTC", ["schedule.cron: '0 3 31 2 *'", "correct it"]),
        ("0 3 * * 1", "Europe/Atlantis", ["schedule.timeZone: Europe/Atlantis", "Europe/Berlin"]),
    ],
)
def test_what_is_no_schedule_is_refused_in_a_sentence(cron: str, zone: str, words: list[str]) -> None:
    """By its field, with the way out."""
    with pytest.raises(InvalidScheduleError) as caught:
        next_tick(_schedule(cron, zone), MONDAY)
    assert caught.value.reason is Reason.INVALID_SCHEDULE
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("tick", "late", "due"),
    [
        pytest.param(None, 0, False, id="none was announced"),
        pytest.param(MONDAY, -1, False, id="it has not come"),
        pytest.param(MONDAY, 0, True, id="it has just come"),
        pytest.param(MONDAY, 300, True, id="an operator was restarted meanwhile"),
        pytest.param(MONDAY, 301, False, id="it was missed"),
        pytest.param(MONDAY + timedelta(hours=1), 0, False, id="of an earlier schedule"),
    ],
)
def test_a_tick_is_due_for_five_minutes(tick: datetime | None, late: int, due: bool) -> None:  # noqa: FBT001 - a column
    """What was announced counts, as long as it is still a tick."""
    now = (tick or MONDAY) + timedelta(seconds=late)
    assert is_due(_schedule(), tick, now) is due
