"""How often the cluster is asked for its nodes, by whom, and what is kept of the answer; on virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest

from inferbench_operator.core.facts import NodePool, Nodes, Requirement, Supply, Taint
from inferbench_operator.kube import reconciler as engine
from inferbench_operator.kube.errors import ForbiddenError, KubernetesError, NotFoundError
from inferbench_operator.kube.kinds import BENCHMARK, EVENT, NODE, NODE_POOL, POD, WATCHED, Kind
from inferbench_operator.kube.reconciler import Reconciler
from inferbench_operator.kube.supply import SupplyReader
from operator_testing.builders import NOW, SETTINGS, spec_json
from operator_testing.cluster import Cluster
from operator_testing.server import Json, Server, ServerClient, create_benchmark
from operator_testing.virtual_time import VirtualCalendar
from operator_testing.world import run_here

NEURON = "aws.amazon.com/neuron"
MINUTE = timedelta(minutes=1)


def _node(name: str = "ip-10-0-0-1", instance_type: str = "inf2.xlarge", **spec: Any) -> Json:  # noqa: ANN401 - any field
    """Return a Node as an EKS cluster has it, without what nobody here looks at."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "eks.amazonaws.com/nodegroup": "accelerators",
                "karpenter.k8s.aws/instance-family": "inf2",
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "node.kubernetes.io/instance-type": instance_type,
            },
        },
        "spec": {"providerID": f"aws:///us-east-1a/{name}", **spec},
        "status": {"allocatable": {"cpu": "3920m", "memory": "14Gi", "pods": "38", NEURON: "1"}},
    }


def _pool(name: str, **template: Any) -> Json:  # noqa: ANN401 - any field of the template's spec
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {
            "template": {
                "metadata": {"labels": {"team": "ml"}},
                "spec": {
                    "nodeClassRef": {"group": "eks.amazonaws.com", "kind": "NodeClass", "name": "default"},
                    **template,
                },
            }
        },
    }


class _Client(ServerClient):
    """Takes a second for each part of a listing, in whose place there may be an error."""

    def __init__(self, *objects: tuple[Kind, Json]) -> None:
        """Let everything be listed."""
        server = Server(readable={NODE, NODE_POOL})
        super().__init__(server)
        self.asked = server.listed
        self.errors: dict[Kind, KubernetesError] = {}
        self.begin_with(server, *objects)

    @staticmethod
    def begin_with(server: Server, *objects: tuple[Kind, Json]) -> None:
        """Let there be objects."""
        for kind, raw in objects:
            server.objects[kind, raw["metadata"]["name"]] = raw

    async def pages(self, kind: Kind, namespace: str | None) -> AsyncIterator[Json]:
        """List, or fail."""
        assert namespace is None
        await asyncio.sleep(1)
        async for page in super().pages(kind, namespace):
            if error := self.errors.get(kind):
                raise error
            yield page


