"""Every row of the table of Neuron's failures, by texts that the compiler, the runtime or their users have recorded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from inferbench_runner.backends.neuron.failures import (
    ROWS,
    Row,
    compile_failure,
    overheard,
    recognised,
    typed_failures,
)
from inferbench_runner.contract import FailureReason
from inferbench_runner.errors import CompileFailedError, InvalidPlanError, RunnerError

INIT = (
    "The PyTorch Neuron Runtime could not be initialized. Neuron Driver issues are logged to your system logs. "
    "See the Neuron Runtime's troubleshooting guide for help on this topic"
)
"""What PyTorch says whatever the runtime has against it."""

RECORDED = [
    # The runtime's own lines, as in its troubleshooting guide, then what PyTorch made of them.
    (
        (
            "2021-Aug-11 18:38:27.0917 13713:13713 ERROR   NRT:nrt_init      Unable to determine Neuron Driver "
            "version. Please check aws-neuron-dkms package is installed."
        ),
        INIT,
        FailureReason.RUNTIME_INCOMPATIBLE,
    ),
    (
        (
            "ERROR   NRT:nrt_init      This runtime requires Neuron Driver version 2.0 or greater. Please upgrade "
            "aws-neuron-dkms package."
        ),
        INIT,
        FailureReason.RUNTIME_INCOMPATIBLE,
    ),
    (
        "This Neuron Runtime (compatibility id: X) is not compatible with the installed aws-neuron-dkms package",
        INIT,
        FailureReason.RUNTIME_INCOMPATIBLE,
    ),
    (
        "NEFF version mismatch supported: 1.1 received: 2.0",
        "Could not load the model status=10 message=Unsupported NEFF Version",
        FailureReason.RUNTIME_INCOMPATIBLE,
    ),
    ("", "Could not load the model status=10 message=Unsupported", FailureReason.RUNTIME_INCOMPATIBLE),
    (
        (
            "2023-Jul-28 22:23:13.0357 101413:101422 ERROR  TDRV:translate_one_pseudo_instr_v2           Unsupported "
            "hardware operator code 214 found in neff."
        ),
        "Could not load the model status=1 message=Failure",
        FailureReason.RUNTIME_INCOMPATIBLE,
    ),
    (
        (
            "2021-Aug-27 23:22:12.0323 28078:28078 ERROR   NRT:nrt_allocate_neuron_cores               NeuronCore(s) "
            "not available - Requested:nc1-nc1 Available:0"
        ),
        INIT,
        FailureReason.DEVICE_BUSY,
    ),
    ("", "Could not load the model status=9 message=Not enough NC", FailureReason.DEVICE_BUSY),
    ("", "Failed to execute the model status=1005 message=NC busy", FailureReason.DEVICE_BUSY),
    (
        "",
        (
            "NeuronDevice::process_nrtd_response: Context=NRTD_CTX_INITIALIZE NRTD response code 'NERR_RESOURCE_NC' (9)"
            " There were insufficent NCs for the requested"
        ),
        FailureReason.DEVICE_BUSY,
    ),
    ("", "This instance has no neuron devices", FailureReason.DEVICE_NOT_FOUND),
    (
        "ERROR  TDRV:tdrv_get_dev_info                       No neuron device available",
        "Neuron runtime cannot be initialized; cannot determine the number of available NeuronCores",
        FailureReason.DEVICE_NOT_FOUND,
    ),
    (
        "ERROR  TDRV:tdrv_init_mla_phase1                    Could not open the nd1",
        INIT,
        FailureReason.DEVICE_NOT_FOUND,
    ),
    (
        "",
        (
            "Bad StatusOr access: INVALID_ARGUMENT: PJRT_Client_Create: error condition nullptr != (args)->client->"
            "Error(): Init: error condition !(num_devices > 0):"
        ),
        FailureReason.DEVICE_NOT_FOUND,
    ),
    ("", "Could not load the model status=11 message=Host Memory Allocation Failure", FailureReason.OUT_OF_MEMORY),
    ("", "Could not load the model status=4 message=Allocation Failure", FailureReason.DEVICE_OUT_OF_MEMORY),
    ("", 'nrt_tensor_allocate status=4 message="Allocation Failure"', FailureReason.DEVICE_OUT_OF_MEMORY),
    (
        "2024-Jul-30 14:22:31.305961 65191:69012 ERROR   NRT:nrt_infodump       Failure: NRT_RESOURCE in nrt_load()",
        "Could not load the model",
        FailureReason.DEVICE_OUT_OF_MEMORY,
    ),
    ("", "Failed to execute the model status=5 message=Timeout", FailureReason.DEVICE_TIMEOUT),
    (
        (
            "2023-Jan-09 20:27:41.0593 15042:15042 ERROR  TDRV:exec_consume_infer_status_notifications "
            "(FATAL-RT-UNDEFINED-STATE) inference timeout (600000 ms) on Neuron Device 0 NC 0"
        ),
        "Failed to execute the model",
        FailureReason.DEVICE_TIMEOUT,
    ),
    ("", "Failed to execute the model status=6 message=Hardware Failure", FailureReason.HARDWARE_ERROR),
    ("", "Failed to execute the model status=101 message=Unrecoverable", FailureReason.HARDWARE_ERROR),
    ("", "Failed to execute the model status=1200 message=Stuck", FailureReason.HARDWARE_ERROR),
    ("", "Failed to execute the model status=1202 message=Parity", FailureReason.HARDWARE_ERROR),
    ("NRT_EXEC_HW_ERR_HBM_UE", "Failed to execute the model", FailureReason.HARDWARE_ERROR),
    ("", "Failed to execute the model status=1002 message=Bad Input", FailureReason.BAD_INPUT),
    ("", "Failed to execute the model status=1006 message=Out of bound", FailureReason.BAD_INPUT),
    (
        "",
        "Incorrect tensor shape at input tensor #0: received 1 128, expected 1 64.",
        FailureReason.BAD_INPUT,
    ),
    ("", "Failed to execute the model status=1003 message=Numerical Error", FailureReason.NUMERIC_MISMATCH),
    (
        "nrtd[42]: ....  Error notifications found on NC .... INFER_ERROR_SUBTYPE_NUMERICAL",
        "Failed to execute the model",
        FailureReason.NUMERIC_MISMATCH,
    ),
]


@pytest.mark.parametrize(("heard", "text", "reason"), RECORDED)
def test_recorded_failures_have_their_reason(heard: str, text: str, reason: FailureReason) -> None:
    """What the console said and what PyTorch raised give the reason, and the sentence quotes the telling line."""
    failure = recognised(RuntimeError(text), heard)
    assert failure is not None
    assert failure.reason is reason
    assert failure.__class__ is not RunnerError
    if reason is not FailureReason.OUT_OF_MEMORY:
        assert (heard or text).strip()[:20].split()[0] in str(failure) or text[:20] in str(failure)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.texts[0])
def test_every_row_has_a_recorded_failure(row: Row) -> None:
    """No row of the table is without a case above, so that none can go wrong unseen."""
    reason = row.build("x").reason
    assert reason in {known for *_, known in RECORDED}
    cases = [one for one in RECORDED if one[2] is reason]
    for text in row.texts[:1]:
        assert any(text in f"{heard}\n{said}" or _coded(row, said) for heard, said, _ in cases)


def _coded(row: Row, text: str) -> bool:
    return any(f"status={status} " in text for status in row.statuses)


@pytest.mark.parametrize(
    ("error", "heard"),
    [
        (RuntimeError("neuronx-cc failed with -9"), ""),
        (RuntimeError("neuronx-cc failed with 137"), ""),
        (subprocess.CalledProcessError(-9, ["neuronx-cc"]), ""),
        (subprocess.CalledProcessError(137, ["neuronx-cc"]), ""),
        (
            RuntimeError("neuronx-cc failed with 70"),
            "[F137] neuronx-cc was forcibly killed - This most commonly occurs due to insufficient system memory.",
        ),
        (MemoryError(), ""),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate"), ""),
    ],
)
def test_a_compiler_that_was_killed_had_not_enough_memory(error: Exception, heard: str) -> None:
    """Exit -9 or 137, or the compiler's own word for it."""
    failure = compile_failure(error, "neuronx-cc 2.21", heard)
    assert failure.reason is FailureReason.COMPILE_OUT_OF_MEMORY
    assert "neuronx-cc 2.21" in str(failure)


