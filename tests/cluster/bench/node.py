"""How long users wait on a real node: from `apply` to the first sample, and from a container's end to p95 in status.

Every moment is taken where it is made: the API server's objects by a watch, a container's start and end from
containerd's own events, the runner's phases from the report that it rewrites for the kubelet. All are of one clock, the
machine's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

from pydantic import ValidationError

from cluster.api import Api
from cluster.bench.figures import Figure, significant
from cluster.errors import ClusterError
from cluster.pods import Json
from cluster.real import RealNode
from cluster.real.provisioning import RUNNER, operated_node
from inferbench_operator.core.names import LABEL_BENCHMARK
from inferbench_runner.contract import CompactReport, Phase

_RUNS: Final = 7
_PATIENCE_SECONDS: Final = 300.0
_LOOK_SECONDS: Final = 0.02
_NAMESPACE: Final = "default"
_BENCHMARKS: Final = f"/apis/inferbench.dev/v1alpha1/namespaces/{_NAMESPACE}/inferencebenchmarks"
_SPEC: Final[dict[str, Any]] = {
    "models": [{"name": "distilbert", "id": "distilbert/distilbert-base-uncased", "weights": "Random"}],
    "accelerators": [{"name": "cpu", "kind": "CPU"}],
    "sequenceLengths": [8],
    "measurement": {"processes": 1, "minSamples": 130, "minSeconds": 1, "maxSeconds": 5, "targetHalfWidthPercent": 100},
    "runner": RUNNER,
}
# Date, time and fraction of an event, its topic and its content.
_EVENT: Final = re.compile(r"(\S+ \S+?)(\.\d+)? \+0000 UTC \S+ (/tasks/\w+) (\{.*\})")


class Moment:
    """Names of what happens in a run, in its order."""

    APPLIED: Final = "applied"
    JOB: Final = "Job"
    POD: Final = "pod"
    BOUND: Final = "bound"
    STARTED: Final = "/tasks/start"
    PROBE: Final = str(Phase.PROBE)
    VERIFY: Final = str(Phase.VERIFY)
    MEASURE: Final = str(Phase.MEASURE)
    EXITED: Final = "/tasks/exit"
    ENDED: Final = "terminated"
    P95: Final = "p95"


Moments = dict[str, float]
"""Seconds since 1970, the first time that each was seen."""


def node(say: Callable[[str], None]) -> Iterator[Figure]:
    """Measure runs of one cell, one after the other; the first only warms the node up.

    Raises:
        ClusterError: There can be no node here, or a run went wrong.
    """
    with operated_node(progress=say) as real:
        runs = asyncio.run(_measure(real))[1:]
    yield _to_first_sample(runs)
    yield _to_status(runs)


async def _measure(real: RealNode) -> list[Moments]:
    layout = real.control_plane.layout
    events = real.control_plane.folder / "containerd.events"
    tls = ssl.create_default_context(cafile=str(layout.certificates.authority))
    api = Api(layout.server, layout.tokens.admin, tls)
    with real.containerd_events(events):
        try:
            return [await _run(api, f"run-{number}", real, events) for number in range(_RUNS + 1)]
        finally:
            await api.close()


@dataclass(slots=True)
class _Run:
    """One benchmark, while it is followed."""

    name: str
    moments: Moments = field(default_factory=dict)
    pod: Json = field(default_factory=dict)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when nothing more is to be seen."""

    def mark(self, moment: str) -> None:
        """Take note; later times of the same change nothing."""
        self.moments.setdefault(moment, time.time())
        if {Moment.P95, Moment.ENDED} <= self.moments.keys():
            self.done.set()

    def saw_job(self, job: Json) -> None:
        """See a version of a Job."""
        if self._is_ours(job):
            self.mark(Moment.JOB)

    def saw_pod(self, pod: Json) -> None:
        """See a version of a pod."""
        if self._is_ours(pod):
            self.pod = pod
            self.mark(Moment.POD)
            if pod["spec"].get("nodeName"):
                self.mark(Moment.BOUND)
            if any("terminated" in found.get("state", {}) for found in pod["status"].get("containerStatuses", [])):
                self.mark(Moment.ENDED)

    def saw_benchmark(self, benchmark: Json) -> None:
        """See a version of a benchmark."""
        results = benchmark["status"].get("results", [])
        if benchmark["metadata"]["name"] == self.name and results and "p95Microseconds" in results[0]:
            self.mark(Moment.P95)

    def _is_ours(self, raw: Json) -> bool:
        return bool(raw["metadata"].get("labels", {}).get(LABEL_BENCHMARK) == self.name)


