"""The rest of a cluster in memory: Job controller, scheduler, kubelet and runners, on virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from inferbench_operator.kube.kinds import JOB, POD, Kind
from inferbench_runner.contract import (
    PLAN_VARIABLE,
    Caveat,
    CompactReport,
    FailureReason,
    Phase,
    Plan,
    Position,
    Verdict,
)
from operator_testing.builders import failed, measured
from operator_testing.server import Json, Server, stamp

SHAPE_SECONDS: Final = 10.0
_START_SECONDS: Final = 3.0
_ORDER: Final = itertools.count()


class Ending(StrEnum):
    """How a runner ends."""

    WELL = "it measures everything"
    SEGFAULT = "it crashes with a partial report"
    OUT_OF_MEMORY = "the kernel kills it with a partial report"
    TYPED = "it says why the next shape failed, and measures the others"
    PERMANENT = "it says that the next shape can never be measured, and measures the others"
    GARBAGE = "it prints a traceback in place of a report"
    SILENT = "it ends well and says nothing"
    HANGS = "it never ends"
    NEVER_STARTS = "its image can't be pulled"
    EVICTED = "the node evicts it"
    REJECTED = "the kubelet finds the device taken"
    DRAINED = "its node is drained, and it tells what it has"
    LOST = "its node does not answer any more"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of one pod."""

    ending: Ending = Ending.WELL
    shapes: int = 0
    """Shapes that are measured before an ending that is not well."""


def figure_of(cell: str) -> int:
    """Return the p95 that every runner measures for a cell."""
    return 2000 + int(cell[:4], 16)


