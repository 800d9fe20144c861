"""The shipped quick start, measured for real by the real runner on a local node."""

from __future__ import annotations

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from cluster.nodes import cpu_node
from cluster.operator_process import REPOSITORY
from e2e_harness import Harness, Json

pytestmark = pytest.mark.e2e

QUICKSTART = REPOSITORY / "crds" / "examples" / "quickstart.yaml"


def test_quickstart_gives_the_same_p95_in_status_results_and_metrics(harness: Harness) -> None:
    """Every cell has a p95 inside its interval, and all three places tell the same figures."""
    harness.agent.add_node(cpu_node("laptop"))
    manifest: Json = yaml.safe_load(QUICKSTART.read_text())
    name = manifest["metadata"]["name"]
    harness.apply(manifest)

    status = harness.wait_until_finished(name, seconds=900, every=2)

    ready = harness.condition(name, "Ready")
    assert ready["status"] == "True", ready["message"]
    spec = manifest["spec"]
    assert len(status["results"]) == len(spec["models"]) * len(spec["sequenceLengths"])
    results = {found["spec"]["cell"]: found for found in harness.list("ibr")}
    exported = _p95_series(harness)
    for entry in status["results"]:
        low, p95, high = (entry[f"p95{part}Microseconds"] for part in ("Low", "", "High"))
        assert 0 < low <= p95 <= high
        assert entry["samples"] >= 130
        stored = results[entry["cell"]]["status"]["latency"]["call"]["p95"]
        assert stored == {"valueMicroseconds": p95, "lowMicroseconds": low, "highMicroseconds": high}
        labels = (entry["model"], entry["accelerator"], str(entry["sequenceLength"]))
        assert exported["inferbench_call_latency_seconds", *labels] == pytest.approx(p95 / 1e6)
        assert exported["inferbench_call_latency_low_seconds", *labels] == pytest.approx(low / 1e6)
        assert exported["inferbench_call_latency_high_seconds", *labels] == pytest.approx(high / 1e6)
    _has_details(results)

    harness.kubectl("delete", "ib", name, "--wait=true")
    assert not _p95_series(harness), "the series go with the benchmark"


def _has_details(results: dict[str, Json]) -> None:
    """The log's full report arrived as well: provenance, phases and warm-up are there."""
    for found in results.values():
        assert found["status"]["provenance"]
        assert found["status"]["phasesMilliseconds"]["measure"] > 0
        assert found["status"]["warmupCalls"] >= 10
        assert found["status"]["node"] == "laptop"


def _p95_series(harness: Harness) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, sample.labels["model"], sample.labels["accelerator"], sample.labels["sequence_length"]): (
            sample.value
        )
        for family in text_string_to_metric_families(harness.operator.metrics())
        for sample in family.samples
        if sample.labels.get("namespace") == harness.namespace and sample.labels.get("quantile") == "0.95"
    }
