"""The four programs of the control plane as data: how each is started and how one sees that it is ready."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cluster.certificates import Certificates, write_certificates
from cluster.credentials import Tokens, write_kubeconfig
from cluster.ports import free_ports

ETCD: Final = "etcd"
API_SERVER: Final = "kube-apiserver"
CONTROLLER_MANAGER: Final = "kube-controller-manager"
SCHEDULER: Final = "kube-scheduler"

LOOPBACK: Final = "127.0.0.1"
SERVICE_ADDRESS: Final = "10.96.0.1"
"""At which pods of a real node find the API server: the first address of the services."""

# What makes no sense without a cloud; all other controllers run.
_NO_CLOUD = "*,-node-ipam-controller,-node-route-controller,-cloud-node-lifecycle-controller"
# The defaults are meant to protect large clusters; here they would only slow the tests down.
_CLIENT_SPEED = ("--kube-api-qps=500", "--kube-api-burst=1000")
# What the operator asks for, each request once, when it is answered; nobody else's requests are of interest.
_AUDIT_POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted", "Panic"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts:inferbench-system"]}, {"level": "None"}],
}


@dataclass(frozen=True, slots=True)
class RealNodeOptions:
    """What the control plane has to know of a real node, whose pods can't reach the loopback address."""

    name: str
    address: str
    """Of this machine; the API server listens there and nowhere else."""


@dataclass(frozen=True, slots=True)
class Component:
    """One program of the control plane."""

    name: str
    arguments: tuple[str, ...]
    port: int
    ready_path: str
    address: str = LOOPBACK
    needs_client_certificate: bool = False
    """Whether the readiness check has to show the client's certificate."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are: the folder of one control plane, its ports and its keys."""

    folder: Path
    certificates: Certificates
    tokens: Tokens
    etcd_port: int
    etcd_peer_port: int
    api_port: int
    controller_port: int
    scheduler_port: int
    node: RealNodeOptions | None = field(default=None, kw_only=True)

    @classmethod
    def create(cls, folder: Path, node: RealNodeOptions | None = None) -> Layout:
        """Choose free ports, new keys and new tokens."""
        addresses = (node.address, SERVICE_ADDRESS) if node else ()
        return cls(folder, write_certificates(folder, addresses), Tokens(), *free_ports(5), node=node)

    @property
    def api_address(self) -> str:
        """Address of the API server."""
        return self.node.address if self.node else LOOPBACK

    @property
    def server(self) -> str:
        """URL of the API server."""
        return f"https://{self.api_address}:{self.api_port}"

    @property
    def audit_log(self) -> Path:
        """File in which the API server writes down, as a line of JSON, each request of the operator that it answers."""
        return self.folder / "audit.log"


def components(layout: Layout) -> tuple[Component, ...]:
    """All components, in the order in which they have to be started."""
    return (_etcd(layout), _api_server(layout), _controller_manager(layout), _scheduler(layout))


def _etcd(layout: Layout) -> Component:
    files = layout.certificates
    url, peer = f"https://127.0.0.1:{layout.etcd_port}", f"http://127.0.0.1:{layout.etcd_peer_port}"
    arguments = (
        f"--data-dir={layout.folder / 'etcd'}",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        # Without a client's certificate, any user of this machine could write to it, and so start pods as us.
        "--client-cert-auth",
        f"--trusted-ca-file={files.authority}",
        f"--cert-file={files.server}",
        f"--key-file={files.server_key}",
        "--unsafe-no-fsync",  # the data is thrown away in the end
        "--log-level=warn",
    )
    return Component(ETCD, arguments, layout.etcd_port, "/health", needs_client_certificate=True)


def _api_server(layout: Layout) -> Component:
    files = layout.certificates
    tokens = layout.folder / "tokens.csv"
    tokens.touch(mode=0o600)
    tokens.write_text(layout.tokens.csv(layout.node.name if layout.node else ""), encoding="utf-8")
    policy = layout.folder / "audit-policy.json"
    policy.write_text(json.dumps(_AUDIT_POLICY), encoding="utf-8")
    # An Endpoints object may not name a loopback address, and there no pod uses the service "kubernetes".
    for_node = (
        ("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged")
        if layout.node
        else ("--authorization-mode=RBAC", "--endpoint-reconciler-type=none")
    )
    arguments = (
        f"--etcd-servers=https://127.0.0.1:{layout.etcd_port}",
        f"--etcd-cafile={files.authority}",
        f"--etcd-certfile={files.client}",
        f"--etcd-keyfile={files.client_key}",
        f"--bind-address={layout.api_address}",
        f"--advertise-address={layout.api_address}",
        f"--secure-port={layout.api_port}",
        f"--tls-cert-file={files.server}",
        f"--tls-private-key-file={files.server_key}",
        f"--token-auth-file={tokens}",
        *for_node,
        f"--audit-policy-file={policy}",
        f"--audit-log-path={layout.audit_log}",
        f"--service-account-issuer={layout.server}",
        f"--service-account-key-file={files.token_key}",
        f"--service-account-signing-key-file={files.token_key}",
        "--service-cluster-ip-range=10.96.0.0/16",
        # For pods/log, answered by the node agent or a real kubelet.
        f"--kubelet-certificate-authority={files.authority}",
        f"--kubelet-client-certificate={files.client}",
        f"--kubelet-client-key={files.client_key}",
        "--kubelet-preferred-address-types=InternalIP",
        "--profiling=false",
    )
    return Component(API_SERVER, arguments, layout.api_port, "/readyz", layout.api_address)


def _controller_manager(layout: Layout) -> Component:
    files = layout.certificates
    arguments = (
        *_client_flags(layout, CONTROLLER_MANAGER, layout.tokens.controller_manager, layout.controller_port),
        f"--controllers={_NO_CLOUD}",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={files.token_key}",
        f"--root-ca-file={files.authority}",
        "--concurrent-job-syncs=10",
    )
    return Component(CONTROLLER_MANAGER, arguments, layout.controller_port, "/healthz")


def _scheduler(layout: Layout) -> Component:
    arguments = _client_flags(layout, SCHEDULER, layout.tokens.scheduler, layout.scheduler_port)
    return Component(SCHEDULER, arguments, layout.scheduler_port, "/healthz")


def _client_flags(layout: Layout, name: str, token: str, port: int) -> tuple[str, ...]:
    files = layout.certificates
    kubeconfig = write_kubeconfig(layout.folder / f"{name}.kubeconfig", layout.server, files.authority, token)
    return (
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={files.server}",
        f"--tls-private-key-file={files.server_key}",
        "--leader-elect=false",
        "--profiling=false",
        *_CLIENT_SPEED,
    )
