"""What a result is made of: latencies with their intervals, doubts about them, and how far the output was right.

Each class has a counterpart in the runner's contract with the same fields and bounds, so that what the contract lets in
can be stored; a test holds the two against each other, field by field.
"""

from __future__ import annotations

import operator
from typing import Annotated

from pydantic import Field, StringConstraints

from inferbench_operator.models.base import ApiModel, Microseconds
from inferbench_runner.contract import CacheOutcome, Caveat, Milliseconds, Share, ShortText

SignedDecimals = Annotated[Share, StringConstraints(max_length=20)]
"""A fraction or a percentage as a decimal string, since the API has no floats."""

Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
AnyCount = Annotated[int, Field(ge=0, le=1_000_000_000)]
Mebibytes = Annotated[int, Field(ge=0, le=16_777_216)]


class Percentile(ApiModel):
    """A percentile and its 95 % confidence interval."""

    value_microseconds: Microseconds = Field(description="The order statistic of rank ceil(p*n), in microseconds.")
    low_microseconds: Microseconds | None = Field(
        default=None, description="Lower bound in microseconds; absent where there are too few samples for one."
    )
    high_microseconds: Microseconds | None = Field(
        default=None, description="Upper bound in microseconds; absent where there are too few samples for one."
    )


class LatencyFigures(ApiModel):
    """The distribution of one kind of latency."""

    samples: Count = Field(description="Timed calls; none is dropped.")
    mean_microseconds: Microseconds = Field(description="Arithmetic mean, in microseconds.")
    min_microseconds: Microseconds | None = Field(default=None, description="Fastest call, in microseconds.")
    p50: Percentile = Field(description="Median.")
    p90: Percentile = Field(description="90th percentile.")
    p95: Percentile = Field(description="95th percentile.")
    p99: Percentile = Field(description="99th percentile.")
    max_microseconds: Microseconds = Field(description="Slowest call, in microseconds.")


class Latencies(ApiModel):
    """Latencies by what they cover."""

    call: LatencyFigures = Field(
        description="Host tensors in, host tensors out, synchronised: the headline. With load.mode Open it counts from "
        "the intended start of the call."
    )
    device: LatencyFigures | None = Field(
        default=None, description="The device's own time; absent where it can't be had, as on a CPU."
    )
    end_to_end: LatencyFigures | None = Field(
        default=None,
        description="Text or image in, label out; absent where the model has no usable tokenizer or image processor.",
    )
    service: LatencyFigures | None = Field(
        default=None, description="From the call's real start to its end; with load.mode Open only."
    )
    queue: LatencyFigures | None = Field(
        default=None, description="From the call's intended start to its real one; with load.mode Open only."
    )


class CaveatEntry(ApiModel):
    """One doubt about the figures."""

    caveat: Caveat = Field(description="The doubt, as one word of a closed list.")
    message: Annotated[str, StringConstraints(max_length=320)] = Field(
        description="What was seen, with its figure, and what to do about it."
    )


class Correctness(ApiModel):
    """How far the output is from that of the same model on the CPU in fp32, on the same inputs."""

    reference: ShortText = Field(description="What the output was compared with.")
    cosine_similarity: SignedDecimals = Field(
        description="Cosine of the angle between the two outputs, the worst over the batch, a decimal string; 1 is "
        "perfect."
    )
    min_cosine_similarity: SignedDecimals = Field(
        description="Smallest cosine that is accepted at this precision, a decimal string."
    )
    max_relative_error: SignedDecimals = Field(
        description="Largest difference between two elements over the largest magnitude in the reference, a decimal "
        "string; 0 is perfect."
    )
    max_relative_error_allowed: SignedDecimals = Field(
        description="Largest relative error that is accepted at this precision, a decimal string."
    )
    top1_agreement_percent: SignedDecimals | None = Field(
        default=None,
        description="Share of decisions in which both outputs choose the same label, in percent, a decimal string; "
        "absent for outputs that choose none.",
    )
    min_top1_agreement_percent: SignedDecimals | None = Field(
        default=None, description="Smallest share of such decisions that is accepted, in percent, a decimal string."
    )


