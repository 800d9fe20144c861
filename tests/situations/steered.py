"""Rows about what people and queues ask for: suspend, cancel, another run, a place in a queue."""

from __future__ import annotations

from typing import Final

from cluster import FOREVER, Exits, measured
from situations.acts import add_node, allow, kueue, let_pass, queue_says, queue_up, rerun, set_spec, suspend_job
from situations.history import JOBS
from situations.placing import CPU, TWO_MODELS
from situations.reports import part
from situations.rows import Cells, Row, on, refusal
from situations.waits import condition, gone, over, pod, shows

_RUNS: Final = Exits(run_seconds=FOREVER)
_ONE_BY_ONE: Final = {"maxParallelJobs": 1}
_SUSPENDED: Final = condition("Suspended", "True", "Suspended")
_QUEUED: Final = {**on("inf2.xlarge"), "runner": {"queueName": "team"}}
_SOON: Final = {"schedulingDeadlineSeconds": 5, "retries": 0}

SUSPENDED: Final = (
    Row(
        id="suspended from the start",
        nodes={"a": "inf2.xlarge"},
        spec={**on("inf2.xlarge"), "suspend": True},
        meanwhile=(condition("Ready", "False", "Suspended"), set_spec(suspend=False)),
        jobs=1,
        is_killed_before_acts=True,
    ),
    Row(
        id="suspended while it runs, to finish what runs",
        nodes={"a": "inf2.xlarge"},
        spec={**on("inf2.xlarge"), "models": TWO_MODELS},
        execution=_ONE_BY_ONE,
        pods=(measured(run_seconds=4),),
        meanwhile=(
            shows("running"),
            set_spec(suspend=True),
            _SUSPENDED,
            condition("Ready", "False", "Suspended", "2/4"),
            set_spec(suspend=False),
        ),
        end=(Cells(count=4),),
        jobs=2,
        at_once=1,
        is_killed_before_acts=True,
    ),
    Row(
        id="suspended while it runs, to stop what runs",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        execution={"onSuspend": "Stop", "retries": 0},
        pods=(_RUNS,),
        meanwhile=(
            shows("running"),
            set_spec(suspend=True),
            shows("pending", "Stopped", ready="Suspended"),
            gone(JOBS),
            set_spec(suspend=False),
        ),
        end=(Cells(attempts=2, stops=1),),
        jobs=2,
        at_once=1,
        is_killed_before_acts=True,
    ),
    Row(
        id="suspended while it waits for a node, to stop it",
        spec=on("inf2.xlarge"),
        execution={"onSuspend": "Stop", "retries": 0},
        meanwhile=(
            shows("waiting", "Unschedulable"),
            set_spec(suspend=True),
            shows("pending", "Stopped", ready="Suspended"),
            gone(JOBS),
            add_node("a", "inf2.xlarge"),
            set_spec(suspend=False),
        ),
        end=(Cells(attempts=2, stops=1),),
        jobs=2,
    ),
)

GIVEN_UP: Final = (
    Row(
        id="no time left for the whole run, before there was a node",
        spec=on("inf2.xlarge"),
        meanwhile=(shows("waiting", "Unschedulable"), allow(deadlineSeconds=1)),
        end=(Cells(state="failed", reason="RunDeadlineExceeded", words=("deadlineSeconds (1 s)",)),),
        capacity="False",
        jobs=1,
    ),
    Row(
        id="no time left for the whole run, while the second model is measured",
        nodes={"a": "inf2.xlarge"},
        spec={**on("inf2.xlarge"), "models": TWO_MODELS},
        execution=_ONE_BY_ONE,
        pods=(None, _RUNS),
        meanwhile=(shows("succeeded"), shows("running"), allow(deadlineSeconds=1)),
        end=(Cells(), Cells(state="failed", reason="RunDeadlineExceeded")),
        jobs=2,
    ),
)

CANCELLED: Final = (
    Row(
        id="cancelled while it waits for a node",
        spec=on("inf2.xlarge"),
        meanwhile=(shows("waiting", "Unschedulable"), set_spec(cancel=True)),
        end=(Cells(state="skipped", reason="Cancelled", stops=1),),
        capacity="",
        jobs=1,
    ),
    Row(
        id="cancelled while the second model is measured",
        nodes={"a": "inf2.xlarge"},
        spec={**on("inf2.xlarge"), "models": TWO_MODELS},
        execution=_ONE_BY_ONE,
        pods=(None, _RUNS),
        meanwhile=(shows("succeeded"), shows("running"), set_spec(cancel=True)),
        end=(Cells(), Cells(state="skipped", reason="Cancelled", stops=1)),
        jobs=2,
        is_killed_before_acts=True,
    ),
    Row(
        id="cancelled while it runs, and taken back",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        execution={"retries": 0},
        pods=(_RUNS,),
        meanwhile=(
            shows("running"),
            set_spec(cancel=True),
            condition("Stalled", "True", "Cancelled"),
            set_spec(cancel=False),
            condition("Ready", "True", "RunSucceeded"),
        ),
        end=(Cells(attempts=2, stops=1),),
        jobs=2,
    ),
)

