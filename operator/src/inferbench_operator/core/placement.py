"""What an accelerator of the specification means to the scheduler: device resource, node labels, taint, room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from inferbench_operator.core.names import LABEL_ARCHITECTURE, LABEL_INSTANCE_TYPE, Reason
from inferbench_operator.core.price import Price, price_of, used_share
from inferbench_operator.models.benchmark import Accelerator, Runner
from inferbench_operator.models.cost import Pricing
from inferbench_operator.models.instances import RESOURCES, Catalogue, InstanceType
from inferbench_runner.contract import AcceleratorKind

_DOMAINS: Final = {AcceleratorKind.NEURON: "aws.amazon.com/", AcceleratorKind.NVIDIA: "nvidia.com/"}

_RING: Final = frozenset({1, 4, 8, 16})
"""Device counts for which the sixteen Trainium devices of one instance form a ring (aws-neuron-sdk, scheduler flow)."""
_RING_DEVICES: Final = 16
_RING_ACCELERATOR: Final = "trainium"

_LABEL_FAMILY: Final = "karpenter.k8s.aws/instance-family"

_LEAST_RESERVE_MEBIBYTES: Final = 1024
"""Memory that a node's own pods (network, storage, monitoring) are left at least."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a pod requests of a node besides devices, so that no other pod has a part in it."""

    processors: int
    """Whole ones: a static CPU manager pins no others."""
    memory_mebibytes: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where pods for an accelerator may run and what they request."""

    kind: AcceleratorKind
    instance_types: tuple[str, ...]
    resource: str | None
    """Extended resource of the device plugin; None on CPU, and where claims take its place."""
    devices: int
    """Number of devices to request; zero on CPU."""
    taints: tuple[str, ...] = ()
    """Keys of the usual taints of nodes with such devices."""
    architecture: str | None = None
    """Value of the label `kubernetes.io/arch`, where the catalogue knows it and all types agree."""
    room: Room | None = None
    """None where the catalogue knows no size, and where the node's own pods leave no whole processor."""
    price: Price | None = None
    """Of the dearest of the instance types; None where any of them has none."""
    used_share: Decimal | None = None
    """Part of the node that one copy of the model keeps busy; None where that is not known."""
    avoid: tuple[str, ...] = ()
    """Nodes whose devices have failed in this run."""

    @property
    def usd_per_hour(self) -> Decimal | None:
        """Price of an hour of a node, in US dollars."""
        return self.price.usd_per_hour if self.price else None


class SpecRefusedError(ValueError):
    """The benchmark can't be run as it is written; retrying does not help."""

    def __init__(self, reason: Reason, message: str) -> None:
        """Keep the reason word beside the sentence."""
        super().__init__(message)
        self.reason = reason


def place(
    accelerator: Accelerator,
    catalogue: Catalogue,
    *,
    exclusive: bool,
    runner: Runner | None = None,
    pricing: Pricing = Pricing.ON_DEMAND,
    copies: int = 1,
) -> Placement:
    """Return the placement of an accelerator, whose pods have these runner settings and so many copies of the model.

    Raises:
        SpecRefusedError: The catalogue does not know an instance type, or the accelerator contradicts it or itself.
    """
    runner = runner or Runner()
    named = [catalogue.types.get(name) for name in accelerator.instance_types]
    if accelerator.kind is not AcceleratorKind.CPU:
        for name, instance in zip(accelerator.instance_types, named, strict=True):
            if instance is None:
                raise _unknown(accelerator.name, name, catalogue)
    known = [instance for instance in named if instance]
    kind = _kind(accelerator, known)
    _check_selector(accelerator, known, runner)
    taint = RESOURCES.get(kind)
    offered = _offered(accelerator, kind, known)
    resource = _resource(accelerator, kind) or offered
    devices = _devices(accelerator, known, exclusive) if resource else 0
    if kind is AcceleratorKind.NEURON and resource == taint and not runner.resource_claims:
        _check_neuron(accelerator, known, devices, runner)
    all_known = bool(known) and len(known) == len(named)
    architectures = {instance.architecture for instance in known}
    whole = resource is not None and resource == offered
    return Placement(
        kind=kind,
        instance_types=tuple(accelerator.instance_types),
        resource=None if runner.resource_claims else resource,
        devices=0 if runner.resource_claims else devices,
        taints=tuple(dict.fromkeys(key for key in (taint, resource) if key)),
        architecture=architectures.pop() if all_known and len(architectures) == 1 else None,
        room=_room(known, devices if whole else None, exclusive=exclusive) if all_known else None,
        price=price_of(known, pricing) if all_known else None,
        used_share=used_share(accelerator, known, kind, copies=copies, exclusive=exclusive) if all_known else None,
    )


