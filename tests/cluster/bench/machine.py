"""Where the figures come from: a number without its machine and versions can't be compared with anything."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata
from typing import Final

from cluster.binary import KUBERNETES_VERSION
from inferbench_runner.probe import probe_host

_DISTRIBUTIONS: Final = ("inferbench-operator", "kopf", "kubernetes", "pydantic", "torch", "transformers")


def facts() -> Mapping[str, str]:
    """Return the machine and the versions."""
    host = probe_host()
    versions = [f"Python {host.python}", f"Kubernetes {KUBERNETES_VERSION}"]
    versions += [f"{name} {found}" for name in _DISTRIBUTIONS if (found := _version(name))]
    return {
        "CPU": f"{host.cpu_model}, {len(host.affinity)} usable, Linux {host.kernel}",
        "versions": ", ".join(versions),
    }


def load() -> str:
    """Return the present load averages; above the number of CPUs, times are longer than they would be alone."""
    return " ".join(f"{average:.2f}" for average in os.getloadavg())


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