RERUN: Final = (
    Row(
        id="another run after the first",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        meanwhile=(over("Created"), rerun("a"), over("Rerun")),
        jobs=2,
        is_killed_before_acts=True,
    ),
    Row(
        id="another run in the middle of the first",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        pods=(_RUNS,),
        meanwhile=(shows("running"), rerun("a"), over("Rerun")),
        jobs=2,
        at_once=1,
        is_killed_before_acts=True,
    ),
    Row(
        id="a failed run, and another one",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        execution={"retries": 0},
        pods=(Exits(exit_code=1, message="the hub is down for maintenance"),),
        meanwhile=(condition("Stalled", "True", "CellsFailed", "the hub is down"), rerun("again"), over("Rerun")),
        jobs=2,
    ),
    Row(
        id="another length in the middle of a run",
        nodes={"a": "inf2.xlarge"},
        spec={**on("inf2.xlarge"), "models": TWO_MODELS},
        execution=_ONE_BY_ONE,
        pods=(None, _RUNS),
        meanwhile=(
            shows("succeeded"),
            shows("running"),
            set_spec(sequenceLengths=[8, 16, 32]),
            over("SpecChanged"),
        ),
        end=(Cells(state="reused", attempts=0), Cells(count=4)),
        jobs=4,
        is_killed_before_acts=True,
    ),
    Row(
        id="Jobs that are removed soon after the run",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        execution={"ttlSecondsAfterFinished": 0},
        meanwhile=(over("Created"), gone(JOBS)),
        jobs=1,
    ),
)

QUEUED: Final = (
    Row(
        id="a queue that lets the Job go after its deadline",
        nodes={"a": "inf2.xlarge"},
        spec=_QUEUED,
        execution=_SOON,
        before=(queue_up(),),
        meanwhile=(shows("waiting", "Queued", ready="Queued"), let_pass(6), suspend_job(value=False)),
        jobs=1,
        is_killed_before_acts=True,
    ),
    Row(
        id="a queue that lets the Job go to a node that is not there yet",
        spec=_QUEUED,
        before=(queue_up(),),
        meanwhile=(
            shows("waiting", "Queued"),
            suspend_job(value=False),
            shows("waiting", "Unschedulable", capacity="False"),
            add_node("a", "inf2.xlarge"),
        ),
        jobs=1,
    ),
    Row(
        id="a queue that does not exist",
        nodes={"a": "inf2.xlarge"},
        spec=_QUEUED,
        execution=_SOON,
        before=(queue_up(), kueue()),
        meanwhile=(queue_says("Inadmissible", "LocalQueue team doesn't exist"),),
        end=(Cells(state="failed", reason="QueueMissing", words=("LocalQueue team doesn't exist", "queueName")),),
        capacity="",
        jobs=1,
    ),
    Row(
        id="a queue that has no quota, and then one",
        nodes={"a": "inf2.xlarge"},
        spec=_QUEUED,
        execution=_SOON,
        before=(queue_up(), kueue()),
        meanwhile=(
            queue_says("Pending", "couldn't assign flavors: insufficient unused quota"),
            shows("waiting", "Queued", "insufficient unused quota", ready="Queued"),
            let_pass(6),
            suspend_job(value=False),
        ),
        jobs=1,
    ),
    Row(
        id="a queue that takes the device back for somebody else",
        nodes={"a": "inf2.xlarge"},
        spec=_QUEUED,
        before=(queue_up(),),
        execution={"retries": 0},
        pods=(Exits(run_seconds=FOREVER, stopped_message=part(1)),),
        meanwhile=(
            shows("waiting", "Queued"),
            suspend_job(value=False),
            shows("running"),
            suspend_job(value=True),
            pod("ended"),
            let_pass(2),
            suspend_job(value=False),
        ),
    ),
)

COST: Final = (
    Row(
        id="a cost limit below what one Job may cost, and a higher one",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        # A Job of up to an hour on a node of 0.76 dollars per hour.
        execution={"maxCostUSD": "0.5", "startDeadlineSeconds": 40, "measureDeadlineSeconds": 3500},
        meanwhile=(
            condition("Stalled", "True", "CostLimitReached", "may cost 0.758 USD"),
            set_spec(execution={"maxCostUSD": "0.8"}),
            condition("Ready", "True", "RunSucceeded"),
        ),
        jobs=1,
    ),
    Row(
        id="a cost limit that the first of two Jobs uses up",
        nodes={"a": "inf2.xlarge"},
        spec={**on("inf2.xlarge"), "models": TWO_MODELS},
        # A Job of up to four minutes; the first one is cut off after two.
        execution={
            "maxCostUSD": "0.051",
            "startDeadlineSeconds": 60,
            "measureDeadlineSeconds": 120,
            "retries": 0,
            "maxParallelJobs": 1,
        },
        pods=(Exits(run_seconds=6, exit_code=1, message="out of luck"),),
        end=(
            Cells(state="failed", reason="RunnerFailed"),
            Cells(state="skipped", reason="CostLimitReached", attempts=0),
        ),
        conditions={
            kind: (status, "CostLimitReached")
            for kind, status in (("Stalled", "True"), ("Ready", "False"), ("Succeeded", "False"))
        },
        jobs=1,
    ),
    Row(
        id="a cost limit, and a node without a price",
        nodes={"a": CPU},
        execution={"maxCostUSD": "5"},
        end=(),
        conditions=refusal("PriceUnknown"),
        capacity="",
        jobs=0,
    ),
)

ROWS: Final = (*SUSPENDED, *GIVEN_UP, *CANCELLED, *RERUN, *QUEUED, *COST)
