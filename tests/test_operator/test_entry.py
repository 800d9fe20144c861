"""The command, and what its parts import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from inferbench_operator.__main__ import instance_table, settings_from_environment
from inferbench_runner.contract import AcceleratorKind


def test_the_command_explains_itself() -> None:
    """`python -m inferbench_operator --help`."""
    done = subprocess.run(
        [sys.executable, "-m", "inferbench_operator", "--help"], capture_output=True, text=True, check=True
    )
    for word in ("--namespace", "--metrics-port", "--liveness"):
        assert word in done.stdout


@pytest.mark.parametrize("content", [None, "", "not: [a kubeconfig"], ids=["no file", "an empty one", "a broken one"])
def test_without_a_cluster_it_says_what_it_needs(tmp_path: Path, content: str | None) -> None:
    """No pod, no usable kubeconfig: one sentence, and no traceback."""
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KUBERNETES_")}
    variables = kept | {"KUBECONFIG": str(path), "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "inferbench_operator"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "No cluster: run it in a pod" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_runners_images_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One variable for each kind of device, and one for the generation that needs another image."""
    for name in ("CPU", "NEURON", "NEURON_INF1", "NVIDIA"):
        monkeypatch.setenv(f"INFERBENCH_RUNNER_IMAGE_{name}", f"mine:{name}")
    found = settings_from_environment()
    assert found.runner_images == {kind: f"mine:{kind.upper()}" for kind in AcceleratorKind}
    assert found.inf1_image == "mine:NEURON_INF1"


def test_the_table_of_instance_types_is_named_by_a_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without it, or with an empty one, there is no table; a file that is not there stops nothing."""
    monkeypatch.delenv("INFERBENCH_INSTANCE_TYPES", raising=False)
    assert instance_table() is None
    monkeypatch.setenv("INFERBENCH_INSTANCE_TYPES", "")
    assert instance_table() is None
    monkeypatch.setenv("INFERBENCH_INSTANCE_TYPES", str(tmp_path / "types.yaml"))
    table = instance_table()
    assert table
    missing = table.news()
    assert missing
    assert "types.yaml is no file" in missing.problem
    (tmp_path / "types.yaml").write_text("inf2.xlarge: {usdPerHour: 0.61}")
    found = table.news()
    assert found
    assert found.types["inf2.xlarge"].usd_per_hour == Decimal("0.61")


@pytest.mark.parametrize("limit", ["0", "-1", "many"])
def test_a_limit_that_is_none_is_refused(limit: str) -> None:
    """By its name, before anything is done."""
    variables = os.environ | {"INFERBENCH_MAX_PARALLEL_JOBS": limit}
    command = [sys.executable, "-m", "inferbench_operator"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"INFERBENCH_MAX_PARALLEL_JOBS: '{limit}' is no number of Jobs" in done.stderr
    assert "Traceback" not in done.stderr


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
