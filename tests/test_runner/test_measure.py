"""The warm-up and the three loops, under a clock that the test moves."""

from __future__ import annotations

import gc
import threading
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import count

import numpy as np
import pytest
from scipy.stats import expon, kstest

from inferbench_runner import measure
from inferbench_runner.adaptive import Quota
from inferbench_runner.backends.base import Bound
from inferbench_runner.contract import Arrivals, Load, LoadMode
from inferbench_runner.measure import (
    Series,
    arrivals,
    closed_loop,
    collector_paused,
    concurrent_loop,
    has_trend,
    is_steady,
    open_loop,
    settle,
    warm_up,
)
from test_runner.builders import MS, FakeClock

SECOND = 1000 * MS
SHARE = Quota(calls=336, min_ns=0, max_ns=100 * SECOND)
"""What one process measures of a shape by default."""

WAIT = 20
"""Seconds after which a thread that should have gone on fails the test."""


@pytest.mark.parametrize(
    ("medians", "steady", "trend"),
    [
        pytest.param([100, 100, 100, 100], False, True, id="four windows tell nothing"),
        pytest.param([100, 100, 100, 100, 100], True, False, id="five equal windows are steady"),
        pytest.param([100, 101, 102, 100, 101], True, False, id="a range of exactly 2 % is steady"),
        pytest.param([100, 101, 103, 100, 101], False, False, id="a range of more than 2 % is not, trend or no trend"),
        pytest.param([104, 103, 102, 101, 100], False, True, id="a fall by 4 % is a trend"),
        pytest.param([100, 101, 102, 103, 104], False, True, id="a rise by 4 % is a trend"),
        pytest.param([1000, 1004, 1008, 1012, 1016], False, False, id="a rise by 1.6 % is not steady yet"),
        pytest.param([104, 103, 103, 101, 100], False, False, id="two equal windows end a trend"),
        pytest.param([900, 500, 100, 100, 100, 100, 100], True, False, id="only the last five windows count"),
    ],
)
def test_steadiness(medians: list[float], steady: bool, trend: bool) -> None:  # noqa: FBT001  # a table's columns
    """Steady means that the last five medians agree within 2 %; a trend is one way only, by more than that."""
    assert (is_steady(medians), has_trend(medians)) == (steady, trend)


def falling(*durations: int) -> tuple[FakeClock, list[int], Bound]:
    """Return a clock, a list that grows with the calls, and calls that take these times, the last one for ever."""
    clock, calls = FakeClock(), []
    timed = clock.call_of(*durations)

    def call() -> None:
        timed()
        calls.append(clock.now)

    return clock, calls, Bound(call)


@pytest.mark.parametrize(
    ("first", "calls"),
    [
        pytest.param(50, 10, id="ten are enough for a call that is steady from the start"),
        pytest.param(70, 12, id="a slow first call takes its window of two out of the comparison"),
    ],
)
def test_a_steady_call_needs_ten_warm_ups(first: int, calls: int) -> None:
    """Ten calls come first in any case; count, time and the first call are recorded."""
    clock, made, bound = falling(first, 50)
    warmup = warm_up(bound.call, SHARE, now=clock.read)
    assert (warmup.calls, warmup.elapsed_ns, warmup.first_ns) == (calls, first + (calls - 1) * 50, first)
    assert len(made) == calls


def test_a_warm_up_goes_on_until_five_windows_agree() -> None:
    """While calls of the last five windows still fall the warm-up lasts; windows hold two calls at first.

    Calls 1 to 14 fall by a tenth from one to the next, so windows 1 to 7 differ; 8 to 12 are the first five that agree.
    """
    durations = [round(MS * 0.9**number) for number in range(14)]
    clock, _, bound = falling(*durations, durations[-1])
    warmup = warm_up(bound.call, SHARE, now=clock.read)
    assert (warmup.calls, warmup.settled) == (24, True)
    assert warmup.elapsed_ns == sum(durations) + 10 * durations[-1]


