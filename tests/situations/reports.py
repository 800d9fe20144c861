"""What runners write before they end, where that is neither all nor nothing."""

from __future__ import annotations

from collections.abc import Callable

from cluster import Pod, measured_report, plan_of
from inferbench_runner.contract import CellFailed, CompactReport, FailureReason, Phase, Plan, Position

Message = Callable[[Pod], str]


def part(count: int, *, more: bool = True) -> Message:
    """Report figures of the first shapes and, if there is more, that the next one was being measured."""

    def message(pod: Pod) -> str:
        plan = _plan(pod)
        doing = Position(cell=plan.shapes[count].cell, phase=Phase.MEASURE) if more else None
        measured = measured_report(plan).measured[:count]
        return _text(CompactReport(measured=measured, doing=doing))

    return message


def at(phase: Phase) -> Message:
    """Report nothing yet, and the phase: of all shapes at once until the model is loaded, then of the first one."""

    def message(pod: Pod) -> str:
        cell = None if phase in {Phase.PROBE, Phase.FETCH, Phase.LOAD} else _plan(pod).shapes[0].cell
        return _text(CompactReport(doing=Position(cell=cell, phase=phase)))

    return message


def failure(reason: FailureReason, phase: Phase, sentence: str, *, after: int = 0) -> Message:
    """Report figures of the first shapes, and the same failure for all others."""

    def message(pod: Pod) -> str:
        plan = _plan(pod)
        failed = tuple(
            CellFailed(cell=shape.cell, phase=phase, reason=reason, message=sentence) for shape in plan.shapes[after:]
        )
        return _text(CompactReport(measured=measured_report(plan).measured[:after], failed=failed))

    return message


def _plan(pod: Pod) -> Plan:
    plan = plan_of(pod)
    assert plan is not None
    return plan


def _text(report: CompactReport) -> str:
    return report.model_dump_json(exclude_defaults=True)