def nowhere(accelerator: Accelerator) -> Placement:
    """Return what can be said of an accelerator that can't be placed; no pod may be made from it."""
    kind = accelerator.kind or AcceleratorKind.CPU
    return Placement(kind=kind, instance_types=tuple(accelerator.instance_types), resource=None, devices=0)


def _kind(accelerator: Accelerator, known: Sequence[InstanceType]) -> AcceleratorKind:
    if accelerator.kind is AcceleratorKind.CPU:
        # Every machine has processors, whatever devices it has besides.
        return accelerator.kind
    kinds = {instance.kind for instance in known}
    if len(kinds) > 1:
        raise SpecRefusedError(
            Reason.MIXED_KINDS,
            f"accelerator {accelerator.name}: instanceTypes mixes {' and '.join(sorted(kinds))}; make an accelerator "
            "of its own for each kind.",
        )
    if accelerator.kind is None:
        # The schema demands a kind where there is no instance type, and unknown types have been refused above.
        return known[0].kind
    if known and accelerator.kind is not known[0].kind:
        raise SpecRefusedError(
            Reason.KIND_MISMATCH,
            f"accelerator {accelerator.name}: kind is {accelerator.kind}, but {known[0].name} is of kind "
            f"{known[0].kind}; remove kind.",
        )
    return accelerator.kind


def _offered(accelerator: Accelerator, kind: AcceleratorKind, known: Sequence[InstanceType]) -> str | None:
    """Return the resource by which the catalogue counts the devices of these types; None if it differs."""
    if kind is AcceleratorKind.CPU or not known:
        return RESOURCES.get(kind)
    offered = sorted({instance.resource for instance in known if instance.resource})
    if len(offered) > 1 and not accelerator.resource_name:
        raise SpecRefusedError(
            Reason.RESOURCE_MISMATCH,
            f"accelerator {accelerator.name}: its instanceTypes offer {' and '.join(offered)}; make an accelerator of "
            "its own for each, or set resourceName.",
        )
    return offered[0] if len(offered) == 1 else None


def _resource(accelerator: Accelerator, kind: AcceleratorKind) -> str | None:
    wanted = accelerator.resource_name
    if wanted and not wanted.startswith(_DOMAINS.get(kind, " ")):
        raise SpecRefusedError(
            Reason.RESOURCE_MISMATCH,
            f"accelerator {accelerator.name}: resourceName {wanted} is none of {kind} devices; remove it, or correct "
            "kind or instanceTypes.",
        )
    return wanted


def _devices(accelerator: Accelerator, instances: Sequence[InstanceType], exclusive: bool) -> int:  # noqa: FBT001
    if accelerator.resource_name:
        return accelerator.devices or 1
    counts = {instance.devices for instance in instances}
    if accelerator.devices is None:
        # Types of different sizes have no common "all of them", so each pod takes one device.
        return counts.pop() if exclusive and len(counts) == 1 else 1
    if counts and accelerator.devices > max(counts):
        raise SpecRefusedError(
            Reason.DEVICE_COUNT,
            f"accelerator {accelerator.name}: devices is {accelerator.devices}, but no instance type of it has more "
            f"than {max(counts)}; lower devices, or name a larger type.",
        )
    return accelerator.devices


