"""Says at once what the scheduler would find out by waiting: that no node offers what an accelerator asks for.

Only what is certain is said. Whatever can't be judged fits: a requirement on a key that is not known here, a custom
label of a node, a taint that goes by itself, devices that other pods have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from inferbench_operator.core import jobs
from inferbench_operator.core.facts import NodePool, Nodes, Requirement, Supply, Taint
from inferbench_operator.core.names import LABEL_ARCHITECTURE, LABEL_INSTANCE_TYPE
from inferbench_operator.core.placement import Placement
from inferbench_operator.models.benchmark import Runner
from inferbench_operator.models.instances import Catalogue

Labels = Mapping[str, str]

NODE_POOL_LABEL: Final = "karpenter.sh/nodepool"
"""Label that Karpenter gives to the nodes of a NodePool: its name."""
_PARTS: Final = ("category", "family", "generation", "size")
_OF_PARTS: Final = ("karpenter.k8s.aws/instance-", "eks.amazonaws.com/instance-")
"""What keys begin with, in Karpenter and in EKS Auto Mode, that stand for a part of the instance type's name."""
LABELS: Final = frozenset(
    {
        NODE_POOL_LABEL,
        LABEL_INSTANCE_TYPE,
        LABEL_ARCHITECTURE,
        *(begin + part for begin in _OF_PARTS for part in _PARTS),
    }
)
"""Labels by which nodes are judged."""
DEVICES: Final = ("aws.amazon.com/", "nvidia.com/")
"""What the names of the device plugins' resources begin with."""
REPELLING: Final = frozenset({"NoSchedule", "NoExecute"})
"""Effects of taints that keep pods away."""

