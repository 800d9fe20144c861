"""What the operator has seen of one benchmark and its children: the frozen input of every decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from inferbench_operator.models.benchmark import BenchmarkSpec
from inferbench_operator.models.result import ResultSpec, ResultStatus
from inferbench_operator.models.status import BenchmarkStatus
from inferbench_runner.contract import CompactReport, FullReport


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One `InferenceBenchmark` object."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    deleting: bool
    spec: BenchmarkSpec | None
    """None where the stored object does not fit this version's models; `spec_error` then says why."""
    spec_error: str
    status: BenchmarkStatus
    rerun: str = ""
    """What the annotation says that asks for another run."""


@dataclass(frozen=True, slots=True)
class Termination:
    """How the runner's container ended."""

    exit_code: int
    reason: str
    finished_at: datetime
    report: CompactReport | None
    """The parsed termination message; None where there is none or it is refused."""
    report_error: str
    """Why a message that was there is refused; empty if there was none."""
    last_words: str
    """Last line of a message that is no report, cleaned; for people."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One runner pod."""

    name: str
    phase: str
    created_at: datetime
    node: str = ""
    scheduled_at: datetime | None = None
    unschedulable: str = ""
    """The scheduler's own sentence while it finds no node."""
    started_at: datetime | None = None
    """When the container began to run."""
    waiting_reason: str = ""
    waiting_message: str = ""
    terminated: Termination | None = None
    reason: str = ""
    """Reason on the pod itself, such as Evicted."""
    message: str = ""
    disruption: str = ""
    """Why the cluster takes the pod away (condition DisruptionTarget), such as PreemptionByScheduler."""
    disruption_message: str = ""
    gone_at: datetime | None = None
    """When a pod that is being deleted has had its grace period."""


@dataclass(frozen=True, slots=True)
class ClusterWarning:
    """A Warning Event on a Job or a pod, or what its queue says about a Job."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """One Job with its pod."""

    name: str
    uid: str
    run: str
    plan: str
    number: int
    cells: tuple[str, ...]
    image: str
    created_at: datetime
    started_at: datetime | None = None
    """When the Job was admitted to run: anew each time that its queue resumes it."""
    deleting: bool = False
    suspended: bool = False
    finished_at: datetime | None = None
    """When the Job got its final condition, after which its pod does not change any more."""
    failed_reason: str = ""
    failed_message: str = ""
    pod: Pod | None = None
    warning: ClusterWarning | None = None
    """What the cluster says about an attempt that waits without a word of its own."""
    full_report: FullReport | None = None
    usd_per_hour: Decimal | None = None
    """Price of its node, as it was known when the Job was made."""
    price_details: str = ""
    """Terms, source and day of that price, and the part of the node that is used, as the Job keeps them."""


@dataclass(frozen=True, slots=True)
class Result:
    """One stored `InferenceBenchmarkResult`."""

    name: str
    uid: str
    resource_version: str
    spec: ResultSpec
    status: ResultStatus
    history: str = "[]"
    """JSON of the earlier measurements: a tenth of the memory of the models."""


@dataclass(frozen=True, slots=True)
class Taint:
    """What keeps pods without a toleration of it away from a node."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        """Write it as kubectl does."""
        return (f"{self.key}={self.value}" if self.value else self.key) + f":{self.effect}"


@dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes that are alike in all that matters here, however many they are."""

    labels: tuple[tuple[str, str], ...] = ()
    """Those that tell the instance type, and the NodePool that the nodes are of."""
    devices: tuple[tuple[str, int], ...] = ()
    """Allocatable amounts of the device plugins' resources."""
    taints: tuple[Taint, ...] = ()
    """Those that keep pods away."""
    cordoned: bool = False


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a NodePool asks of one label of its nodes."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodePool:
    """What nodes Karpenter, or EKS Auto Mode, may bring."""

    name: str
    requirements: tuple[Requirement, ...] = ()
    """Labels that it gives to its nodes are among them."""
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True, slots=True)
class Supply:
    """What the cluster has to run pods on, and may bring."""

    nodes: frozenset[Nodes]
    node_pools: tuple[NodePool, ...] | None
    """By name; None where they can't be read, or Karpenter is not installed."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A ConfigMap with figures to compare with."""

    text: str = ""
    problem: str = ""
    """Why there are none; empty otherwise."""
    broken: bool = False
    """Whether that is a mistake, which time does not mend."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that belongs to one benchmark."""

    benchmark: Benchmark
    attempts: tuple[Attempt, ...] = ()
    results: tuple[Result, ...] = ()
    blocked: str = ""
    """Why the API server does not let the operator create a Job for now, such as a quota; empty if it does."""
    slots: int | None = None
    """How many more Jobs the operator's own limit leaves to this benchmark; None means any number."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Why the API server refused to create a Job for this generation of the benchmark, by name of the Job."""
    supply: Supply | None = None
    """What the cluster offers; None where that does not matter now, or can't be read."""
    siblings: Mapping[str, Observed] = field(default_factory=dict)
    """Other benchmarks of the namespace that gates compare with, by name."""
    references: Mapping[str, Reference] = field(default_factory=dict)
    """ConfigMaps that gates compare with, by name; read only when the run may be over."""
