"""The two messages: sizes, rounding, and text that comes from elsewhere."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferbench_runner.contract import (
    COMPACT_REPORT_BYTES,
    FULL_REPORT_BYTES,
    MAX_SHAPES,
    REPORT_MARK,
    CellFailed,
    CellMeasured,
    CompactReport,
    FailureReason,
    FullReport,
    Phase,
    Shape,
    Verdict,
)
from inferbench_runner.errors import PhaseFailedError
from inferbench_runner.measure import Series, Warmup
from inferbench_runner.report import Measured, compact_bytes, full_line, rate, to_facts, to_failed
from inferbench_runner.summary import summarise
from inferbench_runner.words import listed, one_line
from test_runner.builders import cell

LONGEST = 86_400_000_000


def measured(samples: list[int], batch: int = 1) -> Measured:
    """Return a measured shape with these samples."""
    series = Series(array("q", samples), max(sum(samples), 1))
    return Measured(Shape(cell=cell(1), batch_size=batch), Warmup(10, 5), series, summarise(samples))


@settings(deadline=None)
@given(st.lists(st.integers(0, LONGEST * 1000), min_size=1, max_size=200))
def test_rounding_keeps_figures_in_order(samples: list[int]) -> None:
    """Any samples give a cell and details that the contract accepts, and an interval that rounding never shrinks."""
    found = measured(samples)
    entry = found.to_cell()
    details = found.to_details()
    if entry.p95_low_microseconds is not None and entry.p95_high_microseconds is not None:
        assert entry.p95_low_microseconds <= entry.p95_microseconds <= entry.p95_high_microseconds
        assert found.summary.p95.low is not None
        assert entry.p95_low_microseconds * 1000 <= found.summary.p95.low
        assert details.call.p95.low_microseconds == entry.p95_low_microseconds
    else:
        assert found.summary.p95.low is None
        assert details.call.p95.low_microseconds is None
        assert entry.verdict is Verdict.INCONCLUSIVE


def test_too_few_samples_give_no_bounds() -> None:
    """No interval is claimed where there is none, neither in the figures nor in words."""
    found = measured([3_000_001, 1_999_999, 2_500_000])
    entry = found.to_cell()
    assert (entry.p95_low_microseconds, entry.p95_high_microseconds, entry.max_microseconds) == (None, None, 3001)
    assert "no interval" in found.to_sentence()


def test_eight_cells_with_the_longest_numbers_fit() -> None:
    """Figures never have to be cut to fit into a termination message."""
    longest = CellMeasured(
        cell="f" * 10,
        samples=1_000_000_000,
        mean_microseconds=LONGEST,
        p50_microseconds=LONGEST,
        p90_microseconds=LONGEST,
        p95_microseconds=LONGEST,
        p95_low_microseconds=LONGEST,
        p95_high_microseconds=LONGEST,
        p99_microseconds=LONGEST,
        max_microseconds=LONGEST,
        inferences_per_second="9" * 12 + ".123456",
        verdict=Verdict.INCONCLUSIVE,
    )
    text = compact_bytes(CompactReport(measured=(longest,) * MAX_SHAPES))
    assert len(text) <= COMPACT_REPORT_BYTES
    assert len(CompactReport.model_validate_json(text).measured) == MAX_SHAPES


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=240), st.integers(0, MAX_SHAPES))
def test_messages_are_cut_by_bytes_until_the_report_fits(message: str, count: int) -> None:
    """Whatever the messages hold, the report stays within its bytes, is valid and names every cell."""
    cause = RuntimeError(message)
    failed = tuple(to_failed(cell(index), PhaseFailedError(Phase.WARMUP, cause)) for index in range(count))
    text = compact_bytes(CompactReport(failed=failed))
    assert len(text) <= COMPACT_REPORT_BYTES
    assert [entry.cell for entry in CompactReport.model_validate_json(text).failed] == [entry.cell for entry in failed]


@pytest.mark.parametrize("character", ["\U0001f600", '"', "\\", "a"])
def test_the_worst_messages_fit(character: str) -> None:
    """Eight longest messages of four-byte or escaped characters fit too, cut but not gone."""
    failed = tuple(
        CellFailed(
            cell=cell(index), phase=Phase.MEASURE, reason=FailureReason.MODEL_ACCESS_DENIED, message=character * 240
        )
        for index in range(MAX_SHAPES)
    )
    text = compact_bytes(CompactReport(failed=failed))
    assert len(text) <= COMPACT_REPORT_BYTES
    assert all(entry.message.startswith(character * 20) for entry in CompactReport.model_validate_json(text).failed)


def test_the_full_report_is_one_line_of_bounded_size() -> None:
    """With provenance filled to the brim the line stays far below its limit."""
    facts = to_facts({f"{index:064}": "\n" + "\U0001f600" * 1000 for index in range(48)})
    report = FullReport(cells=(measured([5] * 500).to_details(),) * MAX_SHAPES, provenance=facts)
    line = full_line(report)
    assert len(line) <= FULL_REPORT_BYTES
    assert b"\n" not in line
    assert FullReport.model_validate_json(line.removeprefix(REPORT_MARK.encode())) == report


def test_text_from_elsewhere_loses_control_characters() -> None:
    """Terminal escapes, line breaks, direction marks and lone surrogates become blanks."""
    assert one_line("a\x1b[31m\r\nb\u202ec\udc80\x00 d", 100) == "a [31m b c d"
    assert one_line("abcdef", 4) == "abc…"
    assert one_line("abcdef", 0) == ""


def test_rates_are_decimal_strings() -> None:
    """Inputs per second have three decimals, for fast and for slow models."""
    assert rate(1000, 3 * 10**9) == "333.333"
    assert rate(1, 4_000 * 10**9) == "0.000"
    assert rate(10**9, 1000).partition(".")[0] == "1" + "0" * 15


def test_lists_are_read_out() -> None:
    """Alternatives read like a sentence."""
    assert [listed([]), listed(["a"]), listed(["a", "b", "c"])] == ["", "a", "a, b or c"]


def test_people_read_milliseconds() -> None:
    """The progress line shows p95 with its bounds, in milliseconds."""
    sentence = measured([54_321_000] * 130).to_sentence()
    assert sentence == "p95 54.3 ms (54.3 to 54.3), 130 samples, Valid"
