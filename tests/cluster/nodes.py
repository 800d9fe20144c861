"""Nodes as data: what an EC2 instance type, or a plain CPU machine, looks like to the scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cluster.states import now, timestamp
from inferbench_operator.models.instances import packaged_catalogue

LEASE_NAMESPACE: Final = "kube-node-lease"
LEASE_SECONDS: Final = 40
_KUBELET_VERSION = "v1.36.3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node that the agent brings to the cluster."""

    name: str
    local: bool
    """Whether pods run as processes of this machine; otherwise they play a script."""
    cpu: str = "4"
    memory: str = "16Gi"
    architecture: str = "amd64"
    instance_type: str = "inferbench.cpu"
    zone: str = "us-east-1a"
    devices: Mapping[str, int] = field(default_factory=dict)
    """Extended resources, such as {"aws.amazon.com/neuron": 1}; each is also the key of a NoSchedule taint."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """More labels, or other values for the usual ones."""


def cpu_node(name: str, *, local: bool = True, cpu: str = "4", memory: str = "16Gi") -> Node:
    """A node without accelerators."""
    return Node(name=name, local=local, cpu=cpu, memory=memory)


def instance_node(name: str, instance_type: str, *, local: bool = False) -> Node:
    """A node of an instance type from the catalogue; KeyError when it is not in there."""
    instance = packaged_catalogue().types[instance_type]
    return Node(
        name=name,
        local=local,
        cpu=instance.allocatable_cpu or str(instance.vcpus or 4),
        memory=instance.allocatable_memory or f"{instance.memory_gib or 16}Gi",
        architecture=instance.architecture or "amd64",
        instance_type=instance_type,
        devices={instance.resource: instance.devices} if instance.resource else {},
    )


def node_manifest(node: Node, port: int) -> dict[str, Any]:
    """The Node object, with its status; `port` is where the agent serves logs."""
    resources = {"cpu": node.cpu, "memory": node.memory, "pods": "110", "ephemeral-storage": "100Gi"}
    resources |= {name: str(count) for name, count in node.devices.items()}
    labels = {
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/arch": node.architecture,
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": node.instance_type,
        "topology.kubernetes.io/region": node.zone.rstrip("abcdef"),
        "topology.kubernetes.io/zone": node.zone,
        "karpenter.sh/capacity-type": "on-demand",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": labels | dict(node.labels)},
        "spec": {"taints": [{"key": name, "effect": "NoSchedule"} for name in node.devices]},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": _conditions(),
            "addresses": [
                {"type": "InternalIP", "address": "127.0.0.1"},
                {"type": "Hostname", "address": node.name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "nodeInfo": _node_info(node),
        },
    }


def lease_manifest(node: str, node_uid: str) -> dict[str, Any]:
    """The node's sign of life; it goes with the node."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": node, "namespace": LEASE_NAMESPACE, "ownerReferences": [owner]},
        "spec": {"holderIdentity": node, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": renew_time()},
    }


def renew_time() -> str:
    """The present time in a Lease's own format, with microseconds."""
    return now().strftime("%Y-%m-%dT%H:%M:%S.000000Z")


def _conditions() -> list[dict[str, str]]:
    healthy = {
        "MemoryPressure": ("False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        "Ready": ("True", "KubeletReady", "kubelet is posting ready status"),
    }
    time = timestamp(now())
    return [
        {
            "type": kind,
            "status": value,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": time,
            "lastTransitionTime": time,
        }
        for kind, (value, reason, message) in healthy.items()
    ]


def _node_info(node: Node) -> dict[str, str]:
    return {
        "architecture": node.architecture,
        "operatingSystem": "linux",
        "osImage": "Inferbench node agent",
        "kernelVersion": "6.12.0",
        "containerRuntimeVersion": "containerd://2.1.0",
        "kubeletVersion": _KUBELET_VERSION,
        "kubeProxyVersion": "",
        "machineID": node.name,
        "systemUUID": node.name,
        "bootID": node.name,
    }
