"""A second tier of the embedded cluster: one real node, with kubelet, kube-proxy, containerd and runc, without Docker.

Use (as root, on Linux):

    with RealNode(manifests=CRDS) as node:
        node.control_plane.kubectl("get", "nodes")       # all that a ControlPlane does
        node.load_images(images, folder)                 # there is no registry
        node.kill_part("kubelet"); node.start_part("kubelet")        # faults; also "containerd", "kube-proxy"
        node.reboot()                                    # all pods lose their containers
"""

from cluster.real.machine import CleanupError, NodeUnavailableError
from cluster.real.node import RealNode, check_node
from cluster.real.packages import PackagesError

__all__ = ["CleanupError", "NodeUnavailableError", "PackagesError", "RealNode", "check_node"]
