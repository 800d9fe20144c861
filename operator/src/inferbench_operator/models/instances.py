"""The catalogue of EC2 instance types: what an `instanceTypes` entry stands for.

The table is package data (`instances.csv`), gathered from EC2's own descriptions by way of Karpenter; each row names
its sources. Types without devices are all sizes but metal of twenty general families (c5 to c8, m5 to m8, r6i, r7g and
r7i, none of them burstable), with the sizes of Karpenter's documentation and the prices of its list for us-east-1.
"""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, StringConstraints

from inferbench_operator.models.base import ApiModel, Decimals
from inferbench_operator.models.benchmark import ResourceName
from inferbench_operator.models.cost import Pricing
from inferbench_runner.contract import AcceleratorKind

RESOURCES: Final = MappingProxyType(
    {AcceleratorKind.NEURON: "aws.amazon.com/neuron", AcceleratorKind.NVIDIA: "nvidia.com/gpu"}
)
"""Extended resource that the device plugin of a kind offers for whole devices; also the usual taint's key."""

_KINDS: Final = {"cpu": AcceleratorKind.CPU, "neuron": AcceleratorKind.NEURON, "nvidia": AcceleratorKind.NVIDIA}


@dataclass(frozen=True, slots=True)
class InstanceType:
    """One EC2 instance type, as its node appears to the scheduler."""

    name: str
    architecture: str | None
    """Value of the label `kubernetes.io/arch`: amd64 or arm64; None where it is not known."""
    vcpus: int | None
    memory_gib: Decimal | None
    kind: AcceleratorKind
    """CPU for a type without devices."""
    accelerator_name: str
    resource: str | None
    """Extended resource that the device plugin offers, such as `aws.amazon.com/neuron`; None without devices."""
    devices: int
    """How many of the resource a node offers; zero without devices."""
    neuron_cores: int | None
    """NeuronCores of the whole instance; None without Neuron devices, and where their number is not known."""
    allocatable_cpu: str | None
    """Kubernetes quantity left for pods, where known."""
    allocatable_memory: str | None
    """Kubernetes quantity left for pods, where known."""
    usd_per_hour: Decimal | None
    """On-demand price in us-east-1 (Linux), unless the operator has one of its own; None where there is none."""
    usd_per_hour_reserved: Decimal | None = None
    """What the operator's own table says that it pays for a reserved one."""
    usd_per_hour_spot: Decimal | None = None
    """What the operator's own table says that it pays on the spot market."""
    price_source: str = ""
    """Where the prices come from."""
    price_date: str = ""
    """Of which day they are, as YYYY-MM-DD."""

    def price(self, pricing: Pricing) -> Decimal | None:
        """Return what an hour costs on these terms; None where that is not known."""
        match pricing:
            case Pricing.ON_DEMAND:
                return self.usd_per_hour
            case Pricing.RESERVED:
                return self.usd_per_hour_reserved
            case Pricing.SPOT:
                return self.usd_per_hour_spot


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The known instance types, and what is wrong with the operator's own table of them."""

    types: Mapping[str, InstanceType]
    """By name."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Sentences on entries of the table that change nothing, by name of the instance type."""
    problem: str = ""
    """Sentence on a table of which nothing can be used; empty otherwise."""

    def family(self, name: str) -> list[str]:
        """Return the known types of the family of `name`, which need not be known itself."""
        family = _family(name)
        return [known for known in self.types if _family(known) == family]

    def nearest(self, name: str) -> list[str]:
        """Return up to three known types that `name` may have been meant for, nearest first."""
        return difflib.get_close_matches(name, self.types, n=3, cutoff=0.4)

    def remarks(self, names: Iterable[str]) -> list[str]:
        """Return what is wrong with the table, for somebody who uses these instance types."""
        told = [self.problem, *(self.problems.get(name, "") for name in dict.fromkeys(names))]
        return [sentence for sentence in told if sentence]


class InstanceTypeEntry(ApiModel):
    """What the operator's own table says of one instance type; what it leaves out is as the catalogue has it.

    Each description completes the sentence that a wrong value "must be ...".
    """

    # Unlike the API, of which no other version writes into the table: a field that is misspelt must not be passed over.
    model_config = ConfigDict(extra="forbid", validate_by_name=False)

    kind: AcceleratorKind | None = Field(default=None, description="Neuron, NVIDIA or CPU")
    resource_name: ResourceName | None = Field(
        default=None, description="a resource of AWS's or NVIDIA's device plugin, such as nvidia.com/gpu"
    )
    devices: Annotated[int, Field(ge=1, le=64)] | None = Field(default=None, description="a whole number from 1 to 64")
    architecture: Literal["amd64", "arm64"] | None = Field(default=None, description="amd64 or arm64")
    processors: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="a whole number from 1 to 1024"
    )
    memory_gib: Decimals | None = Field(
        default=None, alias="memoryGiB", description="a decimal number of GiB, such as 16"
    )
    usd_per_hour: Decimals | None = Field(default=None, description="a decimal number of US dollars, such as 0.61")
    usd_per_hour_reserved: Decimals | None = Field(
        default=None, description="a decimal number of US dollars, such as 0.61"
    )
    usd_per_hour_spot: Decimals | None = Field(default=None, description="a decimal number of US dollars, such as 0.61")
    price_source: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = Field(
        default=None, description="a text of at most 256 characters, such as our contract"
    )
    price_date: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}$")] | None = Field(
        default=None, description="a day such as 2026-11-01"
    )


@cache
def packaged_catalogue() -> Catalogue:
    """Return the package's own catalogue."""
    text = files(__package__).joinpath("instances.csv").read_text(encoding="utf-8")
    # A type is named in the sources before its size is published; without a size it can't be scheduled for.
    rows = (_instance_type(row) for row in csv.DictReader(text.splitlines()) if row["k8s_device_count"])
    return Catalogue(MappingProxyType({instance.name: instance for instance in rows}))


def _family(name: str) -> str:
    return name.partition(".")[0]


def _instance_type(row: Mapping[str, str]) -> InstanceType:
    price = row["usd_per_hour_on_demand_us_east_1"]
    source, day = _source(row["price_source"]) if price else ("", "")
    return InstanceType(
        name=row["instance_type"],
        architecture=row["arch"],
        vcpus=int(row["vcpu"]) if row["vcpu"] else None,
        memory_gib=Decimal(row["memory_gib"]) if row["memory_gib"] else None,
        kind=_KINDS[row["accelerator_kind"]],
        accelerator_name=row["accelerator_name"],
        resource=row["k8s_device_resource"] or None,
        devices=int(row["k8s_device_count"]),
        neuron_cores=int(row["neuroncores_total"]) if row["neuroncores_total"] else None,
        allocatable_cpu=row["allocatable_cpu"] or None,
        allocatable_memory=row["allocatable_memory"] or None,
        usd_per_hour=Decimal(price) if price else None,
        price_source=source,
        price_date=day,
    )


def _source(text: str) -> tuple[str, str]:
    """Return where a price comes from, and of which day it is."""
    day = re.search(r"\d{4}-\d{2}-\d{2}", text)
    return text, day[0] if day else ""
