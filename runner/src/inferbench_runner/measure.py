"""The measuring loops: calls, a clock, and quotas. They know neither devices nor reports.

Between two samples they store one number and compare it; whatever else there is to do waits until the loop has ended.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import ceil
from random import Random
from statistics import median
from threading import Barrier, BrokenBarrierError, Event, Lock, Thread
from typing import Final

from inferbench_runner.adaptive import Quota
from inferbench_runner.backends.base import Bound
from inferbench_runner.clock import NS_PER_SECOND, now_ns, wait_until
from inferbench_runner.contract import Arrivals, Load

WARMUP_CALLS: Final = 10
"""Fewest calls before the first sample: lazy initialisation, memory pools and caches are filled by then."""

WARMUP_NS: Final = 60 * NS_PER_SECOND
"""Longest warm-up of a shape in one process."""

WARMUP_SHARE: Final = 0.1
"""Longest warm-up over the time that the process will measure the shape: a noisy host never becomes steady."""

WARMUP_LONG_SHARE: Final = 0.05
"""The same for warm-ups of a second and more, by which a device's clocks are up."""

STEADY_WINDOWS: Final = 5

STEADY_SPREAD: Final = 0.02
"""Range of the last windows' medians over their median, below which the latency counts as steady."""

WINDOWS: Final = 20
"""Windows after which they are made twice as long, so that their medians scatter less."""

SETTLING_CALLS: Final = 1
"""Untimed calls at the start of a round after another shape was measured, whose data are in the caches then: where a
round has few calls, a slow first one would decide the p95."""

SETTLING_NS: Final = 50_000_000
"""Length of a call from which on it needs none: filling the caches takes a few milliseconds at most."""

END_TO_END_EVERY: Final = 7
"""Calls for each end-to-end one: 1,000 calls bring the 130 that an interval of their p95 needs."""

MAX_SAMPLES: Final = 1_000_000
"""Samples after which a round ends early: 8 MB."""


@dataclass(frozen=True)
class Warmup:
    """What was done before the first sample."""

    calls: int
    elapsed_ns: int
    first_ns: int
    """The first call of all."""
    call_ns: int
    """Median of the last ten calls."""
    settled: bool
    """Whether no trend was left at the end."""


@dataclass(frozen=True)
class Series:
    """Samples of one kind in the order in which they were completed, in nanoseconds."""

    calls: array[int]
    """Latencies: from the intended start in an open loop, else from the start."""
    elapsed_ns: int
    """Length of the window in which all of the load was there."""
    busy_ns: int
    """Time that the calls took within the window, summed over the threads."""
    completed: float
    """Calls within the window; one that reaches out of it counts for the part that lies inside."""
    device: array[int] = field(default_factory=lambda: array("q"))
    service: array[int] = field(default_factory=lambda: array("q"))
    """Open loop only: from the real start."""
    asked_ns: array[int] = field(default_factory=lambda: array("q"))
    """Open loop only: the intended starts, counted from the beginning."""

    @property
    def queue(self) -> list[int]:
        """Open loop only: from the intended start to the real one."""
        return [call - service for call, service in zip(self.calls, self.service, strict=False)]


def is_steady(medians: Sequence[float]) -> bool:
    """Whether the last five windows' medians agree within 2 % and show no trend."""
    last = medians[-STEADY_WINDOWS:]
    if len(last) < STEADY_WINDOWS:
        return False
    return max(last) - min(last) <= STEADY_SPREAD * median(last) and not _one_way(last)


def has_trend(medians: Sequence[float]) -> bool:
    """Whether the last five medians only fall or only rise, by more than the 2 % in all."""
    last = medians[-STEADY_WINDOWS:]
    if len(last) < STEADY_WINDOWS:
        return True
    return _one_way(last) and abs(last[-1] - last[0]) > STEADY_SPREAD * median(last)


def _one_way(medians: Sequence[float]) -> bool:
    steps = [after - before for before, after in pairwise(medians)]
    return all(step < 0 for step in steps) or all(step > 0 for step in steps)


def warm_up(
    call: Callable[[], object], share: Quota, *, adaptive: bool = True, now: Callable[[], int] = now_ns
) -> Warmup:
    """Call until the latency is steady, or a part of the time is spent that the share will take: at least ten times.

    The share is what the process will measure: so many calls, and at least so long.
    """
    samples: list[int] = []
    size = WARMUP_CALLS // STEADY_WINDOWS
    begin = end = now()
    while True:
        start = now()
        call()
        end = now()
        samples.append(end - start)
        if len(samples) < WARMUP_CALLS or len(samples) % size:
            continue
        medians = [median(samples[at : at + size]) for at in range(0, len(samples), size)]
        planned = min(max(share.calls * median(samples), share.min_ns), share.max_ns)
        limit = min(WARMUP_NS, max(WARMUP_LONG_SHARE * planned, min(WARMUP_SHARE * planned, NS_PER_SECOND)))
        if not adaptive or is_steady(medians) or end - begin >= limit:
            latest = round(median(samples[-WARMUP_CALLS:]))
            settled = not adaptive or not has_trend(medians)
            return Warmup(len(samples), end - begin, samples[0], latest, settled)
        if len(medians) >= WINDOWS:
            size *= 2


