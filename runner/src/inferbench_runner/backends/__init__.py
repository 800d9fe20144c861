"""Back ends: the only modules that import torch, transformers or a device's libraries, once they are needed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from inferbench_runner.backends.base import Backend
from inferbench_runner.backends.environment import INDUCTOR_VARIABLE, prepare_environment, why_unkept
from inferbench_runner.backends.neuron import open_neuron, open_neuron_compiler
from inferbench_runner.backends.presence import require_nvidia
from inferbench_runner.contract import CACHE_VARIABLE, AcceleratorKind, Execution, Plan, Precision, Profile
from inferbench_runner.errors import (
    ExecutionUnsupportedError,
    InvalidPlanError,
    MissingDependencyError,
    PrecisionUnsupportedError,
)
from inferbench_runner.probe import Host


@dataclass(frozen=True)
class Support:
    """What a kind of device can be asked for at all; a single device may have less."""

    extra: str
    """Extra of this distribution that brings the libraries."""
    precisions: tuple[Precision, ...]
    executions: tuple[Execution, ...]


SUPPORTED: Final = {
    # TF32 doesn't exist on CPUs and half precision is mostly emulated there; bfloat16 has kernels for x86-64 and Arm.
    AcceleratorKind.CPU: Support("torch", (Precision.FP32, Precision.BF16), (Execution.EAGER, Execution.COMPILE)),
    AcceleratorKind.NVIDIA: Support(
        "nvidia",
        (Precision.FP32, Precision.TF32, Precision.FP16, Precision.BF16),
        (Execution.EAGER, Execution.COMPILE, Execution.CUDA_GRAPHS),
    ),
}


CONCURRENCY: Final = "measurement.load.concurrency"

PROFILE: Final = "measurement.profile"


def open_backend(plan: Plan, host: Host) -> Backend:
    """Return the back end for the plan's device, or raise the `RunnerError` that says why there is none.

    What can be refused without the heavy libraries is refused before they are imported.
    """
    kind = plan.device.kind
    if kind is AcceleratorKind.NEURON:
        return open_neuron(plan, host)
    if plan.device.cores is not None:
        field, problem = "device.cores", f"{kind} has none that can be chosen"
        raise InvalidPlanError(field, problem, "leave it out; a pod's processors are limited by runner.resources")
    support = SUPPORTED[kind]
    if plan.precision not in support.precisions:
        raise PrecisionUnsupportedError(plan.precision, kind, list(support.precisions))
    execution = plan.device.execution or Execution.EAGER
    if execution not in support.executions:
        raise ExecutionUnsupportedError(execution, kind, list(support.executions))
    if execution is Execution.CUDA_GRAPHS:
        _require_one_caller(plan)
    if kind is AcceleratorKind.NVIDIA:
        require_nvidia(os.environ)
    prepare_environment(os.environ, host)
    try:
        return _open(plan, host)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(error.name, support.extra) from error


def _open(plan: Plan, host: Host) -> Backend:
    """Import the back end, which brings torch and transformers, and let it prepare."""
    if plan.device.kind is AcceleratorKind.NVIDIA:
        from inferbench_runner.backends.nvidia import NVIDIABackend  # noqa: PLC0415  # heavy

        return NVIDIABackend.prepare(plan, host)
    from inferbench_runner.backends.cpu import CPUBackend  # noqa: PLC0415  # heavy

    return CPUBackend.prepare(plan, host)


def open_compiler(plan: Plan, host: Host, target: str | None = None) -> Backend:
    """Return the back end that compiles the plan's graphs, without their device where that can be done.

    The target is the family of devices to compile for, where the plan's kind of device has several.
    """
    if plan.device.kind is AcceleratorKind.NEURON:
        return open_neuron_compiler(plan, host, target)
    if target is not None:
        field, problem = "--target", f"{plan.device.kind} has no families of devices to choose from"
        raise InvalidPlanError(field, problem, "leave it out")
    if plan.device.execution is not Execution.COMPILE:
        field, problem = (
            "device.execution",
            f"{plan.device.execution or Execution.EAGER} makes nothing that can be kept",
        )
        raise InvalidPlanError(field, problem, f"compile only plans with {Execution.COMPILE}, or for Neuron")
    _require_cache(host)
    return open_backend(plan, host)


def _require_cache(host: Host) -> None:
    """Raise `InvalidPlanError` unless what PyTorch compiles is kept, before it is imported."""
    prepare_environment(os.environ, host)
    way_out = "set it to a folder that the measuring pods mount too"
    if not os.environ.get(CACHE_VARIABLE):
        problem = "it is not set, so that compiled graphs have no place to go"
        raise InvalidPlanError(CACHE_VARIABLE, problem, way_out)
    if unkept := why_unkept(os.environ):
        raise InvalidPlanError(CACHE_VARIABLE, unkept, f"{way_out}, and leave {INDUCTOR_VARIABLE} out")


def _require_one_caller(plan: Plan) -> None:
    """Raise `InvalidPlanError` for what a graph, which always reads and writes the same tensors, can't be measured in.

    Two callers would overwrite each other's inputs, and inputs that stay where they are, as in 2023, are overwritten
    when the output is verified.
    """
    if plan.measurement.load.concurrency > 1:
        raise InvalidPlanError(
            CONCURRENCY,
            "a CUDA graph has one place for its inputs, so that calls can't overlap",
            "set it to 1, or use execution Eager or Compile",
        )
    if plan.measurement.profile is Profile.LEGACY_2023:
        raise InvalidPlanError(
            PROFILE,
            "the method of 2023 leaves the inputs on the device, where a CUDA graph needs them copied",
            "use profile Sound, or execution Eager or Compile",
        )
