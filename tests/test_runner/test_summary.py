"""Percentiles and their intervals, against independent code."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from inferbench_runner.contract import Verdict
from inferbench_runner.summary import interval_ranks, summarise

NANOSECONDS = st.integers(0, 10**13)


@pytest.mark.parametrize(
    ("count", "ranks"),
    [
        (71, None),
        (72, (64, 72)),
        (100, (90, 100)),
        (200, (184, 197)),
        (500, (465, 485)),
        (1_000, (936, 964)),
        (2_000, (1880, 1920)),
        (5_000, (4719, 4781)),
        (10_000, (9457, 9543)),
    ],
)
def test_p95_ranks_are_the_published_ones(count: int, ranks: tuple[int, int] | None) -> None:
    """The ranks of p95's 95 % interval agree with tables of the exact binomial interval."""
    assert interval_ranks(count, 95) == ranks


@pytest.mark.parametrize(("percent", "fewest"), [(50, 6), (90, 36), (95, 72), (99, 368)])
def test_an_interval_needs_enough_samples(percent: int, fewest: int) -> None:
    """Below the smallest sample for a two-sided interval there is none, from there on there is one."""
    assert interval_ranks(fewest - 1, percent) is None
    assert interval_ranks(fewest, percent) is not None


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 1_000_000), st.sampled_from([50, 90, 95, 99]))
def test_ranks_agree_with_scipy(count: int, percent: int) -> None:
    """The ranks are exactly those that SciPy's binomial quantiles give, for any number of samples."""
    low, high = binom.ppf([0.025, 0.975], count, percent / 100)
    expected = (int(low), int(high) + 1)
    assert interval_ranks(count, percent) == (expected if low >= 1 and high < count else None)


@settings(deadline=None)
@given(st.lists(NANOSECONDS, min_size=1, max_size=400))
def test_percentiles_agree_with_numpy(samples: list[int]) -> None:
    """Percentile, mean and extremes are numpy's, with numpy's inverted distribution function."""
    summary = summarise(samples)
    for percent, found in ((50, summary.p50), (90, summary.p90), (95, summary.p95), (99, summary.p99)):
        assert found.value == np.percentile(samples, percent, method="inverted_cdf")
        if found.low is not None and found.high is not None:
            assert found.low <= found.value <= found.high
    assert summary.mean == pytest.approx(np.mean(samples), abs=0.5, rel=1e-12)
    assert (summary.minimum, summary.maximum, summary.count) == (min(samples), max(samples), len(samples))


def test_the_interval_covers_as_often_as_it_says() -> None:
    """The interval from 200 independent samples holds the true p95 in about 95 % of trials or more."""
    generator = random.Random(7)  # noqa: S311  # a simulation
    true_p95 = 950_000_000
    summaries = [summarise([generator.randrange(10**9) for _ in range(200)]) for _ in range(400)]
    covered = sum(s.p95.low <= true_p95 <= s.p95.high for s in summaries if s.p95.low and s.p95.high)
    assert covered / 400 > 0.925


@pytest.mark.parametrize(("count", "verdict"), [(129, Verdict.INCONCLUSIVE), (130, Verdict.VALID)])
def test_the_verdict_follows_the_number_of_samples(count: int, verdict: Verdict) -> None:
    """A p95 from fewer than 130 samples is a hint only."""
    assert summarise([1] * count).verdict is verdict
