"""A stand-in for NVIDIA's management library, without its driver."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

UUID = "8a4d3f64-0e0e-4b4c-9c1e-111111111111"


class FakeNVMLError(Exception):
    """What NVML raises for whatever it doesn't do."""


def fake_nvml(**answers: Any) -> ModuleType:  # noqa: ANN401  # by function
    """Return a stand-in for the module `pynvml` whose functions give these answers, and refuse where they are None.

    An answer that can be called is given the arguments.
    """
    module = ModuleType("pynvml")
    found: dict[str, Any] = FULL | answers
    for name, answer in found.items():
        setattr(module, name, _function(answer))
    module.NVMLError = FakeNVMLError  # type: ignore[attr-defined]
    module.NVML_CLOCK_SM = 1  # type: ignore[attr-defined]
    return module


def process(pid: int, memory: int | None = None) -> SimpleNamespace:
    """Return a process as NVML lists it."""
    return SimpleNamespace(pid=pid, usedGpuMemory=memory)


def _function(answer: Any) -> Callable[..., Any]:  # noqa: ANN401  # by function
    def function(*arguments: object) -> Any:  # noqa: ANN401  # by function
        if answer is None:
            raise FakeNVMLError
        return answer(*arguments) if callable(answer) else answer

    return function


def _by_uuid(name: str) -> str:
    if name != f"GPU-{UUID}":
        raise FakeNVMLError
    return "handle"


FULL: dict[str, Any] = {
    "nvmlInit": lambda: None,
    "nvmlDeviceGetHandleByUUID": _by_uuid,
    "nvmlDeviceIsMigDeviceHandle": 0,
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": None,
    "nvmlSystemGetDriverVersion": "580.65.06",
    "nvmlSystemGetCudaDriverVersion_v2": 13020,
    "nvmlDeviceGetEnforcedPowerLimit": 300_000,
    "nvmlDeviceGetTotalEnergyConsumption": 1_000_000,
    "nvmlDeviceGetClockInfo": 1980,
    "nvmlDeviceGetMaxClockInfo": 1980,
    "nvmlDeviceGetCurrentClocksEventReasons": 0,
    "nvmlDeviceGetCurrentClocksThrottleReasons": None,
    "nvmlDeviceGetViolationStatus": None,
    "nvmlDeviceGetComputeRunningProcesses": [],
    "nvmlSystemGetProcessName": "python",
    "nvmlDeviceGetMigMode": [0, 0],
}
"""A device that tells nearly everything, has nothing to do and nobody on it."""
