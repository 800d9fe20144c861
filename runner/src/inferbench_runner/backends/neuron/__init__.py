"""AWS Neuron: Inferentia and Trainium. Looks at the device first; the heavy libraries come only where there is one.

    devices ──> which cores      arguments ──> what the compiler is told      failures ──> which error it was
    making  ──> traced graphs    copies    ──> one on each block of cores     model    ──> the seam to the worker

Libraries for Neuron fall back to the processor, or yield nothing, with no more than a warning; nothing here does.
"""

from __future__ import annotations

import os
from pathlib import Path

from inferbench_runner.backends.base import Backend
from inferbench_runner.backends.environment import prepare_environment
from inferbench_runner.backends.neuron.arguments import DEFAULT_EXECUTION, check
from inferbench_runner.backends.neuron.devices import claim, find_devices
from inferbench_runner.backends.neuron.targets import choose_target
from inferbench_runner.contract import CACHE_VARIABLE, Execution, Plan
from inferbench_runner.errors import NEURON_EXTRA, InvalidPlanError, MissingDependencyError
from inferbench_runner.probe import ROOT, Host


def open_neuron(plan: Plan, host: Host, root: Path = ROOT) -> Backend:
    """Return the back end that measures on the device whose files are below `root`.

    Raises:
        RunnerError: There is no device, it has fewer cores than the plan asks for, or it can't do what the plan says.
    """
    devices = find_devices(root)
    target = choose_target(None, devices, os.environ)
    check(plan, target)
    # The runtime reads the variable once, when the first library that has it is imported.
    claim(plan, devices, os.environ)
    if (plan.device.cores or 1) > 1:
        # The runtime would put a copy of the graph on each of them and use them in turn: the latency is one core's.
        field, problem = "device.cores", "a traced graph runs on one core, and no model is split over several"
        raise InvalidPlanError(field, problem, "use 1, and measurement.load.concurrency for copies on other cores")
    prepare_environment(os.environ, host)
    try:
        from inferbench_runner.backends.neuron.backend import NeuronBackend  # noqa: PLC0415  # imports torch
    except ModuleNotFoundError as error:
        raise MissingDependencyError(error.name, NEURON_EXTRA) from error
    return NeuronBackend.prepare(plan, host, target, devices)


def open_neuron_compiler(plan: Plan, host: Host, target: str | None = None, root: Path = ROOT) -> Backend:
    """Return the back end that only compiles: on any machine, with a device or without.

    Raises:
        RunnerError: Nothing says what to compile for, or it can't be compiled without a device, or not be kept.
    """
    if not os.environ.get(CACHE_VARIABLE):
        way_out = "set it to a folder that the measuring pods mount too"
        raise InvalidPlanError(CACHE_VARIABLE, "it is not set, so that compiled graphs have no place to go", way_out)
    devices = find_devices(root, required=False)
    chosen = choose_target(target, devices, os.environ)
    check(plan, chosen)
    if plan.device.execution is Execution.TORCH_NEURON:
        field = "device.execution"
        problem = f"{Execution.TORCH_NEURON} compiles at its first call, on the device itself"
        raise InvalidPlanError(field, problem, f"use {DEFAULT_EXECUTION}, whose graphs can be kept")
    prepare_environment(os.environ, host)
    try:
        from inferbench_runner.backends.neuron.backend import NeuronBackend  # noqa: PLC0415  # imports torch
    except ModuleNotFoundError as error:
        raise MissingDependencyError(error.name, NEURON_EXTRA) from error
    return NeuronBackend.prepare(plan, host, chosen, devices, measures=False)
