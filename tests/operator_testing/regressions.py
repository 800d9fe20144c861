"""Simulated pairs of runs, of which the second is slower by a known factor, and what a gate says of them.

Here and not in the test, so that the processes that share the work can import it.
"""

from __future__ import annotations

from collections import Counter

from inferbench_operator.core import gates
from inferbench_operator.core.baselines import Baseline
from inferbench_operator.core.measured import Labels, Measured
from inferbench_operator.core.ratio import Interval
from inferbench_operator.models.gates import BaselineKind, Gate, GateMetric
from inferbench_operator.models.status import GateState
from inferbench_runner.contract import Precision, Verdict
from test_runner.latency_processes import DEPENDENT, INDEPENDENT, MEDIAN_NS, Source, measured

SOURCES: dict[str, Source] = {name: source for name, (source, _) in (INDEPENDENT | DEPENDENT).items()}
"""As on real hosts: latencies with heavy tails, calls that are hit by others, hosts that are slow for a while."""

_CELL = Labels("bert", "inf2", Precision.FP32, 128, 1)
_GATE = Gate(name="no-regression", metric=GateMetric.P95, baseline=BaselineKind.PREVIOUS_RUN, max_increase_percent=10)


def count_states(factor: float, pairs: range) -> Counter[GateState]:
    """Return how often a gate with a tolerance of 10 % passes, fails or can't tell, over pairs of all sources in turn.

    Each run measures by the default settings, so until its p95 is known to 2 %.
    """
    found: Counter[GateState] = Counter()
    for pair in pairs:
        source = list(SOURCES.values())[pair % len(SOURCES)]
        before, after = _cell(source, 2 * pair, 1), _cell(source, 2 * pair + 1, factor)
        found[gates.judge(_GATE, {_CELL: after}, Baseline("the run before", {_CELL: before})).state] += 1
    return found


def _cell(source: Source, seed: int, factor: float) -> Measured:
    p95 = measured(source, seed, MEDIAN_NS * factor)
    return Measured(_CELL, Verdict.VALID, {GateMetric.P95: Interval(p95.value, p95.low, p95.high)})