def closed_loop(bound: Bound, quota: Quota, *, now: Callable[[], int] = now_ns) -> Series:
    """Call one after the other, timing each, until the quota is met; at least one sample is taken."""
    samples, device = array("q"), array("q")
    append = samples.append
    call, device_ns = bound.call, bound.device_ns
    calls, min_ns, max_ns = quota.calls, quota.min_ns, quota.max_ns
    with bound.worker():
        begin = end = now()
        for count in range(1, MAX_SAMPLES + 1):
            start = now()
            call()
            end = now()
            append(end - start)
            if device_ns is not None:
                device.append(device_ns())
            elapsed = end - begin
            if elapsed >= max_ns or (count >= calls and elapsed >= min_ns):
                break
    return Series(samples, end - begin, sum(samples), len(samples), device)


def concurrent_loop(bound: Bound, quota: Quota, threads: int, *, now: Callable[[], int] = now_ns) -> Series:
    """Keep so many calls in flight until the first thread has done its part of the quota.

    All stop with the call that they are on; the window, from the first start to that moment, is when all were at work.
    """
    share = ceil(quota.calls / threads)
    done: list[tuple[int, int]] = []
    ends: list[int] = []

    def work(stop: Event) -> None:
        mine: list[tuple[int, int]] = []
        begin = now()
        while not stop.is_set():
            start = now()
            bound.call()
            end = now()
            mine.append((end, start))
            elapsed, count = end - begin, len(mine)
            if elapsed >= quota.max_ns or count >= MAX_SAMPLES or (count >= share and elapsed >= quota.min_ns):
                ends.append(end)
                stop.set()
        done.extend(mine)

    _in_threads(work, threads, bound)
    done.sort()
    begin, stopped = min(start for _, start in done), min(ends)
    inside = [(max(min(end, stopped) - start, 0), end - start) for end, start in done]
    return Series(
        calls=array("q", (latency for _, latency in inside)),
        elapsed_ns=stopped - begin,
        busy_ns=sum(part for part, _ in inside),
        completed=sum(part / max(latency, 1) for part, latency in inside),
    )


def open_loop(bound: Bound, quota: Quota, load: Load, seed: str, *, now: Callable[[], int] = now_ns) -> Series:
    """Start each call when the schedule says so, or as soon after that as one of the threads is free.

    The schedule waits for nobody, so a call that has to wait for others counts from the time when it was due. What is
    still waiting when the round's time is up is not called.
    """
    due, span = arrivals(load, quota, seed)
    done: list[tuple[int, int, int]] = []
    turn = iter(range(len(due)))
    lock = Lock()
    begin = 0

    def begins() -> None:
        nonlocal begin
        begin = now()

    def work(stop: Event) -> None:
        while not stop.is_set():
            with lock:
                # The first call is made in any case: a round has at least one sample.
                late = done and now() - begin >= quota.max_ns
                index = None if late else next(turn, None)
            if index is None:
                return
            wait_until(begin + due[index])
            start = now()
            bound.call()
            done.append((index, start - begin, now() - begin))

    _in_threads(work, load.concurrency, bound, begins)
    wait_until(begin + span)
    done.sort()
    service = array("q", (end - start for _, start, end in done))
    return Series(
        calls=array("q", (end - due[index] for index, _, end in done)),
        elapsed_ns=max(span, *(end for _, _, end in done)),
        busy_ns=sum(service),
        completed=len(done),
        service=service,
        asked_ns=array("q", due),
    )


def arrivals(load: Load, quota: Quota, seed: str) -> tuple[list[int], int]:
    """Return one round's intended starts, counted from its beginning, and its length, both in nanoseconds.

    The length follows from the rate and not from the arrivals, so that rounds one after the other have the rate that
    was asked for. There is at least one start: a round has room for ten and more, so that none falls to it by chance
    once in twenty thousand rounds.
    """
    mean = NS_PER_SECOND / (load.rate_per_second or 1)
    count = min(max(quota.calls, ceil(quota.min_ns / mean)), MAX_SAMPLES)
    span = min(round(count * mean), quota.max_ns)
    if load.arrivals is Arrivals.CONSTANT:
        times = [index * mean for index in range(count)]
    else:
        # The gaps of a Poisson process are exponential.
        draw = Random(seed)  # noqa: S311  # a schedule, not a secret
        times = list(accumulate(draw.expovariate(1 / mean) for _ in range(2 * count + 100)))
    return [round(time) for time in times if time < span] or [span // 2], span


def settle(bound: Bound, calls: int = SETTLING_CALLS) -> None:
    """Call so often without timing."""
    with bound.worker():
        for _ in range(calls):
            bound.call()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep Python's garbage collector from adding its pauses to samples: collect now, then hold it until the end.

    A full collection takes a quarter of a second with a model's libraries loaded, so one pause spans all shapes.
    """
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def _in_threads(
    work: Callable[[Event], None], count: int, bound: Bound, begins: Callable[[], None] | None = None
) -> None:
    """Run the work in so many threads, which start together; raise the first failure, which stops all of them."""
    start, stop = Barrier(count, begins), Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with bound.worker():
                # What a library keeps for each thread is made by its first call.
                bound.call()
                start.wait()
                work(stop)
        except BrokenBarrierError:
            pass
        except BaseException as error:  # noqa: BLE001  # raised again below, in the caller's thread
            failures.append(error)
            stop.set()
            start.abort()

    threads: list[Thread] = []
    try:
        for _ in range(count):
            thread = Thread(target=run, daemon=True)
            thread.start()
            threads.append(thread)
    except RuntimeError:
        start.abort()
        raise
    finally:
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
