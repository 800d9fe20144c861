"""What an accelerator of the specification means to the scheduler: device resource, node labels, taint."""

from __future__ import annotations

from dataclasses import dataclass

from inferbench_operator.core.names import Reason
from inferbench_operator.models.benchmark import Accelerator
from inferbench_operator.models.instances import InstanceType, catalogue, nearest_names
from inferbench_runner.contract import AcceleratorKind

_RESOURCES = {AcceleratorKind.NEURON: "aws.amazon.com/neuron", AcceleratorKind.NVIDIA: "nvidia.com/gpu"}


@dataclass(frozen=True, slots=True)
class Placement:
    """Where pods for an accelerator may run and what they request."""

    kind: AcceleratorKind
    instance_types: tuple[str, ...]
    resource: str | None
    """Extended resource of the device plugin, also the key of the usual taint; None on CPU."""
    devices: int
    """Number of devices to request; zero on CPU."""


class PlacementError(ValueError):
    """The accelerator can't be placed as it is written; retrying does not help."""

    def __init__(self, reason: Reason, message: str) -> None:
        """Keep the reason word beside the sentence."""
        super().__init__(message)
        self.reason = reason


def place(accelerator: Accelerator, *, exclusive: bool) -> Placement:
    """Return the placement of an accelerator.

    Raises:
        PlacementError: The catalogue does not know an instance type, or types and kind contradict each other.
    """
    known = [catalogue().get(name) for name in accelerator.instance_types]
    if accelerator.kind is not AcceleratorKind.CPU:
        for name, instance in zip(accelerator.instance_types, known, strict=True):
            if instance is None:
                raise _unknown(accelerator.name, name)
    kind = _kind(accelerator, [instance.kind for instance in known if instance])
    resource = _RESOURCES.get(kind)
    return Placement(
        kind=kind,
        instance_types=tuple(accelerator.instance_types),
        resource=resource,
        devices=_devices(accelerator, [instance for instance in known if instance], exclusive) if resource else 0,
    )


def _kind(accelerator: Accelerator, kinds: list[AcceleratorKind]) -> AcceleratorKind:
    if len(set(kinds)) > 1:
        raise PlacementError(
            Reason.MIXED_KINDS,
            f"accelerator {accelerator.name}: instanceTypes mixes {' and '.join(sorted(set(kinds)))}; make an "
            "accelerator of its own for each kind.",
        )
    if accelerator.kind is None:
        # The schema demands a kind where there is no instance type, and unknown types have been refused above.
        return kinds[0]
    if kinds and accelerator.kind is not AcceleratorKind.CPU and accelerator.kind != kinds[0]:
        raise PlacementError(
            Reason.KIND_MISMATCH,
            f"accelerator {accelerator.name}: kind is {accelerator.kind}, but {accelerator.instance_types[0]} has "
            f"{kinds[0]} devices; remove kind.",
        )
    return accelerator.kind


def _devices(accelerator: Accelerator, instances: list[InstanceType], exclusive: bool) -> int:  # noqa: FBT001
    if accelerator.devices:
        return accelerator.devices
    counts = {instance.devices for instance in instances}
    # Types of different sizes have no common "all of them", so each pod takes one device.
    return counts.pop() if exclusive and len(counts) == 1 else 1


def _unknown(accelerator: str, name: str) -> PlacementError:
    near = nearest_names(name)
    hint = f" Did you mean {', '.join(near)}?" if near else ""
    return PlacementError(
        Reason.UNKNOWN_INSTANCE_TYPE,
        f"accelerator {accelerator}: instance type {name} is not in the catalogue of types with Neuron or NVIDIA "
        f"devices.{hint} For a type without such devices, set kind: CPU.",
    )