@pytest.mark.parametrize("code", [1, 4, 5, 6, 9, 10, 11, 70])
def test_how_a_compiler_ended_is_no_status_of_the_runtime(code: int) -> None:
    """The runtime has statuses with the same numbers, which mean something else."""
    for error in (subprocess.CalledProcessError(code, ["neuronx-cc"]), RuntimeError(f"neuronx-cc failed with {code}")):
        assert compile_failure(error, "neuronx-cc 2.21").reason is FailureReason.COMPILE_FAILED


def test_any_other_end_of_the_compiler_keeps_the_tail_of_its_log() -> None:
    """The last line that the compiler calls an error is quoted, and then the exception."""
    heard = "INFO start\n06/15 ERROR 85724 [neuronx-cc]: NCC_EVRF001 operator sort is not supported\nINFO cleaning up"
    failure = compile_failure(RuntimeError("neuronx-cc failed with 70"), "neuronx-cc 2.21", heard)
    assert isinstance(failure, CompileFailedError)
    assert "NCC_EVRF001 operator sort is not supported" in str(failure)
    assert "neuronx-cc failed with 70" in str(failure)


def test_what_nobody_knows_stays_what_it_is() -> None:
    """An exception that the table has no row for is not given a reason by guess."""
    assert recognised(ValueError("shapes cannot be multiplied")) is None
    with pytest.raises(ZeroDivisionError), typed_failures():
        _ = 1 // 0


def test_our_own_failures_pass_through() -> None:
    """A failure that has its type already keeps it, in a compilation too."""
    failure = InvalidPlanError("device.cores", "too many", "lower it")
    with pytest.raises(InvalidPlanError) as caught, typed_failures("neuronx-cc"):
        raise failure
    assert caught.value is failure


def test_the_exceptions_own_code_counts_more_than_an_older_line() -> None:
    """The console may still tell of a call before."""
    failure = recognised(RuntimeError("Failed to execute the model status=1006"), "retrying after status=5")
    assert failure is not None
    assert failure.reason is FailureReason.BAD_INPUT


def test_native_code_and_child_processes_are_overheard(capfd: pytest.CaptureFixture[str]) -> None:
    """What is written to the descriptors themselves is heard, and still reaches the log."""
    with overheard() as heard:
        os.write(2, b"from native code\n")
        subprocess.run([sys.executable, "-c", "print('from a compiler')"], check=True)
    os.write(2, b"afterwards\n")
    assert heard.text.splitlines() == ["from native code", "from a compiler"]
    assert capfd.readouterr().err.splitlines() == ["from native code", "from a compiler", "afterwards"]


def test_only_the_end_is_remembered(capfd: pytest.CaptureFixture[str]) -> None:
    """A compiler that talks without end takes up no memory."""
    with overheard() as heard:
        for _ in range(100):
            os.write(2, b"x" * 4096)
        os.write(2, b"the end")
    assert len(heard.text) == 65_536
    assert heard.text.endswith("the end")
    assert len(capfd.readouterr().err) == 100 * 4096 + 7
