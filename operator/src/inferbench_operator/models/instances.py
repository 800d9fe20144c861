"""The catalogue of EC2 instance types that carry an accelerator: what an `instanceTypes` entry stands for.

The table is package data (`instances.csv`), gathered from EC2's own descriptions by way of Karpenter; each row names
its sources.
"""

from __future__ import annotations

import csv
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from inferbench_runner.contract import AcceleratorKind

_KINDS = {"neuron": AcceleratorKind.NEURON, "nvidia": AcceleratorKind.NVIDIA}


@dataclass(frozen=True, slots=True)
class InstanceType:
    """One EC2 instance type, as its node appears to the scheduler."""

    name: str
    family: str
    architecture: str
    """Value of the label `kubernetes.io/arch`: amd64 or arm64."""
    vcpus: int | None
    memory_gib: Decimal | None
    kind: AcceleratorKind
    accelerator_name: str
    resource: str
    """Extended resource that the device plugin offers, such as `aws.amazon.com/neuron`; also the usual taint's key."""
    devices: int
    neuron_cores: int | None
    """NeuronCores of the whole instance; None without Neuron devices."""
    allocatable_cpu: str | None
    """Kubernetes quantity left for pods, where known."""
    allocatable_memory: str | None
    """Kubernetes quantity left for pods, where known."""
    usd_per_hour: Decimal | None
    """On-demand price in us-east-1 (Linux); None where no such price is published."""


@cache
def catalogue() -> Mapping[str, InstanceType]:
    """All known instance types by name."""
    text = files(__package__).joinpath("instances.csv").read_text(encoding="utf-8")
    # A type is named in the sources before its size is published; without a size it can't be scheduled for.
    rows = (_instance_type(row) for row in csv.DictReader(text.splitlines()) if row["k8s_device_count"])
    return MappingProxyType({instance.name: instance for instance in rows})


def nearest_names(name: str) -> list[str]:
    """Up to three known instance types that `name` may have been meant for, nearest first."""
    return difflib.get_close_matches(name, catalogue(), n=3, cutoff=0.4)


def _instance_type(row: Mapping[str, str]) -> InstanceType:
    price = row["usd_per_hour_on_demand_us_east_1"]
    return InstanceType(
        name=row["instance_type"],
        family=row["family"],
        architecture=row["arch"],
        vcpus=int(row["vcpu"]) if row["vcpu"] else None,
        memory_gib=Decimal(row["memory_gib"]) if row["memory_gib"] else None,
        kind=_KINDS[row["accelerator_kind"]],
        accelerator_name=row["accelerator_name"],
        resource=row["k8s_device_resource"],
        devices=int(row["k8s_device_count"]),
        neuron_cores=int(row["neuroncores_total"]) if row["neuroncores_total"] else None,
        allocatable_cpu=row["allocatable_cpu"] or None,
        allocatable_memory=row["allocatable_memory"] or None,
        usd_per_hour=Decimal(price) if price else None,
    )
