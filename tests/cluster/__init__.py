"""A real Kubernetes control plane without containers, and a node agent that plays the kubelet, for tests and the demo.

Use:

    with ControlPlane(manifests=[crd_file]) as control_plane, NodeAgent(control_plane) as agent:
        control_plane.kubectl("get", "nodes")            # as administrator; KubectlError holds what went wrong
        control_plane.kubeconfig                         # path, administrator
        control_plane.kubeconfig_for("ns/account")       # path, a service account's rights
        control_plane.create_namespace("team-a")         # waits for its default service account
        control_plane.restart("kube-apiserver")          # faults; also stop_component(), start_component(), log()
        agent.add_node(cpu_node("here"))                 # pods run as processes of this machine
        agent.add_node(instance_node("inf", "inf2.xlarge"))      # pods succeed with plausible figures, unless ...
        agent.script(lambda pod: oom_killed() if "large" in pod.name else None)     # ... a script says otherwise
        agent.kill_container("team-a", "pod-name")       # faults of nodes; also evict(), remove_node()
"""

from cluster.controlplane import ControlPlane
from cluster.errors import ClusterError, KubectlError
from cluster.local import LocalSettings
from cluster.node_agent import NodeAgent
from cluster.nodes import Node, cpu_node, instance_node
from cluster.outcomes import (
    FOREVER,
    Exits,
    Interrupted,
    Outcome,
    Script,
    Stuck,
    create_container_failure,
    eviction,
    for_labels,
    image_pull_failure,
    in_turn,
    killed,
    measured,
    measured_report,
    never_starts,
    oom_killed,
    plan_of,
    report_message,
)
from cluster.pods import Pod

__all__ = [
    "FOREVER",
    "ClusterError",
    "ControlPlane",
    "Exits",
    "Interrupted",
    "KubectlError",
    "LocalSettings",
    "Node",
    "NodeAgent",
    "Outcome",
    "Pod",
    "Script",
    "Stuck",
    "cpu_node",
    "create_container_failure",
    "eviction",
    "for_labels",
    "image_pull_failure",
    "in_turn",
    "instance_node",
    "killed",
    "measured",
    "measured_report",
    "never_starts",
    "oom_killed",
    "plan_of",
    "report_message",
]
