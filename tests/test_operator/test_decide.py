"""Facts in, decision out: the rules for one benchmark, one row each."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from inferbench_operator.core.decide import Decision, decide
from inferbench_operator.core.facts import Attempt, Benchmark, Observed, Pod, Result
from inferbench_operator.core.names import LABEL_ATTEMPT
from inferbench_operator.core.settings import Settings
from inferbench_operator.models.benchmark import BenchmarkSpec, Reuse
from inferbench_operator.models.status import BenchmarkStatus, CellState, CellStatus, ConditionType, Trigger
from inferbench_runner.contract import AcceleratorKind, FailureReason, Phase, Position, Verdict
from operator_testing.builders import (
    NOW,
    SETTINGS,
    ago,
    attempt_of,
    benchmark,
    cells_of,
    details,
    ended,
    failed,
    full_report,
    measured,
    observed,
    pod,
    report,
    result_of,
    run_of,
    running,
    spec,
)

TWO = spec(sequenceLengths=[8, 16])
A, B = (cell.hash for cell in cells_of(TWO))


def _decide(facts: Observed, settings: Settings = SETTINGS) -> Decision:
    before = repr(facts)
    decision = decide(facts, NOW, settings)
    assert repr(facts) == before
    assert decide(facts, NOW, settings) == decision
    return decision


def _started(wanted: BenchmarkSpec = TWO, *facts: Attempt | Result, **changes: Any) -> Benchmark:  # noqa: ANN401
    """Return a benchmark whose status is what the operator wrote when it saw the facts."""
    of = benchmark(wanted)
    for _ in range(2):
        status = _decide(observed(of, *facts)).status
        assert status
        of = replace(of, status=status)
    return replace(of, **changes)


def _status(decision: Decision) -> BenchmarkStatus:
    assert decision.status
    return decision.status


def _entry(decision: Decision, cell: str = A) -> CellStatus:
    return next(entry for entry in _status(decision).results if entry.cell == cell)


def _own(of: Benchmark, number: int = 1, cells: tuple[str, ...] = (A, B), **changes: Any) -> Attempt:  # noqa: ANN401
    return attempt_of(of, cells, number=number, **changes)


def _given_to(decision: Decision) -> list[list[str]]:
    return [job["metadata"]["annotations"]["inferbench.dev/cells"].split(",") for job in decision.create_jobs]


def test_a_new_benchmark_gets_a_run_before_it_gets_jobs() -> None:
    """The run's identity is stored first, and the next look follows at once."""
    decision = _decide(observed(benchmark(TWO)))
    run = _status(decision).run
    assert run
    assert (run.trigger, run.start_time, run.id) == (Trigger.CREATED, NOW, run_of(benchmark(TWO)))
    assert decision.urgent
    assert decision.create_jobs == ()
    assert decision.look_again_at == NOW
    assert [event.reason for event in decision.events] == ["RunStarted"]


def test_jobs_follow_once_the_run_is_stored() -> None:
    """One Job for the plan of both cells, and a look at once to set its deadline."""
    decision = _decide(observed(_started()))
    assert _given_to(decision) == [[A, B]]
    assert decision.look_again_at == NOW


def test_no_more_jobs_than_may_run_at_once() -> None:
    """The rest waits for its turn."""
    wanted = spec(models=[{"name": f"m{i}", "id": f"org/m{i}"} for i in range(5)], execution={"maxParallelJobs": 2})
    assert len(_decide(observed(_started(wanted))).create_jobs) == 2


def test_a_job_that_goes_on_is_left_alone() -> None:
    """Nothing to do before its deadline."""
    of = _started()
    decision = _decide(observed(of, _own(of, pod=running())))
    assert not decision.create_jobs
    assert not decision.delete_jobs
    assert _entry(decision).state is CellState.RUNNING
    assert decision.look_again_at == ago(30 - 3600 - 60)


def test_results_come_before_everything_else() -> None:
    """A decision with new results has nothing else in it, and is followed by another at once."""
    of = _started()
    decision = _decide(observed(of, _own(of, pod=ended(report(measured(A)), exit_code=139))))
    assert [write.manifest["spec"]["cell"] for write in decision.results] == [A]
    assert decision == Decision(results=decision.results, look_again_at=NOW)


