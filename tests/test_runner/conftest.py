"""What several of the runner's tests start from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferbench_runner.contract import CACHE_VARIABLE
from test_runner.neuron import Machine, machine


@pytest.fixture
def neuron(tmp_path: Path) -> Iterator[Machine]:
    """A machine with a Neuron device that is a folder of files."""
    with machine(tmp_path / "machine") as made:
        yield made


@pytest.fixture
def graphs(tmp_path: Path, neuron: Machine) -> Path:
    """The folder of compiled graphs, which that machine's environment names."""
    del neuron  # its environment is this one
    os.environ[CACHE_VARIABLE] = str(tmp_path / "cache")
    return tmp_path / "cache" / "neuron"
