"""The repository's folders must not hide modules of Python's standard library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_python_starts_in_the_root(root: Path) -> None:
    """The folder `operator` does not shadow the module of that name, which nearly every other module imports."""
    subprocess.run([sys.executable, "-S", "-c", "import collections"], cwd=root, check=True)


def test_no_folder_is_a_package_called_operator(root: Path) -> None:
    """Neither the source nor the tests have a package that would be imported in the place of `operator`."""
    assert not (root / "operator" / "__init__.py").exists()
    assert not (root / "tests" / "operator").exists()