async def _run(api: Api, name: str, real: RealNode, events: Path) -> Moments:
    """Apply one benchmark, see it through, and return its moments."""
    run = _Run(name)
    tasks = [
        asyncio.create_task(_follow(api, f"/apis/batch/v1/namespaces/{_NAMESPACE}/jobs", run.saw_job)),
        asyncio.create_task(_follow(api, f"/api/v1/namespaces/{_NAMESPACE}/pods", run.saw_pod)),
        asyncio.create_task(_follow(api, _BENCHMARKS, run.saw_benchmark)),
        asyncio.create_task(_follow_phases(run, real)),
    ]
    # The watches have begun by then, and the operator is at rest.
    await asyncio.sleep(2)
    run.mark(Moment.APPLIED)
    manifest = {
        "apiVersion": "inferbench.dev/v1alpha1",
        "kind": "InferenceBenchmark",
        "metadata": {"name": name},
        "spec": _SPEC,
    }
    await api.request("POST", _BENCHMARKS, manifest)
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await run.done.wait()
    except TimeoutError:
        raise RunIncompleteError(name, sorted(run.moments)) from None
    finally:
        for task in tasks:
            task.cancel()
        # What went wrong in one of them would otherwise pass for a run that is slow.
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(error, Exception):
                raise error
    await api.request("DELETE", f"{_BENCHMARKS}/{name}")
    container = run.pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
    told = await asyncio.to_thread(events.read_text)
    moments = {**container_moments(told, container), **run.moments}
    if missing := [name for name in _ALL if name not in moments]:
        raise RunIncompleteError(name, missing)
    return moments


_ALL: Final = tuple(value for key, value in vars(Moment).items() if key.isupper())


class RunIncompleteError(ClusterError):
    """Something that had to happen in a run was not seen."""

    def __init__(self, name: str, moments: Sequence[str]) -> None:
        """Name the run, and what was missing or seen."""
        super().__init__(f"The run {name} was not seen through: {', '.join(moments)}.")


async def _follow(api: Api, path: str, saw: Callable[[Json], None]) -> None:
    while True:
        async with contextlib.aclosing(api.watch(path, {})) as events:
            async for event in events:
                if event["type"] != "BOOKMARK":
                    saw(event["object"])


async def _follow_phases(run: _Run, real: RealNode) -> None:
    """Look at what the runner writes for the kubelet, until it measures: then nothing may take its processors."""
    seen = 0
    while Moment.MEASURE not in run.moments:
        await asyncio.sleep(_LOOK_SECONDS)
        for path in real.termination_messages(run.pod["metadata"]["uid"]) if run.pod else ():
            # A report that is just being written is looked at again.
            with contextlib.suppress(OSError, ValidationError):
                if (written := path.stat().st_mtime_ns) > seen:
                    report = CompactReport.model_validate_json(path.read_bytes())
                    seen = written
                    if report.doing:
                        run.mark(str(report.doing.phase))


def container_moments(events: str, container: str) -> Moments:
    """Return when a container was started and when it ended, from what `ctr events` has printed."""
    found: Moments = {}
    for when, fraction, topic, content in _EVENT.findall(events):
        told = json.loads(content)
        # A process that is started in it, as for a probe, has an id of its own.
        if told.get("container_id") == container == told.get("id", container):
            whole = datetime.fromisoformat(f"{when}+00:00").timestamp()
            found.setdefault(topic, whole + float(fraction or 0))
    return found


def _to_first_sample(runs: Sequence[Moments]) -> Figure:
    parts = {
        "operator": (Moment.APPLIED, Moment.JOB),
        "Job controller and scheduler": (Moment.JOB, Moment.BOUND),
        "kubelet and containerd": (Moment.BOUND, Moment.STARTED),
        "runner": (Moment.STARTED, Moment.PROBE),
        "PyTorch, transformers and the model": (Moment.PROBE, Moment.VERIFY),
        "calls to check its output and to warm up": (Moment.VERIFY, Moment.MEASURE),
    }
    whole = median(_between(runs, Moment.APPLIED, Moment.MEASURE))
    medians = {part: median(_between(runs, *ends)) for part, ends in parts.items()}
    ours = median(
        (one + other) / all_of_it
        for one, other, all_of_it in zip(
            _between(runs, *parts["operator"]),
            _between(runs, *parts["runner"]),
            _between(runs, Moment.APPLIED, Moment.MEASURE),
            strict=True,
        )
    )
    told = ", ".join(f"{part} {significant(spent)}" for part, spent in medians.items())
    detail = f"{100 * ours:.0f} % in our code, operator and runner; {told}; median of {len(runs)}"
    return Figure("apply to the first sample, on a warm real node", whole, "s", None, detail)


def _to_status(runs: Sequence[Moments]) -> Figure:
    times = [1000 * one for one in _between(runs, Moment.EXITED, Moment.P95)]
    kubelet = median(_between(runs, Moment.EXITED, Moment.ENDED)) * 1000
    detail = (
        f"{significant(min(times))} to {significant(max(times))}; until the kubelet has told of the end "
        f"{significant(kubelet)}; median of {len(runs)}"
    )
    return Figure("container exit to p95 in status, on a real node", median(times), "ms", None, detail)


def _between(runs: Sequence[Moments], first: str, second: str) -> list[float]:
    return [moments[second] - moments[first] for moments in runs]
