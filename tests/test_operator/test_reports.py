"""Whatever a runner says is read or refused; nothing that it can say does harm."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferbench_operator.core.reports import ReportError, details_of, last_words, parse_compact, parse_full
from inferbench_runner.contract import (
    COMPACT_REPORT_BYTES,
    FULL_REPORT_BYTES,
    MAX_COMPACT_CAVEATS,
    MAX_SHAPES,
    REPORT_MARK,
    Caveat,
    CellDetails,
    CellMeasured,
    CompactReport,
    FullReport,
    Phase,
    Position,
    Verdict,
)
from operator_testing.builders import details, failed, full_report, measured, report
from operator_testing.largest import largest

A, B = "0123456789", "abcdef0123"
CELLS = (A, B)


def _altered(**changes: Any) -> str:  # noqa: ANN401 - any JSON value
    raw = json.loads(report(measured(A)).model_dump_json())
    raw["measured"][0] |= changes
    return json.dumps(raw)


def test_a_report_is_read() -> None:
    """What the runner wrote comes out again."""
    said = report(measured(A), failed(B))
    assert parse_compact(said.model_dump_json(exclude_defaults=True) + "\n", cells=CELLS) == said


def test_a_report_of_the_first_version_is_read() -> None:
    """It has neither doubts nor a position."""
    said = parse_compact(report(measured(A)).model_dump_json(exclude_defaults=True, by_alias=True), cells=CELLS)
    older = json.loads(said.model_dump_json(exclude_defaults=True)) | {"version": 1}
    assert parse_compact(json.dumps(older), cells=CELLS).measured == said.measured


def test_a_report_says_what_the_runner_was_at() -> None:
    """One cell of its plan, or all of them."""
    for doing in (Position(cell=B, phase=Phase.MEASURE), Position(phase=Phase.LOAD)):
        said = report(measured(A), doing=doing)
        assert parse_compact(said.model_dump_json(exclude_defaults=True), cells=CELLS).doing == doing


def test_a_report_of_eight_cells_fits_into_a_termination_message() -> None:
    """Even with the largest figures and the longest words of all."""
    doubts = tuple(sorted(Caveat, key=len)[-MAX_COMPACT_CAVEATS:])
    worst = largest(CellMeasured, caveats=doubts, verdict=Verdict.INCONCLUSIVE)
    said = CompactReport(measured=(worst,) * MAX_SHAPES, doing=largest(Position, phase=Phase.MEASURE))
    assert len(said.model_dump_json(exclude_defaults=True)) <= COMPACT_REPORT_BYTES


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(report(measured("9999999999")).model_dump_json(), "not in its plan", id="a forged cell"),
        pytest.param(report(failed("9999999999")).model_dump_json(), "not in its plan", id="a forged failure"),
        pytest.param(
            report(measured(A), doing=Position(cell="9999999999", phase=Phase.MEASURE)).model_dump_json(),
            "not in its plan",
            id="a forged position",
        ),
        pytest.param(report(measured(A), measured(A)).model_dump_json(), "twice", id="a cell measured twice"),
        pytest.param(report(measured(A), failed(A)).model_dump_json(), "twice", id="a cell measured and failed"),
        pytest.param("Killed\n", "no valid report", id="no JSON"),
        pytest.param("[]", "no valid report", id="JSON of another shape"),
        pytest.param("null", "no valid report", id="null"),
        pytest.param("", "no valid report", id="nothing"),
        pytest.param("{} {}", "no valid report", id="more than one value"),
        pytest.param(" " * COMPACT_REPORT_BYTES + "{}", "longer than", id="a byte too long"),
        pytest.param("é" * (COMPACT_REPORT_BYTES // 2 + 1), "longer than", id="too many bytes in few letters"),
        pytest.param('{"version":3}', "no valid report", id="another version"),
        pytest.param('{"surprise":1}', "no valid report", id="an unknown field"),
        pytest.param("\ud800", "no valid report", id="half a surrogate pair"),
        pytest.param('{"failed":"\ud800"}', "no valid report", id="half a surrogate pair inside"),
        pytest.param('{"failed":"\\ud800"}', "no valid report", id="half a surrogate pair, escaped"),
        pytest.param("\x00" * 9, "no valid report", id="zero bytes"),
        pytest.param("[" * 4000, "no valid report", id="deep nesting of lists"),
        pytest.param('{"a":' * 600, "no valid report", id="deep nesting of objects"),
        pytest.param(_altered(p95Microseconds=10**18), "no valid report", id="a figure of many days"),
        pytest.param(_altered(samples=10**300), "no valid report", id="a number with 300 digits"),
        pytest.param(_altered(p95Microseconds=float("nan")), "no valid report", id="NaN"),
        pytest.param(_altered(p95Microseconds=float("inf")), "no valid report", id="infinity"),
        pytest.param(_altered(p95Microseconds=-1), "no valid report", id="a negative latency"),
        pytest.param(_altered(p95Microseconds=5000.5), "no valid report", id="a fraction of a microsecond"),
        pytest.param(_altered(p50Microseconds=5001), "no valid report", id="a median above p95"),
        pytest.param(_altered(p95LowMicroseconds=5001), "no valid report", id="p95 outside its interval"),
        pytest.param(_altered(meanMicroseconds=10**9), "no valid report", id="a mean above the maximum"),
        pytest.param(_altered(samples=129), "can't be Valid", id="a verdict that its samples don't bear out"),
        pytest.param(_altered(p95HighMicroseconds=None), "both bounds", id="half an interval"),
        pytest.param(_altered(samples=0), "no valid report", id="figures without samples"),
        pytest.param(_altered(inferencesPerSecond="fast"), "no valid report", id="a rate that is no number"),
        pytest.param(_altered(verdict="Great"), "no valid report", id="a verdict of its own"),
        pytest.param(_altered(cell="../../etc"), "no valid report", id="a cell that is no hash"),
        pytest.param(_altered(caveats=["Fine"]), "no valid report", id="a doubt of its own"),
        pytest.param(_altered(caveats=["Drift"] * 5), "no valid report", id="more doubts than there is room for"),
    ],
)
def test_a_bad_report_is_refused(text: str, words: str) -> None:
    """The refusal is one short printable sentence."""
    with pytest.raises(ReportError) as caught:
        parse_compact(text, cells=CELLS)
    assert words in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 260


def test_a_refusal_repeats_no_control_characters() -> None:
    """A runner can't write into the operator's log by naming a field so."""
    with pytest.raises(ReportError) as caught:
        parse_compact('{"x\\nERROR forged\\u001b[31m":1}', cells=CELLS)
    assert str(caught.value).isprintable()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=9,
)
mutations = st.builds(
    lambda name, value: _altered(**{name: value}),
    st.sampled_from([*json.loads(report(measured(A)).model_dump_json())["measured"][0], "other"]),
    json_values,
)


@settings(deadline=None)
@given(st.text() | json_values.map(json.dumps) | mutations | st.binary().map(lambda raw: raw.decode(errors="replace")))
def test_nothing_but_a_refusal_comes_out_of_a_strange_report(text: str) -> None:
    """Any text at all is a report or a ReportError, and a report speaks only of the plan's cells."""
    try:
        said = parse_compact(text, cells=CELLS)
    except ReportError:
        return
    named = {entry.cell for entry in said.measured} | {entry.cell for entry in said.failed}
    assert named | ({said.doing.cell} if said.doing and said.doing.cell else set()) <= set(CELLS)


