"""Rows about how a runner ends: killed, crashed, out of time, with a failure of its own, with half a report or none."""

from __future__ import annotations

from typing import Final

from cluster import Exits, eviction, killed, oom_killed
from cluster.outcomes import no_such_program
from inferbench_runner.contract import DEADLINE_EXIT_CODE, INVALID_PLAN_EXIT_CODE, FailureReason, Phase
from situations.acts import add_node, allow, operator_away
from situations.placing import CPU
from situations.reports import at, failure, part
from situations.rows import Cells, Row, on
from situations.waits import pod, shows

_FOUR: Final = {"sequenceLengths": [8, 16, 32, 64]}
_ONCE: Final = {"retries": 0}

ROWS: Final = (
    Row(
        id="out of memory before anything was measured",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        pods=(oom_killed(message=at(Phase.LOAD)), oom_killed(message=at(Phase.LOAD))),
        end=(Cells(state="failed", reason="OutOfMemory", attempts=2, words=("memory", "(in load)")),),
        jobs=2,
    ),
    Row(
        id="out of memory without a word",
        nodes={"a": CPU},
        execution=_ONCE,
        pods=(oom_killed(),),
        end=(Cells(state="failed", reason="OutOfMemory"),),
    ),
    Row(
        id="out of memory on the second of two shapes, once",
        nodes={"a": CPU},
        pods=(oom_killed(message=part(1)),),
        end=(Cells(count=1), Cells(count=1, attempts=2)),
        jobs=2,
    ),
    Row(
        id="out of memory on the second of four shapes, whenever it is measured",
        nodes={"a": CPU},
        spec=_FOUR,
        execution={"maxParallelJobs": 1},
        pods=(oom_killed(message=part(1)), None, oom_killed(message=part(0))),
        end=(
            Cells(count=1),
            Cells(count=2, attempts=2, stops=1),
            Cells(count=1, state="failed", reason="OutOfMemory", attempts=2, words=("(in measure)",)),
        ),
        jobs=3,
    ),
    Row(
        id="SIGKILL",
        nodes={"a": "g5.xlarge"},
        spec=on("g5.xlarge"),
        execution=_ONCE,
        pods=(killed(),),
        end=(Cells(state="failed", reason="RunnerKilled", words=("SIGKILL",)),),
    ),
    Row(
        id="a segmentation fault after the first shape",
        nodes={"a": "g5.xlarge"},
        spec=on("g5.xlarge"),
        execution=_ONCE,
        pods=(Exits(exit_code=139, message=part(1)),),
        end=(
            Cells(count=1),
            Cells(count=1, state="failed", reason="RunnerFailed", words=("exit code 139", "(in measure)")),
        ),
    ),
    Row(
        id="an image for another processor",
        nodes={"a": "g5g.xlarge"},
        spec=on("g5g.xlarge"),
        execution=_ONCE,
        pods=(Exits(exit_code=255, message="exec /usr/local/bin/python: exec format error\n"),),
        end=(Cells(state="failed", reason="RunnerFailed", words=("exit code 255", "exec format error")),),
    ),
    Row(
        id="an image without the runner",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        execution=_ONCE,
        pods=(no_such_program("python"),),
        end=(Cells(state="failed", reason="RunnerFailed", words=("executable file not found in $PATH",)),),
    ),
    Row(
        id="a report that is none",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        execution=_ONCE,
        pods=(Exits(message="\x1b[1m{latency: fast}"),),
        end=(Cells(state="failed", reason="ReportInvalid"),),
    ),
    Row(
        id="no report, once",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        pods=(Exits(),),
        end=(Cells(attempts=2),),
        jobs=2,
    ),
    Row(
        id="no report on one of two shapes",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        execution=_ONCE,
        pods=(Exits(message=part(1, more=False)),),
        end=(Cells(count=1), Cells(count=1, state="failed", reason="NoReport")),
    ),
    Row(
        id="a device that is busy, once",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        pods=(Exits(message=failure(FailureReason.DEVICE_BUSY, Phase.PROBE, "Another process has the device.")),),
        end=(Cells(attempts=2),),
        jobs=2,
    ),
    Row(
        id="a model that is not there",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        pods=(Exits(message=failure(FailureReason.MODEL_NOT_FOUND, Phase.FETCH, "Correct model.id.")),),
        end=(Cells(state="failed", reason="ModelNotFound", words=("Correct model.id. (in fetch)",)),),
        jobs=1,
    ),
    Row(
        id="an output that is wrong",
        nodes={"a": "g5.xlarge"},
        spec=on("g5.xlarge"),
        pods=(Exits(message=failure(FailureReason.NUMERIC_MISMATCH, Phase.VERIFY, "It differs.", after=1)),),
        end=(Cells(count=1), Cells(count=1, state="failed", reason="NumericMismatch")),
        jobs=1,
    ),
    Row(
        id="no time left for the second shape",
        nodes={"a": "g5.xlarge"},
        spec=on("g5.xlarge"),
        execution=_ONCE,
        pods=(Exits(exit_code=DEADLINE_EXIT_CODE, message=part(1)),),
        end=(Cells(count=1), Cells(count=1, state="failed", reason="MeasureDeadlineExceeded")),
    ),
    Row(
        id="a plan that the image does not understand",
        nodes={"a": "g5.xlarge"},
        spec=on("g5.xlarge"),
        pods=(Exits(exit_code=INVALID_PLAN_EXIT_CODE, message="unknown field shapes.3.colour"),),
        end=(Cells(state="failed", reason="RunnerFailed", words=("refused its plan",)),),
        jobs=1,
    ),
    Row(
        id="a kubelet that runs out of memory",
        nodes={"a": CPU},
        execution=_ONCE,
        pods=(eviction(),),
        end=(Cells(state="failed", reason="Evicted", words=("low on resource: memory",)),),
    ),
    Row(
        id="a kubelet that runs out of memory, once",
        nodes={"a": CPU},
        pods=(eviction(message=part(1)),),
        end=(Cells(count=1), Cells(count=1, attempts=2)),
        jobs=2,
    ),
    Row(
        id="a device with a fault of its own, and a second node",
        nodes={"a": "inf2.xlarge", "b": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        pods=(Exits(message=failure(FailureReason.HARDWARE_ERROR, Phase.MEASURE, "An uncorrectable error.", after=1)),),
        end=(Cells(count=1), Cells(count=1, attempts=2)),
        jobs=2,
    ),
    Row(
        id="a device with a fault of its own, and no other node before the next one comes",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        pods=(Exits(message=failure(FailureReason.HARDWARE_ERROR, Phase.MEASURE, "An uncorrectable error.")),),
        meanwhile=(
            shows("waiting", "Unschedulable", "node affinity", capacity="False", attempt=2),
            add_node("b", "inf2.xlarge"),
        ),
        end=(Cells(attempts=2),),
        jobs=2,
        is_killed_before_acts=True,
    ),
    Row(
        id="a device with a fault of its own, and no other node ever",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        pods=(Exits(message=failure(FailureReason.HARDWARE_ERROR, Phase.MEASURE, "An uncorrectable error.")),),
        meanwhile=(shows("waiting", "Unschedulable", attempt=2), allow(schedulingDeadlineSeconds=1)),
        end=(Cells(state="failed", reason="SchedulingDeadlineExceeded", attempts=2, words=("device has failed",)),),
        capacity="False",
        jobs=2,
    ),
    Row(
        id="an operator that is away while the runner ends",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        pods=(oom_killed(after=5, message=part(1)),),
        meanwhile=(shows("running"), operator_away(until=pod("ended"))),
        end=(Cells(count=1), Cells(count=1, attempts=2)),
        jobs=2,
    ),
)
