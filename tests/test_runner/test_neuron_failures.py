"""Every row of the table of Neuron's failures, by texts that the compiler, the runtime or their users have recorded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from inferbench_runner.backends.neuron.failures import (
    KILLED,
    KILLED_TEXTS,
    ROWS,
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


TEXTS = {
    "Unable to determine Neuron Driver version": FailureReason.RUNTIME_INCOMPATIBLE,
    "This runtime requires Neuron Driver version": FailureReason.RUNTIME_INCOMPATIBLE,
    "is not compatible with the installed aws-neuron": FailureReason.RUNTIME_INCOMPATIBLE,
    "NEFF version mismatch": FailureReason.RUNTIME_INCOMPATIBLE,
    "Unsupported hardware operator code": FailureReason.RUNTIME_INCOMPATIBLE,
    "NRT_UNSUPPORTED_NEFF_VERSION": FailureReason.RUNTIME_INCOMPATIBLE,
    "NeuronCore(s) not available": FailureReason.DEVICE_BUSY,
    "NRT_LOAD_NOT_ENOUGH_NC": FailureReason.DEVICE_BUSY,
    "NRT_EXEC_NC_BUSY": FailureReason.DEVICE_BUSY,
    "NERR_RESOURCE_NC": FailureReason.DEVICE_BUSY,
    "This instance has no neuron devices": FailureReason.DEVICE_NOT_FOUND,
    "No neuron device available": FailureReason.DEVICE_NOT_FOUND,
    "Unable to read device information from the driver": FailureReason.DEVICE_NOT_FOUND,
    "Could not open the nd": FailureReason.DEVICE_NOT_FOUND,
    "!(num_devices > 0)": FailureReason.DEVICE_NOT_FOUND,
    "NRT_FAIL_HOST_MEM_ALLOC": FailureReason.OUT_OF_MEMORY,
    "NRT_RESOURCE": FailureReason.DEVICE_OUT_OF_MEMORY,
    "message=Allocation Failure": FailureReason.DEVICE_OUT_OF_MEMORY,
    "neuron:mc_alloc": FailureReason.DEVICE_OUT_OF_MEMORY,
    "NRT_TIMEOUT": FailureReason.DEVICE_TIMEOUT,
    "inference timeout": FailureReason.DEVICE_TIMEOUT,
    "NRT_HW_ERROR": FailureReason.HARDWARE_ERROR,
    "NRT_EXEC_HW_ERR": FailureReason.HARDWARE_ERROR,
    "NRT_EXEC_UNIT_UNRECOVERABLE": FailureReason.HARDWARE_ERROR,
    "NRT_EXEC_BAD_INPUT": FailureReason.BAD_INPUT,
    "NRT_EXEC_OOB": FailureReason.BAD_INPUT,
    "Incorrect tensor shape at input tensor": FailureReason.BAD_INPUT,
    "NRT_EXEC_COMPLETED_WITH_NUM_ERR": FailureReason.NUMERIC_MISMATCH,
    "INFER_ERROR_SUBTYPE_NUMERICAL": FailureReason.NUMERIC_MISMATCH,
    "message=Numerical Error": FailureReason.NUMERIC_MISMATCH,
}
"""What each text means, written down beside the code's own table and not from it."""

STATUSES = {
    4: FailureReason.DEVICE_OUT_OF_MEMORY,
    5: FailureReason.DEVICE_TIMEOUT,
    6: FailureReason.HARDWARE_ERROR,
    9: FailureReason.DEVICE_BUSY,
    10: FailureReason.RUNTIME_INCOMPATIBLE,
    11: FailureReason.OUT_OF_MEMORY,
    101: FailureReason.HARDWARE_ERROR,
    1002: FailureReason.BAD_INPUT,
    1003: FailureReason.NUMERIC_MISMATCH,
    1005: FailureReason.DEVICE_BUSY,
    1006: FailureReason.BAD_INPUT,
    1200: FailureReason.HARDWARE_ERROR,
    1201: FailureReason.HARDWARE_ERROR,
    1202: FailureReason.HARDWARE_ERROR,
    1203: FailureReason.HARDWARE_ERROR,
    1204: FailureReason.HARDWARE_ERROR,
    1205: FailureReason.HARDWARE_ERROR,
    1206: FailureReason.HARDWARE_ERROR,
}
"""The same for the codes of the runtime's nrt_status.h."""

