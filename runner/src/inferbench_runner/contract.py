"""What passes between the operator and a runner: a plan goes in, reports come out.

The operator writes one `Plan` into the pod's environment. The runner answers twice: after every shape it rewrites its
termination message with a `CompactReport` (at most 4,096 bytes, so that a crash keeps what was measured), and at the
end it prints one log line, `REPORT_MARK` followed by a `FullReport`. Both are parsed here, nowhere else. The operator
treats them as untrusted: sizes are limited before parsing, unknown fields are refused, and numbers are bounded.

This is the only module of the runner that the operator imports, so it imports nothing but the standard library and
pydantic.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
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

MIN_ARRIVALS: Final = 400
"""Fewest arrivals of an open loop: ten in each of forty rounds."""

MAX_COMPACT_CAVEATS: Final = 4
"""Most caveats of one cell in the compact report."""

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
    LEGACY_METHOD = "LegacyMethod"
    """Measured by the method of 2023, which the project holds to be unsound."""


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
            FailureReason.FETCH_FAILED,
            FailureReason.PROCESS_KILLED,
            FailureReason.PROCESS_CRASHED,
            FailureReason.PROCESS_EXITED,
            FailureReason.PROCESS_HUNG,
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


class Load(Contract):
    """How calls follow each other."""

    mode: LoadMode = LoadMode.CLOSED
    concurrency: Annotated[int, Field(ge=1, le=256)] = 1
    """Calls in flight at the same time; in an open loop, at most."""
    arrivals: Arrivals | None = None
    """Open loop only; None means Poisson."""
    rate_per_second: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Calls per second; open loop only, and required there."""

    @model_validator(mode="after")
    def _mode_fits(self) -> Self:
        given = [self.arrivals, self.rate_per_second]
        if self.mode is LoadMode.OPEN and self.rate_per_second is None:
            msg = "an open loop needs a ratePerSecond"
            raise ValueError(msg)
        if self.mode is LoadMode.CLOSED and any(value is not None for value in given):
            msg = "arrivals and ratePerSecond belong to an open loop; leave them out, or set mode: Open"
            raise ValueError(msg)
        return self


