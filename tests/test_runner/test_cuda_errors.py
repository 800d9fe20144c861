"""The words of CUDA and PyTorch, as they were seen, and the failures that they mean."""

from __future__ import annotations

import pytest

from inferbench_runner.backends.cuda_errors import SIGNS, typed_error
from inferbench_runner.contract import FailureReason

DEBUG = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
"""What PyTorch puts after each of CUDA's errors; it mentions assertions, which are none of ours."""

TOO_BIG = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 22.06 GiB of which 1.88 GiB is "
    "free. Including non-PyTorch memory, this process has 20.17 GiB memory in use."
)
TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by downloading "
    "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
)
ABSENT = (
    "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver from "
    "http://www.nvidia.com/Download/index.aspx"
)
COUNTING = "Unexpected error from cudaGetDeviceCount(). Error"

MESSAGES = {
    FailureReason.DEVICE_OUT_OF_MEMORY: (
        TOO_BIG,
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "Triton Error [CUDA]: out of memory",
    ),
    FailureReason.DEVICE_BUSY: (
        "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "CUDA error: all CUDA-capable devices are busy or unavailable",
        "all CUDA-capable devices are busy",
    ),
    FailureReason.RUNTIME_INCOMPATIBLE: (
        TOO_OLD,
        "CUDA driver version is insufficient for CUDA runtime version",
        "CUDA error: no kernel image is available for execution on the device",
        "CUDA error: device kernel image is invalid",
        "CUDA error: the provided PTX was compiled with an unsupported toolchain.",
        f"{COUNTING} 803: system has unsupported display driver / cuda driver combination",
        f"{COUNTING} 804: forward compatibility was attempted on non supported HW",
    ),
    FailureReason.DEVICE_TIMEOUT: ("CUDA error: the launch timed out and was terminated",),
    FailureReason.PROCESS_CRASHED: (
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: misaligned address",
        "CUDA error: an illegal instruction was encountered",
    ),
    FailureReason.BAD_INPUT: ("CUDA error: device-side assert triggered",),
    FailureReason.HARDWARE_ERROR: (
        "NVRM: Xid (PCI:0000:00:1e): 79, GPU has fallen off the bus.",
        "CUDA error: uncorrectable ECC error encountered",
        "CUDA error: unspecified launch failure",
        "CUDA error: hardware error",
        "CUDA error: hardware stack error",
        "CUDA error: uncorrectable NVLink error detected during the execution",
        "GPU is lost",
    ),
    FailureReason.DEVICE_NOT_FOUND: (
        ABSENT,
        "No CUDA GPUs are available",
        "CUDA error: no CUDA-capable device is detected",
    ),
}

ROWS = [(text, reason) for reason, texts in MESSAGES.items() for text in texts]


@pytest.mark.parametrize(("before", "behind"), [("", ""), ("backend='inductor' raised:\nError: ", DEBUG)])
@pytest.mark.parametrize(("text", "reason"), ROWS, ids=[text[:50] for text, _ in ROWS])
def test_each_message_has_its_reason(text: str, reason: FailureReason, before: str, behind: str) -> None:
    """Its line is quoted, wherever it stands, and neither a compiler's words nor the advice on debugging are."""
    found = typed_error(RuntimeError(before + text + behind))
    assert found is not None
    assert found.reason is reason
    assert text.rstrip(".") in str(found)
    assert "inductor" not in str(found)
    assert "CUDA_LAUNCH_BLOCKING" not in str(found)


def test_each_sign_is_seen_in_a_message() -> None:
    """No entry of the table is there without an example."""
    assert not [words for words, _ in SIGNS if not any(words in text.lower() for text, _ in ROWS)]


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: operation not permitted when stream is capturing" + DEBUG,
        "mat1 and mat2 shapes cannot be multiplied (1x3 and 4x5)",
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1099511627776 bytes.",
    ],
)
def test_other_words_mean_nothing_of_the_device(text: str) -> None:
    """Faults of programs, and of the host, are left to others."""
    assert typed_error(RuntimeError(text)) is None
