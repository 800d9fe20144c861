"""What an accelerator of the specification means to the scheduler."""

from __future__ import annotations

import csv
from importlib.resources import files
from typing import Any

import pytest

from inferbench_operator.core.names import Reason
from inferbench_operator.core.placement import Placement, PlacementError, place
from inferbench_operator.models.benchmark import Accelerator
from inferbench_runner.contract import AcceleratorKind


def _place(*, exclusive: bool = True, **fields: Any) -> Placement:  # noqa: ANN401 - any field
    return place(Accelerator.model_validate({"name": "acc"} | fields), exclusive=exclusive)


def _rows() -> list[dict[str, str]]:
    text = files("inferbench_operator.models").joinpath("instances.csv").read_text("utf-8")
    return [row for row in csv.DictReader(text.splitlines()) if row["k8s_device_count"]]


@pytest.mark.parametrize("row", _rows(), ids=lambda row: row["instance_type"])
def test_every_type_of_the_catalogue_is_placed_with_all_its_devices(row: dict[str, str]) -> None:
    """The name alone gives kind, device resource and device count."""
    placement = _place(instanceTypes=[row["instance_type"]])
    assert placement.kind.value.lower() == row["accelerator_kind"]
    assert placement.resource == row["k8s_device_resource"]
    assert placement.devices == int(row["k8s_device_count"])
    assert placement.instance_types == (row["instance_type"],)


@pytest.mark.parametrize(
    ("fields", "exclusive", "devices"),
    [
        pytest.param({"instanceTypes": ["inf2.48xlarge"]}, True, 12, id="an exclusive node: all its devices"),
        pytest.param({"instanceTypes": ["inf2.48xlarge"]}, False, 1, id="a shared node: one"),
        pytest.param({"instanceTypes": ["inf2.48xlarge"], "devices": 6}, True, 6, id="as many as are asked for"),
        pytest.param({"instanceTypes": ["inf2.xlarge", "inf2.48xlarge"]}, True, 1, id="sizes that differ: one"),
        pytest.param({"instanceTypes": ["inf2.xlarge", "inf2.8xlarge"]}, True, 1, id="sizes that agree: all"),
        pytest.param({"kind": "NVIDIA"}, True, 1, id="any node of a kind: one"),
        pytest.param({"kind": "CPU"}, True, 0, id="CPU: none"),
        pytest.param({"kind": "CPU", "devices": 3}, True, 0, id="CPU: none, even if asked for"),
    ],
)
def test_devices(fields: dict[str, Any], exclusive: bool, devices: int) -> None:  # noqa: FBT001 - a column
    """How many devices a pod requests."""
    assert _place(exclusive=exclusive, **fields).devices == devices


@pytest.mark.parametrize(
    ("fields", "kind", "resource"),
    [
        pytest.param({"kind": "Neuron"}, "Neuron", "aws.amazon.com/neuron", id="Neuron without a type"),
        pytest.param({"kind": "NVIDIA"}, "NVIDIA", "nvidia.com/gpu", id="NVIDIA without a type"),
        pytest.param({"kind": "CPU"}, "CPU", None, id="CPU without a type"),
        pytest.param({"kind": "CPU", "instanceTypes": ["c7i.4xlarge"]}, "CPU", None, id="CPU on an unlisted type"),
        pytest.param({"kind": "CPU", "instanceTypes": ["g5.xlarge"]}, "CPU", None, id="CPU of a machine with a GPU"),
        pytest.param(
            {"kind": "Neuron", "instanceTypes": ["trn1.2xlarge"]},
            "Neuron",
            "aws.amazon.com/neuron",
            id="a kind that agrees with the type",
        ),
    ],
)
def test_kinds(fields: dict[str, Any], kind: str, resource: str | None) -> None:
    """What kind of device an accelerator is."""
    placement = _place(**fields)
    assert (placement.kind, placement.resource) == (AcceleratorKind(kind), resource)


@pytest.mark.parametrize(
    ("fields", "reason", "words"),
    [
        pytest.param(
            {"instanceTypes": ["inf2.xlarg"]},
            Reason.UNKNOWN_INSTANCE_TYPE,
            ["inf2.xlarg ", "Did you mean inf2.xlarge"],
            id="a slip of the pen is answered with the nearest names",
        ),
        pytest.param(
            {"instanceTypes": ["zzz.q"]},
            Reason.UNKNOWN_INSTANCE_TYPE,
            ["zzz.q", "kind: CPU"],
            id="a name like no other is answered without a guess",
        ),
        pytest.param(
            {"instanceTypes": ["inf2.xlarge", "m7i.large"]},
            Reason.UNKNOWN_INSTANCE_TYPE,
            ["m7i.large"],
            id="one unknown type among known ones is named",
        ),
        pytest.param(
            {"instanceTypes": ["inf2.xlarge", "g5.xlarge"]},
            Reason.MIXED_KINDS,
            ["NVIDIA and Neuron", "of its own"],
            id="two kinds of devices under one name",
        ),
        pytest.param(
            {"kind": "NVIDIA", "instanceTypes": ["inf2.xlarge"]},
            Reason.KIND_MISMATCH,
            ["NVIDIA", "inf2.xlarge", "Neuron", "remove kind"],
            id="a kind that the type contradicts",
        ),
    ],
)
def test_refusals(fields: dict[str, Any], reason: Reason, words: list[str]) -> None:
    """A contradiction is refused with a reason word, and a sentence that says what to change."""
    with pytest.raises(PlacementError) as caught:
        _place(**fields)
    assert caught.value.reason is reason
    for word in ["accelerator acc", *words]:
        assert word in str(caught.value)