def test_a_result_has_the_figures_and_where_they_come_from() -> None:
    """Run, attempt, node, image and time; details only where the full report has them."""
    of = _started()
    entry = measured(A)
    attempt = _own(of, pod=ended(report(entry, measured(B))), full_report=full_report(details(entry)))
    first, second = (write.manifest for write in _decide(observed(of, attempt)).results)
    status = first["status"]
    assert first["metadata"]["name"] == f"study-{A}"
    assert (status["run"], status["attempt"], status["node"]) == (run_of(of), 1, "node-1")
    assert status["runnerImage"] == "inferbench/runner-cpu:0.1.0"
    assert status["latency"]["call"]["p95"] == {
        "valueMicroseconds": 5000,
        "lowMicroseconds": 4950,
        "highMicroseconds": 5050,
    }
    assert (status["warmupCalls"], status["provenance"]) == (20, {"torch": "2.9.0"})
    assert "warmupCalls" not in second["status"]


def test_an_earlier_result_is_replaced() -> None:
    """The object of the cell stays the same; its figures are the new run's."""
    of = _started(spec(sequenceLengths=[8, 16], reuse="Never"))
    old = result_of(of, cells_of(TWO)[0])
    (write,) = _decide(observed(of, _own(of, pod=ended(report(measured(A)), exit_code=1)), old)).results
    assert write.replaces == old


def test_the_first_attempt_that_measured_a_cell_wins() -> None:
    """A second measurement of the same run is not written, whether the first is stored or not."""
    of = _started()
    first = _own(of, 1, pod=ended(report(measured(A, 4000)), exit_code=139))
    second = _own(of, 2, pod=ended(report(measured(A, 6000), measured(B, 6000))))
    writes = {w.manifest["spec"]["cell"]: w.manifest["status"] for w in _decide(observed(of, second, first)).results}
    assert (writes[A]["attempt"], writes[B]["attempt"]) == (1, 2)
    stored = result_of(of, cells_of(TWO)[0], run=run_of(of))
    (write,) = _decide(observed(of, first, second, stored)).results
    assert write.manifest["spec"]["cell"] == B


def test_only_the_missing_cells_are_tried_again() -> None:
    """The crashed runner had measured one cell; the next Job gets the other, and the failure is told."""
    of = _started()
    stored = result_of(of, cells_of(TWO)[0], run=run_of(of))
    decision = _decide(observed(of, _own(of, pod=ended(report(measured(A)), exit_code=139)), stored))
    assert _given_to(decision) == [[B]]
    assert decision.create_jobs[0]["metadata"]["labels"][LABEL_ATTEMPT] == "2"
    assert (_entry(decision, B).state, _entry(decision, B).reason) == (CellState.PENDING, "RunnerFailed")
    assert decision.urgent
    assert [event.reason for event in decision.events] == ["RunnerFailed"]


@pytest.mark.parametrize(
    ("pods", "retries", "reason"),
    [
        pytest.param([ended(exit_code=1)], 0, "RunnerFailed", id="no retry is allowed"),
        pytest.param([ended(exit_code=1)] * 2, 1, "RunnerFailed", id="the only retry has failed as well"),
        pytest.param(
            [ended(report(*(failed(cell, FailureReason.MODEL_NOT_FOUND) for cell in (A, B))))],
            5,
            "ModelNotFound",
            id="another try could not help",
        ),
        pytest.param([ended(exit_code=2)], 5, "RunnerFailed", id="the runner refuses the plan"),
    ],
)
def test_cells_are_given_up(pods: list[Any], retries: int, reason: str) -> None:
    """No further Job; the benchmark has failed, and says the reason."""
    of = _started(spec(sequenceLengths=[8, 16], execution={"retries": retries}))
    attempts = [_own(of, number, pod=each) for number, each in enumerate(pods, start=1)]
    decision = _decide(observed(of, *attempts))
    assert not decision.create_jobs
    assert (_entry(decision).state, _entry(decision).reason) == (CellState.FAILED, reason)
    run = _status(decision).run
    assert run
    assert run.completion_time == NOW


def test_an_overdue_job_is_removed_and_its_failure_written_down_first() -> None:
    """Its successor waits for the next look: a quota or the last device may leave no room for both."""
    of = _started()
    late = _own(of, pod=pod(created_at=ago(9999)))
    decision = _decide(observed(of, late))
    assert decision.delete_jobs == (late,)
    assert not decision.create_jobs
    assert decision.urgent
    assert decision.look_again_at == NOW
    assert _entry(decision).reason == "SchedulingDeadlineExceeded"
    after = _decide(observed(replace(of, status=_status(decision))))
    assert _given_to(after) == [[A, B]]
    assert after.create_jobs[0]["metadata"]["labels"][LABEL_ATTEMPT] == "2"


