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


@pytest.fixture
def tf32_as_before() -> Iterator[None]:
    """Leave PyTorch's switches of TF32 as they were."""
    import torch  # noqa: PLC0415  # heavy, and not everywhere

    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compile models on the stand-in for a CUDA device as far as to the generation of code, which is left out."""
    import torch  # noqa: PLC0415  # as above

    from inferbench_runner.backends import inductor  # noqa: PLC0415  # as above

    monkeypatch.setattr(inductor, "compiled", lambda model: model.forward.compiled())
    torch._dynamo.reset()  # noqa: SLF001  # graphs of other tests
    yield
    torch._dynamo.reset()  # noqa: SLF001
