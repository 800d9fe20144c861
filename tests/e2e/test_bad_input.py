"""Bad input of every kind ends in a reason and a sentence: never in a number, a crash, or an endless retry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster import ControlPlane, NodeAgent
from cluster.nodes import cpu_node, instance_node
from cluster.observing import eventually
from cluster.operator_process import OperatorProcess
from cluster.outcomes import Exits, Text, measured_report, plan_of
from cluster.pods import Pod
from e2e_harness import Harness, benchmark
from inferbench_runner.contract import CellFailed, CompactReport, FailureReason, Phase

pytestmark = pytest.mark.e2e


def _forged(pod: Pod) -> str:
    """Report good figures, one of them for a cell that was never asked for."""
    plan = plan_of(pod)
    assert plan is not None
    report = json.loads(measured_report(plan).model_dump_json())
    report["measured"][1]["cell"] = "0123456789"
    return json.dumps(report)


def _impossible(pod: Pod) -> str:
    """Report a p95 that lies outside its own interval."""
    plan = plan_of(pod)
    assert plan is not None
    report = json.loads(measured_report(plan).model_dump_json())
    report["measured"][0]["p95HighMicroseconds"] = 1
    return json.dumps(report)


@pytest.mark.parametrize(
    ("message", "reason", "words"),
    [
        pytest.param("\x1b[31m{not json", "ReportInvalid", "no valid report", id="garbage"),
        pytest.param(
            '{"measured": ' + "[" * 5000, "ReportInvalid", "no valid report", id="too much, cut at 4096 bytes"
        ),
        pytest.param(_forged, "ReportInvalid", "0123456789, which was not in its plan", id="a cell it was not given"),
        pytest.param(_impossible, "ReportInvalid", "must lie inside its interval", id="figures that can't be"),
        pytest.param("", "NoReport", "without a report", id="nothing at all"),
    ],
)
def test_a_report_that_cannot_be_believed_yields_no_number(
    harness: Harness, message: Text, reason: str, words: str
) -> None:
    """The cells fail with a typed reason after one retry; there is no result, no figure and no series."""
    harness.agent.add_node(cpu_node("simulated", local=False))
    harness.agent.script(Exits(message=message))
    harness.apply(benchmark("lying"))

    status = harness.wait_until_finished("lying")

    assert [(entry["state"], entry["reason"], entry["attempts"]) for entry in status["results"]] == [
        ("failed", reason, 2)
    ] * 2
    assert all(words in entry["message"] for entry in status["results"])
    assert "\x1b" not in json.dumps(status)
    assert harness.list("ibr") == []
    assert not any("p95Microseconds" in entry for entry in status["results"])
    series = [line for line in harness.operator.metrics().splitlines() if harness.namespace in line]
    assert not [line for line in series if line.startswith("inferbench_call_latency")]


def test_a_typed_failure_that_no_retry_can_mend_is_not_retried(harness: Harness) -> None:
    """One attempt, and the runner's own sentence in the status."""

    def report(pod: Pod) -> str:
        plan = plan_of(pod)
        assert plan is not None
        failed = tuple(
            CellFailed(
                cell=shape.cell,
                phase=Phase.FETCH,
                reason=FailureReason.MODEL_NOT_FOUND,
                message="The hub has no model of that name; correct model.id.",
            )
            for shape in plan.shapes
        )
        return CompactReport(failed=failed).model_dump_json()

    harness.agent.add_node(cpu_node("simulated", local=False))
    harness.agent.script(Exits(message=report))
    harness.apply(benchmark("nameless"))

    status = harness.wait_until_finished("nameless")

    assert {(entry["reason"], entry["attempts"]) for entry in status["results"]} == {("ModelNotFound", 1)}
    assert "correct model.id" in harness.condition("nameless", "Ready")["message"]


