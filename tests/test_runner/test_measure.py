"""The measuring loop, under a clock that the test moves."""

from __future__ import annotations

import gc

import pytest

from inferbench_runner.contract import Measurement
from inferbench_runner.measure import Limits, collector_paused, measure, warm_up
from test_runner.builders import FakeClock

MS = 1_000_000


@pytest.mark.parametrize(
    ("limits", "duration", "expected"),
    [
        pytest.param(Limits(5, 0, 1000 * MS), MS, 5, id="stops at the fewest samples when no minimum time is left"),
        pytest.param(Limits(5, 20 * MS, 1000 * MS), MS, 20, id="goes on until the minimum time has passed"),
        pytest.param(Limits(1000, 0, 30 * MS), MS, 30, id="stops at the maximum time with fewer samples"),
        pytest.param(Limits(1000, 0, 30 * MS), 50 * MS, 1, id="takes one sample even if it alone takes too long"),
        pytest.param(Limits(1, 60 * MS, 30 * MS), 10 * MS, 3, id="lets the maximum win over a larger minimum"),
    ],
)
def test_limits(limits: Limits, duration: int, expected: int) -> None:
    """The loop stops when both minima are met or the maximum is reached."""
    clock = FakeClock()
    series = measure(clock.call_of(duration), limits, now=clock.read)
    assert list(series.samples) == [duration] * expected
    assert series.window_ns == duration * expected


def test_samples_keep_their_order_and_nothing_is_dropped() -> None:
    """Samples come back raw, in the order in which they were taken, outliers included."""
    clock = FakeClock()
    series = measure(clock.call_of(3, 1, 900, 2), Limits(4, 0, 10**9), now=clock.read)
    assert list(series.samples) == [3, 1, 900, 2]


def test_warm_up_is_counted_and_timed() -> None:
    """Ten calls come before the first sample, and the report can say so."""
    clock = FakeClock()
    warmup = warm_up(clock.call_of(7), now=clock.read)
    assert (warmup.calls, warmup.elapsed_ns) == (10, 70)


def test_limits_come_from_the_plan_in_seconds() -> None:
    """The plan's seconds become nanoseconds."""
    limits = Limits.from_measurement(Measurement(min_samples=2, min_seconds=3, max_seconds=4))
    assert limits == Limits(min_samples=2, min_ns=3 * 10**9, max_ns=4 * 10**9)


def test_the_collector_rests_while_measuring_and_works_again_afterwards() -> None:
    """Garbage collection is off inside and back on outside, even after an error."""
    states = []

    def fail_inside() -> None:
        with collector_paused():
            states.append(gc.isenabled())
            message = "stop"
            raise ValueError(message)

    with pytest.raises(ValueError, match="stop"):
        fail_inside()
    assert states == [False]
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
