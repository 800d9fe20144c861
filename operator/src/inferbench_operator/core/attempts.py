"""Judges one attempt: where it stands, what it yielded, why it failed, and when to look again.

Job ──> no pod ──> unschedulable ──> starting ──> running ──> ended
          └────── waiting ─────────────┘             │          ├─ measured cells
                    │ scheduling / start deadline    │          └─ failed cells, with reason
                    └────────────> ended <───────────┘ measure deadline
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from inferbench_operator.core.facts import Attempt, ClusterWarning, Pod, Termination
from inferbench_operator.core.names import Reason
from inferbench_operator.core.reports import printable
from inferbench_operator.models.execution import ExecutionPolicy
from inferbench_runner import contract as runner
from inferbench_runner.contract import Caveat, CellFailed, CellMeasured, Position

# Job and pod are watched apart, so the end of a Job may be seen before that of its pod, which alone has the figures.
_LAST_CALL = timedelta(seconds=10)
# The runner ends by itself when its deadline passes, and keeps what it has; only one that hangs is cut off.
DEADLINE_GRACE = timedelta(seconds=60)
# The kubelet has so much longer than a pod's own grace to say that it has ended.
_LOST_GRACE = timedelta(seconds=30)
_SIGTERM_EXIT_CODE = 143
# Of a runner that was told to end, or killed because it did not.
_STOPPED_EXIT_CODES = {_SIGTERM_EXIT_CODE, 137}
_ENDS_OF_OTHER_CAUSES = {0, runner.INVALID_PLAN_EXIT_CODE, runner.DEADLINE_EXIT_CODE, _SIGTERM_EXIT_CODE}
# The reason of a Job whose only pod failed, or was deleted.
_POD_FAILED = "BackoffLimitExceeded"
# Kubernetes' reasons in the pod condition DisruptionTarget.
_DISRUPTIONS = {
    "PreemptionByScheduler": (Reason.PREEMPTED, "A pod of higher priority took its place"),
    "DeletionByTaintManager": (Reason.NODE_LOST, "Its node got a taint that it doesn't tolerate, or is out of reach"),
    "DeletionByPodGC": (Reason.NODE_LOST, "Its node is gone"),
    "EvictionByEvictionAPI": (Reason.DRAINED, "Its node is drained, as for a spot interruption or a consolidation"),
    "TerminationByKubelet": (Reason.NODE_SHUTDOWN, "Its node shuts down, or needs its place for a critical pod"),
}
# Of a container that was gone when its runtime, or else the kubelet, came back.
_UNSEEN_ENDS = {"Unknown", "ContainerStatusUnknown"}
# Reasons for which a container waits: those that time does not mend, those of an image that does not come, and all that
# say more than that its deadline has passed.
_HOPELESS = {"InvalidImageName", "ErrImageNeverPull"}
_PULLS = {"ErrImagePull", "ImagePullBackOff"}
TYPED_WAITS = {
    *_HOPELESS,
    *_PULLS,
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    Reason.QUEUE_MISSING,
}
# How Kueue says that a Job's LocalQueue, or the ClusterQueue behind it, is not there.
_NO_QUEUE = " doesn't exist"
# What registries say of an image that another pod would not get either.
_NEVER_PULLED = ("not found", "manifest unknown", "denied", "unauthorized", "authorization failed", "no match for")


class Stage(StrEnum):
    """Where an attempt stands."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a cell has no figures."""

    reason: str
    message: str
    retryable: bool = True


@dataclass(frozen=True, slots=True)
class Judgement:
    """What an attempt amounts to."""

    attempt: Attempt
    stage: Stage
    reason: str = ""
    """Why it waits; empty otherwise."""
    message: str = ""
    look_again_at: datetime | None = None
    """The next deadline of an attempt that goes on."""
    overdue: bool = False
    """Whether the attempt ended because a deadline passed, so that its Job must be removed."""
    measured: Mapping[str, CellMeasured] = field(default_factory=dict)
    failed: Mapping[str, Failure] = field(default_factory=dict)
    culprit: str = ""
    """Cell that the runner, supervisor and all, died on."""


