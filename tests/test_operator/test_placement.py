"""What an accelerator of the specification means to the scheduler."""

from __future__ import annotations

import csv
from decimal import Decimal
from importlib.resources import files
from typing import Any

import pytest

from inferbench_operator.core.names import Reason
from inferbench_operator.core.placement import Placement, Room, SpecRefusedError, place
from inferbench_operator.models.benchmark import Accelerator, Runner
from inferbench_operator.models.instances import Catalogue, packaged_catalogue
from inferbench_runner.contract import AcceleratorKind

TYPE = "node.kubernetes.io/instance-type"


def _place(
    *,
    exclusive: bool = True,
    catalogue: Catalogue | None = None,
    **fields: Any,  # noqa: ANN401 - any field
) -> Placement:
    runner = Runner.model_validate(fields.pop("runner", {}))
    accelerator = Accelerator.model_validate({"name": "acc"} | fields)
    return place(accelerator, catalogue or packaged_catalogue(), exclusive=exclusive, runner=runner)


def _rows() -> list[dict[str, str]]:
    text = files("inferbench_operator.models").joinpath("instances.csv").read_text("utf-8")
    return [row for row in csv.DictReader(text.splitlines()) if row["k8s_device_count"]]


@pytest.mark.parametrize("row", _rows(), ids=lambda row: row["instance_type"])
def test_every_type_of_the_catalogue_is_placed_with_all_its_devices(row: dict[str, str]) -> None:
    """The name alone gives kind, device resource, device count, architecture and price."""
    placement = _place(instanceTypes=[row["instance_type"]])
    assert placement.kind.value.lower() == row["accelerator_kind"]
    assert placement.resource == (row["k8s_device_resource"] or None)
    assert placement.devices == int(row["k8s_device_count"])
    assert placement.instance_types == (row["instance_type"],)
    assert placement.architecture == row["arch"]
    price = row["usd_per_hour_on_demand_us_east_1"]
    assert placement.usd_per_hour == (Decimal(price) if price else None)
    assert placement.taints == ((row["k8s_device_resource"],) if row["k8s_device_resource"] else ())


@pytest.mark.parametrize("row", _rows(), ids=lambda row: row["instance_type"])
def test_what_a_pod_requests_is_there(row: dict[str, str]) -> None:
    """On a whole node of every type: never more than it has for pods, and nothing where there is no whole processor."""
    room = _place(instanceTypes=[row["instance_type"]]).room
    if not row["allocatable_cpu"] or row["vcpu"] == "1":
        assert room is None
    else:
        assert room is not None
        assert 0 < room.processors * 1000 < int(row["allocatable_cpu"].removesuffix("m"))
        assert 0 < room.memory_mebibytes < int(row["allocatable_memory"].removesuffix("Mi"))


