"""Where a row is played: a cluster with one node, and one namespace of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cluster import ControlPlane, Outcome
from situations.history import PODS, Chronicle, path_of


class Tier(Protocol):
    """A cluster with one node."""

    control_plane: ControlPlane
    chronicle: Chronicle
    node: str
    """Its name."""
    registry: str
    """A registry that has no images."""

    def expect(self, namespace: str, outcome: Outcome) -> None:
        """Say what becomes of the pods of a namespace, to a node that has to be told."""
        ...

    def kill_container(self, namespace: str, pod: str) -> None:
        """Send SIGKILL to the pod's container."""
        ...

    def restart_node(self) -> None:
        """Have all containers end at once with the node, and the node come back without them."""
        ...


@dataclass(frozen=True, slots=True)
class Stage:
    """One pod of one tier."""

    tier: Tier
    namespace: str
    pod: str

    def delete(self) -> None:
        """Delete the pod, as a person would."""
        self.tier.chronicle.request("DELETE", path_of(PODS, self.namespace, self.pod))

    def evict(self) -> None:
        """Evict the pod through the API, as a drain does."""
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": self.pod, "namespace": self.namespace},
        }
        self.tier.chronicle.request("POST", f"{path_of(PODS, self.namespace, self.pod)}/eviction", eviction)

    def kill_container(self) -> None:
        """Send SIGKILL to the pod's container."""
        self.tier.kill_container(self.namespace, self.pod)

    def taint_node(self) -> None:
        """Give the node a taint that ends pods, as a cloud does before it takes a machine away."""
        taint = "inferbench.test/leaving:NoExecute"
        self.tier.control_plane.kubectl("taint", "node", self.tier.node, taint)
        self.tier.control_plane.kubectl("taint", "node", self.tier.node, f"{taint}-")

    def restart_node(self) -> None:
        """Have the node restart."""
        self.tier.restart_node()