class Noise(ApiModel):
    """What disturbed the host while the cell was measured; a figure is absent where the kernel does not tell it."""

    steal_percent: SignedDecimals | None = Field(
        default=None,
        description="Time that the hypervisor gave to others, in percent of the time of the processors that may be "
        "used, a decimal string.",
    )
    neighbours_percent: SignedDecimals | None = Field(
        default=None,
        description="Time that other processes ran on the processors that may be used, in percent of their time, a "
        "decimal string.",
    )
    involuntary_switches_per_second: SignedDecimals | None = Field(
        default=None,
        description="Times that the kernel took the processor away from one of the runner's threads, per second of "
        "processor time, a decimal string.",
    )
    throttled_milliseconds: Milliseconds | None = Field(
        default=None,
        description="Time for which the container's CPU limit held the runner back, in milliseconds.",
    )
    thermal_throttles: Annotated[int, Field(ge=0, le=1_000_000_000)] | None = Field(
        default=None, description="Times that a processor slowed down because of heat."
    )


class Compilation(ApiModel):
    """How the cell's graph was compiled, in the first process that measured it."""

    milliseconds: Milliseconds = Field(description="Time to compile it, or to load it from the cache, in milliseconds.")
    peak_memory_mebibytes: Mebibytes | None = Field(
        default=None,
        description="Largest resident memory that the measuring process, or one program that it started, has had from "
        "its start until the graph was there, in mebibytes: not of this compilation alone.",
    )
    compiler: ShortText = Field(description="Compiler and version.")
    arguments: Annotated[str, StringConstraints(max_length=1024)] = Field(
        default="", exclude_if=operator.not_, description="Arguments of the compiler that were in effect."
    )
    cache: CacheOutcome = Field(
        default=CacheOutcome.OFF,
        description="Whether the graph came from the cache that INFERBENCH_CACHE names: Hit, Miss, or Off without one.",
    )
    miss: ShortText = Field(default="", exclude_if=operator.not_, description="Why the cache did not have it.")
    key: Annotated[str, StringConstraints(max_length=64)] = Field(
        default="", exclude_if=operator.not_, description="Name of the graph in the cache."
    )


class DeviceUse(ApiModel):
    """What the device did while the cell was measured; a figure is absent where the device does not tell it."""

    energy_joules: SignedDecimals | None = Field(
        default=None,
        description="Energy over the windows that hold the samples, in joules, from the device's own counter, a "
        "decimal string.",
    )
    lowest_clock_megahertz: AnyCount | None = Field(
        default=None, description="Lowest clock of the device's processors that was seen, in megahertz."
    )
    highest_clock_megahertz: AnyCount | None = Field(
        default=None, description="Highest clock of the device's processors that was seen, in megahertz."
    )
    throttle_reasons: Annotated[list[ShortText], Field(max_length=16)] = Field(
        default_factory=list,
        exclude_if=operator.not_,
        description="Why the device was slower than it can be, in its driver's words.",
    )
    neighbours: AnyCount | None = Field(default=None, description="Other processes on the device.")
    peak_memory_mebibytes: Mebibytes | None = Field(
        default=None, description="Largest memory of the runner on the device, in mebibytes."
    )
    sharing: Annotated[list[ShortText], Field(max_length=4)] = Field(
        default_factory=list,
        exclude_if=operator.not_,
        description="Ways in which the device is shared out: MIG, MPS or time slices.",
    )
    recompilations: AnyCount = Field(
        default=0, description="Graphs that were compiled anew in the middle of the measuring."
    )
    monitor_p50_microseconds: Microseconds | None = Field(
        default=None,
        description="Median of the device's own time of a call by its monitor, in microseconds, over calls of their "
        "own before the samples; absent where no monitor tells it.",
    )
    monitor_p99_microseconds: Microseconds | None = Field(
        default=None, description="99th percentile of the same time, in microseconds."
    )
