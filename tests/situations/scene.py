"""One situation while it is played: what happens in it goes through here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from cluster import ControlPlane, Node, NodeAgent, instance_node
from cluster.api import MERGE_PATCH
from cluster.observing import eventually
from cluster.operator_process import OperatorProcess
from situations.history import BENCHMARKS, PODS, Chronicle, Json, Story, path_of

STUDY = "study"
"""Name of the benchmark; the other one of two that compete is its rival."""
RIVAL = "rival"


@dataclass(frozen=True, slots=True)
class Wait:
    """Something that is waited for, in any version of any object of a kind."""

    what: str
    kind: str
    holds: Callable[[Json], object]
    deleted: bool = False
    """Whether the object has to be gone."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One namespace, with nodes of its own."""

    control_plane: ControlPlane
    agent: NodeAgent
    operator: OperatorProcess
    chronicle: Chronicle
    namespace: str
    story: Story
    nodes: set[str] = field(default_factory=set)

    def wait(self, wait: Wait) -> Json:
        """Wait for something and return the object that has it."""
        return self.story.until(wait.what, wait.kind, wait.holds, deleted=wait.deleted)

    def node_name(self, name: str) -> str:
        """Return the name in the cluster of a node of this scene."""
        return f"{self.namespace}-{name}"

    def add_node(self, name: str, node: str | Node) -> None:
        """Bring a node of an instance type, or as it is given."""
        full = self.node_name(name)
        self.agent.add_node(instance_node(full, node) if isinstance(node, str) else replace(node, name=full))
        self.nodes.add(full)

    def pod(self, attempt: int = 1) -> str:
        """Return the name of the runner pod of an attempt, as soon as there is one."""
        wait = Wait(f"attempt {attempt} has a pod", PODS, lambda raw: is_runner(raw, attempt))
        name: str = self.wait(wait)["metadata"]["name"]
        return name

    def job(self, attempt: int = 1) -> str:
        """Return the name of the Job of an attempt, as soon as it has a pod."""
        wait = Wait(f"attempt {attempt} has a pod", PODS, lambda raw: is_runner(raw, attempt))
        name: str = self.wait(wait)["metadata"]["labels"]["batch.kubernetes.io/job-name"]
        return name

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as a person would, in the namespace."""
        return self.control_plane.kubectl(f"--namespace={self.namespace}", *arguments, stdin=stdin)

    def create(self, *manifests: Mapping[str, Any]) -> None:
        """Create objects of any kind."""
        self.kubectl("create", "--filename=-", stdin=yaml.safe_dump_all(manifests))

    def patch(self, kind: str, name: str, patch: Json) -> None:
        """Change an object."""
        path = path_of(kind, self.namespace, name)
        self.chronicle.request("PATCH", path, patch, content_type=MERGE_PATCH)

    def listed(self, kind: str) -> list[Json]:
        """Return the objects of a kind as they are now."""
        found: list[Json] = self.chronicle.request("GET", path_of(kind, self.namespace))["items"]
        return found

    def open(self) -> None:
        """Make the namespace, and wait until pods can be made in it."""
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        self.chronicle.request("POST", path_of("namespaces"), manifest)
        eventually("there is a service account", lambda: self.listed("serviceaccounts"), every=0.05)

    def close(self) -> None:
        """Take nodes and benchmarks away; the garbage collectors remove the rest some time."""
        self.chronicle.request("DELETE", path_of(BENCHMARKS, self.namespace))
        for name in self.nodes & set(self.agent.nodes):
            self.agent.remove_node(name)


def is_runner(raw: Json, attempt: int | None = None) -> bool:
    """Whether a pod is a runner's, of that attempt."""
    labels = raw["metadata"].get("labels", {})
    return "inferbench.dev/benchmark" in labels and attempt in {None, int(labels["inferbench.dev/attempt"])}
