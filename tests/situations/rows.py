"""What a row of the table is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cluster import Node, Outcome
from situations.acts import Act
from situations.scene import Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """What has become of cells in the end."""

    count: int = 2
    state: str = "succeeded"
    reason: str = ""
    attempts: int = 1
    disruptions: int = 0
    stops: int = 0
    words: Sequence[str] = ()
    """Parts of the message of each of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One situation. By default a benchmark of two cells, which one Job measures, and a success in the end."""

    id: str
    nodes: Mapping[str, str | Node] = field(default_factory=dict)
    """Instance types, or whole nodes, by short name."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    execution: Mapping[str, Any] = field(default_factory=dict)
    """Fields of spec.execution."""
    rival: bool = False
    """Whether there is a second benchmark with the same specification."""
    pods: Sequence[Outcome | None] = ()
    """What becomes of runner pods, in the order in which they come to nodes; later ones, and None, succeed."""
    before: Sequence[Act] = ()
    """What happens before the benchmark is applied."""
    meanwhile: Sequence[Act | Wait] = ()
    """What is waited for and what is done, one after the other, while the run goes on."""
    end: Sequence[Cells] = (Cells(),)
    """All cells of each benchmark, when its run is over; none of one that can't be run."""
    capacity: str = "True"
    """Status of the condition CapacityAvailable in the end; empty where there is no such condition."""
    conditions: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Status and reason of further conditions in the end, or of those that don't follow from the cells."""
    jobs: int | None = None
    """Number of Jobs that were ever made; None where it is not to be counted."""
    asks: Mapping[str, str] = field(default_factory=dict)
    """What each runner's container requests, among other things."""
    at_once: int | None = None
    """Number of unfinished Jobs that is exceeded at no time; None where it is not to be counted."""
    patience_seconds: float = 60
    """How long each fact is waited for, before it counts as one that never happens."""
    is_killed_before_acts: bool = False
    """Where the operator is killed: before each act, to be started after it; or by default once it has begun."""

    @property
    def instance_types(self) -> frozenset[str]:
        """Instance types on which its pods may run."""
        return frozenset(
            kind for accelerator in self.spec.get("accelerators", ()) for kind in accelerator.get("instanceTypes", ())
        )


def on(instance_type: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - any field of an accelerator
    """Return a specification of one accelerator, which is named after its instance type."""
    return {"accelerators": [{"name": instance_type.replace(".", "-"), "instanceTypes": [instance_type], **fields}]}


def refusal(reason: str) -> dict[str, tuple[str, str]]:
    """Return the conditions of a benchmark that can't be run as it is written."""
    return {kind: (status, reason) for kind, status in (("Stalled", "True"), ("Ready", "False"), ("Accepted", "False"))}
