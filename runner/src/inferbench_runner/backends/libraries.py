"""What the libraries do: the switches that change a result, and provenance of their versions and mathematics."""

from __future__ import annotations

import os
import re
from importlib import metadata
from typing import Final

import torch

from inferbench_runner.backends.base import Facts
from inferbench_runner.contract import Plan
from inferbench_runner.probe import Host

VERSIONS: Final = {
    "transformers": "transformers",
    "tokenizers": "tokenizers",
    "numpy": "numpy",
    "pillow": "pillow",
    "safetensors": "safetensors",
    "huggingfaceHub": "huggingface-hub",
}
"""Other distributions whose versions are recorded, by the name of the fact."""

FPMATH: Final = "ONEDNN_DEFAULT_FPMATH_MODE"
"""Environment variable by which oneDNN may compute fp32 products in a smaller format."""


def prepare_library(plan: Plan, host: Host) -> None:
    """Fix what is global in PyTorch on the host: threads, and full precision for fp32."""
    # Each call in flight has its own pool, and together they must not be more than can run.
    torch.set_num_threads(max(1, host.threads // plan.measurement.load.concurrency))
    # The operators of one call follow each other, so that a second pool could only compete. It can be set once.
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    # With "medium", oneDNN would compute fp32 products in bfloat16.
    torch.set_float32_matmul_precision("highest")


def versions() -> Facts:
    """Return the version of each library, without importing those that this model doesn't need."""
    # Only PyTorch's own word for its version tells which build it is.
    return {"torch": torch.__version__, **{fact: version(name) for fact, name in VERSIONS.items()}}


def mathematics() -> Facts:
    """Return which libraries multiply matrices, how many threads they have, and how exact they are told to be."""
    shown, parallel = torch.__config__.show(), torch.__config__.parallel_info()
    blas = re.search(r"BLAS_INFO=([^,\s]+)", shown)
    onednn = re.search(r"Intel\(R\) MKL-DNN (v[\d.]+)|oneDNN (v[\d.]+)", shown)
    openmp = re.search(r"OpenMP (\w+)", shown)
    # PyTorch 1.13 has no function that tells it.
    capability = re.search(r"CPU capability usage: (.+)", shown)
    pool = re.search(r"ATen parallel backend: (.+)", parallel)
    has_onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return {
        "threads": str(torch.get_num_threads()),
        "interopThreads": str(torch.get_num_interop_threads()),
        "cpuCapability": capability[1].strip() if capability else "unknown",
        "blas": blas[1] if blas else "unknown",
        "onednn": (onednn[1] or onednn[2] if onednn else "unknown") if has_onednn else "none",
        "openmp": openmp[1] if openmp else "none",
        "threadPool": pool[1].strip() if pool else "unknown",
        "float32Matmul": torch.get_float32_matmul_precision(),
        "onednnFpmath": os.environ.get(FPMATH, "STRICT"),
        "deterministic": "on" if torch.are_deterministic_algorithms_enabled() else "off",
    }


def version(name: str) -> str:
    """Return the version of an installed distribution, or none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"
