"""The detectors behind the doubts: trends, second modes, processes that differ, queues that grow; and the histogram."""

from __future__ import annotations

import json
import tracemalloc
from array import array
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import floor, log
from zlib import decompress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.stats import kendalltau, theilslopes

from inferbench_runner.adaptive import Design
from inferbench_runner.contract import Load, LoadMode, Measurement
from inferbench_runner.interval import Ordered, Samples, disagree
from inferbench_runner.measure import Series
from inferbench_runner.summary import Round, achieved_rate, drift, gap_at_p95, histogram
from test_runner.builders import MS

ROUNDS = 60
BASE = 10 * MS

Noise = NDArray[np.float64]


def dependent(generator: np.random.Generator, count: int, correlation: float, deviation: float) -> Noise:
    """Return a stationary autoregressive series around 0."""
    steps = generator.standard_normal(count) * deviation * np.sqrt(1 - correlation**2)
    start = generator.standard_normal() * deviation
    series: Noise = lfilter([1], [1, -correlation], steps, zi=[correlation * start])[0]
    return series


def medians(latencies: Noise) -> tuple[list[int], list[float]]:
    """Return the beginning and the median of each round, of samples that follow each other without a pause."""
    parts = np.array_split(latencies, ROUNDS)
    begun = np.concatenate([[0], np.cumsum([part.sum() for part in parts])[:-1]])
    return [int(time) for time in begun], [float(np.median(part)) for part in parts]


@pytest.mark.parametrize("change", [0.1, -0.1])
def test_a_change_of_a_tenth_is_found_with_its_size_and_sign(change: float) -> None:
    """Ten percent over the run, under noise of 2 %, are found each time, and told to a fifth of their size.

    The size is that of SciPy's Theil-Sen slope, from the beginning of the first round to that of the last.
    """
    for seed in range(20):
        noise = np.random.default_rng(seed).standard_normal(1020)
        times, found = medians(BASE * (1 + change * np.arange(1020) / 1020) * (1 + 0.02 * noise))
        size = drift(times, found)
        assert size == pytest.approx(change, rel=0.2)
        expected = theilslopes(found, times).slope * times[-1] / np.median(found)
        assert size == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("correlation", "most"),
    [
        pytest.param(0.0, 0, id="independent latencies"),
        pytest.param(0.9, 3, id="latencies that depend on each other within a round"),
    ],
)
def test_noise_is_no_drift(correlation: float, most: int) -> None:
    """Stationary latencies show no drift that counts, in 100 series."""
    found = 0
    for seed in range(100):
        noise = dependent(np.random.default_rng(seed), 1020, correlation, 0.02)
        found += abs(drift(*medians(BASE * (1 + noise)))) >= 0.05
    assert found <= most


def test_a_drift_counts_where_it_is_no_chance() -> None:
    """The trend is significant at 1 in 1,000 by Kendall's test, as SciPy has it, or it counts as nothing."""
    told = 0
    for seed in range(200):
        generator = np.random.default_rng(seed)
        found = [float(value) for value in 100 + 0.05 * np.arange(40) + generator.standard_normal(40)]
        p = kendalltau(range(40), found, method="asymptotic").pvalue
        # Between the two limits the correction for continuity decides.
        if p < 0.0008:
            assert drift(range(40), found) > 0
            told += 1
        elif p > 0.0013:
            assert drift(range(40), found) == 0
    assert 20 < told < 180


@pytest.mark.parametrize(
    "found",
    [
        pytest.param([], id="no round"),
        pytest.param([5.0], id="one round"),
        pytest.param([1.0, 2.0, 3.0], id="three rounds that rise by chance one time in three"),
        pytest.param([7.0] * 50, id="rounds that are all the same"),
    ],
)
def test_too_little_is_no_drift(found: list[float]) -> None:
    """Where nothing can be told, nothing is."""
    assert drift(range(len(found)), found) == 0


def test_a_drift_over_thousands_of_rounds_takes_little_memory() -> None:
    """An hour of rounds of a sixth of a second is 20,000: their pairs must not be laid out all at once."""
    count = 4000
    noise = np.random.default_rng(0).standard_normal(count)
    found = [float(value) for value in 100 + 10 * np.arange(count) / count + noise]
    tracemalloc.start()
    try:
        size = drift(range(count), found)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size == pytest.approx(0.095, rel=0.05)
    assert peak < 100 * 2**20


