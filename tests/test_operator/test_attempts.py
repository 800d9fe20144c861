"""What an attempt amounts to, in every state that Job and pod can be in."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from inferbench_operator.core import names
from inferbench_operator.core.attempts import Judgement, Stage, judge
from inferbench_operator.core.facts import Attempt, ClusterWarning, Pod
from inferbench_operator.core.names import Reason
from inferbench_operator.models.execution import ExecutionPolicy
from inferbench_operator.models.status import CellState, CellStatus
from inferbench_runner.contract import Caveat, CellMeasured, FailureReason, Phase, Position, Precision
from operator_testing.builders import NOW, ago, attempt_of, benchmark, ended, failed, measured, pod, report, running

A, B, C = "0123456789", "abcdef0123", "00000000cc"
POLICY = ExecutionPolicy(scheduling_deadline_seconds=300, start_deadline_seconds=200, measure_deadline_seconds=100)


def _attempt(of_pod: Pod | None = None, **changes: Any) -> Attempt:  # noqa: ANN401 - any field
    return attempt_of(benchmark(), [A, B], pod=of_pod, **changes)


def _judge(attempt: Attempt) -> Judgement:
    before = repr(attempt)
    judgement = judge(attempt, POLICY, NOW)
    assert repr(attempt) == before
    return judgement


WAITING_ROWS = [
    pytest.param(_attempt(), Reason.POD_MISSING, -240, id="a Job without a pod waits from its creation"),
    pytest.param(
        _attempt(started_at=ago(10)), Reason.POD_MISSING, -290, id="a Job from a queue waits from its admission"
    ),
    pytest.param(_attempt(pod()), Reason.SCHEDULING, -240, id="a pod that the scheduler has not seen waits"),
    pytest.param(
        _attempt(pod(created_at=ago(20)), created_at=ago(9999)),
        Reason.SCHEDULING,
        -280,
        id="a pod waits from its own creation, however long its Job was queued",
    ),
    pytest.param(_attempt(pod(unschedulable="0/3 nodes")), Reason.UNSCHEDULABLE, -240, id="a pod finds no node"),
    pytest.param(
        _attempt(pod(scheduled_at=ago(50))), Reason.STARTING, -150, id="a pod on a node gets the start deadline"
    ),
    pytest.param(
        _attempt(pod(scheduled_at=ago(50), waiting_reason="ImagePullBackOff", waiting_message="no such image")),
        "ImagePullBackOff",
        -150,
        id="an image that can't be pulled is said so",
    ),
    pytest.param(
        _attempt(warning=ClusterWarning("FailedCreate", "exceeded quota: gpus")),
        Reason.QUOTA_EXCEEDED,
        -240,
        id="a quota leaves no room for a pod",
    ),
    pytest.param(
        _attempt(warning=ClusterWarning("FailedCreate", 'serviceaccount "x" not found')),
        Reason.POD_REFUSED,
        -240,
        id="the API server takes no such pod",
    ),
    pytest.param(
        _attempt(pod(scheduled_at=ago(50)), warning=ClusterWarning("FailedMount", "no such volume")),
        "FailedMount",
        -150,
        id="a volume does not come",
    ),
    pytest.param(_attempt(running(), deleting=False), "", -130, id="a runner at work gets its deadline and a grace"),
    pytest.param(
        _attempt(running(), finished_at=ago(3), failed_reason="BackoffLimitExceeded"),
        Reason.POD_MISSING,
        -7,
        id="the end of a Job that is seen before that of its pod waits for the pod's last word",
    ),
    pytest.param(
        _attempt(finished_at=ago(3)), Reason.POD_MISSING, -7, id="so does one whose pod has not been seen at all"
    ),
]


@pytest.mark.parametrize(("attempt", "reason", "due"), WAITING_ROWS)
def test_an_attempt_goes_on_until_its_deadline(attempt: Attempt, reason: str, due: int) -> None:
    """Nothing has failed, and there is a time to look again."""
    judgement = _judge(attempt)
    assert judgement.stage is (Stage.RUNNING if attempt.pod and attempt.pod.started_at else Stage.WAITING)
    assert judgement.reason == reason
    assert judgement.look_again_at == ago(due)
    assert not judgement.failed
    assert not judgement.overdue


def test_a_queued_job_has_no_deadline() -> None:
    """How long a queue takes is not the operator's business."""
    judgement = _judge(_attempt(suspended=True, created_at=ago(99_999)))
    assert (judgement.stage, judgement.reason, judgement.look_again_at) == (Stage.WAITING, Reason.QUEUED, None)


