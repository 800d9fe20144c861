"""The runner's failures: one class per reason, each of which builds its own sentence from facts.

The first line of each docstring says whether the same plan could succeed in a new pod; `FailureReason.retryable` holds
the same knowledge for the operator, and a test compares the two.
"""

from __future__ import annotations

from typing import ClassVar, Final

from inferbench_runner.contract import CACHE_VARIABLE, Execution, FailureReason, Phase, Precision, Weights
from inferbench_runner.words import listed

NEURON_EXTRA: Final = "neuron"
"""Extra whose libraries for the device are AWS's own: under their names, PyPI has packages that only say so."""


class RunnerError(Exception):
    """Base of all failures that have a reason of their own."""

    reason: ClassVar[FailureReason] = FailureReason.INTERNAL_ERROR


class InvalidPlanError(RunnerError):
    """Retry: no. The plan contradicts itself or the model."""

    reason = FailureReason.INVALID_PLAN

    def __init__(self, field: str, problem: str, way_out: str) -> None:
        """Name the plan's field, what is wrong with it and what to write instead."""
        super().__init__(f"{field}: {problem}; {way_out}.")


class MissingDependencyError(RunnerError):
    """Retry: no. A library that the back end needs is not installed."""

    reason = FailureReason.MISSING_DEPENDENCY

    def __init__(self, module: str | None, extra: str, way_out: str = "") -> None:
        """Name the module that could not be imported, and the extra that brings it or another way out."""
        install = f"pip install 'inferbench-operator[{extra}]'"
        usual = f"install it with {install}"
        if extra == NEURON_EXTRA:
            usual = f"use the image runner-neuronx, or {install} with AWS's pip repository, since PyPI has stubs only"
        super().__init__(f"Python module {module} is missing; {way_out or usual}.")


class DeviceNotFoundError(RunnerError):
    """Retry: no. The image lacks what would drive the device, or the pod has none, and so would the next one."""

    reason = FailureReason.DEVICE_NOT_FOUND

    def __init__(self, kind: str, explanation: str = "", way_out: str = "") -> None:
        """Name the kind of device, why it can't be had, and what to do; without these nothing here can drive it."""
        super().__init__(
            f"device.kind: {explanation or f'this runner image has no back end for {kind}'}; "
            f"{way_out or 'set runner.image to one that has, or measure on CPU'}."
        )


class DeviceUnusedError(RunnerError):
    """Retry: no. The library did the work somewhere else, which would be measured as the device's."""

    reason = FailureReason.DEVICE_NOT_FOUND

    def __init__(self, kind: str, evidence: str) -> None:
        """Name the device that was asked for and what speaks against its having worked."""
        super().__init__(
            f"device.kind: {kind} was asked for, but {evidence}; set runner.image to one that fits the device's driver."
        )


class PrecisionUnsupportedError(RunnerError):
    """Retry: no. The device has no arithmetic of this format."""

    reason = FailureReason.PRECISION_UNSUPPORTED

    def __init__(self, precision: Precision, kind: str, supported: list[Precision]) -> None:
        """Name the precision and those that the device has."""
        super().__init__(f"precision: {kind} has no {precision}; use {listed([str(known) for known in supported])}.")


class ExecutionUnsupportedError(RunnerError):
    """Retry: no. The back end can't execute a graph in this way."""

    reason = FailureReason.EXECUTION_UNSUPPORTED

    def __init__(self, execution: Execution, kind: str, supported: list[Execution]) -> None:
        """Name the execution and those that the back end has."""
        super().__init__(
            f"device.execution: {kind} has no {execution}; "
            f"use {listed([str(known) for known in supported])}, or leave it out."
        )


class ModelNotFoundError(RunnerError):
    """Retry: no. No such model, revision or directory."""

    reason = FailureReason.MODEL_NOT_FOUND


class ModelAccessDeniedError(RunnerError):
    """Retry: no. The hub refuses the model to this account."""

    reason = FailureReason.MODEL_ACCESS_DENIED

    def __init__(self, model: str) -> None:
        """Name the model, and how to get in."""
        super().__init__(
            f"model.id: the hub denies access to {model}; "
            "accept its terms there and give the pod a valid token in HF_TOKEN."
        )


class FetchFailedError(RunnerError):
    """Retry: yes. The network or the hub failed, not the request."""

    reason = FailureReason.FETCH_FAILED

    def __init__(self, model: str, cause: BaseException) -> None:
        """Name the model and quote what the download ended with."""
        super().__init__(
            f"model.id: {model} could not be downloaded; check the pod's network, proxy and disk, or use a path: "
            f"{type(cause).__name__}: {cause}"
        )


class ModelUnsupportedError(RunnerError):
    """Retry: no. The model is not one that this runner can feed or load."""

    reason = FailureReason.MODEL_UNSUPPORTED


