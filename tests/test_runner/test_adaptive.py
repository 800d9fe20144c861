"""How samples are spread, and when there are enough of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import count, islice
from math import ceil
from typing import Any

import numpy as np
import pytest

from inferbench_runner.adaptive import MIN_BLOCKS, OPEN_LOOP_CALLS, ROUNDS, Design, Progress, Quota
from inferbench_runner.contract import Measurement
from inferbench_runner.interval import Samples
from test_runner.builders import MS

SECOND = 1000 * MS
INFINITE = float("inf")


def design(**fields: Any) -> Design:  # noqa: ANN401  # passed through
    """Return the design of a measurement, with no minima unless a test asks for them."""
    return Design.from_measurement(Measurement.model_validate({"minSamples": 1, "minSeconds": 0} | fields))


@pytest.mark.parametrize(
    ("processes", "rounds"),
    [
        pytest.param(1, ROUNDS, id="one process has all the rounds"),
        pytest.param(3, ROUNDS // 3, id="three processes have a third each"),
        pytest.param(7, -(-ROUNDS // 7), id="what can't be divided is rounded up"),
        pytest.param(32, -(-ROUNDS // 32), id="of many processes each has a few"),
    ],
)
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="the default"),
        pytest.param({"minSamples": 1, "minSeconds": 0, "maxSeconds": 1}, id="the least"),
        pytest.param({"minSamples": 12_345, "minSeconds": 77, "maxSeconds": 1234}, id="odd numbers"),
    ],
)
def test_minima_and_time_are_spread_over_processes_and_rounds(
    processes: int, rounds: int, fields: dict[str, Any]
) -> None:
    """All first rounds together meet both minima, with no call to spare in any, and stay within the longest time."""
    measurement = Measurement.model_validate(fields | {"processes": processes, "targetHalfWidthPercent": 3})
    found = Design.from_measurement(measurement)
    parts = processes * rounds
    assert (found.processes, found.rounds, found.target) == (processes, rounds, 0.03)
    assert parts * (found.quota.calls - 1) < measurement.min_samples <= parts * found.quota.calls
    assert parts * (found.quota.min_ns - 1) < measurement.min_seconds * SECOND <= parts * found.quota.min_ns
    assert parts * found.quota.max_ns <= measurement.max_seconds * SECOND
    assert measurement.max_seconds * SECOND - processes < found.share_ns * processes <= measurement.max_seconds * SECOND
    assert found.min_samples == measurement.min_samples


def test_the_default_takes_little_more_than_a_thousand_calls() -> None:
    """By default a shape has three processes, and about 1,000 calls, 10 s and 300 s in all."""
    found = Design.from_measurement(Measurement())
    parts = found.processes * found.rounds
    assert (found.processes, found.target, found.share_ns) == (3, 0.02, 100 * SECOND)
    assert 1000 <= parts * found.quota.calls < 1000 + parts
    assert parts * found.quota.min_ns == pytest.approx(10 * SECOND, rel=1e-6)


@pytest.mark.parametrize(
    ("fewest", "more"),
    [
        pytest.param(1000, False, id="so that its queue can fill"),
        pytest.param(1_000_000, True, id="or more where the fewest samples ask for more"),
    ],
)
def test_a_round_of_an_open_loop_has_hundreds_of_arrivals(fewest: int, more: bool) -> None:  # noqa: FBT001  # a column
    """A few arrivals in an empty queue would meet nobody; so rounds are longer, and as few as an interval needs."""
    found = design(load={"mode": "Open", "ratePerSecond": 10}, minSamples=fewest)
    parts = found.processes * found.rounds
    assert parts >= MIN_BLOCKS > parts - found.processes
    assert found.quota.calls >= OPEN_LOOP_CALLS >= 200
    assert parts * found.quota.calls >= fewest
    assert (found.quota.calls > OPEN_LOOP_CALLS) is more


def test_the_published_method_has_one_round() -> None:
    """It is 100 calls of one process, whatever else is asked for, and the first look is the last."""
    fields = {"profile": "Legacy2023", "processes": 3, "minSamples": 1000, "minSeconds": 10, "maxSeconds": 60}
    found = Design.from_measurement(Measurement.model_validate(fields))
    assert found == Design(1, 1, Quota(100, 0, 60 * SECOND), 60 * SECOND, 100, INFINITE)
    progress = Progress(found)
    progress.begin(0)
    assert rounds_until_enough(progress, noisy(0.5), calls=100) == 1


def constant(calls: int = 50) -> Samples:
    """Return a round of equal latencies, whose interval is as narrow as can be."""
    return np.full(calls, 10 * MS)


def noisy(relative: float, seed: int = 0) -> Callable[[int], Samples]:
    """Return a source of rounds of independent normal latencies."""
    generator = np.random.default_rng(seed)
    return lambda calls: (10 * MS * (1 + relative * generator.standard_normal(calls))).astype(np.int64)


def rounds_until_enough(progress: Progress, source: Callable[[int], Samples], *, calls: int = 50) -> int:
    """Feed rounds of a tenth of a second until no more are wanted; return their number."""
    count = 0
    while progress.wants_round():
        progress.add(source(calls), SECOND // 10)
        count += 1
    return count


def looks(first: int) -> Iterator[int]:
    """Yield the numbers of rounds after which a process looks: half as many as at first each time, rounded up."""
    for number in count():
        yield first + number * -(-first // 2)


def test_rounds_grow_from_look_to_look() -> None:
    """After each look they are half as long again, in calls and in time, so that rounds and looks stay few."""
    progress = Progress(design(processes=1, maxSeconds=3600))
    progress.begin(0)
    source, first = noisy(0.5), progress.quota
    assert first == progress.design.quota
    for stage in range(6):
        growth = 1.5**stage
        wanted = (ceil(part * growth) for part in (first.calls, first.min_ns, first.max_ns))
        assert progress.quota == Quota(*wanted)
        for _ in range(progress.design.rounds if stage == 0 else ceil(progress.design.rounds / 2)):
            progress.add(source(10), 1)
    progress.begin(1)
    assert progress.quota == first


@pytest.mark.parametrize("processes", [1, 2, 3, 5])
def test_the_first_look_comes_after_the_designs_rounds(processes: int) -> None:
    """However narrow the interval, each process measures its part of the rounds, and looks for the first time then."""
    progress = Progress(design(processes=processes))
    for share in range(processes):
        progress.begin(share)
        assert rounds_until_enough(progress, constant, calls=500) == progress.design.rounds


def test_a_single_block_tells_no_width() -> None:
    """One round in one process has no second one to compare it with: nothing is known of its noise."""
    progress = Progress(design(processes=32))
    progress.begin(0)
    progress.add(constant(500), 1)
    assert progress.p95().half_width == INFINITE
    assert progress.wants_round()


def test_the_last_process_spends_the_error_on_its_looks() -> None:
    """The k-th look uses 5 % / (k * (k + 1)), and comes after half as many rounds as there were at first.

    With any number of looks that adds up to less than 5 %: the sum of 1 / (k * (k + 1)) tends to 1.
    """
    progress = Progress(design(processes=1, maxSeconds=3600))
    progress.begin(0)
    source = noisy(0.5)
    seen: list[tuple[int, float]] = []
    for number in range(1, 701):
        assert progress.wants_round()
        progress.add(source(10), 1)
        if not seen or progress.error != seen[-1][1]:
            seen.append((number, progress.error))
    expected = [number for number in islice(looks(progress.design.rounds), 40) if number <= 700]
    assert len(expected) > 5
    # The first look leaves the error where it was, at half of 5 %.
    assert [number for number, _ in seen[1:]] == expected[1:]
    errors = [error for _, error in seen]
    assert errors == pytest.approx([0.05 / (look * (look + 1)) for look in range(1, len(expected) + 1)])
    assert sum(errors) < 0.05
    assert sum(0.05 / (look * (look + 1)) for look in range(1, 100_000)) < 0.05


def test_processes_before_the_last_spend_no_error() -> None:
    """They only settle how much they measure, so looking costs nothing: the error stays half of 5 %."""
    progress = Progress(design(processes=3, maxSeconds=3600))
    for share in range(2):
        progress.begin(share)
        source = noisy(0.5)
        for _ in range(100):
            progress.add(source(10), 1)
        assert progress.error == 0.025


@pytest.mark.parametrize(
    ("processes", "factor"),
    [
        pytest.param(1, 1.0, id="one process must reach it by itself"),
        pytest.param(3, np.sqrt(3), id="of three processes each may miss it by the root of three"),
    ],
)
def test_a_process_aims_at_the_width_that_the_others_will_help_to_narrow(processes: int, factor: float) -> None:
    """The first process stops at once where the target times that factor is a hair wider than its interval, only then.

    Widths shrink with the root of the samples, so that as many samples of each of three processes reach the target.
    """
    source = noisy(0.1)
    wanted = design(processes=processes)
    rounds = [source(50) for _ in range(wanted.rounds)]
    width = fed(wanted, rounds).p95().half_width
    assert not fed(replace(wanted, target=1.001 * width / factor), rounds).wants_round()
    assert fed(replace(wanted, target=0.999 * width / factor), rounds).wants_round()


def fed(wanted: Design, rounds: Iterable[Samples]) -> Progress:
    """Return the progress of a first process that has measured these rounds."""
    progress = Progress(wanted)
    progress.begin(0)
    for one in rounds:
        progress.add(one, 1)
    return progress


def test_the_last_process_decides_by_the_target_itself() -> None:
    """When the last process stops before its time is up, the interval that is reported is as narrow as asked for."""
    progress = Progress(design(processes=3, targetHalfWidthPercent=1))
    source = noisy(0.05)
    counts = []
    for share in range(3):
        progress.begin(share)
        counts.append(rounds_until_enough(progress, source))
    assert all(count < 1000 for count in counts)
    assert progress.p95().half_width <= 0.01
    assert progress.error < 0.05


def test_a_narrow_interval_of_too_few_samples_is_not_enough() -> None:
    """Rounds that were cut short are followed by others until all processes together have the fewest samples.

    The first of two stops at its first look with half of them, and the second at its first with all of them.
    """
    progress = Progress(design(processes=2, minSamples=5000))
    calls, first = 20, progress.design.rounds
    done = 0
    for share in range(2):
        progress.begin(share)
        expected = next(look for look in looks(first) if (done + look) * calls >= 2500 * (share + 1))
        done += rounds_until_enough(progress, constant, calls=calls)
        assert len(progress.processes[share]) == expected > first


def dependent(relative: float = 0.001, period: int = 1000) -> Callable[[int], Samples]:
    """Return a source of rounds whose latencies wander slowly, a thousandth up and down."""
    at = 0

    def source(calls: int) -> Samples:
        nonlocal at
        at += calls
        return (10 * MS * (1 + relative * np.sin(2 * np.pi * np.arange(at - calls, at) / period))).astype(np.int64)

    return source


def test_a_narrow_interval_of_too_few_blocks_is_not_enough() -> None:
    """Where latencies depend on each other over several rounds, it is blocks of such rounds that are waited for."""
    progress = Progress(design(processes=1, maxSeconds=3600))
    progress.begin(0)
    count = rounds_until_enough(progress, dependent())
    assert count > progress.design.rounds
    assert len(progress.ordered().sizes) >= MIN_BLOCKS
    assert progress.p95().half_width < 0.002


def test_the_time_of_a_share_is_the_limit() -> None:
    """A process ends with the round in which its part of the longest time runs out, and so does the next one."""
    progress = Progress(design(processes=3, maxSeconds=30, targetHalfWidthPercent=1))
    for share in range(3):
        progress.begin(share)
        assert rounds_until_enough(progress, noisy(0.5)) == 100
    assert progress.p95().half_width > 0.01


def test_a_share_that_runs_out_before_its_first_look_ends_too() -> None:
    """One round that takes all the time is the last one."""
    progress = Progress(design(processes=3, maxSeconds=30))
    progress.begin(0)
    progress.add(constant(), 10 * SECOND)
    assert not progress.wants_round()


def test_a_replacement_goes_on_with_the_same_share() -> None:
    """Rounds and time of a process that died count for its share; its samples stay a process of their own."""
    progress = Progress(design(processes=3, maxSeconds=30))
    rounds = progress.design.rounds
    progress.begin(0)
    for _ in range(5):
        progress.add(constant(), 1)
    progress.begin(0)
    assert rounds_until_enough(progress, constant) == rounds - 5
    assert [len(found) for found in progress.processes] == [5, rounds - 5]
    progress.begin(1)
    assert rounds_until_enough(progress, constant) == rounds
    progress.begin(2)
    progress.add(constant(), 9 * SECOND)
    progress.begin(2)
    assert progress.wants_round()
    progress.add(constant(), SECOND)
    assert not progress.wants_round()


def test_a_replacement_of_a_process_that_had_enough_wants_no_more() -> None:
    """What is enough stays enough: the share is over, whatever becomes of the process."""
    progress = Progress(design(processes=3))
    progress.begin(0)
    rounds_until_enough(progress, constant)
    progress.begin(0)
    assert not progress.wants_round()