@pytest.mark.parametrize(
    ("run", "calls"),
    [
        pytest.param(2, 44, id="windows of four calls see no difference between pairs"),
        pytest.param(4, 88, id="windows of eight calls see no difference between fours"),
    ],
)
def test_windows_double_so_that_noise_does_not_keep_a_warm_up_going(run: int, calls: int) -> None:
    """Calls that are fast and slow by turns become steady once a window is long enough to hold as many of each.

    Windows hold two calls until there are 20 of them, then four until there are 20 of those, and so on.
    """
    clock, _, bound = falling(*([95 * MS] * run + [105 * MS] * run) * 100)
    warmup = warm_up(bound.call, Quota(10_000, 0, 3600 * SECOND), now=clock.read)
    assert (warmup.calls, warmup.settled) == (calls, True)


def forever_falling(first: int) -> tuple[FakeClock, Bound]:
    """Return a clock and a call that takes half a percent less each time."""
    clock = FakeClock()
    step = count()

    def call() -> None:
        clock.now += round(first * 0.995 ** next(step))

    return clock, Bound(call)


@pytest.mark.parametrize(
    ("first", "share", "longest"),
    [
        pytest.param(
            100 * MS, Quota(0, 40 * SECOND, 100 * SECOND), 2 * SECOND, id="a twentieth of a long share's fewest seconds"
        ),
        pytest.param(100 * MS, Quota(0, 15 * SECOND, 100 * SECOND), SECOND, id="a second, where that is more"),
        pytest.param(
            MS, Quota(500, 0, 100 * SECOND), None, id="a tenth of what the share's calls take, where it is less"
        ),
    ],
)
def test_an_unsteady_warm_up_ends_with_a_part_of_the_share(first: int, share: Quota, longest: int | None) -> None:
    """A latency that falls for ever is measured all the same after a part of that time, and counts as unsettled."""
    clock, bound = forever_falling(first)
    samples: list[int] = []

    def call() -> None:
        before = clock.now
        bound.call()
        samples.append(clock.now - before)

    warmup = warm_up(call, share, now=clock.read)
    limit = longest or 0.1 * share.calls * float(np.median(samples))
    assert not warmup.settled
    # It looks only where a window ends, of two or four calls: at most so much later.
    assert limit <= warmup.elapsed_ns <= limit + 4 * max(samples)


def test_no_warm_up_takes_more_than_a_minute() -> None:
    """However long the share, after 60 s the warm-up is over with the window that it is in."""
    clock, bound = forever_falling(100 * MS)
    jumpy = count()

    def call() -> None:
        bound.call()
        clock.now += SECOND * (1 + next(jumpy) % 7)

    warmup = warm_up(call, Quota(0, 3600 * SECOND, 3600 * SECOND), now=clock.read)
    assert 60 * SECOND <= warmup.elapsed_ns <= 60 * SECOND + 2 * 8 * SECOND


def test_ten_calls_are_made_even_where_they_take_too_long() -> None:
    """A call of a minute is warmed up ten times: pools and caches depend on calls, not on time."""
    clock, _, bound = falling(60 * SECOND)
    assert warm_up(bound.call, SHARE, now=clock.read).calls == 10


def test_a_warm_up_of_the_published_method_has_exactly_ten_calls() -> None:
    """Without adapting, ten calls are all, whatever they look like."""
    clock, _, bound = falling(*range(100 * MS, 0, -5 * MS))
    warmup = warm_up(bound.call, SHARE, adaptive=False, now=clock.read)
    assert (warmup.calls, warmup.settled) == (10, True)


@pytest.mark.parametrize(
    ("quota", "duration", "expected"),
    [
        pytest.param(Quota(5, 0, SECOND), MS, 5, id="stops at the calls when no time is left"),
        pytest.param(Quota(5, 20 * MS, SECOND), MS, 20, id="goes on until the fewest seconds have passed"),
        pytest.param(Quota(1000, 0, 30 * MS), MS, 30, id="stops at the longest time with fewer calls"),
        pytest.param(Quota(1000, 0, 30 * MS), 50 * MS, 1, id="takes one sample even if it alone takes too long"),
        pytest.param(Quota(1, 60 * MS, 30 * MS), 10 * MS, 3, id="lets the longest time win over a larger minimum"),
    ],
)
def test_quotas_of_a_closed_loop(quota: Quota, duration: int, expected: int) -> None:
    """The loop stops when calls and time are met or the longest time is reached."""
    clock, _, bound = falling(duration)
    series = closed_loop(bound, quota, now=clock.read)
    assert list(series.calls) == [duration] * expected
    assert (series.busy_ns, series.elapsed_ns) == (duration * expected, duration * expected)


