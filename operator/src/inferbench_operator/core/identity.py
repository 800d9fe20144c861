"""Tells which fields of the specification change a figure, and computes the hash of a cell from all of these.

A change of one of them makes other cells, and so a new run. README has the same table for people; a test holds the two
together, field by field.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from inferbench_operator.core.names import digest
from inferbench_operator.models.base import ApiModel
from inferbench_operator.models.benchmark import Accelerator, BenchmarkSpec, Model, Runner
from inferbench_runner.contract import Precision

_NAME: Final = "what people call it"
_PERMISSION: Final = "what the pod may do and fetch"
_LABEL: Final = "how Job and pod are labelled"
_ORDER: Final = "when a Job gets its place, not how fast it runs there"
_PATIENCE: Final = "how long to wait, and how often to try again"

NOT_MEASURED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "models.name": _NAME,
        "accelerators.name": _NAME,
        "accelerators.maxParallelJobs": _ORDER,
        "runner.imagePullSecrets": _PERMISSION,
        "runner.serviceAccountName": _PERMISSION,
        "runner.labels": _LABEL,
        "runner.annotations": _LABEL,
        "runner.tolerations": "which nodes are allowed; which are wanted is told apart",
        "runner.priorityClassName": _ORDER,
        "runner.schedulerName": _ORDER,
        "runner.queueName": _ORDER,
        "execution.maxParallelJobs": _ORDER,
        "execution.retries": _PATIENCE,
        "execution.disruptionRetries": _PATIENCE,
        "execution.onSuspend": "what becomes of Jobs that run",
        "execution.schedulingDeadlineSeconds": _PATIENCE,
        "execution.startDeadlineSeconds": _PATIENCE,
        "execution.compileDeadlineSeconds": _PATIENCE,
        "execution.measureDeadlineSeconds": _PATIENCE,
        "execution.deadlineSeconds": _PATIENCE,
        "execution.maxCostUSD": "how much may be spent",
        "execution.ttlSecondsAfterFinished": "what is kept afterwards",
        "pricing": "what is said of the figures",
        "compare": "what is said of the figures",
        "gates": "what is said of the figures",
        "gateMode": "what is said of the figures",
        "history": "what is kept of earlier runs",
        "reuse": "what the next run does",
        "schedule": "when the next run starts",
        "suspend": "whether the run goes on",
        "cancel": "whether the run goes on",
    }
)
"""Fields that change no figure, and why: what they are about. Every other field, a new one too, changes the hash."""

# Axes of the matrix, blocks of fields, and what lies over another field: in the hash as what they come to for one cell.
_RESOLVED: Final = frozenset(
    {
        "models",
        "accelerators",
        "accelerators.instanceTypes",
        "accelerators.precision",
        "accelerators.runner",
        "precisions",
        "sequenceLengths",
        "batchSizes",
        "include",
        "exclude",
        "measurement",
        "execution",
        "runner",
    }
)


def cell_hash(
    spec: BenchmarkSpec,
    model: Model,
    accelerator: Accelerator,
    runner: Runner,
    *,
    precision: Precision,
    sequence_length: int | None,
    batch_size: int,
) -> str:
    """Return the first 10 hex digits of SHA-256 over everything in the specification that can change a cell's figures.

    Its runner settings, the accelerator's own over the benchmark's, are `runner`.
    """
    identity = {
        "model": _measured(model, "models."),
        "accelerator": _measured(accelerator, "accelerators."),
        # A set, whatever its order in the specification.
        "instanceTypes": sorted(accelerator.instance_types),
        "runner": _measured(runner, "runner."),
        "measurement": _measured(spec.measurement, "measurement."),
        "precision": precision,
        "sequenceLength": sequence_length,
        "batchSize": batch_size,
    }
    # exclusiveNode is one of execution: neighbours are heard, and it decides on the number of devices.
    return digest(identity | _measured(spec.execution, "execution.") | _measured(spec, ""), 10)


def _measured(model: ApiModel, prefix: str) -> dict[str, Any]:
    """Return the fields that change a figure.

    Without empty ones, so that a field which a later version adds changes no hash by itself.
    """
    dumped = model.model_dump(mode="json", include=set(_names(type(model), prefix)), exclude_none=True)
    return {name: value for name, value in dumped.items() if value not in ("", [], {})}


@cache
def _names(model: type[ApiModel], prefix: str) -> frozenset[str]:
    apart = NOT_MEASURED.keys() | _RESOLVED
    return frozenset(name for name, field in model.model_fields.items() if f"{prefix}{field.alias}" not in apart)
