"""What is said, and left unsaid, about a cluster that has no node for an accelerator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferbench_operator.core.facts import NodePool, Nodes, Requirement, Supply, Taint
from inferbench_operator.core.instance_table import with_table
from inferbench_operator.core.placement import place
from inferbench_operator.core.supply import Shortage, shortage
from inferbench_operator.models.benchmark import Accelerator, Runner
from inferbench_operator.models.instances import packaged_catalogue

NEURON = "aws.amazon.com/neuron"
NVIDIA = "nvidia.com/gpu"
TYPE = "node.kubernetes.io/instance-type"
ARCH = "kubernetes.io/arch"
TEAM = Taint("team", "ml", "NoSchedule")
INF2 = {"instanceTypes": ["inf2.xlarge"]}
ANY_GPU = {"kind": "NVIDIA"}


def _nodes(
    instance_type: str = "inf2.xlarge",
    *taints: Taint,
    devices: Mapping[str, int] | None = None,
    labels: Mapping[str, str] | None = None,
    cordoned: bool = False,
) -> Nodes:
    """Return nodes; without `devices`, with one Neuron device and its usual taint."""
    all_labels = {TYPE: instance_type, ARCH: "amd64"} | dict(labels or {})
    if devices is None:
        devices, taints = {NEURON: 1}, (Taint(NEURON, "", "NoSchedule"), *taints)
    return Nodes(tuple(sorted(all_labels.items())), tuple(sorted(devices.items())), taints, cordoned)


def _pool(name: str = "pool", *asked: tuple[str, str, str], taints: tuple[Taint, ...] = ()) -> NodePool:
    """Return a NodePool with requirements, whose values are given in one string."""
    requirements = tuple(Requirement(key, operator, tuple(values.split())) for key, operator, values in asked)
    return NodePool(name, requirements, taints)


def _lacks(
    accelerator: Mapping[str, Any],
    *nodes: Nodes,
    pools: list[NodePool] | None,
    runner: Mapping[str, Any] | None = None,
    table: bytes = b"",
) -> Shortage | None:
    settings, catalogue = Runner.model_validate(runner or {}), with_table(packaged_catalogue(), table)
    asked = Accelerator.model_validate({"name": "chip", **accelerator})
    placement = place(asked, catalogue, exclusive=True, runner=settings)
    supply = Supply(frozenset(nodes), None if pools is None else tuple(pools))
    return shortage(placement, settings, supply, catalogue)


def _said(*arguments: Any, **keywords: Any) -> str:  # noqa: ANN401 - those of _lacks
    found = _lacks(*arguments, **keywords)
    return str(found) if found else ""


NOTHING = (
    "No node and no Karpenter NodePool offers inf2.xlarge; add a node group or a NodePool for it, or name another "
    "instance type."
)
NO_PLUGIN = (
    "Nodes of inf2.xlarge are there, but none offers aws.amazon.com/neuron; is the Neuron device plugin running?"
)
TAINTED = (
    "Nodes of inf2.xlarge are there, but those that would do have a taint that the pod doesn't tolerate, such as "
    "team=ml:NoSchedule; add it to runner.tolerations."
)
TAINTED_POOL = (
    "NodePool accelerators allows inf2.xlarge, but has the taint team=ml:NoSchedule that the pod doesn't tolerate; add "
    "it to runner.tolerations."
)
CORDONED = "Nodes of inf2.xlarge are there, but those that would do are cordoned; uncordon one."
NO_GPU = (
    "No node offers nvidia.com/gpu, and no Karpenter NodePool allows an instance type that is known to have it; add a "
    "node group or a NodePool, or see whether the device plugin runs on the nodes that are there."
)
GENERAL = _pool("general-purpose", ("eks.amazonaws.com/instance-category", "In", "c m r"))
"""As EKS Auto Mode brings it."""


@pytest.mark.parametrize(
    ("nodes", "pools", "sentence"),
    [
        pytest.param([], [], NOTHING, id="an empty cluster"),
        pytest.param(
            [_nodes("m5.large", devices={})], [GENERAL], NOTHING, id="plain nodes and Auto Mode's own NodePool"
        ),
        pytest.param([_nodes("inf2.8xlarge")], [], NOTHING, id="nodes of another size"),
        pytest.param(
            [],
            None,
            "No node offers inf2.xlarge, unless a node group that is scaled to zero has it; if none does, add one, or "
            "name another instance type.",
            id="NodePools that can't be read",
        ),
        pytest.param([_nodes()], [], "", id="a node"),
        pytest.param([_nodes(devices={})], [], NO_PLUGIN, id="a node without a device plugin"),
        pytest.param([_nodes(devices={NEURON: 0})], None, NO_PLUGIN, id="a node whose devices are all out of order"),
        pytest.param([_nodes(devices={}), _nodes()], [], "", id="one node without a device plugin, and one with it"),
        pytest.param([_nodes(cordoned=True)], [], CORDONED, id="a cordoned node"),
        pytest.param([_nodes(cordoned=True), _nodes()], [], "", id="a cordoned node, and another"),
        pytest.param(
            [_nodes(cordoned=True), _nodes(devices={})], [], CORDONED, id="the only one with devices cordoned"
        ),
        pytest.param([_nodes("inf2.xlarge", TEAM)], [], TAINTED, id="a tainted node"),
        pytest.param([_nodes("inf2.xlarge", TEAM), _nodes()], [], "", id="a tainted node, and another"),
        pytest.param(
            [_nodes("inf2.xlarge", TEAM), _nodes("inf2.xlarge", Taint("z", "", "NoExecute"))],
            [],
            TAINTED,
            id="nodes with different taints",
        ),
        pytest.param([], [_pool("accelerators", (TYPE, "In", "inf2.xlarge"))], "", id="a NodePool"),
        pytest.param([], [GENERAL, _pool("all")], "", id="a NodePool that allows everything"),
        pytest.param(
            [],
            [_pool("accelerators", (TYPE, "In", "inf2.xlarge"), taints=(TEAM,))],
            TAINTED_POOL,
            id="a tainted NodePool",
        ),
        pytest.param(
            [],
            [_pool("b", taints=(TEAM,)), _pool("a", (TYPE, "In", "g5.xlarge")), _pool("c")],
            "",
            id="a tainted NodePool, one for something else, and one that will do",
        ),
        pytest.param(
            [],
            [_pool("a", taints=(TEAM, Taint("zone", "", "NoExecute")))],
            "NodePool a allows inf2.xlarge, but has the taints team=ml:NoSchedule and zone:NoExecute that the pod "
            "doesn't tolerate; add them to runner.tolerations.",
            id="a NodePool with two taints",
        ),
        pytest.param([_nodes(devices={})], [_pool()], "", id="a node without a device plugin, and a NodePool"),
        pytest.param(
            [_nodes(devices={})], [_pool(taints=(TEAM,))], NO_PLUGIN, id="trouble with what is there comes first"
        ),
    ],
)
def test_one_instance_type(nodes: list[Nodes], pools: list[NodePool] | None, sentence: str) -> None:
    """The sentence says what is the case, and the way out."""
    assert _said(INF2, *nodes, pools=pools) == sentence


@pytest.mark.parametrize(
    ("accelerator", "nodes", "pools", "sentence"),
    [
        pytest.param(
            {"instanceTypes": ["g5.xlarge", "g6.xlarge", "g6e.xlarge"]},
            [],
            [],
            "No node and no Karpenter NodePool offers g5.xlarge, g6.xlarge or g6e.xlarge; add a node group or a "
            "NodePool for it, or name another instance type.",
            id="any of three types",
        ),
        pytest.param(
            {"instanceTypes": [f"g5.{size}xlarge" for size in ("", 2, 4, 8, 12, 16, 24)]},
            [],
            [],
            "No node and no Karpenter NodePool offers g5.xlarge, g5.2xlarge, g5.4xlarge, g5.8xlarge or 3 others; add a "
            "node group or a NodePool for it, or name another instance type.",
            id="more types than there is room for",
        ),
        pytest.param(
            {"instanceTypes": ["g5.xlarge", "g6.xlarge"]},
            [],
            [_pool("p", ("karpenter.k8s.aws/instance-family", "In", "g6"))],
            "",
            id="a NodePool for one of two types",
        ),
        pytest.param(
            {"instanceTypes": ["trn1.32xlarge"]},
            [_nodes("trn1.32xlarge", devices={NEURON: 15})],
            [],
            "Nodes of trn1.32xlarge are there, but none offers the 16 aws.amazon.com/neuron that a pod asks for; ask "
            "for fewer devices, or see whether all of them are healthy.",
            id="a node with a device too few",
        ),
        pytest.param(
            {"instanceTypes": ["trn1.32xlarge"], "devices": 1},
            [_nodes("trn1.32xlarge", devices={NEURON: 15})],
            [],
            "",
            id="a node with devices enough",
        ),
        pytest.param(
            {"instanceTypes": ["p5.48xlarge"], "resourceName": "nvidia.com/mig-1g.10gb"},
            [_nodes("p5.48xlarge", devices={NVIDIA: 8})],
            [],
            "Nodes of p5.48xlarge are there, but none offers nvidia.com/mig-1g.10gb; is the NVIDIA device plugin "
            "running?",
            id="devices that are not cut into the slices that are asked for",
        ),
        pytest.param(ANY_GPU, [], [GENERAL], NO_GPU, id="any GPU, and none"),
        pytest.param(ANY_GPU, [_nodes("g9.large", devices={NVIDIA: 1})], [], "", id="any GPU, on a type not known"),
        pytest.param(ANY_GPU, [_nodes(), _nodes("g5.xlarge", devices={})], [], NO_GPU, id="any GPU, without a plugin"),
        pytest.param(ANY_GPU, [], [_pool("p", (TYPE, "In", "m5.large g5.xlarge"))], "", id="any GPU, from a NodePool"),
        pytest.param(ANY_GPU, [], [_pool("p", (TYPE, "In", "inf2.xlarge"))], NO_GPU, id="any GPU, but only Neuron"),
        pytest.param(
            ANY_GPU,
            [],
            None,
            "No node offers nvidia.com/gpu, unless a node group that is scaled to zero has it; if none does, add one.",
            id="any GPU, and NodePools that can't be read",
        ),
        pytest.param(
            ANY_GPU | {"devices": 8},
            [],
            [_pool("p", (TYPE, "In", "g5.12xlarge"))],
            "No node offers nvidia.com/gpu, and no Karpenter NodePool allows an instance type that is known to have 8 "
            "of it; add a node group or a NodePool, or see whether the device plugin runs on the nodes that are there.",
            id="eight of any GPU, and a NodePool of four",
        ),
        pytest.param(
            ANY_GPU | {"devices": 8},
            [_nodes("g5.12xlarge", devices={NVIDIA: 4})],
            [_pool("p", (TYPE, "In", "p5.48xlarge"))],
            "",
            id="eight of any GPU, a node of four, and a NodePool of eight",
        ),
        pytest.param(
            ANY_GPU | {"devices": 8},
            [_nodes("g5.12xlarge", devices={NVIDIA: 4})],
            None,
            "Nodes with nvidia.com/gpu are there, but none offers the 8 nvidia.com/gpu that a pod asks for; ask for "
            "fewer devices, or see whether all of them are healthy.",
            id="eight of any GPU, and a node of four",
        ),
        pytest.param({"kind": "CPU"}, [], [], "", id="any CPU: nothing to check"),
        pytest.param(
            {"kind": "CPU", "instanceTypes": ["c7i.xlarge"]},
            [_nodes("m5.large", devices={})],
            [GENERAL],
            "",
            id="a CPU type that a NodePool allows",
        ),
        pytest.param(
            {"kind": "CPU", "instanceTypes": ["t3.large"]},
            [_nodes("m5.large", devices={})],
            [GENERAL],
            "No node and no Karpenter NodePool offers t3.large; add a node group or a NodePool for it, or name another "
            "instance type.",
            id="a CPU type that none allows",
        ),
        pytest.param(
            {"kind": "CPU", "instanceTypes": ["rack.cpu"]},
            [],
            [GENERAL],
            "",
            id="a type that is none of EC2's",
        ),
    ],
)
def test_other_accelerators(
    accelerator: Mapping[str, Any], nodes: list[Nodes], pools: list[NodePool] | None, sentence: str
) -> None:
    """Several types, parts of devices, devices of any type, plain processors."""
    assert _said(accelerator, *nodes, pools=pools) == sentence


@pytest.mark.parametrize(
    ("requirement", "fits"),
    [
        ((TYPE, "In", "g4dn.12xlarge m5.large"), True),
        ((TYPE, "In", "g4dn.xlarge"), False),
        ((TYPE, "NotIn", "g4dn.xlarge"), True),
        ((TYPE, "NotIn", "g4dn.12xlarge"), False),
        ((TYPE, "Exists", ""), True),
        ((TYPE, "DoesNotExist", ""), False),
        (("karpenter.k8s.aws/instance-family", "In", "g4dn"), True),
        (("karpenter.k8s.aws/instance-family", "In", "g4"), False),
        (("eks.amazonaws.com/instance-family", "NotIn", "g4dn"), False),
        (("karpenter.k8s.aws/instance-category", "In", "g p"), True),
        (("karpenter.k8s.aws/instance-category", "In", "inf"), False),
        (("eks.amazonaws.com/instance-category", "In", "c m r"), False),
        (("karpenter.k8s.aws/instance-generation", "Gt", "3"), True),
        (("karpenter.k8s.aws/instance-generation", "Gt", "4"), False),
        (("eks.amazonaws.com/instance-generation", "Lt", "5"), True),
        (("eks.amazonaws.com/instance-generation", "Lt", "4"), False),
        (("karpenter.k8s.aws/instance-generation", "In", "4"), True),
        (("karpenter.k8s.aws/instance-generation", "Gt", "four"), True),
        (("karpenter.k8s.aws/instance-generation", "Gte", "9"), True),
        (("karpenter.k8s.aws/instance-size", "In", "12xlarge"), True),
        (("karpenter.k8s.aws/instance-size", "In", "xlarge"), False),
        (("eks.amazonaws.com/instance-size", "NotIn", "12xlarge"), False),
        ((ARCH, "In", "amd64"), True),
        ((ARCH, "In", "arm64"), False),
        (("karpenter.k8s.aws/instance-gpu-count", "In", "1"), True),
        (("topology.kubernetes.io/zone", "DoesNotExist", ""), True),
        (("karpenter.sh/capacity-type", "In", "spot"), True),
        (("team", "In", "ml"), True),
    ],
    ids=str,
)
def test_requirements_of_a_node_pool(requirement: tuple[str, str, str], fits: bool) -> None:  # noqa: FBT001 - a column
    """By the parts of the type's name as Karpenter reads them; what can't be judged fits."""
    found = _lacks({"instanceTypes": ["g4dn.12xlarge"]}, pools=[_pool("p", requirement)])
    assert (found is None) == fits


@pytest.mark.parametrize(
    ("instance_type", "category", "family", "generation", "size"),
    [
        ("trn1n.32xlarge", "trn", "trn1n", "1", "32xlarge"),
        ("p6-b200.48xlarge", "p", "p6-b200", "6", "48xlarge"),
        ("gr6.4xlarge", "gr", "gr6", "6", "4xlarge"),
        ("g4dn.metal", "g", "g4dn", "4", "metal"),
    ],
)
def test_names_of_instance_types(instance_type: str, category: str, family: str, generation: str, size: str) -> None:
    """Each part is what Karpenter's labels of the type say; a pool that asks for anything else is none for it."""
    parts = {"category": category, "family": family, "generation": generation, "size": size}
    exact = [(f"karpenter.k8s.aws/instance-{part}", "In", value) for part, value in parts.items()]
    assert _lacks({"instanceTypes": [instance_type]}, pools=[_pool("p", *exact)]) is None
    for number, (key, _, value) in enumerate(exact):
        other = [*exact[:number], (key, "NotIn", value), *exact[number + 1 :]]
        assert _lacks({"instanceTypes": [instance_type]}, pools=[_pool("p", *other)])