def test_nothing_is_dropped() -> None:
    """Samples come back raw, in the order in which they were taken, outliers included, and none of another kind."""
    clock, _, bound = falling(3, 1, 900, 2)
    series = closed_loop(bound, Quota(4, 0, SECOND), now=clock.read)
    assert list(series.calls) == [3, 1, 900, 2]
    assert (len(series.device), len(series.service), series.asked_ns, series.queue) == (0, 0, array("q"), [])


def test_device_times_go_with_the_calls() -> None:
    """Where the device tells its own time, each call has one, read outside the timed part."""
    clock = FakeClock()
    device = iter([2, 3, 4])

    def read() -> int:
        clock.now += 1000
        return next(device)

    series = closed_loop(Bound(clock.call_of(5), device_ns=read), Quota(3, 0, SECOND), now=clock.read)
    assert (list(series.calls), list(series.device)) == ([5, 5, 5], [2, 3, 4])


@pytest.fixture
def few_samples(monkeypatch: pytest.MonkeyPatch) -> int:
    """A limit that a test reaches in no time."""
    monkeypatch.setattr(measure, "MAX_SAMPLES", 30)
    return 30


def test_a_round_never_outgrows_the_memory(few_samples: int) -> None:
    """A round ends at the most samples that it may hold, whatever its quota says, in both kinds of loop."""
    clock, _, bound = falling(1)
    assert len(closed_loop(bound, Quota(100, SECOND, SECOND), now=clock.read).calls) == few_samples
    due, _ = arrivals(rate(1000, kind=Arrivals.CONSTANT), Quota(100, 0, SECOND), "")
    assert len(due) == few_samples


class Turnstile:
    """A call that counts itself, and whose first so many calls wait for each other: proof that they are in flight."""

    def __init__(self, threads: int) -> None:
        """Wait for so many."""
        self.barrier = threading.Barrier(threads)
        self.seen = threading.local()
        self.lock = threading.Lock()
        self.now = self.most = self.entered = self.left = 0

    def call(self) -> None:
        """Take part."""
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        if not getattr(self.seen, "before", False):
            self.seen.before = True
            self.barrier.wait(WAIT)
        with self.lock:
            self.now -= 1

    @contextmanager
    def _inside(self) -> Iterator[None]:
        with self.lock:
            self.entered += 1
        yield
        with self.lock:
            self.left += 1

    def worker(self) -> AbstractContextManager[None]:
        """Count the threads that enter and leave."""
        return self._inside()


class Ticks:
    """A clock that moves on with each reading, and knows who has read what."""

    def __init__(self) -> None:
        """Start at 0."""
        self._ticks = count()
        self.read: defaultdict[int, list[int]] = defaultdict(list)

    def __call__(self) -> int:
        """Return the next number."""
        tick = next(self._ticks)
        self.read[threading.get_ident()].append(tick)
        return tick


@pytest.mark.parametrize("threads", [2, 5])
def test_so_many_calls_are_in_flight(threads: int) -> None:
    """Each thread calls by itself, in the worker's context, which it enters once and leaves at the end."""
    turnstile = Turnstile(threads)
    series = concurrent_loop(Bound(turnstile.call, worker=turnstile.worker), Quota(60, 0, SECOND), threads, now=Ticks())
    assert turnstile.most == threads
    assert (turnstile.entered, turnstile.left) == (threads, threads)
    assert len(series.calls) >= 60 // threads