def test_a_lack_of_nodes_stays_the_reason_when_the_job_that_waited_is_gone() -> None:
    """An earlier one that had a node does not speak for the last."""
    of = _started(_with(execution={"retries": 1}))
    first = _own(of, pod=ended(exit_code=1))
    homeless = pod(unschedulable="0/3 nodes are available")
    waits = _own(of, number=2, pod=homeless)
    of = replace(of, status=_status(_decide(observed(of, first, waits))))
    late = replace(waits, pod=replace(homeless, created_at=ago(9999)))
    of = replace(of, status=_status(_decide(observed(of, first, late))))
    (capacity,) = (one for one in _status(_decide(observed(of, first))).conditions if one.type == "CapacityAvailable")
    assert (capacity.status, capacity.reason) == ("False", "Unschedulable")


REMEMBERED = [
    pytest.param(CellState.RUNNING, "", CellState.PENDING, "JobLost", 2, id="a Job that vanished while it ran is lost"),
    pytest.param(
        CellState.PENDING, "OutOfMemory", CellState.PENDING, "OutOfMemory", 2, id="a failure to be retried is kept"
    ),
    pytest.param(CellState.FAILED, "OutOfMemory", CellState.FAILED, "OutOfMemory", 0, id="a final failure stays final"),
    pytest.param(
        CellState.SUCCEEDED, "", CellState.PENDING, "", 2, id="a cell whose result was deleted is measured again"
    ),
    pytest.param(CellState.REUSED, "", CellState.PENDING, "", 2, id="so is one whose reused result was deleted"),
    pytest.param(CellState.PENDING, "", CellState.PENDING, "", 2, id="so it is while it waits for its turn"),
]


@pytest.mark.parametrize(("state", "reason", "after", "why", "number"), REMEMBERED)
def test_the_status_remembers_what_no_object_says(
    state: CellState, reason: str, after: CellState, why: str, number: int
) -> None:
    """With no Job and no result left, the entry of the last pass decides."""
    of = _started()
    entries = [
        entry.model_copy(update={"state": state, "reason": reason, "attempts": 1}) for entry in of.status.results
    ]
    of = replace(of, status=of.status.model_copy(update={"results": entries}))
    decision = _decide(observed(of))
    assert (_entry(decision).state, _entry(decision).reason) == (after, why)
    numbers = [int(job["metadata"]["labels"][LABEL_ATTEMPT]) for job in decision.create_jobs]
    assert numbers == ([number] if number else [])


def test_a_deleted_result_does_not_count_as_a_failure() -> None:
    """Even where no retry is allowed the cell is measured again."""
    of = _started(spec(sequenceLengths=[8, 16], execution={"retries": 0}))
    entries = [entry.model_copy(update={"state": CellState.SUCCEEDED, "attempts": 1}) for entry in of.status.results]
    of = replace(of, status=of.status.model_copy(update={"results": entries}))
    assert _given_to(_decide(observed(of))) == [[A, B]]


def test_a_job_on_its_way_out_says_less_than_the_status() -> None:
    """The pod that dies because its Job was removed would otherwise hide why it was removed."""
    of = _started()
    entries = [
        entry.model_copy(update={"state": CellState.PENDING, "reason": "MeasureDeadlineExceeded", "attempts": 1})
        for entry in of.status.results
    ]
    of = replace(of, status=of.status.model_copy(update={"results": entries}))
    decision = _decide(observed(of, _own(of, deleting=True, pod=ended(exit_code=143))))
    assert _entry(decision).reason == "MeasureDeadlineExceeded"
    assert not decision.delete_jobs


def test_a_job_on_its_way_out_is_not_waited_for() -> None:
    """Its node does not answer, so that nobody confirms the end of its pod, on which its own end depends."""
    of = _started()
    lost = _own(of, deleting=True, pod=running(disruption="DeletionByTaintManager", gone_at=ago(31)))
    assert _given_to(_decide(observed(of, lost))) == [[A, B]]
    second = _own(of, 2, pod=running())
    decision = _decide(observed(_started(TWO, lost, second), lost, second))
    assert not decision.delete_jobs
    assert decision.look_again_at == ago(30 - 3600 - 60)


