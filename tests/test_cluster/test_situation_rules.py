"""The rules that hold in every situation do find what breaks them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from cluster import measured_report
from inferbench_runner.contract import (
    AcceleratorKind,
    CellFailed,
    CompactReport,
    Device,
    FailureReason,
    ModelRef,
    Phase,
    Plan,
    Shape,
)
from situations.history import BENCHMARKS, JOBS, PODS, Chronicle, Json, Story, Version
from situations.rules import broken_rules

CELL = "0123456789"
OWNER = {"kind": "InferenceBenchmark", "uid": "study", "controller": True}
DONE = (("Ready", "True"),)
FAILED = (("Stalled", "True"), ("Ready", "False"))
AT_WORK = (("Reconciling", "True"), ("Ready", "False"))
_PLAN = Plan(
    model=ModelRef(id="bert"), device=Device(kind=AcceleratorKind.CPU), shapes=(Shape(cell=CELL, sequence_length=8),)
)
MEASURED = measured_report(_PLAN).model_dump_json()
BROKEN = CompactReport(
    failed=(CellFailed(cell=CELL, phase=Phase.MEASURE, reason=FailureReason.HARDWARE_ERROR, message=""),)
).model_dump_json()


@dataclass
class Told:
    """Stands for a chronicle of one namespace."""

    told: list[Version]

    def versions(self, _namespace: str) -> list[Version]:
        """Return all of it."""
        return self.told


def _story(*objects: tuple[str, Json]) -> Story:
    """Return a story of these objects, one after the other."""
    versions = [Version(number, kind, raw, deleted=False) for number, (kind, raw) in enumerate(objects)]
    return Story(cast("Chronicle", Told(versions)), "team", 1)


def _study(state: str, conditions: Any = AT_WORK, *, attempts: int = 1, over: bool = False, **metadata: Any) -> Any:  # noqa: ANN401
    run = {"id": "run"} | ({"completionTime": "now"} if over else {})
    status = {
        "observedGeneration": 1,
        "conditions": [{"type": kind, "status": value} for kind, value in conditions],
        "run": run,
        "results": [{"cell": CELL, "state": state, "attempts": attempts}],
    }
    return BENCHMARKS, {"metadata": {"uid": "study", "generation": 1} | metadata, "status": status}


def _made(kind: str, uid: str, attempt: int, owner: Json, **more: Any) -> tuple[str, Json]:  # noqa: ANN401
    labels = {
        "inferbench.dev/benchmark": "study",
        "inferbench.dev/run": "run",
        "inferbench.dev/attempt": str(attempt),
    }
    annotations = {"inferbench.dev/cells": CELL}
    metadata = {"name": uid, "uid": uid, "labels": labels, "annotations": annotations, "ownerReferences": [owner]}
    return kind, {"metadata": metadata, "spec": {}, "status": {}} | more


def _job(attempt: int = 1, owner: Json = OWNER) -> tuple[str, Json]:
    return _made(JOBS, f"job-{attempt}", attempt, owner)


def _pod(state: str, attempt: int = 1, message: str = "", node: str = "a") -> tuple[str, Json]:
    status = {"containerStatuses": [{"state": {state: {"message": message} if message else {}}}]}
    owner = {"kind": "Job", "uid": f"job-{attempt}", "controller": True}
    return _made(PODS, f"pod-{attempt}", attempt, owner, status=status, spec={"nodeName": node})


STARTED = (_study("pending", attempts=0), _job(), _pod("waiting"))


def test_a_good_story_breaks_no_rule() -> None:
    """A cell waits, runs and is measured."""
    course = (_study("waiting"), _pod("running"), _study("running"), _pod("terminated", message=MEASURED))
    assert broken_rules(_story(*STARTED, *course, _study("succeeded", DONE, over=True))) == []


ROWS = [
    pytest.param((*STARTED, _study("running")), "running, but its pod had not started", id="running too soon"),
    pytest.param(
        (*STARTED, _pod("running"), _study("running", DONE)), "Current instead of InProgress", id="done too soon"
    ),
    pytest.param(
        (*STARTED, _study("failed", (("Ready", "False"),), over=True)),
        "InProgress instead of Failed",
        id="a failure that nobody sees",
    ),
    pytest.param(
        (*STARTED, _study("failed", DONE, over=True)), "Current instead of Failed", id="a failure that looks good"
    ),
    pytest.param((*STARTED, _study("waiting", (*AT_WORK, *FAILED))), "both Reconciling and Stalled", id="both"),
    pytest.param(
        (*STARTED, _study("failed", FAILED, over=True), _study("waiting")), "no longer over", id="a run that revives"
    ),
    pytest.param(
        (_study("waiting"), _job(owner={"kind": "Pod", "uid": "study", "controller": True})),
        "a Job without an owner",
        id="an orphan",
    ),
    pytest.param(
        (*STARTED, _pod("terminated", message=MEASURED), _job(2), _pod("terminated", 2, message=MEASURED)),
        "was measured 2 times",
        id="measured twice",
    ),
    pytest.param(
        (*STARTED, _pod("terminated", message=BROKEN), _job(2), _pod("waiting", 2)), "on a broken node", id="a bad node"
    ),
    pytest.param((*STARTED, _study("waiting", attempts=2)), "1 Jobs were made", id="an attempt that never was"),
    pytest.param((*STARTED, _study("waiting", finalizers=["ours"])), "a finalizer", id="a finalizer"),
]


@pytest.mark.parametrize(("objects", "words"), ROWS)
def test_a_broken_rule_is_found(objects: tuple[tuple[str, Json], ...], words: str) -> None:
    """And told in a sentence."""
    assert [sentence for sentence in broken_rules(_story(*objects)) if words in sentence]
