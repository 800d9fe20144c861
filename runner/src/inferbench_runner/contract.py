"""What passes between the operator and a runner: a plan goes in, reports come out.

The operator writes one `Plan` into the pod's environment. The runner answers twice: after every shape it rewrites its
termination message with a `CompactReport` (at most 4,096 bytes, so that a crash keeps what was measured), and at the
end it prints one log line, `REPORT_MARK` followed by a `FullReport`. Both are parsed here, nowhere else. The operator
treats them as untrusted: sizes are limited before parsing, unknown fields are refused, and numbers are bounded.

This is the only module of the runner that the operator imports, so it imports nothing but the standard library and
pydantic.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, model_validator
from pydantic.alias_generators import to_camel

PLAN_VARIABLE: Final = "INFERBENCH_PLAN"
"""Environment variable that holds the plan's JSON in a runner pod."""

TERMINATION_PATH_VARIABLE: Final = "INFERBENCH_TERMINATION_MESSAGE_PATH"
"""Environment variable that names the termination message file where it is not the kubelet's default."""

DEFAULT_TERMINATION_PATH: Final = "/dev/termination-log"

COMPACT_REPORT_BYTES: Final = 4096
"""The kubelet cuts a container's termination message at this size."""

FULL_REPORT_BYTES: Final = 256 * 1024
"""Longest log line that is accepted as a full report."""

REPORT_MARK: Final = "INFERBENCH-REPORT "
"""Prefix of the one log line that carries the full report."""

INVALID_PLAN_EXIT_CODE: Final = 2
"""Exit code of a runner that can't make sense of its plan."""

DEADLINE_EXIT_CODE: Final = 124
"""Exit code of a runner whose plan's deadline has passed; the same as of timeout(1)."""

MAX_SHAPES: Final = 8
"""Most shapes in one plan: eight entries of the compact report fit into a termination message."""

MIN_SAMPLES_FOR_P95: Final = 130
"""Fewest samples behind a p95 that counts as more than a hint (MLPerf's early-stopping floor at 99 %)."""

CellHash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{10}$")]
Microseconds = Annotated[int, Field(ge=0, le=86_400_000_000)]


class Contract(BaseModel):
    """Base of all messages: camelCase on the wire, immutable, unknown fields refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
    )


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
    OUT_OF_MEMORY = "OutOfMemory"
    NUMERIC_MISMATCH = "NumericMismatch"
    INTERNAL_ERROR = "InternalError"

    @property
    def retryable(self) -> bool:
        """Whether the same plan could succeed in a new pod without anything being changed."""
        return self in {
            FailureReason.OUT_OF_MEMORY,
            FailureReason.FETCH_FAILED,
            FailureReason.INTERNAL_ERROR,
        }


class ModelRef(Contract):
    """The model to measure."""

    id: Annotated[str, StringConstraints(min_length=1, max_length=512)]
    """Hub id, or absolute path of a directory in the pod."""
    revision: Annotated[str, StringConstraints(max_length=128)] | None = None
    """Commit or tag on the hub; None means the default branch."""
    task: Annotated[str, StringConstraints(max_length=64)] | None = None
    """Pipeline task name; None means the architecture's own default."""
    weights: Weights = Weights.PRETRAINED
    config: dict[str, JsonValue] = Field(default_factory=dict)
    """Overrides of the model's configuration; with random weights only."""


class Device(Contract):
    """The device to measure on."""

    kind: AcceleratorKind
    execution: Execution | None = None
    """None means the back end's default (Eager on CPU)."""
    cores: Annotated[int, Field(ge=1, le=128)] | None = None
    """NeuronCores for one copy of the model."""


class Shape(Contract):
    """One cell of the plan: the input's shape and the hash that names it in reports."""

    cell: CellHash
    sequence_length: Annotated[int, Field(ge=1, le=131_072)] | None = None
    """Tokens per input; None for vision models, which have no such length."""
    batch_size: Annotated[int, Field(ge=1, le=4096)] = 1


class Measurement(Contract):
    """How long to measure each shape: until both minima are met, or the maximum time is up."""

    min_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    min_seconds: Annotated[int, Field(ge=0, le=3600)] = 10
    max_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300