def test_a_job_on_its_way_out_is_not_stopped_over_and_over() -> None:
    """It has ended by itself, its pod is gone, and its benchmark is cancelled: there is nothing left to do."""
    of = _started()
    going = _own(of, deleting=True, finished_at=ago(3), failed_reason="BackoffLimitExceeded")
    decision = _decide(observed(_edited(of, spec(sequenceLengths=[8, 16], cancel=True)), going))
    assert not decision.delete_jobs
    assert decision.look_again_at
    assert decision.look_again_at > NOW


_DRAINED = {"disruption": "EvictionByEvictionAPI", "gone_at": NOW}


@pytest.mark.parametrize("age", [None, 3, 3000])
@pytest.mark.parametrize("left", [{}, _DRAINED, {"gone_at": NOW}, None])
@pytest.mark.parametrize(
    ("of_pod", "retries", "state", "reason", "disruptions"),
    [
        (ended(exit_code=143, **_DRAINED), 0, CellState.PENDING, "Drained", 1),
        (ended(exit_code=137), 1, CellState.PENDING, "RunnerKilled", 0),
        (ended(exit_code=137), 0, CellState.FAILED, "RunnerKilled", 0),
    ],
)
def test_what_becomes_of_a_pod_after_its_end_changes_nothing(
    of_pod: Pod,
    retries: int,
    state: CellState,
    reason: str,
    disruptions: int,
    left: dict[str, Any] | None,
    age: int | None,
) -> None:
    """A pod that goes with its node neither hides why its runner failed nor takes up a run that is over."""
    wanted = spec(sequenceLengths=[8, 16], execution={"retries": retries})
    job = {"finished_at": ago(age), "failed_reason": "BackoffLimitExceeded"} if age else {}
    of = _started(wanted, _own(_started(wanted), pod=of_pod, **job))
    later = None if left is None else replace(of_pod, **left)
    entry = _entry(_decide(observed(of, _own(of, pod=later, **job))))
    assert (entry.state, entry.reason, entry.attempts, entry.disruptions or 0) == (state, reason, 1, disruptions)


def test_more_retries_take_a_failed_run_up_again() -> None:
    """As long as its Job is there, whose runner says whether another try could help."""
    few, more = (spec(sequenceLengths=[8, 16], execution={"retries": number}) for number in (0, 1))
    job = _own(_started(few), pod=ended(exit_code=137))
    of = _started(few, job)
    assert _entry(_decide(observed(of, job))).state is CellState.FAILED
    assert _given_to(_decide(observed(_edited(of, more), job))) == [[A, B]]


@pytest.mark.parametrize(
    ("reason", "verdict"),
    [(FailureReason.NUMERIC_MISMATCH, Verdict.INVALID), (FailureReason.MODEL_NOT_FOUND, None)],
)
def test_a_wrong_output_is_invalid_and_not_only_failed(reason: FailureReason, verdict: Verdict | None) -> None:
    """A model that gave another answer was judged; one that was never called was not."""
    of = _started()
    said = report(failed(A, reason), failed(B, reason))
    entry = _entry(_decide(observed(of, _own(of, pod=ended(said)))))
    assert (entry.state, entry.reason, entry.verdict) == (CellState.FAILED, reason, verdict)


def test_a_job_that_others_delete_still_says_why_it_failed() -> None:
    """Its runner had given a reason that no retry can change; deleting the Job does not hide it."""
    of = _started()
    of = _started(TWO, _own(of, pod=running()))
    said = report(failed(A, FailureReason.MODEL_NOT_FOUND), failed(B, FailureReason.MODEL_NOT_FOUND))
    decision = _decide(observed(of, _own(of, deleting=True, pod=ended(said))))
    assert (_entry(decision).state, _entry(decision).reason) == (CellState.FAILED, "ModelNotFound")


DIED_OF_A = ended(report(doing=Position(cell=A, phase=Phase.MEASURE)), exit_code=137, reason="OOMKilled")


@pytest.mark.parametrize("left", [{}, _DRAINED, None])
def test_what_another_cell_has_cost_is_never_held_against_this_one(left: dict[str, Any] | None) -> None:
    """Whatever becomes of the pod that died of the other: one failure of its own is forgiven."""
    wanted = spec(sequenceLengths=[8, 16], execution={"retries": 1})
    of = _started(wanted, _own(_started(wanted), pod=DIED_OF_A))
    assert [(entry.reason, entry.stops) for entry in of.status.results] == [
        ("OutOfMemory", None),
        ("OtherCellFailed", 1),
    ]
    first = _own(of, pod=None if left is None else replace(DIED_OF_A, **left))
    going, crashed = (_own(of, 2, (B,), pod=end) for end in (running(), ended(exit_code=1)))
    of = replace(of, status=_status(_decide(observed(of, first, going))))
    entry = _entry(_decide(observed(of, first, crashed)), B)
    assert (entry.state, entry.reason, entry.attempts, entry.stops) == (CellState.PENDING, "RunnerFailed", 2, 1)