@pytest.mark.parametrize(
    ("taint", "runner", "tolerated"),
    [
        pytest.param(TEAM, {}, False, id="nothing tolerates it"),
        pytest.param(Taint(NEURON, "true", "NoSchedule"), {}, True, id="the usual one of such nodes"),
        pytest.param(Taint(NEURON, "", "NoExecute"), {}, False, id="the usual one with another effect"),
        pytest.param(TEAM, {"tolerations": [{"key": "team", "operator": "Exists"}]}, True, id="by its key"),
        pytest.param(TEAM, {"tolerations": [{"operator": "Exists"}]}, True, id="as all taints are"),
        pytest.param(TEAM, {"tolerations": [{"key": "team", "value": "ml"}]}, True, id="by its value"),
        pytest.param(
            TEAM, {"tolerations": [{"key": "team", "operator": "Equal", "value": "web"}]}, False, id="another value"
        ),
        pytest.param(TEAM, {"tolerations": [{"key": "team"}]}, False, id="no value"),
        pytest.param(
            Taint("team", "", "NoSchedule"), {"tolerations": [{"key": "team"}]}, True, id="both without a value"
        ),
        pytest.param(
            TEAM,
            {"tolerations": [{"key": "team", "operator": "Exists", "effect": "NoSchedule"}]},
            True,
            id="its effect",
        ),
        pytest.param(
            TEAM,
            {"tolerations": [{"key": "team", "operator": "Exists", "effect": "NoExecute"}]},
            False,
            id="another effect",
        ),
        pytest.param(TEAM, {"tolerations": [{"key": "group", "operator": "Exists"}]}, False, id="another key"),
        pytest.param(
            Taint("age", "7", "NoSchedule"),
            {"tolerations": [{"key": "age", "operator": "Lt", "value": "5"}]},
            True,
            id="an operator that can't be judged",
        ),
        pytest.param(TEAM, {"queueName": "ml"}, True, id="a queue may add a toleration"),
        pytest.param(Taint("node.kubernetes.io/not-ready", "", "NoExecute"), {}, True, id="a node that is not ready"),
        pytest.param(
            Taint("node.cilium.io/agent-not-ready", "true", "NoExecute"), {}, True, id="a network that is not"
        ),
        pytest.param(Taint("karpenter.sh/disrupted", "", "NoSchedule"), {}, True, id="a node that Karpenter replaces"),
        pytest.param(
            Taint("ToBeDeletedByClusterAutoscaler", "1", "NoSchedule"), {}, True, id="a node that is scaled down"
        ),
    ],
)
def test_taints(taint: Taint, runner: Mapping[str, Any], tolerated: bool) -> None:  # noqa: FBT001 - a column
    """By the operator's own tolerations, or the user's, alike on nodes and in NodePools; some go by themselves."""
    assert (_lacks(INF2, _nodes("inf2.xlarge", taint), pools=[], runner=runner) is None) == tolerated
    assert (_lacks(INF2, pools=[_pool("p", taints=(taint,))], runner=runner) is None) == tolerated


