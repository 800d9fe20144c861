"""Percentiles and their intervals, against SciPy, NumPy and brute force."""

from __future__ import annotations

from math import isclose

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.signal import lfilter

from inferbench_runner.interval import (
    ERROR,
    Ordered,
    Samples,
    autocorrelation_time,
    blocks,
    cut,
    disagree,
    interval_ranks,
    pooled,
    rank,
    student,
    widened,
)

SAMPLES = st.lists(st.integers(0, 10**12), min_size=1, max_size=300)


def series(*values: int) -> Samples:
    """Return an array of nanoseconds."""
    return np.array(values, dtype=np.int64)


def correlated(count: int, correlation: float, seed: int = 1) -> Samples:
    """Return an autoregressive series of first order around a million nanoseconds, 5 % wide."""
    generator = np.random.default_rng(seed)
    noise = generator.standard_normal(count) * np.sqrt(1 - correlation**2)
    noise[0] = generator.standard_normal()
    return (1e6 * (1 + 0.05 * lfilter([1], [1, -correlation], noise))).astype(np.int64)


@given(SAMPLES, st.sampled_from([1, 5, 50, 90, 95, 99]))
def test_a_percentile_is_numpys_inverted_cdf(numbers: list[int], percent: int) -> None:
    """The value is that of `numpy.percentile` with the method `inverted_cdf`.

    NumPy multiplies in floating point, so the ratio that it gets is one for which p*n is a whole number exactly.
    """
    ordered = Ordered.from_blocks([np.array(numbers)])
    cumulated = np.arange(1, len(numbers) + 1) * 100
    brute = np.sort(np.array(numbers))[np.argmax(cumulated >= percent * len(numbers))]
    assert ordered.percentile(percent).value == brute
    if percent * len(numbers) % 100:
        assert ordered.percentile(percent).value == np.percentile(numbers, percent, method="inverted_cdf")


@given(SAMPLES, st.integers(1, 99))
def test_a_percentile_is_the_least_value_that_enough_samples_do_not_exceed(numbers: list[int], percent: int) -> None:
    """By definition: at least p*n samples are at most the percentile, and no smaller sample has that property."""
    value = Ordered.from_blocks([np.array(numbers)]).percentile(percent).value
    enough = [number for number in numbers if 100 * sum(other <= number for other in numbers) >= percent * len(numbers)]
    assert value == min(enough)


@given(st.lists(SAMPLES, min_size=2, max_size=30))
def test_an_interval_holds_its_percentile(groups: list[list[int]]) -> None:
    """Whatever the samples and blocks, low <= value <= high, and both are samples."""
    every = {number for group in groups for number in group}
    for percent in (50, 90, 95, 99):
        found = Ordered.from_blocks([np.array(group) for group in groups]).percentile(percent)
        assert (found.low is None) == (found.high is None)
        assert 1 <= found.effective <= sum(map(len, groups))
        if found.low is not None and found.high is not None:
            assert found.low <= found.value <= found.high
            assert {found.low, found.value, found.high} <= every


@given(st.integers(1, 20_000), st.sampled_from([50, 90, 95, 99]), st.sampled_from([0.05, 0.025, 0.05 / 6, 0.001]))
def test_ranks_are_those_of_the_exact_binomial_distribution(count: int, percent: int, error: float) -> None:
    """Both tails, computed by SciPy, hold at most half the error, and one rank further in they hold more."""
    ranks = interval_ranks(count, percent, error)
    below = stats.binom(count, percent / 100)
    slack = 1e-9
    if ranks is None:
        assert below.cdf(0) > error / 2 - slack or below.sf(count - 1) > error / 2 - slack
        return
    low, high = ranks
    assert below.cdf(low - 1) <= error / 2 + slack < below.cdf(low) + 2 * slack
    assert below.sf(high - 1) <= error / 2 + slack < below.sf(high - 2) + 2 * slack


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(100, 90, 100), (200, 184, 197), (500, 465, 485), (1000, 936, 964), (2000, 1880, 1920), (10_000, 9457, 9543)],
)
def test_ranks_of_p95_are_the_published_ones(count: int, low: int, high: int) -> None:
    """Exact order-statistic ranks at 95 %, up to one rank where the tables round to the nearer tail."""
    found = interval_ranks(count, 95)
    assert found is not None
    assert abs(found[0] - low) <= 1
    assert abs(found[1] - high) <= 1


@pytest.mark.parametrize(("percent", "fewest"), [(90, 36), (95, 72), (99, 368)])
def test_too_few_samples_have_no_interval(percent: int, fewest: int) -> None:
    """The smallest n with a two-sided 95 % interval is the one at which p^n falls to 2.5 %."""
    assert (percent / 100) ** fewest <= ERROR / 2 < (percent / 100) ** (fewest - 1)
    assert interval_ranks(fewest, percent)
    assert interval_ranks(fewest - 1, percent) is None


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 20, 61, 400])
@pytest.mark.parametrize("error", [0.05, 0.025, 0.001, 1e-5])
def test_students_t_is_scipys(freedom: int, error: float) -> None:
    """The closed form and its bisection agree with SciPy's quantile."""
    assert isclose(student(freedom, error), stats.t.isf(error / 2, freedom), rel_tol=1e-6)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8, 0.95])
