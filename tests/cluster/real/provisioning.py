"""What an administrator of the cluster would do: install the operator, offer this machine's libraries as a volume."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from cluster.controlplane import ControlPlane
from cluster.errors import ClusterError, KubectlError
from cluster.go_program import Progress
from cluster.operator_process import CRDS, ROLES, SERVICE_ACCOUNT
from cluster.real.node import RealNode
from cluster.real.python_images import LIBRARIES, LIBRARIES_MOUNT, python_images

OPERATOR_NAMESPACE, OPERATOR_NAME = SERVICE_ACCOUNT.split("/")
OPERATOR: Final = Path(__file__).with_name("operator.yaml")

_CLAIM: Final = "libraries"

RUNNER: Final[dict[str, Any]] = {
    "volumes": [{"name": _CLAIM, "persistentVolumeClaim": {"claimName": _CLAIM, "readOnly": True}}],
    "volumeMounts": [{"name": _CLAIM, "mountPath": LIBRARIES_MOUNT, "readOnly": True}],
}
"""For `spec.runner` of a benchmark in a namespace that was lent the libraries."""


class OperatorError(ClusterError):
    """The operator's Deployment did not become ready."""

    def __init__(self, told: Sequence[str]) -> None:
        """Say what happened."""
        super().__init__("\n".join(["The operator was not ready in time.", *told]))


@contextmanager
def operated_node(*, progress: Progress) -> Iterator[RealNode]:
    """Start a real node with the operator on it, and all that a benchmark in the namespace `default` needs."""
    progress("Starting a control plane, containerd, kubelet and kube-proxy (about fifteen seconds).")
    with RealNode(manifests=CRDS, progress=progress) as node, tempfile.TemporaryDirectory() as folder:
        progress("Building the images of the operator and the runner, and starting the operator as a Deployment.")
        images = python_images(Path(folder))
        node.load_images((images.runner, images.operator), Path(folder))
        deploy_operator(node.control_plane)
        enforce_restricted(node.control_plane, "default")
        lend_libraries(node.control_plane, "default")
        yield node


def enforce_restricted(control_plane: ControlPlane, namespace: str) -> None:
    """Have the namespace refuse pods that don't meet the restricted Pod Security Standard."""
    control_plane.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")


def deploy_operator(control_plane: ControlPlane) -> None:
    """Install the operator with the rights that it has in production, and return when it is ready."""
    control_plane.kubectl("apply", f"--filename={ROLES}")
    control_plane.wait_for_service_account(OPERATOR_NAMESPACE, OPERATOR_NAME)
    enforce_restricted(control_plane, OPERATOR_NAMESPACE)
    control_plane.kubectl("apply", f"--filename={OPERATOR}")
    wait_for_operator(control_plane)


def wait_for_operator(control_plane: ControlPlane) -> None:
    """Return when the operator is ready.

    Raises:
        OperatorError: It was not in time; the message holds what the cluster and its log say.
    """
    within = f"--namespace={OPERATOR_NAMESPACE}"
    name = f"deployment/{OPERATOR_NAME}"
    try:
        control_plane.kubectl("rollout", "status", name, within, "--timeout=120s", timeout=150)
    except KubectlError:
        told = []
        for command in (("describe", "pods", within), ("logs", within, name, "--tail=25")):
            with suppress(KubectlError):
                told.append(control_plane.kubectl(*command))
        raise OperatorError(told) from None


def operator_metrics_path(control_plane: ControlPlane) -> str:
    """Return the path on the API server under which the operator's pod answers with its metrics."""
    chosen = (f"--namespace={OPERATOR_NAMESPACE}", f"--selector=app.kubernetes.io/name={OPERATOR_NAME}")
    pod = control_plane.kubectl("get", "pods", *chosen, "--output=jsonpath={.items[0].metadata.name}")
    return f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods/{pod}:8080/proxy/metrics"


def operator_log(control_plane: ControlPlane) -> str:
    """Return the operator's log."""
    return control_plane.kubectl("logs", f"--namespace={OPERATOR_NAMESPACE}", f"deployment/{OPERATOR_NAME}")


def lend_libraries(control_plane: ControlPlane, namespace: str) -> None:
    """Offer the libraries that are too large for the runner's image as a claim in the namespace."""
    lend_folder(control_plane, namespace, _CLAIM, LIBRARIES)


def lend_folder(control_plane: ControlPlane, namespace: str, claim: str, folder: Path) -> None:
    """Offer a folder of this machine as a claim in the namespace, to pods that mount it as they like.

    The restricted standard forbids pods to name a folder of their node, but not to claim a volume that an administrator
    has made of one.
    """
    volume = f"{claim}-{namespace}"
    shared = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    size = {"storage": "100Gi"}
    objects = [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": shared | {"capacity": size, "hostPath": {"path": str(folder), "type": "Directory"}},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim, "namespace": namespace},
            "spec": shared | {"volumeName": volume, "resources": {"requests": size}},
        },
    ]
    control_plane.kubectl(
        "apply", "--filename=-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    )
