"""What CUDA's error messages mean: the one table from their words to our failures.

CUDA's own codes don't reach Python: the libraries raise a `RuntimeError` with a sentence, here told apart by its words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from inferbench_runner.contract import AcceleratorKind
from inferbench_runner.errors import (
    BadInputError,
    DeviceBusyError,
    DeviceNotFoundError,
    DeviceOutOfMemoryError,
    DeviceTimeoutError,
    HardwareFaultError,
    ProcessCrashedError,
    RunnerError,
    RuntimeIncompatibleError,
)


def _not_found(detail: str) -> RunnerError:
    return DeviceNotFoundError(
        AcceleratorKind.NVIDIA,
        f"PyTorch finds no NVIDIA device: {detail.rstrip('.')}",
        "request nvidia.com/gpu in runner.resources.limits, and take CUDA_VISIBLE_DEVICES out of runner.env",
    )


SIGNS: Final[tuple[tuple[str, Callable[[str], RunnerError]], ...]] = (
    ("cuda out of memory", DeviceOutOfMemoryError),
    ("cuda error: out of memory", DeviceOutOfMemoryError),
    ("triton error [cuda]: out of memory", DeviceOutOfMemoryError),
    ("cublas_status_alloc_failed", DeviceOutOfMemoryError),
    ("cudnn_status_alloc_failed", DeviceOutOfMemoryError),
    ("busy or unavailable", DeviceBusyError),
    ("all cuda-capable devices are busy", DeviceBusyError),
    ("driver version is insufficient", RuntimeIncompatibleError),
    ("nvidia driver on your system is too old", RuntimeIncompatibleError),
    ("no kernel image is available", RuntimeIncompatibleError),
    ("device kernel image is invalid", RuntimeIncompatibleError),
    ("compiled with an unsupported toolchain", RuntimeIncompatibleError),
    ("unsupported display driver / cuda driver combination", RuntimeIncompatibleError),
    ("forward compatibility was attempted on non supported hw", RuntimeIncompatibleError),
    ("launch timed out", DeviceTimeoutError),
    ("device-side assert triggered", BadInputError),
    ("an illegal memory access", ProcessCrashedError),
    ("misaligned address", ProcessCrashedError),
    ("an illegal instruction", ProcessCrashedError),
    ("xid (", HardwareFaultError),
    ("ecc error", HardwareFaultError),
    ("unspecified launch failure", HardwareFaultError),
    ("hardware error", HardwareFaultError),
    ("hardware stack error", HardwareFaultError),
    ("uncorrectable nvlink error", HardwareFaultError),
    ("gpu is lost", HardwareFaultError),
    ("found no nvidia driver", _not_found),
    ("no cuda gpus are available", _not_found),
    ("no cuda-capable device is detected", _not_found),
)
"""Words, in lower case, and the failure that they mean; the first that fits counts."""


def typed_error(error: BaseException) -> RunnerError | None:
    """Return the failure that an exception's words mean; None where they mean none of the device.

    Quoted is the line with the words: compilers put their own before it, and PyTorch advice on debugging behind it.
    """
    lines = str(error).splitlines()
    for words, failure in SIGNS:
        for line in lines:
            if words in line.lower():
                return failure(line.strip())
    return None
