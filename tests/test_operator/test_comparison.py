"""How accelerators compare: the published study again, and what must not be compared."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import Any

import pytest
import yaml

from inferbench_operator.core.comparison import COMPARED, compare, crossover, pareto
from inferbench_operator.core.decide import decide
from inferbench_operator.core.measured import Labels, Measured
from inferbench_operator.core.ratio import Interval
from inferbench_operator.models.benchmark import BenchmarkSpec
from inferbench_operator.models.gates import Compare, GateMetric
from inferbench_operator.models.status import MAX_COMPARISONS, BenchmarkStatus, Comparison
from inferbench_runner.contract import Precision, Verdict
from operator_testing.builders import NOW, SETTINGS, benchmark, cells_of, observed, result_of, run_of

ROOT = Path(__file__).parents[2]
P95 = Mapping[tuple[str, str, int | None], float]


def _published() -> P95:
    """Return the study's p95 in milliseconds by model, accelerator and length."""
    with (Path(__file__).parent / "published_study.csv").open(encoding="utf-8") as lines:
        return {
            (row["model"], row["accelerator"], int(row["sequence_length"]) if row["sequence_length"] else None): float(
                row["p95_milliseconds"]
            )
            for row in csv.DictReader(lines)
        }


PUBLISHED = _published()


def _replayed(baseline: str) -> BenchmarkStatus:
    """Return the status of the study's example, after runners have measured what the study has published."""
    manifest = yaml.safe_load((ROOT / "crds/examples/published-study.yaml").read_text("utf-8"))
    spec = BenchmarkSpec.model_validate(manifest["spec"] | {"compare": {"baseline": baseline, "ignore": ["precision"]}})
    of = benchmark(spec)
    results = []
    for cell in cells_of(spec):
        p95 = round(PUBLISHED[cell.model.name, cell.accelerator.name, cell.sequence_length] * 1000)
        results.append(result_of(of, cell, run=run_of(of), p95=p95))
    started = decide(observed(of), NOW, SETTINGS).status
    assert started
    status = decide(observed(replace(of, status=started), *results), NOW, SETTINGS).status
    assert status
    assert status.run
    assert status.run.completion_time
    return status


def _ratios(status: BenchmarkStatus, over: str) -> dict[tuple[str, int | None], float]:
    """Return how much longer than on Inferentia2 the entries of a status take on another accelerator."""
    p95 = {
        (entry.model, entry.accelerator, entry.sequence_length): entry.p95_microseconds or 0 for entry in status.results
    }
    return {
        (model, length): p95[model, over, length] / value
        for (model, accelerator, length), value in p95.items()
        if accelerator == "inf2" and (model, over, length) in p95
    }


@pytest.mark.parametrize(
    ("over", "pairs", "mean", "geometric", "middle", "low", "high"),
    [("a10g", 36, 4.56, 3.84, 5.19, 0.94, 7.61), ("inf1", 35, 4.37, 3.99, 4.40, 1.74, 7.86)],
)
def test_the_published_study_comes_out_as_it_was(
    over: str, pairs: int, mean: float, geometric: float, middle: float, low: float, high: float
) -> None:
    """Its "4.5 times faster" is an arithmetic mean of ratios; by the geometric one it is 3.8."""
    status = _replayed(over)
    ratios = _ratios(status, over)
    found = {one.model: one for one in status.comparison if one.accelerator == "inf2"}
    assert sum(one.cells for one in found.values()) == len(ratios) == pairs
    assert fmean(ratios.values()) == pytest.approx(mean, abs=0.005)
    assert median(ratios.values()) == pytest.approx(middle, abs=0.005)
    logs = [log(_number(one.speedup)) * one.cells for one in found.values()]
    assert exp(sum(logs) / pairs) == pytest.approx(geometric, abs=0.005)
    assert min(_number(one.min_speedup) for one in found.values()) == pytest.approx(low, abs=0.01)
    assert max(_number(one.max_speedup) for one in found.values()) == pytest.approx(high, abs=0.01)
    for model, one in found.items():
        own = [ratio for (of, _), ratio in ratios.items() if of == model]
        assert _number(one.speedup) == pytest.approx(geometric_mean(own), abs=0.0001)
        assert _number(one.speedup_low) <= _number(one.speedup) <= _number(one.speedup_high)


def test_the_gpu_wins_at_the_longest_length() -> None:
    """Of BERT base, where the study's headline says about six times."""
    (bert,) = (one for one in _replayed("a10g").comparison if (one.model, one.accelerator) == ("bert-base", "inf2"))
    assert bert.crossover_sequence_length == 512
    assert _number(bert.min_speedup) == pytest.approx(0.94, abs=0.005)


def _number(text: str | None) -> float:
    assert text
    return float(text)


@pytest.mark.parametrize(
    ("speedups", "expected"),
    [
        ([(8, 7.0), (128, 2.0), (512, 0.9)], 512),
        ([(8, 7.0), (128, 0.8), (512, 0.9)], 128),
        ([(8, 0.5), (128, 1.5), (512, 1.4)], 128),
        ([(8, 7.0), (128, 0.8), (512, 1.1)], None),
        ([(8, 7.0), (128, 2.0)], None),
        ([(8, 0.5)], None),
        ([], None),
        ([(512, 0.9), (8, 2.0), (512, 0.8), (8, 0.9)], 512),
    ],
)
def test_from_which_length_on_the_other_is_faster(speedups: Sequence[tuple[int, float]], expected: int | None) -> None:
    """And stays so; several batch sizes of one length count together."""
    assert crossover(speedups) == expected