class Measurement(Contract):
    """How each shape is measured: until the minima and the target are met, or the maximum time is up."""

    profile: Profile = Profile.SOUND
    min_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    min_seconds: Annotated[int, Field(ge=0, le=3600)] = 10
    max_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    target_half_width_percent: Annotated[int, Field(ge=1, le=100)] = 2
    """Half the width of the p95's interval, in percent of the p95, that ends the measuring."""
    processes: Annotated[int, Field(ge=1, le=32)] = 3
    """Fresh processes, one after the other, that share the samples of each shape."""
    load: Load = Load()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.profile is Profile.LEGACY_2023 and self.load != Load():
            msg = "profile Legacy2023 calls one after the other; leave load out"
            raise ValueError(msg)
        if (self.load.rate_per_second or MIN_ARRIVALS) * self.max_seconds < MIN_ARRIVALS:
            msg = f"ratePerSecond x maxSeconds must be {MIN_ARRIVALS} or more; raise one of them"
            raise ValueError(msg)
        return self


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
    image: Annotated[str, StringConstraints(max_length=512)] | None = None
    """Image that the runner was started from, for provenance: a process can't find out by itself."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0
    """Seed of random weights, of the inputs, of the order of shapes and of Poisson arrivals."""

    @model_validator(mode="after")
    def _cells_are_unique(self) -> Self:
        if len({shape.cell for shape in self.shapes}) != len(self.shapes):
            msg = "shapes: each cell may appear only once"
            raise ValueError(msg)
        return self


class CellMeasured(Contract):
    """The headline figures of one measured shape. Latencies are call latencies in microseconds.

    In an open loop they count from the intended start of the call, else from its start.
    """

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
    caveats: Annotated[tuple[Caveat, ...], Field(max_length=MAX_COMPACT_CAVEATS)] = ()
    """The gravest doubts, gravest first; the full report has all of them, with advice."""

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
        if len(set(self.caveats)) != len(self.caveats):
            msg = "each caveat may appear only once"
            raise ValueError(msg)
        return self


class CellFailed(Contract):
    """Why one shape has no figures."""

    cell: CellHash
    phase: Phase
    reason: FailureReason
    message: Annotated[str, StringConstraints(max_length=240)]
    """One sentence: what is wrong and what to change."""


class Position(Contract):
    """What the runner was doing when it last wrote its report."""

    cell: CellHash | None = None
    """None where the work is for all cells, such as loading the model."""
    phase: Phase


class CompactReport(Contract):
    """The termination message: all that was measured so far."""

    version: Literal[1, 2] = 2
    measured: Annotated[tuple[CellMeasured, ...], Field(max_length=MAX_SHAPES)] = ()
    failed: Annotated[tuple[CellFailed, ...], Field(max_length=MAX_SHAPES)] = ()
    doing: Position | None = None
    """What was begun and not yet ended; so that whoever kills the container, the cell that it was on is known."""


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


Share = Annotated[str, StringConstraints(pattern=r"^-?[0-9]{1,9}(\.[0-9]{1,9})?$")]
"""A fraction or a percentage as a decimal string."""

ShortText = Annotated[str, StringConstraints(max_length=256)]
LONGEST_MILLISECONDS: Final = 31 * 86_400_000
"""Longest span in a report, a month: eight shapes of a day each fit."""

Milliseconds = Annotated[int, Field(ge=0, le=LONGEST_MILLISECONDS)]


class CellCaveat(Contract):
    """One doubt about a number."""

    caveat: Caveat
    message: Annotated[str, StringConstraints(max_length=320)]
    """What was seen, with its figure, and what to do about it."""


class Correctness(Contract):
    """How far the output is from that of the same model on the CPU in fp32, on the same inputs."""

    reference: ShortText
    """What it was compared with."""
    cosine_similarity: Share
    """Cosine of the angle between the two outputs, the worst over the batch; 1 is perfect."""
    min_cosine_similarity: Share
    """Tolerance for it, by precision."""
    max_relative_error: Share
    """Largest difference between two elements over the largest magnitude in the reference; 0 is perfect."""
    max_relative_error_allowed: Share
    """Tolerance for it, by precision."""
    top1_agreement_percent: Share | None = None
    """Share of decisions in which both outputs choose the same label, or two that the tolerance can't tell apart; None
    for outputs that choose none."""
    min_top1_agreement_percent: Share | None = None


class Noise(Contract):
    """What disturbed the host while this cell was measured; None where the kernel does not tell."""

    steal_percent: Share | None = None
    """Time that the hypervisor gave to others, in percent of the time of the processors that may be used."""
    neighbours_percent: Share | None = None
    """Time that other processes ran on the processors that may be used, in percent of their time."""
    involuntary_switches_per_second: Share | None = None
    """Times that the kernel took the processor away from one of the process's threads, per second of processor time."""
    throttled_milliseconds: Milliseconds | None = None
    """Time for which the control group's quota held the process back."""
    thermal_throttles: Annotated[int, Field(ge=0, le=1_000_000_000)] | None = None
    """Times that a processor slowed down because of heat."""


