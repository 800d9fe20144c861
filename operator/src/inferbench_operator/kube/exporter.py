"""Exports results to Prometheus at scrape time, straight from the cache.

Nothing is kept here: a series exists as long as the benchmark's status has its cell, so it goes when the benchmark
goes, and a restarted operator exports the same as before.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Final

import prometheus_client
from aiohttp import web
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from inferbench_operator.core.facts import Result
from inferbench_operator.core.results import figures
from inferbench_operator.kube.cache import Cache
from inferbench_operator.kube.parse import Key
from inferbench_operator.models.status import BenchmarkStatus, CellState, CellStatus

_BENCHMARK_LABELS: Final = ("namespace", "benchmark")
_CELL_LABELS: Final = (
    *_BENCHMARK_LABELS,
    "model",
    "accelerator",
    "precision",
    "sequence_length",
    "batch_size",
)
_MICROSECONDS: Final = 1_000_000


@asynccontextmanager
async def metrics_server(cache: Cache, address: str | None, port: int) -> AsyncIterator[None]:
    """Serve /metrics at the address, or (None) at all.

    It runs in the event loop, not in a thread of its own, because the cache belongs to the loop.
    """
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no annotations
    collector = ResultsCollector(cache)
    prometheus_client.REGISTRY.register(collector)

    async def answer(_: web.Request) -> web.Response:
        body = prometheus_client.generate_latest()
        return web.Response(body=body, headers={"Content-Type": prometheus_client.CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, address, port).start()
        yield
    finally:
        await runner.cleanup()
        prometheus_client.REGISTRY.unregister(collector)


class ResultsCollector(Collector):
    """Latencies, cell counts and completion times of all benchmarks."""

    def __init__(self, cache: Cache) -> None:
        """Export what `cache` holds."""
        self._cache = cache

    def describe(self) -> list[Metric]:
        """Return no names in advance, so that registering does not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Return all series."""
        families = _families()
        latency, low, high, samples, cells, completed = families
        for benchmark in self._cache.benchmarks():
            status, owner = benchmark.status, [benchmark.namespace, benchmark.name]
            stored = self._cache.results(Key(benchmark.namespace, benchmark.name))
            for entry in status.results:
                # While a cell is measured again, its last figures stand.
                known = entry.state.terminal or entry.cell not in stored
                shown = entry if known else _last(entry, stored[entry.cell])
                _add_cell([*owner, *_labels(entry)], shown, latency, low, high, samples)
            _add_counts(owner, status, cells)
            if status.run and status.run.completion_time:
                completed.add_metric(owner, status.run.completion_time.timestamp())
        yield from families


def _families() -> tuple[GaugeMetricFamily, ...]:
    bound = "of the 95 % confidence interval of the latency's quantile."
    return (
        GaugeMetricFamily(
            "inferbench_call_latency_seconds",
            "Latency of one call, host tensors in to host tensors out, by quantile (order statistic, last run).",
            labels=[*_CELL_LABELS, "quantile"],
        ),
        GaugeMetricFamily(
            "inferbench_call_latency_low_seconds", f"Lower bound {bound}", labels=[*_CELL_LABELS, "quantile"]
        ),
        GaugeMetricFamily(
            "inferbench_call_latency_high_seconds", f"Upper bound {bound}", labels=[*_CELL_LABELS, "quantile"]
        ),
        GaugeMetricFamily("inferbench_samples", "Timed calls behind a cell's latencies.", labels=_CELL_LABELS),
        GaugeMetricFamily(
            "inferbench_cells",
            f"Cells of a benchmark by state: {', '.join(CellState)}.",
            labels=[*_BENCHMARK_LABELS, "state"],
        ),
        GaugeMetricFamily(
            "inferbench_run_completed_timestamp_seconds",
            "When the last run was completed, in seconds since 1970; absent while it goes on.",
            labels=_BENCHMARK_LABELS,
        ),
    )


def _last(entry: CellStatus, result: Result) -> CellStatus:
    return entry.model_copy(update=figures(result.status))


def _labels(entry: CellStatus) -> list[str]:
    length = "" if entry.sequence_length is None else str(entry.sequence_length)
    return [entry.model, entry.accelerator, entry.precision.value, length, str(entry.batch_size)]


def _add_cell(
    labels: list[str],
    entry: CellStatus,
    latency: GaugeMetricFamily,
    low: GaugeMetricFamily,
    high: GaugeMetricFamily,
    samples: GaugeMetricFamily,
) -> None:
    quantiles = (("0.5", entry.p50_microseconds), ("0.95", entry.p95_microseconds), ("0.99", entry.p99_microseconds))
    for quantile, value in quantiles:
        if value is not None:
            latency.add_metric([*labels, quantile], value / _MICROSECONDS)
    if entry.p95_low_microseconds is not None:
        low.add_metric([*labels, "0.95"], entry.p95_low_microseconds / _MICROSECONDS)
    if entry.p95_high_microseconds is not None:
        high.add_metric([*labels, "0.95"], entry.p95_high_microseconds / _MICROSECONDS)
    if entry.samples is not None:
        samples.add_metric(labels, entry.samples)


def _add_counts(owner: list[str], status: BenchmarkStatus, cells: GaugeMetricFamily) -> None:
    if status.cells is None:
        return
    counts = status.cells.model_dump(by_alias=False)
    for state in CellState:
        cells.add_metric([*owner, state.value], counts[state.value])