@pytest.mark.parametrize("queue", ["LocalQueue", "ClusterQueue"])
def test_a_queue_that_is_not_there_is_waited_for_as_long_as_for_a_node(queue: str) -> None:
    """In both versions of Kueue's reason; after that no other Job would fare better."""

    def found(deadline: datetime | None, reason: str = "Inadmissible") -> Judgement:
        word = ClusterWarning(reason, f"{queue} team-b doesn't exist")
        return judge(_attempt(suspended=True, created_at=ago(99_999), warning=word), POLICY, NOW, deadline)

    waiting = found(None, "Misconfigured")
    assert (waiting.stage, waiting.reason, waiting.look_again_at) == (Stage.WAITING, "QueueMissing", ago(-300))
    assert found(ago(-1)).look_again_at == ago(-1)
    assert waiting.message == f"{queue} team-b doesn't exist; create it, or correct runner.queueName."
    (failure,) = set(found(NOW).failed.values())
    assert (failure.reason, failure.retryable) == ("QueueMissing", False)
    assert "schedulingDeadlineSeconds (300 s)" in failure.message
    assert "team-b" in failure.message


@pytest.mark.parametrize(
    "of_pod", [None, running(), ended(exit_code=143), ended(exit_code=143, disruption="EvictionByEvictionAPI")]
)
def test_a_job_that_its_queue_takes_back_has_not_failed(of_pod: Pod | None) -> None:
    """Whatever has become of its pod; the queue's own words say why, where it has any."""
    judgement = _judge(_attempt(of_pod, suspended=True, warning=ClusterWarning("Pending", "no quota")))
    assert (judgement.stage, judgement.reason) == (Stage.WAITING, Reason.QUEUED)
    assert "no quota" in judgement.message


def test_a_pod_of_the_time_before_the_queue_took_the_job_back_counts_for_nothing() -> None:
    """Its successor is awaited."""
    old = replace(ended(exit_code=143), created_at=ago(60), gone_at=ago(10))
    judgement = _judge(_attempt(old, started_at=ago(20)))
    assert (judgement.stage, judgement.reason) == (Stage.WAITING, Reason.POD_MISSING)
    assert _judge(_attempt(old, started_at=ago(60))).stage is Stage.ENDED


def test_a_pod_that_was_made_in_the_second_before_its_jobs_start_counts() -> None:
    """The Job controller makes the pod of a resumed Job first, and then writes down when the Job has started."""
    assert _judge(_attempt(replace(running(), created_at=ago(60)), started_at=ago(59))).stage is Stage.RUNNING


DEADLINE_ROWS = [
    pytest.param(_attempt(created_at=ago(300)), Reason.SCHEDULING_DEADLINE, "300 s", id="a Job never got a pod"),
    pytest.param(
        _attempt(pod(created_at=ago(301), unschedulable="0/3 nodes: no neuron")),
        Reason.SCHEDULING_DEADLINE,
        "0/3 nodes: no neuron",
        id="no node took the pod, in the scheduler's words",
    ),
    pytest.param(
        _attempt(pod(scheduled_at=ago(200), waiting_reason="ContainerCreating", waiting_message="mounting")),
        Reason.START_DEADLINE,
        "mounting",
        id="the container did not start, in the kubelet's words",
    ),
    pytest.param(
        _attempt(pod(scheduled_at=ago(200), waiting_reason="ImagePullBackOff", waiting_message="i/o timeout")),
        "ImagePullBackOff",
        "i/o timeout",
        id="the image could not be pulled, which may be the registry's fault",
    ),
    pytest.param(
        _attempt(pod(scheduled_at=ago(200), waiting_reason="CreateContainerError", waiting_message="no such device")),
        "CreateContainerError",
        "no such device",
        id="the container could not be made, which may be the node's fault",
    ),
    pytest.param(
        _attempt(running(started_at=ago(160))), Reason.MEASURE_DEADLINE, "100 s", id="the runner hangs after its grace"
    ),
]


@pytest.mark.parametrize(("attempt", "reason", "words"), DEADLINE_ROWS)
def test_a_deadline_ends_the_attempt_and_removes_its_job(attempt: Attempt, reason: Reason, words: str) -> None:
    """Exactly at the deadline; all cells may be tried again."""
    judgement = _judge(attempt)
    assert judgement.stage is Stage.ENDED
    assert judgement.overdue
    assert set(judgement.failed) == {A, B}
    assert judgement.failed[A].reason == reason
    assert judgement.failed[A].retryable
    assert words in judgement.failed[A].message


