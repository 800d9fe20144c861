"""Gates and comparisons: limits that a person puts on the figures, and whom they are compared with."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from inferbench_operator.models.base import (
    ApiModel,
    BatchSize,
    Decimals,
    DnsName,
    SequenceLength,
    ShortName,
    rule,
    schema_extra,
)
from inferbench_runner.contract import Precision, Verdict

MAX_GATES = 16


class GateMetric(StrEnum):
    """What a gate looks at."""

    P50 = "P50"
    P95 = "P95"
    P99 = "P99"
    THROUGHPUT = "Throughput"
    COST = "Cost"
    VERDICT = "Verdict"
    FAILED_CELLS = "FailedCells"

    @property
    def is_latency(self) -> bool:
        """Whether it is a percentile of the call latency."""
        return self in {GateMetric.P50, GateMetric.P95, GateMetric.P99}


class BaselineKind(StrEnum):
    """Where the figures come from that a gate compares with."""

    PREVIOUS_RUN = "PreviousRun"
    BENCHMARK = "Benchmark"
    CONFIG_MAP = "ConfigMap"


class OnUndecided(StrEnum):
    """How a gate counts whose figures are too uncertain to tell."""

    PASS = "Pass"  # noqa: S105 - the opposite of Fail
    FAIL = "Fail"


class GateMode(StrEnum):
    """What a missed gate does to the benchmark."""

    ENFORCE = "Enforce"
    REPORT = "Report"


class GateSelector(ApiModel):
    """Names the cells that a gate looks at; a field that is left out matches every value."""

    model_config = ConfigDict(
        json_schema_extra=schema_extra(
            validations=[
                rule(
                    "!has(self.minSequenceLength) || !has(self.maxSequenceLength) || "
                    "self.minSequenceLength <= self.maxSequenceLength",
                    "minSequenceLength is greater than maxSequenceLength; exchange them.",
                    field_path=".minSequenceLength",
                ),
            ]
        )
    )

    model: ShortName | None = Field(default=None, description="Name of a model in spec.models.")
    accelerator: ShortName | None = Field(default=None, description="Name of an accelerator in spec.accelerators.")
    precision: Precision | None = Field(default=None, description="Precision of the cell.")
    min_sequence_length: SequenceLength | None = Field(
        default=None, description="Shortest sequence length, in tokens; leaves models without lengths out."
    )
    max_sequence_length: SequenceLength | None = Field(
        default=None, description="Longest sequence length, in tokens; leaves models without lengths out."
    )
    batch_size: BatchSize | None = Field(default=None, description="Batch size of the cell, in inputs per call.")


class Gate(ApiModel):
    """One limit on the figures: a fixed one, or a distance from a baseline."""

    model_config = ConfigDict(
        json_schema_extra=schema_extra(
            validations=[
                rule(
                    "!(self.metric in ['P50', 'P95', 'P99']) || has(self.maxMicroseconds) != has(self.baseline)",
                    "a gate on P50, P95 or P99 needs either maxMicroseconds or a baseline with maxIncreasePercent.",
                ),
                rule(
                    "self.metric != 'Throughput' || has(self.minInferencesPerSecond) != has(self.baseline)",
                    "a gate on Throughput needs either minInferencesPerSecond or a baseline with maxDecreasePercent.",
                ),
                rule(
                    "self.metric != 'Cost' || has(self.maxUSDPerMillionInferences) != has(self.baseline)",
                    "a gate on Cost needs either maxUSDPerMillionInferences or a baseline with maxIncreasePercent.",
                ),
                rule(
                    "(!has(self.maxMicroseconds) || self.metric in ['P50', 'P95', 'P99']) && "
                    "(!has(self.minInferencesPerSecond) || self.metric == 'Throughput') && "
                    "(!has(self.maxUSDPerMillionInferences) || self.metric == 'Cost') && "
                    "(!has(self.maxFailedCells) || self.metric == 'FailedCells') && "
                    "(!has(self.verdicts) || self.metric == 'Verdict')",
                    "maxMicroseconds is for P50, P95 and P99, minInferencesPerSecond for Throughput, "
                    "maxUSDPerMillionInferences for Cost, maxFailedCells for FailedCells, verdicts for Verdict; remove "
                    "what is not for this metric.",
                ),
                rule(
                    "!has(self.baseline) || !(self.metric in ['Verdict', 'FailedCells'])",
                    "Verdict and FailedCells are not compared with a baseline; remove it.",
                    field_path=".baseline",
                ),
                rule(
                    "has(self.maxIncreasePercent) == "
                    "(has(self.baseline) && self.metric in ['P50', 'P95', 'P99', 'Cost'])",
                    "maxIncreasePercent is needed with a baseline of P50, P95, P99 or Cost, and only there.",
                ),
                rule(
                    "has(self.maxDecreasePercent) == (has(self.baseline) && self.metric == 'Throughput')",
                    "maxDecreasePercent is needed with a baseline of Throughput, and only there.",
                ),
                rule(
                    "has(self.baselineName) == (has(self.baseline) && self.baseline != 'PreviousRun')",
                    "baselineName names the Benchmark or the ConfigMap of the baseline, and is needed for these only.",
                ),
            ]
        )
    )

    name: ShortName = Field(description="Short unique name of the gate.")
    metric: GateMetric = Field(
        description="P50, P95, P99 (call latency), Throughput, Cost, Verdict (how far figures may be trusted) or "
        "FailedCells (cells without figures)."
    )
    selector: GateSelector = Field(
        default_factory=GateSelector, description="Cells that the gate looks at; all of them without it."
    )
    max_microseconds: Annotated[int, Field(ge=1, le=86_400_000_000)] | None = Field(
        default=None, description="Largest latency, in microseconds."
    )
    min_inferences_per_second: Decimals | None = Field(
        default=None, description="Smallest throughput, in inputs per second, a decimal string."
    )
    max_usd_per_million_inferences: Decimals | None = Field(
        default=None,
        alias="maxUSDPerMillionInferences",
        description="Highest cost of a million inferences on the whole instance, in US dollars, a decimal string.",
    )
    max_failed_cells: Annotated[int, Field(ge=0, le=1024)] | None = Field(
        default=None, description="Most cells that may have no figures. Default: 0."
    )
    verdicts: (
        Annotated[
            list[Verdict],
            Field(min_length=1, max_length=len(Verdict), json_schema_extra=schema_extra(list_type="set")),
        ]
        | None
    ) = Field(default=None, description="Verdicts that are good enough. Default: Valid only.")
    baseline: BaselineKind | None = Field(
        default=None,
        description="What the cells are compared with: PreviousRun (what an earlier run measured), Benchmark (the last "
        "run of another benchmark in the namespace) or ConfigMap (entries like those of status.results, as a JSON list "
        "under the key reference.json; a figure without bounds is taken as exact). Cells belong together that have the "
        "same names of model and accelerator, precision, sequence length and batch size.",
    )
    baseline_name: DnsName | None = Field(
        default=None, description="Name of the baseline's InferenceBenchmark or ConfigMap, in the same namespace."
    )
    max_increase_percent: Annotated[int, Field(ge=0, le=1000)] | None = Field(
        default=None, description="By how much the latency or the cost may exceed the baseline's, in percent."
    )
    max_decrease_percent: Annotated[int, Field(ge=0, le=100)] | None = Field(
        default=None, description="By how much the throughput may fall short of the baseline's, in percent."
    )
    on_undecided: OnUndecided = Field(
        default=OnUndecided.PASS,
        description="How the gate counts where the 95 % confidence interval holds the limit, or where there is no "
        "baseline yet: Pass or Fail.",
    )


class Compare(ApiModel):
    """How accelerators are compared with each other."""

    baseline: ShortName = Field(
        description="Name of the accelerator in spec.accelerators that all others are compared with."
    )
    ignore: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=64)]],
        Field(max_length=16, json_schema_extra=schema_extra(list_type="set")),
    ] = Field(
        default_factory=list,
        description="In what cells may differ and still be compared: precision, or fields of a result's provenance.",
    )
