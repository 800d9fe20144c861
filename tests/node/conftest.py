"""One real node for the tests of a module; a machine can't have two at a time."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from cluster.operator_process import CRDS
from cluster.real import RealNode


@pytest.fixture(scope="module")
def node() -> Iterator[RealNode]:
    """A real node and its control plane, which knows our kinds."""
    with RealNode(manifests=CRDS) as running:
        yield running


@pytest.fixture
def restricted(node: RealNode) -> str:
    """A new namespace that takes only pods which meet the restricted Pod Security Standard."""
    name = node.control_plane.create_namespace(f"test-{uuid4().hex[:8]}")
    node.control_plane.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    return name
