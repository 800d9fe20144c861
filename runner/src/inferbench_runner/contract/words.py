"""The closed lists of words in plans and reports."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    from enum import StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):
        """The standard library's, which Python 3.10 doesn't have."""

        __str__ = str.__str__


class AcceleratorKind(StrEnum):
    """What kind of device does the work."""

    CPU = "CPU"
    NEURON = "Neuron"
    NVIDIA = "NVIDIA"


class Precision(StrEnum):
    """Number format of the model's arithmetic."""

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"


class Execution(StrEnum):
    """How the model's graph is executed."""

    EAGER = "Eager"
    COMPILE = "Compile"
    CUDA_GRAPHS = "CUDAGraphs"
    TRACE = "Trace"
    TORCH_NEURON = "TorchNeuron"


class Weights(StrEnum):
    """Where the model's weights come from."""

    PRETRAINED = "Pretrained"
    RANDOM = "Random"


class Verdict(StrEnum):
    """How far a number may be trusted."""

    VALID = "Valid"
    INCONCLUSIVE = "Inconclusive"
    NOISY = "Noisy"
    INVALID = "Invalid"


class Profile(StrEnum):
    """Which method of measuring is used."""

    SOUND = "Sound"
    LEGACY_2023 = "Legacy2023"
    """The method of a study published in 2023: 10 warm-ups, 100 calls, one process, interpolated percentiles."""


class LoadMode(StrEnum):
    """Who decides when the next call starts."""

    CLOSED = "Closed"
    """The end of the call before: the latency is the service time."""
    OPEN = "Open"
    """A schedule that waits for nobody: the latency counts from the intended start, as a user sees it."""


class Arrivals(StrEnum):
    """How the intended starts of an open loop follow each other."""

    CONSTANT = "Constant"
    POISSON = "Poisson"


class Caveat(StrEnum):
    """The closed list of doubts about a number."""

    TOO_FEW_SAMPLES = "TooFewSamples"
    """Fewer than 130 samples are behind the p95, or fewer than were asked for."""
    TARGET_MISSED = "TargetMissed"
    """The interval of the p95 is wider than was asked for."""
    FEWER_PROCESSES = "FewerProcesses"
    """Some of the processes that were asked for ended before they had measured this."""
    PROCESSES_DISAGREE = "ProcessesDisagree"
    """The p95 of one process lies outside what another one's noise can explain."""
    DRIFT = "Drift"
    """The latency rose or fell steadily while it was measured."""
    SECOND_MODE = "SecondMode"
    """The p95 lies between two clusters of latencies, so that it jumps from one to the other."""
    CPU_STEAL = "CPUSteal"
    """The hypervisor gave the machine's processors to others."""
    CONTEXT_SWITCHES = "ContextSwitches"
    """The kernel took the processor away from the measuring process in the middle of its work."""
    THROTTLING = "Throttling"
    """A quota, heat or power limit slowed the processor or the device down."""
    NEIGHBOURS = "Neighbours"
    """Others used the same processors or the same device at the same time."""
    LAUNCH_BOUND = "LaunchBound"
    """The device idles for most of the call: the host's work is what was measured."""
    CLOCK_RESOLUTION = "ClockResolution"
    """The call is so short that the clock's own step matters."""
    WARMUP_UNSETTLED = "WarmupUnsettled"
    """The latency had not become steady when the time for the warm-up was over."""
    NOT_INTERLEAVED = "NotInterleaved"
    """The device could not hold all shapes at once, so they were measured one after the other."""
    RATE_MISSED = "RateMissed"
    """Less than 99 % of the rate that was asked for was reached."""
    CONCURRENCY_MISSED = "ConcurrencyMissed"
    """Throughput times mean latency differs by more than 5 % from the number of requests in flight."""
    RECOMPILED = "Recompiled"
    """The graph was compiled anew in the middle of the measuring."""
    LEGACY_METHOD = "LegacyMethod"
    """Measured by the method of 2023, which the project holds to be unsound."""


