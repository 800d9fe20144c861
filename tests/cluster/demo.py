"""`make demo`: the quick start from nothing to p95, on an embedded cluster or on the current one of your kubeconfig.

The embedded cluster has the node agent, which runs pods as processes of this machine, or a real node.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any, Final

import yaml

from cluster.controlplane import ControlPlane
from cluster.errors import ClusterError
from cluster.kubectl import find_kubectl, run_kubectl
from cluster.node_agent import NodeAgent
from cluster.nodes import cpu_node
from cluster.operator_process import CRDS, REPOSITORY, ROLES, SERVICE_ACCOUNT, OperatorProcess
from cluster.real.provisioning import RUNNER, operated_node, operator_log, operator_metrics_path

Kubectl = Callable[..., str]

QUICKSTART: Final = REPOSITORY / "crds" / "examples" / "quickstart.yaml"
NAME: Final = "quickstart"
# A kubectl takes a good part of a core for a moment, and the runner wants all of them.
_LOOK_SECONDS: Final = 2.0
_LONGEST_SECONDS: Final = 900.0


@dataclass(frozen=True, slots=True)
class Stage:
    """A cluster on which the operator runs."""

    kubectl: Kubectl
    namespace: str
    metrics: Callable[[], str]
    """Gives what the operator exports."""
    metrics_command: str
    """The same for people."""
    log: Callable[[], str]
    """Gives the operator's log."""
    kubeconfig: Path | None = None
    """The embedded cluster's, for an administrator; None for the current cluster."""
    runner: Mapping[str, Any] = field(default_factory=dict)
    """For `spec.runner`: what the cluster's runners need."""


class Where(StrEnum):
    """The clusters on which the demo can run."""

    EMBEDDED = "embedded"
    REAL = "real"
    CURRENT = "current"


