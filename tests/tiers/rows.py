"""What a row of the table is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cluster import Outcome
from tiers.sights import Sight
from tiers.stage import Stage

REGISTRY: Final = "REGISTRY"
"""Stands for the address of a registry without images."""
NODE: Final = "NODE"
"""Stands for the name of the node."""

Act = Callable[[Stage], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One situation: what is asked for, how a simulated node plays it, and what any kubelet says of it."""

    id: str
    container: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the container's specification."""
    pod: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the pod's specification."""
    job: Mapping[str, Any] | None = None
    """Fields of the specification of the Job that makes the pod; None for a pod by itself."""
    script: Outcome
    """For simulated nodes."""
    act: Act | None = None
    """What is done to the pod."""
    once: str = ""
    """The step at which it is done."""
    steps: Sequence[str]
    """All steps, in their order; one in brackets may be missed, as a kubelet sums up what happens at once."""
    end: Sight
    """What is said last, or before the pod is gone."""
    or_end: Sight | None = None
    """What may be said in the place of it by a real kubelet, of which nobody can say in what order it works."""
    gone: bool = False
    """Whether the pod is gone in the end."""
    alone: bool = False
    """Whether others would feel it as well, on the same node."""
