"""Families of Neuron devices: which one a graph is compiled for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from inferbench_runner.backends.neuron.devices import Devices
from inferbench_runner.errors import InvalidPlanError, RuntimeIncompatibleError
from inferbench_runner.words import listed

INF1: Final = "inf1"

TARGETS: Final = (INF1, "inf2", "trn1", "trn1n", "trn2")
"""What the compilers can be told, each an instance family."""

OVERRIDE: Final = "NEURON_PLATFORM_TARGET_OVERRIDE"
"""Environment variable by which Neuron's own libraries are told what to compile for where there is no device."""

OPTION: Final = "--target"


def choose_target(wanted: str | None, devices: Devices | None, environment: Mapping[str, str]) -> str:
    """Return the family to compile for: the named one, else that of the environment, else that of the device.

    Raises:
        RunnerError: None of them names one that there is a compiler for.
    """
    for field, name in ((OPTION, wanted), (OVERRIDE, environment.get(OVERRIDE))):
        if name and name not in TARGETS:
            raise InvalidPlanError(field, f"{name} is no family of Neuron devices", f"use {listed(list(TARGETS))}")
        if name:
            return name
    if devices is None:
        raise InvalidPlanError(
            OPTION, "no Neuron device is here that could tell what to compile for", f"name {listed(list(TARGETS))}"
        )
    if target := family(devices.instance_type):
        return target
    detail = f"the device calls itself {devices.instance_type or 'nothing'}; set {OVERRIDE} to {listed(list(TARGETS))}"
    raise RuntimeIncompatibleError(detail)


def family(instance_type: str) -> str | None:
    """Return the family of an instance type such as inf2.xlarge or Trn1; None for one that there is no compiler for."""
    name = instance_type.strip().lower().partition(".")[0]
    # Variants such as trn2n or trn2u have the devices of their family.
    return name if name in TARGETS else next((one for one in TARGETS if name[:4] == one), None)
