"""Facts about the runner's own modules."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import inferbench_runner
from inferbench_runner import errors
from inferbench_runner.contract import FailureReason

PACKAGE = Path(inspect.getfile(inferbench_runner)).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
HEAVY = ["torch", "transformers", "tokenizers", "huggingface_hub", "PIL", "pynvml"]
CLOCKS = {"time", "datetime", "timeit", "asyncio"}
LIGHT = [
    ".".join(("inferbench_runner", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    for path in MODULES
    if path.parent == PACKAGE or path.stem in {"__init__", "base", "cuda_errors", "environment", "nvml", "presence"}
]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_one_module_reads_the_clock(path: Path) -> None:
    """No module but `clock` imports one that tells the time."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    read = {name.partition(".")[0] for name in names} & CLOCKS
    assert read == ({"time"} if path.name == "clock.py" else set())


def test_the_runner_starts_without_the_heavy_libraries() -> None:
    """Importing the command line, and all that it imports, brings in no model library."""
    code = f"import sys, {', '.join(LIGHT)}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_each_failure_says_whether_to_retry_as_the_contract_does() -> None:
    """The docstring of each error class begins with the same answer that its reason gives."""
    classes = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.RunnerError)]
    for kind in classes:
        if kind is not errors.RunnerError:
            assert (kind.__doc__ or "").startswith("Retry: yes." if kind.reason.retryable else "Retry: no."), kind
    assert {kind.reason for kind in classes} == set(FailureReason)