def judge(
    attempt: Attempt, policy: ExecutionPolicy, now: datetime, queue_deadline: datetime | None = None
) -> Judgement:
    """Return what the attempt amounts to at the time `now`.

    A queue that is not there is waited for until `queue_deadline`, or from now on.
    """
    if attempt.suspended and not attempt.deleting and not attempt.finished_at:
        return _queued(attempt, policy, now, queue_deadline)
    if attempt.pod and attempt.pod.gone_at and attempt.started_at and attempt.pod.created_at < attempt.started_at:
        # Of the time before its queue took the Job back. One that is not on its way out is of this time: when a Job is
        # resumed, its start is written down after its pod is made, and may so be in the next second.
        attempt = replace(attempt, pod=None)
    if attempt.pod and (found := _pod_ended(attempt, attempt.pod, now)):
        return found
    if attempt.finished_at:
        return _job_ended(attempt, attempt.finished_at + _LAST_CALL, now)
    if attempt.deleting:
        return _all_failed(attempt, _job_lost())
    found = _in_progress(attempt, policy, now)
    if attempt.pod and attempt.pod.gone_at and found.look_again_at:
        return replace(found, look_again_at=min(found.look_again_at, attempt.pod.gone_at + _LOST_GRACE))
    return found


def _queued(attempt: Attempt, policy: ExecutionPolicy, now: datetime, deadline: datetime | None) -> Judgement:
    """Judge a Job that is held back: its queue may take as long as it likes, if there is one."""
    word = attempt.warning
    if word and word.message.endswith(_NO_QUEUE):
        message = f"{word.message}; create it, or correct runner.queueName."
        waiting = Judgement(attempt, Stage.WAITING, Reason.QUEUE_MISSING, message)
        limit = timedelta(seconds=policy.scheduling_deadline_seconds)
        return _until(deadline or now + limit, now, waiting, Reason.QUEUE_MISSING, limit)
    said = f": {word.message}" if word else "."
    message = f"The Job is suspended; its queue has not admitted it yet{said}"
    return Judgement(attempt, Stage.WAITING, Reason.QUEUED, message)


def _pod_ended(attempt: Attempt, pod: Pod, now: datetime) -> Judgement | None:
    if pod.terminated:
        return _ended(attempt, pod, pod.terminated)
    if pod.phase in {"Failed", "Succeeded"}:
        return _all_failed(attempt, _pod_failure(pod))
    if pod.gone_at and now >= pod.gone_at + _LOST_GRACE:
        # Nobody confirms its end: its node doesn't answer any more.
        return _all_failed(attempt, _disruption(pod) or _lost(), overdue=not attempt.deleting)
    return None


def _job_ended(attempt: Attempt, last_call: datetime, now: datetime) -> Judgement:
    if now >= last_call:
        return _all_failed(attempt, _job_failure(attempt))
    stage = Stage.RUNNING if attempt.pod and attempt.pod.started_at else Stage.WAITING
    message = "The Job has ended; its pod's last word is awaited."
    return Judgement(attempt, stage, Reason.POD_MISSING, message, look_again_at=last_call)


def _in_progress(attempt: Attempt, policy: ExecutionPolicy, now: datetime) -> Judgement:
    pod = attempt.pod
    if pod and pod.started_at:
        limit = timedelta(seconds=policy.measure_deadline_seconds)
        running = Judgement(attempt, Stage.RUNNING)
        return _until(pod.started_at + limit + DEADLINE_GRACE, now, running, Reason.MEASURE_DEADLINE, limit)
    if pod and pod.scheduled_at:
        reason, message = _word(pod.waiting_reason) or Reason.STARTING, pod.waiting_message
        if attempt.warning and not message:
            reason, message = _word(attempt.warning.reason) or reason, attempt.warning.message
        limit = timedelta(seconds=policy.start_deadline_seconds)
        waiting = Judgement(attempt, Stage.WAITING, reason, message)
        due = now if reason in _HOPELESS else pod.scheduled_at + limit
        return _until(due, now, waiting, Reason.START_DEADLINE, limit)
    if pod and pod.unschedulable:
        reason, message = Reason.UNSCHEDULABLE, pod.unschedulable
    elif pod:
        reason, message = Reason.SCHEDULING, _UNSEEN if now >= pod.created_at + _SOON else ""
    else:
        reason, message = _without_pod(attempt.warning)
    limit = timedelta(seconds=policy.scheduling_deadline_seconds)
    waiting = Judgement(attempt, Stage.WAITING, reason, message)
    # The time that the Job spent in a queue does not count.
    since = pod.created_at if pod else attempt.started_at or attempt.created_at
    return _until(since + limit, now, waiting, Reason.SCHEDULING_DEADLINE, limit)


_SOON: Final = timedelta(seconds=10)
"""Delay after which a pod counts as one that no scheduler has looked at."""
_UNSEEN: Final = "No scheduler has said anything about the pod. Is the one running that runner.schedulerName names?"


