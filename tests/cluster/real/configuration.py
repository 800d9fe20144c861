"""The settings files of containerd, the CNI plugins, the kubelet and kube-proxy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from cluster.components import Layout, RealNodeOptions
from cluster.real.cleanup import BRIDGE, CGROUP, CONTAINERD_SOCKET, DATA, NETWORK, RUN
from cluster.real.packages import Programs

POD_SUBNET: Final = "198.19.0.0/24"
PAUSE_IMAGE: Final = "inferbench.test/pause:1"
CNI_CONFIG: Final = RUN / "cni"


def containerd(programs: Programs) -> str:
    """Return containerd's settings: overlayfs, runc, and nothing outside of the node's own folders."""
    # Some of these log errors where their file system is missing, some write to /opt.
    unused = [f"io.containerd.snapshotter.v1.{name}" for name in ("aufs", "btrfs", "devmapper", "native", "zfs")]
    unused += ["io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp"]
    return f"""
version = 2
root = "{DATA}/containerd"
state = "{RUN}/containerd"
oom_score = 0
disabled_plugins = {json.dumps(unused)}
[grpc]
address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
# Without it, no sandbox starts where the machine's own root lacks CAP_SYS_RESOURCE.
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
sandbox_image = "{PAUSE_IMAGE}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
BinaryName = "{programs.runc}"
Root = "{RUN}/runc"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{programs.cni}"
conf_dir = "{CNI_CONFIG}"
"""


def cni() -> str:
    """Return the pods' network: a bridge, and no way out of the machine."""
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": POD_SUBNET}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": str(RUN / "addresses"),
    }
    bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "hairpinMode": True, "ipam": ipam}
    return json.dumps({"cniVersion": "0.4.0", "name": NETWORK, "plugins": [bridge]})


def kubelet(layout: Layout, node: RealNodeOptions, *, port: int, health_port: int) -> str:
    """Return the kubelet's settings."""
    files = layout.certificates
    settings: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "port": port,
        "healthzPort": health_port,
        "tlsCertFile": str(files.server),
        "tlsPrivateKeyFile": str(files.server_key),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(files.authority)},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupRoot": f"/{CGROUP}",
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "oomScoreAdj": 0,
        # The machine's disk and memory belong to others.
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "podLogsDir": str(DATA / "logs"),
        "volumePluginDir": str(DATA / "volume-plugins"),
        "maxPods": 50,
        # By default it tells of its devices only every ten seconds, and looks at the size of volumes once in a minute.
        "nodeStatusUpdateFrequency": "1s",
        "volumeStatsAggPeriod": "5s",
        # Nobody answers there, and at once: pods have no network outside, and no services to look up.
        "clusterDNS": [node.address],
        "clusterDomain": "cluster.local",
        "resolvConf": "",
    }
    return json.dumps(settings, indent=2)


def kube_proxy(node: RealNodeOptions, kubeconfig: Path, *, health_port: int, metrics_port: int) -> str:
    """Return kube-proxy's settings."""
    settings = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": node.name,
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "clusterCIDR": POD_SUBNET,
        "conntrack": {"maxPerCore": 0, "min": 0},
        "healthzBindAddress": f"127.0.0.1:{health_port}",
        "metricsBindAddress": f"127.0.0.1:{metrics_port}",
    }
    return json.dumps(settings, indent=2)
