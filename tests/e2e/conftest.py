"""The operator, under its own service account, on the embedded cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import ControlPlane, NodeAgent
from cluster.operator_process import ROLES, SERVICE_ACCOUNT, OperatorProcess
from e2e_harness import Harness


@pytest.fixture(scope="session")
def operator_kubeconfig(control_plane: ControlPlane) -> Path:
    """Kubeconfig of the operator's service account, with the roles that it has in production."""
    control_plane.kubectl("apply", f"--filename={ROLES}")
    control_plane.wait_for_service_account(*SERVICE_ACCOUNT.split("/"))
    return control_plane.kubeconfig_for(SERVICE_ACCOUNT)


@pytest.fixture
def operator(operator_kubeconfig: Path, tmp_path: Path) -> Iterator[OperatorProcess]:
    """The operator, running."""
    with OperatorProcess(operator_kubeconfig, tmp_path / "operator.log") as process:
        yield process
    log = process.log.read_text()
    assert "Traceback" not in log, log
    assert 'User "system:serviceaccount' not in log, f"the role lacks a right: {log}"


@pytest.fixture
def harness(
    control_plane: ControlPlane, agent: NodeAgent, operator: OperatorProcess, namespace: str
) -> Iterator[Harness]:
    """All of it, in a namespace of its own."""
    yield Harness(control_plane, agent, operator, namespace)
    control_plane.kubectl("delete", "ib", "--all", f"--namespace={namespace}", "--wait=true")