class TaskUnsupportedError(RunnerError):
    """Retry: no. The model's architecture has no head for the task."""

    reason = FailureReason.TASK_UNSUPPORTED

    def __init__(self, task: str, architecture: str, supported: list[str]) -> None:
        """Name the task, the architecture and the tasks that it has."""
        has = f"it has {listed(supported, 'and')}" if supported else "it has none that this runner can measure"
        super().__init__(f"model.task: {architecture} models have no {task}; {has}.")


class InvalidModelConfigError(RunnerError):
    """Retry: no. An override of the model's configuration makes no sense."""

    reason = FailureReason.INVALID_MODEL_CONFIG


class ProcessorUnusableError(RunnerError):
    """Retry: no. The model's tokenizer or image processor is broken or does not fit the model."""

    reason = FailureReason.PROCESSOR_UNUSABLE

    def __init__(self, what: str, problem: str, way_out: str) -> None:
        """Name the file or its field, what is wrong with it and what to put in its place."""
        super().__init__(f"model.id: {what} {problem}; {way_out}.")


class CacheUnwritableError(RunnerError):
    """Retry: no. A download has no place to go."""

    reason = FailureReason.CACHE_UNWRITABLE

    def __init__(self, directory: str, cause: OSError) -> None:
        """Name the directory, and how to get another one."""
        super().__init__(
            f"The hub's cache {directory} can't be written ({cause.strerror or cause}); "
            "mount a writable volume with room for the model, and set HF_HOME to it."
        )


class ArtefactsUnwritableError(RunnerError):
    """Retry: no. Compiled graphs have no place to go, and keeping them is what was asked for."""

    reason = FailureReason.CACHE_UNWRITABLE

    def __init__(self, folder: str, cause: OSError) -> None:
        """Name the folder, and how to get another one."""
        super().__init__(
            f"The cache of compiled graphs {folder} can't be written ({cause.strerror or cause}); mount a writable "
            f"volume with room for the graphs, and set {CACHE_VARIABLE} to it."
        )


class SequenceTooLongError(RunnerError):
    """Retry: no. The model has fewer positions than the shape has tokens."""

    reason = FailureReason.SEQUENCE_TOO_LONG

    def __init__(self, length: int, maximum: int) -> None:
        """Name both lengths, in tokens."""
        super().__init__(
            f"sequenceLength: {length} exceeds the model's maximum of {maximum} tokens; use at most {maximum}."
        )


class OutOfMemoryError(RunnerError):
    """Retry: yes. Another node, or the same one later, may have more memory."""

    reason = FailureReason.OUT_OF_MEMORY

    def __init__(self, detail: str = "") -> None:
        """Say what to change, and what the kernel did where it did something."""
        what = f"The memory ran out ({detail})" if detail else "The memory ran out"
        super().__init__(f"{what}; raise runner.resources.limits.memory, or use a smaller batch or length.")


class CompileFailedError(RunnerError):
    """Retry: no. The compiler can't make a graph of this model and shape."""

    reason = FailureReason.COMPILE_FAILED

    def __init__(self, compiler: str, tail: str) -> None:
        """Name the compiler, and quote its last words."""
        super().__init__(
            f"The compiler ({compiler}) failed; use another device.execution, another shape or another version of the "
            f"runner's image: {tail}"
        )


class CompileTimeoutError(RunnerError):
    """Retry: no. It would take as long again."""

    reason = FailureReason.COMPILE_FAILED

    def __init__(self, seconds: int) -> None:
        """Name the time that the compiler was given."""
        super().__init__(
            f"The graph was not compiled within {seconds} s; raise execution.compileDeadlineSeconds and "
            "measureDeadlineSeconds, or fill the cache before (python -m inferbench_runner compile)."
        )


class CompileOutOfMemoryError(RunnerError):
    """Retry: yes. Another node may have more memory; compilers need more of it than what they compile."""

    reason = FailureReason.COMPILE_OUT_OF_MEMORY

    def __init__(self, compiler: str) -> None:
        """Name the compiler."""
        super().__init__(
            f"The memory ran out in the compiler ({compiler}); raise runner.resources.limits.memory, fill the cache on "
            "a larger instance, or use a smaller batch or length."
        )


class DeviceOutOfMemoryError(RunnerError):
    """Retry: yes. Another process may have held a part of the memory, and another node may have more."""

    reason = FailureReason.DEVICE_OUT_OF_MEMORY

    def __init__(self, detail: str) -> None:
        """Say what to change, and quote what the device's library says about it."""
        super().__init__(
            "The device's memory ran out; use a smaller batch or length, or instanceTypes with more memory on the "
            f"device: {detail}"
        )


