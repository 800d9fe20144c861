"""Back ends: the only modules that import torch, transformers or a device's libraries, once they are needed."""

from __future__ import annotations

import os

from inferbench_runner.backends.base import Backend
from inferbench_runner.backends.environment import prepare_environment
from inferbench_runner.backends.neuron import open_neuron, open_neuron_compiler
from inferbench_runner.contract import AcceleratorKind, Execution, Plan, Precision
from inferbench_runner.errors import (
    DeviceNotFoundError,
    ExecutionUnsupportedError,
    InvalidPlanError,
    MissingDependencyError,
    PrecisionUnsupportedError,
)
from inferbench_runner.probe import Host

CPU_PRECISIONS = (Precision.FP32, Precision.BF16)
"""TF32 doesn't exist on CPUs and half precision is mostly emulated there; bfloat16 has kernels for x86-64 and Arm."""

CPU_EXECUTIONS = (Execution.EAGER, Execution.COMPILE)


def open_backend(plan: Plan, host: Host) -> Backend:
    """Return the back end for the plan's device, or raise the `RunnerError` that says why there is none.

    What can be refused without the heavy libraries is refused before they are imported.
    """
    kind = plan.device.kind
    if kind is AcceleratorKind.NEURON:
        return open_neuron(plan, host)
    if kind is not AcceleratorKind.CPU:
        raise DeviceNotFoundError(kind)
    if plan.precision not in CPU_PRECISIONS:
        raise PrecisionUnsupportedError(plan.precision, kind, list(CPU_PRECISIONS))
    execution = plan.device.execution or Execution.EAGER
    if execution not in CPU_EXECUTIONS:
        raise ExecutionUnsupportedError(execution, kind, list(CPU_EXECUTIONS))
    prepare_environment(os.environ)
    try:
        from inferbench_runner.backends.cpu import CPUBackend  # noqa: PLC0415  # imports torch and transformers
    except ModuleNotFoundError as error:
        raise MissingDependencyError(error.name, "torch") from error
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
    return open_backend(plan, host)
