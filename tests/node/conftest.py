"""One real node for the tests of a module; a machine can't have two at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from cluster.operator_process import CRDS
from cluster.real import RealNode
from cluster.real.images import Image
from cluster.real.provisioning import deploy_operator, enforce_restricted, lend_libraries, operator_log
from cluster.real.python_images import python_images
from e2e_harness import Harness


@pytest.fixture(scope="module")
def node() -> Iterator[RealNode]:
    """A real node and its control plane, which knows our kinds."""
    with RealNode(manifests=CRDS) as running:
        yield running


@pytest.fixture
def restricted(node: RealNode) -> str:
    """A new namespace that takes only pods which meet the restricted Pod Security Standard."""
    name = node.control_plane.create_namespace(f"test-{uuid4().hex[:8]}")
    enforce_restricted(node.control_plane, name)
    return name


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple[Image, ...]:
    """The runner's and the operator's image, of the sources as they are."""
    built = python_images(tmp_path_factory.mktemp("images"))
    return built.runner, built.operator


@pytest.fixture(scope="module")
def operated(node: RealNode, images: tuple[Image, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    """The node with the operator on it, as a Deployment."""
    node.load_images(images, tmp_path_factory.mktemp("archive"))
    deploy_operator(node.control_plane)
    yield node
    log = operator_log(node.control_plane)
    assert "Traceback" not in log, log
    assert 'User "system:serviceaccount' not in log, f"the role lacks a right: {log}"


@pytest.fixture
def harness(operated: RealNode, restricted: str) -> Iterator[Harness]:
    """The operated node, seen from a restricted namespace in which the libraries are to be had."""
    lend_libraries(operated.control_plane, restricted)
    nobody: Any = None  # no node agent, and the operator is a pod
    yield Harness(operated.control_plane, nobody, nobody, restricted)
    operated.control_plane.kubectl("delete", "ib", "--all", f"--namespace={restricted}", "--wait=true")