class CellDetails(Contract):
    """What the compact report has no room for, about one measured shape."""

    cell: CellHash
    call: Latency
    """Host tensors in, host tensors out, synchronised; in an open loop from the intended start."""
    device: Latency | None = None
    """The device's own time; None where it can't be had."""
    end_to_end: Latency | None = None
    """Text or image in, label out, one at a time whatever the load; None where the model has no usable processor."""
    service: Latency | None = None
    """Open loop only: from the call's real start to its end."""
    queue: Latency | None = None
    """Open loop only: from the intended start to the real one."""
    warmup_calls: Annotated[int, Field(ge=0, le=1_000_000_000)]
    """Untimed calls, over all processes."""
    warmup_milliseconds: Milliseconds
    measure_milliseconds: Milliseconds
    """Length of the windows that hold the samples, over all processes."""
    first_call_microseconds: Microseconds | None = None
    """The first call in the first process after its output was verified, before any warm-up."""
    effective_samples: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Independent samples that would determine the p95 as well as these dependent ones."""
    independent_blocks: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Runs of dependent samples (a round or several) from which the interval is taken."""
    half_width_percent: Share | None = None
    """Half the width of the p95's interval, in percent of the p95."""
    rounds: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Windows over which the samples are spread, over all processes."""
    spread_between_rounds_percent: Share | None = None
    """Standard deviation of the rounds' medians, in percent of the median."""
    spread_between_processes_percent: Share | None = None
    """Range of the processes' p95, in percent of the p95; None for one process."""
    process_p95_microseconds: Annotated[tuple[Microseconds, ...], Field(max_length=64)] = ()
    """p95 of each process by itself, in order."""
    interpolated_p95_microseconds: Microseconds | None = None
    """p95 with linear interpolation, as numpy.percentile has it by default and most published figures are."""
    calls_in_flight: Share | None = None
    """Throughput times mean service time: by Little's law the number of calls that were being served."""
    achieved_rate_percent: Share | None = None
    """Open loop only: calls per second reached, in percent of those asked for."""
    caveats: Annotated[tuple[CellCaveat, ...], Field(max_length=len(Caveat))] = ()
    correctness: Correctness | None = None
    noise: Noise | None = None
    provenance_hash: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")] | None = None
    """`provenance_hash` of the report's provenance and this cell's shape."""
    histogram: Annotated[str, StringConstraints(max_length=8192, pattern=r"^[A-Za-z0-9+/]*={0,2}$")] | None = None
    """Call latencies: base64 of zlib of JSON pairs [bucket, count]; bucket k holds [1.01^k, 1.01^(k+1)) nanoseconds."""

    @model_validator(mode="after")
    def _caveats_are_unique(self) -> Self:
        if len({doubt.caveat for doubt in self.caveats}) != len(self.caveats):
            msg = "each caveat may appear only once"
            raise ValueError(msg)
        return self


class FullReport(Contract):
    """The log line: details and provenance of what the termination message summarises."""

    version: Literal[1, 2] = 2
    cells: Annotated[tuple[CellDetails, ...], Field(max_length=MAX_SHAPES)] = ()
    phases_milliseconds: dict[Phase, Milliseconds] = Field(default_factory=dict)
    """Wall time of each phase, over all shapes and processes."""
    wall_milliseconds: Milliseconds | None = None
    """Time from the runner's start to this report."""
    peak_host_memory_mebibytes: Annotated[int, Field(ge=0, le=16_777_216)] | None = None
    """Largest resident memory of a measuring process."""
    provenance: Annotated[dict[Annotated[str, StringConstraints(max_length=64)], ShortText], Field(max_length=64)] = (
        Field(default_factory=dict)
    )
    """Where and how it was measured: versions, CPU model, threads, precision in effect."""


PLACES: Final = frozenset({"affinity"})
"""Facts that say where on a machine it ran and change from pod to pod: they are told, and not hashed."""


@dataclass(frozen=True)
class Difference:
    """One field in which two provenances differ; None where one of them lacks it."""

    field: str
    left: str | None
    right: str | None


def provenance_hash(facts: Mapping[str, str]) -> str:
    """Return the first 16 hex digits of SHA-256 over the facts' canonical JSON, without those that are places."""
    kept = {name: value for name, value in facts.items() if name not in PLACES}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def provenance_differences(left: Mapping[str, str], right: Mapping[str, str]) -> tuple[Difference, ...]:
    """Return the fields in which two provenances differ, by name: why two numbers may not be comparable."""
    names = sorted({*left, *right})
    return tuple(
        Difference(name, left.get(name), right.get(name)) for name in names if left.get(name) != right.get(name)
    )
