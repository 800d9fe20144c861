"""Ratios of figures that are uncertain, and their mean."""

from __future__ import annotations

import random
from math import exp, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferbench_operator.core.ratio import Interval, geometric_mean, ratio

POSITIVE = st.floats(min_value=1, max_value=1e6)
SPREAD = st.floats(min_value=0, max_value=0.5)


@st.composite
def intervals(draw: st.DrawFn) -> Interval:
    """Draw a figure with any interval around it."""
    value, below, above = draw(POSITIVE), draw(SPREAD), draw(SPREAD)
    return Interval(value, value * exp(-below), value * exp(above))


def test_symmetrical_intervals_add_up_as_errors_do() -> None:
    """Three and four per cent make five, on the logarithmic scale."""
    found = ratio(Interval(200, 200 * exp(-0.03), 200 * exp(0.03)), Interval(100, 100 * exp(-0.04), 100 * exp(0.04)))
    assert found.value == pytest.approx(2)
    assert found.low == pytest.approx(2 * exp(-0.05))
    assert found.high == pytest.approx(2 * exp(0.05))


@given(intervals(), intervals())
def test_either_may_be_the_baseline(one: Interval, other: Interval) -> None:
    """The ratio the other way round has the inverse interval, turned over."""
    there, back = ratio(one, other), ratio(other, one)
    assert there.value * back.value == pytest.approx(1)
    assert there.low
    assert there.high
    assert there.low * (back.high or 0) == pytest.approx(1)
    assert there.low <= there.value <= there.high


def test_without_an_interval_there_is_none() -> None:
    """The ratio itself there is."""
    assert ratio(Interval(3), Interval(2, 1, 3)) == Interval(1.5)


def test_a_bound_of_zero_is_no_error() -> None:
    """It makes the ratio as good as unbounded."""
    found = ratio(Interval(3, 0, 4), Interval(2, 1, 3))
    assert found.low == pytest.approx(0, abs=1e-6)


@settings(deadline=None)
@given(st.lists(POSITIVE, min_size=1, max_size=20))
def test_the_geometric_mean_of_inverses_is_the_inverse(values: list[float]) -> None:
    """Which the arithmetic mean of ratios is not."""
    there = geometric_mean([Interval(value) for value in values])
    back = geometric_mean([Interval(1 / value) for value in values])
    assert there.value * back.value == pytest.approx(1)


def test_one_ratio_has_its_own_interval() -> None:
    """Within the chance of two thousand draws."""
    found = geometric_mean([Interval(2, 2 / 1.1, 2 * 1.1)])
    assert found.value == pytest.approx(2)
    assert found.low == pytest.approx(2 / 1.1, rel=0.01)
    assert found.high == pytest.approx(2 * 1.1, rel=0.01)


def test_the_interval_holds_the_true_mean_as_often_as_it_says() -> None:
    """Of twenty ratios that scatter around it, each uncertain; a percentile bootstrap of twenty is a little narrow."""
    generator = random.Random(1)  # noqa: S311 - no secret
    hits, studies, truth = 0, 300, log(3)
    for _ in range(studies):
        sample = [generator.gauss(truth, 0.4) + generator.gauss(0, 0.1) for _ in range(20)]
        found = geometric_mean([Interval(exp(one), exp(one - 0.196), exp(one + 0.196)) for one in sample])
        hits += (found.low or 0) <= 3 <= (found.high or 0)
    assert 0.90 <= hits / studies <= 0.99


def test_the_same_ratios_have_the_same_interval() -> None:
    """A status that is computed twice must not differ."""
    ratios = [Interval(1.0, 0.9, 1.1), Interval(3.0, 2.0, 4.0)]
    assert geometric_mean(ratios) == geometric_mean(ratios)
