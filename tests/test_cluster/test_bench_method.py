"""The arithmetic behind the bench's part `method`; what it is about is measured, not tested."""

from __future__ import annotations

import json
import os
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from cluster.bench.figures import Figure, percentile
from cluster.bench.method.costs import Clocks, clock_ns, family
from cluster.bench.method.loop import Turn, figures
from cluster.bench.method.pairs import Ratio, in_turns, ratio
from cluster.bench.method.settings import VARIABLE, Row, Settings, SettingsError
from cluster.bench.method.study import plans, timed_seconds
from cluster.bench.method.tools import Work, last_object, pyperf_values
from cluster.bench.running import TooFewProcessorsError, processors, run
from cluster.bench.table import figure_line
from inferbench_runner.contract import CellDetails, CompactReport, FullReport, Interval, Latency, Phase, Position


def latency(samples: int, mean_microseconds: int) -> Latency:
    """A distribution of which only the number and the mean matter."""
    same = Interval(value_microseconds=mean_microseconds)
    return Latency(
        samples=samples,
        mean_microseconds=mean_microseconds,
        min_microseconds=mean_microseconds,
        p50=same,
        p90=same,
        p95=same,
        p99=same,
        max_microseconds=mean_microseconds,
    )


def details(cell: str, milliseconds: int, end_to_end: Latency | None = None) -> CellDetails:
    """A cell that was measured for so long."""
    return CellDetails(
        cell=cell,
        call=latency(10, 1000),
        end_to_end=end_to_end,
        warmup_calls=10,
        warmup_milliseconds=100,
        measure_milliseconds=milliseconds,
    )


def test_a_ratio_is_the_median_of_the_pairs_own_ratios() -> None:
    """Not the ratio of the medians: a machine that slows down between two pairs changes none of them."""
    found = ratio([(11, 10), (300, 100), (9, 10)])

    assert (found.middle, found.low, found.high, found.pairs) == (1.1, 0.9, 3.0, 3)
    assert str(found) == "0.9000 to 3.000 in 3 pairs"
    assert str(Ratio(1.0, 1.0, 1.0, 1)) == "1 pair"


def test_turns_are_taken_in_the_order_a_b_b_a() -> None:
    """So that neither always follows the other; results of the same turn stay together."""
    done: list[str] = []

    def work(name: str) -> str:
        done.append(name)
        return f"{name}{len(done)}"

    first, second = in_turns([lambda: work("a"), lambda: work("b")], 3)

    assert "".join(done) == "abbaab"
    assert (first, second) == (["a1", "a4", "a5"], ["b2", "b3", "b6"])


@pytest.mark.parametrize(
    ("samples", "percent", "expected"),
    [
        pytest.param(range(1, 101), 95, 95, id="a whole rank"),
        pytest.param(range(1, 16), 95, 15, id="a rank of 14.25, rounded up"),
        pytest.param([7], 50, 7, id="a single sample"),
        pytest.param(range(1, 21), 50, 10, id="the lower one of two in the middle"),
    ],
)
def test_percentiles_are_samples(samples: range | list[int], percent: int, expected: int) -> None:
    """No value is made up between two of them."""
    assert percentile(list(samples), percent) == expected


@pytest.mark.parametrize(
    ("value", "aim", "floor", "met", "text"),
    [
        pytest.param(1.005, 1.01, 0.99, True, "0.99 to 1.01", id="inside"),
        pytest.param(1.02, 1.01, 0.99, False, "0.99 to 1.01", id="above"),
        pytest.param(0.98, 1.01, 0.99, False, "0.99 to 1.01", id="below"),
        pytest.param(86, None, 85, True, "> 85", id="enough"),
        pytest.param(85, None, 85, False, "> 85", id="not more than the least"),
        pytest.param(None, 1, None, None, "< 1", id="not measured"),
    ],
)
def test_an_aim_can_be_a_range(
    value: float | None, aim: float | None, floor: float | None, text: str, *, met: bool | None
) -> None:
    """A ratio can be too small as well, and a share can't be too large."""
    figure = Figure("x", value, "x", aim, floor=floor)

    assert figure.met is met
    assert figure.aim_text == text


def test_a_line_shows_a_figure_as_its_table_does() -> None:
    """Brackets are no markup, and what was not measured says why."""
    console = Console(width=200, record=True, file=StringIO())

    console.print(figure_line(Figure("ratio", 1.0042, "x", 1.01, "[2 pairs]", floor=0.99, digits=4)))
    console.print(figure_line(Figure("peer", None, "x", 1, "not measured: no uv")))

    assert console.export_text().splitlines() == [
        "ratio: 1.004 x (aim 0.99 to 1.01: met); [2 pairs]",
        "peer: - x; not measured: no uv",
    ]


