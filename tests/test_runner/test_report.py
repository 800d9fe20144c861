"""The two messages: sizes, rounding, and text that comes from elsewhere."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferbench_runner.caveats import EFFECTS
from inferbench_runner.contract import (
    COMPACT_REPORT_BYTES,
    FULL_REPORT_BYTES,
    MAX_COMPACT_CAVEATS,
    MAX_SHAPES,
    REPORT_MARK,
    Caveat,
    CellCaveat,
    CellDetails,
    CellFailed,
    CellMeasured,
    CompactReport,
    Correctness,
    FailureReason,
    FullReport,
    Interval,
    Latency,
    Noise,
    Phase,
    Position,
    Shape,
    Verdict,
)
from inferbench_runner.interval import Percentile
from inferbench_runner.report import Measured, compact_bytes, full_line, to_facts, to_failed
from inferbench_runner.summary import Distribution, Figures
from inferbench_runner.words import listed, one_line
from inferbench_runner.worker import Failure
from test_runner.builders import MS, PERFECT, SPOTLESS, cell, circumstances, distribution

LONGEST = 86_400_000_000
"""Microseconds of a day, the longest latency that the contract takes."""

FACTS = {"torch": "2", "device": "fake"}


def measured(figures: Figures = SPOTLESS, shape: Shape | None = None, **fields: Any) -> Measured:  # noqa: ANN401
    """Return a measured shape with these figures."""
    return Measured.from_figures(shape or Shape(cell=cell(1)), figures, circumstances(**fields), PERFECT)


def of(value: int, low: int | None = None, high: int | None = None) -> Percentile:
    """Return a percentile in nanoseconds."""
    return Percentile(value, low, high, 200)


def test_rounding_never_narrows_what_is_claimed() -> None:
    """Bounds and extremes are rounded outwards to microseconds, and all else to the nearest one."""
    call = Distribution(
        count=1000,
        mean=10_499,
        minimum=1999,
        p50=of(2500, 2499, 2501),
        p90=of(3499, 3001, 3999),
        p95=of(4500, 4001, 5001),
        p99=of(5499, 5000, 5499),
        maximum=11_001,
        interpolated_p95=4400,
    )
    found = measured(replace(SPOTLESS, call=call, process_p95=(3400, 5600), first_ns=10_500))
    entry, details = found.to_cell(), found.to_details(FACTS)
    assert (entry.mean_microseconds, entry.max_microseconds) == (10, 12)
    assert (entry.p50_microseconds, entry.p90_microseconds, entry.p95_microseconds, entry.p99_microseconds) == (
        3,
        3,
        5,
        5,
    )
    assert (entry.p95_low_microseconds, entry.p95_high_microseconds) == (4, 6)
    assert details.call == Latency(
        samples=1000,
        mean_microseconds=10,
        min_microseconds=1,
        p50=Interval(value_microseconds=3, low_microseconds=2, high_microseconds=3),
        p90=Interval(value_microseconds=3, low_microseconds=3, high_microseconds=4),
        p95=Interval(value_microseconds=5, low_microseconds=4, high_microseconds=6),
        p99=Interval(value_microseconds=5, low_microseconds=5, high_microseconds=6),
        max_microseconds=12,
    )
    assert details.process_p95_microseconds == (3, 6)
    assert (details.first_call_microseconds, details.interpolated_p95_microseconds) == (11, 4)


VALUES = st.one_of(
    st.lists(st.integers(1, MS), min_size=10, max_size=10),
    st.lists(st.integers(10 * MS, LONGEST * 1000), min_size=10, max_size=10),
)
"""Short latencies or long ones: a nanosecond and a day never meet in one shape."""


@settings(deadline=None)
@given(VALUES.map(sorted), st.booleans())
def test_any_figures_in_order_are_accepted(values: list[int], bounds: bool) -> None:  # noqa: FBT001  # drawn
    """Whatever the latencies, rounding leaves them in the order that the contract asks for."""
    low, p50, p90, p95, high = values[0], values[1], values[2], values[3], values[8]
    call = replace(
        distribution(),
        mean=values[5],
        minimum=values[0],
        p50=of(p50),
        p90=of(p90),
        p95=of(p95, low, high) if bounds else of(p95),
        p99=of(values[4]),
        maximum=values[9],
    )
    found = measured(replace(SPOTLESS, call=call, process_p95=(p95,)))
    entry = found.to_cell()
    found.to_details(FACTS)
    assert (entry.p95_low_microseconds is not None) is bounds
    if entry.p95_low_microseconds is not None and entry.p95_high_microseconds is not None:
        assert entry.p95_low_microseconds * 1000 <= low
        assert entry.p95_high_microseconds * 1000 >= high
    else:
        assert entry.verdict is Verdict.INCONCLUSIVE


def test_too_few_samples_give_no_bounds() -> None:
    """No interval is claimed where there is none, neither in the figures nor in words."""
    call = replace(SPOTLESS.call, count=3, p95=of(12 * MS))
    found = measured(replace(SPOTLESS, call=call))
    entry, details = found.to_cell(), found.to_details(FACTS)
    assert (entry.p95_low_microseconds, entry.p95_high_microseconds) == (None, None)
    assert (details.call.p95.low_microseconds, details.half_width_percent) == (None, None)
    assert "[" not in found.to_sentence()


def test_details_say_how_far_the_figures_go() -> None:
    """Percentages and rates are decimal strings; spans are whole milliseconds, rounded up."""
    found = replace(
        SPOTLESS,
        blocks=17,
        round_spread=0.0123,
        process_p95=(11 * MS, 12 * MS, 14 * MS),
        in_flight=0.98765,
        achieved=0.991,
        warmup_calls=33,
        warmup_ns=2 * MS + 1,
        measured_ns=5 * MS,
        calls_per_second=100 / 3,
    )
    details = measured(found).to_details(FACTS)
    assert (details.rounds, details.independent_blocks, details.effective_samples) == (21, 17, 1000)
    assert (details.half_width_percent, details.spread_between_rounds_percent) == ("1.00", "1.23")
    assert details.spread_between_processes_percent == "25.00"
    assert (details.calls_in_flight, details.achieved_rate_percent) == ("0.988", "99.10")
    assert (details.warmup_calls, details.warmup_milliseconds, details.measure_milliseconds) == (33, 3, 5)
    assert (details.correctness, details.noise) == (PERFECT, SPOTLESS.counters.to_noise())
    assert measured(replace(found, process_p95=(1,))).to_details(FACTS).spread_between_processes_percent is None
    batch = measured(found, Shape(cell=cell(1), batch_size=8))
    assert batch.to_cell().inferences_per_second == "266.667"


def test_kinds_of_latency_go_where_they_belong() -> None:
    """Device, end-to-end, service and queue times are reported as such, and absent where there are none."""
    kinds = {"device": 1, "end_to_end": 2, "service": 3, "queue": 4}
    found = measured(replace(SPOTLESS, **{name: distribution(MS * size) for name, size in kinds.items()}))
    details = found.to_details(FACTS)
    for name, size in kinds.items():
        assert getattr(details, name).mean_microseconds == 10_000 * size
    plain = measured().to_details(FACTS)
    assert [getattr(plain, name) for name in kinds] == [None] * 4


DISAGREEING: dict[str, Any] = {"processes_disagree": True, "process_p95": (11_000_000, 12_000_000, 13_000_000)}


def test_the_gravest_caveats_go_into_the_compact_report_and_all_into_the_full_one() -> None:
    """Four fit, gravest first; none is lost."""
    figures = replace(SPOTLESS, drift=0.5, gap=0.5, warmups_settled=False, **DISAGREEING)
    found = measured(figures, processes=1)
    assert len(found.caveats) == 5
    assert found.to_cell().caveats == tuple(doubt.caveat for doubt in found.caveats[:MAX_COMPACT_CAVEATS])
    assert found.to_details(FACTS).caveats == found.caveats
    assert found.to_cell().verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("shape", "own"),
    [
        pytest.param(
            Shape(cell=cell(1), sequence_length=128, batch_size=4),
            {"batchSize": "4", "sequenceLength": "128"},
            id="a text",
        ),
        pytest.param(Shape(cell=cell(1)), {"batchSize": "1"}, id="an image has no length"),
    ],
)
def test_the_provenance_hash_is_that_of_all_that_must_be_equal(shape: Shape, own: dict[str, str]) -> None:
    """It is the first 16 hex digits of SHA-256 over sorted JSON of the report's facts and the shape's own."""
    text = json.dumps({**FACTS, **own, "umlaut": "ü"}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    expected = hashlib.sha256(text.encode()).hexdigest()[:16]
    found = measured(shape=shape)
    assert found.to_details(FACTS | {"umlaut": "ü"}).provenance_hash == expected
    assert found.to_details(FACTS).provenance_hash != expected


NAMES = sorted(Caveat, key=len)[-MAX_COMPACT_CAVEATS:]


def longest_measured(index: int) -> CellMeasured:
    """Return the longest entry that a measured shape can have."""
    return CellMeasured(
        cell=f"{index:x}" * 10,
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
        caveats=tuple(NAMES),
    )


def test_eight_cells_with_the_longest_numbers_fit() -> None:
    """Figures never have to be cut to fit into a termination message, with four caveats each and what is being done."""
    doing = Position(cell="8" * 10, phase=max(Phase, key=len))
    report = CompactReport(measured=tuple(longest_measured(index) for index in range(MAX_SHAPES)), doing=doing)
    text = compact_bytes(report)
    assert len(text) <= COMPACT_REPORT_BYTES
    assert CompactReport.model_validate_json(text) == report


@pytest.mark.parametrize("failed", range(1, MAX_SHAPES + 1))
def test_measured_and_failed_cells_share_the_message(failed: int) -> None:
    """Beside the longest figures, messages of failed cells are cut as far as that takes; every cell is named."""
    report = CompactReport(
        measured=tuple(longest_measured(index) for index in range(MAX_SHAPES - failed)),
        failed=tuple(
            CellFailed(
                cell=cell(index), phase=Phase.MEASURE, reason=max(FailureReason, key=len), message="\U0001f600" * 240
            )
            for index in range(failed)
        ),
        doing=Position(cell=cell(7), phase=max(Phase, key=len)),
    )
    text = compact_bytes(report)
    assert len(text) <= COMPACT_REPORT_BYTES
    found = CompactReport.model_validate_json(text)
    assert found.measured == report.measured
    assert [entry.cell for entry in found.failed] == [entry.cell for entry in report.failed]
    assert found.doing == report.doing


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=240), st.integers(0, MAX_SHAPES))
def test_messages_are_cut_by_bytes_until_the_report_fits(message: str, count: int) -> None:
    """Whatever the messages hold, the report stays within its bytes, is valid and names every cell."""
    failure = Failure(Phase.WARMUP, FailureReason.INTERNAL_ERROR, message)
    failed = tuple(to_failed(cell(index), failure) for index in range(count))
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


def test_a_failure_becomes_one_clean_line() -> None:
    """Phase and reason are kept; the sentence loses control characters and what is beyond 240 characters."""
    entry = to_failed(cell(3), Failure(Phase.LOAD, FailureReason.OUT_OF_MEMORY, "a\nb\x1b[0m" + "c" * 500))
    assert (entry.cell, entry.phase, entry.reason) == (cell(3), Phase.LOAD, FailureReason.OUT_OF_MEMORY)
    assert entry.message.startswith("a b [0mccc")
    assert len(entry.message) == 240


def fullest(character: str) -> FullReport:
    """Return eight cells with everything at its longest, and provenance to the brim, of one kind of character."""
    interval = Interval(value_microseconds=LONGEST, low_microseconds=LONGEST, high_microseconds=LONGEST)
    latency = Latency(
        samples=1_000_000_000,
        mean_microseconds=LONGEST,
        min_microseconds=LONGEST,
        p50=interval,
        p90=interval,
        p95=interval,
        p99=interval,
        max_microseconds=LONGEST,
    )
    share = "-" + "9" * 9 + "." + "9" * 9
    details = CellDetails(
        cell="f" * 10,
        call=latency,
        device=latency,
        end_to_end=latency,
        service=latency,
        queue=latency,
        warmup_calls=10**9,
        warmup_milliseconds=86_400_000,
        measure_milliseconds=86_400_000,
        first_call_microseconds=LONGEST,
        effective_samples=10**9,
        independent_blocks=10**9,
        half_width_percent=share,
        rounds=10**6,
        spread_between_rounds_percent=share,
        spread_between_processes_percent=share,
        process_p95_microseconds=(LONGEST,) * 64,
        interpolated_p95_microseconds=LONGEST,
        calls_in_flight=share,
        achieved_rate_percent=share,
        caveats=tuple(CellCaveat(caveat=caveat, message="m" * 320) for caveat in EFFECTS),
        correctness=Correctness(
            reference=character * 256,
            cosine_similarity=share,
            min_cosine_similarity=share,
            max_relative_error=share,
            max_relative_error_allowed=share,
            top1_agreement_percent=share,
            min_top1_agreement_percent=share,
        ),
        noise=Noise(
            steal_percent=share,
            neighbours_percent=share,
            involuntary_switches_per_second=share,
            throttled_milliseconds=86_400_000,
            thermal_throttles=10**9,
        ),
        provenance_hash="f" * 16,
        histogram="h" * 8192,
    )
    return FullReport(
        cells=(details,) * MAX_SHAPES,
        phases_milliseconds=dict.fromkeys(Phase, 86_400_000),
        wall_milliseconds=86_400_000,
        peak_host_memory_mebibytes=16_777_216,
        provenance=to_facts({f"{index:064}": character * 1000 for index in range(64)}),
    )


@pytest.mark.parametrize("character", ["a", "\U0001f600", '"'])
def test_the_fullest_report_is_one_line_that_is_accepted(character: str) -> None:
    """Eight cells with everything at its longest, and full provenance, fit into the longest line that is read."""
    report = fullest(character)
    line = full_line(report)
    assert len(line) <= FULL_REPORT_BYTES
    assert b"\n" not in line
    assert FullReport.model_validate_json(line.removeprefix(REPORT_MARK.encode())) == report


def test_facts_are_cut_to_what_the_contract_takes() -> None:
    """Each is one line of at most 256 characters."""
    assert to_facts({"a": "x\ny", "b": "z" * 300}) == {"a": "x y", "b": "z" * 255 + "…"}


def test_text_from_elsewhere_loses_control_characters() -> None:
    """Terminal escapes, line breaks, direction marks and lone surrogates become blanks."""
    assert one_line("a\x1b[31m\r\nb\u202ec\udc80\x00 d", 100) == "a [31m b c d"
    assert one_line("abcdef", 4) == "abc…"
    assert one_line("abcdef", 0) == ""


def test_lists_are_read_out() -> None:
    """Alternatives read like a sentence."""
    assert [listed([]), listed(["a"]), listed(["a", "b", "c"])] == ["", "a", "a, b or c"]


@pytest.mark.parametrize(
    ("p95", "low", "high", "expected"),
    [
        pytest.param(54_321_000, 53_000_000, 56_000_000, "p95 54.3 ms [53.0, 56.0], p50 10.0 ms", id="tens"),
        pytest.param(54_321_000, 9_876_000, 100_000_000, "p95 54.3 ms [9.88, 100.0], p50 10.0 ms", id="all sizes"),
        pytest.param(54_321_000, None, None, "p95 54.3 ms, p50 10.0 ms", id="no interval"),
    ],
)
def test_people_read_milliseconds(p95: int, low: int | None, high: int | None, expected: str) -> None:
    """The progress line shows p95 with its bounds, and the median, with three digits."""
    call = replace(SPOTLESS.call, p95=of(p95, low, high), p99=of(p95), maximum=10**9)
    sentence = measured(replace(SPOTLESS, call=call)).to_sentence()
    assert sentence.startswith(f"{expected}, n=1000, ")


def test_people_read_the_verdict_and_all_doubts() -> None:
    """A valid number is said to be that; else the doubts follow, gravest first."""
    assert measured().to_sentence() == "p95 12.0 ms [11.9, 12.1], p50 10.0 ms, n=1000, Valid"
    doubtful = measured(replace(SPOTLESS, drift=0.5, **DISAGREEING))
    assert doubtful.to_sentence().endswith("n=1000, Noisy (ProcessesDisagree, Drift)")
    tiny = replace(SPOTLESS, call=distribution(10_000), process_p95=(120_000,))
    assert measured(tiny).to_sentence().startswith("p95 0.120 ms [0.118, 0.122], p50 0.100 ms")