@pytest.mark.parametrize(
    ("fields", "exclusive", "devices"),
    [
        pytest.param({"instanceTypes": ["inf2.48xlarge"]}, True, 12, id="an exclusive node: all its devices"),
        pytest.param({"instanceTypes": ["inf2.48xlarge"]}, False, 1, id="a shared node: one"),
        pytest.param({"instanceTypes": ["g5.48xlarge"], "devices": 6}, True, 6, id="as many as are asked for"),
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
        pytest.param({"kind": "CPU", "instanceTypes": ["t3.large"]}, "CPU", None, id="CPU on an unlisted type"),
        pytest.param({"instanceTypes": ["c6i.2xlarge"]}, "CPU", None, id="a type without devices"),
        pytest.param({"kind": "CPU", "instanceTypes": ["c6i.2xlarge"]}, "CPU", None, id="the same, and its kind"),
        pytest.param(
            {"kind": "CPU", "instanceTypes": ["c6i.2xlarge", "g5.xlarge", "inf2.xlarge", "t3.large"]},
            "CPU",
            None,
            id="CPU of whatever machine there is",
        ),
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
            ["inf2.xlarg ", "inf2 comes as inf2.xlarge, inf2.8xlarge, inf2.24xlarge, inf2.48xlarge.", "own table"],
            id="a size that is not there is answered with those of its family",
        ),
        pytest.param(
            {"instanceTypes": ["inf12.xlarge"]},
            Reason.UNKNOWN_INSTANCE_TYPE,
            ["inf12.xlarge ", "Did you mean inf2.xlarge, inf1.xlarge, "],
            id="a family that is not there is answered with the nearest names",
        ),
        pytest.param(
            {"instanceTypes": ["zzz.q"]},
            Reason.UNKNOWN_INSTANCE_TYPE,
            ["zzz.q", "kind: CPU"],
            id="a name like no other is answered without a guess",
        ),
        pytest.param(
            {"instanceTypes": ["inf2.xlarge", "t3.large"]},
            Reason.UNKNOWN_INSTANCE_TYPE,
            ["t3.large"],
            id="one unknown type among known ones is named",
        ),
        pytest.param(
            {"instanceTypes": ["inf2.xlarge", "g5.xlarge"]},
            Reason.MIXED_KINDS,
            ["NVIDIA and Neuron", "of its own"],
            id="two kinds of devices under one name",
        ),
        pytest.param(
            {"instanceTypes": ["inf2.xlarge", "m7i.large"]},
            Reason.MIXED_KINDS,
            ["CPU and Neuron", "of its own"],
            id="devices and none under one name",
        ),
        pytest.param(
            {"kind": "NVIDIA", "instanceTypes": ["c6i.2xlarge"]},
            Reason.KIND_MISMATCH,
            ["kind is NVIDIA", "c6i.2xlarge is of kind CPU", "remove kind"],
            id="a kind of devices that the type lacks",
        ),
        pytest.param(
            {"kind": "NVIDIA", "instanceTypes": ["inf2.xlarge"]},
            Reason.KIND_MISMATCH,
            ["NVIDIA", "inf2.xlarge", "Neuron", "remove kind"],
            id="a kind that the type contradicts",
        ),
        pytest.param(
            {"instanceTypes": ["inf2.24xlarge"], "devices": 7},
            Reason.DEVICE_COUNT,
            ["devices is 7", "more than 6"],
            id="more devices than the type has",
        ),
        pytest.param(
            {"instanceTypes": ["trn1.32xlarge"], "devices": 6},
            Reason.DEVICE_COUNT,
            ["devices is 6", "1, 4, 8 or 16"],
            id="devices that form no ring",
        ),
        pytest.param(
            {"instanceTypes": ["trn1.32xlarge"], "devices": 8},
            Reason.SCHEDULER_MISSING,
            ["8 of 16 devices", "runner.schedulerName", "1 or 16"],
            id="a part of a node without the scheduler that chooses it",
        ),
        pytest.param(
            {"instanceTypes": ["inf2.xlarge"], "cores": 3},
            Reason.CORE_COUNT,
            ["cores is 3", "have 2"],
            id="more cores than the devices have",
        ),
        pytest.param(
            {"instanceTypes": ["inf2.xlarge"], "resourceName": "nvidia.com/gpu"},
            Reason.RESOURCE_MISMATCH,
            ["nvidia.com/gpu", "Neuron devices"],
            id="another vendor's resource",
        ),
        pytest.param(
            {"instanceTypes": ["g5.xlarge"], "runner": {"nodeSelector": {TYPE: "g5.2xlarge"}}},
            Reason.SELECTOR_CONFLICT,
            [f"{TYPE}: g5.2xlarge", "no node of g5.xlarge"],
            id="a label of another type",
        ),
        pytest.param(
            {"instanceTypes": ["g5g.xlarge"], "runner": {"nodeSelector": {"kubernetes.io/arch": "amd64"}}},
            Reason.SELECTOR_CONFLICT,
            ["kubernetes.io/arch: amd64"],
            id="a label of another architecture",
        ),
        pytest.param(
            {
                "kind": "CPU",
                "instanceTypes": ["t3.large"],
                "runner": {"nodeSelector": {"karpenter.k8s.aws/instance-family": "c7g"}},
            },
            Reason.SELECTOR_CONFLICT,
            ["instance-family: c7g"],
            id="a label of another family, for a type that the catalogue doesn't know",
        ),
        pytest.param(
            {"kind": "CPU", "resourceName": "nvidia.com/gpu"},
            Reason.RESOURCE_MISMATCH,
            ["nvidia.com/gpu", "CPU devices"],
            id="a device for a CPU",
        ),
    ],
)
def test_refusals(fields: dict[str, Any], reason: Reason, words: list[str]) -> None:
    """A contradiction is refused with a reason word, and a sentence that says what to change."""
    with pytest.raises(SpecRefusedError) as caught:
        _place(**fields)
    assert caught.value.reason is reason
    for word in ["accelerator acc", *words]:
        assert word in str(caught.value)


def test_a_label_that_some_of_the_types_have_narrows_the_choice() -> None:
    """So does one of which nothing is known."""
    labels = {TYPE: "g5.xlarge", "kubernetes.io/arch": "amd64", "team": "a"}
    assert _place(instanceTypes=["g5.xlarge", "g5g.xlarge"], runner={"nodeSelector": labels}).devices == 1
    unknown = {"kubernetes.io/arch": "arm64"}
    assert _place(kind="CPU", instanceTypes=["t4g.large"], runner={"nodeSelector": unknown}).devices == 0