# Taints of nodes that come or go, or are in trouble: no toleration is the way out.
_PASSING: Final = re.compile(
    r"(node|node\.cloudprovider)\.kubernetes\.io/|karpenter\.sh/|ToBeDeletedByClusterAutoscaler$|.*not-ready$"
)
# As Karpenter reads the name of a family: g of generation 4 in g4dn.
_FAMILY: Final = re.compile(r"([a-z]+)(?:-[0-9]+tb)?([0-9]+)")
_MOST_NAMED: Final = 4


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why no node takes a pod, as far as that is certain."""

    fact: str
    """Without its full stop."""
    remedy: str

    @property
    def short(self) -> str:
        """The fact alone, for where there is no room for more."""
        return f"{self.fact}."

    def __str__(self) -> str:
        """Return the whole sentence."""
        return f"{self.fact}; {self.remedy}"


def shortage(placement: Placement, runner: Runner, supply: Supply, catalogue: Catalogue) -> Shortage | None:
    """Return why no node and no NodePool takes pods of an accelerator with these settings; None where one may."""
    pod = _Pod(placement, runner, catalogue)
    if not pod.types and not pod.resource:
        return None
    there = [nodes for nodes in supply.nodes if pod.is_meant(nodes)]
    on_nodes = _on_nodes(pod, there) if there else None
    if there and not on_nodes:
        return None
    pools, candidates = supply.node_pools or (), pod.candidates
    allowing = [(pool, types) for pool in pools if (types := _meeting(pool.requirements, candidates))]
    in_pools = [_in_pool(pod, pool, types) for pool, types in allowing]
    if None in in_pools:
        return None
    return on_nodes or next(iter(in_pools), None) or _nothing(pod, has_pools=supply.node_pools is not None)


class _Pod:
    """What pods of an accelerator ask of their nodes."""

    def __init__(self, placement: Placement, runner: Runner, catalogue: Catalogue) -> None:
        """Put together what the operator asks for, and what the user."""
        self.kind = placement.kind
        self.resource = placement.resource
        self.devices = placement.devices
        self.selector: Labels = runner.node_selector
        chosen = self.selector.get(LABEL_INSTANCE_TYPE)
        self.types = (chosen,) if chosen else placement.instance_types
        self.goods = _either(self.types) if self.types else str(placement.resource)
        self._catalogue = catalogue
        self._tolerations = [*jobs.tolerations(placement), *runner.tolerations]
        # A queue may add tolerations when it admits the Job.
        self._tolerates_all = bool(runner.queue_name)

    @property
    def candidates(self) -> list[Labels]:
        """Labels of the instance types that a NodePool may bring it."""
        if self.types:
            return [_labels(name, self._catalogue) for name in self.types]
        of_kind = [instance for instance in self._catalogue.types.values() if instance.kind is self.kind]
        return [
            _labels(instance.name, self._catalogue)
            for instance in of_kind
            if instance.resource != self.resource or instance.devices >= self.devices
        ]

    def is_meant(self, nodes: Nodes) -> bool:
        """Whether these are nodes of the instance types or, where none is named, with such devices."""
        return dict(nodes.labels).get(LABEL_INSTANCE_TYPE) in self.types if self.types else self.amount(nodes) > 0

    def amount(self, nodes: Nodes) -> int:
        """How many of its devices each of these nodes offers."""
        return dict(nodes.devices).get(self.resource or "", 0)

    def repelled(self, taints: Iterable[Taint]) -> list[Taint]:
        """Return the taints that it does not tolerate, without those that go by themselves."""
        return [
            taint
            for taint in taints
            if not self._tolerates_all
            and not _PASSING.match(taint.key)
            and not any(_tolerates(toleration, taint) for toleration in self._tolerations)
        ]


def _on_nodes(pod: _Pod, there: Sequence[Nodes]) -> Shortage | None:
    """Return what is wrong with all of the nodes that are meant."""
    start = f"Nodes {'of' if pod.types else 'with'} {pod.goods} are there, but"
    wanted = {key: value for key, value in pod.selector.items() if key in LABELS}
    fitting = [nodes for nodes in there if wanted.items() <= dict(nodes.labels).items()]
    if not fitting:
        labels = ", ".join(f"{key}: {value}" for key, value in sorted(wanted.items()))
        return Shortage(f"{start} none has what runner.nodeSelector wants ({labels})", "correct it.")
    if pod.resource and not any(pod.amount(nodes) for nodes in fitting):
        return Shortage(f"{start} none offers {pod.resource}", f"is the {pod.kind} device plugin running?")
    fitting = [nodes for nodes in fitting if pod.amount(nodes) >= pod.devices]
    if not fitting:
        return Shortage(
            f"{start} none offers the {pod.devices} {pod.resource} that a pod asks for",
            "ask for fewer devices, or see whether all of them are healthy.",
        )
    fitting = [nodes for nodes in fitting if not nodes.cordoned]
    if not fitting:
        return Shortage(f"{start} those that would do are cordoned", "uncordon one.")
    repelled = [pod.repelled(nodes.taints) for nodes in fitting]
    if not all(repelled):
        return None
    return Shortage(
        f"{start} those that would do have a taint that the pod doesn't tolerate, such as "
        f"{min(str(taint) for taints in repelled for taint in taints)}",
        "add it to runner.tolerations.",
    )


def _in_pool(pod: _Pod, pool: NodePool, types: Sequence[Labels]) -> Shortage | None:
    """Return what keeps the pod from a NodePool that may bring these instance types."""
    start = f"NodePool {pool.name} allows {pod.goods}, but"
    for key, value in sorted(pod.selector.items()):
        if not _has_label(pool, types, key, value):
            return Shortage(
                f"{start} its nodes have no label {key}: {value}, which runner.nodeSelector wants",
                "add it to the NodePool, or remove it from runner.nodeSelector.",
            )
    repelled = [str(taint) for taint in pod.repelled(pool.taints)]
    if not repelled:
        return None
    taints = f"the taint {repelled[0]}" if len(repelled) == 1 else f"the taints {' and '.join(repelled)}"
    them = "it" if len(repelled) == 1 else "them"
    return Shortage(f"{start} has {taints} that the pod doesn't tolerate", f"add {them} to runner.tolerations.")


def _has_label(pool: NodePool, types: Sequence[Labels], key: str, value: str) -> bool:
    """Whether nodes of the pool may have this label."""
    if any(key in labels for labels in types):
        return any(labels.get(key, value) == value for labels in types)
    about = [requirement for requirement in pool.requirements if requirement.key == key]
    # Karpenter brings no node for a label that it doesn't know of; those that it knows by itself have a domain.
    return all(_meets(value, requirement) for requirement in about) and (bool(about) or "/" in key)


def _nothing(pod: _Pod, *, has_pools: bool) -> Shortage:
    """Say that there are neither nodes nor a NodePool that may bring one."""
    if not has_pools:
        fact = f"No node offers {pod.goods}, unless a node group that is scaled to zero has it"
        return Shortage(fact, "if none does, add one" + (", or name another instance type." if pod.types else "."))
    if pod.types:
        return Shortage(
            f"No node and no Karpenter NodePool offers {pod.goods}",
            "add a node group or a NodePool for it, or name another instance type.",
        )
    it = "it" if pod.devices == 1 else f"{pod.devices} of it"
    return Shortage(
        f"No node offers {pod.goods}, and no Karpenter NodePool allows an instance type that is known to have {it}",
        "add a node group or a NodePool, or see whether the device plugin runs on the nodes that are there.",
    )


def _labels(name: str, catalogue: Catalogue) -> Labels:
    """Return what nodes of an instance type have of the labels, as far as its name and the catalogue tell."""
    family, _, size = name.partition(".")
    found = _FAMILY.match(family)
    parts = {"category": found[1], "family": family, "generation": found[2], "size": size} if found and size else {}
    known = catalogue.types.get(name)
    architecture = {LABEL_ARCHITECTURE: known.architecture} if known and known.architecture else {}
    return (
        {LABEL_INSTANCE_TYPE: name}
        | architecture
        | {begin + part: parts[part] for begin in _OF_PARTS for part in parts}
    )


def _meeting(requirements: Sequence[Requirement], candidates: Sequence[Labels]) -> list[Labels]:
    """Return the candidates of which no label is against the requirements."""
    return [labels for labels in candidates if all(_meets(labels.get(one.key), one) for one in requirements)]


def _meets(value: str | None, requirement: Requirement) -> bool:
    """Whether a label, whose value may be unknown, meets a requirement."""
    if value is None:
        return True
    match requirement.operator:
        case "In" | "NotIn":
            return (value in requirement.values) is (requirement.operator == "In")
        case "Gt" | "Lt":
            than = "".join(requirement.values)
            if not (value.isdecimal() and than.isdecimal()):
                return True
            return int(value) > int(than) if requirement.operator == "Gt" else int(value) < int(than)
        case operator:
            # Of the others, Exists is met, and what later versions add can't be judged.
            return operator != "DoesNotExist"


def _tolerates(toleration: Mapping[str, Any], taint: Taint) -> bool:
    if any(toleration.get(part) not in (None, "", own) for part, own in (("key", taint.key), ("effect", taint.effect))):
        return False
    # Of other operators than Equal, Exists needs no value, and later ones can't be judged.
    return toleration.get("operator", "Equal") != "Equal" or (toleration.get("value") or "") == taint.value


def _either(names: Sequence[str]) -> str:
    """List names, not more than there is room for."""
    more = len(names) - _MOST_NAMED
    shown = [*names[:_MOST_NAMED], f"{more} others"] if more > 1 else list(names)
    return " or ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
