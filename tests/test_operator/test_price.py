"""What inferences cost: by the published study's figures, on any terms, and for the part of a node that is used."""

from __future__ import annotations

import csv
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from inferbench_operator.core import cost, results
from inferbench_operator.core.decide import decide
from inferbench_operator.core.instance_table import with_table
from inferbench_operator.core.matrix import expand
from inferbench_operator.core.placement import place
from inferbench_operator.core.price import inference_cost
from inferbench_operator.kube import parse
from inferbench_operator.models.benchmark import Accelerator
from inferbench_operator.models.cost import Pricing
from inferbench_operator.models.instances import packaged_catalogue
from operator_testing.builders import (
    NOW,
    SETTINGS,
    attempt_of,
    benchmark,
    cells_of,
    ended,
    measured,
    observed,
    report,
    result_of,
    run_of,
    spec,
)

INF2: dict[str, Any] = {"name": "inf2", "instanceTypes": ["inf2.xlarge"]}
ON_INF2 = spec(accelerators=[INF2])


def _usd(accelerator: str, instance_type: str, length: int) -> float:
    """Return what a million calls of BERT base cost by the mean that the study has published."""
    with (Path(__file__).parent / "published_study.csv").open(encoding="utf-8") as lines:
        (mean,) = (
            Decimal(row["mean_milliseconds"])
            for row in csv.DictReader(lines)
            if (row["model"], row["accelerator"], row["sequence_length"]) == ("bert-base", accelerator, str(length))
        )
    price = packaged_catalogue().types[instance_type].usd_per_hour
    assert price
    found = inference_cost(price, "", str(1000 / mean), length)
    assert found
    return float(found.usd_per_million_inferences)


@pytest.mark.parametrize(("length", "usd"), [(128, (0.50, 2.77, 0.82)), (512, (2.26, 3.34, 1.86))])
def test_the_published_study_has_another_order_by_cost(length: int, usd: tuple[float, ...]) -> None:
    """At 512 tokens Inferentia2 is slower than the GPU and yet cheaper, and Inferentia1, the slowest, is cheapest."""
    types = (("inf2", "inf2.xlarge"), ("a10g", "g5.2xlarge"), ("inf1", "inf1.2xlarge"))
    assert [_usd(*of, length) for of in types] == pytest.approx(usd, abs=0.006)


def test_a_token_costs_a_part_of_its_input_and_a_share_a_part_of_the_node() -> None:
    """A second costs a tenth of a cent, and serves 50 inputs of 200 tokens, with a quarter of the node."""
    found = inference_cost(Decimal("3.60"), '{"usedShare":"0.25","pricing":"Spot"}', "50", 200)
    assert found
    assert found.model_dump(mode="json", exclude_none=True) == {
        "usdPerMillionInferences": "20",
        "usdPerMillionTokens": "0.1",
        "usedShare": "0.25",
        "shareUSDPerMillionInferences": "5",
        "shareUSDPerMillionTokens": "0.025",
        "usdPerHour": "3.60",
        "pricing": "Spot",
    }


@pytest.mark.parametrize(
    "details", ["", "{", "[]", '{"pricing": "Free"}', '{"usedShare": "NaN"}', '{"usedShare": "-1"}', '{"priceDate": 1}']
)
def test_what_a_person_has_written_there_costs_no_figure(details: str) -> None:
    """Annotations of a Job can be edited: the cost stands by its price alone."""
    found = inference_cost(Decimal("3.60"), details, "50", None)
    assert found
    assert (found.usd_per_million_inferences, found.pricing) == ("20", "OnDemand")
    assert found.used_share is found.usd_per_million_tokens is None


def test_nothing_per_second_has_no_cost() -> None:
    """It would be infinite."""
    assert inference_cost(Decimal(1), "", "0", 128) is None


@pytest.mark.parametrize(("rate", "usd"), [("0.001", "277800"), ("123456789", "0.00000225"), ("240.5", "1.155")])
def test_a_cost_has_four_digits(rate: str, usd: str) -> None:
    """At a dollar an hour: of any size, without an exponent."""
    found = inference_cost(Decimal(1), "", rate, None)
    assert found
    assert found.usd_per_million_inferences == usd


@pytest.mark.parametrize(
    ("accelerator", "copies", "exclusive", "share"),
    [
        pytest.param(INF2, 1, True, "0.5", id="one of two NeuronCores"),
        pytest.param(INF2 | {"cores": 2}, 1, True, "1", id="both NeuronCores"),
        pytest.param(INF2, 2, True, "1", id="two copies on a core each"),
        pytest.param(INF2, 4, True, "1", id="more copies than cores"),
        pytest.param({"name": "p4d", "instanceTypes": ["p4d.24xlarge"]}, 1, True, "0.125", id="one of eight GPUs"),
        pytest.param({"name": "g5", "instanceTypes": ["g5.xlarge"]}, 1, False, "1", id="the only GPU"),
        pytest.param(
            {"name": "mig", "instanceTypes": ["p4d.24xlarge"], "resourceName": "nvidia.com/mig-1g.5gb"},
            1,
            False,
            None,
            id="a part of a GPU",
        ),
        pytest.param({"name": "cpu", "kind": "CPU", "instanceTypes": ["c7i.xlarge"]}, 1, True, "1", id="a whole node"),
        pytest.param(
            {"name": "cpu", "kind": "CPU", "instanceTypes": ["c7i.xlarge"]}, 1, False, None, id="a part of a CPU node"
        ),
        pytest.param({"name": "cpu", "kind": "CPU"}, 1, True, None, id="any node"),
    ],
)
def test_the_part_of_a_node_that_is_at_work(
    accelerator: dict[str, Any],
    copies: int,
    exclusive: bool,  # noqa: FBT001 - a parameter
    share: str | None,
) -> None:
    """Cores or GPUs over those of the node."""
    of = Accelerator.model_validate(accelerator)
    found = place(of, packaged_catalogue(), exclusive=exclusive, copies=copies).used_share
    assert found == (None if share is None else Decimal(share))