@pytest.mark.parametrize("devices", [1, 4, 8, 16])
def test_trainium_gives_out_rings(devices: int) -> None:
    """The counts that the Neuron documentation names for trn1.32xlarge, given the scheduler that chooses them."""
    placement = _place(instanceTypes=["trn1.32xlarge"], devices=devices, runner={"schedulerName": "my-scheduler"})
    assert placement.devices == devices


@pytest.mark.parametrize(
    ("fields", "resource", "devices", "taints"),
    [
        pytest.param(
            {"instanceTypes": ["inf2.xlarge"], "resourceName": "aws.amazon.com/neuroncore"},
            "aws.amazon.com/neuroncore",
            1,
            ("aws.amazon.com/neuron", "aws.amazon.com/neuroncore"),
            id="one core",
        ),
        pytest.param(
            {"kind": "NVIDIA", "resourceName": "nvidia.com/mig-1g.10gb", "devices": 2},
            "nvidia.com/mig-1g.10gb",
            2,
            ("nvidia.com/gpu", "nvidia.com/mig-1g.10gb"),
            id="slices of a GPU",
        ),
        pytest.param(
            {"instanceTypes": ["trn2.48xlarge"], "runner": {"resourceClaims": [{"name": "c"}]}},
            None,
            0,
            ("aws.amazon.com/neuron",),
            id="devices that are claimed",
        ),
    ],
)
def test_parts_of_devices_and_claims(
    fields: dict[str, Any], resource: str | None, devices: int, taints: tuple[str, ...]
) -> None:
    """What is requested is what was named; the taint of the whole device is tolerated in any case."""
    placement = _place(**fields)
    assert (placement.resource, placement.devices, placement.taints) == (resource, devices, taints)


@pytest.mark.parametrize(
    ("fields", "exclusive", "room"),
    [
        pytest.param({"instanceTypes": ["inf2.xlarge"]}, True, Room(3, 12746), id="a whole small node"),
        pytest.param({"instanceTypes": ["inf1.xlarge"]}, True, Room(3, 5780), id="a gibibyte stays in any case"),
        pytest.param({"instanceTypes": ["g5.12xlarge"]}, False, Room(11, 39015), id="the part of one GPU of four"),
        pytest.param({"instanceTypes": ["g5.xlarge", "g5.2xlarge"]}, True, Room(3, 12746), id="the smaller of two"),
        pytest.param({"kind": "CPU", "instanceTypes": ["g5.xlarge"]}, True, Room(3, 12746), id="its processors alone"),
        pytest.param({"kind": "CPU", "instanceTypes": ["g5.xlarge"]}, False, None, id="a part that nobody knows"),
        pytest.param({"instanceTypes": ["c6i.2xlarge"]}, True, Room(7, 12746), id="a node without devices"),
        pytest.param({"instanceTypes": ["c6i.2xlarge"]}, False, None, id="a part of one that nobody knows"),
        pytest.param({"instanceTypes": ["c7i.large"]}, True, Room(1, 2090), id="a node with two processors"),
        pytest.param({"instanceTypes": ["c7g.medium"]}, True, None, id="a node whose only processor is not free"),
        pytest.param({"kind": "CPU", "instanceTypes": ["t3.large"]}, True, None, id="a type without a size"),
        pytest.param({"kind": "NVIDIA"}, True, None, id="any node"),
        pytest.param(
            {"instanceTypes": ["g5.xlarge"], "resourceName": "nvidia.com/gpu.shared"},
            False,
            None,
            id="a part of a device",
        ),
    ],
)
def test_room(fields: dict[str, Any], exclusive: bool, room: Room | None) -> None:  # noqa: FBT001 - a column
    """Whole processors, and nine tenths of the allocatable memory: 3.92 are 3, and 14,162 MiB are 12,746."""
    assert _place(exclusive=exclusive, **fields).room == room


@pytest.mark.parametrize(
    ("types", "architecture", "price"),
    [
        (["g5g.xlarge"], "arm64", "0.42"),
        (["c6i.2xlarge"], "amd64", "0.34"),
        (["c8g.48xlarge"], "arm64", "7.65696"),
        (["c5.large", "m7g.16xlarge", "r7i.xlarge"], None, "2.6112"),
        (["inf2.xlarge", "inf2.8xlarge"], "amd64", "1.96786"),
        (["trn2.48xlarge"], "amd64", None),
        (["g5.xlarge", "g5g.xlarge"], None, "1.006"),
    ],
)
def test_architecture_and_price(types: list[str], architecture: str | None, price: str | None) -> None:
    """Of several types the dearest counts, and an architecture only if all have it."""
    placement = _place(instanceTypes=types)
    assert placement.architecture == architecture
    assert placement.usd_per_hour == (None if price is None else Decimal(price))
