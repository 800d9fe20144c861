"""Gates and comparisons on the embedded cluster: what a person sees who waits for a benchmark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from cluster import NodeAgent, Pod
from cluster.nodes import cpu_node
from cluster.observing import eventually
from cluster.outcomes import Exits, plan_of
from e2e_harness import Harness, benchmark
from inferbench_runner.contract import CompactReport
from operator_testing.builders import measured

pytestmark = pytest.mark.e2e

LIMIT = {"name": "interactive", "metric": "P95", "maxMicroseconds": 6000}
REGRESSION = {"name": "no-regression", "metric": "P95", "maxIncreasePercent": 10}


def _measures(agent: NodeAgent, p95: Mapping[str, int]) -> None:
    """Let runners find a p95, in microseconds, that depends on the benchmark that they are of."""

    def outcome(pod: Pod) -> Exits | None:
        name = pod.labels.get("inferbench.dev/benchmark", "")
        if name not in p95:
            return None
        value, plan = p95[name], plan_of(pod)
        assert plan
        cells = tuple(measured(shape.cell, value) for shape in plan.shapes)
        return Exits(message=CompactReport(measured=cells).model_dump_json(exclude_none=True))

    agent.add_node(cpu_node("simulated", local=False))
    agent.script(outcome)


def _states(harness: Harness, name: str) -> dict[str, tuple[str, str]]:
    return {gate["name"]: (gate["state"], gate["reason"]) for gate in harness.status(name).get("gates", [])}


def _finished(harness: Harness, name: str, **spec: Any) -> None:  # noqa: ANN401 - any field
    harness.apply(benchmark(name, **spec))
    harness.wait_until_finished(name)


def test_a_gate_stops_whoever_waits_until_it_is_kept(harness: Harness) -> None:
    """A missed one is told in the condition, in the column and in one Event; a wider one needs no other run."""
    _measures(harness.agent, {"study": 7000})
    _finished(harness, "study", gates=[LIMIT])
    assert _states(harness, "study") == {"interactive": ("Failed", "LimitExceeded")}
    for kind, status, reason in (
        ("Succeeded", "True", "RunSucceeded"),
        ("GatesPassed", "False", "GateFailed"),
        ("Ready", "False", "GateFailed"),
        ("Stalled", "True", "GateFailed"),
    ):
        found = harness.condition("study", kind)
        assert (found["status"], found["reason"]) == (status, reason)
    run = harness.status("study")["run"]

    def told() -> list[str]:
        return [
            event["message"]
            for event in harness.list("events")
            if (event["involvedObject"]["name"], event["reason"]) == ("study", "GateFailed")
        ]

    message = eventually("the gate is told of", told)
    assert len(message) == 1
    assert "P95 7.000 ms [6.950 ms, 7.050 ms], at most 6.000 ms asked for" in message[0]

    harness.apply(benchmark("study", gates=[LIMIT], gateMode="Report"))
    eventually("it only reports", lambda: harness.condition("study", "Ready").get("status") == "True")
    assert harness.condition("study", "GatesPassed")["status"] == "False"
    harness.apply(benchmark("study", gates=[LIMIT | {"maxMicroseconds": 8000}]))
    eventually("it is kept", lambda: harness.condition("study", "GatesPassed").get("status") == "True")
    assert harness.condition("study", "Ready")["status"] == "True"
    assert harness.condition("study", "Stalled") == {}
    assert harness.status("study")["run"] == run


def test_a_regression_is_found_from_run_to_run(harness: Harness) -> None:
    """The first run has nothing to compare with, the second is as fast, the third is slower, and so is not ready."""
    p95 = {"study": 5000}
    _measures(harness.agent, p95)
    gate = REGRESSION | {"baseline": "PreviousRun"}
    _finished(harness, "study", gates=[gate])
    assert _states(harness, "study") == {"no-regression": ("Undecided", "BaselineMissing")}
    assert harness.condition("study", "Ready")["status"] == "True"
    for image, value, state in (("runner:2", 5100, "Passed"), ("runner:3", 6000, "Failed")):
        p95["study"] = value
        _finished(harness, "study", gates=[gate], runner={"image": image})
        assert _states(harness, "study")["no-regression"][0] == state
    assert harness.condition("study", "Ready")["reason"] == "GateFailed"
    reasons = {event["reason"] for event in harness.list("events") if event["involvedObject"]["name"] == "study"}
    assert "Regression" in reasons
    assert [past["reason"] for past in harness.status("study")["history"]] == ["RunSucceeded", "RunSucceeded"]


def test_other_benchmarks_and_stored_figures_are_baselines(harness: Harness) -> None:
    """One that is not there yet is waited for; a reference is a copy of what a benchmark has shown."""
    _measures(harness.agent, {"study": 6000, "main": 5000})
    gates = [
        REGRESSION | {"baseline": "Benchmark", "baselineName": "main"},
        REGRESSION | {"name": "stored", "baseline": "ConfigMap", "baselineName": "reference", "onUndecided": "Fail"},
    ]
    _finished(harness, "study", gates=gates)
    assert _states(harness, "study") == {
        "no-regression": ("Undecided", "BaselineMissing"),
        "stored": ("Undecided", "BaselineMissing"),
    }
    assert "There is no ConfigMap reference" in harness.condition("study", "Ready")["message"]

    _finished(harness, "main")
    shown = json.dumps(harness.status("main")["results"])
    harness.kubectl("create", "configmap", "reference", f"--from-literal=reference.json={shown}")
    harness.kubectl("annotate", "ib", "study", "touched=now")
    eventually(
        "both are judged",
        lambda: _states(harness, "study"),
        lambda states: set(states.values()) == {("Failed", "Regression")},
    )
    harness.kubectl("delete", "ib", "main")
    harness.kubectl("delete", "configmap", "reference")
    harness.kubectl("annotate", "ib", "study", "touched=again", "--overwrite")
    assert set(_states(harness, "study").values()) == {("Failed", "Regression")}


def test_accelerators_are_compared_in_the_status(harness: Harness) -> None:
    """Their geometric mean, and that there is one."""
    _measures(harness.agent, {"study": 5000})
    accelerators = [{"name": "one", "kind": "CPU"}, {"name": "two", "kind": "CPU", "execution": "Compile"}]
    _finished(harness, "study", accelerators=accelerators, compare={"baseline": "one"})
    (found,) = harness.status("study")["comparison"]
    assert (found["accelerator"], found["baseline"], found["cells"], found["speedup"]) == ("two", "one", 2, "1.0000")