def is_silent(attempt: Attempt) -> bool:
    """Whether an attempt waits without telling for what; Events may know, or its queue."""
    pod = attempt.pod
    if attempt.deleting or attempt.finished_at:
        return False
    if attempt.suspended:
        return True
    return pod is None or (pod.scheduled_at is not None and not pod.started_at and not pod.waiting_message)


def _without_pod(warning: ClusterWarning | None) -> tuple[Reason, str]:
    if warning is None:
        return Reason.POD_MISSING, "The Job has no pod yet."
    reason = Reason.QUOTA_EXCEEDED if "exceeded quota" in warning.message else Reason.POD_REFUSED
    return reason, warning.message


def _until(deadline: datetime, now: datetime, judgement: Judgement, reason: Reason, limit: timedelta) -> Judgement:
    """Return `judgement` as long as the deadline lies ahead, otherwise its end."""
    if now < deadline:
        return replace(judgement, look_again_at=deadline)
    seconds = int(limit.total_seconds())
    doing = {
        Reason.QUEUE_MISSING: f"No queue took the Job within schedulingDeadlineSeconds ({seconds} s)",
        Reason.SCHEDULING_DEADLINE: f"No node took the pod within schedulingDeadlineSeconds ({seconds} s)",
        Reason.START_DEADLINE: f"The container did not start within startDeadlineSeconds ({seconds} s)",
        Reason.MEASURE_DEADLINE: f"The runner did not finish within measureDeadlineSeconds ({seconds} s)",
    }[reason]
    last = f": {judgement.message}" if judgement.message else "."
    if judgement.reason not in TYPED_WAITS:
        return _all_failed(judgement.attempt, Failure(reason, doing + last), overdue=True)
    again = judgement.reason not in {*_HOPELESS, "CreateContainerConfigError", Reason.QUEUE_MISSING} and not (
        judgement.reason in _PULLS and any(words in judgement.message.lower() for words in _NEVER_PULLED)
    )
    return _all_failed(judgement.attempt, Failure(judgement.reason, doing + last, retryable=again), overdue=True)


def _ended(attempt: Attempt, pod: Pod, end: Termination) -> Judgement:
    report = end.report
    disruption = _disruption(pod) or _deletion(attempt, pod, end) or _unseen_end(pod, end)
    # Of a disrupted runner only what it had finished counts: the rest is measured again, to the end.
    measured = {
        entry.cell: entry
        for entry in (report.measured if report else ())
        if not (disruption and end.exit_code and Caveat.FEWER_PROCESSES in entry.caveats)
    }
    typed = {entry.cell: _typed(entry) for entry in report.failed} if report else {}
    missing = [cell for cell in attempt.cells if cell not in measured and cell not in typed]
    if disruption:
        failed = dict.fromkeys(missing, disruption)
        return Judgement(attempt, Stage.ENDED, measured=measured, failed=typed | failed)
    doing = end.report.doing if end.report and _died_of_its_work(pod, end) else None
    culprit = doing.cell if doing and doing.cell in missing else None
    failed = typed | _unspoken(missing, _container_failure(pod, end), doing, culprit)
    return Judgement(attempt, Stage.ENDED, measured=measured, failed=failed, culprit=culprit or "")


def _typed(entry: CellFailed) -> Failure:
    return Failure(entry.reason, f"{printable(entry.message)} (in {entry.phase})", retryable=entry.reason.retryable)


def _unspoken(
    missing: Sequence[str], failure: Failure, doing: Position | None, culprit: str | None
) -> dict[str, Failure]:
    """Say why the cells have no figures of which the runner said nothing; blame the one that it died on, if any."""
    if doing is None or (doing.cell and not culprit):
        return dict.fromkeys(missing, failure)
    own = replace(failure, message=f"{failure.message} (in {doing.phase})")
    if not culprit:
        return dict.fromkeys(missing, own)
    where = f"cell {culprit} (in {doing.phase})"
    other = Failure(
        Reason.OTHER_CELL_FAILED, f"Not measured to the end: the runner ended on another shape, {where}; see there."
    )
    return {cell: own if cell == culprit else other for cell in missing}


def _died_of_its_work(pod: Pod, end: Termination) -> bool:
    """Whether what the runner was doing may be why it died; what is said of the pod itself, or a SIGTERM, is not."""
    return not pod.reason and (end.reason == "OOMKilled" or end.exit_code not in _ENDS_OF_OTHER_CAUSES)