FAMILY = "karpenter.k8s.aws/instance-family"
SIZE = "karpenter.k8s.aws/instance-size"


@pytest.mark.parametrize(
    ("selector", "nodes", "pools", "sentence"),
    [
        pytest.param({"team": "ml"}, [_nodes()], [], "", id="a label of one's own on nodes can't be judged"),
        pytest.param({FAMILY: "inf2"}, [_nodes(labels={FAMILY: "inf2"})], [], "", id="a node of Karpenter"),
        pytest.param(
            {FAMILY: "inf2"},
            [_nodes()],
            [],
            f"Nodes of inf2.xlarge are there, but none has what runner.nodeSelector wants ({FAMILY}: inf2); correct "
            "it.",
            id="a node that is none of Karpenter's",
        ),
        pytest.param({"team": "ml"}, [], [_pool("p", ("team", "In", "ml web"))], "", id="a label of a NodePool"),
        pytest.param({"team": "ml"}, [], [_pool("p", ("team", "Exists", ""))], "", id="any value of a label"),
        pytest.param(
            {"team": "ml"},
            [],
            [_pool("p", ("team", "In", "web"))],
            "NodePool p allows inf2.xlarge, but its nodes have no label team: ml, which runner.nodeSelector wants; add "
            "it to the NodePool, or remove it from runner.nodeSelector.",
            id="another value of a label",
        ),
        pytest.param(
            {"team": "ml"},
            [],
            [_pool("p")],
            "NodePool p allows inf2.xlarge, but its nodes have no label team: ml, which runner.nodeSelector wants; add "
            "it to the NodePool, or remove it from runner.nodeSelector.",
            id="a label of one's own that a NodePool lacks",
        ),
        pytest.param({"topology.kubernetes.io/zone": "a"}, [], [_pool("p")], "", id="a label that Karpenter may know"),
        pytest.param(
            {"karpenter.sh/nodepool": "p"},
            [],
            [_pool("p", ("karpenter.sh/nodepool", "In", "p"))],
            "",
            id="a pool's name",
        ),
        pytest.param(
            {SIZE: "8xlarge"},
            [],
            [_pool("p")],
            f"NodePool p allows inf2.xlarge, but its nodes have no label {SIZE}: 8xlarge, which runner.nodeSelector "
            "wants; add it to the NodePool, or remove it from runner.nodeSelector.",
            id="a part of another type",
        ),
    ],
)
def test_node_selectors(selector: Mapping[str, str], nodes: list[Nodes], pools: list[NodePool], sentence: str) -> None:
    """What the user asks for besides is held against nodes and NodePools, as far as they can be judged."""
    assert _said(INF2, *nodes, pools=pools, runner={"nodeSelector": selector}) == sentence


