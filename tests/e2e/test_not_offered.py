"""A benchmark that asks for what the cluster lacks is told so at once, where the operator may list nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from cluster import ControlPlane
from cluster.errors import KubectlError
from cluster.nodes import cpu_node, instance_node
from cluster.observing import eventually
from cluster.operator_process import ROLES, SERVICE_ACCOUNT
from e2e_harness import Harness, Json, benchmark

pytestmark = pytest.mark.e2e

NODE_ROLES: Final = ROLES.with_name("rbac-nodes.yaml")
ON_INF2: Final = [{"name": "inf2", "instanceTypes": ["inf2.xlarge"]}]
SENTENCE: Final = "No node and no Karpenter NodePool offers inf2.xlarge; add a node group or a NodePool for it"
NODE_POOLS: Final = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "nodepools.karpenter.sh"},
    "spec": {
        "group": "karpenter.sh",
        "scope": "Cluster",
        "names": {"kind": "NodePool", "plural": "nodepools"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
"""Karpenter's kind, without its validation."""


def _pool(name: str, requirements: list[Json], taints: list[Json]) -> Json:
    spec = {"nodeClassRef": {"group": "eks.amazonaws.com", "kind": "NodeClass", "name": "default"}}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {"template": {"spec": {**spec, "requirements": requirements, "taints": taints}}},
    }


GENERAL: Final = _pool(
    "general-purpose", [{"key": "eks.amazonaws.com/instance-category", "operator": "In", "values": ["c", "m", "r"]}], []
)
ACCELERATORS: Final = _pool(
    "accelerators",
    [{"key": "eks.amazonaws.com/instance-family", "operator": "In", "values": ["inf2"]}],
    [{"key": "team", "value": "ml", "effect": "NoSchedule"}],
)


def _may_list_nodes(control_plane: ControlPlane) -> bool:
    user = f"system:serviceaccount:{SERVICE_ACCOUNT.replace('/', ':')}"
    with suppress(KubectlError):
        return "yes" in control_plane.kubectl("auth", "can-i", "list", "nodes", f"--as={user}")
    return False


@pytest.fixture
def rights(control_plane: ControlPlane, operator_kubeconfig: Path) -> Iterator[None]:
    """The optional rights, for this test only: they are given before its operator starts."""
    assert operator_kubeconfig.exists()
    control_plane.kubectl("apply", f"--filename={NODE_ROLES}")
    eventually("the operator may list nodes", lambda: _may_list_nodes(control_plane))
    yield
    control_plane.kubectl("delete", f"--filename={NODE_ROLES}")
    eventually("the operator may no longer list nodes", lambda: not _may_list_nodes(control_plane))


@pytest.fixture
def karpenter(control_plane: ControlPlane) -> Iterator[None]:
    """NodePools, of which one is for other things, and one has a taint."""
    control_plane.kubectl("create", "--filename=-", stdin=yaml.safe_dump(NODE_POOLS))
    control_plane.kubectl("wait", "crd/nodepools.karpenter.sh", "--for=condition=Established", "--timeout=60s")
    control_plane.kubectl("create", "--filename=-", stdin=yaml.safe_dump(GENERAL))
    yield
    control_plane.kubectl("delete", "crd", "nodepools.karpenter.sh")


def _warnings(harness: Harness) -> list[tuple[str, str]]:
    events = harness.list("events")
    ours = [event for event in events if event["involvedObject"]["kind"] == "InferenceBenchmark"]
    return [(event["reason"], event["message"]) for event in ours if event["type"] == "Warning"]


def _unschedulable(harness: Harness) -> Json:
    return eventually(
        "the scheduler has said that there is no node",
        lambda: harness.condition("study", "CapacityAvailable"),
        lambda found: found.get("reason") == "Unschedulable",
    )


@pytest.mark.usefixtures("rights", "karpenter")
def test_what_no_node_and_no_node_pool_offers_is_said_at_once(harness: Harness) -> None:
    """Before the scheduler has spoken, and behind its words afterwards; a node that comes late is used all the same."""
    harness.agent.add_node(cpu_node("other", local=False))
    harness.apply(benchmark("study", accelerators=ON_INF2))

    ((reason, message),) = eventually("there is an Event", lambda: _warnings(harness))
    assert reason == "NotOffered"
    assert message.startswith(f"Accelerator inf2: {SENTENCE}")
    words = _unschedulable(harness)["message"]
    assert words.startswith("0/1 nodes are available")
    assert f" Accelerator inf2: {SENTENCE}" in words

    harness.agent.add_node(instance_node("late", "inf2.xlarge"))
    harness.wait_until_finished("study")

    assert harness.condition("study", "Ready")["status"] == "True"
    assert harness.condition("study", "CapacityAvailable")["reason"] == "PodsScheduled"
    assert len(_warnings(harness)) == 1


@pytest.mark.usefixtures("rights", "karpenter")
def test_what_keeps_pods_from_a_node_pool_is_named(harness: Harness) -> None:
    """A taint, which a toleration opens; then there is nothing to say but what the scheduler says."""
    harness.kubectl("create", "--filename=-", stdin=yaml.safe_dump(ACCELERATORS))
    harness.apply(benchmark("study", accelerators=ON_INF2))

    ((reason, message),) = eventually("there is an Event", lambda: _warnings(harness))
    assert reason == "NotOffered"
    assert "NodePool accelerators allows inf2.xlarge, but has the taint team=ml:NoSchedule" in message

    _unschedulable(harness)
    tolerations: list[dict[str, Any]] = [{"key": "team", "operator": "Exists"}]
    harness.apply(benchmark("study", accelerators=ON_INF2, runner={"tolerations": tolerations}))
    eventually(
        "it is not said any more",
        lambda: harness.condition("study", "CapacityAvailable")["message"],
        lambda words: "NodePool" not in words,
    )


def test_without_the_rights_the_scheduler_alone_says_it(harness: Harness) -> None:
    """As for everybody who may not list nodes; nothing of it is in the log."""
    harness.agent.add_node(cpu_node("other", local=False))
    harness.apply(benchmark("study", accelerators=ON_INF2))

    words = _unschedulable(harness)["message"]

    assert "Accelerator" not in words
    eventually("there is an Event", lambda: _warnings(harness), lambda told: told == [("Unschedulable", words)])
    assert "nodes" not in harness.operator.log.read_text()