def test_a_job_without_the_cell_that_the_last_one_died_of_has_another_name() -> None:
    """The last one had only that cell, as the result of the other was kept; then somebody deleted that."""
    of = _started()
    (job,) = _decide(observed(of)).create_jobs
    died = _own(of, cells=(A,), name=job["metadata"]["name"], pod=DIED_OF_A)
    decision = _decide(observed(of, died))
    assert sorted(_given_to(decision)) == sorted([[A], [B]])
    assert died.name not in {job["metadata"]["name"] for job in decision.create_jobs}


@pytest.mark.parametrize("switch", [{"cancel": True}, {"suspend": True, "execution": {"onSuspend": "Stop"}}])
def test_a_stop_that_did_not_happen_is_not_counted(switch: dict[str, Any]) -> None:
    """The operator died when it had told of the stop, and the Job goes on when it is allowed to."""
    of = _started()
    job = _own(of, pod=running())
    stopped = _edited(of, spec(sequenceLengths=[8, 16], **switch))
    stopped = replace(stopped, status=_status(_decide(observed(stopped, job))))
    assert [entry.stops for entry in stopped.status.results] == [1, 1]
    entry = _entry(_decide(observed(_edited(stopped, TWO), job)))
    assert (entry.state, entry.attempts, entry.stops) == (CellState.RUNNING, 1, None)


def _edited(of: Benchmark, wanted: BenchmarkSpec) -> Benchmark:
    return replace(of, spec=wanted, generation=of.generation + 1)


def test_an_edit_starts_a_new_run_that_keeps_what_has_not_changed() -> None:
    """A result of an earlier run stands for its cell; a Job of an earlier run goes."""
    of = _started()
    kept = result_of(of, cells_of(TWO)[0], run=run_of(of))
    old = _own(of, cells=(B,), pod=running())
    of = _edited(of, spec(sequenceLengths=[8, 32]))
    decision = _decide(observed(of, old, kept))
    assert _entry(decision).state is CellState.REUSED
    assert _entry(decision).p95_microseconds == 5000
    assert decision.delete_jobs == (old,)
    assert not decision.create_jobs
    assert not decision.delete_results
    run = _status(decision).run
    assert run
    assert (run.trigger, run.id) == (Trigger.SPEC_CHANGED, run_of(of))
    assert run.id != run_of(benchmark(TWO))


def test_no_job_is_made_while_one_of_an_earlier_run_is_to_be_removed() -> None:
    """Should the removal have failed, it is tried again first."""
    of = _started()
    decision = _decide(observed(of, replace(_own(of, pod=running()), run="ffffffff")))
    assert len(decision.delete_jobs) == 1
    assert not decision.create_jobs
    assert decision.look_again_at == NOW


def test_never_means_never() -> None:
    """With reuse: Never every cell is measured in every run."""
    of = _started()
    kept = [result_of(of, cell, run="ffffffff") for cell in cells_of(TWO)]
    of = _edited(of, spec(sequenceLengths=[8, 16, 32], reuse="Never"))
    assert {entry.state for entry in _status(_decide(observed(of, *kept))).results} == {CellState.PENDING}


def test_another_reuse_does_not_take_up_a_finished_run() -> None:
    """What a run has kept, it keeps; reuse is about the next one."""
    of = benchmark(TWO)
    kept = [result_of(of, cell) for cell in cells_of(TWO)]
    of = _started(TWO, *kept)
    of = replace(of, spec=of.spec.model_copy(update={"reuse": Reuse.NEVER}) if of.spec else None)
    decision = _decide(observed(of, *kept))
    assert {entry.state for entry in _status(decision).results} == {CellState.REUSED}
    assert not decision.create_jobs


def test_a_job_that_may_not_be_made_for_now_is_told() -> None:
    """The sentence of a quota or of a policy is the reason why the run does not go on."""
    of = _started()
    decision = _decide(replace(observed(of), blocked="exceeded quota: count/jobs.batch=0"))
    ready = next(found for found in _status(decision).conditions if found.type is ConditionType.READY)
    assert ready.reason == "QuotaExceeded"
    assert "Raise the quota of the namespace" in ready.message
    waits = replace(of, status=_status(decision))
    assert _decide(replace(observed(waits), blocked="exceeded quota")).create_jobs, "it is tried all the same"