@settings(deadline=None)
@given(st.text() | json_values.map(json.dumps))
def test_a_strange_full_report_is_none(text: str) -> None:
    """Details may be missing; they never raise."""
    parse_full(text)
    parse_full(f"noise\n{REPORT_MARK}{text}\nnoise")


def test_the_full_report_is_the_last_marked_line() -> None:
    """Logs before and after it do not matter, nor do odd characters in it."""
    said = full_report(details(measured(A))).model_copy(update={"provenance": {"cpu": "X\u2028Y\x85Z"}})
    log = f"loading\n{REPORT_MARK}{{}}\n{REPORT_MARK}{said.model_dump_json()}\nbye\n"
    assert parse_full(log) == said


@pytest.mark.parametrize(
    "log",
    [
        pytest.param("", id="an empty log"),
        pytest.param("nothing marked\n", id="no marked line"),
        pytest.param(f"{REPORT_MARK}not json", id="a line that is no JSON"),
        pytest.param(f'{REPORT_MARK}{{"version":9}}', id="another version"),
        pytest.param(f"{REPORT_MARK}{' ' * FULL_REPORT_BYTES}{{}}", id="a line that is too long"),
        pytest.param(f"{REPORT_MARK}{'[' * 100_000}", id="deep nesting"),
        pytest.param(f" {REPORT_MARK}{{}}", id="a mark in the middle of a line"),
        pytest.param(REPORT_MARK + "\ud800", id="half a surrogate pair"),
    ],
)
def test_a_bad_full_report_costs_only_the_details(log: str) -> None:
    """It is taken for none."""
    assert parse_full(log) is None


def test_details_that_agree_are_taken() -> None:
    """The cell's own details are found among others."""
    entry = measured(A)
    wanted = details(entry)
    assert details_of(entry, full_report(details(measured(B)), wanted)) == wanted


@pytest.mark.parametrize("field", ["samples", "mean_microseconds", "max_microseconds"])
def test_details_that_contradict_the_figures_are_ignored(field: str) -> None:
    """A runner that tells two stories is believed only the one that came first."""
    entry = measured(A)
    assert details_of(entry, full_report(details(entry, **{field: 77}))) is None


@pytest.mark.parametrize("field", ["p50", "p90", "p95", "p99"])
def test_details_with_another_percentile_are_ignored(field: str) -> None:
    """The same for each percentile."""
    entry = measured(A)
    other = details(measured(A, 6000))
    assert details_of(entry, full_report(details(entry, **{field: getattr(other.call, field)}))) is None


def test_the_largest_full_report_is_read() -> None:
    """Eight shapes with all that there may be to say of them."""
    cells = [largest(CellDetails, cell=f"{number:010x}") for number in range(MAX_SHAPES)]
    said = largest(FullReport, cells=cells)
    assert parse_full(f"{REPORT_MARK}{said.model_dump_json()}\n") == said


def test_details_are_absent_without_a_full_report() -> None:
    """That is no error."""
    assert details_of(measured(A), None) is None
    assert details_of(measured(A), full_report()) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("Traceback\n  x\nKeyError: 7\n\n", "KeyError: 7", id="the last line that says something"),
        pytest.param("\x1b[31mred\x07\n", "[31mred", id="without control characters"),
        pytest.param("x" * 500, "x" * 120, id="not more than 120 letters"),
        pytest.param("\n \n", "", id="nothing"),
        pytest.param("bad \ud800 end", "bad  end", id="without half surrogate pairs"),
    ],
)
def test_last_words(text: str, words: str) -> None:
    """What a person reads of a message that is no report."""
    assert last_words(text) == words
