"""Whether this pod has an NVIDIA device at all: known in milliseconds, before any library is imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from inferbench_runner.contract import AcceleratorKind
from inferbench_runner.errors import DeviceNotFoundError
from inferbench_runner.probe import ROOT

DRIVER: Final = "proc/driver/nvidia/version"
"""There as soon as the kernel module is loaded, in every container of the node."""

DEVICES: Final = ("nvidia[0-9]*", "nvhost-gpu", "nvgpu", "dxg")
"""Names below /dev: of a card, of the two generations of embedded devices, and of Windows' subsystem for Linux."""

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"

NOTHING: Final = ("", "-1", "none", "void", "NoDevFiles")
"""Values of that variable which hide every device."""


def require_nvidia(environment: Mapping[str, str], root: Path = ROOT) -> None:
    """Raise `DeviceNotFoundError`, which says what is missing, unless the pod was given a device."""
    if not any(any((root / "dev").glob(name)) for name in DEVICES):
        if (root / DRIVER).exists():
            raise DeviceNotFoundError(
                AcceleratorKind.NVIDIA,
                "the node has an NVIDIA driver, and the pod was given no device",
                "request nvidia.com/gpu in runner.resources.limits, and set runner.runtimeClassName where the device "
                "plugin needs one",
            )
        raise DeviceNotFoundError(
            AcceleratorKind.NVIDIA,
            "there is no NVIDIA driver and no device in this pod",
            "name instanceTypes with a GPU whose nodes run NVIDIA's driver and device plugin, or measure on CPU",
        )
    if environment.get(VISIBLE, "0") in NOTHING:
        raise DeviceNotFoundError(
            AcceleratorKind.NVIDIA,
            f"{VISIBLE} hides every NVIDIA device",
            f"take {VISIBLE} out of runner.env, or name a device in it",
        )