def test_concurrent_samples_are_in_order_of_completion_and_their_time_is_summed_up() -> None:
    """What each thread has read on the clock gives the same samples, in the order of their ends, and the same sums."""
    ticks = Ticks()
    series = concurrent_loop(Bound(Turnstile(3).call), Quota(30, 0, SECOND), 3, now=ticks)
    done, tenth = [], []
    for _, *readings in ticks.read.values():
        pairs = list(zip(readings[::2], readings[1::2], strict=True))
        done += [(end, start) for start, end in pairs]
        tenth += [end for _, end in pairs[9:]]
    stopped = min(tenth)
    inside = [(max(min(end, stopped) - start, 0), end - start) for end, start in sorted(done)]
    assert list(series.calls) == [latency for _, latency in inside]
    assert series.busy_ns == sum(part for part, _ in inside)
    assert series.completed == pytest.approx(sum(part / latency for part, latency in inside))
    assert series.elapsed_ns == stopped - min(start for _, start in done)
    # The first thread that has a third of the calls ends the round.
    assert max(len(readings) // 2 for readings in ticks.read.values()) == 10


@pytest.mark.parametrize("loop", ["concurrent", "open"])
def test_a_failure_in_a_thread_is_raised_to_the_caller(loop: str) -> None:
    """One call of one thread fails: the loop ends with that failure once all threads have come home."""
    numbers = count()

    def call() -> None:
        if next(numbers) == 2:
            message = "the third call"
            raise ValueError(message)

    before = threading.active_count()
    bound, quota = Bound(call), Quota(20, 0, SECOND)
    with pytest.raises(ValueError, match="the third call"):
        concurrent_loop(bound, quota, 3) if loop == "concurrent" else open_loop(bound, quota, rate(10_000, 3), "")
    assert threading.active_count() == before


def test_a_thread_that_cannot_start_its_work_does_not_hold_the_others_up() -> None:
    """A failure on the way into the worker's context is raised, not the broken barrier of the others."""
    numbers = count()

    @contextmanager
    def worker() -> Iterator[None]:
        if next(numbers) == 1:
            message = "no context"
            raise RuntimeError(message)
        yield

    with pytest.raises(RuntimeError, match="no context"):
        concurrent_loop(Bound(lambda: None, worker=worker), Quota(20, 0, SECOND), 3)


def rate(per_second: int, concurrency: int = 1, kind: Arrivals | None = None) -> Load:
    """Return the load of an open loop."""
    return Load(mode=LoadMode.OPEN, rate_per_second=per_second, concurrency=concurrency, arrivals=kind)


def test_a_constant_schedule_has_equal_gaps() -> None:
    """At 300 per second the calls are due at multiples of the 300th part of a second, to the nanosecond."""
    due, span = arrivals(rate(300, kind=Arrivals.CONSTANT), Quota(1000, 0, 100 * SECOND), "any")
    assert due == [round(index * 1e9 / 300) for index in range(1000)]
    assert span == round(1000 * 1e9 / 300)


@pytest.mark.parametrize("seed", ["0/0/0/1", "0/0/0/2", "7/1/2/30"])
def test_a_poisson_schedule_has_exponential_gaps(seed: str) -> None:
    """Gaps pass SciPy's test for an exponential distribution of the mean that the rate asks for; it is the default."""
    due, span = arrivals(rate(200), Quota(4000, 0, 1000 * SECOND), seed)
    gaps = np.diff([0, *due])
    assert span == 20 * SECOND
    assert len(due) == pytest.approx(4000, abs=4 * np.sqrt(4000))
    assert kstest(gaps, expon(scale=1e9 / 200).cdf).pvalue > 0.01
    assert gaps.mean() == pytest.approx(1e9 / 200, rel=4 / np.sqrt(4000))
    assert due == arrivals(rate(200, kind=Arrivals.POISSON), Quota(4000, 0, 1000 * SECOND), seed)[0]
    assert due != arrivals(rate(200), Quota(4000, 0, 1000 * SECOND), seed + "x")[0]


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        pytest.param(Quota(50, 0, 100 * SECOND), 50, id="as many as asked for"),
        pytest.param(Quota(50, 2 * SECOND, 100 * SECOND), 200, id="as many as the fewest seconds hold"),
        pytest.param(Quota(5000, 0, SECOND), 100, id="no more than the longest time holds"),
        pytest.param(Quota(5, 0, 1), 1, id="at least one"),
    ],
)
def test_quotas_of_a_schedule(quota: Quota, expected: int) -> None:
    """Arrivals at 100 per second fill the calls or the time, whichever takes longer, up to the longest time."""
    due, span = arrivals(rate(100, kind=Arrivals.CONSTANT), quota, "")
    assert len(due) == expected
    assert span == min(expected * SECOND // 100, quota.max_ns)


def served(
    monkeypatch: pytest.MonkeyPatch, durations: Sequence[int], load: Load, quota: Quota
) -> tuple[Series, list[int]]:
    """Return what one thread serves with calls that take these times, and the schedule."""
    clock = FakeClock(now=5)
    monkeypatch.setattr(measure, "wait_until", clock.wait_until)
    # The first call is the thread's own warm-up.
    series = open_loop(Bound(clock.call_of(0, *durations)), quota, load, "seed", now=clock.read)
    return series, arrivals(load, quota, "seed")[0]


@pytest.mark.parametrize("kind", list(Arrivals))
def test_an_open_loops_latency_counts_from_the_intended_start(monkeypatch: pytest.MonkeyPatch, kind: Arrivals) -> None:
    """Latency, service and queue are those of a queue with one server, by Lindley's recursion."""
    generator = np.random.default_rng(3)
    durations = [int(value) for value in generator.gamma(2, 2 * MS, size=900)]
    series, due = served(monkeypatch, [*durations, 0], rate(200, kind=kind), Quota(600, 0, 100 * SECOND))
    durations = durations[: len(due)]
    free, latencies, waits = 0, [], []
    for time, duration in zip(due, durations, strict=True):
        start = max(time, free)
        free = start + duration
        waits.append(start - time)
        latencies.append(free - time)
    assert list(series.calls) == latencies
    assert list(series.service) == durations
    assert series.queue == waits
    assert list(series.asked_ns) == due
    assert (series.elapsed_ns, series.busy_ns, series.completed) == (max(free, 3 * SECOND), sum(durations), len(due))


def test_one_stall_shows_in_the_latency_and_not_in_the_service_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 ms of one call in a thousand delay 60 others at 200 per second: a closed loop would see one slow call."""
    durations = [MS] * 400 + [300 * MS] + [MS] * 599
    series, _ = served(monkeypatch, durations, rate(200, kind=Arrivals.CONSTANT), Quota(1000, 0, 100 * SECOND))
    p99 = float(np.percentile(series.calls, 99, method="inverted_cdf"))
    assert p99 > 200 * MS
    assert np.percentile(series.service, 99, method="inverted_cdf") == MS
    assert sum(latency > MS for latency in series.calls) == 1 + 299 // 4


def test_what_is_not_served_in_time_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 100 per second calls of 50 ms fall behind; after a second the rest of the queue is let be."""
    series, due = served(monkeypatch, [50 * MS], rate(100, kind=Arrivals.CONSTANT), Quota(100, 0, SECOND))
    assert len(due) == len(series.asked_ns) == 100
    assert len(series.calls) == len(series.service) == len(series.queue) == 20
    assert (series.elapsed_ns, series.busy_ns, series.completed) == (SECOND, SECOND, 20)


def test_a_stalled_call_holds_nobody_up_while_a_thread_is_free() -> None:
    """With two threads the second one serves all others while the first call waits for them to end."""
    others = threading.Semaphore(0)
    numbers = count()

    def call() -> None:
        # Each of the two threads makes one call of its own first.
        number = next(numbers)
        if number < 2:
            return
        if number == 2:
            for _ in range(30):
                assert others.acquire(timeout=WAIT)
        else:
            others.release()

    series = open_loop(Bound(call), Quota(31, 0, 100 * SECOND), rate(5000, 2, Arrivals.CONSTANT), "")
    assert len(series.calls) == 31
    assert series.service[0] == max(series.service)
    assert series.busy_ns == sum(series.service)


def test_settling_calls_are_made_in_the_workers_context() -> None:
    """Untimed calls are made as the timed ones are."""
    turnstile = Turnstile(1)
    settle(Bound(turnstile.call, worker=turnstile.worker))
    assert (turnstile.most, turnstile.entered, turnstile.left) == (1, 1, 1)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_rests_while_measuring(enabled: bool) -> None:  # noqa: FBT001  # a table's column
    """Garbage collection is off inside, and outside it is as it was before, even after an error."""
    states = []

    def fail_inside() -> None:
        with collector_paused():
            states.append((gc.isenabled(), gc.get_freeze_count() > 0))
            message = "stop"
            raise ValueError(message)

    gc.enable() if enabled else gc.disable()
    try:
        with pytest.raises(ValueError, match="stop"):
            fail_inside()
        assert states == [(False, True)]
        assert (gc.isenabled(), gc.get_freeze_count()) == (enabled, 0)
    finally:
        gc.enable()
