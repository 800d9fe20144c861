"""Which failure it was: the texts and codes by which compiler and runtime end, and the reason that each has here.

The libraries raise `RuntimeError` for all of it, often with less than the runtime has written to the console just
before; so the console's text is listened to while a graph is compiled, loaded or first called.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Thread
from typing import Final

from inferbench_runner.backends.neuron.devices import KIND, WAY_OUT
from inferbench_runner.errors import (
    BadInputError,
    CompileFailedError,
    CompileOutOfMemoryError,
    DeviceBusyError,
    DeviceNotFoundError,
    DeviceOutOfMemoryError,
    DeviceTimeoutError,
    HardwareFaultError,
    NumericMismatchError,
    OutOfMemoryError,
    RunnerError,
    RuntimeIncompatibleError,
    is_out_of_memory,
)
from inferbench_runner.words import one_line

TIME_LIMIT: Final = "NEURON_RT_EXEC_TIMEOUT"
"""Environment variable with the seconds that one execution may take."""

DETAIL_CHARACTERS: Final = 160
"""Longest quotation in a sentence."""

HEARD_BYTES: Final = 65_536
"""Most of the console's text that is kept: the end of it."""

STATUS: Final = re.compile(
    r"(?:(?<!exit )status|NRT_STATUS|response code '\w+')[\s=:(]+(\d+)|\bNRT (\d+)\b|devices, error:(\d+)"
)
"""How the runtime and its callers write a status code."""

EXIT: Final = re.compile(r"(?:failed with|exit status|exit code|exited with|returned)[\s:]+(-?\d+)")
"""How the libraries write how the compiler ended."""

KILLED: Final = frozenset({-9, 137})
"""Exit of a program that the kernel has ended: nearly always for want of memory."""


@dataclass(frozen=True)
class Row:
    """One kind of failure, and by what it is recognised."""

    build: Callable[[str], RunnerError]
    """Makes our own failure from what was said."""
    texts: tuple[str, ...]
    """Any of them, as the runtime writes it."""
    statuses: frozenset[int] = frozenset()
    """The runtime's status codes, from its nrt_status.h."""

    def fits(self, text: str, status: int | None) -> bool:
        """Whether it is this failure."""
        return status in self.statuses or any(one in text for one in self.texts)


def _absent(detail: str) -> RunnerError:
    return DeviceNotFoundError(KIND, f"the runtime of {KIND} finds no device ({detail})", WAY_OUT)


def _timeout(detail: str) -> RunnerError:
    return DeviceTimeoutError(f"its limit is {TIME_LIMIT}, which runner.env can raise: {detail}")


def without_number(detail: str) -> RunnerError:
    """Return the failure of an execution whose arithmetic gave infinity or nothing that is a number."""
    return NumericMismatchError(f"The device's arithmetic gave no number; use another precision: {detail}")


def _host_memory(detail: str) -> RunnerError:
    return OutOfMemoryError(detail)


ROWS: Final = (
    Row(
        RuntimeIncompatibleError,
        (
            "Unable to determine Neuron Driver version",
            "This runtime requires Neuron Driver version",
            "is not compatible with the installed aws-neuron",
            "NEFF version mismatch",
            "Unsupported hardware operator code",
            "NRT_UNSUPPORTED_NEFF_VERSION",
        ),
        frozenset({10}),
    ),
    Row(
        DeviceBusyError,
        ("NeuronCore(s) not available", "NRT_LOAD_NOT_ENOUGH_NC", "NRT_EXEC_NC_BUSY", "NERR_RESOURCE_NC"),
        frozenset({9, 1005}),
    ),
    Row(
        _absent,
        (
            "This instance has no neuron devices",
            "No neuron device available",
            "Unable to read device information from the driver",
            "Could not open the nd",
            "!(num_devices > 0)",
        ),
    ),
    Row(_host_memory, ("NRT_FAIL_HOST_MEM_ALLOC",), frozenset({11})),
    Row(DeviceOutOfMemoryError, ("NRT_RESOURCE", "message=Allocation Failure", "neuron:mc_alloc"), frozenset({4})),
    Row(_timeout, ("NRT_TIMEOUT", "inference timeout"), frozenset({5})),
    Row(
        HardwareFaultError,
        ("NRT_HW_ERROR", "NRT_EXEC_HW_ERR", "NRT_EXEC_UNIT_UNRECOVERABLE"),
        frozenset({6, 101, 1200, 1201, 1202, 1203, 1204, 1205, 1206}),
    ),
    Row(
        BadInputError,
        ("NRT_EXEC_BAD_INPUT", "NRT_EXEC_OOB", "Incorrect tensor shape at input tensor"),
        frozenset({1002, 1006}),
    ),
    Row(
        without_number, ("NRT_EXEC_COMPLETED_WITH_NUM_ERR", "INFER_ERROR_SUBTYPE_NUMERICAL", "message=Numerical Error"),
        frozenset({1003}),
    ),
)  # fmt: skip
"""In order: what the text says about drivers and cores explains the code that a later step ends with."""

