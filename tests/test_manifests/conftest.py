"""What the tests of the manifests share: where the files are."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    """Folder of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def crds_folder(root: Path) -> Path:
    """Folder of the generated definitions."""
    return root / "crds"


@pytest.fixture(params=sorted((ROOT / "crds" / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def example(request: pytest.FixtureRequest) -> Path:
    """Each example in turn; one that is added is covered at once."""
    path: Path = request.param
    return path