def test_timed_seconds_are_the_windows_and_the_end_to_end_calls() -> None:
    """2 s and 3 s of windows, and 4 calls of 0.5 s from text to label."""
    report = FullReport(cells=(details("0" * 10, 2000), details("1" * 10, 3000, latency(4, 500_000))))

    assert timed_seconds(report) == 7.0
    assert timed_seconds(FullReport()) == 0


def test_the_study_is_six_plans_with_36_cells() -> None:
    """Five encoders at seven lengths and one vision model; some of them can be chosen."""
    found = dict(plans(Settings()))

    assert sorted(len(plan.shapes) for plan in found.values()) == [1, 7, 7, 7, 7, 7]
    assert [name for name, _ in plans(Settings(study_models=("vit-base",)))] == ["vit-base"]


def test_rounds_and_processes_are_compared_with_the_calls_next_to_them() -> None:
    """p50: the median over pairs of rounds; p95: over pairs of processes; a machine that slows down changes neither."""
    ms = 1_000_000
    turns = [
        Turn(process, [11 * factor * ms] * 4, [10 * factor * ms] * 4) for process in (0, 1) for factor in (1, 5, 100)
    ]

    p50, p95 = figures(turns, Work(8, 24, 2))

    assert (round(p50.value or 0, 9), round(p95.value or 0, 9)) == (1.1, 1.1)
    assert "length 8, 2 threads" in p50.name
    assert "6 pairs of rounds" in p50.detail
    assert "in 2 pairs" in p95.detail
    assert "24 samples" in p95.detail


def test_pyperf_values_come_from_all_workers() -> None:
    """Runs that only calibrate have no values."""
    runs = [{"warmups": [[1, 0.5]]}, {"values": [0.1, 0.2], "warmups": [[1, 0.3]]}, {"values": [0.3]}]

    assert pyperf_values(json.dumps({"benchmarks": [{"runs": runs}], "version": "1.0"})) == [0.1, 0.2, 0.3]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        pytest.param('a {"x": 1}\nLoading: 100%|#| {"p50_ms": 2.5}\n', {"p50_ms": 2.5}, id="after other output"),
        pytest.param("Traceback\n", None, id="none"),
        pytest.param("{broken", None, id="never closed"),
        pytest.param("{'not': json}", None, id="not JSON"),
    ],
)
def test_the_last_object_is_what_a_script_says(output: str, expected: dict[str, float] | None) -> None:
    """Libraries print what they like before it."""
    assert last_object(output) == expected


def test_settings_come_from_one_variable() -> None:
    """What it leaves out stays as it is; what is no setting is refused."""
    found = Settings.from_environment({VARIABLE: '{"rows": ["study"], "loop_samples": {"8": 5}}'})

    assert (found.rows, found.loop_samples, found.layers) == ((Row.STUDY,), {8: 5}, 12)
    assert Settings.from_environment({}) == Settings()
    with pytest.raises(SettingsError, match=r"loop_sample\b"):
        Settings.from_environment({VARIABLE: '{"loop_sample": 1}'})


def test_processor_time_counts_between_the_first_and_the_last_look_at_each_child(tmp_path: Path) -> None:
    """Only looks while a child measures count."""
    clocks = Clocks(tmp_path)
    own = os.getpid()

    clocks.look(own)
    (tmp_path / "termination").write_text(CompactReport(doing=Position(phase=Phase.WARMUP)).model_dump_json())
    clocks.look(own)
    assert clocks.spent() == (0, 0)

    clocks.seen |= {7: [(10, 1000), (11, 1500), (13, 3000)], 8: [(20, 100), (21, 600)]}
    assert clocks.spent() == (4, 2500)


def test_a_process_has_a_family_and_a_clock() -> None:
    """The clock runs while it works; a process that is not there has neither."""
    before = clock_ns(os.getpid())
    sum(range(100_000))

    assert clock_ns(os.getpid()) > before
    assert family(os.getpid())[0].pid == os.getpid()
    assert family(2**22 + 1) == []


def test_a_program_is_watched_while_it_runs(tmp_path: Path) -> None:
    """What it printed and its code are there at the end."""
    seen: list[int] = []
    program = "import os, sys, time; print(os.getpid()); time.sleep(0.3); sys.exit(3)"

    ended = run([sys.executable, "-c", program], tmp_path, watch=seen.append)

    assert ended.code == 3
    assert ended.seconds > 0.3
    assert set(seen) == {int(ended.output)}


def test_processors_are_lent_for_a_while() -> None:
    """What is started inherits them; afterwards all are there again."""
    before = os.sched_getaffinity(0)

    with processors(1):
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before
    with pytest.raises(TooFewProcessorsError, match="may be used"), processors(len(before) + 1):
        pass