def _container_failure(pod: Pod, end: Termination) -> Failure:
    """Say why a container ended without a word on some of its cells; the order is from the surest sign to the least."""
    if pod.reason == Reason.EVICTED:
        return _pod_failure(pod)
    if end.reason == "OOMKilled":
        return Failure(
            Reason.OUT_OF_MEMORY,
            "The kernel killed the runner for using more memory than its limit; raise spec.runner.resources.limits."
            "memory, or measure a smaller batch.",
        )
    said = f' Its last words: "{end.last_words}"' if end.last_words else ""
    if end.exit_code:
        return _exit_failure(end.exit_code, said)
    if end.report_error:
        return Failure(Reason.REPORT_INVALID, f"The runner's report is refused: {end.report_error}.")
    return Failure(Reason.NO_REPORT, "The runner ended without a report on this cell.")


def _exit_failure(code: int, said: str) -> Failure:
    match code:
        case runner.INVALID_PLAN_EXIT_CODE:
            why = "refused its plan; image and operator may be of different versions"
            return Failure(Reason.RUNNER_FAILED, f"The runner {why}.{said}", retryable=False)
        case runner.DEADLINE_EXIT_CODE:
            why = "had no time left to measure this; raise spec.execution.measureDeadlineSeconds"
            return Failure(Reason.MEASURE_DEADLINE, f"The runner {why}.")
        case 137:
            return Failure(Reason.RUNNER_KILLED, f"The runner was killed by SIGKILL before it had measured this.{said}")
        case _:
            return Failure(Reason.RUNNER_FAILED, f"The runner ended with exit code {code}.{said}")


def _disruption(pod: Pod) -> Failure | None:
    """Return why the cluster took the pod away; None where it did not, or for what the pod itself used up."""
    if not pod.disruption or pod.reason == Reason.EVICTED:
        return None
    reason, why = _DISRUPTIONS.get(pod.disruption, (Reason.POD_LOST, "The cluster took the pod away"))
    return Failure(reason, f"{why}: {pod.disruption_message or pod.disruption}")


def _deletion(attempt: Attempt, pod: Pod, end: Termination) -> Failure | None:
    """Return that somebody deleted the pod, or its Job, and so ended the runner; None where either ended by itself."""
    stopped = pod.gone_at and end.exit_code in _STOPPED_EXIT_CODES and end.reason != "OOMKilled"
    if not stopped or attempt.failed_reason not in {"", _POD_FAILED}:
        return None
    return _job_lost() if attempt.deleting else _lost()


def _unseen_end(pod: Pod, end: Termination) -> Failure | None:
    """Return that the container went down with its node, as in a restart; not with a pod that used up too much."""
    if end.reason not in _UNSEEN_ENDS or pod.reason:
        return None
    why = f"Its node restarted, or lost the container in another way: nobody saw its end ({end.reason})."
    return Failure(Reason.NODE_SHUTDOWN, why)


def _job_lost() -> Failure:
    return Failure(Reason.JOB_LOST, "The Job was deleted before its runner had reported.")


def _lost() -> Failure:
    return Failure(Reason.POD_LOST, "Its pod was deleted before it had reported.")


def _pod_failure(pod: Pod) -> Failure:
    if found := _disruption(pod):
        return found
    if pod.reason == Reason.EVICTED:
        return Failure(Reason.EVICTED, f"The node evicted the pod: {pod.message or 'no reason given.'}")
    if pod.phase == "Succeeded":
        return Failure(Reason.NO_REPORT, "The pod succeeded, but nothing is known of its container.")
    message = pod.message or "The pod failed before its container had ended."
    return Failure(_word(pod.reason) or Reason.RUNNER_FAILED, message)


def _job_failure(attempt: Attempt) -> Failure:
    if not attempt.failed_reason:
        return Failure(Reason.NO_REPORT, "The Job is complete, but its pod was removed before its report was read.")
    disrupted = _disruption(attempt.pod) if attempt.pod else _lost()
    if disrupted and attempt.failed_reason == _POD_FAILED:
        return disrupted
    return Failure(Reason.JOB_FAILED, f"The Job failed ({attempt.failed_reason}): {attempt.failed_message}")


def _word(reason: str) -> str:
    """Return a reason that others gave as a word that a status may hold; `OutOfnvidia.com/gpu` is none."""
    return re.sub(r"[^A-Za-z0-9_]|^[^A-Za-z]+", "", reason)[:64]


def _all_failed(attempt: Attempt, failure: Failure, *, overdue: bool = False) -> Judgement:
    return Judgement(attempt, Stage.ENDED, failed=dict.fromkeys(attempt.cells, failure), overdue=overdue)
