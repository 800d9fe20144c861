"""What must hold in every situation, in every version of every object that was ever there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pydantic import ValidationError

from inferbench_runner.contract import Caveat, CompactReport, FailureReason
from operator_testing.kstatus import kstatus
from situations.history import BENCHMARKS, JOBS, PODS, Json, Story, Version
from situations.scene import is_runner

GOOD = {"succeeded", "reused"}
"""States of cells that have figures."""


def broken_rules(story: Story) -> list[str]:
    """Return what does not hold, in sentences."""
    return [
        *_kstatus(story),
        *_stays_over(story),
        *_running(story),
        *_owners(story),
        *_measured_twice(story),
        *_broken_nodes(story),
        *_attempts(story),
        *_metadata(story),
    ]


def is_over(raw: Json) -> bool:
    """Whether the run of the benchmark's present generation is over, or can't begin."""
    status = raw["status"]
    refused = any((found["type"], found["status"]) == ("Accepted", "False") for found in status.get("conditions", []))
    current = status["observedGeneration"] == raw["metadata"]["generation"]
    return bool(current and (refused or "completionTime" in status.get("run", {})))


def _kstatus(story: Story) -> Iterator[str]:
    """A benchmark is in progress until its run is over, and then done or failed; never both."""
    for version in _alive(story, BENCHMARKS):
        raw, status = version.raw, version.raw["status"]
        true = {found["type"] for found in status.get("conditions", []) if found["status"] == "True"}
        states = [entry["state"] for entry in status.get("results", [])]
        good = bool(states) and set(states) <= GOOD
        wanted = ("Current" if good else "Failed") if is_over(raw) else "InProgress"
        if {"Reconciling", "Stalled"} <= true:
            yield f"both Reconciling and Stalled: {status['conditions']}"
        if kstatus(raw) != wanted:
            yield f"for kstatus {kstatus(raw)} instead of {wanted}: {status}"


def _stays_over(story: Story) -> Iterator[str]:
    """A run that is over stays over until somebody changes the benchmark."""
    ends: dict[tuple[str, int, str], str] = {}
    for version in _alive(story, BENCHMARKS):
        run = version.raw["status"].get("run")
        if run and is_over(version.raw):
            key = version.uid, version.raw["metadata"]["generation"], run["id"]
            end = run.get("completionTime", "")
            if ends.setdefault(key, end) != end:
                yield f"over once more: {version.raw['status']}"
        elif run and (version.uid, version.raw["metadata"]["generation"], run["id"]) in ends:
            yield f"no longer over: {version.raw['status']}"


def _running(story: Story) -> Iterator[str]:
    """A cell is running only if a container of its attempt had started before that was written."""
    started: dict[tuple[str, str, int], int] = {}
    for version in story.versions(PODS):
        statuses = version.raw["status"].get("containerStatuses") or [{}]
        if is_runner(version.raw) and not statuses[0].get("state", {"waiting": {}}).keys() <= {"waiting"}:
            labels = version.raw["metadata"]["labels"]
            for cell in _cells_of(version.raw):
                key = labels["inferbench.dev/run"], cell, int(labels["inferbench.dev/attempt"])
                started.setdefault(key, version.revision)
    for version in _alive(story, BENCHMARKS):
        status = version.raw["status"]
        for entry in status.get("results", []):
            key = status["run"]["id"], entry["cell"], entry["attempts"]
            if entry["state"] == "running" and started.get(key, version.revision) >= version.revision:
                yield f"running, but its pod had not started: {entry}"


def _owners(story: Story) -> Iterator[str]:
    """Every Job of ours belongs to a benchmark, so that it goes with it."""
    uids = {version.uid for version in story.versions(BENCHMARKS)}
    for version in story.versions(JOBS):
        owners = [owner for owner in version.raw["metadata"].get("ownerReferences", []) if owner.get("controller")]
        if [(owner["kind"], owner["uid"] in uids) for owner in owners] != [("InferenceBenchmark", True)]:
            yield f"a Job without an owner: {version.raw['metadata']}"


def _measured_twice(story: Story) -> Iterator[str]:
    """No two Jobs measured the same cell to the end in the same run."""
    measured = {
        (version.raw["metadata"]["labels"]["inferbench.dev/run"], cell, _owner(version.raw))
        for version in story.versions(PODS)
        if is_runner(version.raw)
        for cell in _measured_by(version.raw)
    }
    counts = Counter((run, cell) for run, cell, _ in measured)
    yield from (
        f"cell {cell} was measured {count} times in run {run}" for (run, cell), count in counts.items() if count > 1
    )


def _broken_nodes(story: Story) -> Iterator[str]:
    """No pod comes to a node on which a device of the same run has reported a fault of its own."""
    broken: set[tuple[str, str]] = set()
    placed: set[str] = set()
    for version in story.versions(PODS):
        node = version.raw["spec"].get("nodeName")
        if not node or not is_runner(version.raw):
            continue
        place = version.raw["metadata"]["labels"]["inferbench.dev/run"], node
        if version.uid not in placed and place in broken:
            yield f"on a broken node: {version.raw['metadata']['name']}"
        placed.add(version.uid)
        report = _report_of(version.raw)
        if report and any(entry.reason is FailureReason.HARDWARE_ERROR for entry in report.failed):
            broken.add(place)


def _attempts(story: Story) -> Iterator[str]:
    """The status counts the attempts of each cell as its Jobs are numbered."""
    made: dict[tuple[str, str], int] = {}
    for version in story.versions(JOBS):
        labels = version.raw["metadata"]["labels"]
        for cell in _cells_of(version.raw):
            key = labels["inferbench.dev/run"], cell
            made[key] = max(made.get(key, 0), int(labels["inferbench.dev/attempt"]))
    last = {version.uid: version.raw["status"] for version in story.versions(BENCHMARKS)}
    for status in last.values():
        for entry in status.get("results", []):
            count = made.get((status["run"]["id"], entry["cell"]), 0)
            if entry["attempts"] != count:
                yield f"{count} Jobs were made, and the status says: {entry}"


def _metadata(story: Story) -> Iterator[str]:
    """The operator leaves the objects of its users alone."""
    for version in story.versions(BENCHMARKS):
        if version.raw["metadata"].get("finalizers"):
            yield f"a finalizer: {version.raw['metadata']}"


def _alive(story: Story, kind: str) -> Iterator[Version]:
    return (
        version
        for version in story.versions(kind)
        if not version.deleted and "deletionTimestamp" not in version.raw["metadata"]
    )


def _cells_of(raw: Json) -> list[str]:
    cells: str = raw["metadata"].get("annotations", {}).get("inferbench.dev/cells", "")
    return cells.split(",")


def _owner(raw: Json) -> str:
    """Return the UID of a pod's Job; only one that its queue suspends has more than one pod."""
    return next((str(owner["uid"]) for owner in raw["metadata"].get("ownerReferences", [])), "")


def _measured_by(raw: Json) -> list[str]:
    """Return the cells that a pod has measured with all that was asked for."""
    report = _report_of(raw)
    return [entry.cell for entry in report.measured if Caveat.FEWER_PROCESSES not in entry.caveats] if report else []


def _report_of(raw: Json) -> CompactReport | None:
    end = (raw["status"].get("containerStatuses") or [{}])[0].get("state", {}).get("terminated", {})
    try:
        return CompactReport.model_validate_json(end.get("message", ""))
    except ValidationError:
        return None
