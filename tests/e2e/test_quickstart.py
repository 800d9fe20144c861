"""The shipped quick start, measured for real by the real runner on a local node."""

from __future__ import annotations

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from cluster.nodes import cpu_node
from cluster.operator_process import REPOSITORY
from e2e_harness import Harness, Json
from inferbench_operator.core.comparison import COMPARED

pytestmark = pytest.mark.e2e

QUICKSTART = REPOSITORY / "crds" / "examples" / "quickstart.yaml"


def test_quickstart_gives_the_same_p95_in_status_results_and_metrics(harness: Harness) -> None:
    """Every cell has a p95, and all three places tell the same figures.

    On a host that is too slow for the samples, or too noisy for an interval, the verdict says so.
    """
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
        low, p95, high = (entry.get(f"p95{part}Microseconds") for part in ("Low", "", "High"))
        stored = results[entry["cell"]]["status"]
        doubts = {doubt["caveat"] for doubt in stored["caveats"]}
        assert entry["samples"] >= 130 or "TooFewSamples" in doubts
        assert stored["latency"]["call"]["p95"] == {
            name: value
            for name, value in (("valueMicroseconds", p95), ("lowMicroseconds", low), ("highMicroseconds", high))
            if value is not None
        }
        assert stored["verdict"] == entry["verdict"] != "Invalid"
        labels = (entry["model"], entry["accelerator"], str(entry["sequenceLength"]))
        for suffix, value in (("", p95), ("_low", low), ("_high", high)):
            series = exported.get((f"inferbench_call_latency{suffix}_seconds", *labels))
            assert series == (None if value is None else pytest.approx(value / 1e6))
        if low is None or high is None:
            assert {"TooFewSamples", "TargetMissed"} & doubts
        else:
            assert 0 < low <= p95 <= high
    _has_details(results)

    harness.kubectl("delete", "ib", name, "--wait=true")
    assert not _p95_series(harness), "the series go with the benchmark"


def _has_details(results: dict[str, Json]) -> None:
    """The log's full report arrived as well: provenance, phases and warm-up are there."""
    for found in results.values():
        assert set(COMPARED) <= found["status"]["provenance"].keys()
        assert found["status"]["phasesMilliseconds"]["measure"] > 0
        assert found["status"]["warmupCalls"] >= 20
        assert len(found["status"]["processP95Microseconds"]) == 2
        assert found["status"]["latency"]["endToEnd"]["samples"] >= 10
        assert float(found["status"]["correctness"]["cosineSimilarity"]) > 0.999
        assert found["status"]["provenance"]["image"] == found["status"]["runnerImage"]
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