def test_an_unknown_instance_type_is_not_accepted_and_the_nearest_are_named(harness: Harness) -> None:
    """Accepted=False and Stalled=True, one Event, no Job; a corrected benchmark runs."""
    wrong = [{"name": "inf2", "instanceTypes": ["inf2.2xlarge"]}]
    harness.apply(benchmark("typo", accelerators=wrong))

    accepted = eventually("it is judged", lambda: harness.condition("typo", "Accepted"))

    assert (accepted["status"], accepted["reason"]) == ("False", "UnknownInstanceType")
    assert "inf2.xlarge" in accepted["message"]
    assert harness.condition("typo", "Stalled")["status"] == "True"
    assert harness.list("jobs") == []
    eventually(
        "there is one Event of it",
        lambda: [event for event in harness.list("events") if event["reason"] == "UnknownInstanceType"],
        lambda events: len(events) == 1,
    )

    harness.agent.add_node(cpu_node("simulated", local=False))
    harness.apply(benchmark("typo"))
    harness.wait_until_finished("typo")
    assert harness.condition("typo", "Accepted")["status"] == "True"
    assert harness.condition("typo", "Ready")["status"] == "True"


def test_a_wrong_price_in_the_operators_own_table_is_told_until_it_is_mended(
    control_plane: ControlPlane, agent: NodeAgent, operator_kubeconfig: Path, namespace: str, tmp_path: Path
) -> None:
    """In Accepted, of the benchmark that names the type and of no other; the run is none the worse for it."""
    table, log = tmp_path / "instance-types.yaml", tmp_path / "operator.log"
    table.write_text("c6i.2xlarge: {usdPerHour: cheap}\nc6i.4xlarge: {usdPerHour: '0.61'}\n")
    agent.add_node(instance_node("small", "c6i.2xlarge"))
    agent.add_node(instance_node("large", "c6i.4xlarge"))
    variables = {"INFERBENCH_INSTANCE_TYPES": str(table)}
    with OperatorProcess(operator_kubeconfig, log, environment=variables) as operator:
        harness = Harness(control_plane, agent, operator, namespace)
        for name, instance_type in (("wrong", "c6i.2xlarge"), ("right", "c6i.4xlarge")):
            harness.apply(benchmark(name, accelerators=[{"name": "cpu", "instanceTypes": [instance_type]}]))
        for name in ("wrong", "right"):
            harness.wait_until_finished(name)
            assert harness.condition(name, "Ready")["status"] == "True"
            assert harness.condition(name, "Accepted")["status"] == "True"
        told = "c6i.2xlarge: usdPerHour is 'cheap', but must be a decimal number of US dollars"
        assert told in harness.condition("wrong", "Accepted")["message"]
        assert harness.condition("right", "Accepted")["message"] == "Cells in the matrix: 2."

        table.write_text("c6i.2xlarge: {usdPerHour: '0.31'}\n")
        eventually(
            "the table is read again",
            lambda: harness.condition("wrong", "Accepted")["message"],
            lambda message: message == "Cells in the matrix: 2.",
        )
        assert len(harness.list("jobs")) == 2, "no run has started for it"
        harness.kubectl("delete", "ib", "--all", "--wait=true")
    assert log.read_text().count(told) == 1
    assert "Traceback" not in log.read_text()


def test_a_job_that_the_api_server_refuses_is_told_and_not_tried_for_ever(harness: Harness) -> None:
    """A runner field that is no valid piece of a pod fails the cells; a corrected benchmark runs."""
    harness.agent.add_node(cpu_node("simulated", local=False))
    harness.apply(benchmark("refused", runner={"tolerations": [{"key": "a", "operator": "Sometimes"}]}))

    status = harness.wait_until_finished("refused")

    assert {entry["reason"] for entry in status["results"]} == {"JobRefused"}
    assert "tolerations" in status["results"][0]["message"]
    posts, passes = _posts(harness), _passes(harness)
    harness.kubectl("annotate", "ib", "refused", "touched=1")
    eventually("the operator has looked at it again", lambda: _passes(harness) > passes)
    assert _posts(harness) == posts

    harness.apply(benchmark("refused", runner={"tolerations": [{"key": "a", "operator": "Exists"}]}))
    harness.wait_until_finished("refused")
    assert harness.condition("refused", "Ready")["status"] == "True"