def _check_neuron(accelerator: Accelerator, instances: Sequence[InstanceType], devices: int, runner: Runner) -> None:
    """Refuse what the scheduler would never place or the device plugin never hand out."""
    for instance in instances:
        if (
            instance.accelerator_name == _RING_ACCELERATOR
            and instance.devices == _RING_DEVICES
            and devices not in _RING
        ):
            raise SpecRefusedError(
                Reason.DEVICE_COUNT,
                f"accelerator {accelerator.name}: devices is {devices}, but {instance.name} gives out 1, 4, 8 or 16; "
                "use one of these.",
            )
        if 1 < devices < instance.devices and not runner.scheduler_name:
            raise SpecRefusedError(
                Reason.SCHEDULER_MISSING,
                f"accelerator {accelerator.name}: {devices} of {instance.devices} devices of {instance.name} lie side "
                "by side only if the Neuron scheduler extension chooses them; set runner.schedulerName to its name, or "
                f"devices to 1 or {instance.devices}.",
            )
        cores = (instance.neuron_cores or 0) * devices // instance.devices
        if accelerator.cores and cores and accelerator.cores > cores:
            raise SpecRefusedError(
                Reason.CORE_COUNT,
                f"accelerator {accelerator.name}: cores is {accelerator.cores}, but {devices} of the devices of "
                f"{instance.name} have {cores}; lower cores, or raise devices.",
            )


def _check_selector(accelerator: Accelerator, known: Sequence[InstanceType], runner: Runner) -> None:
    """Refuse labels that no node of the instance types can have."""
    if not accelerator.instance_types:
        return
    architectures = {one.architecture for one in known}
    possible = {
        LABEL_INSTANCE_TYPE: set(accelerator.instance_types),
        # A type of which the catalogue knows none may be of any.
        LABEL_ARCHITECTURE: architectures
        if len(known) == len(accelerator.instance_types) and None not in architectures
        else None,
        _LABEL_FAMILY: {name.partition(".")[0] for name in accelerator.instance_types},
    }
    for label, values in possible.items():
        wanted = runner.node_selector.get(label)
        if wanted is not None and values is not None and wanted not in values:
            raise SpecRefusedError(
                Reason.SELECTOR_CONFLICT,
                f"accelerator {accelerator.name}: runner.nodeSelector wants {label}: {wanted}, which no node of "
                f"{', '.join(accelerator.instance_types)} has; remove it, or correct instanceTypes.",
            )


def _room(instances: Sequence[InstanceType], devices: int | None, *, exclusive: bool) -> Room | None:
    """Return what the smallest of the types has for so many devices; None for a part of a device."""
    found: list[Room] = []
    for instance in instances:
        if instance.allocatable_cpu is None or instance.allocatable_memory is None:
            return None
        if not exclusive and devices is None:
            return None
        share = 1.0 if exclusive or devices is None else devices / instance.devices
        # The table has these in thousandths of a processor and in MiB.
        millis, mebibytes = int(instance.allocatable_cpu.removesuffix("m")), int(instance.allocatable_memory[:-2])
        # The last processor, of which a part is taken already, is for the node's own pods.
        whole = (millis - 1) // 1000
        memory = mebibytes - max(mebibytes // 10, _LEAST_RESERVE_MEBIBYTES)
        if whole < 1 or memory < 1:
            return None
        processors = max(int(whole * share), 1)
        found.append(Room(processors, int(memory * share)))
    return Room(min(one.processors for one in found), min(one.memory_mebibytes for one in found))


def _unknown(accelerator: str, name: str, catalogue: Catalogue) -> SpecRefusedError:
    family, near = catalogue.family(name), catalogue.nearest(name)
    hint = "."
    if family:
        hint = f"; {name.partition('.')[0]} comes as {', '.join(family)}."
    elif near:
        hint = f". Did you mean {', '.join(near)}?"
    return SpecRefusedError(
        Reason.UNKNOWN_INSTANCE_TYPE,
        f"accelerator {accelerator}: instance type {name} is not in the catalogue{hint} For a type without Neuron or "
        "NVIDIA devices, set kind: CPU; others can be added to the operator's own table.",
    )