def test_an_affinity_of_the_users_own_changes_nothing() -> None:
    """It only narrows where the pod may run."""
    runner = {"affinity": {"podAffinity": {}}}
    assert _said(INF2, _nodes("inf2.8xlarge"), pools=[], runner=runner) == _said(INF2, _nodes("inf2.8xlarge"), pools=[])
    assert _said(INF2, _nodes("inf2.xlarge", devices={NEURON: 1}), pools=[], runner=runner) == ""


def test_a_selector_may_name_the_instance_type() -> None:
    """As if the accelerator did."""
    runner = {"nodeSelector": {TYPE: "g5.xlarge"}}
    assert _said(ANY_GPU, _nodes("g6.xlarge", devices={NVIDIA: 1}), pools=[], runner=runner).startswith(
        "No node and no Karpenter NodePool offers g5.xlarge;"
    )
    assert _said(ANY_GPU, _nodes("g5.xlarge", devices={NVIDIA: 1}), pools=[], runner=runner) == ""


def test_claims_take_the_place_of_the_resource() -> None:
    """What a driver hands out is in no node's resources; the instance type is asked for all the same."""
    runner = {"resourceClaims": [{"name": "chips", "resourceClaimTemplateName": "chips"}]}
    accelerator = {"instanceTypes": ["trn2.48xlarge"]}
    assert _said(accelerator, _nodes("trn2.48xlarge", devices={}), pools=[], runner=runner) == ""
    assert _said(accelerator, pools=[], runner=runner).startswith("No node and no Karpenter NodePool offers trn2.48")
    assert _said({"kind": "Neuron"}, pools=[], runner=runner) == ""