def test_a_result_says_by_which_price() -> None:
    """From the Job, whose price was made when it was: the table may have changed since."""
    of = benchmark(ON_INF2)
    of = replace(of, status=_status(observed(of)))
    (job,) = decide(observed(of), NOW, SETTINGS).create_jobs
    job["metadata"] |= {"uid": "job", "creationTimestamp": "2026-01-05T12:00:00Z"}
    (cell,) = cells_of(ON_INF2)
    figures = measured(cell.hash)
    attempt = replace(parse.attempt(job), pod=ended(report(figures)))
    status = results.result(of, cell, figures, attempt, NOW)["status"]
    # 0.7582 an hour, 240.5 inputs of 128 tokens a second, one of two cores.
    assert status["cost"] == {
        "usdPerMillionInferences": "0.8757",
        "usdPerMillionTokens": "0.006842",
        "usedShare": "0.5",
        "shareUSDPerMillionInferences": "0.4379",
        "shareUSDPerMillionTokens": "0.003421",
        "usdPerHour": "0.7582",
        "pricing": "OnDemand",
        "instanceType": "inf2.xlarge",
        "priceSource": "Karpenter zz_generated.pricing_aws.go generated 2026-07-20T13:44:30Z us-east-1",
        "priceDate": "2026-07-20",
    }
    stored = parse.result(
        {**results.result(of, cell, figures, attempt, NOW)}
        | {"metadata": {"name": "r", "uid": "r", "resourceVersion": "1", "namespace": "team"}}
    )
    assert stored
    assert _status(observed(of, stored)).results[0].usd_per_million_inferences == "0.8757"


def _status(facts: Any) -> Any:  # noqa: ANN401 - facts, a status
    status = decide(facts, NOW, SETTINGS).status
    assert status
    return status


def test_without_a_price_there_is_no_cost() -> None:
    """Nor is one guessed."""
    of = benchmark(spec())
    (cell,) = cells_of(spec())
    figures = measured(cell.hash)
    status = results.result(of, cell, figures, attempt_of(of, pod=ended(report(figures))), NOW)["status"]
    assert "cost" not in status


TABLE = b"""
inf2.xlarge: {usdPerHourSpot: "0.23", usdPerHourReserved: "0.45", priceSource: our contract, priceDate: 2026-11-01}
"""


@pytest.mark.parametrize(
    ("pricing", "usd", "source", "day"),
    [
        (Pricing.ON_DEMAND, "0.7582", "our contract", "2026-11-01"),
        (Pricing.RESERVED, "0.45", "our contract", "2026-11-01"),
        (Pricing.SPOT, "0.23", "our contract", "2026-11-01"),
    ],
)
def test_terms_other_than_on_demand_come_from_the_operators_table(
    pricing: Pricing, usd: str, source: str, day: str
) -> None:
    """With their own source and day."""
    catalogue = with_table(packaged_catalogue(), TABLE)
    assert not catalogue.problems
    found = place(Accelerator.model_validate(INF2), catalogue, exclusive=True, pricing=pricing).price
    assert found
    assert (str(found.usd_per_hour), found.source, found.date) == (usd, source, day)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("{usdPerHourSpot: cheap}", "usdPerHourSpot is 'cheap', but must be a decimal number of US dollars"),
        ("{priceDate: yesterday}", "priceDate is 'yesterday', but must be a day such as 2026-11-01"),
    ],
)
def test_a_wrong_price_in_the_table_is_told(entry: str, words: str) -> None:
    """And changes nothing."""
    catalogue = with_table(packaged_catalogue(), f"inf2.xlarge: {entry}".encode())
    assert words in catalogue.problems["inf2.xlarge"]


def test_a_price_that_nobody_knows_is_refused() -> None:
    """Spot prices change by the hour: none is invented."""
    of = benchmark(spec(accelerators=[INF2, {"name": "any", "kind": "CPU"}], pricing="Spot"))
    (accepted,) = (one for one in _status(observed(of)).conditions if one.type == "Accepted")
    assert (accepted.status, accepted.reason) == ("False", "PriceUnknown")
    assert "give inf2.xlarge a usdPerHourSpot in the operator's table" in accepted.message


def test_the_estimate_is_made_of_what_was_measured_before() -> None:
    """Two cells on 36 dollars an hour: one took 40 s before, one is new; 180 s for the Job."""
    wanted = spec(sequenceLengths=[8, 16], measurement={"maxSeconds": 100})
    old, _ = cells_of(wanted)
    before = result_of(benchmark(wanted), old)
    kept = before.status.model_copy(update={"measure_milliseconds": 30_000, "warmup_milliseconds": 10_000})
    found = cost.estimated(expand(wanted), {"cpu": Decimal(36)}, wanted.measurement, [replace(before, status=kept)])
    assert found == Decimal("0.01") * (180 + 40 + 100)


def test_the_estimate_is_made_once_when_the_run_starts() -> None:
    """Of one cell that takes up to 300 s, and its Job."""
    of = benchmark(ON_INF2)
    first = _status(observed(of))
    assert first.cost
    assert Decimal(first.cost.estimated_usd or 0) == pytest.approx(Decimal("0.7582") * 480 / 3600, abs=Decimal("1e-6"))
    of = replace(of, status=first)
    over = _status(observed(of, result_of(of, cells_of(ON_INF2)[0], run=run_of(of))))
    assert over.cost
    assert over.cost.estimated_usd == first.cost.estimated_usd