class Plan(Contract):
    """All that one runner has to know: one model, one device, one precision, at most eight shapes."""

    version: Literal[1] = 1
    model: ModelRef
    device: Device
    precision: Precision = Precision.FP32
    shapes: Annotated[tuple[Shape, ...], Field(min_length=1, max_length=MAX_SHAPES)]
    measurement: Measurement = Measurement()
    deadline_seconds: Annotated[int, Field(ge=1, le=604_800)] | None = None
    """Time after which the runner ends by itself, with exit code `DEADLINE_EXIT_CODE` and what it has measured."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0
    """Seed of random weights and of the inputs."""

    @model_validator(mode="after")
    def _cells_are_unique(self) -> Self:
        if len({shape.cell for shape in self.shapes}) != len(self.shapes):
            msg = "shapes: each cell may appear only once"
            raise ValueError(msg)
        return self


class CellMeasured(Contract):
    """The headline figures of one measured shape. Latencies are call latencies in microseconds."""

    cell: CellHash
    samples: Annotated[int, Field(ge=1, le=1_000_000_000)]
    mean_microseconds: Microseconds
    p50_microseconds: Microseconds
    p90_microseconds: Microseconds
    p95_microseconds: Microseconds
    p95_low_microseconds: Microseconds | None = None
    """Lower bound of the 95 % confidence interval of p95; None, as the upper one, where there are too few samples."""
    p95_high_microseconds: Microseconds | None = None
    p99_microseconds: Microseconds
    max_microseconds: Microseconds
    inferences_per_second: Annotated[str, StringConstraints(pattern=r"^[0-9]{1,12}(\.[0-9]{1,6})?$")]
    """Inputs (calls x batch size) per second of the measuring window, a decimal string."""
    verdict: Verdict

    @model_validator(mode="after")
    def _figures_are_ordered(self) -> Self:
        quantiles = (
            self.p50_microseconds,
            self.p90_microseconds,
            self.p95_microseconds,
            self.p99_microseconds,
            self.max_microseconds,
        )
        low, high = self.p95_low_microseconds, self.p95_high_microseconds
        if (low is None) != (high is None):
            msg = "p95 has both bounds of its interval or none"
            raise ValueError(msg)
        interval = (low or 0, self.p95_microseconds, self.max_microseconds if high is None else high)
        if list(quantiles) != sorted(quantiles) or list(interval) != sorted(interval):
            msg = "percentiles must not decrease, and p95 must lie inside its interval"
            raise ValueError(msg)
        if max(interval) > self.max_microseconds or self.mean_microseconds > self.max_microseconds:
            msg = "neither the mean nor a bound of p95 can exceed the maximum"
            raise ValueError(msg)
        if self.verdict is Verdict.VALID and (self.samples < MIN_SAMPLES_FOR_P95 or high is None):
            msg = f"a p95 of fewer than {MIN_SAMPLES_FOR_P95} samples, or without an interval, can't be Valid"
            raise ValueError(msg)
        return self


class CellFailed(Contract):
    """Why one shape has no figures."""

    cell: CellHash
    phase: Phase
    reason: FailureReason
    message: Annotated[str, StringConstraints(max_length=240)]
    """One sentence: what is wrong and what to change."""


class CompactReport(Contract):
    """The termination message: all that was measured so far."""

    version: Literal[1] = 1
    measured: Annotated[tuple[CellMeasured, ...], Field(max_length=MAX_SHAPES)] = ()
    failed: Annotated[tuple[CellFailed, ...], Field(max_length=MAX_SHAPES)] = ()


class Interval(Contract):
    """A percentile with its 95 % confidence interval, in microseconds; bounds are None where n is too small."""

    value_microseconds: Microseconds
    low_microseconds: Microseconds | None = None
    high_microseconds: Microseconds | None = None


class Latency(Contract):
    """The distribution of one kind of latency, in microseconds."""

    samples: Annotated[int, Field(ge=1, le=1_000_000_000)]
    mean_microseconds: Microseconds
    min_microseconds: Microseconds
    p50: Interval
    p90: Interval
    p95: Interval
    p99: Interval
    max_microseconds: Microseconds


class CellDetails(Contract):
    """What the compact report has no room for, about one measured shape."""

    cell: CellHash
    call: Latency
    """Host tensors in, host tensors out, synchronised."""
    warmup_calls: Annotated[int, Field(ge=0, le=1_000_000)]
    warmup_milliseconds: Annotated[int, Field(ge=0, le=86_400_000)]
    measure_milliseconds: Annotated[int, Field(ge=0, le=86_400_000)]


ShortText = Annotated[str, StringConstraints(max_length=256)]


class FullReport(Contract):
    """The log line: details and provenance of what the termination message summarises."""

    version: Literal[1] = 1
    cells: Annotated[tuple[CellDetails, ...], Field(max_length=MAX_SHAPES)] = ()
    phases_milliseconds: dict[Phase, Annotated[int, Field(ge=0, le=86_400_000)]] = Field(default_factory=dict)
    """Wall time of each phase, over all shapes."""
    peak_host_memory_mebibytes: Annotated[int, Field(ge=0, le=16_777_216)] | None = None
    provenance: Annotated[dict[Annotated[str, StringConstraints(max_length=64)], ShortText], Field(max_length=48)] = (
        Field(default_factory=dict)
    )
    """Where and how it was measured: versions, CPU model, threads, precision in effect."""
