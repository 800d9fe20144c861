"""What comes out: the compact report of a termination message, and the full one of a log line."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints, model_validator
from typing_extensions import Self

from inferbench_runner.contract.base import (
    MAX_COMPACT_CAVEATS,
    MAX_SHAPES,
    MIN_SAMPLES_FOR_P95,
    CellHash,
    Contract,
    Microseconds,
)
from inferbench_runner.contract.words import CacheOutcome, Caveat, FailureReason, Phase, Verdict


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

Count = Annotated[int, Field(ge=0, le=1_000_000_000)]
Mebibytes = Annotated[int, Field(ge=0, le=16_777_216)]
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


class Compilation(Contract):
    """How a shape's graph was compiled before it was measured, in the first process that measured it."""

    milliseconds: Milliseconds
    """Time to compile it, or to load it from the cache."""
    peak_memory_mebibytes: Mebibytes | None = None
    """Largest resident memory that the measuring process, or one program that it started, has had from its start until
    the graph was there: not of this compilation alone."""
    compiler: ShortText
    """Compiler and version."""
    arguments: Annotated[str, StringConstraints(max_length=1024)] = ""
    """Arguments in effect."""
    cache: CacheOutcome = CacheOutcome.OFF
    miss: ShortText = ""
    """Why the cache did not have it."""
    key: Annotated[str, StringConstraints(max_length=64)] = ""
    """Name of the artefact in the cache."""


class DeviceUse(Contract):
    """What the device did while a shape was measured; None where the device does not tell."""

    energy_joules: Share | None = None
    """Energy over the windows that hold the samples, from the device's own counter."""
    lowest_clock_megahertz: Count | None = None
    """Lowest clock of the device's processors that was seen."""
    highest_clock_megahertz: Count | None = None
    throttle_reasons: Annotated[tuple[ShortText, ...], Field(max_length=16)] = ()
    """Why the device was slower than it can be, in its driver's words, as far as somebody looked."""
    neighbours: Count | None = None
    """Other processes on the device."""
    peak_memory_mebibytes: Mebibytes | None = None
    """Largest memory of this process on the device."""
    sharing: Annotated[tuple[ShortText, ...], Field(max_length=4)] = ()
    """Ways in which the device is shared out: MIG, MPS, time slices."""
    recompilations: Count = 0
    """Graphs that were compiled anew in the middle of the measuring."""
    monitor_p50_microseconds: Microseconds | None = None
    """The device's own time of a call by its monitor, the median, over calls of their own before the samples."""
    monitor_p99_microseconds: Microseconds | None = None
    """The same time's 99th percentile."""


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
    compilation: Compilation | None = None
    """None where nothing is compiled."""
    device_use: DeviceUse | None = None
    """None for a processor in eager mode, of which `noise` tells."""
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
    peak_host_memory_mebibytes: Mebibytes | None = None
    """Largest resident memory of a measuring process."""
    provenance: Annotated[dict[Annotated[str, StringConstraints(max_length=64)], ShortText], Field(max_length=64)] = (
        Field(default_factory=dict)
    )
    """Where and how it was measured: versions, CPU model, threads, precision in effect."""