def test_the_real_runner_says_what_is_wrong_with_a_model(harness: Harness) -> None:
    """A model that is not there, and a task that its architecture lacks, each fail with reason and sentence."""
    harness.agent.add_node(cpu_node("laptop"))
    models = [
        {"name": "missing", "id": "/nowhere/model"},
        {"name": "no-task", "id": "bert-base-uncased", "weights": "Random", "task": "image-classification"},
        {"name": "fine", "id": "bert-base-uncased", "weights": "Random", "config": {"num_hidden_layers": 1}},
    ]
    harness.apply(benchmark("mixed", models=models, sequenceLengths=[8], execution={"maxParallelJobs": 1}))

    harness.wait_until_finished("mixed", seconds=600, every=2)

    cells = {model: entry for (model, _, _), entry in harness.cells("mixed").items()}
    assert (cells["missing"]["state"], cells["missing"]["reason"]) == ("failed", "ModelNotFound")
    assert "/nowhere/model" in cells["missing"]["message"]
    assert (cells["no-task"]["state"], cells["no-task"]["reason"]) == ("failed", "TaskUnsupported")
    assert "image-classification" in cells["no-task"]["message"]
    assert cells["fine"]["state"] == "succeeded", "the other models are measured all the same"


def test_a_job_that_a_quota_forbids_is_told_and_made_when_it_is_lifted(harness: Harness) -> None:
    """The quota's sentence is in the status while it lasts, and the run goes on by itself afterwards."""
    harness.agent.add_node(cpu_node("simulated", local=False))
    harness.kubectl("create", "quota", "none", "--hard=count/jobs.batch=0")
    # The API server learns of quotas by a watch; a Job that slips through would prove nothing.
    eventually("the quota is in force", lambda: "hard" in harness.get("quota", "none").get("status", {}))
    harness.apply(benchmark("forbidden"))

    ready = eventually(
        "the quota is told", lambda: harness.condition("forbidden", "Ready"), lambda found: "quota" in str(found)
    )

    assert (ready["status"], ready["reason"]) == ("False", "QuotaExceeded")
    harness.kubectl("delete", "quota", "none")
    harness.wait_until_finished("forbidden")
    assert harness.condition("forbidden", "Ready")["status"] == "True"


def test_a_runner_whose_time_is_up_keeps_what_it_has_measured(harness: Harness) -> None:
    """The real runner ends by itself before its deadline is enforced; what it has of each cell stands, with a doubt."""
    harness.agent.add_node(cpu_node("laptop"))
    tiny = {"name": "tiny", "id": "bert-base-uncased", "weights": "Random", "config": {"num_hidden_layers": 1}}
    seconds = 60
    harness.apply(
        benchmark(
            "late",
            models=[tiny],
            measurement={"minSamples": 1, "minSeconds": seconds, "maxSeconds": seconds, "processes": 1},
            execution={"measureDeadlineSeconds": seconds},
        )
    )

    status = harness.wait_until_finished("late", seconds=600, every=2)

    assert [(entry["state"], entry["attempts"]) for entry in status["results"]] == [("succeeded", 1)] * 2
    assert [entry["verdict"] for entry in status["results"]] == ["Inconclusive"] * 2
    for result in harness.list("ibr"):
        assert "FewerProcesses" in {doubt["caveat"] for doubt in result["status"]["caveats"]}
    # The Job's own count follows its pod's end.
    eventually("the Job has failed", lambda: [job["status"].get("failed") for job in harness.list("jobs")] == [1])


def _passes(harness: Harness) -> float:
    lines = harness.operator.metrics().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("inferbench_operator_reconciles_total"))


def _posts(harness: Harness) -> list[str]:
    # Of Jobs alone: the Event that tells of the refusal may still be on its way.
    lines = harness.operator.metrics().splitlines()
    made = [line for line in lines if line.startswith("inferbench_operator_api_requests_total") and '"POST"' in line]
    return [line for line in made if 'resource="jobs"' in line]