def _with(**fields: Any) -> BenchmarkSpec:  # noqa: ANN401 - any field
    """Return the specification of two cells with other fields that change none of them."""
    return BenchmarkSpec.model_validate(TWO.model_dump(mode="json", exclude_none=True) | fields)


def test_a_job_that_may_never_be_made_fails_its_cells() -> None:
    """After the time that a pod may wait for a node; no sooner, and a Job that is made takes it back."""
    of, why = _started(_with(execution={"schedulingDeadlineSeconds": 600})), "exceeded quota: count/jobs.batch=0"
    of = replace(of, status=_status(_decide(replace(observed(of), blocked=why))))
    facts = replace(observed(of), blocked=why)
    waits = decide(facts, NOW + timedelta(seconds=599), SETTINGS)
    assert _entry(waits).state is CellState.PENDING
    end = decide(facts, NOW + timedelta(seconds=600), SETTINGS)
    assert (_entry(end).state, _entry(end).reason) == (CellState.FAILED, "JobRefused")
    assert "schedulingDeadlineSeconds (600 s): exceeded quota" in _entry(end).message
    over = replace(of, status=_status(end))
    assert _entry(decide(observed(over), NOW + timedelta(seconds=601), SETTINGS)).state is CellState.FAILED
    made = decide(observed(of, _own(of, pod=pod())), NOW + timedelta(seconds=601), SETTINGS)
    assert made.status
    assert made.status.run
    assert made.status.run.blocked_time is None


def test_a_schedule_that_is_none_stops_no_run() -> None:
    """What is wrong is told; the Jobs go on, and only the end is none until it is corrected."""
    before = _started()
    of = replace(before, spec=_with(schedule={"cron": "0 3 31 2 *"}), generation=2)
    going = _decide(observed(of, _own(before, pod=running())))
    assert not going.delete_jobs
    found = {one.type.value: (one.status.value, one.reason) for one in _status(going).conditions}
    assert found["Accepted"] == ("False", "InvalidSchedule")
    assert found["Reconciling"][0] == "True"
    results = [result_of(of, cell, run=run_of(before)) for cell in cells_of(TWO)]
    end = _status(_decide(observed(replace(of, status=_status(going)), *results)))
    assert {one.type.value: one.status.value for one in end.conditions}["Stalled"] == "True"
    assert end.results[0].state is CellState.SUCCEEDED


def test_the_time_that_a_run_is_refused_does_not_count() -> None:
    """Its Jobs were removed for it, so its deadline is put off by as long."""
    wanted = _with(execution={"deadlineSeconds": 60})
    of = _started(wanted)
    broken = replace(of, spec=None, spec_error="spec.models: correct it.", generation=2)
    refused = replace(broken, status=_status(_decide(observed(broken, _own(of, pod=running())))))
    later = NOW + timedelta(seconds=600)
    status = decide(observed(replace(refused, spec=wanted, generation=3)), later, SETTINGS).status
    assert status
    assert status.run
    assert status.run.deadline_time == NOW + timedelta(seconds=60 + 600)
    assert {entry.state for entry in status.results} == {CellState.PENDING}


@pytest.mark.parametrize(("failures", "seconds"), [(1, 0), (2, 10), (3, 20), (4, 40), (9, 300)])
def test_a_second_retry_waits_and_each_later_one_longer(failures: int, seconds: int) -> None:
    """From the end of the attempt before, so that an outage of minutes does not use up all of them."""
    of = _started(_with(execution={"retries": 10}))
    attempts = [_own(of, number=number, pod=ended(exit_code=1)) for number in range(1, failures + 1)]
    decision = _decide(observed(replace(of, status=_status(_decide(observed(of, *attempts)))), *attempts))
    due = ago(5) + timedelta(seconds=seconds)
    if due <= NOW:
        assert decision.create_jobs
    else:
        assert not decision.create_jobs
        assert decision.look_again_at == due
        assert decide(observed(replace(of, status=_status(decision)), *attempts), due, SETTINGS).create_jobs


OTHER_IMAGE = Settings(runner_images={**SETTINGS.runner_images, AcceleratorKind.CPU: "inferbench/runner-cpu:0.2.0"})