FINAL_ROWS = [
    pytest.param(200, "ErrImagePull", "pull access denied", id="an image that is not to be had"),
    pytest.param(200, "ImagePullBackOff", "manifest unknown: not found", id="an image that is not there"),
    pytest.param(200, "CreateContainerConfigError", 'secret "hub" not found', id="a secret that did not come"),
    pytest.param(1, "InvalidImageName", "couldn't parse image", id="a name that is none, at once"),
    pytest.param(1, "ErrImageNeverPull", "not present", id="an image that may not be pulled, at once"),
]


@pytest.mark.parametrize(("age", "reason", "words"), FINAL_ROWS)
def test_what_would_happen_again_is_not_tried_again(age: int, reason: str, words: str) -> None:
    """The reason is the kubelet's own, and so are the words."""
    judgement = _judge(_attempt(pod(scheduled_at=ago(age), waiting_reason=reason, waiting_message=words)))
    assert judgement.overdue
    assert {(failure.reason, failure.retryable) for failure in judgement.failed.values()} == {(reason, False)}
    assert words in judgement.failed[A].message


DISRUPTED = {"disruption_message": "the node goes"}
DISRUPTION_ROWS = [
    pytest.param(_attempt(ended(exit_code=143, disruption=word, **DISRUPTED)), reason, "the node goes", id=word)
    for word, reason in (
        ("PreemptionByScheduler", "Preempted"),
        ("DeletionByTaintManager", "NodeLost"),
        ("DeletionByPodGC", "NodeLost"),
        ("EvictionByEvictionAPI", "Drained"),
        ("TerminationByKubelet", "NodeShutdown"),
        ("SomethingNew", "PodLost"),
    )
]
DISRUPTION_ROWS += [
    pytest.param(
        _attempt(pod(phase="Failed", disruption="DeletionByPodGC", **DISRUPTED)),
        "NodeLost",
        "the node goes",
        id="a failed pod whose container nobody has seen to end",
    ),
    pytest.param(
        _attempt(running(disruption="DeletionByTaintManager", gone_at=ago(30), **DISRUPTED)),
        "NodeLost",
        "the node goes",
        id="a pod whose end nobody confirms",
    ),
    pytest.param(_attempt(running(gone_at=ago(30))), "PodLost", "deleted", id="a deleted pod on a silent node"),
    pytest.param(_attempt(ended(exit_code=143, gone_at=ago(1))), "PodLost", "deleted", id="a pod that is deleted"),
    pytest.param(
        _attempt(ended(exit_code=137, reason="ContainerStatusUnknown", gone_at=ago(1))),
        "PodLost",
        "deleted",
        id="a pod that is deleted before its container has started",
    ),
    pytest.param(
        _attempt(ended(exit_code=255, reason="Unknown")),
        "NodeShutdown",
        "restarted",
        id="a container that its runtime finds gone after a restart of the node",
    ),
    pytest.param(
        _attempt(ended(exit_code=137, reason="ContainerStatusUnknown")),
        "NodeShutdown",
        "restarted",
        id="a container that the kubelet can't find",
    ),
    pytest.param(
        _attempt(finished_at=ago(11), failed_reason="BackoffLimitExceeded"), "PodLost", "deleted", id="no pod any more"
    ),
    pytest.param(
        _attempt(
            running(disruption="PreemptionByScheduler", **DISRUPTED),
            finished_at=ago(11),
            failed_reason="BackoffLimitExceeded",
        ),
        "Preempted",
        "the node goes",
        id="a failed Job whose pod was last seen running",
    ),
]


@pytest.mark.parametrize(("attempt", "reason", "words"), DISRUPTION_ROWS)
def test_a_disruption_is_told_from_a_failure(attempt: Attempt, reason: str, words: str) -> None:
    """By its reason, which has a budget of its own."""
    judgement = _judge(attempt)
    assert judgement.stage is Stage.ENDED
    assert {failure.reason for failure in judgement.failed.values()} == {reason} <= names.DISRUPTIONS
    assert set(judgement.failed) == {A, B}
    assert words in judgement.failed[A].message


