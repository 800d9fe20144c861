"""The operator's own settings, the same for all benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType

from inferbench_operator.models.instances import Catalogue, packaged_catalogue
from inferbench_runner.contract import AcceleratorKind


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings; the entry module fills them from the environment."""

    runner_images: Mapping[AcceleratorKind, str] = field(
        default_factory=lambda: MappingProxyType(
            {
                AcceleratorKind.CPU: "inferbench/runner-cpu:0.1.0",
                AcceleratorKind.NVIDIA: "inferbench/runner-cuda:0.1.0",
                AcceleratorKind.NEURON: "inferbench/runner-neuronx:0.1.0",
            }
        )
    )
    """Image of the runner by kind of accelerator, where a benchmark names none."""
    inf1_image: str = "inferbench/runner-neuron-inf1:0.1.0"
    """The same for Inf1 instances, whose devices no library of the other Neuron image knows."""
    max_parallel_jobs: int | None = None
    """Most Jobs of all benchmarks together that have devices or wait for them; None means no limit."""
    catalogue: Catalogue = field(default_factory=packaged_catalogue)
    """The instance types that benchmarks may name; with the operator's own table over it, it may change at any time."""
    status_interval: timedelta = timedelta(seconds=2)
    """Shortest time between two writes of one benchmark's status, except for terminal changes."""
