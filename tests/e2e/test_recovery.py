"""What happens when things break: the operator, the runner, the capacity, the user's mind."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from cluster import ControlPlane, NodeAgent
from cluster.nodes import cpu_node, instance_node
from cluster.observing import eventually
from cluster.operator_process import OperatorProcess
from cluster.outcomes import Exits, in_turn, killed, measured, measured_report, plan_of, report_message
from cluster.pods import Pod
from e2e_harness import Harness, Json, benchmark
from inferbench_runner.contract import CompactReport

pytestmark = pytest.mark.e2e

MODELS = [{"name": name, "id": name, "weights": "Random"} for name in ("bert", "albert", "distilbert", "roberta")]
BIG = {
    "models": MODELS,
    "accelerators": [{"name": "cpu", "kind": "CPU"}, {"name": "inf2", "instanceTypes": ["inf2.xlarge"]}],
    "sequenceLengths": [8, 16, 32],
    "execution": {"maxParallelJobs": 2},
}


class MeasurementCount:
    """Counts, on the nodes' side, how often each cell was really measured."""

    def __init__(self) -> None:
        """Start at zero."""
        self.cells: Counter[str] = Counter()

    def __call__(self, _pod: Pod) -> Exits:
        """Script of a pod: it succeeds, and its cells are counted when its report is asked for."""
        return Exits(run_seconds=8, message=self._report)

    def _report(self, pod: Pod) -> str:
        plan = plan_of(pod)
        assert plan is not None
        self.cells.update(shape.cell for shape in plan.shapes)
        return report_message(pod)


@pytest.fixture
def counted(agent: NodeAgent) -> Iterator[MeasurementCount]:
    """Simulated nodes whose measurements are counted."""
    agent.add_node(cpu_node("simulated-cpu", local=False))
    agent.add_node(instance_node("simulated-inf2", "inf2.xlarge"))
    count = MeasurementCount()
    agent.script(count)
    yield count
    agent.clear_scripts()


def test_killing_the_operator_ten_times_changes_nothing(
    control_plane: ControlPlane, operator_kubeconfig: Path, namespace: str, counted: MeasurementCount, tmp_path: Path
) -> None:
    """Each cell is measured exactly once, and the objects are the same as after an undisturbed run."""
    moments = random.Random(namespace)  # noqa: S311 - not a secret
    undisturbed = _run(control_plane, operator_kubeconfig, f"{namespace}", tmp_path, kill_after=[])
    assert set(counted.cells.values()) == {1}
    cells = len(counted.cells)
    counted.cells.clear()
    other = control_plane.create_namespace(f"{namespace}-killed")

    disturbed = _run(
        control_plane, operator_kubeconfig, other, tmp_path, kill_after=[moments.uniform(0, 0.6) for _ in range(10)]
    )

    assert disturbed == undisturbed
    assert len(counted.cells) == cells
    assert set(counted.cells.values()) == {1}


def _run(
    control_plane: ControlPlane, kubeconfig: Path, namespace: str, folder: Path, kill_after: list[float]
) -> dict[str, Any]:
    """Run a benchmark of eight plans while the operator is killed again and again; return what there is at the end."""
    operator = OperatorProcess(kubeconfig, folder / f"{namespace}.log")
    agent: Any = None
    harness = Harness(control_plane, agent, operator, namespace)
    with operator:
        harness.apply(benchmark("big", **BIG))
        for seconds in kill_after:
            sleep(seconds)
            assert "completionTime" not in harness.status("big").get("run", {}), "killed in the middle of the run"
            operator.kill()
            operator.start()
        harness.wait_until_finished("big", seconds=400)
    assert "Traceback" not in operator.log.read_text(), operator.log.read_text()
    status = harness.status("big")
    return {
        "jobs": sorted(_identity(job) for job in harness.list("jobs")),
        "results": sorted(_figures(result) for result in harness.list("ibr")),
        "states": Counter(entry["state"] for entry in status["results"]),
        "conditions": [(found["type"], found["status"], found["reason"]) for found in status["conditions"]],
        "events": sorted(
            event["reason"]
            for event in harness.list("events")
            if event["involvedObject"]["kind"] == "InferenceBenchmark" and event["reason"] != "Unschedulable"
        ),
    }


def _identity(job: Json) -> tuple[str, ...]:
    """Return what makes a Job the same Job in another namespace; its name holds the benchmark's UID."""
    labels, annotations = job["metadata"]["labels"], job["metadata"]["annotations"]
    return labels["inferbench.dev/plan"], labels["inferbench.dev/attempt"], annotations["inferbench.dev/cells"]


def _figures(result: Json) -> tuple[str, int, str]:
    call = result["status"]["latency"]["call"]
    return result["metadata"]["name"], call["p95"]["valueMicroseconds"], str(result["status"]["attempt"])


@pytest.mark.usefixtures("counted")
def test_a_benchmark_deleted_while_the_operator_is_down_takes_its_children_along(harness: Harness) -> None:
    """There is no finalizer to wait for, and the garbage collector removes Jobs, pods and results."""
    harness.apply(benchmark("doomed", **BIG))
    eventually("some cells are measured", lambda: harness.list("ibr"))
    harness.operator.kill()

    harness.kubectl("delete", "ib", "doomed", "--wait=true", "--timeout=20s")

    for kind in ("ibr", "jobs", "pods"):
        eventually(f"no {kind} are left", lambda kind=kind: not harness.list(kind))  # type: ignore[misc]
    assert harness.list("ib") == []


