"""Builds the Job of one attempt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from inferbench_operator.core import names
from inferbench_operator.core.facts import Benchmark
from inferbench_operator.core.matrix import Cell, PlanGroup
from inferbench_operator.core.placement import Placement
from inferbench_operator.core.settings import Settings
from inferbench_operator.models.base import API_VERSION, GROUP
from inferbench_operator.models.benchmark import Runner
from inferbench_operator.models.execution import ExecutionPolicy
from inferbench_runner.contract import PLAN_VARIABLE, AcceleratorKind, Device, Measurement, ModelRef, Plan

KUEUE_QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"

DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
"""On a pod: its node is not consolidated while it runs."""

_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - in the pod
_SHARED_MEMORY_LIMIT: Final = "1Gi"
"""Counts towards the memory limit once it is used; a container runtime gives 64 MiB."""

# The restricted Pod Security Standard; the user id is the images' own.
_SECURITY_CONTEXT: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"

Manifest = dict[str, Any]

_APART: Final[Manifest] = {
    "labelSelector": {"matchExpressions": [{"key": names.LABEL_BENCHMARK, "operator": "Exists"}]},
    "namespaceSelector": {},
    "topologyKey": "kubernetes.io/hostname",
}
"""Keeps a pod away from nodes that have another runner, of any benchmark in any namespace."""


def plan_of(
    cells: Sequence[Cell], placement: Placement, measurement: Measurement, policy: ExecutionPolicy, *, image: str
) -> Plan:
    """Return what the runner is told: one model on one device, and the shapes to measure."""
    model, accelerator = cells[0].model, cells[0].accelerator
    return Plan(
        model=ModelRef(
            id=model.id, revision=model.revision, task=model.task, weights=model.weights, config=model.config
        ),
        device=Device(kind=placement.kind, execution=accelerator.execution, cores=accelerator.cores),
        precision=cells[0].precision,
        shapes=tuple(cell.shape for cell in cells),
        measurement=measurement,
        deadline_seconds=policy.measure_deadline_seconds,
        compile_deadline_seconds=policy.compile_deadline_seconds,
        image=image,
    )


def image_of(cell: Cell, placement: Placement, settings: Settings) -> str:
    """Return the image of the runner that measures the cell."""
    kind, types = placement.kind, placement.instance_types
    inf1 = kind is AcceleratorKind.NEURON and types and all(name.startswith("inf1.") for name in types)
    return cell.runner.image or (settings.inf1_image if inf1 else settings.runner_images[kind])


def job(
    benchmark: Benchmark,
    run: str,
    group: PlanGroup,
    cells: Sequence[Cell],
    attempt: int,
    placement: Placement,
    settings: Settings,
) -> Manifest:
    """Return the Job that gives `cells`, all of one plan group, to a new runner pod."""
    spec = benchmark.spec
    if spec is None:
        msg = "a benchmark without a valid specification has no Jobs"
        raise ValueError(msg)
    runner = cells[0].runner
    labels = _labels(benchmark, run, group, attempt, runner)
    annotations = (
        {DO_NOT_DISRUPT: "true"}
        | {key: value for key, value in runner.annotations.items() if not key.startswith(f"{GROUP}/")}
        | {names.ANNOTATION_CELLS: ",".join(cell.hash for cell in cells)}
    )
    if placement.price is not None:
        annotations[names.ANNOTATION_PRICE] = f"{placement.price.usd_per_hour:f}"
        annotations[names.ANNOTATION_PRICE_DETAILS] = placement.price.to_text(placement.used_share)
    image = image_of(cells[0], placement, settings)
    measurement = Measurement.model_validate(spec.measurement.model_dump())
    plan = plan_of(cells, placement, measurement, spec.execution, image=image)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": names.job_name(benchmark=benchmark.name, run=run, plan=group.hash, attempt=attempt),
            "namespace": benchmark.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner_reference(benchmark)],
        },
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": _safety_net(spec.execution),
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": _pod(runner, placement, image=image, plan=plan, exclusive=spec.execution.exclusive_node),
            },
        },
    }


def owner_reference(benchmark: Benchmark) -> Manifest:
    """Return the reference by which the garbage collector removes a child together with its benchmark."""
    return {
        "apiVersion": API_VERSION,
        "kind": "InferenceBenchmark",
        "name": benchmark.name,
        "uid": benchmark.uid,
        "controller": True,
        # Blocking would need the right to set finalizers, and nothing here depends on the order of deletion.
        "blockOwnerDeletion": False,
    }


def _safety_net(policy: ExecutionPolicy) -> int:
    """Return the Job's own deadline: later than all of the operator's, for when the operator is down."""
    return policy.scheduling_deadline_seconds + policy.start_deadline_seconds + policy.measure_deadline_seconds + 300


def _labels(benchmark: Benchmark, run: str, group: PlanGroup, attempt: int, runner: Runner) -> dict[str, str]:
    own = {
        names.LABEL_MANAGED_BY: names.MANAGER,
        "app.kubernetes.io/component": names.RUNNER_CONTAINER,
        names.LABEL_BENCHMARK: benchmark.name,
        names.LABEL_RUN: run,
        names.LABEL_PLAN: group.hash,
        names.LABEL_ATTEMPT: str(attempt),
    }
    queue = {KUEUE_QUEUE_LABEL: runner.queue_name} if runner.queue_name else {}
    foreign = {key: value for key, value in runner.labels.items() if not key.startswith(f"{GROUP}/")}
    return foreign | queue | own


def _pod(runner: Runner, placement: Placement, *, image: str, plan: Plan, exclusive: bool) -> Manifest:
    optional = {
        "serviceAccountName": runner.service_account_name,
        "priorityClassName": runner.priority_class_name,
        "schedulerName": runner.scheduler_name,
        "runtimeClassName": runner.runtime_class_name,
        "nodeSelector": dict(runner.node_selector),
        "imagePullSecrets": [{"name": name} for name in runner.image_pull_secrets],
        "affinity": _affinity(dict(runner.affinity), placement, exclusive=exclusive),
        "resourceClaims": list(runner.resource_claims),
    }
    scratch, mounts = _scratch(runner)
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "tolerations": [*tolerations(placement), *runner.tolerations],
        "volumes": [*scratch, *runner.volumes],
        "containers": [_container(runner, placement, mounts, image=image, plan=plan)],
    } | {key: value for key, value in optional.items() if value}


def _scratch(runner: Runner) -> tuple[list[Manifest], list[Manifest]]:
    """Return the volumes that a runner may write to, and where they are mounted, unless the user mounts others."""
    volumes: list[tuple[Manifest, Manifest]] = [
        ({"name": "tmp", "emptyDir": {}}, {"name": "tmp", "mountPath": "/tmp"}),  # noqa: S108 - in the pod
        (
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _SHARED_MEMORY_LIMIT}},
            {"name": "shm", "mountPath": _SHARED_MEMORY},
        ),
    ]
    taken = {str(mount.get("mountPath", "")).rstrip("/") for mount in runner.volume_mounts}
    kept = [(volume, mount) for volume, mount in volumes if mount["mountPath"] not in taken]
    return [volume for volume, _ in kept], [mount for _, mount in kept]


def _container(runner: Runner, placement: Placement, mounts: Sequence[Manifest], *, image: str, plan: Plan) -> Manifest:
    # Kubernetes would expand $(NAME) in a variable's value; in JSON a $ can only be part of a string, and written so.
    plan_json = plan.model_dump_json(exclude_defaults=True).replace("$", "\\u0024")
    return {
        "name": names.RUNNER_CONTAINER,
        "image": image,
        "command": ["python", "-m", "inferbench_runner"],
        # A user's variable of the plan's name would only confuse; the last one of a name wins.
        "env": [*runner.env, {"name": "HOME", "value": "/tmp"}, {"name": PLAN_VARIABLE, "value": plan_json}],  # noqa: S108 - in the pod
        "envFrom": list(runner.env_from),
        "resources": _resources(runner, placement),
        "volumeMounts": [*mounts, *runner.volume_mounts],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": _SECURITY_CONTEXT | runner.security_context,
    }


def _resources(runner: Runner, placement: Placement) -> Manifest:
    resources: Manifest = dict(runner.resources)
    own: Manifest = {placement.resource: str(placement.devices)} if placement.resource else {}
    if placement.room and not any(_sizes(resources.get(part)) for part in ("limits", "requests")):
        # Equal requests and limits, with whole processors: quality of service "Guaranteed".
        own |= {"cpu": str(placement.room.processors), "memory": f"{placement.room.memory_mebibytes}Mi"}
    for part in ("limits", "requests") if own else ():
        given = resources.get(part, {})
        # What is no map is left as it is: the API server says so in better words.
        if isinstance(given, dict):
            resources[part] = given | own
    return resources


def _sizes(given: Any) -> bool:  # noqa: ANN401 - whatever the user wrote
    """Whether somebody has thought of how large the pod is."""
    return bool(given) and (not isinstance(given, dict) or not given.keys().isdisjoint({"cpu", "memory"}))


def tolerations(placement: Placement) -> list[Manifest]:
    """Return the tolerations that every pod has, of the usual taints of nodes with its devices."""
    return [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in placement.taints]


def _affinity(own: Manifest, placement: Placement, *, exclusive: bool) -> Manifest:
    """Return the user's own affinity, narrowed to the instance types and to nodes without another runner.

    What can't be narrowed, as it is no affinity, is left as it is: the API server says so in better words.
    """
    affinity = dict(own)
    expressions: list[Manifest] = []
    if placement.instance_types:
        types = list(placement.instance_types)
        expressions = [{"key": names.LABEL_INSTANCE_TYPE, "operator": "In", "values": types}]
    fields: list[Manifest] = [
        {"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in placement.avoid
    ]
    narrower = {"matchExpressions": expressions, "matchFields": fields}
    try:
        if expressions or fields:
            affinity["nodeAffinity"] = _narrowed(affinity.get("nodeAffinity"), narrower)
        if exclusive:
            apart = dict(affinity.get("podAntiAffinity") or {})
            affinity["podAntiAffinity"] = apart | {_REQUIRED: [*(apart.get(_REQUIRED) or []), _APART]}
    except (AttributeError, TypeError, ValueError):
        return own
    return affinity


def _narrowed(of_nodes: Any, narrower: Manifest) -> Manifest:  # noqa: ANN401 - whatever the user wrote
    """Return the affinity to nodes with each of its alternatives, or the only one, narrowed."""
    affinity: Manifest = dict(of_nodes or {})
    required: Manifest = dict(affinity.get(_REQUIRED) or {})
    more = {key: added for key, added in narrower.items() if added}
    terms = [
        # An empty one stands for no node at all.
        term and term | {key: [*(term.get(key) or []), *added] for key, added in more.items()}
        for term in required.get("nodeSelectorTerms") or []
    ]
    return affinity | {_REQUIRED: required | {"nodeSelectorTerms": terms or [more]}}
