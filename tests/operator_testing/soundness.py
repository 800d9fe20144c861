"""What must hold of every decision, whatever the facts."""

from __future__ import annotations

from datetime import datetime

from inferbench_operator.core.decide import Decision
from inferbench_operator.core.facts import Benchmark, Observed
from inferbench_operator.core.names import Reason
from inferbench_operator.models.status import BenchmarkStatus, CellState, CellStatus, ConditionStatus, ConditionType
from operator_testing.gitops import RERUN, disagreements
from operator_testing.kstatus import kstatus


def assert_sound(observed: Observed, decision: Decision, now: datetime) -> None:
    """Assert that the conditions tell what the cells do, and that whatever is waited for has an end."""
    assert decision.look_again_at is None or decision.look_again_at >= now, "the past does not come again"
    status = decision.status
    if status is None:
        return
    open_ = [entry for entry in status.results if not entry.state.terminal]
    assert kstatus_of(observed.benchmark, status) == _wanted(observed, status, open_)
    held = [entry for entry in open_ if entry.reason == Reason.QUEUED]
    going = [entry for entry in open_ if entry.state.goes_on and entry not in held]
    for entry in going:
        assert entry.deadline_time, "whatever is waited for has a deadline"
        assert entry.deadline_time > now
    suspended = any(found.type is ConditionType.SUSPENDED for found in status.conditions)
    # What a queue holds, or a person, comes back with an event; all else has to be looked at again.
    if going or (open_ and not held and not suspended):
        assert decision.look_again_at, "nobody would look again"


def kstatus_of(benchmark: Benchmark, status: BenchmarkStatus) -> str:
    """Return what tools take a benchmark for, of which the operator has seen this generation."""
    read = status.model_dump(mode="json", exclude_none=True, include={"observed_generation", "conditions", "run"})
    annotations = {RERUN: benchmark.rerun} if benchmark.rerun else {}
    raw = {"metadata": {"generation": benchmark.generation, "annotations": annotations}, "status": read}
    types = {condition["type"] for condition in read["conditions"]}
    assert not {"Reconciling", "Stalled"} <= types, "never both"
    found = kstatus(raw)
    assert not disagreements([raw], [found])
    return found


def _wanted(observed: Observed, status: BenchmarkStatus, open_: list[CellStatus]) -> str:
    false = {found.type for found in status.conditions if found.status is ConditionStatus.FALSE}
    refused = observed.benchmark.spec is None or not status.results or ConditionType.ACCEPTED in false
    bad = any(entry.state in {CellState.FAILED, CellState.SKIPPED} for entry in status.results)
    return "InProgress" if open_ else "Failed" if refused or bad else "Current"
