"""A cluster that stands still until a test lets somebody in it take a step.

What people, the Job controller, the scheduler, a queue, kubelets, runners and the garbage collector do is one method
each, on the objects that the server in memory has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import count
from typing import Any, Final

from inferbench_operator.core.names import ANNOTATION_CELLS
from inferbench_operator.kube.kinds import BENCHMARK, JOB, POD, RESULT, Kind
from inferbench_runner.contract import (
    DEADLINE_EXIT_CODE,
    Caveat,
    CellMeasured,
    CompactReport,
    FailureReason,
    Phase,
    Position,
    Verdict,
)
from operator_testing.builders import NAME, NAMESPACE, NOW, failed, measured
from operator_testing.server import Json, Server, written

_GRACE: Final = 30


class End(StrEnum):
    """How a runner ends by itself, or is ended for what it did."""

    WELL = "it measures everything"
    CRASHED = "it crashes on the next cell"
    OUT_OF_MEMORY = "the kernel kills it on the next cell"
    CRASHED_EARLY = "it crashes while it loads the model"
    NO_REPORT = "it prints a traceback in place of a report"
    SILENT = "it ends well and says nothing"
    TYPED = "it says why the next cell failed, and measures the others"
    HOPELESS = "it says that the next cell can never be measured, and measures the others"
    LATE = "it has no time left"
    EVICTED = "the node evicts the pod, or does not take it at all"


_EXITS: Final = {
    End.CRASHED: (139, "Error"),
    End.OUT_OF_MEMORY: (137, "OOMKilled"),
    End.CRASHED_EARLY: (139, "Error"),
    End.NO_REPORT: (1, "Error"),
    End.LATE: (DEADLINE_EXIT_CODE, "Error"),
}
_FAILURES: Final = {End.TYPED: FailureReason.INTERNAL_ERROR, End.HOPELESS: FailureReason.SEQUENCE_TOO_LONG}


@dataclass
class Clock:
    """A calendar that somebody turns."""

    now: datetime = NOW

    def __call__(self) -> datetime:
        """Return the time."""
        return self.now

    def turn(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)


@dataclass(eq=False)
class HandCluster:
    """Everything but the operator."""

    server: Server
    clock: Clock
    figures: dict[int, Json] = field(default_factory=dict)
    """The pod that measured a p95, of which there are no two alike."""
    _done: defaultdict[str, dict[str, CellMeasured]] = field(default_factory=lambda: defaultdict(dict))
    _p95: count[int] = field(default_factory=lambda: count(2000))

    def jobs(self, holds: Callable[[Json], bool] = bool) -> list[Json]:
        """Return the Jobs of which this holds, to be read only."""
        return [raw for (kind, _), raw in self.server.objects.items() if kind is JOB and holds(raw)]

    def pods(self, holds: Callable[[Json], bool] = bool) -> list[Json]:
        """Return the pods of which this holds, to be read only."""
        return [raw for (kind, _), raw in self.server.objects.items() if kind is POD and holds(raw)]

    def pods_of(self, job: Json) -> list[Json]:
        """Return the pods of a Job, oldest first."""
        return self.pods(lambda pod: pod["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"])

    def _last_pod(self, job: Json) -> Json | None:
        return self.server.objects.get((POD, job.get("status", {}).get("pod", "")))

    # What a Job controller and a queue do.

    def wants_pod(self, job: Json) -> bool:
        """Whether the Job is to have a pod and never had one, since its queue let it go."""
        idle = not job.get("status", {}).get("pod") and not job["spec"].get("suspend")
        return idle and not is_final(job) and not is_leaving(job)

    def make_pod(self, job: Json) -> None:
        """Give a Job its pod."""
        template, name = job["spec"]["template"], job["metadata"]["name"]
        owner = {"kind": "Job", "name": name, "uid": job["metadata"]["uid"], "controller": True}
        metadata = template["metadata"] | {"namespace": NAMESPACE, "ownerReferences": [owner]}
        manifest = {"metadata": metadata, "spec": template["spec"], "status": {"phase": "Pending"}}
        pod = f"{name}-{self.server.version}"
        manifest["metadata"] |= {"name": pod}
        self.server.create(POD, manifest)
        # The name of the pod is for us alone: a Job that has had one gets no other.
        status = {"startTime": self._stamp(), "pod": pod}
        self._change(job, lambda raw: raw.update(status=raw.get("status", {}) | status))

    def may_close(self, job: Json) -> bool:
        """Whether the Job has nothing more to do: its pod has ended or is gone, or its time is up."""
        return not is_final(job) and (self.is_spent(job) or self._is_late(job))

    def is_spent(self, job: Json) -> bool:
        """Whether the Job's only pod has ended or is gone, be it written down or not."""
        last = self._last_pod(job)
        return bool(job.get("status", {}).get("pod")) and (last is None or is_over(last))

    def close(self, job: Json) -> None:
        """Write down how the Job ended."""
        last, spent = self._last_pod(job), self.is_spent(job)
        well = spent and last is not None and last["status"]["phase"] == "Succeeded"
        reason = "" if well else "BackoffLimitExceeded" if spent else "DeadlineExceeded"
        if last and not spent:
            self.take(last)
        final = self._condition("Complete" if well else "Failed", reason)
        self._change(job, lambda raw: raw["status"].update(conditions=[final]))

    def hold(self, job: Json) -> None:
        """Let a queue take the Job's place away."""
        for pod in self.pods_of(job):
            self.take(pod)
        status = {"conditions": [self._condition("Suspended")]}
        self._change(job, lambda raw: (raw["spec"].update(suspend=True), raw.update(status=status)))

    def release(self, job: Json) -> None:
        """Let the queue give the Job a place; its start is later than whatever it had been before."""
        self.clock.turn(1)
        status = {"startTime": self._stamp()}
        self._change(job, lambda raw: (raw["spec"].update(suspend=False), raw.update(status=status)))

    def is_active(self, job: Json) -> bool:
        """Whether the Job has a runner, or is about to."""
        return not (is_final(job) or is_leaving(job) or self.is_spent(job))

    # What the scheduler, kubelets and runners do.

    def bring_on(self, name: str, steps: int) -> Json | None:
        """Let a Job's pod take good steps, and return it; None if it has ended, or the Job's queue holds it."""
        for _ in range(steps):
            if self.wants_pod(self.server.objects[JOB, name]):
                self.make_pod(self.server.objects[JOB, name])
            pod = self._last_pod(self.server.objects[JOB, name])
            if pod and is_homeless(pod):
                self.place(pod)
            elif pod and is_placed(pod):
                self.start(pod)
            elif pod and is_running(pod) and self.rest(pod):
                self.measure(pod)
        last = self._last_pod(self.server.objects[JOB, name])
        return None if last is None or is_over(last) or is_leaving(last) else last

    def place(self, pod: Json) -> None:
        """Give the pod a node."""
        placed = {"conditions": [self._condition("PodScheduled")]}
        self._change(pod, lambda raw: (raw["spec"].update(nodeName="node"), raw["status"].update(placed)))

    def start(self, pod: Json) -> None:
        """Let the runner begin."""
        running = _container({"running": {"startedAt": self._stamp()}})
        self._change(pod, lambda raw: raw["status"].update(running, phase="Running"))

    def get_stuck(self, pod: Json) -> None:
        """Let the pod wait for a node that there isn't, or for an image that doesn't come."""
        none = self._condition("PodScheduled", "Unschedulable", "0/4 nodes are available.") | {"status": "False"}
        waiting = _container({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}})
        told = waiting if is_placed(pod) else {"conditions": [none]}
        self._change(pod, lambda raw: raw["status"].update(told))

    def rest(self, pod: Json) -> list[str]:
        """Return the cells that the runner has not measured yet."""
        return [cell for cell in cells_of(pod) if cell not in self._done_by(pod)]

    def measure(self, pod: Json, *, last: bool = False) -> None:
        """Let the runner finish one more cell."""
        cell, p95 = self.rest(pod)[-1 if last else 0], next(self._p95)
        self.figures[p95] = pod
        self._done_by(pod)[cell] = measured(cell, p95)

    def end(self, pod: Json, how: End) -> None:
        """Let the runner end."""
        if how is End.EVICTED:
            told = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resources."}
            self._change(pod, lambda raw: raw["status"].update(told, **_container(None)))
            return
        bad = tuple(failed(cell, _FAILURES[how]) for cell in self.rest(pod)[:1] if how in _FAILURES)
        while (how is End.WELL or how in _FAILURES) and len(self.rest(pod)) > len(bad):
            self.measure(pod, last=bool(bad))
        doing = None
        if how is End.CRASHED_EARLY:
            doing = Position(phase=Phase.LOAD)
        elif how in {End.CRASHED, End.OUT_OF_MEMORY, End.LATE}:
            doing = Position(cell=next(iter(self.rest(pod)), None), phase=Phase.MEASURE)
        report = CompactReport(measured=tuple(self._done_by(pod).values()), failed=bad, doing=doing)
        text = report.model_dump_json(exclude_defaults=True)
        message = {End.NO_REPORT: "Traceback (most recent call last):\nKeyError: 7\n", End.SILENT: ""}.get(how, text)
        code, reason = _EXITS.get(how, (0, "Completed"))
        self._terminate(pod, code, reason, message)

    # How pods come to go.

    def take(self, pod: Json, disruption: str = "") -> None:
        """Let somebody, or (with a reason) the cluster, delete a pod; its kubelet has not heard of it yet."""
        told = [self._condition("DisruptionTarget", disruption, "the node goes")] if disruption else []

        def change(raw: Json) -> None:
            raw["metadata"].setdefault("deletionTimestamp", written(self.clock.now + timedelta(seconds=_GRACE)))
            raw["status"]["conditions"] = [*raw["status"].get("conditions", []), *told]

        self._change(pod, change)

    def stop(self, pod: Json) -> None:
        """Let the kubelet end a runner whose pod is taken away.

        It tells of cells that it has begun, too; not so at the Job's own deadline, after which these would count.
        """
        job = self.server.objects.get((JOB, pod["metadata"]["ownerReferences"][0]["name"]))
        rest = [] if job and is_final(job) else self.rest(pod)
        few = {"caveats": (Caveat.FEWER_PROCESSES,), "verdict": Verdict.INCONCLUSIVE}
        begun = tuple(measured(cell, next(self._p95)).model_copy(update=few) for cell in rest)
        whole = tuple(self._done_by(pod).values())
        self._terminate(pod, 143, "Error", CompactReport(measured=whole + begun).model_dump_json(exclude_defaults=True))

    def vanish(self, pod: Json) -> None:
        """Let the object go."""
        self.server.delete(POD, pod["metadata"]["name"])

    def delete(self, kind: Kind, name: str, *, foreground: bool) -> None:
        """Let a person delete an object, and in the foreground what belongs to it before it."""
        if foreground:
            at = self._stamp()
            self.server.change(kind, name, lambda raw: raw["metadata"].update(deletionTimestamp=at))
        else:
            self.server.delete(kind, name)

    def collect_garbage(self) -> None:
        """Remove what belongs to nobody any more, and what waits for its dependents to be removed first."""
        benchmark = self.server.find(BENCHMARK, NAME)
        owner = benchmark["metadata"]["uid"] if benchmark and not is_leaving(benchmark) else ""
        for kind in (RESULT, JOB):
            for child in self.server.all(kind):
                if child["metadata"]["ownerReferences"][0]["uid"] != owner:
                    self.server.delete(kind, child["metadata"]["name"])
        if benchmark and not owner:
            self.server.delete(BENCHMARK, NAME)
        stay = {job["metadata"]["uid"] for job in self.jobs() if not is_leaving(job)}
        for pod in self.pods(lambda pod: pod["metadata"]["ownerReferences"][0]["uid"] not in stay):
            if is_over(pod) or not _state(pod):
                self.vanish(pod)
            else:
                self.take(pod)
        for job in self.jobs(is_leaving):
            if not self.pods_of(job):
                self.server.delete(JOB, job["metadata"]["name"])

    def serve(self) -> None:
        """Let everything take one good step."""
        self.collect_garbage()
        for job in self.jobs():
            if job["spec"].get("suspend"):
                self.release(job)
            elif self.wants_pod(job):
                self.make_pod(job)
            elif self.may_close(job):
                self.close(job)
        for pod in self.pods():
            if is_leaving(pod):
                (self.stop if is_running(pod) else self.vanish)(pod)
            elif is_running(pod):
                self.end(pod, End.WELL)
            elif not is_over(pod):
                (self.place if is_homeless(pod) else self.start)(pod)

    def _done_by(self, pod: Json) -> dict[str, CellMeasured]:
        return self._done[pod["metadata"]["uid"]]

    def _terminate(self, pod: Json, code: int, reason: str, message: str) -> None:
        end = {"exitCode": code, "reason": reason, "message": message}
        end |= {"startedAt": _state(pod)["running"]["startedAt"], "finishedAt": self._stamp()}
        phase = "Failed" if code else "Succeeded"
        self._change(pod, lambda raw: raw["status"].update(_container({"terminated": end}), phase=phase))

    def _is_late(self, job: Json) -> bool:
        started = job.get("status", {}).get("startTime")
        limit = timedelta(seconds=job["spec"]["activeDeadlineSeconds"])
        return bool(started) and self.clock.now >= datetime.fromisoformat(started) + limit

    def _change(self, raw: Json, change: Callable[[Json], Any]) -> None:
        kind = JOB if "template" in raw["spec"] else POD
        self.server.change(kind, raw["metadata"]["name"], change)

    def _condition(self, kind: str, reason: str = "", message: str = "") -> Json:
        at = self._stamp()
        return {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": at}

    def _stamp(self) -> str:
        return written(self.clock.now)


def is_leaving(raw: Json) -> bool:
    """Whether an object is on its way out."""
    return "deletionTimestamp" in raw["metadata"]


def is_final(job: Json) -> bool:
    """Whether a Job has ended."""
    found = job.get("status", {}).get("conditions", [])
    return any(condition["type"] in {"Complete", "Failed"} for condition in found)


def is_over(pod: Json) -> bool:
    """Whether a pod has ended."""
    return pod["status"]["phase"] in {"Succeeded", "Failed"}


def is_running(pod: Json) -> bool:
    """Whether a pod's runner runs."""
    return bool(pod["status"]["phase"] == "Running")


def is_placed(pod: Json) -> bool:
    """Whether a pod has a node and its runner has not begun."""
    return bool(pod["spec"].get("nodeName")) and waits(pod)


def waits(pod: Json) -> bool:
    """Whether a pod's runner has not begun."""
    return bool(pod["status"]["phase"] == "Pending")


def is_homeless(pod: Json) -> bool:
    """Whether a pod waits for a node."""
    return not pod["spec"].get("nodeName") and waits(pod)


def cells_of(raw: Json) -> list[str]:
    """Return the cells that a Job or a pod was given."""
    cells: str = raw["metadata"]["annotations"][ANNOTATION_CELLS]
    return cells.split(",")


def _container(state: Json | None) -> Json:
    return {"containerStatuses": [] if state is None else [{"name": "runner", "state": state}]}


def _state(pod: Json) -> Json:
    found: list[Json] = pod["status"].get("containerStatuses", [])
    state: Json = found[0]["state"] if found else {}
    return state