def gap(latencies: Noise) -> float:
    """Return the gap at the p95 of samples that are spread over rounds."""
    ordered = Ordered.from_blocks(np.array_split(latencies.astype(np.int64), ROUNDS))
    return gap_at_p95(ordered, ordered.percentile(95))


def two_modes(share: float, factor: float, count: int) -> Callable[[np.random.Generator], Noise]:
    """Return a source of latencies with 1 % noise, a share of which is slower by a factor, at random."""

    def draw(generator: np.random.Generator) -> Noise:
        slow = generator.random(count) < share
        return BASE * np.where(slow, factor, 1) * (1 + 0.01 * generator.standard_normal(count))

    return draw


@pytest.mark.parametrize("count", [1020, 3000, 10_000])
@pytest.mark.parametrize("factor", [1.3, 3.0])
def test_a_second_mode_at_the_p95_is_found(count: int, factor: float) -> None:
    """One call in twenty is slower, so the p95 jumps between two values however many samples there are."""
    sizes = [gap(two_modes(0.05, factor, count)(np.random.default_rng(seed))) for seed in range(20)]
    assert sum(size > 0 for size in sizes) >= 18
    for size in sizes:
        # From one mode's slowest call to the other one's fastest; the p95 is one of the two.
        assert size == 0 or 0.5 * (factor - 1) / factor < size < factor - 1


@pytest.mark.parametrize(
    "draw",
    [
        pytest.param(two_modes(0.03, 3, 3000), id="3 % of calls three times slower: the p95 is in the fast mode"),
        pytest.param(two_modes(0.10, 3, 3000), id="10 % of calls three times slower: the p95 is in the slow mode"),
        pytest.param(lambda generator: BASE * np.exp(0.2 * generator.standard_normal(1020)), id="a lognormal tail"),
        pytest.param(lambda generator: BASE * (1 + 0.2 * generator.exponential(size=1020)), id="an exponential tail"),
        pytest.param(lambda generator: BASE * (1 + generator.exponential(size=1020)), id="a long exponential tail"),
        pytest.param(
            lambda generator: np.append(BASE * (1 + 0.01 * generator.standard_normal(1019)), 300.0 * MS),
            id="a single stall",
        ),
        pytest.param(
            lambda generator: np.append(BASE * (1 + 0.01 * generator.standard_normal(1010)), 30.0 * BASE * np.ones(10)),
            id="stalls of one call in a hundred",
        ),
        pytest.param(lambda generator: BASE + generator.integers(0, 2, 1020), id="a clock with large steps"),
        pytest.param(lambda _: np.full(1020, float(BASE)), id="latencies that are all the same"),
        pytest.param(two_modes(0.05, 3, 129), id="too few samples to speak of a p95"),
    ],
)
def test_no_second_mode_is_seen_where_none_is_at_the_p95(draw: Callable[[np.random.Generator], Noise]) -> None:
    """Tails are no modes, and a mode elsewhere leaves the p95 alone: in 20 draws, none."""
    assert [gap(draw(np.random.default_rng(seed))) for seed in range(20)] == [0] * 20