def test_another_image_makes_another_figure() -> None:
    """A new run measures again what an older image of the runner has measured."""
    of = benchmark(TWO)
    kept = [result_of(of, cell) for cell in cells_of(TWO)]
    assert _entry(_decide(observed(of, *kept))).state is CellState.REUSED
    assert _entry(_decide(observed(of, *kept), OTHER_IMAGE)).state is CellState.PENDING


def test_an_upgrade_of_the_operator_does_not_take_up_finished_runs() -> None:
    """What a run has kept, it keeps, though the operator's default image is another one now."""
    of = benchmark(TWO)
    kept = [result_of(of, cell) for cell in cells_of(TWO)]
    of = _started(TWO, *kept)
    decision = _decide(observed(of, *kept), OTHER_IMAGE)
    assert decision.status == of.status
    assert not decision.create_jobs


def test_results_of_cells_that_are_no_more_go_when_the_run_is_done() -> None:
    """Not before: an edit that is taken back costs nothing."""
    of = _started()
    both = [result_of(of, cell, run=run_of(of)) for cell in cells_of(TWO)]
    of = _edited(of, spec(sequenceLengths=[16, 32]))
    assert not _decide(observed(of, *both)).delete_results
    of = _edited(of, spec(sequenceLengths=[16]))
    assert _decide(observed(of, *both)).delete_results == (both[0],)


def test_jobs_are_kept_for_a_while_and_then_removed() -> None:
    """People can look at the logs until ttlSecondsAfterFinished."""
    of = benchmark(TWO)
    attempt = _own(of, pod=ended(report(measured(A), measured(B))))
    both = [result_of(of, cell, run=run_of(of)) for cell in cells_of(TWO)]
    of = _started(TWO, attempt, *both)
    decision = _decide(observed(of, attempt, *both))
    assert not decision.delete_jobs
    assert decision.look_again_at == ago(-3600)
    assert of.status.run
    done = of.status.run.model_copy(update={"completion_time": ago(3600)})
    of = replace(of, status=of.status.model_copy(update={"run": done}))
    decision = _decide(observed(of, attempt, *both))
    assert decision.delete_jobs == (attempt,)
    assert decision.status == of.status


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(
            {"spec": spec(accelerators=[{"name": "a", "instanceTypes": ["inf9.xlarge"]}])},
            "UnknownInstanceType",
            id="an instance type that is not there",
        ),
        pytest.param(
            {"spec": spec(include=[{"model": "bert", "accelerator": "cpu"}])},
            "SequenceLengthMissing",
            id="an extra cell of a text model without a length",
        ),
        pytest.param({"spec": spec(exclude=[{}])}, "NoCells", id="a matrix without cells"),
        pytest.param(
            {"spec": spec(models=[{"name": "a", "id": "x"}, {"name": "b", "id": "x"}])},
            "DuplicateCells",
            id="two names for the same model",
        ),
        pytest.param(
            {"spec": None, "spec_error": "spec.models: missing"}, "InvalidSpec", id="a specification that can't be read"
        ),
    ],
)
def test_a_refused_benchmark_says_why_and_stops(change: dict[str, Any], reason: str) -> None:
    """Its Jobs go, its results stay, and nothing is looked at again."""
    of = _started()
    attempt = _own(of, pod=running())
    stored = result_of(of, cells_of(TWO)[0], run=run_of(of))
    of = replace(of, generation=2, **change)
    decision = _decide(observed(of, attempt, stored))
    assert decision.delete_jobs == (attempt,)
    assert not decision.delete_results
    assert not decision.create_jobs
    assert decision.look_again_at is None
    assert {c.reason for c in _status(decision).conditions} == {reason}
    assert [event.reason for event in decision.events] == [reason]
    assert not _decide(observed(replace(of, status=_status(decision)))).events


def test_a_mistaken_edit_takes_no_figure_out_of_sight() -> None:
    """What was measured is still shown; the rest is skipped, and goes on when the mistake is corrected."""
    of = _started(wanted := spec(sequenceLengths=[8, 16]))
    kept = result_of(of, cells_of(wanted)[0], run=run_of(of))
    of = replace(of, status=_status(_decide(observed(of, kept))))
    wrong = replace(of, spec=None, spec_error="spec.models: missing", generation=2)

    status = _status(_decide(observed(wrong, kept)))

    assert [entry.state for entry in status.results] == [CellState.SUCCEEDED, CellState.SKIPPED]
    assert status.results[0].p95_microseconds == 5000
    assert status.cells is not None
    assert (status.cells.succeeded, status.cells.skipped) == (1, 1)
    again = _decide(observed(replace(of, status=status, generation=3), kept))
    assert [entry.state for entry in _status(again).results] == [CellState.SUCCEEDED, CellState.PENDING]
    assert again.create_jobs