def test_a_pod_without_a_node_waits_in_the_schedulers_words_and_goes_on_by_itself(harness: Harness) -> None:
    """CapacityAvailable=False carries the scheduler's sentence; the cell is waiting, not running."""
    harness.agent.add_node(cpu_node("other", local=False))
    harness.apply(benchmark("homeless", accelerators=[{"name": "inf2", "instanceTypes": ["inf2.xlarge"]}]))

    capacity = eventually(
        "the missing capacity is told",
        lambda: harness.condition("homeless", "CapacityAvailable"),
        lambda found: found.get("status") == "False",
    )

    pod = harness.list("pods")[0]
    told = next(found for found in pod["status"]["conditions"] if found["type"] == "PodScheduled")
    assert capacity["message"].startswith(told["message"])
    assert "nodes are available: 1 node(s) didn't match Pod's node affinity" in capacity["message"]
    assert {entry["state"] for entry in harness.status("homeless")["results"]} == {"waiting"}
    assert harness.condition("homeless", "Ready")["reason"] == "WaitingForCapacity"
    waited = _timestamp(capacity["lastTransitionTime"]) - _timestamp(pod["metadata"]["creationTimestamp"])
    assert waited <= 5, "seconds between the pod's creation and the condition, both by the cluster's clocks"

    harness.agent.add_node(instance_node("late", "inf2.xlarge"))
    harness.wait_until_finished("homeless")
    assert harness.condition("homeless", "Ready")["status"] == "True"
    assert harness.condition("homeless", "CapacityAvailable")["status"] == "True"


def test_a_runner_killed_after_two_of_four_shapes_keeps_two_and_retries_two(harness: Harness) -> None:
    """Two results stand; the other two fail with a typed reason and are tried again, alone."""
    harness.agent.add_node(cpu_node("simulated", local=False))
    harness.agent.script(in_turn(killed(message=_first_two_shapes)))
    harness.apply(benchmark("partial", sequenceLengths=[8, 16, 32, 64]))

    status = harness.wait_until_finished("partial")

    assert status["cells"]["succeeded"] == 4
    assert sorted(result["status"]["attempt"] for result in harness.list("ibr")) == [1, 1, 2, 2]
    first, second = sorted(harness.list("jobs"), key=lambda job: job["metadata"]["labels"]["inferbench.dev/attempt"])
    cells = first["metadata"]["annotations"]["inferbench.dev/cells"].split(",")
    assert second["metadata"]["annotations"]["inferbench.dev/cells"].split(",") == cells[2:]
    told = [event for event in harness.list("events") if event["reason"] == "RunnerKilled"]
    assert len(told) == 1
    assert "2 cells of bert on cpu failed, 2 to be tried again" in told[0]["message"]


def test_cells_that_fail_for_good_are_failed_with_reason_and_sentence(harness: Harness) -> None:
    """After the last retry the benchmark is Stalled, says why, and what was measured stands."""
    harness.agent.add_node(cpu_node("simulated", local=False))
    harness.agent.script(in_turn(killed(message=_first_two_shapes), killed(), killed()))
    harness.apply(benchmark("broken", sequenceLengths=[8, 16, 32, 64]))

    status = harness.wait_until_finished("broken")

    assert status["cells"]["succeeded"] == 2
    failed = [entry for entry in status["results"] if entry["state"] == "failed"]
    assert [(entry["reason"], entry["attempts"]) for entry in failed] == [("RunnerKilled", 2)] * 2
    assert all("SIGKILL" in entry["message"] for entry in failed)
    assert harness.condition("broken", "Stalled")["status"] == "True"
    assert harness.condition("broken", "Ready")["reason"] == "CellsFailed"


def test_an_edit_during_a_run_starts_a_new_one_and_keeps_unchanged_cells(harness: Harness) -> None:
    """The old run's Jobs go; cells that the edit did not touch keep their results."""
    harness.agent.add_node(cpu_node("simulated", local=False))
    # The first plan is measured, the second would go on for ever.
    harness.agent.script(in_turn(measured(), Exits(run_seconds=3600, message=report_message)))
    serial = {"maxParallelJobs": 1}
    harness.apply(benchmark("edited", models=MODELS[:2], execution=serial))
    eventually("one plan is measured", lambda: len(harness.list("ibr")) == 2)
    eventually("the other one runs", lambda: harness.status("edited")["cells"]["running"] == 2)
    old_run = harness.status("edited")["run"]["id"]
    kept = {result["metadata"]["uid"] for result in harness.list("ibr")}

    harness.apply(benchmark("edited", models=[MODELS[1], MODELS[2]], execution=serial))

    status = harness.wait_until_finished("edited")
    assert status["run"]["id"] != old_run
    assert status["run"]["trigger"] == "SpecChanged"
    assert (status["cells"]["reused"], status["cells"]["succeeded"]) == (2, 2)
    assert kept <= {result["metadata"]["uid"] for result in harness.list("ibr")}
    eventually(
        "the old run's Jobs are gone",
        lambda: {job["metadata"]["labels"]["inferbench.dev/run"] for job in harness.list("jobs")},
        lambda runs: old_run not in runs,
    )


def _first_two_shapes(pod: Pod) -> str:
    plan = plan_of(pod)
    assert plan is not None
    report = measured_report(plan)
    return CompactReport(measured=report.measured[:2]).model_dump_json()


def _timestamp(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
