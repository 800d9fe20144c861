"""The table of tests/tiers on a real node, from which its words are: the simulated node has to say the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

import pytest

from cluster import ControlPlane, Outcome
from cluster.real import RealNode
from cluster.real.device_plugin import neuron
from cluster.real.node import NAME
from node_testing.containers import first_process
from node_testing.registries import registry_without_images
from situations.history import PODS, Chronicle, path_of
from tiers.play import play, side_by_side
from tiers.rows import Row
from tiers.situations import ROWS

pytestmark = pytest.mark.node

ALONE = [row for row in ROWS if row.alone]
TOGETHER = [row for row in ROWS if not row.alone]


def _id(row: Row) -> str:
    return row.id


@dataclass(frozen=True)
class Real:
    """A real node, whose only device is unwell."""

    running: RealNode
    chronicle: Chronicle
    registry: str
    node: str = NAME

    @property
    def control_plane(self) -> ControlPlane:
        """Its control plane."""
        return self.running.control_plane

    def expect(self, namespace: str, outcome: Outcome) -> None:
        """Leave it to the kubelet."""

    def kill_container(self, namespace: str, pod: str) -> None:
        """Kill its first process, and with it all of them."""
        status = self.chronicle.request("GET", path_of(PODS, namespace, pod))["status"]
        os.kill(first_process(status["containerStatuses"][0]["containerID"]), signal.SIGKILL)

    def restart_node(self) -> None:
        """Take its power away and give it back."""
        self.running.reboot()


@pytest.fixture(scope="module")
def tier(node: RealNode) -> Iterator[Real]:
    """The node, with a device plugin and a registry."""
    with neuron() as plugin, registry_without_images() as registry, Chronicle(node.control_plane) as chronicle:
        plugin.set_health(0, healthy=False)
        yield Real(node, chronicle, registry)


@pytest.fixture(scope="module")
def played(tier: Real) -> Iterator[Mapping[str, Future[None]]]:
    """The rows that disturb no other, all at the same time."""
    with side_by_side(tier, TOGETHER) as futures:
        yield futures


@pytest.mark.parametrize("row", TOGETHER, ids=_id)
def test_a_real_node_says_what_the_table_says(played: Mapping[str, Future[None]], row: Row) -> None:
    """Step by step, and in the end to the letter."""
    played[row.id].result()


@pytest.mark.parametrize("row", ALONE, ids=_id)
def test_a_real_node_that_goes_says_what_the_table_says(tier: Real, row: Row) -> None:
    """The same, of what ends all pods of a node."""
    play(tier, row)
