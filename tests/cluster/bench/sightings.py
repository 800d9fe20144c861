"""When a client of the API server first sees what happens to benchmarks: watches, and a clock beside them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from time import perf_counter_ns

from cluster.api import Api
from cluster.pods import Json
from inferbench_operator.core.names import LABEL_BENCHMARK


class Moments:
    """One moment for each name, in nanoseconds of a monotonic clock: the first time that something was seen."""

    def __init__(self) -> None:
        """Start without any."""
        self._futures: dict[str, asyncio.Future[int]] = {}

    def of(self, name: str) -> asyncio.Future[int]:
        """Return the moment, or the promise of it."""
        return self._futures.setdefault(name, asyncio.get_running_loop().create_future())

    def mark(self, name: str, moment: int) -> None:
        """Take note; later moments of the same name change nothing."""
        future = self.of(name)
        if not future.done():
            future.set_result(moment)


class Sightings:
    """Follows one namespace; all moments are by name of the benchmark, or of a Job or pod that belongs to none."""

    def __init__(self, api: Api, namespace: str) -> None:
        """Prepare; `follow` does the work."""
        self._api = api
        self._namespace = namespace
        self.job = Moments()
        """Its first Job is there."""
        self.exit = Moments()
        """The first of its containers is shown as terminated."""
        self.measured = Moments()
        """All cells have a p95 in the benchmark's status."""
        self.completed = Moments()
        """The run is over."""

    async def follow(self) -> None:
        """Follow for ever; cancel it to end."""
        group, jobs, pods = "/apis/inferbench.dev/v1alpha1", "/apis/batch/v1", "/api/v1"
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(f"{jobs}/namespaces/{self._namespace}/jobs", self._saw_job))
            tasks.create_task(self._watch(f"{pods}/namespaces/{self._namespace}/pods", self._saw_pod))
            tasks.create_task(
                self._watch(f"{group}/namespaces/{self._namespace}/inferencebenchmarks", self._saw_benchmark)
            )

    async def _watch(self, path: str, saw: Callable[[Json, int], None]) -> None:
        while True:
            # Without a version it begins with all that is there, of which only what is new counts.
            async with contextlib.aclosing(self._api.watch(path, {})) as events:
                async for event in events:
                    if event["type"] != "BOOKMARK":
                        saw(event["object"], perf_counter_ns())

    def _saw_job(self, job: Json, moment: int) -> None:
        metadata = job["metadata"]
        self.job.mark(metadata.get("labels", {}).get(LABEL_BENCHMARK, metadata["name"]), moment)

    def _saw_pod(self, pod: Json, moment: int) -> None:
        if any("terminated" in found.get("state", {}) for found in pod["status"].get("containerStatuses", [])):
            metadata = pod["metadata"]
            self.exit.mark(metadata.get("labels", {}).get(LABEL_BENCHMARK, metadata["name"]), moment)

    def _saw_benchmark(self, benchmark: Json, moment: int) -> None:
        name, status = benchmark["metadata"]["name"], benchmark["status"]
        results = status.get("results", [])
        if results and all("p95Microseconds" in entry for entry in results):
            self.measured.mark(name, moment)
        if "completionTime" in status.get("run", {}):
            self.completed.mark(name, moment)
