"""Reads what runners say. Everything here is untrusted: sizes first, then the schema, then the plan."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import ValidationError

from inferbench_runner.contract import (
    COMPACT_REPORT_BYTES,
    FULL_REPORT_BYTES,
    REPORT_MARK,
    CellDetails,
    CellMeasured,
    CompactReport,
    FullReport,
    Latency,
)


class ReportError(ValueError):
    """The runner's message is refused; reading it again does not help."""


def parse_compact(text: str, *, cells: Collection[str]) -> CompactReport:
    """Parse a termination message and check it against the cells that the runner was given.

    Raises:
        ReportError: The message is too long, is no report, or speaks of cells that were not in the plan.
    """
    if len(text.encode(errors="replace")) > COMPACT_REPORT_BYTES:
        msg = f"the termination message is longer than {COMPACT_REPORT_BYTES} bytes"
        raise ReportError(msg)
    try:
        report = CompactReport.model_validate_json(text)
    except ValidationError as error:
        raise ReportError(_first_problem(error)) from None
    named = [*(entry.cell for entry in report.measured), *(entry.cell for entry in report.failed)]
    doing = {report.doing.cell} if report.doing and report.doing.cell else set()
    if foreign := sorted({*named, *doing} - set(cells)):
        msg = f"it speaks of cell {foreign[0]}, which was not in its plan"
        raise ReportError(msg)
    if len(set(named)) != len(named):
        msg = "it names a cell twice"
        raise ReportError(msg)
    return report


def parse_full(log: str) -> FullReport | None:
    """Return the full report in a runner's log, or None: its absence costs details, never the figures."""
    # Not splitlines(): JSON may hold other characters that count as ends of lines there.
    for line in reversed(log.split("\n")):
        if line.startswith(REPORT_MARK) and len(line) <= FULL_REPORT_BYTES:
            try:
                return FullReport.model_validate_json(line.removeprefix(REPORT_MARK))
            except ValidationError:
                return None
    return None


def details_of(measured: CellMeasured, report: FullReport | None) -> CellDetails | None:
    """Return the details of a measured cell, if the full report has them and agrees with the compact one."""
    for details in report.cells if report else ():
        if details.cell == measured.cell and _agrees(details.call, measured):
            return details
    return None


def _agrees(call: Latency, measured: CellMeasured) -> bool:
    """Whether the two reports tell the same figures; a runner that contradicts itself is not believed twice."""
    compact = (
        (call.samples, measured.samples),
        (call.mean_microseconds, measured.mean_microseconds),
        (call.p50.value_microseconds, measured.p50_microseconds),
        (call.p90.value_microseconds, measured.p90_microseconds),
        (call.p95.value_microseconds, measured.p95_microseconds),
        (call.p95.low_microseconds, measured.p95_low_microseconds),
        (call.p95.high_microseconds, measured.p95_high_microseconds),
        (call.p99.value_microseconds, measured.p99_microseconds),
        (call.max_microseconds, measured.max_microseconds),
    )
    return all(full == short for full, short in compact)


def printable(text: str) -> str:
    """Return what a runner says without control characters, which could forge a line of a log or of a terminal."""
    return "".join(char for char in text if char.isprintable())


def last_words(text: str) -> str:
    """Return the last line of a message that is no report, without control characters, at most 120 characters."""
    lines = [line for line in text.splitlines() if line.strip()]
    return printable(lines[-1]).strip()[-120:] if lines else ""


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])[:80]
    return printable(f"it is no valid report: {where + ': ' if where else ''}{first['msg'][:120]}")