def _cell(
    accelerator: str,
    p95: float = 1000,
    *,
    precision: Precision = Precision.FP32,
    length: int = 128,
    cost: float | None = None,
    verdict: Verdict = Verdict.VALID,
    **circumstances: str,
) -> Measured:
    figures = {GateMetric.P95: Interval(p95, p95 * 0.98, p95 * 1.02)}
    if cost:
        figures[GateMetric.COST] = Interval(cost)
    return Measured(Labels("bert", accelerator, precision, length, 1), verdict, figures, circumstances)


def _compare(*cells: Measured, ignore: Sequence[str] = ()) -> Comparison:
    (found,) = compare(Compare(baseline="a10g", ignore=list(ignore)), cells)
    return found


def test_a_speedup_is_the_baselines_time_over_ones_own() -> None:
    """Above one is faster."""
    found = _compare(_cell("a10g", 3000), _cell("inf2", 1000))
    assert (found.cells, found.speedup, found.message) == (1, "3.0000", "")


@pytest.mark.parametrize("field", COMPARED)
def test_what_differs_forbids_a_comparison_by_name(field: str) -> None:
    """Unless the specification says that it may."""
    cells = (_cell("a10g", **{field: "one"}), _cell("inf2", **{field: "other"}))
    found = _compare(*cells)
    assert (found.cells, found.speedup) == (0, None)
    assert f"{field} is other, and one on a10g" in found.message
    assert f"add {field} to compare.ignore" in found.message
    assert _compare(*cells, ignore=[field]).cells == 1


def test_precisions_are_compared_only_on_demand() -> None:
    """As the published study did without a word."""
    cells = (_cell("a10g"), _cell("inf2", precision=Precision.BF16))
    assert "precision is bf16, and fp32 on a10g; add precision to compare.ignore" in _compare(*cells).message
    assert _compare(*cells, ignore=["precision"]).cells == 1


def test_of_several_precisions_the_same_one_is_compared() -> None:
    """And if none is the same, nobody knows which is meant."""
    base = (_cell("a10g", 4000), _cell("a10g", 2000, precision=Precision.BF16))
    assert _compare(*base, _cell("inf2", precision=Precision.BF16), ignore=["precision"]).speedup == "2.0000"
    other = _compare(*base, _cell("inf2", precision=Precision.FP16), ignore=["precision"])
    assert "bf16 and fp32 on a10g" in other.message


def test_hardware_and_libraries_may_differ() -> None:
    """They are what is compared."""
    found = _compare(_cell("a10g", torch="2.9", device="A10G"), _cell("inf2", torch="2.8", device="Inferentia2"))
    assert found.cells == 1


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ((_cell("inf2"),), "no such cell"),
        ((_cell("a10g", length=8), _cell("inf2")), "no such cell"),
        ((_cell("a10g", verdict=Verdict.INVALID), _cell("inf2")), "no such cell"),
        ((_cell("a10g"), _cell("inf2", verdict=Verdict.INVALID)), "no figures that can be relied on"),
    ],
)
def test_what_has_no_partner_is_said(cells: Sequence[Measured], words: str) -> None:
    """With nothing in place of a figure."""
    found = _compare(*cells)
    assert (found.cells, found.speedup) == (0, None)
    assert words in found.message


def test_what_can_be_compared_is_and_the_rest_is_said() -> None:
    """One length is missing on the baseline."""
    found = _compare(_cell("a10g", 2000), _cell("inf2"), _cell("inf2", length=8))
    assert (found.cells, found.speedup) == (1, "2.0000")
    assert found.message == "Not compared: a10g has no such cell with figures (cells: 1)."


@pytest.mark.parametrize(
    ("cells", "best"),
    [
        pytest.param((("inf2", 1000, 2.0), ("a10g", 2000, 1.0), ("cpu", 3000, 1.5)), {"inf2", "a10g"}, id="beaten"),
        pytest.param((("inf2", 1000, 1.0), ("a10g", 2000, 2.0)), {"inf2"}, id="one is best in both"),
        pytest.param((("inf2", 1000, 1.0), ("a10g", 1000, 2.0)), {"inf2"}, id="as fast but dearer"),
        pytest.param((("inf2", 1000, 1.0), ("a10g", 2000, None)), {"inf2"}, id="a cost that nobody knows"),
        pytest.param((("inf2", 1000, None),), set(), id="no cost at all"),
    ],
)
def test_the_best_are_those_that_none_beats_in_both(cells: Sequence[Any], best: set[str]) -> None:
    """In p95 and in cost per inference."""
    found = pareto(_cell(accelerator, p95, cost=cost) for accelerator, p95, cost in cells)
    assert {labels.accelerator for labels in found} == best


def test_lengths_have_their_own_best() -> None:
    """A short input on a slow accelerator is no rival of a long one."""
    found = pareto([_cell("inf2", 1000, cost=1.0, length=512), _cell("cpu", 900, cost=0.1, length=8)])
    assert len(found) == 2


def test_more_than_can_be_listed_is_said() -> None:
    """The status has an end."""
    cells = [_cell(name) for name in ("a10g", *(f"other{number}" for number in range(MAX_COMPARISONS + 2)))]
    found = compare(Compare(baseline="a10g"), cells)
    assert len(found) == MAX_COMPARISONS
    assert found[-1].message == "Comparisons that have no place here: 2."