def demo(where: Where, *, keep: bool) -> int:
    """Run the quick start and print what it yields; return the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        with _CLUSTERS[where]() as stage:
            say(f"Applying {QUICKSTART.relative_to(REPOSITORY)}: some six minutes on two cores.")
            manifest = yaml.safe_load(QUICKSTART.read_text())
            manifest["spec"] |= {"runner": dict(stage.runner)} if stage.runner else {}
            stage.kubectl("apply", "--filename=-", f"--namespace={stage.namespace}", stdin=yaml.safe_dump(manifest))
            succeeded = _watch(stage)
            _show(stage)
            if keep:
                _leave_running(stage)
        say("\nEverything that was started is stopped, and what was made for it is removed.")
    except ClusterError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("Stopped and cleaned up.")
        return 130
    return 0 if succeeded else 1


def say(sentence: str) -> None:
    """Print a line, at once."""
    sys.stdout.write(f"{sentence}\n")
    sys.stdout.flush()


@contextmanager
def _embedded_cluster() -> Iterator[Stage]:
    say("Starting etcd, kube-apiserver, kube-controller-manager and kube-scheduler (about five seconds).")
    with ControlPlane(manifests=CRDS, progress=say) as control_plane, NodeAgent(control_plane) as agent:
        agent.add_node(cpu_node("local", cpu=str(os.cpu_count() or 1)))
        say("Starting the operator under its own service account.")
        control_plane.kubectl("apply", f"--filename={ROLES}")
        kubeconfig = control_plane.kubeconfig_for(SERVICE_ACCOUNT)
        with OperatorProcess(kubeconfig, control_plane.folder / "operator.log") as operator:
            yield _stage(operator, control_plane.kubectl, "default", control_plane.kubeconfig)


@contextmanager
def _real_node() -> Iterator[Stage]:
    with operated_node(progress=say) as node:
        kubectl = node.control_plane.kubectl
        path = operator_metrics_path(node.control_plane)
        yield Stage(
            kubectl,
            "default",
            metrics=lambda: kubectl("get", f"--raw={path}"),
            metrics_command=f"kubectl get --raw {path}",
            log=lambda: operator_log(node.control_plane),
            kubeconfig=node.control_plane.kubeconfig,
            runner=RUNNER,
        )


@contextmanager
def _current_cluster() -> Iterator[Stage]:
    """Use the cluster of the current kubeconfig, in a namespace of our own.

    What is there already, an installed version's kinds and roles among it, is used as it is; what is missing is made
    and removed afterwards.
    """
    kubectl = _current_kubectl
    say(f"Using the cluster of the current context: {kubectl('config', 'current-context').strip()}.")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="inferbench-demo-")))
        for manifest in (*CRDS, ROLES):
            for document in yaml.safe_load_all(manifest.read_text()):
                _make_if_missing(stack, kubectl, document)
        kubectl("wait", "--for=condition=Established", "--timeout=60s", *(f"--filename={crd}" for crd in CRDS))
        kubeconfig = _for_operator(folder / "operator.kubeconfig", kubectl)
        operator = stack.enter_context(OperatorProcess(kubeconfig, folder / "operator.log"))
        namespace = f"inferbench-demo-{secrets.token_hex(3)}"
        kubectl("create", "namespace", namespace)
        stack.callback(kubectl, "delete", "namespace", namespace, "--wait=false")
        stack.callback(kubectl, "delete", "ib", "--all", f"--namespace={namespace}", "--wait=true")
        yield _stage(operator, kubectl, namespace)


_CLUSTERS: Final[Mapping[Where, Callable[[], AbstractContextManager[Stage]]]] = {
    Where.EMBEDDED: _embedded_cluster,
    Where.REAL: _real_node,
    Where.CURRENT: _current_cluster,
}


def _stage(operator: OperatorProcess, kubectl: Kubectl, namespace: str, kubeconfig: Path | None = None) -> Stage:
    """Return the cluster in which an operator of this machine works."""
    return Stage(
        kubectl,
        namespace,
        metrics=operator.metrics,
        metrics_command=f"curl --silent http://127.0.0.1:{operator.metrics_port}/metrics",
        log=operator.log.read_text,
        kubeconfig=kubeconfig,
    )


def _make_if_missing(stack: ExitStack, kubectl: Kubectl, document: dict[str, Any]) -> None:
    text = json.dumps(document)
    if not kubectl("get", "--filename=-", "--ignore-not-found", "--output=name", stdin=text).strip():
        stack.callback(kubectl, "delete", "--filename=-", "--ignore-not-found", "--wait=false", stdin=text)
        kubectl("create", "--filename=-", stdin=text)


def _current_kubectl(*arguments: str, stdin: str | None = None) -> str:
    return run_kubectl(None, *arguments, stdin=stdin)


def _for_operator(path: Path, kubectl: Kubectl) -> Path:
    """Write the current context's kubeconfig with the operator's service account in the place of its user."""
    namespace, name = SERVICE_ACCOUNT.split("/")
    config = json.loads(kubectl("config", "view", "--minify", "--raw", "--flatten", "--output=json"))
    token = kubectl("create", "token", name, f"--namespace={namespace}", "--duration=2h").strip()
    config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": {"token": token}}]
    path.touch(mode=0o600)
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def _watch(stage: Stage) -> bool:
    """Print every change until the run is over; return whether it succeeded."""
    began, seen = time.monotonic(), ""
    while time.monotonic() - began < _LONGEST_SECONDS:
        status: dict[str, Any] = json.loads(
            stage.kubectl("get", "ib", NAME, f"--namespace={stage.namespace}", "--output=json")
        )["status"]
        conditions: dict[str, dict[str, str]] = {found["type"]: found for found in status.get("conditions", [])}
        ready = conditions.get("Ready", {"status": "Unknown", "reason": "Waiting", "message": "for the operator."})
        line = f"{ready['reason']}: {ready['message']}"
        if line != seen:
            say(f"{time.monotonic() - began:6.1f} s  {line}")
            seen = line
        if status.get("run", {}).get("completionTime") or "Stalled" in conditions:
            return ready["status"] == "True"
        time.sleep(_LOOK_SECONDS)
    say(f"Not finished after {_LONGEST_SECONDS:.0f} s; the end of the operator's log:")
    say("\n".join(stage.log().splitlines()[-20:]))
    return False


def _show(stage: Stage) -> None:
    for command in (("get", "ib", NAME), ("get", "ibr", f"--selector=inferbench.dev/benchmark={NAME}")):
        say(f"\n$ kubectl {' '.join(command)}")
        say(stage.kubectl(*command, f"--namespace={stage.namespace}").rstrip())
    say(f"\n$ {stage.metrics_command} | grep 'quantile=\"0.95\"'")
    wanted = ('quantile="0.95"', f'namespace="{stage.namespace}"')
    lines = stage.metrics().splitlines()
    say("\n".join(line for line in lines if all(word in line for word in wanted)))


def _leave_running(stage: Stage) -> None:
    say("\nLeft running until you press Ctrl-C. In another terminal:")
    if stage.kubeconfig:
        say(f"  export KUBECONFIG={stage.kubeconfig}")
    say(f"  {find_kubectl()} get ib,ibr,jobs,pods")
    while True:
        signal.pause()


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