def processes(factors: Sequence[float], generator: np.random.Generator, calls: int = 500) -> list[list[Samples]]:
    """Return the rounds of processes whose latencies are slower by these factors, with 2 % noise."""
    return [
        np.array_split((BASE * factor * (1 + 0.02 * generator.standard_normal(calls))).astype(np.int64), ROUNDS // 3)
        for factor in factors
    ]


def test_a_process_that_is_a_tenth_slower_is_found() -> None:
    """With 500 samples each, one of three processes that is 10 % slower, or faster, shows in 20 draws of 20."""
    for factor in (1.1, 0.9):
        assert all(disagree(processes([1, 1, factor], np.random.default_rng(seed)), 95) for seed in range(20))


def test_equal_processes_do_not_disagree() -> None:
    """Of 100 draws of three equal processes at least 97 say so."""
    assert sum(disagree(processes([1, 1, 1], np.random.default_rng(seed)), 95) for seed in range(100)) <= 3


def test_processes_that_know_little_do_not_disagree() -> None:
    """Without an interval of its own a process can't disagree within its range; without samples it says nothing."""
    few = [[np.array([100, 200])], [np.array([150, 300])], []]
    assert not disagree(few, 95)
    assert not disagree([], 95)
    assert disagree([[np.array([100, 200])], [np.array([201, 300])]], 95)


OPEN = Design.from_measurement(Measurement(load=Load(mode=LoadMode.OPEN, rate_per_second=1000)))
"""How an open loop is measured: so many rounds of so many arrivals, each of which begins with an empty queue."""


def queue(load: float, generator: np.random.Generator, calls: int = OPEN.quota.calls) -> Round:
    """Return a round of an open loop whose Poisson arrivals, so much of the capacity, meet calls of equal length.

    A simulation of its own: each call starts when it is due or when the one before it has ended.
    """
    due = np.cumsum(generator.exponential(MS / load, calls)).astype(np.int64)
    latencies, free = array("q"), 0
    for time in due:
        free = max(int(time), free) + MS
        latencies.append(free - int(time))
    series = Series(
        latencies,
        free,
        busy_ns=calls * MS,
        completed=calls,
        service=array("q", [MS] * calls),
        asked_ns=array("q", (int(time) for time in due)),
    )
    return Round(process=0, begun_ns=0, series=series)


def run_of_queues(load: float, generator: np.random.Generator) -> list[Round]:
    """Return the rounds of a shape's whole run."""
    return [queue(load, generator) for _ in range(OPEN.processes * OPEN.rounds)]


@pytest.mark.parametrize("load", [0.3, 0.5, 0.7, 0.9])
def test_a_long_queue_that_does_not_grow_keeps_the_rate(load: float) -> None:
    """Up to 90 % of the capacity calls wait, at times for long, and yet at least 99 % of the rate counts as reached."""
    for seed in range(10):
        generator = np.random.default_rng(seed)
        assert 0.99 <= achieved_rate(run_of_queues(load, generator)) <= 1


@pytest.mark.parametrize("load", [1.05, 1.2, 2.0])
def test_a_queue_that_grows_has_the_capacity_for_its_rate(load: float) -> None:
    """Beyond the capacity the rate reached is what the server can do: the reciprocal of the load, to 4 %."""
    for seed in range(10):
        generator = np.random.default_rng(seed)
        reached = achieved_rate(run_of_queues(load, generator))
        assert reached < 0.99
        assert reached == pytest.approx(1 / load, rel=0.04)


def test_a_single_arrival_tells_nothing_about_the_rate() -> None:
    """Without two arrivals in a round there is no slope: the rate counts as reached."""
    assert achieved_rate([queue(2, np.random.default_rng(0), calls=1)]) == 1


def test_arrivals_that_were_not_called_count_as_missed() -> None:
    """What was due but not served before the round's end was asked for all the same."""
    one = queue(0.5, np.random.default_rng(0))
    asked = len(one.series.asked_ns)
    kept = replace(one.series, calls=one.series.calls[:100], service=one.series.service[:100])
    assert achieved_rate([Round(0, 0, kept)]) == pytest.approx(100 / asked)


def decoded(text: str) -> dict[int, int]:
    """Return a histogram's counts by bucket."""
    return dict(json.loads(decompress(b64decode(text))))


@settings(deadline=None)
@given(st.lists(st.integers(1, 86_400 * 10**9), min_size=1, max_size=200))
def test_a_histogram_decodes_to_the_counts(samples: list[int]) -> None:
    """Each latency is counted once, in the bucket of its logarithm to the base 1.01, in ascending order of buckets."""
    expected: dict[int, int] = {}
    for sample in sorted(samples):
        bucket = floor(log(sample) / log(1.01))
        expected[bucket] = expected.get(bucket, 0) + 1
    found = decoded(histogram(np.array(samples)))
    assert found == expected
    assert list(found) == sorted(found)


def test_a_histogram_takes_zero_and_stays_small() -> None:
    """A latency below the clock's step counts as one nanosecond; a million latencies take less than a kilobyte or two.

    They spread over a factor of ten, which is 231 buckets.
    """
    assert decoded(histogram(np.array([0, 1]))) == {0: 2}
    many = BASE * np.exp(0.3 * np.random.default_rng(0).standard_normal(1_000_000))
    text = histogram(many.astype(np.int64))
    assert sum(decoded(text).values()) == 1_000_000
    assert len(text) < 2048
