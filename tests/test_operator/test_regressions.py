"""How often a gate finds a regression that there is, and one that there is not. The runs are seeded: counts repeat."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import pytest

from inferbench_operator.models.status import GateState
from operator_testing.regressions import count_states

pytestmark = pytest.mark.slow

PAIRS = 1000


def _states(factor: float) -> Counter[GateState]:
    parts = [range(start, start + PAIRS // 20) for start in range(0, PAIRS, PAIRS // 20)]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("spawn")) as pool:
        return sum(pool.map(partial(count_states, factor), parts), Counter())


def test_a_regression_of_15_percent_is_caught() -> None:
    """With a tolerance of 10 %, in more than 95 % of the pairs; the others can't be told, and none is passed."""
    found = _states(1.15)
    assert found[GateState.FAILED] > 0.95 * PAIRS
    assert found[GateState.PASSED] == 0


def test_a_change_of_3_percent_raises_no_alarm() -> None:
    """In less than 2.5 % of the pairs; nearly all are passed."""
    found = _states(1.03)
    assert found[GateState.FAILED] < 0.025 * PAIRS
    assert found[GateState.PASSED] > 0.95 * PAIRS


def test_a_change_of_just_the_tolerance_raises_few_alarms() -> None:
    """Where it is hardest to tell: the interval holds 95 %, so 2.5 % are beyond it on either side."""
    found = _states(1.10)
    assert found[GateState.FAILED] <= 0.025 * PAIRS
    assert found[GateState.UNDECIDED] > 0.9 * PAIRS
