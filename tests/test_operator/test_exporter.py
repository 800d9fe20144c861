"""What Prometheus scrapes, read back with Prometheus' own parser."""

from __future__ import annotations

import socket
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from inferbench_operator.kube import metrics
from inferbench_operator.kube.cache import Cache
from inferbench_operator.kube.exporter import ResultsCollector, metrics_server
from inferbench_operator.kube.kinds import BENCHMARK, RESULT
from inferbench_operator.kube.parse import Key
from operator_testing.recorded import Json, recorded

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]

CELL = {
    "namespace": "team",
    "benchmark": "study",
    "model": "bert",
    "accelerator": "cpu",
    "precision": "fp32",
    "sequence_length": "128",
    "batch_size": "1",
}
MEASURED = {
    "state": "succeeded",
    "verdict": "Valid",
    "samples": 1000,
    "p50Microseconds": 1103,
    "p95Microseconds": 5000,
    "p95LowMicroseconds": 4950,
    "p95HighMicroseconds": 5050,
    "p99Microseconds": 5100,
}


def _benchmark(entry: Json | None = None, **metadata: Any) -> Json:  # noqa: ANN401 - any JSON value
    raw = recorded("benchmark", **metadata)
    raw["status"]["results"][0] |= entry or {}
    return raw


def _scrape(cache: Cache) -> Series:
    registry = CollectorRegistry()
    registry.register(ResultsCollector(cache))
    text = generate_latest(registry).decode()
    series: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in series, "a series that is told twice is an error to Prometheus"
            series[key] = sample.value
    return series


def _key(name: str, labels: dict[str, str], **more: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset((labels | more).items())


def _cache(*raws: Json) -> Cache:
    cache = Cache()
    for raw in raws:
        cache.put(BENCHMARK, raw)
    return cache


def test_a_measured_cell_has_its_series() -> None:
    """In seconds, by quantile, with the bounds of p95 and the number of samples."""
    series = _scrape(_cache(_benchmark(MEASURED)))
    latency = "inferbench_call_latency_seconds"
    assert series[_key(latency, CELL, quantile="0.5")] == 0.001103
    assert series[_key(latency, CELL, quantile="0.95")] == 0.005
    assert series[_key(latency, CELL, quantile="0.99")] == 0.0051
    assert series[_key("inferbench_call_latency_low_seconds", CELL, quantile="0.95")] == 0.00495
    assert series[_key("inferbench_call_latency_high_seconds", CELL, quantile="0.95")] == 0.00505
    assert series[_key("inferbench_samples", CELL)] == 1000


def test_a_cell_without_figures_has_no_latency() -> None:
    """It is only counted, by state."""
    series = _scrape(_cache(_benchmark()))
    assert not [name for name, _ in series if "latency" in name or "samples" in name]
    owner = {"namespace": "team", "benchmark": "study"}
    counts = {dict(labels)["state"]: value for (name, labels), value in series.items() if name == "inferbench_cells"}
    assert counts == {
        "pending": 0,
        "waiting": 0,
        "running": 1,
        "succeeded": 0,
        "failed": 0,
        "skipped": 0,
        "reused": 0,
    }
    assert _key("inferbench_run_completed_timestamp_seconds", owner) not in series


def test_a_completed_run_has_its_time() -> None:
    """In seconds since 1970."""
    raw = _benchmark(MEASURED)
    raw["status"]["run"]["completionTime"] = "2026-01-05T12:00:00Z"
    owner = {"namespace": "team", "benchmark": "study"}
    assert _scrape(_cache(raw))[_key("inferbench_run_completed_timestamp_seconds", owner)] == 1767614400


def test_a_vision_model_has_an_empty_length() -> None:
    """The label is there, so that queries need no special case."""
    raw = _benchmark(MEASURED)
    del raw["status"]["results"][0]["sequenceLength"]
    assert _key("inferbench_samples", CELL, sequence_length="") in _scrape(_cache(raw))


def test_the_series_of_a_deleted_benchmark_are_gone() -> None:
    """At the next scrape."""
    cache = _cache(_benchmark(MEASURED))
    cache.remove(BENCHMARK, Key("team", "study"), recorded("benchmark")["metadata"]["uid"])
    assert _scrape(cache) == {}


def test_a_benchmark_made_anew_has_one_set_of_series() -> None:
    """Though the old one's deletion has not been seen."""
    series = _scrape(_cache(_benchmark(MEASURED), _benchmark(uid="second", resourceVersion="9000")))
    assert not [name for name, _ in series if "latency" in name]


def test_benchmarks_of_one_name_in_two_namespaces_are_two() -> None:
    """By their namespace."""
    series = _scrape(_cache(_benchmark(MEASURED), _benchmark(MEASURED, uid="second", namespace="other")))
    assert {dict(labels)["namespace"] for _, labels in series} == {"team", "other"}


def test_odd_characters_in_a_label_are_escaped() -> None:
    """Namespaces can't have any; should one come from elsewhere, the page stays readable."""
    odd = 'a"b\\c\nd'
    series = _scrape(_cache(_benchmark(MEASURED, namespace=odd)))
    assert {dict(labels)["namespace"] for _, labels in series} == {odd}


async def test_the_page_is_served() -> None:
    """Results, and the operator's own metrics, at /metrics."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    metrics.reconciled("success", 0.1)
    async with metrics_server(_cache(_benchmark(MEASURED)), "127.0.0.1", port), aiohttp.ClientSession() as session:
        answer = await session.get(f"http://127.0.0.1:{port}/metrics")
        text = await answer.text()
    assert answer.status == 200
    names = {family.name for family in text_string_to_metric_families(text)}
    assert {"inferbench_call_latency_seconds", "inferbench_operator_reconciles"} <= names


@pytest.mark.parametrize("word", ["uid", "pod", "run", "node"])
def test_no_label_grows_without_bounds(word: str) -> None:
    """Identities that change with every run are in no label."""
    assert not [labels for _, labels in _scrape(_cache(_benchmark(MEASURED))) if word in dict(labels)]


@pytest.mark.parametrize(("state", "shown"), [("running", 0.005), ("pending", 0.005), ("failed", None)])
def test_the_last_figures_stand_while_a_cell_is_measured_again(state: str, shown: float | None) -> None:
    """A gap for the length of each run would fire or end alerts; a cell that has failed has none."""
    cache = _cache(_benchmark({"state": state}))
    cache.put(RESULT, recorded("result"))
    assert _scrape(cache).get(_key("inferbench_call_latency_seconds", CELL, quantile="0.95")) == shown