def test_autocorrelation_time_is_that_of_the_process(correlation: float) -> None:
    """For an autoregressive process of first order it is (1 + r) / (1 - r), in closed form."""
    series = correlated(200_000, correlation).astype(float)
    found = autocorrelation_time([series - series.mean()])
    assert found == pytest.approx((1 + correlation) / (1 - correlation), rel=0.1)


def test_a_stall_does_not_hide_dependence() -> None:
    """One call of a thousand times the latency leaves the blocks of a dependent series as long as they were."""
    plain, stalled = correlated(6000, 0.99), correlated(6000, 0.99)
    stalled[2500] *= 1000
    assert max(cut([np.array_split(plain, 60)])[0]) == max(cut([np.array_split(stalled, 60)])[0]) > 1


def test_constant_latencies_are_independent() -> None:
    """Without any variance there is no dependence, and the interval is the one value."""
    same = [series(*[500] * 50) for _ in range(20)]
    assert cut([same]) == [[1] * 20]
    found = Ordered.from_blocks(same).percentile(95)
    assert (found.low, found.value, found.high) == (500, 500, 500)


def test_rounds_are_joined_as_far_as_dependence_reaches() -> None:
    """Independent rounds are blocks of their own; an autocorrelation time of 200 samples joins rounds of 50."""
    rounds = 100
    independent = np.array_split(correlated(5000, 0.0), rounds)
    dependent = np.array_split(correlated(5000, 0.99), rounds)
    assert max(cut([independent])[0]) <= 2
    joined = cut([dependent])[0]
    assert sum(joined) == rounds
    assert 3 <= min(joined) <= 10


def test_blocks_never_reach_from_one_process_into_another() -> None:
    """Every block holds rounds of one process, in order, and nothing is lost."""
    first, second = [series(1, 2), series(3, 4), series(5, 6)], [series(7), series(8), series(9)]
    found = blocks([first, [], second], [[2, 1], [3]])
    assert [block.tolist() for block in found] == [[1, 2, 3, 4], [5, 6], [7, 8, 9]]


@pytest.mark.parametrize("shift", [2_000, 500_000])
def test_an_interval_holds_the_percentiles_of_processes_that_differ(shift: int) -> None:
    """A shift that lasts is no dependence: the interval reaches from the fastest to the slowest, and no further.

    The noise is 0.1 %, so that a shift of 0.2 % is beyond doubt, and narrow all the same.
    """
    quiet = [(correlated(1000, 0.0, seed) - 1_000_000) // 50 + 1_000_000 + seed * shift for seed in range(3)]
    shifted = [np.array_split(series, 20) for series in quiet]
    assert disagree(shifted, 95)
    found = widened(pooled(shifted).percentile(95), shifted, 95)
    own = [int(np.percentile(series, 95, method="inverted_cdf")) for series in quiet]
    assert found.low is not None
    assert found.high is not None
    assert min(own) * 0.995 < found.low <= min(own)
    assert max(own) <= found.high < max(own) * 1.005


def test_processes_that_are_alike_seldom_disagree() -> None:
    """Of 300 times three equal processes at most a few are held to differ: the rule's error is 1 %."""
    found = 0
    for seed in range(300):
        parts = np.array_split(correlated(1200, 0.0, seed), 60)
        found += disagree([parts[:20], parts[20:40], parts[40:]], 95)
    assert found <= 9


def test_dependent_samples_count_for_fewer() -> None:
    """The effective number of samples for p95 falls with dependence, and is about n where there is none.

    The true factor for p95 follows from the bivariate normal distribution of two samples at each lag.
    """
    correlation, count = 0.8, 60_000
    rounds = np.array_split(correlated(count, correlation), 300)
    found = Ordered.from_blocks(blocks([rounds], cut([rounds]))).effective(95)
    limit = stats.norm.ppf(0.95)
    factor = 1.0
    for lag in range(1, 40):
        both = stats.multivariate_normal([0, 0], [[1, correlation**lag], [correlation**lag, 1]]).cdf([limit, limit])
        factor += 2 * (both - 0.95**2) / (0.95 * 0.05)
    # The estimate leans on neighbouring levels too, where dependence is stronger, and scatters by a tenth.
    assert 0.6 * count / factor < found < 1.15 * count / factor
    independent = np.array_split(correlated(count, 0.0), 300)
    assert Ordered.from_blocks(independent).effective(95) > 0.8 * count


@pytest.mark.parametrize(("count", "percent", "wanted"), [(20, 95, 19), (100, 95, 95), (101, 95, 96), (1, 99, 1)])
def test_a_rank_is_never_one_too_high(count: int, percent: int, wanted: int) -> None:
    """0.95 * 20 is 19, also where floating point makes it a little more."""
    assert rank(count, percent) == wanted
