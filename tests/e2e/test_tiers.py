"""The table of tests/tiers on a simulated node, which says of pods what a real one does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

import pytest

from cluster import ControlPlane, NodeAgent, Outcome, cpu_node
from situations.history import Chronicle
from tiers.play import play, side_by_side
from tiers.rows import Row
from tiers.situations import ROWS

pytestmark = pytest.mark.e2e

ALONE = [row for row in ROWS if row.alone]
TOGETHER = [row for row in ROWS if not row.alone]


def _id(row: Row) -> str:
    return row.id


@dataclass
class Simulated:
    """A simulated node, which is told what becomes of its pods."""

    control_plane: ControlPlane
    chronicle: Chronicle
    agent: NodeAgent
    node: str = "simulated-tier"
    registry: str = "localhost:5999"

    def expect(self, namespace: str, outcome: Outcome) -> None:
        """Have pods of the namespace play it."""
        self.agent.script(lambda pod: outcome if pod.namespace == namespace else None)

    def kill_container(self, namespace: str, pod: str) -> None:
        """Kill it by the agent."""
        self.agent.kill_container(namespace, pod)

    def restart_node(self) -> None:
        """Have another agent take over, which finds no containers."""
        self.agent.stop()
        self.agent = NodeAgent(self.control_plane).start()
        self.agent.add_node(cpu_node(self.node, local=False))


@pytest.fixture(scope="module")
def tier(control_plane: ControlPlane) -> Iterator[Simulated]:
    """One node for all rows, which goes with the last of them: others count the nodes that there are."""
    with Chronicle(control_plane) as chronicle:
        made = Simulated(control_plane, chronicle, NodeAgent(control_plane).start())
        made.agent.add_node(cpu_node(made.node, local=False))
        yield made
        made.agent.remove_node(made.node)
        made.agent.stop()


@pytest.fixture(scope="module")
def played(tier: Simulated) -> Iterator[Mapping[str, Future[None]]]:
    """The rows that disturb no other, all at the same time."""
    with side_by_side(tier, TOGETHER) as futures:
        yield futures


@pytest.mark.parametrize("row", TOGETHER, ids=_id)
def test_a_simulated_node_says_what_a_real_one_says(played: Mapping[str, Future[None]], row: Row) -> None:
    """Step by step, and in the end to the letter."""
    played[row.id].result()


@pytest.mark.parametrize("row", ALONE, ids=_id)
def test_a_simulated_node_that_goes_says_what_a_real_one_says(tier: Simulated, row: Row) -> None:
    """The same, of what ends all pods of a node."""
    play(tier, row)
