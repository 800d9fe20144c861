"""Rows about where a pod may run: kinds of devices, and what stands in the way of a node."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from cluster import FOREVER, Exits, cpu_node, instance_node, measured
from situations.acts import add_node, allow, cordon, drain, occupy, set_devices, set_spec, taint, uncordon, vacate
from situations.rows import Cells, Row, on, refusal
from situations.waits import condition, shows

CPU: Final = cpu_node("cpu", local=False)
NEURON: Final = "aws.amazon.com/neuron"
NVIDIA: Final = "nvidia.com/gpu"
TWO_MODELS: Final = [{"name": name, "id": name, "weights": "Random"} for name in ("albert", "bert")]
FOUR_MODELS: Final = [
    *TWO_MODELS,
    *({"name": name, "id": name, "weights": "Random"} for name in ("deberta", "roberta")),
]

_WITHOUT_PLUGIN: Final = replace(instance_node("g5", "g5.xlarge"), devices={NVIDIA: 0})
_SICK: Final = replace(instance_node("trn1", "trn1.32xlarge"), devices={NEURON: 15})
_CORES: Final = replace(instance_node("inf2", "inf2.xlarge"), devices={"aws.amazon.com/neuroncore": 2})
_SLICED: Final = replace(instance_node("p5", "p5.48xlarge"), devices={"nvidia.com/mig-1g.10gb": 56})

KINDS: Final = (
    Row(id="a CPU node", nodes={"a": CPU}),
    Row(id="a whole node without devices", nodes={"a": "c7g.2xlarge"}, spec=on("c7g.2xlarge"), asks={"cpu": "7"}),
    Row(id="one Inferentia device", nodes={"a": "inf2.xlarge"}, spec=on("inf2.xlarge"), asks={NEURON: "1", "cpu": "3"}),
    Row(
        id="all twelve Inferentia devices", nodes={"a": "inf2.48xlarge"}, spec=on("inf2.48xlarge"), asks={NEURON: "12"}
    ),
    Row(id="all sixteen Trainium devices", nodes={"a": "trn1.32xlarge"}, spec=on("trn1.32xlarge"), asks={NEURON: "16"}),
    Row(id="one GPU", nodes={"a": "g5.xlarge"}, spec=on("g5.xlarge"), asks={NVIDIA: "1"}),
    Row(id="a GPU beside an Arm processor", nodes={"a": "g5g.xlarge"}, spec=on("g5g.xlarge"), asks={NVIDIA: "1"}),
    Row(id="all eight GPUs", nodes={"a": "g6e.48xlarge"}, spec=on("g6e.48xlarge"), asks={NVIDIA: "8"}),
    Row(
        id="some of the Trainium devices",
        nodes={"a": "trn1.32xlarge"},
        spec=on("trn1.32xlarge", devices=1),
        asks={NEURON: "1"},
    ),
    Row(
        id="NeuronCores instead of devices",
        nodes={"a": _CORES},
        spec=on("inf2.xlarge", resourceName="aws.amazon.com/neuroncore", devices=2),
        asks={"aws.amazon.com/neuroncore": "2"},
    ),
    Row(
        id="a slice of a GPU",
        nodes={"a": _SLICED},
        spec=on("p5.48xlarge", resourceName="nvidia.com/mig-1g.10gb"),
        asks={"nvidia.com/mig-1g.10gb": "1"},
    ),
    Row(
        id="three kinds at once",
        nodes={"a": CPU, "b": "inf2.xlarge", "c": "g5.xlarge"},
        spec={
            "accelerators": [
                {"name": "cpu", "kind": "CPU"},
                {"name": "inf2", "instanceTypes": ["inf2.xlarge"]},
                {"name": "g5", "instanceTypes": ["g5.xlarge"]},
            ]
        },
        end=(Cells(count=6),),
        jobs=3,
    ),
    Row(
        id="any of two instance types",
        nodes={"a": "g6e.xlarge"},
        spec={"accelerators": [{"name": "gpu", "instanceTypes": ["g5.xlarge", "g6e.xlarge"]}]},
        asks={NVIDIA: "1"},
    ),
    Row(
        id="two Jobs on one node that they may share",
        nodes={"a": "inf2.48xlarge"},
        spec={"models": TWO_MODELS, **on("inf2.48xlarge")},
        execution={"exclusiveNode": False},
        pods=(measured(run_seconds=3), measured(run_seconds=3)),
        meanwhile=(condition("Ready", "False", "Measuring", "4 running"),),
        end=(Cells(count=4),),
        asks={NEURON: "1"},
    ),
    Row(
        id="fewer Jobs at once than there are nodes",
        nodes={"a": "inf2.xlarge", "b": "inf2.xlarge", "c": "inf2.xlarge"},
        spec={"models": FOUR_MODELS, **on("inf2.xlarge")},
        execution={"maxParallelJobs": 2},
        pods=(measured(run_seconds=1),) * 4,
        end=(Cells(count=8),),
        jobs=4,
        at_once=2,
    ),
    Row(
        id="one Job at a time on one of two accelerators",
        nodes={"a": "inf2.xlarge", "b": "inf2.xlarge", "c": CPU},
        spec={
            "models": TWO_MODELS,
            "accelerators": [
                {"name": "cpu", "kind": "CPU"},
                {"name": "inf2", "instanceTypes": ["inf2.xlarge"], "maxParallelJobs": 1},
            ],
        },
        execution={"exclusiveNode": False},
        pods=(measured(run_seconds=1),) * 4,
        end=(Cells(count=8),),
        jobs=4,
        at_once=3,
    ),
)

OBSTACLES: Final = (
    Row(
        id="no node, until one comes as from Karpenter",
        spec=on("inf2.xlarge"),
        meanwhile=(
            shows("waiting", "Unschedulable", "available", capacity="False", ready="WaitingForCapacity"),
            add_node("late", "inf2.xlarge"),
        ),
        is_killed_before_acts=True,
    ),
    Row(
        id="no node, until the deadline",
        spec=on("trn1.32xlarge"),
        execution={"retries": 0},
        meanwhile=(
            shows("waiting", "Unschedulable", "available", capacity="False", ready="WaitingForCapacity"),
            allow(schedulingDeadlineSeconds=1),
        ),
        end=(Cells(state="failed", reason="SchedulingDeadlineExceeded", words=("(1 s)", "nodes")),),
        capacity="False",
        jobs=1,
    ),
    Row(
        id="a node of another type",
        nodes={"a": "g5.xlarge"},
        spec=on("inf2.xlarge"),
        execution={"retries": 0},
        meanwhile=(
            shows("waiting", "Unschedulable", "nodes are available", capacity="False"),
            allow(schedulingDeadlineSeconds=1),
        ),
        end=(Cells(state="failed", reason="SchedulingDeadlineExceeded", words=("nodes are available",)),),
        capacity="False",
    ),
    Row(
        id="a node with too little memory",
        nodes={"a": "inf2.xlarge"},
        spec={
            "accelerators": [{"name": "inf2", "instanceTypes": ["inf2.xlarge", "inf2.8xlarge"]}],
            "runner": {"resources": {"requests": {"memory": "64Gi"}}},
        },
        meanwhile=(
            shows("waiting", "Unschedulable", "Insufficient memory", capacity="False"),
            add_node("larger", "inf2.8xlarge"),
        ),
    ),
    Row(
        id="a node whose own pods take more than is left for them",
        nodes={"a": "g5.xlarge"},
        spec=on("g5.xlarge"),
        before=(occupy("cpu", count=2),),
        meanwhile=(shows("waiting", "Unschedulable", "Insufficient cpu", capacity="False"), vacate()),
    ),
    Row(
        id="a taint that is not tolerated",
        nodes={"a": "g5.xlarge"},
        spec=on("g5.xlarge"),
        before=(taint("a", "team=other:NoSchedule"),),
        meanwhile=(
            shows("waiting", "Unschedulable", "untolerated taint", capacity="False"),
            taint("a", "team=other:NoSchedule-"),
        ),
    ),
    Row(
        id="a taint that the specification tolerates",
        nodes={"a": "g5.xlarge"},
        spec={**on("g5.xlarge"), "runner": {"tolerations": [{"key": "team", "operator": "Exists"}]}},
        before=(taint("a", "team=other:NoSchedule"),),
    ),
    Row(
        id="a node that is cordoned",
        nodes={"a": "inf2.48xlarge"},
        spec=on("inf2.48xlarge"),
        before=(cordon("a"),),
        meanwhile=(shows("waiting", "Unschedulable", "unschedulable", capacity="False"), uncordon("a")),
        is_killed_before_acts=True,
    ),
    Row(
        id="a device that another pod has",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        before=(occupy(NEURON),),
        meanwhile=(shows("waiting", "Unschedulable", f"Insufficient {NEURON}", capacity="False"), vacate()),
        is_killed_before_acts=True,
    ),
    Row(
        id="one of all devices that another pod has",
        nodes={"a": "inf2.48xlarge"},
        spec=on("inf2.48xlarge"),
        before=(occupy(NEURON),),
        meanwhile=(shows("waiting", "Unschedulable", f"Insufficient {NEURON}", capacity="False"), vacate()),
    ),
    Row(
        id="a device that is not healthy",
        nodes={"a": _SICK},
        spec=on("trn1.32xlarge"),
        meanwhile=(
            shows("waiting", "Unschedulable", f"Insufficient {NEURON}", capacity="False"),
            set_devices("a", NEURON, 16),
        ),
    ),
    Row(
        id="a device plugin that comes after its node",
        spec=on("g5.xlarge"),
        meanwhile=(
            shows("waiting", "Unschedulable", capacity="False"),
            add_node("late", _WITHOUT_PLUGIN),
            shows("waiting", "Unschedulable", f"Insufficient {NVIDIA}", capacity="False"),
            set_devices("late", NVIDIA, 1),
        ),
    ),
    Row(
        id="two benchmarks for one device",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        rival=True,
        pods=(measured(run_seconds=3),),
        meanwhile=(shows("waiting", "Unschedulable", capacity="False"),),
        jobs=2,
    ),
    Row(
        id="two Jobs that must not share the only node",
        nodes={"a": CPU},
        spec={"models": TWO_MODELS},
        pods=(measured(run_seconds=3),),
        meanwhile=(shows("waiting", "Unschedulable", "anti-affinity", capacity="False"),),
        end=(Cells(count=4),),
        jobs=2,
        at_once=2,
    ),
    Row(
        id="a node that comes, is drained, and another one",
        spec=on("inf2.xlarge"),
        pods=(Exits(run_seconds=FOREVER),),
        meanwhile=(
            shows("waiting", "Unschedulable", capacity="False"),
            add_node("first", "inf2.xlarge"),
            shows("running", capacity="True"),
            cordon("first"),
            drain(),
            shows("waiting", "Unschedulable", capacity="False", attempt=2),
            add_node("second", "inf2.xlarge"),
        ),
        end=(Cells(attempts=2, disruptions=1),),
        jobs=2,
    ),
    Row(
        id="a selector that no node of the type can match, and its correction",
        nodes={"a": "g5g.xlarge"},
        spec={**on("g5g.xlarge"), "runner": {"nodeSelector": {"kubernetes.io/arch": "amd64"}}},
        meanwhile=(
            condition("Accepted", "False", "NodeSelectorConflict", "kubernetes.io/arch: amd64"),
            set_spec(runner={"nodeSelector": {"kubernetes.io/arch": "arm64"}}),
            condition("Accepted", "True", "Accepted"),
        ),
    ),
    Row(
        id="fifteen devices of sixteen, which are never placed",
        spec=on("trn1.32xlarge", devices=15),
        end=(),
        conditions=refusal("DeviceCountImpossible"),
        jobs=0,
    ),
)

ROWS: Final = (*KINDS, *OBSTACLES)
