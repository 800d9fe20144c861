"""What README shows can be used as it stands."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import yaml

from inferbench_operator.core.instance_table import with_table
from inferbench_operator.models.benchmark import BenchmarkSpec
from inferbench_operator.models.instances import packaged_catalogue
from inferbench_runner.catalogue import entries, known_configuration
from inferbench_runner.contract import Plan

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def test_the_plans_are_plans() -> None:
    """The runner takes them without a cluster."""
    plans = [Plan.model_validate_json(block) for block in _blocks("json")]
    assert plans
    for plan in plans:
        known_configuration(plan.model.id)


def test_the_benchmarks_are_benchmarks() -> None:
    """So far as the models can tell; the API server's own rules are tested with the examples."""
    benchmarks = [yaml.safe_load(block) for block in _blocks("yaml")]
    assert benchmarks
    for found in benchmarks:
        assert found["kind"] == "InferenceBenchmark"
        BenchmarkSpec.model_validate(found["spec"])


def test_the_table_of_instance_types_is_one() -> None:
    """The operator takes it as it stands."""
    table = README[README.index("inf2.xlarge: {usdPerHour") :].partition("```")[0]
    found = with_table(packaged_catalogue(), table.encode())
    assert (found.problem, found.problems) == ("", {})
    assert found.types["g6x.large"].usd_per_hour == Decimal("1.10")


def test_the_models_with_random_weights_are_named_as_the_runner_knows_them() -> None:
    """All of them, by the ids that it takes."""
    sentence = README[README.index("`weights: Random` builds") :].partition("and any")[0]
    assert set(re.findall(r"`([\w.-]+/[\w.-]+)`", sentence)) == set(entries())