def test_an_eviction_for_the_pods_own_use_is_a_failure() -> None:
    """The kubelet calls that a disruption too, but it would happen again."""
    judgement = _judge(_attempt(pod(phase="Failed", reason="Evicted", disruption="TerminationByKubelet")))
    assert judgement.failed[A].reason == Reason.EVICTED
    unseen = replace(ended(exit_code=137, reason="ContainerStatusUnknown"), reason="Evicted")
    assert _judge(_attempt(unseen)).failed[A].reason == Reason.EVICTED


def test_a_pod_that_is_deleted_gets_its_grace() -> None:
    """Its end is waited for, and half a minute longer."""
    judgement = _judge(_attempt(running(gone_at=ago(29))))
    assert (judgement.stage, judgement.look_again_at) == (Stage.RUNNING, ago(-1))


def test_only_what_a_disrupted_runner_had_finished_counts() -> None:
    """Figures of fewer processes than were asked for are measured again; at the end of a deadline they would stand."""
    few = measured(A).model_copy(update={"caveats": (Caveat.FEWER_PROCESSES,)})
    said = report(few, measured(B))
    judgement = _judge(_attempt(ended(said, exit_code=143, disruption="EvictionByEvictionAPI")))
    assert (set(judgement.measured), set(judgement.failed)) == ({B}, {A})
    assert set(_judge(_attempt(ended(said, exit_code=124))).measured) == {A, B}
    # It had come to its own end before the cluster took it away.
    assert set(_judge(_attempt(ended(said, disruption="EvictionByEvictionAPI"))).measured) == {A, B}


ENDED_ROWS = [
    pytest.param(_attempt(ended(exit_code=139)), Reason.RUNNER_FAILED, True, "exit code 139", id="segmentation fault"),
    pytest.param(
        _attempt(ended(exit_code=1, report_error="bad", last_words="KeyError: 7")),
        Reason.RUNNER_FAILED,
        True,
        "KeyError: 7",
        id="an uncaught error, with its last words",
    ),
    pytest.param(_attempt(ended(exit_code=2)), Reason.RUNNER_FAILED, False, "refused its plan", id="a refused plan"),
    pytest.param(_attempt(ended(exit_code=124)), Reason.MEASURE_DEADLINE, True, "no time left", id="its time was up"),
    pytest.param(_attempt(ended(exit_code=137)), Reason.RUNNER_KILLED, True, "SIGKILL", id="SIGKILL"),
    pytest.param(
        _attempt(ended(exit_code=137, reason="OOMKilled")), Reason.OUT_OF_MEMORY, True, "memory", id="out of memory"
    ),
    pytest.param(
        _attempt(ended(exit_code=0, reason="OOMKilled")),
        Reason.OUT_OF_MEMORY,
        True,
        "memory",
        id="out of memory that the exit code hides",
    ),
    pytest.param(
        _attempt(ended(exit_code=137, reason="OOMKilled", gone_at=ago(1))),
        Reason.OUT_OF_MEMORY,
        True,
        "memory",
        id="out of memory before somebody deleted the pod",
    ),
    pytest.param(
        _attempt(ended(exit_code=143, gone_at=ago(1)), finished_at=ago(1), failed_reason="DeadlineExceeded"),
        Reason.RUNNER_FAILED,
        True,
        "exit code 143",
        id="a pod that the Job controller deletes when the Job's own time is up",
    ),
    pytest.param(
        _attempt(ended(exit_code=143, gone_at=ago(1)), deleting=True),
        Reason.JOB_LOST,
        True,
        "The Job was deleted",
        id="a pod that goes with its Job",
    ),
    pytest.param(_attempt(ended()), Reason.NO_REPORT, True, "without a report", id="a good end without a report"),
    pytest.param(
        _attempt(ended(report_error="it names a cell twice")),
        Reason.REPORT_INVALID,
        True,
        "it names a cell twice",
        id="a report that is refused",
    ),
    pytest.param(
        _attempt(ended(exit_code=137, reason="Error", message="low on memory", phase="Failed")),
        Reason.RUNNER_KILLED,
        True,
        "SIGKILL",
        id="a message on the pod without the reason Evicted counts for nothing",
    ),
    pytest.param(
        _attempt(replace(ended(exit_code=137), reason="Evicted", message="low on memory")),
        Reason.EVICTED,
        True,
        "low on memory",
        id="an evicted pod whose container was seen to end",
    ),
    pytest.param(
        _attempt(pod(phase="Failed", reason="Evicted", message="low on disk")),
        Reason.EVICTED,
        True,
        "low on disk",
        id="an evicted pod whose container nobody has seen",
    ),
    pytest.param(
        _attempt(pod(phase="Failed", reason="OutOfaws.amazon.com/neuron", message="Pod was rejected")),
        "OutOfawsamazoncomneuron",
        True,
        "Pod was rejected",
        id="a pod that the kubelet rejects for want of a device, by a reason that a status can hold",
    ),
    pytest.param(_attempt(pod(phase="Failed")), Reason.RUNNER_FAILED, True, "before", id="a failed pod without words"),
    pytest.param(_attempt(pod(phase="Succeeded")), Reason.NO_REPORT, True, "nothing is known", id="an odd success"),
    pytest.param(
        _attempt(finished_at=ago(11), failed_reason="DeadlineExceeded", failed_message="was active too long"),
        Reason.JOB_FAILED,
        True,
        "(DeadlineExceeded): was active too long",
        id="a Job that failed by itself",
    ),
    pytest.param(
        _attempt(running(), finished_at=ago(11), failed_reason="DeadlineExceeded", failed_message="too long"),
        Reason.JOB_FAILED,
        True,
        "too long",
        id="a failed Job whose pod stays silent",
    ),
    pytest.param(
        _attempt(finished_at=ago(11)), Reason.NO_REPORT, True, "pod was removed", id="a complete Job without its pod"
    ),
    pytest.param(_attempt(running(), deleting=True), Reason.JOB_LOST, True, "deleted", id="a Job that is deleted"),
    pytest.param(
        _attempt(deleting=True, suspended=True), Reason.JOB_LOST, True, "deleted", id="a queued Job that is deleted"
    ),
]


