"""The command, and what its parts import."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def test_the_command_explains_itself() -> None:
    """`python -m inferbench_operator --help`."""
    done = subprocess.run(
        [sys.executable, "-m", "inferbench_operator", "--help"], capture_output=True, text=True, check=True
    )
    for word in ("--namespace", "--metrics-port", "--liveness"):
        assert word in done.stdout


@pytest.mark.parametrize("package", ["core", "models"])
def test_core_and_models_import_nothing_heavy(package: str) -> None:
    """No client, no framework, no metrics, no model library: asked of a new interpreter."""
    code = f"""
import importlib, json, pkgutil, sys
import inferbench_operator.{package} as package
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
print(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"kopf", "kubernetes", "aiohttp", "prometheus_client", "torch", "transformers"}
    assert not heavy & set(json.loads(done.stdout))