def test_a_mistaken_edit_costs_no_retry() -> None:
    """The Jobs that it removes count as stopped; cells that had none stay as they were."""
    of = _started()
    of = replace(of, status=_status(_decide(observed(of, _own(of, cells=(A,), pod=running())))))
    wrong = replace(of, spec=None, spec_error="spec.models: missing", generation=2)
    status = _status(_decide(observed(wrong)))
    assert [(entry.state, entry.attempts, entry.stops) for entry in status.results] == [
        (CellState.SKIPPED, 1, 1),
        (CellState.SKIPPED, 0, None),
    ]
    assert [entry.deadline_time for entry in status.results] == [None, None]
    again = _entry(_decide(observed(replace(wrong, spec=TWO, status=status, generation=3))))
    assert (again.state, again.attempts, again.stops) == (CellState.PENDING, 1, 1)


def test_a_benchmark_that_is_being_deleted_is_left_alone() -> None:
    """The garbage collector does the rest."""
    of = replace(_started(), deleting=True)
    assert _decide(observed(of, _own(of, pod=running()))) == Decision()


def _refusal_of(of: Benchmark) -> dict[str, str]:
    return {_decide(observed(of)).create_jobs[0]["metadata"]["name"]: "spec.template: Invalid value"}


def test_a_job_that_the_server_refuses_fails_its_cells() -> None:
    """In the server's words, until the specification is changed."""
    of = _started()
    decision = _decide(observed(of, refusals=_refusal_of(of)))
    assert not decision.create_jobs
    assert (_entry(decision).state, _entry(decision).reason) == (CellState.FAILED, "JobRefused")
    assert "spec.template: Invalid value" in _entry(decision).message
    again = _decide(observed(replace(of, status=_status(decision)), refusals=_refusal_of(of)))
    assert again.status == decision.status


def test_a_run_that_failed_for_a_refused_job_stays_over() -> None:
    """After a restart the status alone knows; a changed specification has the Job tried again."""
    of = _started()
    status = _status(_decide(observed(of, refusals=_refusal_of(of))))
    assert _decide(observed(replace(of, status=status))) == Decision(status=status)
    edited = replace(of, status=status, generation=of.generation + 1)
    assert _decide(observed(edited)).create_jobs


def test_a_refused_job_does_not_keep_others_from_running() -> None:
    """With one Job at a time, the second plan has its turn."""
    wanted = spec(models=[{"name": f"m{i}", "id": f"org/m{i}"} for i in range(2)], execution={"maxParallelJobs": 1})
    of = _started(wanted)
    decision = _decide(observed(of, refusals=_refusal_of(of)))
    assert len(decision.create_jobs) == 1
    assert decision.create_jobs[0]["metadata"]["name"] not in _refusal_of(of)


def test_a_finished_benchmark_is_left_alone() -> None:
    """The same facts an hour later lead to no write at all."""
    of = benchmark(TWO)
    both = [result_of(of, cell, run=run_of(of)) for cell in cells_of(TWO)]
    of = _started(TWO, *both)
    assert _decide(observed(of, *both)) == Decision(status=of.status)


def test_a_status_of_another_version_starts_no_second_run() -> None:
    """The run is found again from the object, with its Jobs and results."""
    of = _started()
    stored = result_of(of, cells_of(TWO)[0], run=run_of(of))
    lost = replace(of, status=BenchmarkStatus())
    decision = _decide(observed(lost, _own(of, cells=(B,), pod=running()), stored))
    assert not decision.delete_jobs
    assert _entry(decision).state is CellState.SUCCEEDED
    assert _entry(decision, B).state is CellState.RUNNING


def test_capacity_of_an_earlier_run_is_forgotten() -> None:
    """A new run that needs no node does not say that there is none."""
    of = _started()
    homeless = _own(of, pod=pod(unschedulable="0/3 nodes are available"))
    of = _started(TWO, homeless)
    assert ConditionType.CAPACITY_AVAILABLE in {condition.type for condition in of.status.conditions}
    of = _edited(of, spec(sequenceLengths=[8, 16], measurement={"minSamples": 5}))
    types = {condition.type for condition in _status(_decide(observed(of))).conditions}
    assert ConditionType.CAPACITY_AVAILABLE not in types
