"""Rows about pods that the cluster takes away: drains, spot interruptions, preemption, deletion by a person."""

from __future__ import annotations

from typing import Final

from cluster import FOREVER, Exits, Outcome, killed
from inferbench_runner.contract import Phase
from situations.acts import (
    add_node,
    cordon,
    delete_job,
    delete_pod,
    drain,
    evict,
    let_pass,
    occupy,
    taint,
    uncordon,
    vacate,
)
from situations.placing import CPU, NEURON, NVIDIA
from situations.reports import at, part
from situations.rows import Cells, Row, on
from situations.waits import condition, shows

_RUNS: Final[Outcome] = Exits(run_seconds=FOREVER)
_HALF: Final[Outcome] = Exits(run_seconds=FOREVER, stopped_message=part(1))
_SPOT: Final = "example.com/spot-interruption=:NoExecute"

IN_EACH_PHASE: Final = (
    *(
        Row(
            id=f"a drain in the phase {phase}",
            nodes={"a": "inf2.xlarge"},
            spec=on("inf2.xlarge"),
            execution={"retries": 0},
            pods=(Exits(run_seconds=FOREVER, stopped_message=at(phase)),),
            meanwhile=(shows("running"), drain()),
            end=(Cells(attempts=2, disruptions=1),),
            jobs=2,
        )
        for phase in Phase
        if phase is not Phase.REPORT
    ),
    Row(
        id="a drain after everything is measured",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        execution={"retries": 0},
        pods=(Exits(run_seconds=FOREVER, stopped_message=part(2, more=False)),),
        meanwhile=(shows("running"), drain()),
        jobs=1,
    ),
)

