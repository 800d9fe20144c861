"""A real node for the embedded control plane: a kubelet, a container runtime and device plugins."""