def _refused(kind: type[KubernetesError], code: int) -> KubernetesError:
    return kind("GET", "/api", code, "as a real server would answer")


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing is logged that anybody would see."""
    with caplog.at_level(logging.INFO):
        yield
    assert not caplog.records


def test_what_is_kept_of_nodes_and_node_pools() -> None:
    """No more than is needed to judge them; nodes that are alike are one."""
    taints = [
        {"key": NEURON, "effect": "NoSchedule", "value": "true"},
        {"key": "spare", "effect": "PreferNoSchedule"},
        {"key": "gone", "effect": "NoExecute", "timeAdded": "2026-01-05T12:00:00Z"},
    ]
    requirements = [
        {"key": "eks.amazonaws.com/instance-category", "operator": "In", "values": ["inf", "trn"], "minValues": 1},
        {"key": "karpenter.sh/capacity-type", "operator": "Exists"},
    ]
    full = _node("full", taints=taints, unschedulable=True)
    full["status"]["allocatable"] = {NEURON: "0", "nvidia.com/gpu.shared": "2k", "vpc.amazonaws.com/efa": "1"}
    client = _Client(
        *((NODE, _node(f"node-{number}")) for number in range(50)),
        (NODE, full),
        (NODE, {"metadata": {"name": "bare"}, "spec": {}}),
        (NODE_POOL, _pool("z")),
        (NODE_POOL, _pool("a", requirements=requirements, taints=taints)),
    )
    labels = (
        ("karpenter.k8s.aws/instance-family", "inf2"),
        ("kubernetes.io/arch", "amd64"),
        ("node.kubernetes.io/instance-type", "inf2.xlarge"),
    )
    kept = (Taint(NEURON, "true", "NoSchedule"), Taint("gone", "", "NoExecute"))

    async def test() -> None:
        assert await SupplyReader(client).read(NOW) == Supply(
            nodes=frozenset(
                {
                    Nodes(labels, ((NEURON, 1),)),
                    Nodes(labels, ((NEURON, 0), ("nvidia.com/gpu.shared", 1000)), kept, cordoned=True),
                    Nodes(),
                }
            ),
            node_pools=(
                NodePool(
                    "a",
                    (
                        Requirement("eks.amazonaws.com/instance-category", "In", ("inf", "trn")),
                        Requirement("karpenter.sh/capacity-type", "Exists"),
                        Requirement("team", "In", ("ml",)),
                        Requirement("karpenter.sh/nodepool", "In", ("a",)),
                    ),
                    kept,
                ),
                NodePool("z", (Requirement("team", "In", ("ml",)), Requirement("karpenter.sh/nodepool", "In", ("z",)))),
            ),
        )

    run_here(test())


def test_all_share_one_listing_a_minute() -> None:
    """Those that come while it goes on, and those that come within a minute."""
    client = _Client((NODE, _node()))

    async def test() -> None:
        reader = SupplyReader(client)
        found = await asyncio.gather(*(reader.read(NOW) for _ in range(8)))
        assert len({id(supply) for supply in found}) == 1
        assert await reader.read(NOW + MINUTE - timedelta(seconds=1)) is found[0]
        assert client.asked == [NODE, NODE_POOL]
        assert await reader.read(NOW + MINUTE) is not found[0]
        assert client.asked == [NODE, NODE_POOL] * 2

    run_here(test())


@pytest.mark.usefixtures("quiet")
def test_a_right_that_is_withheld_is_not_asked_for_again_for_ten_minutes() -> None:
    """Nobody needs it: nothing is known, and nothing is logged."""
    client = _Client((NODE, _node()))
    client.errors[NODE] = _refused(ForbiddenError, 403)

    async def test() -> None:
        reader = SupplyReader(client)
        assert [await reader.read(NOW + minutes * MINUTE) for minutes in range(10)] == [None] * 10
        assert client.asked == [NODE]
        del client.errors[NODE]
        assert await reader.read(NOW + 10 * MINUTE)
        client.errors[NODE] = _refused(ForbiddenError, 403)
        assert await reader.read(NOW + 11 * MINUTE) is None, "a right that is taken back"

    run_here(test())


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("error", [_refused(NotFoundError, 404), _refused(ForbiddenError, 403)], ids=["404", "403"])
def test_nodes_alone_will_do(error: KubernetesError) -> None:
    """Where Karpenter is not installed, or its NodePools may not be read: then nothing is known of them."""
    client = _Client((NODE, _node()), (NODE_POOL, _pool("a")))
    client.errors[NODE_POOL] = error

    async def test() -> None:
        reader = SupplyReader(client)
        for minutes in range(10):
            supply = await reader.read(NOW + minutes * MINUTE)
            assert supply
            assert (len(supply.nodes), supply.node_pools) == (1, None)
        assert client.asked == [NODE, NODE_POOL, *[NODE] * 9]
        client.errors.clear()
        supply = await reader.read(NOW + 10 * MINUTE)
        assert supply
        assert supply.node_pools

    run_here(test())


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("kind", [NODE, NODE_POOL], ids=["nodes", "NodePools"])
def test_an_error_does_not_mean_that_there_is_nothing(kind: Kind) -> None:
    """What was known stands, and it is asked for again a minute later."""
    client = _Client((NODE, _node()), (NODE_POOL, _pool("a")))

    async def test() -> None:
        reader = SupplyReader(client)
        first = await reader.read(NOW)
        client.errors[kind] = _refused(KubernetesError, 503)
        assert await reader.read(NOW + MINUTE) is first
        asked = len(client.asked)
        assert await reader.read(NOW + 1.5 * MINUTE) is first
        assert len(client.asked) == asked
        client.errors.clear()
        later = await reader.read(NOW + 2 * MINUTE)
        assert later == first
        assert later is not first

    run_here(test())


SCHEDULER = "0/4 nodes are available: 4 Insufficient cpu."
SENTENCE = (
    "No node and no Karpenter NodePool offers inf2.xlarge; add a node group or a NodePool for it, or name another "
    "instance type."
)


def _connect(server: Server, reconciler: Reconciler) -> None:
    """Let the operator see what it watches."""

    def tell(kind: Kind, event: str, raw: Json) -> None:
        if kind in WATCHED:
            reconciler.saw(kind, raw, deleted=event == "DELETED")

    server.watchers.append(tell)


def _capacity(server: Server) -> tuple[str, ...]:
    raw = server.find(BENCHMARK, "study")
    assert raw
    found = (one for one in raw["status"].get("conditions", []) if one["type"] == "CapacityAvailable")
    return next(((one["status"], one["reason"], one["message"]) for one in found), ())


def _on_inf2() -> Json:
    return spec_json(accelerators=[{"name": "inf2", "instanceTypes": ["inf2.xlarge"]}])


def test_a_benchmark_is_told_and_untold() -> None:
    """At once that no node is there, and within a minute that one is; then nobody asks for nodes any more."""

    async def test() -> None:
        server = Server(readable={NODE, NODE_POOL})
        cluster = Cluster(server, open=False)
        create_benchmark(server, "study", _on_inf2())
        async with Reconciler(ServerClient(server), SETTINGS, ("team",)) as reconciler:
            _connect(server, reconciler)
            await asyncio.sleep(0.1)
            assert _capacity(server)[:2] == ("False", "NotOffered")
            assert [raw["reason"] for raw in server.all(EVENT)] == ["RunStarted", "NotOffered"]
            assert server.all(POD) == []
            await asyncio.sleep(10)
            assert _capacity(server) == ("False", "Unschedulable", f"{SCHEDULER} Accelerator inf2: {SENTENCE}")
            version = server.version
            await asyncio.sleep(200)
            assert server.version == version, "nothing is written while nothing changes"
            assert server.listed == [NODE, NODE_POOL] * 4

            server.create(NODE, _node())
            await asyncio.sleep(60)
            advice = "Add a larger node, or lower runner.resources."
            assert _capacity(server) == ("False", "Unschedulable", f"{SCHEDULER} {advice}")
            cluster.set_open(True)
            await asyncio.sleep(100)
            assert _capacity(server)[:2] == ("True", "PodsScheduled")
            assert [raw["reason"] for raw in server.all(EVENT)] == ["RunStarted", "NotOffered", "RunSucceeded"]
            asked = len(server.listed)
            await asyncio.sleep(1200)
            assert len(server.listed) == asked, "a finished benchmark costs no request"

    with patch.object(engine, "datetime", VirtualCalendar):
        run_here(test())


def test_many_benchmarks_cost_as_much_as_one() -> None:
    """They are looked at at the same time."""

    async def test() -> None:
        server = Server(readable={NODE, NODE_POOL})
        for number in range(30):
            create_benchmark(server, f"study-{number}", _on_inf2())
        async with Reconciler(ServerClient(server), SETTINGS, (None,)):
            await asyncio.sleep(170)
        assert server.listed == [NODE, NODE_POOL] * 3

    with patch.object(engine, "datetime", VirtualCalendar):
        run_here(test())


@pytest.mark.usefixtures("quiet")
def test_without_the_rights_nothing_is_told_and_nobody_asks_over_and_over() -> None:
    """The first answer holds for ten minutes."""

    async def test() -> None:
        server = Server()
        create_benchmark(server, "study", _on_inf2())
        async with Reconciler(ServerClient(server), SETTINGS, (None,)):
            await asyncio.sleep(599)
        assert _capacity(server) == ()
        assert server.listed == [NODE]
        assert [raw["reason"] for raw in server.all(EVENT)] == ["RunStarted"]

    with patch.object(engine, "datetime", VirtualCalendar):
        run_here(test())
