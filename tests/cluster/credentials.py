"""Who may talk to the API server: static tokens for the cluster's own parts, and kubeconfig files."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Tokens:
    """The bearer tokens that the API server knows from its start."""

    admin: str = field(default_factory=secrets.token_hex)
    controller_manager: str = field(default_factory=secrets.token_hex)
    scheduler: str = field(default_factory=secrets.token_hex)
    node_agent: str = field(default_factory=secrets.token_hex)
    kubelet: str = field(default_factory=secrets.token_hex)
    kube_proxy: str = field(default_factory=secrets.token_hex)

    def csv(self, node: str = "") -> str:
        """Content of the API server's `--token-auth-file`: token, user, uid, groups; `node` is a real node's name."""
        rows = [
            (self.admin, "inferbench-admin", "system:masters"),
            (self.controller_manager, "system:kube-controller-manager", ""),
            (self.scheduler, "system:kube-scheduler", ""),
            (self.node_agent, NODE_AGENT_USER, ""),
        ]
        if node:
            rows += [
                (self.kubelet, f"system:node:{node}", "system:nodes"),
                (self.kube_proxy, "system:kube-proxy", ""),
            ]
        return "".join(f"{token},{user},{user},{groups}\n" for token, user, groups in rows)


NODE_AGENT_USER = "inferbench-node-agent"


def write_kubeconfig(path: Path, server: str, authority: Path, token: str, namespace: str = "default") -> Path:
    """Write a kubeconfig file with one context, for the bearer of `token`; return its path."""
    path.touch(mode=0o600)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "inferbench", "cluster": {"server": server, "certificate-authority": str(authority)}}],
        "users": [{"name": "inferbench", "user": {"token": token}}],
        "contexts": [
            {"name": "inferbench", "context": {"cluster": "inferbench", "user": "inferbench", "namespace": namespace}}
        ],
        "current-context": "inferbench",
    }
    path.write_text(json.dumps(config, indent=2), encoding="utf-8")  # JSON is YAML
    return path
