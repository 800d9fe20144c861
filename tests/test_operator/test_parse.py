"""Objects of the API server become facts; odd ones become facts too, or nothing."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferbench_operator.core.comparison import COMPARED
from inferbench_operator.core.facts import Pod, Termination
from inferbench_operator.core.measured import of_result
from inferbench_operator.kube import parse
from inferbench_operator.kube.cache import Cache
from inferbench_operator.kube.kinds import BENCHMARK, JOB, POD, RESULT, Kind
from inferbench_operator.kube.parse import Key
from inferbench_operator.models.status import BenchmarkStatus, CellState
from operator_testing.builders import measured, report
from operator_testing.recorded import Json, recorded

CELL = "0123456789"


def _time(clock: str) -> datetime:
    return datetime.fromisoformat(f"2026-01-05T{clock}+00:00")


def _pod(**status: Any) -> Pod:  # noqa: ANN401 - any JSON value
    raw = recorded("pod_running")
    raw["status"] |= status
    return parse.pod(raw)


def _terminated(**state: Any) -> Pod:  # noqa: ANN401 - any JSON value
    end = {"exitCode": 0, "startedAt": "2026-01-05T12:00:09Z", "finishedAt": "2026-01-05T12:01:00Z"} | state
    return _pod(phase="Succeeded", containerStatuses=[{"name": "runner", "state": {"terminated": end}}])


def _end(of: Pod) -> Termination:
    assert of.terminated
    return of.terminated


def test_a_benchmark() -> None:
    """Identity, specification and status."""
    of = parse.benchmark(recorded("benchmark"))
    assert (of.namespace, of.name, of.generation, of.resource_version) == ("team", "study", 2, "5000")
    assert of.spec
    assert of.spec.models[0].id == "google-bert/bert-base-uncased"
    assert of.status.run
    assert of.status.run.start_time == _time("12:00:00")
    assert of.status.results[0].state is CellState.RUNNING
    assert not of.deleting
    assert parse.benchmark(recorded("benchmark", deletionTimestamp="2026-01-05T12:00:00Z")).deleting


def test_a_benchmark_that_this_version_does_not_understand() -> None:
    """A sentence in place of its specification; a status of another version counts as none."""
    raw = recorded("benchmark")
    raw["spec"]["accelerators"][0]["kind"] = "TPU"
    raw["status"]["run"]["trigger"] = "Whim"
    of = parse.benchmark(raw)
    assert of.spec is None
    assert of.spec_error.startswith("spec.accelerators.0.kind: ")
    assert of.status == BenchmarkStatus()


def test_a_benchmark_nobody_has_seen() -> None:
    """No status yet."""
    raw = recorded("benchmark")
    raw["status"] = {"observedGeneration": -1}
    assert parse.benchmark(raw).status == BenchmarkStatus()
    del raw["status"]
    assert parse.benchmark(raw).status == BenchmarkStatus()


def test_fields_of_a_newer_schema_are_ignored() -> None:
    """A newer CRD must not stop this operator."""
    raw = recorded("benchmark")
    raw["spec"]["novelty"] = {"a": 1}
    assert parse.benchmark(raw).spec == parse.benchmark(recorded("benchmark")).spec


def test_a_failed_job() -> None:
    """Why and since when; what it was for."""
    of = parse.attempt(recorded("job_failed"))
    assert (of.run, of.plan, of.number, of.cells) == ("0123abcd", "9f8e7d6c5b", 1, (CELL, "abcdef0123"))
    assert (of.failed_reason, of.failed_message) == (
        "BackoffLimitExceeded",
        "Job has reached the specified backoff limit",
    )
    assert (of.created_at, of.started_at, of.finished_at) == (_time("12:00:00"), _time("12:00:00"), _time("12:01:01"))
    assert of.image == "inferbench/runner-cpu:0.1.0"


def test_a_job_that_has_failed_but_not_ended() -> None:
    """FailureTarget comes first; the Job has ended when all its pods have."""
    raw = recorded("job_failed")
    del raw["status"]["conditions"][1]
    of = parse.attempt(raw)
    assert of.finished_at is None
    assert of.failed_reason == ""


def test_a_complete_job() -> None:
    """It has ended without a failure."""
    raw = recorded("job_failed")
    raw["status"]["conditions"] = [{"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-05T12:02:00Z"}]
    of = parse.attempt(raw)
    assert (of.finished_at, of.failed_reason) == (_time("12:02:00"), "")


@pytest.mark.parametrize(
    ("suspend", "condition", "suspended"),
    [
        pytest.param(True, "True", True, id="in its queue"),
        pytest.param(True, "False", True, id="just put back"),
        pytest.param(False, "True", True, id="admitted, but not yet started: its deadline can't be told yet"),
        pytest.param(False, "False", False, id="admitted and started"),
    ],
)
def test_a_queued_job(suspend: bool, condition: str, suspended: bool) -> None:  # noqa: FBT001 - columns
    """A Job counts as suspended until the time of its start is known."""
    raw = recorded("job_failed")
    raw["spec"]["suspend"] = suspend
    raw["status"]["conditions"] = [{"type": "Suspended", "status": condition}]
    assert parse.attempt(raw).suspended is suspended


def test_a_new_job() -> None:
    """Without any status."""
    raw = recorded("job_failed")
    del raw["status"]
    of = parse.attempt(raw)
    assert (of.started_at, of.finished_at, of.suspended) == (None, None, False)


def test_a_running_pod() -> None:
    """Its own container's times, not those of one that a mesh has added."""
    of = _pod()
    assert (of.scheduled_at, of.started_at) == (_time("12:00:02"), _time("12:00:09"))
    assert (of.node, of.phase) == ("ip-10-0-1-7.ec2.internal", "Running")


