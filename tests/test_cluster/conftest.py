"""What the tests of the node agent set differently."""

from __future__ import annotations

import pytest

from cluster import LocalSettings


@pytest.fixture
def local_settings() -> LocalSettings:
    """An entry point that is quick and says that it ran."""
    return LocalSettings(entrypoint=("python", "-c", "print('the entry point')"))