def test_there_is_a_shorter_form() -> None:
    """The fact without the way out."""
    found = _lacks(INF2, pools=[])
    assert found
    assert found.short == "No node and no Karpenter NodePool offers inf2.xlarge."


_ANY_NODES = st.builds(
    _nodes,
    st.sampled_from(["inf2.xlarge", "m5.large"]),
    devices=st.sampled_from([{}, {NEURON: 0}, {NEURON: 1}]),
    cordoned=st.booleans(),
)
_ANY_POOL = st.builds(
    _pool,
    st.just("p"),
    st.tuples(
        st.sampled_from([TYPE, FAMILY, "team"]),
        st.sampled_from(["In", "NotIn"]),
        st.sampled_from(["inf2.xlarge", "inf2", "m5"]),
    ),
    taints=st.sampled_from([(), (TEAM,)]),
)


def test_types_of_the_operators_own_table_are_known() -> None:
    """To a NodePool that may bring one; by an architecture that is not given none is ruled out."""
    pool, table = (
        [_pool("p", (TYPE, "In", "g6x.large"), (ARCH, "In", "arm64"))],
        b"g6x.large: {kind: NVIDIA, devices: 1",
    )
    assert _said(ANY_GPU, pools=pool)
    assert _said(ANY_GPU, pools=pool, table=table + b"}") == ""
    assert _said(ANY_GPU, pools=pool, table=table + b", architecture: amd64}")


@given(st.lists(_ANY_NODES, max_size=3), st.lists(_ANY_POOL, max_size=3))
def test_one_that_will_do_is_enough(nodes: list[Nodes], pools: list[NodePool]) -> None:
    """Whatever else there is; and nothing is said that depends on the order in which it is listed."""
    said = _said(INF2, *nodes, pools=pools)
    assert _said(INF2, *reversed(nodes), pools=pools) == said
    assert _said(INF2, *nodes, _nodes(), pools=pools) == ""
    assert _said(INF2, *nodes, pools=[*pools, _pool("q", (TYPE, "In", "inf2.xlarge"))]) == ""