def test_an_unschedulable_pod() -> None:
    """The scheduler's own words."""
    words = "0/3 nodes are available: 3 Insufficient aws.amazon.com/neuron."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
    of = _pod(phase="Pending", conditions=[condition], containerStatuses=[])
    assert (of.unschedulable, of.scheduled_at) == (words, None)


def test_a_waiting_container() -> None:
    """The kubelet's own words."""
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    of = _pod(containerStatuses=[{"name": "runner", "state": {"waiting": waiting}}])
    assert (of.waiting_reason, of.waiting_message, of.started_at) == (
        "ImagePullBackOff",
        "Back-off pulling image",
        None,
    )


def test_a_report() -> None:
    """The termination message of cells that the pod was given."""
    said = report(measured(CELL))
    end = _end(_terminated(message=said.model_dump_json(), reason="Completed"))
    assert (end.report, end.report_error, end.finished_at) == (said, "", _time("12:01:00"))


def test_a_message_that_is_no_report() -> None:
    """Refused, with its last line for people."""
    end = _end(_terminated(message="Traceback:\nKeyError: 7\n", exitCode=1, reason="Error"))
    assert end.report is None
    assert end.report_error
    assert end.last_words == "KeyError: 7"


def test_a_report_on_another_pods_cells() -> None:
    """Refused: the pod's own annotation says what it may speak of."""
    end = _end(_terminated(message=report(measured("9999999999")).model_dump_json()))
    assert end.report is None
    assert "not in its plan" in end.report_error


def test_a_container_that_the_kubelet_has_lost() -> None:
    """Its times are null, as a real kubelet writes them after a restart of the node."""
    of = _terminated(
        exitCode=137,
        reason="ContainerStatusUnknown",
        message="The container could not be located when the pod was terminated",
        startedAt=None,
        finishedAt=None,
    )
    assert (_end(of).exit_code, _end(of).finished_at) == (137, _time("12:00:01"))


def test_an_evicted_pod() -> None:
    """Reason and message are the pod's own."""
    of = _pod(phase="Failed", reason="Evicted", message="low on memory", containerStatuses=None, conditions=None)
    assert (of.phase, of.reason, of.message, of.terminated) == ("Failed", "Evicted", "low on memory", None)


def test_a_result() -> None:
    """What it says of the cell."""
    of = parse.result(recorded("result"))
    assert of
    assert (of.spec.cell, of.status.run, of.status.latency.call.p95.value_microseconds) == (CELL, "0123abcd", 5000)


