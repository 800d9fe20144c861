"""The arithmetic and the tables of `make bench`; what they are about is measured, not tested."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from cluster.bench.figures import (
    Figure,
    Requests,
    differences,
    last_resync,
    median_ms,
    p95_figure,
    requests,
    significant,
)
from cluster.bench.loads import full_log
from cluster.bench.machine import facts, load
from cluster.bench.node import container_moments
from cluster.bench.table import facts_table, figures_table, requests_table
from cluster.outcomes import measured_report, report_message
from cluster.pods import Container, Pod
from inferbench_operator.core.reports import details_of, parse_compact, parse_full
from inferbench_runner.contract import PLAN_VARIABLE, AcceleratorKind, Device, ModelRef, Plan, Shape

METRICS = """\
# TYPE inferbench_operator_api_requests_total counter
inferbench_operator_api_requests_total{verb="POST",resource="jobs",code="201"} 4.0
inferbench_operator_api_requests_total{verb="POST",resource="jobs",code="409"} 1.0
inferbench_operator_api_requests_total{verb="GET",resource="jobs",code="200"} 2.0
# TYPE inferbench_operator_last_resync_timestamp_seconds gauge
inferbench_operator_last_resync_timestamp_seconds 1.7e+09
# TYPE another_total counter
another_total{verb="POST",resource="jobs"} 7.0
"""

EVENTS = """\
2026-12-01 00:00:00.25 +0000 UTC k8s.io /tasks/start {"container_id":"sandbox","pid":1}
2026-12-01 00:00:01.5 +0000 UTC k8s.io /tasks/start {"container_id":"runner","pid":2}
2026-12-01 00:00:02 +0000 UTC k8s.io /tasks/exit {"container_id":"runner","id":"exec","pid":3}
2026-12-01 00:01:03.123456789 +0000 UTC k8s.io /tasks/exit {"container_id":"runner","id":"runner","pid":2}
2026-12-01 00:01:04 +0000 UTC k8s.io /containers/delete {"id":"runner"}
"""


def test_containerd_tells_when_a_container_started_and_ended() -> None:
    """Only that container counts, and its first process; midnight of that day is 1,796,083,200 s after 1970."""
    found = container_moments(EVENTS, "runner")

    assert found == {"/tasks/start": 1_796_083_201.5, "/tasks/exit": pytest.approx(1_796_083_263.123456789)}


def test_the_95th_percentile_is_the_sample_of_rank_38_of_40() -> None:
    """Samples of 1 to 40 ms, in any order: 0.95 x 40 = 38, the median is the 20th."""
    samples = [number * 1_000_000 for number in (*range(40, 20, -1), *range(1, 21))]

    figure = p95_figure("waiting", samples, aim_ms=38.5, detail="alone")

    assert figure == Figure("waiting", 38.0, "ms", 38.5, "p50 20.0, max 40.0, n = 40; alone")
    assert figure.met is True
    assert median_ms(samples) == 20.0


@pytest.mark.parametrize(
    ("value", "aim", "met"),
    [
        pytest.param(299.9, 300, True, id="below the aim"),
        pytest.param(300, 300, False, id="at the aim, which is to be below it"),
        pytest.param(1, None, None, id="without an aim there is nothing to meet"),
    ],
)
def test_a_figure_knows_whether_its_aim_is_met(value: float, aim: float | None, *, met: bool | None) -> None:
    """An aim is an upper bound that is not reached."""
    assert Figure("x", value, "ms", aim).met is met


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(0.0, "0", id="nothing"),
        pytest.param(0.01234, "0.0123", id="small"),
        pytest.param(9.876, "9.88", id="one digit before the point"),
        pytest.param(112.6, "113", id="three digits before the point"),
        pytest.param(12345.6, "12,346", id="no digit before the point is lost"),
        pytest.param(-0.5, "-0.500", id="negative"),
    ],
)
def test_numbers_have_three_significant_digits(value: float, expected: str) -> None:
    """More would claim a precision that no figure here has."""
    assert significant(value) == expected


def test_pairs_are_compared_one_by_one() -> None:
    """A machine that slows down half-way changes both of a pair; their difference stays."""
    spread = differences([(11, 10), (12, 10), (113, 110), (1004, 1000), (1005, 1000)])

    assert (spread.low, spread.middle, spread.high) == (1.5, 3, 4.5)


def test_requests_are_summed_over_their_codes_and_told_from_other_metrics() -> None:
    """What was refused was a request as well."""
    assert requests(METRICS) == Requests({("POST", "jobs"): 5, ("GET", "jobs"): 2})
    assert last_resync(METRICS) == 1.7e9
    assert last_resync("") == 0


def test_tables_show_every_figure_its_aim_and_its_verdict() -> None:
    """One line a figure, one a kind of request with the most frequent first, and the sums."""
    figures = [
        Figure("slow thing", 400, "ms", 300, "p50 [1]"),
        Figure("fast thing", 0.5, "µs", 1),
        Figure("share", 77.7, "%"),
    ]
    runs = {
        "small": Requests({("POST", "jobs"): 1, ("PUT", "benchmarks"): 3}),
        "large": Requests({("PUT", "benchmarks"): 9}),
    }
    console = Console(width=100, record=True, file=StringIO())

    console.print(figures_table(figures))
    console.print(requests_table(runs))
    console.print(facts_table({"load": load()} | dict(facts())))

    words = [" ".join(line.replace("│", " ").split()) for line in console.export_text().splitlines()]
    assert "slow thing 400 ms < 300 missed p50 [1]" in words
    assert "fast thing 0.500 µs < 1 met -" in words
    assert "share 77.7 % - - -" in words
    lines = [words.index(line) for line in ("PUT benchmarks 3 9", "POST jobs 1 0", "all 4 9")]
    assert lines == sorted(lines)
    assert any(line.startswith("CPU ") for line in words)


def test_simulated_pods_report_as_much_as_the_operator_believes() -> None:
    """The log's full report agrees with the termination message, so that no request or field is spared."""
    plan = Plan(
        model=ModelRef(id="example/model"),
        device=Device(kind=AcceleratorKind.CPU),
        shapes=tuple(Shape(cell=f"{number:010x}", sequence_length=8) for number in range(8)),
    )
    environment = {"name": PLAN_VARIABLE, "value": plan.model_dump_json()}
    pod = Pod("team", "pod-1", "uid-1", "node-1", (Container("runner", env=(environment,)),))

    compact = parse_compact(report_message(pod), cells=[shape.cell for shape in plan.shapes])
    full = parse_full(full_log(pod))

    assert compact == measured_report(plan)
    assert full is not None
    assert all(details_of(cell, full) for cell in compact.measured)
    assert len(full.provenance) > 20