class CacheOutcome(StrEnum):
    """Whether a compiled graph came from a cache."""

    OFF = "Off"
    """No cache was given, or this compiler has none."""
    HIT = "Hit"
    MISS = "Miss"


class Phase(StrEnum):
    """Steps of a runner, in order."""

    PROBE = "probe"
    FETCH = "fetch"
    COMPILE = "compile"
    LOAD = "load"
    VERIFY = "verify"
    WARMUP = "warmup"
    MEASURE = "measure"
    REPORT = "report"


class FailureReason(StrEnum):
    """Why a shape has no number: the runner's closed list."""

    INVALID_PLAN = "InvalidPlan"
    MISSING_DEPENDENCY = "MissingDependency"
    DEVICE_NOT_FOUND = "DeviceNotFound"
    PRECISION_UNSUPPORTED = "PrecisionUnsupported"
    EXECUTION_UNSUPPORTED = "ExecutionUnsupported"
    MODEL_NOT_FOUND = "ModelNotFound"
    MODEL_ACCESS_DENIED = "ModelAccessDenied"
    FETCH_FAILED = "FetchFailed"
    MODEL_UNSUPPORTED = "ModelUnsupported"
    TASK_UNSUPPORTED = "TaskUnsupported"
    INVALID_MODEL_CONFIG = "InvalidModelConfig"
    SEQUENCE_TOO_LONG = "SequenceTooLong"
    PROCESSOR_UNUSABLE = "ProcessorUnusable"
    """The model's tokenizer or image processor is missing, broken or does not fit the model."""
    CACHE_UNWRITABLE = "CacheUnwritable"
    OUT_OF_MEMORY = "OutOfMemory"
    COMPILE_FAILED = "CompileFailed"
    COMPILE_OUT_OF_MEMORY = "CompileOutOfMemory"
    """The kernel ended the compiler, or it found no memory."""
    DEVICE_BUSY = "DeviceBusy"
    """Another process holds the device, or the cores that were asked for."""
    RUNTIME_INCOMPATIBLE = "RuntimeIncompatible"
    """Driver, runtime and compiled graph do not fit together."""
    DEVICE_OUT_OF_MEMORY = "DeviceOutOfMemory"
    DEVICE_TIMEOUT = "DeviceTimeout"
    """The device did not finish a call in its time."""
    HARDWARE_ERROR = "HardwareError"
    """The device reports a fault of its own; the node is suspect."""
    BAD_INPUT = "BadInput"
    """The device refuses the inputs of a graph."""
    NUMERIC_MISMATCH = "NumericMismatch"
    PROCESS_KILLED = "ProcessKilled"
    """Something sent the measuring process a SIGKILL or a SIGTERM."""
    PROCESS_CRASHED = "ProcessCrashed"
    """The measuring process died of a signal of its own, such as SIGSEGV."""
    PROCESS_EXITED = "ProcessExited"
    """The measuring process ended by itself before its work was done."""
    PROCESS_HUNG = "ProcessHung"
    """The measuring process did not answer before its deadline."""
    INTERNAL_ERROR = "InternalError"

    @property
    def retryable(self) -> bool:
        """Whether the same plan could succeed in a new pod without anything being changed."""
        return self in {
            FailureReason.OUT_OF_MEMORY,
            FailureReason.COMPILE_OUT_OF_MEMORY,
            FailureReason.DEVICE_BUSY,
            FailureReason.DEVICE_OUT_OF_MEMORY,
            FailureReason.DEVICE_TIMEOUT,
            FailureReason.HARDWARE_ERROR,
            FailureReason.FETCH_FAILED,
            FailureReason.PROCESS_KILLED,
            FailureReason.PROCESS_CRASHED,
            FailureReason.PROCESS_EXITED,
            FailureReason.PROCESS_HUNG,
            FailureReason.INTERNAL_ERROR,
        }