ROWS: Final = (
    *IN_EACH_PHASE,
    Row(
        id="a drain while it runs",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        execution={"retries": 0},
        pods=(_RUNS,),
        meanwhile=(shows("running"), drain()),
        end=(Cells(attempts=2, disruptions=1),),
        jobs=2,
        is_killed_before_acts=True,
    ),
    Row(
        id="a drain after the first of two shapes",
        nodes={"a": "g5.xlarge"},
        spec=on("g5.xlarge"),
        pods=(_HALF,),
        meanwhile=(shows("running"), drain()),
        end=(Cells(count=1), Cells(count=1, attempts=2, disruptions=1)),
        jobs=2,
    ),
    Row(
        id="a restart of the node after the first of two shapes",
        nodes={"a": "g5.xlarge"},
        spec=on("g5.xlarge"),
        execution={"retries": 0},
        pods=(Exits(exit_code=255, reason="Unknown", message=part(1)),),
        end=(Cells(count=1), Cells(count=1, attempts=2, disruptions=1)),
        jobs=2,
    ),
    Row(
        id="one drain more than is allowed",
        nodes={"a": "g5.xlarge"},
        spec=on("g5.xlarge"),
        execution={"disruptionRetries": 0},
        pods=(_RUNS,),
        meanwhile=(shows("running"), drain()),
        end=(Cells(state="failed", reason="Drained", disruptions=1, words=("drained", "Eviction API")),),
        jobs=1,
    ),
    Row(
        id="three drains, of which none counts as a retry",
        nodes={"a": "g5.xlarge"},
        spec=on("g5.xlarge"),
        execution={"retries": 0},
        pods=(_RUNS, _RUNS, _RUNS),
        meanwhile=tuple(step for number in (1, 2, 3) for step in (shows("running", attempt=number), drain(number))),
        end=(Cells(attempts=4, disruptions=3),),
        jobs=4,
    ),
    Row(
        id="a spot instance that is taken back, and another one",
        nodes={"a": "g6e.xlarge"},
        spec=on("g6e.xlarge"),
        pods=(_HALF,),
        meanwhile=(
            shows("running"),
            taint("a", _SPOT),
            shows("waiting", "Unschedulable", "untolerated taint", capacity="False", attempt=2),
            add_node("b", "g6e.xlarge"),
        ),
        end=(Cells(count=1), Cells(count=1, attempts=2, disruptions=1)),
        jobs=2,
    ),
    Row(
        id="a spot instance that is taken back for good",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        execution={"disruptionRetries": 0},
        pods=(_RUNS,),
        meanwhile=(shows("running"), taint("a", _SPOT)),
        end=(Cells(state="failed", reason="NodeLost", disruptions=1, words=("taint",)),),
        jobs=1,
    ),
    Row(
        id="a pod of higher priority that takes the device",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        pods=(_RUNS,),
        meanwhile=(
            shows("running"),
            occupy(NEURON, priority=True),
            shows("waiting", "Unschedulable", f"Insufficient {NEURON}", capacity="False", attempt=2),
            vacate(),
        ),
        end=(Cells(attempts=2, disruptions=1),),
        jobs=2,
        is_killed_before_acts=True,
    ),
    Row(
        id="a pod of higher priority that keeps the device",
        nodes={"a": "g5.xlarge"},
        spec=on("g5.xlarge"),
        execution={"disruptionRetries": 0},
        pods=(_RUNS,),
        meanwhile=(shows("running"), occupy(NVIDIA, priority=True)),
        end=(Cells(state="failed", reason="Preempted", disruptions=1, words=("higher priority",)),),
    ),
    Row(
        id="a kubelet that evicts a pod which has half of its figures",
        nodes={"a": CPU},
        pods=(_HALF,),
        meanwhile=(shows("running"), evict()),
        end=(Cells(count=1), Cells(count=1, attempts=2)),
        jobs=2,
        is_killed_before_acts=True,
    ),
    Row(
        id="a node that is cordoned, drained and given back",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        pods=(_RUNS,),
        meanwhile=(
            shows("running"),
            cordon("a"),
            drain(),
            shows("waiting", "Unschedulable", "unschedulable", capacity="False", attempt=2),
            uncordon("a"),
        ),
        end=(Cells(attempts=2, disruptions=1),),
    ),
    *(
        Row(
            id=f"a failed run, and then {what}",
            nodes={"a": "g5.xlarge"},
            spec=on("g5.xlarge"),
            execution={"retries": 0},
            pods=(killed(),),
            meanwhile=(condition("Stalled", "True", "CellsFailed"), act, let_pass(1)),
            end=(Cells(state="failed", reason="RunnerKilled"),),
            jobs=1,
            is_killed_before_acts=True,
        )
        for what, act in (
            ("a person who deletes its pod", delete_pod()),
            ("a drain of its node", drain()),
            ("a taint on its node", taint("a", _SPOT)),
        )
    ),
    Row(
        id="a Job that a person deletes while it runs",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        pods=(_RUNS,),
        meanwhile=(shows("running"), delete_job()),
        end=(Cells(attempts=2),),
        jobs=2,
        is_killed_before_acts=True,
    ),
    Row(
        id="a Job that a person deletes while it waits",
        spec=on("inf2.xlarge"),
        meanwhile=(
            shows("waiting", "Unschedulable"),
            delete_job(),
            shows("waiting", "Unschedulable", attempt=2),
            add_node("a", "inf2.xlarge"),
        ),
        end=(Cells(attempts=2),),
        jobs=2,
    ),
    Row(
        id="a Job that a person deletes, without a retry",
        nodes={"a": "g5.xlarge"},
        spec=on("g5.xlarge"),
        execution={"retries": 0},
        pods=(_RUNS,),
        meanwhile=(shows("running"), delete_job()),
        end=(Cells(state="failed", reason="JobLost", words=("before its runner had reported",)),),
        jobs=1,
    ),
    Row(
        id="a pod that a person deletes while it runs",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        execution={"retries": 0},
        pods=(_HALF,),
        meanwhile=(shows("running"), delete_pod()),
        end=(Cells(count=1), Cells(count=1, attempts=2, disruptions=1)),
        jobs=2,
    ),
    Row(
        id="a pod that a person deletes before it has measured anything",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        execution={"retries": 0},
        pods=(_RUNS,),
        meanwhile=(shows("running"), delete_pod()),
        end=(Cells(attempts=2, disruptions=1),),
        jobs=2,
    ),
)