@pytest.mark.parametrize(("attempt", "reason", "retryable", "words"), ENDED_ROWS)
def test_an_attempt_that_has_ended_says_why(
    attempt: Attempt,
    reason: str,
    retryable: bool,  # noqa: FBT001 - a column
    words: str,
) -> None:
    """All its cells have failed for that reason."""
    judgement = _judge(attempt)
    assert judgement.stage is Stage.ENDED
    assert not judgement.overdue
    assert not judgement.measured
    assert set(judgement.failed) == {A, B}
    failure = judgement.failed[B]
    assert (failure.reason, failure.retryable) == (reason, retryable)
    assert words in failure.message


@pytest.mark.parametrize(
    "raw", ["Evicted", "OutOfnvidia.com/gpu", "1Strange", "-", "näh", "a:b,", "x" * 99, "two words", "_x"]
)
def test_any_reason_of_others_fits_into_a_status(raw: str) -> None:
    """Whatever a kubelet or a webhook invents, the benchmark goes on."""
    waits = _judge(_attempt(pod(scheduled_at=ago(1), waiting_reason=raw))).reason
    ends = _judge(_attempt(pod(phase="Failed", reason=raw))).failed[A].reason
    for reason in (waits, ends):
        assert reason
        CellStatus(
            cell=A,
            model="m",
            accelerator="a",
            precision=Precision.FP32,
            batch_size=1,
            state=CellState.FAILED,
            reason=reason,
        )


def test_a_partial_report_keeps_what_was_measured() -> None:
    """The killed runner had measured one of two shapes; only the other has failed."""
    judgement = _judge(_attempt(ended(report(measured(A)), exit_code=137)))
    assert set(judgement.measured) == {A}
    assert set(judgement.failed) == {B}
    assert judgement.failed[B].reason == Reason.RUNNER_KILLED


AT_B = Position(cell=B, phase=Phase.MEASURE)


def _killed(doing: Position | None, *entries: CellMeasured, **end: Any) -> Attempt:  # noqa: ANN401 - any field of it
    return attempt_of(benchmark(), [A, B, C], pod=ended(report(*entries, doing=doing), **end))