def test_what_is_in_a_result_for_readers_only_takes_no_memory() -> None:
    """Neither does it matter to decisions, so that words which a newer version adds there make no result unreadable."""
    raw = recorded("result")
    call = raw["status"]["latency"]["call"]
    raw["status"] |= {
        "latency": {"call": call, "endToEnd": call, "quantum": {}},
        "caveats": [{"caveat": "Moonlight", "message": ""}],
        "histogram": "x" * 10_000,
        "noise": {"stealPercent": 0.5},
        "provenance": {"torch": "2.9.0"},
    }
    assert parse.result(raw) == parse.result(recorded("result"))


def test_a_long_token_is_told_from_another() -> None:
    """However late they differ; the status holds 64 characters of each."""
    first, second = (
        parse.benchmark(recorded("benchmark", annotations={"inferbench.dev/rerun": 100 * "x" + end})).rerun
        for end in "12"
    )
    assert first != second
    assert len(first) == len(second) == 64


def test_what_gates_and_comparisons_need_of_a_result_is_kept() -> None:
    """All their figures, and the circumstances that must agree."""
    raw = recorded("result")
    circumstances = dict.fromkeys(COMPARED, "something")
    cost = {"usdPerMillionInferences": "0.5", "usdPerHour": "1", "pricing": "Spot", "instanceType": "inf2.xlarge"}
    raw["status"] |= {"cost": cost, "provenance": circumstances | {"torch": "2.9.0"}}
    of = parse.result(raw)
    assert of
    found = of_result(of)
    assert found.figures.keys() == {"P50", "P95", "P99", "Throughput", "Cost"}
    assert found.circumstances == circumstances


def test_a_result_that_does_not_fit_counts_as_none() -> None:
    """The cell is measured again."""
    raw = recorded("result")
    del raw["status"]["latency"]["call"]["p95"]
    assert parse.result(raw) is None


def test_keys_and_owners() -> None:
    """A benchmark is its own key; everything else has a label."""
    assert parse.key_of(recorded("benchmark")) == parse.key_of(recorded("job_failed")) == Key("team", "study")
    assert parse.key_of(recorded("pod_running", labels={})) is None
    assert parse.key_of(recorded("pod_running", labels=None)) is None
    assert parse.owner_uid(recorded("job_failed")) == "11111111-1111-1111-1111-111111111111"
    assert parse.owner_uid(recorded("benchmark")) == ""
    assert parse.owner_uid(recorded("job_failed", ownerReferences=[{"uid": "x", "controller": False}])) == ""


def _places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:  # noqa: ANN401
    """Return the paths of all values inside a JSON value."""
    inner: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    for step, below in inner:
        yield (*path, step)
        yield from _places(below, (*path, step))


_IDENTITY = {("metadata",), ("metadata", "uid"), ("metadata", "namespace"), ("metadata", "name")}
_KINDS = {"benchmark": BENCHMARK, "job_failed": JOB, "pod_running": POD, "result": RESULT}


def _with(raw: Json, path: tuple[str | int, ...], value: object) -> Json:
    changed = copy.deepcopy(raw)
    at: Any = changed
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return changed


@pytest.mark.parametrize(("name", "kind"), _KINDS.items())
@pytest.mark.parametrize("value", [None, "", "x", -1, [], {}, [None], {"a": None}], ids=repr)
def test_nothing_odd_in_an_object_stops_the_operator(name: str, kind: Kind, value: object) -> None:
    """Whatever a single field is replaced by, the object is read or left out; no exception comes out of the cache."""
    raw = recorded(name)
    for path in _places(raw):
        if path in _IDENTITY or path[:2] in {("metadata", "resourceVersion"), ("metadata", "labels")}:
            continue
        Cache().put(kind, _with(raw, path, value))


@settings(deadline=None)
@given(st.sampled_from(sorted(_KINDS)), st.data())
def test_a_null_is_as_good_as_nothing(name: str, data: st.DataObject) -> None:
    """In the status, where others write, an absent field may also be null."""
    raw = recorded(name)
    paths = [path for path in _places(raw.get("status", {})) if isinstance(path[-1], str)]
    path = data.draw(st.sampled_from(paths))
    read = {BENCHMARK: parse.benchmark, JOB: parse.attempt, POD: parse.pod, RESULT: parse.result}[_KINDS[name]]
    if path[-1] not in {"type", "name"}:
        read(_with(raw, ("status", *path), None))
