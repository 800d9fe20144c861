"""Sentences of the failures that no back end raises by itself: each says what happened and what to do."""

from __future__ import annotations

import errno

import pytest

from inferbench_runner.contract import CellFailed, FailureReason, Phase
from inferbench_runner.errors import (
    BadInputError,
    CacheUnwritableError,
    DeviceBusyError,
    DeviceNotFoundError,
    DeviceOutOfMemoryError,
    DeviceTimeoutError,
    DeviceUnusedError,
    HardwareFaultError,
    MissingDependencyError,
    OutOfMemoryError,
    PhaseFailedError,
    ProcessCrashedError,
    ProcessExitedError,
    ProcessHungError,
    ProcessKilledError,
    ProcessorUnusableError,
    RunnerError,
    RuntimeIncompatibleError,
)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ProcessKilledError("SIGKILL"), ["SIGKILL", "from outside", "events", "limits.memory"]),
        (ProcessCrashedError("SIGSEGV"), ["SIGSEGV", "native code", "image", "execution", "smaller shape"]),
        (ProcessExitedError(3), ["exit code 3", "the pod's log"]),
        (ProcessHungError(600), ["600 s", "smaller shape"]),
        (OutOfMemoryError(), ["memory ran out;", "limits.memory", "smaller batch"]),
        (OutOfMemoryError("the kernel's OOM killer ended it"), ["(the kernel's OOM killer ended it)", "limits.memory"]),
        (
            CacheUnwritableError("/cache", OSError(errno.ENOSPC, "No space left")),
            ["/cache", "No space left", "HF_HOME"],
        ),
        (ProcessorUnusableError("vocab.txt", "is empty", "replace it"), ["vocab.txt is empty", "replace it"]),
        (DeviceUnusedError("NVIDIA", "it did nothing"), ["NVIDIA", "it did nothing", "runner.image"]),
        (DeviceNotFoundError("Neuron"), ["no back end for Neuron", "runner.image", "CPU"]),
        (DeviceNotFoundError("NVIDIA", "it is gone", "look"), ["device.kind: it is gone; look."]),
        (MissingDependencyError("pynvml", "nvidia"), ["pynvml", "pip install 'inferbench-operator[nvidia]'."]),
        (
            MissingDependencyError("torch_neuronx", "neuron"),
            ["torch_neuronx", "the image runner-neuronx", "inferbench-operator[neuron]", "AWS's pip repository"],
        ),
        (DeviceOutOfMemoryError("20 GiB"), ["smaller batch", "instanceTypes", "20 GiB"]),
        (DeviceBusyError("busy"), ["Another process", "execution.exclusiveNode", "busy"]),
        (RuntimeIncompatibleError("sm_37"), ["driver", "runner.image", "sm_37"]),
        (DeviceTimeoutError("timed out"), ["in its time", "smaller batch", "timed out"]),
        (HardwareFaultError("Xid 79"), ["fault of its own", "kernel log", "Xid 79"]),
        (BadInputError("assert"), ["inputs", "model.config", "assert"]),
    ],
)
def test_each_sentence_says_what_to_do_and_fits_into_a_report(error: RunnerError, words: list[str]) -> None:
    """What happened, the figure or name that tells more, and the way out, in at most 240 characters."""
    sentence = str(error)
    assert not [word for word in words if word not in sentence], sentence
    CellFailed(cell="0" * 10, phase=Phase.MEASURE, reason=error.reason, message=sentence)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9")],
)
def test_the_libraries_ways_of_running_out_of_memory_are_one_reason(error: Exception) -> None:
    """Neither Python's nor PyTorch's own exception is an internal error."""
    failed = PhaseFailedError(Phase.MEASURE, error)
    assert failed.reason is FailureReason.OUT_OF_MEMORY
    assert failed.sentence == str(OutOfMemoryError())


def test_other_runtime_errors_are_internal() -> None:
    """Only the words for a failed allocation are taken for one."""
    assert PhaseFailedError(Phase.MEASURE, RuntimeError("shapes differ")).reason is FailureReason.INTERNAL_ERROR
