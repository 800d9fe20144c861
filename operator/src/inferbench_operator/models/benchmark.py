"""The specification of an `InferenceBenchmark`: what a person writes.

These models are the only source of the custom resource's schema, validation rules, defaults and documentation
(`schema.py` turns them into the CRD), and the operator parses what the API server hands it with the same models.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field, JsonValue, StringConstraints

from inferbench_operator.models.base import (
    ApiModel,
    BatchSize,
    DnsName,
    LabelMap,
    PodFragment,
    SequenceLength,
    ShortName,
    rule,
    schema_extra,
)
from inferbench_operator.models.cost import Pricing
from inferbench_operator.models.execution import ExecutionPolicy, History, Schedule
from inferbench_operator.models.gates import MAX_GATES, Compare, Gate, GateMode
from inferbench_operator.models.measurement import Measurement
from inferbench_runner.contract import AcceleratorKind, Execution, Precision, Weights

MAX_CELLS = 1024
MAX_NAME_LENGTH = 52
"""A result is called `<benchmark>-<10 hex digits>`, and a label value holds 63 characters."""

InstanceTypeName = Annotated[str, StringConstraints(min_length=3, max_length=40, pattern=r"^[a-z0-9-]+\.[a-z0-9-]+$")]
ResourceName = Annotated[
    str,
    StringConstraints(
        max_length=128, pattern=r"^(aws\.amazon\.com|nvidia\.com)/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
    ),
]


class Model(ApiModel):
    """One model to measure."""

    model_config = ConfigDict(
        json_schema_extra=schema_extra(
            validations=[
                rule(
                    # CEL knows no size of a map whose values may have any type.
                    "!has(self.config) || self.weights == 'Random'",
                    "config changes the architecture, so it needs weights: Random; remove config to measure the "
                    "pretrained model.",
                    field_path=".config",
                ),
            ]
        )
    )

    name: ShortName = Field(
        description="Short unique name of the model, used in tables, labels and metrics: at most 40 lower-case "
        "letters, digits, '-' and '.'."
    )
    id: Annotated[str, StringConstraints(min_length=1, max_length=512)] = Field(
        description="Hub id such as google-bert/bert-base-uncased, or the absolute path of a directory that a volume "
        "of spec.runner mounts into the pod."
    )
    revision: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = Field(
        default=None,
        description="Commit or tag of the model on the hub. Pin it, or two runs may measure two models. Without it the "
        "hub's default branch is taken.",
    )
    task: Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[a-z0-9-]+$")] | None = Field(
        default=None,
        description="Pipeline task whose head is measured, such as text-classification, feature-extraction or "
        "image-classification. Without it: the architecture's classification head. Vision models other than ViT-base "
        "need image-classification here, so that no sequence lengths are made for them.",
    )
    weights: Weights = Field(
        default=Weights.PRETRAINED,
        description="Pretrained loads the published weights. Random builds the architecture with seeded random weights "
        "and downloads nothing; latency does not depend on the values.",
    )
    config: Annotated[dict[str, JsonValue], Field(max_length=32)] = Field(
        default_factory=dict,
        description="Overrides of the model's configuration, such as num_hidden_layers: 2; with weights: Random only.",
    )


class Runner(ApiModel):
    """How the runner's pod differs from the operator's default; each field is passed to the pod as it is."""

    image: Annotated[str, StringConstraints(min_length=1, max_length=512)] | None = Field(
        default=None, description="Image of the runner. Default: the operator's setting for the accelerator's kind."
    )
    image_pull_secrets: Annotated[list[DnsName], Field(max_length=8)] = Field(
        default_factory=list, description="Names of Secrets with registry credentials, in the benchmark's namespace."
    )
    service_account_name: DnsName | None = Field(
        default=None,
        description="Service account of the pod, for example one with an IAM role. Its Kubernetes token is never "
        "mounted.",
    )
    resources: PodFragment = Field(
        default_factory=dict,
        description="Requests and limits of the container. The accelerator's device resource is added to them. "
        "Default: the whole processors and nine tenths of the memory that the instance type has for these devices, as "
        "request and limit; nothing for a type that the catalogue doesn't know.",
    )
    env: Annotated[list[PodFragment], Field(max_length=64)] = Field(
        default_factory=list, description="Environment variables of the container, as in a pod."
    )
    env_from: Annotated[list[PodFragment], Field(max_length=16)] = Field(
        default_factory=list, description="Sources of environment variables, as in a pod; for a hub token, a secretRef."
    )
    volumes: Annotated[list[PodFragment], Field(max_length=16)] = Field(
        default_factory=list, description="Volumes of the pod, as in a pod."
    )
    volume_mounts: Annotated[list[PodFragment], Field(max_length=16)] = Field(
        default_factory=list, description="Where the container mounts the volumes, as in a pod."
    )
    labels: LabelMap = Field(
        default_factory=dict, description="Labels of Job and pod, for queues and policies. inferbench.dev/ is reserved."
    )
    annotations: LabelMap = Field(default_factory=dict, description="Annotations of Job and pod.")
    node_selector: LabelMap = Field(
        default_factory=dict, description="Labels that the node must have, besides those that the accelerator asks for."
    )
    tolerations: Annotated[list[PodFragment], Field(max_length=16)] = Field(
        default_factory=list, description="Tolerations of the pod, besides the one for the accelerator's own taint."
    )
    affinity: PodFragment = Field(
        default_factory=dict,
        description="Affinity of the pod, as in a pod, besides what instanceTypes and exclusiveNode ask for.",
    )
    priority_class_name: DnsName | None = Field(default=None, description="Priority class of the pod.")
    scheduler_name: DnsName | None = Field(
        default=None, description="Scheduler of the pod, for example the Neuron scheduler extension's."
    )
    runtime_class_name: DnsName | None = Field(default=None, description="Runtime class of the pod, such as nvidia.")
    queue_name: DnsName | None = Field(
        default=None,
        description="Local queue of Kueue, set as label kueue.x-k8s.io/queue-name; Kueue then holds the Job until it "
        "admits it. On a cluster without Kueue it does nothing.",
    )
    resource_claims: Annotated[list[PodFragment], Field(max_length=8)] = Field(
        default_factory=list,
        description="Resource claims of the pod, as in a pod, for devices that a DRA driver hands out; the container "
        "names them in resources.claims. With any, no resource of a device plugin is requested.",
    )
    security_context: PodFragment = Field(
        default_factory=dict,
        description="Fields that replace those of the container's security context, which by default meets the "
        "restricted Pod Security Standard.",
    )


class Accelerator(ApiModel):
    """One kind of hardware to measure on."""

    model_config = ConfigDict(
        json_schema_extra=schema_extra(
            validations=[
                rule(
                    "has(self.kind) || (has(self.instanceTypes) && size(self.instanceTypes) > 0)",
                    "name at least one entry in instanceTypes, such as inf2.xlarge, or set kind to CPU, Neuron or "
                    "NVIDIA.",
                ),
            ]
        )
    )

    name: ShortName = Field(
        description="Short unique name of the accelerator, used in tables, labels and metrics: at most 40 lower-case "
        "letters, digits, '-' and '.'."
    )
    kind: AcceleratorKind | None = Field(
        default=None,
        description="Neuron, NVIDIA or CPU. Needed only where instanceTypes is empty or names types without devices "
        "that the catalogue doesn't know, or to measure the processors of types that have devices.",
    )
    instance_types: Annotated[
        list[InstanceTypeName], Field(max_length=16, json_schema_extra=schema_extra(list_type="set"))
    ] = Field(
        default_factory=list,
        description="EC2 instance types to run on, any of them. They fill in kind, device resource, device count, "
        "taint, processors, memory and price.",
    )
    devices: Annotated[int, Field(ge=1, le=64)] | None = Field(
        default=None,
        description="Devices to request. Default: all devices of the instance type with exclusiveNode, otherwise one. "
        "More than one Neuron device and not all of them need the Neuron scheduler extension (runner.schedulerName).",
    )
    resource_name: ResourceName | None = Field(
        default=None,
        description="Resource of the device plugin to request instead of the catalogue's, where a part of a device is "
        "wanted: aws.amazon.com/neuroncore, nvidia.com/mig-1g.10gb or nvidia.com/gpu.shared. devices then counts it, "
        "one by default.",
    )
    cores: Annotated[int, Field(ge=1, le=128)] | None = Field(
        default=None, description="NeuronCores for one copy of the model. Default: one."
    )
    execution: Execution | None = Field(
        default=None,
        description="How the graph is executed: Eager, Compile, CUDAGraphs, Trace or TorchNeuron. Default: Eager on "
        "CPU and NVIDIA, Trace on Neuron.",
    )
    precision: Precision | None = Field(
        default=None, description="Precision on this accelerator, instead of spec.precisions."
    )
    max_parallel_jobs: Annotated[int, Field(ge=1, le=256)] | None = Field(
        default=None,
        description="Most Jobs on this accelerator at the same time, within execution.maxParallelJobs.",
    )
    runner: Runner | None = Field(
        default=None, description="Fields that replace those of spec.runner on this accelerator."
    )


class CellSelector(ApiModel):
    """Names cells of the matrix; a field that is left out matches every value."""

    model: ShortName | None = Field(default=None, description="Name of a model in spec.models.")
    accelerator: ShortName | None = Field(default=None, description="Name of an accelerator in spec.accelerators.")
    precision: Precision | None = Field(default=None, description="Precision of the cell.")
    sequence_length: SequenceLength | None = Field(default=None, description="Sequence length of the cell, in tokens.")
    batch_size: BatchSize | None = Field(default=None, description="Batch size of the cell, in inputs per call.")


class ExtraCell(ApiModel):
    """One cell to measure besides those of the matrix."""

    model: ShortName = Field(description="Name of a model in spec.models.")
    accelerator: ShortName = Field(description="Name of an accelerator in spec.accelerators.")
    precision: Precision | None = Field(default=None, description="Precision. Default: the accelerator's, or fp32.")
    sequence_length: SequenceLength | None = Field(
        default=None, description="Sequence length in tokens; left out for vision models."
    )
    batch_size: BatchSize = Field(default=1, description="Batch size, in inputs per call.")


class Reuse(StrEnum):
    """What a new run does with cells that have not changed."""

    UNCHANGED_CELLS = "UnchangedCells"
    NEVER = "Never"


_PRODUCT = (
    "size(self.models) * size(self.accelerators) * (has(self.precisions) ? size(self.precisions) : 1) * "
    "(has(self.sequenceLengths) && size(self.sequenceLengths) > 0 ? size(self.sequenceLengths) : 1) * "
    "(has(self.batchSizes) ? size(self.batchSizes) : 1) + (has(self.include) ? size(self.include) : 0)"
)


class BenchmarkSpec(ApiModel):
    """The experiment: every model on every accelerator at every precision, sequence length and batch size."""

    model_config = ConfigDict(
        json_schema_extra=schema_extra(
            validations=[
                rule(
                    f"{_PRODUCT} <= {MAX_CELLS}",
                    "models x accelerators x precisions x sequenceLengths x batchSizes plus include is more than 1024 "
                    "cells; split it into several benchmarks.",
                ),
                rule(
                    "!has(self.include) || self.include.all(c, self.models.exists(m, m.name == c.model) && "
                    "self.accelerators.exists(a, a.name == c.accelerator))",
                    "each entry of include must name a model of spec.models and an accelerator of spec.accelerators.",
                    field_path=".include",
                ),
                rule(
                    "!has(self.exclude) || self.exclude.all(c, "
                    "(!has(c.model) || self.models.exists(m, m.name == c.model)) && "
                    "(!has(c.accelerator) || self.accelerators.exists(a, a.name == c.accelerator)))",
                    "each entry of exclude must name a model of spec.models and an accelerator of spec.accelerators, "
                    "or leave them out.",
                    field_path=".exclude",
                ),
                rule(
                    "!has(self.compare) || self.accelerators.exists(a, a.name == self.compare.baseline)",
                    "compare.baseline must name an accelerator of spec.accelerators.",
                    field_path=".compare",
                ),
                rule(
                    "!has(self.gates) || self.gates.all(g, !has(g.selector) || "
                    "((!has(g.selector.model) || self.models.exists(m, m.name == g.selector.model)) && "
                    "(!has(g.selector.accelerator) || "
                    "self.accelerators.exists(a, a.name == g.selector.accelerator))))",
                    "the selector of each gate must name a model of spec.models and an accelerator of "
                    "spec.accelerators, or leave them out.",
                    field_path=".gates",
                ),
                rule(
                    "!has(self.gates) || !has(self.history) || self.history.runs > 0 || "
                    "self.gates.all(g, !has(g.baseline) || g.baseline != 'PreviousRun')",
                    "a gate with baseline PreviousRun needs history.runs of at least 1; raise it.",
                    field_path=".gates",
                ),
            ]
        )
    )

    models: Annotated[
        list[Model],
        Field(
            min_length=1,
            max_length=32,
            json_schema_extra=schema_extra(list_type="map", list_map_keys=["name"]),
        ),
    ] = Field(description="Models to measure.")
    accelerators: Annotated[
        list[Accelerator],
        Field(
            min_length=1,
            max_length=16,
            json_schema_extra=schema_extra(list_type="map", list_map_keys=["name"]),
        ),
    ] = Field(description="Hardware to measure on.")
    precisions: Annotated[
        list[Precision], Field(min_length=1, max_length=4, json_schema_extra=schema_extra(list_type="set"))
    ] = Field(
        default=[Precision.FP32],
        description="Number formats to measure: fp32, tf32, bf16 or fp16. An accelerator's own precision wins.",
    )
    sequence_lengths: Annotated[
        list[SequenceLength], Field(min_length=1, max_length=32, json_schema_extra=schema_extra(list_type="set"))
    ] = Field(
        default=[128], description="Input lengths to measure, in tokens. Vision models have none and are measured once."
    )
    batch_sizes: Annotated[
        list[BatchSize], Field(min_length=1, max_length=16, json_schema_extra=schema_extra(list_type="set"))
    ] = Field(default=[1], description="Batch sizes to measure, in inputs per call.")
    include: Annotated[list[ExtraCell], Field(max_length=128)] = Field(
        default_factory=list, description="Cells to measure besides those of the matrix."
    )
    exclude: Annotated[list[CellSelector], Field(max_length=64)] = Field(
        default_factory=list, description="Cells of the matrix to leave out, each entry a pattern."
    )
    measurement: Measurement = Field(default_factory=Measurement, description="How each cell is measured.")
    execution: ExecutionPolicy = Field(
        default_factory=ExecutionPolicy, description="How runner pods are run, retried and given up."
    )
    reuse: Reuse = Field(
        default=Reuse.UNCHANGED_CELLS,
        description="UnchangedCells keeps the result of a cell that a change of the specification did not touch; Never "
        "measures every cell again in every run.",
    )
    pricing: Pricing = Field(
        default=Pricing.ON_DEMAND,
        description="Terms on which nodes are paid for: OnDemand, Reserved or Spot. The catalogue has on-demand "
        "prices; the others, and prices of your own, come from the operator's table of instance types.",
    )
    compare: Compare | None = Field(
        default=None, description="Which accelerator the others are compared with, in status.comparison."
    )
    gates: Annotated[
        list[Gate],
        Field(
            max_length=MAX_GATES,
            json_schema_extra=schema_extra(list_type="map", list_map_keys=["name"]),
        ),
    ] = Field(default_factory=list, description="Limits on the figures, judged when the run is over.")
    gate_mode: GateMode = Field(
        default=GateMode.ENFORCE,
        description="What a missed gate does: with Enforce the benchmark is not Ready, so that what waits for it "
        "stops; with Report only the condition GatesPassed tells.",
    )
    history: History = Field(default_factory=History, description="What is kept of earlier runs.")
    schedule: Schedule | None = Field(
        default=None,
        description="When to measure the whole matrix again. A tick that finds a run in progress, or no operator for "
        "five minutes, is missed and not made up.",
    )
    suspend: bool = Field(
        default=False, description="Whether no new Job is started, nor a scheduled run, until this is false again."
    )
    cancel: bool = Field(
        default=False,
        description="Whether the run is given up: its Jobs are removed, and cells that are not finished are skipped. "
        "Results stand. When this is false again, the run goes on.",
    )
    runner: Runner = Field(default_factory=Runner, description="Details of the runner's pods.")
