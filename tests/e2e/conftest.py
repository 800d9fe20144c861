"""The operator, under its own service account, on the embedded cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import ControlPlane, NodeAgent
from cluster.kstatus import PROGRAM, kstatus_of
from cluster.operator_process import ROLES, SERVICE_ACCOUNT, OperatorProcess
from e2e_harness import Harness
from operator_testing.gitops import argo_customization, disagreements
from operator_testing.kstatus import kstatus
from operator_testing.statuses import StatusCollection


@pytest.fixture(scope="session")
def statuses() -> Iterator[StatusCollection]:
    """Every status that any test of this session has brought about; in the end all tools must agree on each of them.

    That is no test of its own, which would not be among those that are selected, or would not come last.
    """
    PROGRAM.find_or_build()
    collection = StatusCollection()
    yield collection
    found = collection.objects
    words = kstatus_of(found)
    for raw in found:
        argo_customization().enabled_actions(raw)
    assert disagreements(found, words) == [], f"among {len(found)} statuses"
    assert [kstatus(raw) for raw in found] == words, "the rewriting of kstatus is wrong"


@pytest.fixture(scope="session")
def operator_kubeconfig(control_plane: ControlPlane, statuses: StatusCollection) -> Iterator[Path]:
    """Kubeconfig of the operator's service account, with the roles that it has in production."""
    control_plane.kubectl("apply", f"--filename={ROLES}")
    control_plane.wait_for_service_account(*SERVICE_ACCOUNT.split("/"))
    with statuses.following(control_plane):
        yield control_plane.kubeconfig_for(SERVICE_ACCOUNT)


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