@pytest.mark.parametrize(
    ("end", "reason", "words"),
    [
        pytest.param({"exit_code": 137, "reason": "OOMKilled"}, Reason.OUT_OF_MEMORY, "more memory", id="memory"),
        pytest.param(
            {"exit_code": 0, "reason": "OOMKilled"}, Reason.OUT_OF_MEMORY, "more memory", id="memory of a child"
        ),
        pytest.param({"exit_code": 137}, Reason.RUNNER_KILLED, "SIGKILL", id="SIGKILL"),
        pytest.param({"exit_code": 139}, Reason.RUNNER_FAILED, "exit code 139", id="segmentation fault"),
        pytest.param({"exit_code": 1}, Reason.RUNNER_FAILED, "exit code 1.", id="uncaught error"),
    ],
)
def test_the_shape_that_a_runner_died_on_is_to_blame(end: dict[str, Any], reason: Reason, words: str) -> None:
    """It gets the reason and the phase; the others say which one it was, and are tried again."""
    judgement = _judge(_killed(AT_B, measured(A), **end))
    assert set(judgement.measured) == {A}
    guilty, other = judgement.failed[B], judgement.failed[C]
    assert words in guilty.message
    assert guilty.message.endswith(" (in measure)")
    assert other.message == (
        f"Not measured to the end: the runner ended on another shape, cell {B} (in measure); see there."
    )
    assert (guilty.reason, guilty.retryable) == (reason, True)
    assert (other.reason, other.retryable) == (Reason.OTHER_CELL_FAILED, True)
    assert judgement.culprit == B


def _evicted(reason: str) -> Attempt:
    """Return an attempt whose pod the kubelet ended, for a reason that is the pod's and not its container's."""
    of_pod = ended(report(doing=AT_B), exit_code=137)
    return attempt_of(benchmark(), [A, B, C], pod=replace(of_pod, reason=reason, message="low on memory"))


BLAMELESS_ROWS = [
    pytest.param(_evicted("Evicted"), id="the node evicted it"),
    pytest.param(_evicted("Terminated"), id="its node was shut down"),
    pytest.param(_killed(AT_B, exit_code=143), id="it was told to end"),
    pytest.param(_killed(AT_B, exit_code=124), id="its time was up"),
    pytest.param(_killed(AT_B, exit_code=0), id="it ended well"),
    pytest.param(_killed(AT_B, measured(B), exit_code=137), id="what it was at is measured"),
    pytest.param(_killed(None, exit_code=137), id="it did not say what it was at"),
]


@pytest.mark.parametrize("attempt", BLAMELESS_ROWS)
def test_no_shape_is_to_blame(attempt: Attempt) -> None:
    """All cells that are missing have failed alike."""
    assert not _judge(attempt).culprit
    failures = list(_judge(attempt).failed.values())
    assert len(failures) >= 2
    assert len(set(failures)) == 1
    assert "(in " not in failures[0].message


def test_work_for_all_shapes_names_its_phase() -> None:
    """A runner that dies while it loads the model dies for all of them."""
    failed_ = _judge(_killed(Position(phase=Phase.LOAD), exit_code=137, reason="OOMKilled")).failed
    assert set(failed_) == {A, B, C}
    assert len(set(failed_.values())) == 1
    assert failed_[A].message.endswith(" (in load)")


def test_the_longest_failure_of_a_shape_fits_into_the_status() -> None:
    """So that the phase at its end is not cut off."""
    at = Position(cell=B, phase=max(Phase, key=len))
    for failure in _judge(_killed(at, exit_code=137, reason="OOMKilled")).failed.values():
        CellStatus(
            cell=A,
            model="m",
            accelerator="a",
            precision=Precision.FP32,
            batch_size=1,
            state=CellState.FAILED,
            reason=failure.reason,
            message=failure.message,
        )


def test_a_report_counts_though_the_job_is_being_deleted() -> None:
    """Figures are figures, whoever clears away the Job."""
    judgement = _judge(_attempt(ended(report(measured(A), measured(B))), deleting=True, finished_at=ago(1)))
    assert set(judgement.measured) == {A, B}


@pytest.mark.parametrize("reason", FailureReason)
def test_a_typed_failure_is_taken_at_its_word(reason: FailureReason) -> None:
    """Reason, phase and whether to try again come from the runner's closed list."""
    judgement = _judge(_attempt(ended(report(measured(A), failed(B, reason, "Too\x1b long.")))))
    assert set(judgement.measured) == {A}
    failure = judgement.failed[B]
    assert failure.reason == reason
    assert failure.message == "Too long. (in measure)"
    assert failure.retryable is reason.retryable


@pytest.mark.parametrize("seconds", [0, 1, 299])
def test_deadlines_are_the_same_at_every_look(seconds: int) -> None:
    """A deadline is counted from what is stored, not from when the operator first looked."""
    attempt = _attempt(created_at=NOW)
    assert judge(attempt, POLICY, ago(-seconds)).look_again_at == ago(-300)
