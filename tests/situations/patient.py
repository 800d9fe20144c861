"""Rows that take longer than a few seconds by their nature: each has instance types of its own and is played beside.

The pod garbage collector believes for 40 seconds that a node comes back, the node controller for 50 that it answers
again, the operator for a minute that a runner which is out of time ends by itself, and before it asks Events why
nothing happens it waits for 10 seconds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from cluster import FOREVER, Exits, create_container_failure, image_pull_failure, killed, never_starts
from situations.acts import (
    add_node,
    allow,
    create,
    delete_pod,
    drain,
    label_namespace,
    lack,
    let_pass,
    lift_limit,
    limit,
    lose_power,
    remove_node,
    set_spec,
    warn,
)
from situations.history import PODS
from situations.rows import Cells, Row, on
from situations.waits import condition, gone, over, pod, shows

_RUNS: Final = Exits(run_seconds=FOREVER)
_SUSPENDED: Final = condition("Suspended", "True", "Suspended")
_MOUNT: Final = 'MountVolume.SetUp failed for volume "models": PersistentVolumeClaim "models" is not bound'
_IMPATIENT: Final = [
    {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
    for what in ("not-ready", "unreachable")
]

_ROWS: Final = (
    Row(
        id="a machine that goes while it runs",
        nodes={"a": "trn1.2xlarge"},
        spec=on("trn1.2xlarge"),
        pods=(_RUNS,),
        meanwhile=(
            shows("running"),
            remove_node("a"),
            shows("waiting", "Unschedulable", capacity="False", attempt=2),
            add_node("b", "trn1.2xlarge"),
        ),
        end=(Cells(attempts=2, disruptions=1),),
        jobs=2,
    ),
    Row(
        id="a machine that is not heard of any more",
        nodes={"a": "g4dn.xlarge"},
        spec={**on("g4dn.xlarge"), "runner": {"tolerations": _IMPATIENT}},
        pods=(_RUNS,),
        meanwhile=(
            shows("running"),
            lose_power("a"),
            shows("waiting", "Unschedulable", capacity="False", attempt=2),
            add_node("b", "g4dn.xlarge"),
        ),
        end=(Cells(attempts=2, disruptions=1),),
        jobs=2,
    ),
    Row(
        id="a runner that hangs",
        nodes={"a": "g4dn.2xlarge"},
        spec=on("g4dn.2xlarge"),
        execution={"measureDeadlineSeconds": 1, "retries": 0},
        pods=(_RUNS,),
        meanwhile=(shows("running"),),
        end=(Cells(state="failed", reason="MeasureDeadlineExceeded", words=("measureDeadlineSeconds (1 s)",)),),
    ),
    Row(
        id="a quota that allows no pod, until it is lifted",
        nodes={"a": "g4dn.4xlarge"},
        spec=on("g4dn.4xlarge"),
        before=(limit("pods"),),
        meanwhile=(shows("waiting", "QuotaExceeded", "exceeded quota", ready="Waiting"), lift_limit()),
        jobs=1,
    ),
    Row(
        id="a quota that allows no pod, until the deadline",
        nodes={"a": "g4dn.8xlarge"},
        spec=on("g4dn.8xlarge"),
        execution={"retries": 0},
        before=(limit("pods"),),
        meanwhile=(shows("waiting", "QuotaExceeded"), allow(schedulingDeadlineSeconds=1)),
        end=(Cells(state="failed", reason="SchedulingDeadlineExceeded", words=("(1 s)", "exceeded quota")),),
        capacity="",
    ),
    Row(
        id="a service account that is missing, until it is made",
        nodes={"a": "g4dn.12xlarge"},
        spec={**on("g4dn.12xlarge"), "runner": {"serviceAccountName": "nobody"}},
        meanwhile=(
            shows("waiting", "PodRefused", 'serviceaccount "nobody" not found', ready="Waiting"),
            create("serviceaccount", "nobody"),
        ),
        jobs=1,
    ),
    Row(
        id="a priority class that is missing, until it is made",
        nodes={"a": "g6.xlarge"},
        spec={**on("g6.xlarge"), "runner": {"priorityClassName": "later"}},
        before=(lack("priorityclass", "later"),),
        meanwhile=(
            shows("waiting", "PodRefused", "no PriorityClass with name later"),
            create("priorityclass", "later", "--value=1"),
        ),
        jobs=1,
    ),
    Row(
        id="a Pod Security Standard that the specification breaks, until it is relaxed",
        nodes={"a": "g6.2xlarge"},
        spec={**on("g6.2xlarge"), "runner": {"securityContext": {"allowPrivilegeEscalation": True}}},
        before=(label_namespace("pod-security.kubernetes.io/enforce=restricted"),),
        meanwhile=(
            shows("waiting", "PodRefused", "violates PodSecurity"),
            label_namespace("pod-security.kubernetes.io/enforce-"),
        ),
        jobs=1,
    ),
    Row(
        id="a volume that does not come, as an Event tells",
        nodes={"a": "g6.4xlarge"},
        spec=on("g6.4xlarge"),
        execution={"retries": 0},
        pods=(never_starts(),),
        meanwhile=(
            pod("starting"),
            warn("FailedMount", _MOUNT),
            shows("waiting", "FailedMount", "is not bound"),
            allow(startDeadlineSeconds=1),
        ),
        end=(Cells(state="failed", reason="StartDeadlineExceeded", words=("(1 s)", "is not bound")),),
    ),
    Row(
        id="a pod that a person deletes by force while it runs",
        nodes={"a": "g6.8xlarge"},
        spec=on("g6.8xlarge"),
        execution={"retries": 0},
        pods=(_RUNS,),
        meanwhile=(shows("running"), delete_pod(1, "--force", "--grace-period=0")),
        end=(Cells(attempts=2, disruptions=1),),
        jobs=2,
    ),
    Row(
        id="a drain, and a quota that allows no other Job until it is lifted",
        nodes={"a": "g6.16xlarge"},
        spec=on("g6.16xlarge"),
        pods=(_RUNS,),
        execution={"retries": 0},
        meanwhile=(
            shows("running"),
            limit("count/jobs.batch"),
            drain(),
            condition("Ready", "False", "QuotaExceeded", "exceeded quota"),
            let_pass(12),
            lift_limit(),
        ),
        end=(Cells(attempts=2, disruptions=1),),
        jobs=2,
    ),
    Row(
        id="a drain while it waits for a node",
        spec=on("g4dn.16xlarge"),
        meanwhile=(
            pod("unplaced"),
            drain(),
            shows("waiting", "Unschedulable", attempt=2),
            add_node("a", "g4dn.16xlarge"),
        ),
        end=(Cells(attempts=2, disruptions=1),),
        jobs=2,
    ),
    Row(
        id="a pod that a person deletes while it waits",
        spec=on("g6.24xlarge"),
        meanwhile=(
            shows("waiting", "Unschedulable"),
            delete_pod(),
            shows("waiting", "Unschedulable", attempt=2),
            add_node("a", "g6.24xlarge"),
        ),
        end=(Cells(attempts=2, disruptions=1),),
        jobs=2,
    ),
    Row(
        id="a failed run, and then its machine goes",
        nodes={"a": "g6.48xlarge"},
        spec=on("g6.48xlarge"),
        execution={"retries": 0},
        pods=(killed(),),
        meanwhile=(condition("Stalled", "True", "CellsFailed"), remove_node("a"), gone(PODS), let_pass(1)),
        end=(Cells(state="failed", reason="RunnerKilled"),),
        jobs=1,
    ),
    Row(
        id="no node, until the deadline and again until the deadline",
        spec=on("g5.2xlarge"),
        execution={"schedulingDeadlineSeconds": 10},
        end=(Cells(state="failed", reason="SchedulingDeadlineExceeded", attempts=2, words=("(10 s)", "nodes")),),
        capacity="False",
        jobs=2,
    ),
    Row(
        id="no node before the first deadline, but before the second",
        spec=on("g5.4xlarge"),
        execution={"schedulingDeadlineSeconds": 10},
        meanwhile=(shows("waiting", "Unschedulable", attempt=2), add_node("late", "g5.4xlarge")),
        end=(Cells(attempts=2),),
        jobs=2,
    ),
    Row(
        id="a registry that does not answer, once",
        nodes={"a": "g5.8xlarge"},
        spec=on("g5.8xlarge"),
        execution={"startDeadlineSeconds": 10},
        pods=(image_pull_failure("dial tcp 10.0.0.1:443: i/o timeout"),),
        meanwhile=(shows("waiting", "ImagePullBackOff", "Back-off pulling image"),),
        end=(Cells(attempts=2),),
        jobs=2,
    ),
    Row(
        id="a registry that does not answer, twice",
        nodes={"a": "g5.12xlarge"},
        spec=on("g5.12xlarge"),
        execution={"startDeadlineSeconds": 10},
        pods=(image_pull_failure("i/o timeout"), image_pull_failure("i/o timeout")),
        end=(Cells(state="failed", reason="ImagePullBackOff", attempts=2),),
        jobs=2,
    ),
    Row(
        id="a container that can't be created, once",
        nodes={"a": "g5.16xlarge"},
        spec=on("g5.16xlarge"),
        execution={"startDeadlineSeconds": 10},
        pods=(create_container_failure("failed to create shim task: OCI runtime create failed: no device neuron0"),),
        meanwhile=(shows("waiting", "CreateContainerError", "no device neuron0"),),
        end=(Cells(attempts=2),),
        jobs=2,
    ),
    Row(
        id="another run by a schedule",
        nodes={"a": "g6.12xlarge"},
        spec={**on("g6.12xlarge"), "schedule": {"cron": "* * * * *"}},
        meanwhile=(over("Created"), over("Scheduled"), set_spec(suspend=True), _SUSPENDED),
        conditions={"Suspended": ("True", "Suspended")},
        jobs=2,
    ),
)

ROWS: Final = tuple(replace(row, patience_seconds=300) for row in _ROWS)
