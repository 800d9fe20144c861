"""One embedded cluster for all tests that need one: starting it takes seconds, and 0.7 GB of memory."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from cluster import ControlPlane, LocalSettings, NodeAgent
from cluster.operator_process import CRDS


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A running control plane that knows our kinds."""
    with ControlPlane(manifests=CRDS) as running:
        yield running


@pytest.fixture
def local_settings() -> LocalSettings:
    """What local nodes give to every pod."""
    return LocalSettings()


@pytest.fixture
def agent(control_plane: ControlPlane, local_settings: LocalSettings) -> Iterator[NodeAgent]:
    """A node agent without nodes."""
    with NodeAgent(control_plane, local=local_settings) as running:
        yield running
        for node in () if running.stopped else running.nodes:
            running.remove_node(node)


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    """A new namespace."""
    return control_plane.create_namespace(f"test-{uuid4().hex[:8]}")
