"""The API's models and the runner's contract bound the same things alike: what one lets in, the other can take."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from inferbench_operator.models import figures, measurement
from inferbench_operator.models.result import ResultStatus
from inferbench_runner import contract

_WORDS = {"title", "description", "default", "required"}


def _bounds(model: type[BaseModel]) -> dict[str, Any]:
    """Return what a model says of its fields' values, by field."""
    schema = model.model_json_schema()
    return {name: _rules(field, schema.get("$defs", {})) for name, field in schema["properties"].items()}


def _rules(node: dict[str, Any], definitions: dict[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
    """Return a node without words, references, and what an optional field or a custom resource needs besides."""
    if "$ref" in node:
        return _rules(definitions[node["$ref"].removeprefix("#/$defs/")], definitions)
    if "anyOf" in node:
        return _rules(node["anyOf"][0], definitions)
    kept = {name: value for name, value in node.items() if name not in _WORDS and not name.startswith("x-")}
    # The API needs a bound of its own where a pattern or a list of values says enough.
    for bound, enough in (("maxLength", "pattern" in kept), ("maxProperties", "$ref" in kept.get("propertyNames", {}))):
        if enough:
            kept.pop(bound, None)
    if "properties" in kept:
        kept.pop("additionalProperties", None)
        kept["properties"] = {name: _rules(field, definitions) for name, field in kept["properties"].items()}
    for part in {"items", "additionalProperties", "propertyNames"} & kept.keys():
        kept[part] = _rules(kept[part], definitions)
    return kept


@pytest.mark.parametrize(
    ("api", "runner"),
    [
        pytest.param(measurement.Measurement, contract.Measurement, id="how cells are measured"),
        pytest.param(measurement.Load, contract.Load, id="how calls follow each other"),
        pytest.param(figures.Percentile, contract.Interval, id="a percentile"),
        pytest.param(figures.LatencyFigures, contract.Latency, id="a distribution"),
        pytest.param(figures.CaveatEntry, contract.CellCaveat, id="a doubt"),
        pytest.param(figures.Correctness, contract.Correctness, id="the comparison with the reference"),
        pytest.param(figures.Noise, contract.Noise, id="noise of the host"),
        pytest.param(figures.Compilation, contract.Compilation, id="how it was compiled"),
        pytest.param(figures.DeviceUse, contract.DeviceUse, id="what the device did"),
    ],
)
def test_both_models_have_the_same_fields_and_bounds(api: type[BaseModel], runner: type[BaseModel]) -> None:
    """Field by field."""
    assert _bounds(api) == _bounds(runner)


@pytest.mark.parametrize("name", ["Measurement", "Load"])
def test_both_models_have_the_same_defaults(name: str) -> None:
    """What the API server fills in is what a runner would have taken."""
    assert getattr(measurement, name)().model_dump() == getattr(contract, name)().model_dump()


@pytest.mark.parametrize("runner", [contract.CellDetails, contract.FullReport])
def test_a_result_has_a_place_for_everything_in_the_full_report(runner: type[BaseModel]) -> None:
    """Under the same name and with the same bounds; latencies lie together."""
    places = _bounds(ResultStatus) | _bounds(figures.Latencies)
    about_the_report = {"version", "cells", "cell"}
    for name, bounds in _bounds(runner).items():
        if name not in about_the_report:
            assert places[name] == bounds, name
