"""A benchmark from apply to p95 on a real kubelet, under the restricted Pod Security Standard."""

from __future__ import annotations

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from cluster.operator_process import REPOSITORY
from cluster.real.provisioning import RUNNER, operator_metrics_path
from e2e_harness import Harness, Json
from node_testing.containers import confinement, running_supervisor
from node_testing.models import BERT, DISTILBERT

pytestmark = pytest.mark.node

QUICKSTART = REPOSITORY / "crds" / "examples" / "quickstart.yaml"


def quickstart() -> Json:
    """Return the shipped quick start with small models."""
    manifest: Json = yaml.safe_load(QUICKSTART.read_text())
    manifest["spec"]["models"] = [DISTILBERT, BERT]
    manifest["spec"]["runner"] = RUNNER
    manifest["spec"]["measurement"]["maxSeconds"] = 10
    return manifest


def test_quickstart_gives_a_p95_of_each_cell_on_a_real_node(harness: Harness) -> None:
    """The runner's process is confined as the standard asks, and its figures are in status, results and metrics."""
    manifest = quickstart()
    harness.apply(manifest)

    confined = confinement(running_supervisor())
    status = harness.wait_until_finished("quickstart", seconds=600, every=1)

    assert confined == {
        "user": 10001,
        "capabilities": {"0000000000000000"},
        "no new privileges": "1",
        "seccomp": "2",
        "root folder": "ro",
        "token": False,
    }
    ready = harness.condition("quickstart", "Ready")
    assert ready["status"] == "True", ready["message"]
    spec = manifest["spec"]
    assert len(status["results"]) == len(spec["models"]) * len(spec["sequenceLengths"])
    results = {found["spec"]["cell"]: found["status"] for found in harness.list("ibr")}
    exported = p95_series(harness)
    for entry in status["results"]:
        p95 = entry["p95Microseconds"]
        stored = results[entry["cell"]]
        assert entry["state"] == "succeeded"
        assert stored["verdict"] != "Invalid"
        assert stored["latency"]["call"]["p95"]["valueMicroseconds"] == p95 > 0
        labels = (entry["model"], str(entry["sequenceLength"]))
        assert exported[labels] == pytest.approx(p95 / 1e6)
        assert float(stored["correctness"]["cosineSimilarity"]) > 0.999, "the log's full report arrived"
        assert stored["node"] == "real"
    for pod in harness.list("pods"):
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert not [volume for volume in pod["spec"]["volumes"] if "projected" in volume or "secret" in volume]


def p95_series(harness: Harness) -> dict[tuple[str, str], float]:
    """Return what the operator's pod exports, by model and length."""
    path = operator_metrics_path(harness.control_plane)
    return {
        (sample.labels["model"], sample.labels["sequence_length"]): sample.value
        for family in text_string_to_metric_families(harness.control_plane.kubectl("get", f"--raw={path}"))
        for sample in family.samples
        if family.name == "inferbench_call_latency_seconds"
        and sample.labels.get("namespace") == harness.namespace
        and sample.labels.get("quantile") == "0.95"
    }
