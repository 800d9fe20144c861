"""All figures of a shape, from rounds whose samples the test makes up, against independent code."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from inferbench_runner.adaptive import Design, Progress
from inferbench_runner.contract import Measurement
from inferbench_runner.measure import Series, Warmup
from inferbench_runner.noise import Counters
from inferbench_runner.summary import Distribution, Figures, Round, as_samples, figures
from test_runner.builders import MS

LONGEST = 86_400 * 10**9


def round_of(process: int, begun: int, calls: Sequence[int], **fields: Any) -> Round:  # noqa: ANN401  # passed through
    """Return a round of one thread that never idles."""
    spent = sum(calls)
    return Round(process, begun, Series(array("q", calls), spent, busy_ns=spent, completed=len(calls)), **fields)


def figures_of(rounds: Sequence[Round], *, interpolated: bool = False) -> Figures:
    """Return the figures of rounds, in the order in which they were measured."""
    progress = Progress(Design.from_measurement(Measurement(max_seconds=86_400)))
    for process in range(max(one.process for one in rounds) + 1):
        progress.begin(process)
        for one in rounds:
            if one.process == process:
                progress.add(as_samples(one.series.calls), 1)
    return figures(progress, rounds, [], interpolated=interpolated)


def spread(latencies: Sequence[int], rounds: int = 12, processes: int = 3) -> list[Round]:
    """Return rounds that hold these latencies in order."""
    parts = np.array_split(np.array(latencies, dtype=np.int64), rounds)
    return [
        round_of(number * processes // rounds, number * 10**9, [int(value) for value in part])
        for number, part in enumerate(parts)
        if len(part)
    ]


def normal(count: int, seed: int = 0, relative: float = 0.05) -> list[int]:
    """Return independent latencies around 10 ms."""
    return [int(value) for value in 10 * MS * (1 + relative * np.random.default_rng(seed).standard_normal(count))]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, LONGEST), min_size=1, max_size=400))
def test_percentiles_agree_with_numpy(samples: list[int]) -> None:
    """Percentiles are order statistics, as numpy's inverted distribution function; mean and extremes are numpy's."""
    call = figures_of(spread(samples)).call
    for percent, found in ((50, call.p50), (90, call.p90), (95, call.p95), (99, call.p99)):
        assert found.value == np.percentile(samples, percent, method="inverted_cdf")
        assert found.low is None or found.high is None or found.low <= found.value <= found.high
        assert (found.low is None) == (found.high is None)
        assert 1 <= found.effective <= len(samples)
    assert call.mean == pytest.approx(np.mean(samples), abs=1, rel=1e-12)
    assert (call.minimum, call.maximum, call.count) == (min(samples), max(samples), len(samples))
    assert call.interpolated_p95 == pytest.approx(np.percentile(samples, 95), abs=1, rel=1e-12)


def test_interpolated_percentiles_are_numpys_default() -> None:
    """The published method's percentiles lie between two samples; extremes are as ever."""
    samples = normal(100)
    call = figures_of(spread(samples), interpolated=True).call
    for percent, found in ((50, call.p50), (90, call.p90), (95, call.p95), (99, call.p99)):
        assert found.value == round(float(np.percentile(samples, percent)))
    assert call.p95.value == call.interpolated_p95
    assert (call.minimum, call.maximum) == (min(samples), max(samples))


def test_no_interval_is_narrower_than_that_of_independent_samples() -> None:
    """Bounds lie at or beyond those of the exact binomial interval, by SciPy's quantiles, in 20 draws."""
    low, high = binom.ppf([0.025, 0.975], 1020, 0.95)
    for seed in range(20):
        samples = sorted(normal(1020, seed))
        p95 = figures_of(spread(normal(1020, seed), rounds=60)).call.p95
        assert p95.low is not None
        assert p95.high is not None
        assert p95.low <= samples[int(low) - 1]
        assert p95.high >= samples[int(high)]