STATUS_WRITINGS = [
    "Failed to execute the model status={} message=x",
    "nrt_execute status: {}",
    "failed, status({})",
    "NRT_STATUS = {}",
    "NRTD response code 'NERR_X' ({})",
    "the runtime ended with NRT {}",
    "cannot count the devices, error:{}",
]
"""The ways in which the runtime and its callers write a code."""


def test_the_tables_of_this_test_are_complete() -> None:
    """No text, code or exit of the code's tables is without an expectation here, and none stands in two rows."""
    assert sorted(TEXTS) == sorted(text for row in ROWS for text in row.texts)
    assert sorted(STATUSES) == sorted(status for row in ROWS for status in row.statuses)
    assert sorted(KILLED_WORDS) == sorted(KILLED_TEXTS)
    assert sorted(KILLED_EXITS) == sorted(KILLED)


@pytest.mark.parametrize(("text", "reason"), TEXTS.items())
def test_every_text_has_its_reason(text: str, reason: FailureReason) -> None:
    """Whether the library raises it or the console alone has it."""
    line = f"2024-Jul-30 14:22:31.305961 65191:69012 ERROR  NRT:x  {text}1 etc."
    for error, heard in ((RuntimeError(line), ""), (RuntimeError("Failed"), f"INFO before\n{line}\nINFO after")):
        failure = recognised(error, heard)
        assert failure is not None
        assert failure.reason is reason
        assert "ERROR NRT:x" in str(failure)


@pytest.mark.parametrize("writing", STATUS_WRITINGS)
@pytest.mark.parametrize(("status", "reason"), STATUSES.items())
def test_every_status_has_its_reason(status: int, reason: FailureReason, writing: str) -> None:
    """However it is written, raised or only heard."""
    line = writing.format(status)
    for error, heard in ((RuntimeError(line), ""), (RuntimeError("Failed"), line)):
        failure = recognised(error, heard)
        assert failure is not None
        assert failure.reason is reason


@pytest.mark.parametrize("status", [0, 1, 2, 3, 7, 12, 100, 1001, 1004, 1207, 12020, 99])
def test_any_other_status_has_none(status: int) -> None:
    """A number that only begins like a known one is another one."""
    assert recognised(RuntimeError(f"Failed to execute the model status={status} message=x")) is None


KILLED_EXITS = [-9, 137]
"""How a program ends that the kernel has killed: as Python tells it, and as a shell does."""

KILLED_WORDS = ["[F137]", "was forcibly killed", "insufficient system memory"]

EXIT_WRITINGS = [
    "neuronx-cc failed with {}",
    "returned non-zero exit status {}.",
    "the compiler's exit code: {}",
    "neuronx-cc exited with {}",
    "neuronx-cc returned {}",
]


@pytest.mark.parametrize("code", KILLED_EXITS)
@pytest.mark.parametrize("writing", EXIT_WRITINGS)
def test_every_exit_by_force_is_a_want_of_memory(code: int, writing: str) -> None:
    """Whatever passes it on, and however it is written."""
    for error in (subprocess.CalledProcessError(code, ["neuronx-cc"]), RuntimeError(writing.format(code))):
        assert compile_failure(error, "neuronx-cc 2.21").reason is FailureReason.COMPILE_OUT_OF_MEMORY


@pytest.mark.parametrize("words", KILLED_WORDS)
def test_every_word_for_it_is_a_want_of_memory(words: str) -> None:
    """Whatever the exit, since it may be that of a program in between."""
    heard, error = f"INFO\n06/15 {words}\nINFO", RuntimeError("neuronx-cc failed with 70")
    assert compile_failure(error, "neuronx-cc 2.21", heard).reason is FailureReason.COMPILE_OUT_OF_MEMORY
    assert compile_failure(RuntimeError(words), "neuronx-cc 2.21").reason is FailureReason.COMPILE_OUT_OF_MEMORY


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