KILLED_TEXTS: Final = ("[F137]", "was forcibly killed", "insufficient system memory")
"""How `neuronx-cc` says that it, or a part of it, was ended."""


@dataclass
class Heard:
    """The end of what was written to the console meanwhile."""

    _bytes: bytearray = field(default_factory=bytearray)

    def add(self, chunk: bytes) -> None:
        """Keep it, and forget what is too long ago."""
        self._bytes += chunk
        del self._bytes[:-HEARD_BYTES]

    @property
    def text(self) -> str:
        """What was heard."""
        return self._bytes.decode(errors="replace")


def recognised(error: BaseException, heard: str = "") -> RunnerError | None:
    """Return our own failure for what the runtime or its libraries raised; None for what they don't know either."""
    text = f"{heard}\n{error}"
    # The exception's own code counts first: the console may have told of another call before.
    status = _number(STATUS, str(error)) or _number(STATUS, heard)
    for row in ROWS:
        if row.fits(text, status):
            return row.build(_quoted(text, row, error))
    return OutOfMemoryError() if is_out_of_memory(error) else None


def compile_failure(error: BaseException, compiler: str, heard: str = "") -> RunnerError:
    """Return our own failure for what a compilation ended with."""
    text = f"{heard}\n{error}"
    exits = error.returncode if isinstance(error, subprocess.CalledProcessError) else _number(EXIT, str(error))
    killed = exits in KILLED or any(one in text for one in KILLED_TEXTS)
    if killed or is_out_of_memory(error):
        return CompileOutOfMemoryError(compiler)
    # How a compiler ended is no word of the runtime's.
    known = None if exits is not None else recognised(error, heard)
    return known or CompileFailedError(compiler, _tail(error, heard))


@contextmanager
def typed_failures(compiler: str | None = None, *, listening: bool = True) -> Iterator[None]:
    """Give what the libraries raise its own type; a `compiler` is named where a graph is being made."""
    caught: Exception | None = None
    with overheard() if listening else _silence() as heard:
        try:
            yield
        except RunnerError:
            raise
        except Exception as error:  # noqa: BLE001  # raised again below, when all has been heard
            caught = error
    if caught is None:
        return
    typed = compile_failure(caught, compiler, heard.text) if compiler else recognised(caught, heard.text)
    if typed is None:
        raise caught
    raise typed from caught


@contextmanager
def overheard() -> Iterator[Heard]:
    """Keep a copy of what this process and its children write to standard output and error, which goes on as before.

    What the runtime logs comes from native code, so that Python's own streams never see it.
    """
    heard, (reading, writing) = Heard(), os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
    listener = Thread(target=_listen, args=(reading, kept[2], heard), daemon=True)
    listener.start()
    for descriptor in kept:
        os.dup2(writing, descriptor)
    os.close(writing)

    def settle() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, original in kept.items():
            os.dup2(original, descriptor)

    try:
        yield heard
    finally:
        settle()
        # A compiler's daemon may keep the pipe open; what it says from now on is nobody's.
        listener.join(timeout=1)
        for original in kept.values() if not listener.is_alive() else ():
            os.close(original)


@contextmanager
def _silence() -> Iterator[Heard]:
    yield Heard()


def _listen(reading: int, onward: int, heard: Heard) -> None:
    while chunk := os.read(reading, 8192):
        heard.add(chunk)
        os.write(onward, chunk)
    os.close(reading)


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    """Return the last number that a pattern finds: the first ones may be of steps that were tried again."""
    found = pattern.findall(text)
    if not found:
        return None
    last = found[-1]
    return int(last if isinstance(last, str) else next(one for one in last if one))


def _quoted(text: str, row: Row, error: BaseException) -> str:
    """Return the line by which the failure was recognised."""
    lines = [line for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if any(one in line for one in row.texts) or STATUS.search(line)]
    return one_line(telling[-1] if telling else str(error), DETAIL_CHARACTERS)


def _tail(error: BaseException, heard: str) -> str:
    """Return the compiler's own last error where it wrote one, and the exception."""
    told = [line for line in heard.splitlines() if "ERROR" in line or "[F" in line]
    last = f"{told[-1].strip()} " if told else ""
    return one_line(f"{last}{type(error).__name__}: {error}", DETAIL_CHARACTERS)
