"""The `InferenceBenchmarkResult`: one cell's last measurement in full, written by the operator only.

It has no status subresource on purpose: identity and figures are created by one write, so that a result exists either
whole or not at all.
"""

from __future__ import annotations

import operator
from datetime import datetime
from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints

from inferbench_operator.models.base import (
    ApiModel,
    BatchSize,
    Decimals,
    DnsName,
    Microseconds,
    RunId,
    SequenceLength,
    ShortName,
    rule,
    schema_extra,
)
from inferbench_operator.models.cost import InferenceCost
from inferbench_operator.models.execution import MAX_HISTORY
from inferbench_operator.models.figures import (
    CaveatEntry,
    Compilation,
    Correctness,
    Count,
    DeviceUse,
    Latencies,
    Noise,
    SignedDecimals,
)
from inferbench_runner.contract import (
    Caveat,
    CellHash,
    Execution,
    Milliseconds,
    Phase,
    Precision,
    ShortText,
    Verdict,
)

ProvenanceHash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]


class ResultSpec(ApiModel):
    """Which cell the result is of."""

    model_config = ConfigDict(
        json_schema_extra=schema_extra(
            validations=[
                # The short names may change: they are not part of the hash.
                rule(
                    "self.cell == oldSelf.cell && self.benchmark == oldSelf.benchmark",
                    "cell and benchmark never change; a result of another cell is another object.",
                ),
            ]
        )
    )

    cell: CellHash = Field(description="Hash over everything that can change the cell's figures.")
    benchmark: DnsName = Field(description="Name of the InferenceBenchmark.")
    model: ShortName = Field(description="Name of the model in the benchmark.")
    model_id: Annotated[str, StringConstraints(max_length=512)] = Field(description="Hub id or path of the model.")
    accelerator: ShortName = Field(description="Name of the accelerator in the benchmark.")
    execution: Execution | None = Field(default=None, description="How the graph was asked to be executed.")
    precision: Precision = Field(description="Precision that was asked for.")
    sequence_length: SequenceLength | None = Field(default=None, description="Sequence length in tokens.")
    batch_size: BatchSize = Field(description="Batch size, in inputs per call.")


class EarlierMeasurement(ApiModel):
    """What an earlier run measured of the same cell."""

    run: RunId = Field(description="Run that measured it.")
    completion_time: datetime = Field(description="When the runner's container ended.")
    verdict: Verdict = Field(description="How far the figures may be trusted: Valid, Inconclusive, Noisy or Invalid.")
    samples: Annotated[int, Field(ge=1)] = Field(description="Timed calls behind the figures.")
    p95_microseconds: Microseconds = Field(description="95th percentile of the call latency, in microseconds.")
    p95_low_microseconds: Microseconds | None = Field(
        default=None, description="Lower bound of the 95 % confidence interval of p95, in microseconds."
    )
    p95_high_microseconds: Microseconds | None = Field(
        default=None, description="Upper bound of the 95 % confidence interval of p95, in microseconds."
    )
    runner_image: Annotated[str, StringConstraints(max_length=512)] = Field(
        description="Image that the runner's Job named."
    )
    provenance_hash: ProvenanceHash | None = Field(
        default=None, description="Hash over the circumstances; where it differs, so do versions or settings."
    )
    p50_microseconds: Microseconds | None = Field(default=None, description="Median, in microseconds.")
    p50_low_microseconds: Microseconds | None = Field(default=None, description="Lower bound of p50's interval.")
    p50_high_microseconds: Microseconds | None = Field(default=None, description="Upper bound of p50's interval.")
    p99_microseconds: Microseconds | None = Field(default=None, description="99th percentile, in microseconds.")
    p99_low_microseconds: Microseconds | None = Field(default=None, description="Lower bound of p99's interval.")
    p99_high_microseconds: Microseconds | None = Field(default=None, description="Upper bound of p99's interval.")
    inferences_per_second: Decimals | None = Field(default=None, description="Inputs per second, a decimal string.")
    usd_per_million_inferences: Decimals | None = Field(
        default=None,
        alias="usdPerMillionInferences",
        description="Cost of a million inputs on the whole node, in US dollars, a decimal string.",
    )
    profile: ShortText = Field(default="", exclude_if=operator.not_, description="Profile of the measurement.")
    load: ShortText = Field(default="", exclude_if=operator.not_, description="Load under which it was measured.")