@pytest.mark.parametrize("value", [1, 10 * MS])
def test_latencies_that_are_all_the_same(value: int) -> None:
    """Ties trouble nothing: every percentile and both bounds are that value, and there is no doubt about anything."""
    found = figures_of(spread([value] * 1020, rounds=60))
    call = found.call
    assert {call.mean, call.minimum, call.maximum, call.p50.value, call.p95.value, call.p99.value} == {value}
    assert (call.p95.low, call.p95.high, call.p95.half_width) == (value, value, 0)
    assert (found.gap, found.drift, found.round_spread, found.processes_disagree) == (0, 0, 0, False)
    assert found.in_flight == 1


def test_one_round_of_one_sample() -> None:
    """The first report may be that early: figures there are, intervals there are none."""
    found = figures_of([round_of(0, 0, [5 * MS])])
    assert (found.call.count, found.call.p99.value, found.blocks, found.rounds) == (1, 5 * MS, 1, 1)
    assert (found.call.p95.low, found.call.p95.high) == (None, None)
    assert (found.process_p95, found.processes_disagree) == ((5 * MS,), False)
    assert found.calls_per_second == pytest.approx(200)


def test_throughput_of_one_thread() -> None:
    """Calls per second are those of the window that holds the samples, pauses between the calls included."""
    samples = normal(600)
    rounds = [
        replace(one, series=replace(one.series, elapsed_ns=one.series.elapsed_ns * 5 // 4)) for one in spread(samples)
    ]
    found = figures_of(rounds)
    assert found.calls_per_second == pytest.approx(600 / (1.25 * sum(samples) / 1e9), rel=1e-6)
    assert found.in_flight == pytest.approx(1 / 1.25, rel=1e-6)


@pytest.mark.parametrize("threads", [2, 8])
@pytest.mark.parametrize("idle", [0.0, 0.2])
def test_throughput_of_several_threads(threads: int, idle: float) -> None:
    """Threads that call back to back have as many calls in flight as they are; with pauses, so many fewer.

    A simulation of its own: each thread's calls follow each other with pauses after them, up to the same time.
    """
    generator = np.random.default_rng(threads)
    rounds = []
    for number in range(12):
        done: list[tuple[float, float]] = []
        for _ in range(threads):
            durations = generator.gamma(20, MS / 2, 50)
            ends = np.cumsum(durations / (1 - idle)) - durations * idle / (1 - idle)
            done += zip(ends, durations, strict=True)
        stop = sorted(end for end, _ in done)[-threads]
        inside = [(max(min(end, stop) - (end - duration), 0), duration) for end, duration in done]
        latencies = array("q", [int(duration) for _, duration in sorted(done)])
        busy, completed = sum(part for part, _ in inside), sum(part / duration for part, duration in inside)
        series = Series(latencies, int(stop), int(busy), completed)
        rounds.append(Round(number // 4, number, series))
    found = figures_of(rounds)
    assert found.in_flight == pytest.approx(threads * (1 - idle), rel=0.06)
    # 10 ms on average, and each thread has a call in flight for this part of the time.
    assert found.calls_per_second == pytest.approx(threads * (1 - idle) * 100, rel=0.05)


def test_other_kinds_of_latency_have_distributions_of_their_own() -> None:
    """End to end, device, service and queue are summarised from their own samples, and absent without any."""
    rounds = []
    for number in range(12):
        calls, service = normal(50, number), normal(50, number + 100, 0.01)
        series = Series(
            calls=array("q", [call + 20 * MS for call in calls]),
            elapsed_ns=10**9,
            busy_ns=10**9,
            completed=50,
            device=array("q", [call // 2 for call in calls]),
            service=array("q", service),
            asked_ns=array("q", range(0, 50 * 20 * MS, 20 * MS)),
        )
        rounds.append(Round(number // 4, number, series, end_to_end=normal(8, number + 200)))
    found = figures_of(rounds)

    def expect(distribution: Distribution | None, samples: Sequence[int]) -> None:
        assert distribution is not None
        assert (distribution.count, distribution.minimum, distribution.maximum) == (
            len(samples),
            min(samples),
            max(samples),
        )
        assert distribution.p95.value == np.percentile(samples, 95, method="inverted_cdf")

    expect(found.end_to_end, [value for one in rounds for value in one.end_to_end])
    expect(found.device, [value for one in rounds for value in one.series.device])
    expect(found.service, [value for one in rounds for value in one.series.service])
    expect(
        found.queue,
        [call - service for one in rounds for call, service in zip(one.series.calls, one.series.service, strict=True)],
    )
    assert found.achieved is not None
    plain = figures_of(spread(normal(600)))
    assert (plain.end_to_end, plain.device, plain.service, plain.queue, plain.achieved) == (None,) * 5


def test_kinds_that_only_some_rounds_have() -> None:
    """A round may have been too short for an end-to-end call: the others are summarised all the same."""
    rounds = spread(normal(600))
    rounds[3] = replace(rounds[3], end_to_end=[7, 9])
    found = figures_of(rounds).end_to_end
    assert found is not None
    assert (found.count, found.minimum, found.maximum, found.p95.low) == (2, 7, 9, None)


def test_processes_and_rounds_are_told_apart() -> None:
    """Each process has its own p95, and the rounds' medians their own scatter."""
    samples = [*normal(400, 1), *[int(1.3 * value) for value in normal(400, 2)], *normal(400, 3)]
    rounds = spread(samples, rounds=60)
    found = figures_of(rounds)
    parts = np.array_split(np.array(samples), 3)
    assert found.process_p95 == tuple(np.percentile(part, 95, method="inverted_cdf") for part in parts)
    assert found.processes_disagree
    medians = [np.median(one.series.calls) for one in rounds]
    assert found.round_spread == pytest.approx(np.std(medians, ddof=1) / np.median(medians))
    assert found.rounds == 60
    assert found.blocks <= found.rounds


def test_a_process_that_measured_nothing_leaves_no_trace() -> None:
    """One that was begun and died before its first round is no process of the figures."""
    progress = Progress(Design.from_measurement(Measurement()))
    rounds = [round_of(2 * number, number, normal(50, number)) for number in range(2)]
    for process in range(3):
        progress.begin(process)
        if process != 1:
            progress.add(as_samples(rounds[process // 2].series.calls), 1)
    found = figures(progress, rounds, [])
    assert len(found.process_p95) == 2
    assert found.call.count == 100


def test_drift_is_taken_over_the_rounds_as_they_began() -> None:
    """A rise by a tenth over the whole run has its sign and its size."""
    rising = [int(value * (1 + 0.1 * number / 1020)) for number, value in enumerate(normal(1020, 5, 0.01))]
    assert figures_of(spread(rising, rounds=60)).drift == pytest.approx(0.1, rel=0.2)
    assert figures_of(spread(rising[::-1], rounds=60)).drift == pytest.approx(-0.1, rel=0.2)


def test_what_was_done_besides_is_summed_up() -> None:
    """Warm-ups, settling calls, windows and the kernel's counters add up over rounds and processes."""
    rounds = [
        replace(one, settling=2, counters=Counters(1, 2, 3, 4, 5, 6, number or None))
        for number, one in enumerate(spread(normal(120)))
    ]
    progress = Progress(Design.from_measurement(Measurement()))
    progress.begin(0)
    progress.add(as_samples(rounds[0].series.calls), 1)
    warmups = [Warmup(10, 100, 77, 9, settled=True), Warmup(16, 170, 66, 9, settled=True)]
    found = figures(progress, rounds, warmups)
    assert (found.warmup_calls, found.warmup_ns, found.first_ns) == (26 + 24, 270, 77)
    assert found.warmups_settled
    assert found.measured_ns == sum(one.series.elapsed_ns for one in rounds)
    assert found.counters == Counters(12, 24, 36, 48, 60, 72, None)
    unsettled = figures(progress, rounds, [*warmups, Warmup(10, 1, 1, 1, settled=False)])
    assert not unsettled.warmups_settled
    assert figures(progress, rounds, []).first_ns is None