class DeviceBusyError(RunnerError):
    """Retry: yes. Whoever holds the device will let it go."""

    reason = FailureReason.DEVICE_BUSY

    def __init__(self, detail: str) -> None:
        """Say what to change, and quote what the device's library says about it."""
        super().__init__(
            f"Another process holds the device; set execution.exclusiveNode, or end what runs on the node: {detail}"
        )


class RuntimeIncompatibleError(RunnerError):
    """Retry: no. Driver, libraries and device of such nodes don't fit together."""

    reason = FailureReason.RUNTIME_INCOMPATIBLE

    def __init__(self, detail: str) -> None:
        """Say what to change, and quote what the device's library says about it."""
        super().__init__(
            "The image's libraries don't fit the node's device or driver; set runner.image to one that does, or update "
            f"the driver: {detail}"
        )


class DeviceTimeoutError(RunnerError):
    """Retry: yes. The device may have been held up."""

    reason = FailureReason.DEVICE_TIMEOUT

    def __init__(self, detail: str) -> None:
        """Say what to change, and quote what the device's library says about it."""
        super().__init__(
            f"The device did not finish a call in its time; use a smaller batch or length, or another node: {detail}"
        )


class HardwareFaultError(RunnerError):
    """Retry: yes. On another node, since this one is suspect."""

    reason = FailureReason.HARDWARE_ERROR

    def __init__(self, detail: str) -> None:
        """Say what to look at, and quote what the device's library says about it."""
        super().__init__(
            f"The device reports a fault of its own; look at the node's kernel log, and measure on another: {detail}"
        )


class BadInputError(RunnerError):
    """Retry: no. The device refuses the inputs of the graph."""

    reason = FailureReason.BAD_INPUT

    def __init__(self, detail: str) -> None:
        """Say what to look at, and quote what the device's library says about it."""
        super().__init__(
            f"The device refuses the model's inputs; correct model.config or the files of the model: {detail}"
        )


class NumericMismatchError(RunnerError):
    """Retry: no. The output is not one that this model can have."""

    reason = FailureReason.NUMERIC_MISMATCH


class ProcessKilledError(RunnerError):
    """Retry: yes. Something outside ended the measuring process."""

    reason = FailureReason.PROCESS_KILLED

    def __init__(self, signal_name: str) -> None:
        """Name the signal."""
        super().__init__(
            f"The measuring process was ended by {signal_name} from outside; look at the node's events and memory, and "
            "raise runner.resources.limits.memory if that ran out."
        )


class ProcessCrashedError(RunnerError):
    """Retry: yes. A library crashed in native code."""

    reason = FailureReason.PROCESS_CRASHED

    def __init__(self, signal_name: str) -> None:
        """Name the signal."""
        super().__init__(
            f"The measuring process crashed with {signal_name} in native code; try another version of the runner's "
            "image, another execution, or a smaller shape."
        )


class ProcessExitedError(RunnerError):
    """Retry: yes. The measuring process ended by itself."""

    reason = FailureReason.PROCESS_EXITED

    def __init__(self, code: int) -> None:
        """Name the exit code."""
        super().__init__(
            f"The measuring process ended by itself with exit code {code}; look for the reason in the pod's log."
        )


class ProcessHungError(RunnerError):
    """Retry: yes. The measuring process did not answer."""

    reason = FailureReason.PROCESS_HUNG

    def __init__(self, seconds: int) -> None:
        """Name the time that it was given."""
        super().__init__(
            f"The measuring process did not answer within {seconds} s and was ended; look for a device or a download "
            "that hangs, or use a smaller shape."
        )


class PhaseFailedError(Exception):
    """What went wrong in one phase; the cause says whether to retry."""

    def __init__(self, phase: Phase, cause: Exception) -> None:
        """Pair the phase with the failure, whoever raised it."""
        self.phase = phase
        self.cause = cause
        super().__init__(f"{phase}: {cause}")

    @property
    def reason(self) -> FailureReason:
        """The closed-list reason: internal for any exception that is not one of ours."""
        match self.cause:
            case RunnerError() as error:
                return error.reason
            case error if is_out_of_memory(error):
                return FailureReason.OUT_OF_MEMORY
            case _:
                return FailureReason.INTERNAL_ERROR

    @property
    def sentence(self) -> str:
        """What is wrong and what to change."""
        match self.cause:
            case RunnerError() as error:
                return str(error)
            case error if is_out_of_memory(error):
                return str(OutOfMemoryError())
            case error:
                return (
                    f"Unexpected {type(error).__name__} in phase {self.phase}; the pod's log has the traceback: {error}"
                )


def random_only(weights: Weights) -> InvalidPlanError:
    """Return the failure of a configuration override that would be silently ignored."""
    return InvalidPlanError(
        "model.config", f"overrides have no effect with {weights} weights", "leave them out, or set weights: Random"
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the exception says that host memory ran out: PyTorch has a type of its own for devices only."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