@dataclass(eq=False)
class Cluster:
    """Gives each Job a pod, each pod a node, and each runner its outcome."""

    server: Server
    nodes: int = 4
    outcomes: Iterator[Outcome] = field(default_factory=lambda: iter(()))
    measured: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often a report told the figures of (run, cell)."""
    deadly: frozenset[str] = frozenset()
    """Cells that need more memory than any pod has: the kernel kills the runner when it comes to one."""
    open: bool = True
    """Whether nodes are to be had at all."""
    _busy: set[str] = field(default_factory=set)
    _outcome: dict[str, Outcome] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Watch the server."""
        self.server.watchers.append(self._saw)

    def set_open(self, open_: bool) -> None:  # noqa: FBT001 - a switch
        """Take all free nodes away, or give them back."""
        self.open = open_
        for pod in self.server.all(POD):
            self._schedule(pod["metadata"]["name"])

    def _saw(self, kind: Kind, event: str, raw: Json) -> None:
        name = raw["metadata"]["name"]
        if kind is JOB and event == "ADDED":
            _later(0.2, lambda: self._start_job(raw))
        elif kind is JOB and event == "DELETED":
            _later(1.0, lambda: self.server.delete(POD, f"{name}-pod"))
        elif kind is POD and event == "ADDED":
            _later(0.1, lambda: self._schedule(name))
        elif kind is POD and (event == "DELETED" or raw["status"]["phase"] in {"Failed", "Succeeded"}):
            self._busy.discard(raw["metadata"]["uid"])
            _later(0.1, lambda: self.set_open(self.open))
            if event != "DELETED":
                _later(0.1, lambda: self._finish_job(raw))

    def _start_job(self, job: Json) -> None:
        name = job["metadata"]["name"]
        found = self.server.find(JOB, name)
        if found is None or found["metadata"]["uid"] != job["metadata"]["uid"]:
            return
        template = job["spec"]["template"]
        pod = {
            "metadata": {
                "name": f"{name}-pod",
                "namespace": job["metadata"]["namespace"],
                "labels": template["metadata"]["labels"] | {"batch.kubernetes.io/job-name": name},
                "annotations": template["metadata"]["annotations"],
                "ownerReferences": [{"kind": "Job", "name": name, "uid": job["metadata"]["uid"], "controller": True}],
            },
            "spec": template["spec"],
            "status": {"phase": "Pending"},
        }
        if self.server.find(POD, f"{name}-pod"):
            # The pod of a deleted Job of the same name is on its way out.
            _later(0.5, lambda: self._start_job(job))
            return
        self.server.create(POD, pod)
        self.server.change(JOB, name, lambda raw: raw.update(status={"startTime": stamp(), "active": 1}))

    def _schedule(self, name: str) -> None:
        pod = self.server.find(POD, name)
        if pod is None or pod["spec"].get("nodeName") or pod["status"]["phase"] != "Pending":
            return
        if not self.open or len(self._busy) >= self.nodes:
            waits = _condition("False", "Unschedulable", "0/4 nodes are available: 4 Insufficient cpu.")
            if not pod["status"].get("conditions"):
                self._update(name, lambda status: status.update(conditions=[waits]))
            return
        uid = pod["metadata"]["uid"]
        self._busy.add(uid)
        outcome = next(self.outcomes, Outcome())

        def bind(raw: Json) -> None:
            raw["spec"]["nodeName"] = "node"
            raw["status"] = {"phase": "Pending", "conditions": [_condition("True")]}

        self.server.change(POD, name, bind)
        _later(_START_SECONDS, lambda: self._start(name, uid, outcome))

    def _start(self, name: str, uid: str, outcome: Outcome) -> None:
        if outcome.ending is Ending.NEVER_STARTS:
            waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
            self._update(name, lambda status: status.update(_container({"waiting": waiting})), uid)
        elif outcome.ending is Ending.REJECTED:
            told = {"phase": "Failed", "reason": "OutOfaws.amazon.com/neuron", "message": "Pod was rejected"}
            self._update(name, lambda status: status.update(told), uid)
        elif self._update(
            name,
            lambda status: status.update(_container({"running": {"startedAt": stamp()}}), phase="Running"),
            uid,
        ):
            self._run(name, uid, outcome)

    def _run(self, name: str, uid: str, outcome: Outcome) -> None:
        pod = self.server.find(POD, name)
        if pod is None or outcome.ending is Ending.HANGS:
            return
        if outcome.ending is Ending.LOST:
            _later(SHAPE_SECONDS, lambda: self._lose(name, uid))
            return
        container = pod["spec"]["containers"][0]
        plan = Plan.model_validate_json(next(e["value"] for e in container["env"] if e["name"] == PLAN_VARIABLE))
        cells = [shape.cell for shape in plan.shapes]
        if deadly := self.deadly.intersection(cells):
            outcome = Outcome(Ending.OUT_OF_MEMORY, min(map(cells.index, deadly)))
        partial = outcome.ending in {Ending.SEGFAULT, Ending.OUT_OF_MEMORY, Ending.DRAINED}
        done = cells[: outcome.shapes] if partial else cells
        at = Position(cell=cells[len(done)], phase=Phase.MEASURE) if len(done) < len(cells) else None
        report = CompactReport(measured=tuple(measured(cell, figure_of(cell)) for cell in done), doing=at)
        if outcome.ending is Ending.DRAINED:
            # Rounds over all shapes are taken in turn, so that the others have figures too, of fewer processes.
            few = {"caveats": (Caveat.FEWER_PROCESSES,), "verdict": Verdict.INCONCLUSIVE}
            cut = tuple(measured(cell, figure_of(cell)).model_copy(update=few) for cell in cells[len(done) :])
            report = report.model_copy(update={"measured": report.measured + cut, "doing": None})
        if outcome.ending in {Ending.TYPED, Ending.PERMANENT}:
            retryable = outcome.ending is Ending.TYPED
            why = FailureReason.INTERNAL_ERROR if retryable else FailureReason.SEQUENCE_TOO_LONG
            victim = cells[outcome.shapes % len(cells)]
            report = CompactReport(
                measured=tuple(entry for entry in report.measured if entry.cell != victim),
                failed=(failed(victim, why),),
            )
        started = pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
        _later(SHAPE_SECONDS * len(done), lambda: self._end(name, uid, outcome, report, started))

    def _end(self, name: str, uid: str, outcome: Outcome, report: CompactReport, started: str) -> None:
        pod = self.server.find(POD, name)
        if pod is None or pod["metadata"]["uid"] != uid:
            return
        if outcome.ending is Ending.EVICTED:
            told = {"phase": "Failed", "reason": "Evicted", "message": "low on memory", "containerStatuses": []}
            self._update(name, lambda status: status.update(told), uid)
            return
        code, reason, message = {
            Ending.SEGFAULT: (139, "Error", _compact(report)),
            Ending.OUT_OF_MEMORY: (137, "OOMKilled", _compact(report)),
            Ending.GARBAGE: (1, "Error", "Traceback (most recent call last):\nKeyError: 7\n"),
            Ending.SILENT: (0, "Completed", ""),
            Ending.DRAINED: (143, "Error", _compact(report)),
        }.get(outcome.ending, (0, "Completed", _compact(report)))
        if outcome.ending not in {Ending.GARBAGE, Ending.SILENT}:
            run = pod["metadata"]["labels"]["inferbench.dev/run"]
            whole = (entry for entry in report.measured if Caveat.FEWER_PROCESSES not in entry.caveats)
            self.measured.update((run, entry.cell) for entry in whole)
        end = {"exitCode": code, "reason": reason, "message": message, "startedAt": started, "finishedAt": stamp()}
        status_now: Json = _container({"terminated": end}) | {"phase": "Failed" if code else "Succeeded"}
        if outcome.ending is Ending.DRAINED:
            status_now["conditions"] = [*pod["status"]["conditions"], _disrupted("EvictionByEvictionAPI")]
        self._update(name, lambda status: status.update(status_now), uid)

    def _lose(self, name: str, uid: str) -> None:
        """Let the control plane delete a pod whose kubelet never confirms it."""
        pod = self.server.find(POD, name)
        if pod is None or pod["metadata"]["uid"] != uid:
            return

        def change(raw: Json) -> None:
            raw["metadata"]["deletionTimestamp"] = stamp(30)
            raw["status"]["conditions"] = [*raw["status"]["conditions"], _disrupted("DeletionByTaintManager")]

        self.server.change(POD, name, change)

    def _finish_job(self, pod: Json) -> None:
        owner = pod["metadata"]["ownerReferences"][0]
        job = self.server.find(JOB, owner["name"])
        if job is None or job["metadata"]["uid"] != owner["uid"]:
            return
        well = pod["status"]["phase"] == "Succeeded"
        final = {
            "type": "Complete" if well else "Failed",
            "status": "True",
            "reason": "" if well else "BackoffLimitExceeded",
            "message": "" if well else "Job has reached the specified backoff limit",
            "lastTransitionTime": stamp(),
        }
        self.server.change(JOB, owner["name"], lambda raw: raw["status"].update(conditions=[final], active=0))

    def _update(self, name: str, change: Callable[[Json], Any], uid: str = "") -> bool:
        """Change a pod's status, if it is still the same pod."""
        pod = self.server.find(POD, name)
        if pod is None or (uid and pod["metadata"]["uid"] != uid):
            return False
        self.server.change(POD, name, lambda raw: change(raw["status"]))
        return True


def _later(seconds: float, do: Callable[[], Any]) -> None:
    # A loop gives timers of the same moment no order; here they keep theirs.
    loop = asyncio.get_running_loop()
    loop.call_later(seconds + next(_ORDER) * 1e-7, do)


def _compact(report: CompactReport) -> str:
    return report.model_dump_json(exclude_defaults=True)


def _container(state: Json) -> Json:
    return {"containerStatuses": [{"name": "runner", "state": state}]}


def _disrupted(reason: str) -> Json:
    return {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "the node goes"}


def _condition(status: str, reason: str = "", message: str = "") -> Json:
    return {
        "type": "PodScheduled",
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": stamp(),
    }