class ResultStatus(ApiModel):
    """What was measured, when and where."""

    run: RunId = Field(description="Run that measured the cell.")
    attempt: Annotated[int, Field(ge=1)] = Field(description="Number of the Job, within the run, that measured it.")
    completion_time: datetime = Field(description="When the runner's container ended.")
    verdict: Verdict = Field(description="How far the figures may be trusted: Valid, Inconclusive, Noisy or Invalid.")
    caveats: Annotated[
        list[CaveatEntry],
        Field(
            max_length=len(Caveat),
            json_schema_extra=schema_extra(list_type="map", list_map_keys=["caveat"]),
        ),
    ] = Field(
        default_factory=list, description="Doubts about the figures, gravest first, each with what to do about it."
    )
    latency: Latencies = Field(description="Latency distributions.")
    inferences_per_second: Decimals = Field(description="Inputs per second of the measuring window, a decimal string.")
    cost: InferenceCost | None = Field(
        default=None, description="What inferences cost at this throughput; absent where the node has no known price."
    )
    interpolated_p95_microseconds: Microseconds | None = Field(
        default=None,
        description="p95 of the call latency with linear interpolation between two samples, in microseconds, as most "
        "published figures have it. Not the headline.",
    )
    first_call_microseconds: Microseconds | None = Field(
        default=None, description="First call of the first process after its output was verified, in microseconds."
    )
    half_width_percent: SignedDecimals | None = Field(
        default=None,
        description="Half the width of the p95's confidence interval, in percent of the p95, a decimal string.",
    )
    effective_samples: Count | None = Field(
        default=None,
        description="Number of independent samples that would determine the p95 as well as these dependent ones.",
    )
    independent_blocks: Count | None = Field(
        default=None,
        description="Number of runs of dependent samples (a round or several) from which the interval is taken.",
    )
    rounds: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="Number of windows over which the samples are spread, over all processes."
    )
    spread_between_rounds_percent: SignedDecimals | None = Field(
        default=None,
        description="Standard deviation of the rounds' medians, in percent of the median, a decimal string.",
    )
    spread_between_processes_percent: SignedDecimals | None = Field(
        default=None,
        description="Range of the processes' p95, in percent of the p95, a decimal string; absent for one process.",
    )
    process_p95_microseconds: Annotated[list[Microseconds], Field(max_length=64)] = Field(
        default_factory=list,
        exclude_if=operator.not_,
        description="p95 of each process by itself, in microseconds, in the order in which they ran.",
    )
    calls_in_flight: SignedDecimals | None = Field(
        default=None,
        description="Throughput times mean latency, a decimal string: by Little's law the number of calls in flight, "
        "if both are right.",
    )
    achieved_rate_percent: SignedDecimals | None = Field(
        default=None,
        description="Calls per second that were reached, in percent of load.ratePerSecond, a decimal string; with "
        "load.mode Open only.",
    )
    correctness: Correctness | None = Field(
        default=None,
        description="How far the output is from that of the CPU in fp32; absent where it was not compared.",
    )
    noise: Noise | None = Field(default=None, description="What disturbed the host while the cell was measured.")
    compilation: Compilation | None = Field(
        default=None, description="How the graph was compiled; absent where it was not."
    )
    device_use: DeviceUse | None = Field(
        default=None, description="What the device did while the cell was measured; absent for a CPU in eager mode."
    )
    warmup_calls: Annotated[int, Field(ge=0, le=1_000_000_000)] | None = Field(
        default=None, description="Untimed calls before measuring, over all processes."
    )
    warmup_milliseconds: Milliseconds | None = Field(
        default=None, description="Length of the warm-up, over all processes, in milliseconds."
    )
    measure_milliseconds: Milliseconds | None = Field(
        default=None, description="Length of the windows that hold the samples, over all processes, in milliseconds."
    )
    phases_milliseconds: Annotated[dict[Phase, Milliseconds], Field(max_length=16)] = Field(
        default_factory=dict,
        description="Wall time of each of the runner's phases over all its shapes and processes, in milliseconds.",
    )
    wall_milliseconds: Milliseconds | None = Field(
        default=None, description="Time from the runner's start to its report on all its shapes, in milliseconds."
    )
    peak_host_memory_mebibytes: Annotated[int, Field(ge=0, le=16_777_216)] | None = Field(
        default=None, description="Largest resident memory of a measuring process, in mebibytes."
    )
    runner_image: Annotated[str, StringConstraints(max_length=512)] = Field(
        description="Image that the runner's Job named."
    )
    node: Annotated[str, StringConstraints(max_length=253)] = Field(default="", description="Node that it ran on.")
    provenance: Annotated[dict[Annotated[str, StringConstraints(max_length=64)], ShortText], Field(max_length=64)] = (
        Field(default_factory=dict, description="Versions and settings in effect, as the runner found them.")
    )
    provenance_hash: ProvenanceHash | None = Field(
        default=None,
        description="Hash over provenance, sequenceLength and batchSize. Two results with the same hash were measured "
        "under the same circumstances; where it differs, provenance says in what.",
    )
    histogram: Annotated[str, StringConstraints(max_length=8192, pattern=r"^[A-Za-z0-9+/]*={0,2}$")] | None = Field(
        default=None,
        description="All call latencies: base64 of zlib of a JSON list of pairs [bucket, count], where bucket k holds "
        "latencies from 1.01^k to 1.01^(k+1) nanoseconds.",
    )
    history: Annotated[list[EarlierMeasurement], Field(max_length=MAX_HISTORY)] = Field(
        default_factory=list,
        exclude_if=operator.not_,
        description="What earlier runs measured, the latest first, as many as the benchmark's history.runs.",
    )
