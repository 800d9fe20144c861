"""What several of the runner's tests start from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from test_runner.neuron import Machine, machine


@pytest.fixture
def neuron(tmp_path: Path) -> Iterator[Machine]:
    """A machine with a Neuron device that is a folder of files."""
    with machine(tmp_path / "machine") as made:
        yield made
