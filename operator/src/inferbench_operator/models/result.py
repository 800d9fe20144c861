"""The `InferenceBenchmarkResult`: one cell's last measurement in full, written by the operator only.

It has no status subresource on purpose: identity and figures are created by one write, so that a result exists either
whole or not at all.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints

from inferbench_operator.models.base import (
    ApiModel,
    Decimals,
    DnsName,
    Microseconds,
    ShortName,
    Text,
    rule,
    schema_extra,
)
from inferbench_operator.models.benchmark import BatchSize, SequenceLength
from inferbench_runner.contract import CellHash, Execution, Phase, Precision, Verdict


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

    samples: Annotated[int, Field(ge=1)] = Field(description="Timed calls; none is dropped.")
    mean_microseconds: Microseconds = Field(description="Arithmetic mean, in microseconds.")
    min_microseconds: Microseconds | None = Field(default=None, description="Fastest call, in microseconds.")
    p50: Percentile = Field(description="Median.")
    p90: Percentile = Field(description="90th percentile.")
    p95: Percentile = Field(description="95th percentile.")
    p99: Percentile = Field(description="99th percentile.")
    max_microseconds: Microseconds = Field(description="Slowest call, in microseconds.")


class Latencies(ApiModel):
    """Latencies by what they cover."""

    call: LatencyFigures = Field(description="Host tensors in, host tensors out, synchronised: the headline.")


Milliseconds = Annotated[int, Field(ge=0, le=86_400_000)]


class ResultStatus(ApiModel):
    """What was measured, when and where."""

    run: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8}$")] = Field(description="Run that measured the cell.")
    attempt: Annotated[int, Field(ge=1)] = Field(description="Number of the Job, within the run, that measured it.")
    completion_time: datetime = Field(description="When the runner's container ended.")
    verdict: Verdict = Field(description="How far the figures may be trusted: Valid, Inconclusive, Noisy or Invalid.")
    latency: Latencies = Field(description="Latency distributions.")
    inferences_per_second: Decimals = Field(description="Inputs per second of the measuring window, a decimal string.")
    warmup_calls: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Untimed calls before measuring."
    )
    warmup_milliseconds: Milliseconds | None = Field(
        default=None, description="Length of the warm-up, in milliseconds."
    )
    measure_milliseconds: Milliseconds | None = Field(
        default=None, description="Length of the measuring window, in milliseconds."
    )
    phases_milliseconds: Annotated[dict[Phase, Milliseconds], Field(max_length=16)] = Field(
        default_factory=dict,
        description="Wall time of each of the runner's phases over all its shapes, in milliseconds.",
    )
    peak_host_memory_mebibytes: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Largest resident memory of the runner, in mebibytes."
    )
    runner_image: Annotated[str, StringConstraints(max_length=512)] = Field(
        description="Image that the runner's Job named."
    )
    node: Annotated[str, StringConstraints(max_length=253)] = Field(default="", description="Node that it ran on.")
    provenance: Annotated[dict[Annotated[str, StringConstraints(max_length=64)], Text], Field(max_length=48)] = Field(
        default_factory=dict, description="Versions and settings in effect, as the runner found them."
    )
