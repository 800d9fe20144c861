"""The Job of one attempt."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferbench_operator.core import names
from inferbench_operator.core.jobs import Manifest, job
from inferbench_operator.core.matrix import expand, group
from inferbench_operator.core.placement import place
from inferbench_operator.core.settings import Settings
from inferbench_runner.contract import (
    PLAN_VARIABLE,
    AcceleratorKind,
    Arrivals,
    Execution,
    Load,
    LoadMode,
    Measurement,
    Plan,
    Profile,
)
from operator_testing.builders import NAME, NAMESPACE, SETTINGS, UID, benchmark, spec

LABEL_VALUE = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")
INF1 = {"name": "inf1", "instanceTypes": ["inf1.xlarge", "inf1.2xlarge"]}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
A, B = ({"matchExpressions": [{"key": key, "operator": "Exists"}]} for key in "ab")
INF2 = {"name": "inf2", "instanceTypes": ["inf2.48xlarge"]}


def _job(
    name: str = NAME,
    attempt: int = 1,
    images: Settings = SETTINGS,
    **fields: Any,  # noqa: ANN401 - any part of a specification
) -> Manifest:
    wanted = spec(**fields)
    plan = group(expand(wanted))[0]
    placement = place(plan.cells[0].accelerator, images.catalogue, exclusive=wanted.execution.exclusive_node)
    return job(benchmark(wanted, name=name), "0123abcd", plan, plan.cells, attempt, placement, images)


def _pod(**fields: Any) -> Manifest:  # noqa: ANN401 - any part of a specification
    found: Manifest = _job(**fields)["spec"]["template"]["spec"]
    return found


def _container(**fields: Any) -> Manifest:  # noqa: ANN401 - any part of a specification
    found: Manifest = _pod(**fields)["containers"][0]
    return found


def _plan(container: Manifest) -> Plan:
    values = [entry["value"] for entry in container["env"] if entry["name"] == PLAN_VARIABLE]
    return Plan.model_validate_json(values[-1])


def test_the_benchmark_owns_the_job() -> None:
    """The garbage collector removes it with the benchmark, without any right to finalizers."""
    metadata = _job()["metadata"]
    assert metadata["namespace"] == NAMESPACE
    assert metadata["ownerReferences"] == [
        {
            "apiVersion": "inferbench.dev/v1alpha1",
            "kind": "InferenceBenchmark",
            "name": NAME,
            "uid": UID,
            "controller": True,
            "blockOwnerDeletion": False,
        }
    ]
    assert "finalizers" not in metadata


def test_a_failed_job_leaves_the_health_of_an_argo_cd_application_alone() -> None:
    """Argo CD counts what bears its mark and has no owner: a mark that a user copies makes no difference."""
    marks = {"labels": {"app.kubernetes.io/instance": "app"}, "annotations": {"argocd.argoproj.io/tracking-id": "app"}}
    metadata = _job(runner=marks)["metadata"]
    assert marks["labels"].items() <= metadata["labels"].items()
    assert [owner["kind"] for owner in metadata["ownerReferences"]] == ["InferenceBenchmark"]


def test_one_job_is_one_attempt() -> None:
    """Neither Job controller nor kubelet tries again by itself, and the Job ends even without the operator."""
    made = _job(execution={"schedulingDeadlineSeconds": 10, "startDeadlineSeconds": 20, "measureDeadlineSeconds": 30})
    assert made["spec"]["backoffLimit"] == 0
    assert made["spec"]["activeDeadlineSeconds"] > 60
    assert made["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_job_and_pod_say_what_they_are_for() -> None:
    """The operator finds its children, and their cells, by these."""
    made = _job(attempt=3, sequenceLengths=[8, 16])
    cells = [cell.hash for cell in expand(spec(sequenceLengths=[8, 16]))]
    for metadata in (made["metadata"], made["spec"]["template"]["metadata"]):
        assert metadata["labels"] | {names.LABEL_PLAN: ""} == {
            "app.kubernetes.io/managed-by": "inferbench-operator",
            "app.kubernetes.io/component": "runner",
            "inferbench.dev/benchmark": NAME,
            "inferbench.dev/run": "0123abcd",
            "inferbench.dev/plan": "",
            "inferbench.dev/attempt": "3",
        }
        assert metadata["annotations"] == {
            "inferbench.dev/cells": ",".join(cells),
            "karpenter.sh/do-not-disrupt": "true",
        }


def test_the_pod_meets_the_restricted_standard_and_has_no_rights() -> None:
    """No token, no privileges, no user of its own choice."""
    pod = _pod(runner={"serviceAccountName": "with-iam-role"})
    assert pod["automountServiceAccountToken"] is False
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for forbidden in ("hostNetwork", "hostPID", "hostIPC", "initContainers"):
        assert forbidden not in pod


def test_the_runner_gets_its_plan() -> None:
    """The plan's JSON in the environment is what the runner's own contract reads."""
    fields = {
        "models": [{"name": "bert", "id": "org/x", "revision": "1", "weights": "Random", "config": {"layers": 2}}],
        "accelerators": [INF2 | {"cores": 2, "execution": "Trace"}],
        "sequenceLengths": [8, 16],
        "batchSizes": [4],
        "precisions": ["bf16"],
        "measurement": {
            "minSamples": 7,
            "minSeconds": 1,
            "maxSeconds": 3,
            "targetHalfWidthPercent": 5,
            "processes": 2,
            "load": {"mode": "Open", "concurrency": 8, "arrivals": "Constant", "ratePerSecond": 500},
        },
    }
    plan = _plan(_container(**fields))
    assert (plan.model.id, plan.model.revision, plan.model.config) == ("org/x", "1", {"layers": 2})
    assert (plan.device.kind, plan.device.cores, plan.device.execution) == (
        AcceleratorKind.NEURON,
        2,
        Execution.TRACE,
    )
    assert plan.precision == "bf16"
    assert plan.measurement == Measurement(
        min_samples=7,
        min_seconds=1,
        max_seconds=3,
        target_half_width_percent=5,
        processes=2,
        load=Load(mode=LoadMode.OPEN, concurrency=8, arrivals=Arrivals.CONSTANT, rate_per_second=500),
    )
    assert plan.shapes == tuple(cell.shape for cell in expand(spec(**fields)))


def test_the_profile_reaches_the_plan() -> None:
    """With nothing beside it: the runner knows the profile's numbers."""
    plan = _plan(_container(measurement={"profile": "Legacy2023", "maxSeconds": 60}))
    assert plan.measurement == Measurement(profile=Profile.LEGACY_2023, max_seconds=60)


@pytest.mark.parametrize(
    ("fields", "image"),
    [
        pytest.param({}, SETTINGS.runner_images[AcceleratorKind.CPU], id="the operator's own"),
        pytest.param({"runner": {"image": "mine:1"}}, "mine:1", id="the benchmark's"),
        pytest.param({"accelerators": [INF2]}, SETTINGS.runner_images[AcceleratorKind.NEURON], id="Neuron's"),
        pytest.param({"accelerators": [INF1]}, SETTINGS.inf1_image, id="that of its first generation"),
        pytest.param(
            {"accelerators": [INF1 | {"kind": "CPU"}]},
            SETTINGS.runner_images[AcceleratorKind.CPU],
            id="its processors'",
        ),
        pytest.param({"accelerators": [INF1], "runner": {"image": "mine:1"}}, "mine:1", id="the benchmark's for it"),
    ],
)
def test_the_plan_names_the_image(fields: dict[str, Any], image: str) -> None:
    """The one that the container is started from, which a process can't find out by itself."""
    container = _container(**fields)
    assert container["image"] == _plan(container).image == image


def test_the_operators_default_image_is_in_no_hash() -> None:
    """A new default gives the same cells a new plan; whether their results stand is decided by looking at them."""
    images = replace(SETTINGS, runner_images=dict.fromkeys(AcceleratorKind, "other:2"))
    usual, other = _job(), _job(images=images)
    assert _plan(other["spec"]["template"]["spec"]["containers"][0]).image == "other:2"
    assert other["metadata"] == usual["metadata"]


def test_the_runners_deadlines_reach_the_plan() -> None:
    """It ends by itself, with what it has, and gives a compiler up that doesn't come to an end."""
    plan = _plan(_container(execution={"measureDeadlineSeconds": 70, "compileDeadlineSeconds": 60}))
    assert (plan.deadline_seconds, plan.compile_deadline_seconds) == (70, 60)


def test_kubernetes_expands_nothing_in_the_plan() -> None:
    """A model may have $(HOME) in its name, which in a variable's value would be replaced."""
    container = _container(models=[{"name": "odd", "id": "/models/$(HOME)/$$x"}])
    assert _plan(container).model.id == "/models/$(HOME)/$$x"
    assert "$" not in container["env"][-1]["value"]


def test_the_users_variables_do_not_replace_the_plan() -> None:
    """Of two variables of one name the last one counts."""
    own = [{"name": PLAN_VARIABLE, "value": "mine"}, {"name": "A", "value": "1"}]
    container = _container(runner={"env": own})
    assert container["env"][:2] == own
    assert _plan(container).shapes


FRAGMENT: dict[str, Any] = {"name": "x", "emptyDir": {}}


@pytest.mark.parametrize(
    ("given_", "where", "value"),
    [
        pytest.param({"image": "mine:1"}, ["containers", 0, "image"], "mine:1", id="image"),
        pytest.param({"imagePullSecrets": ["s"]}, ["imagePullSecrets"], [{"name": "s"}], id="imagePullSecrets"),
        pytest.param({"serviceAccountName": "s"}, ["serviceAccountName"], "s", id="serviceAccountName"),
        pytest.param(
            {"resources": {"limits": {"cpu": "2"}}},
            ["containers", 0, "resources"],
            {"limits": {"cpu": "2"}},
            id="resources",
        ),
        pytest.param(
            {"envFrom": [{"secretRef": {"name": "hub"}}]},
            ["containers", 0, "envFrom"],
            [{"secretRef": {"name": "hub"}}],
            id="envFrom",
        ),
        pytest.param({"volumes": [FRAGMENT]}, ["volumes", 2], FRAGMENT, id="volumes"),
        pytest.param(
            {"volumeMounts": [{"name": "x", "mountPath": "/x"}]},
            ["containers", 0, "volumeMounts", 2],
            {"name": "x", "mountPath": "/x"},
            id="volumeMounts",
        ),
        pytest.param({"nodeSelector": {"a": "b"}}, ["nodeSelector"], {"a": "b"}, id="nodeSelector"),
        pytest.param(
            {"tolerations": [{"operator": "Exists"}]}, ["tolerations"], [{"operator": "Exists"}], id="tolerations"
        ),
        pytest.param({"affinity": {"podAffinity": {}}}, ["affinity", "podAffinity"], {}, id="affinity"),
        pytest.param({"priorityClassName": "high"}, ["priorityClassName"], "high", id="priorityClassName"),
        pytest.param({"schedulerName": "my"}, ["schedulerName"], "my", id="schedulerName"),
        pytest.param({"resourceClaims": [{"name": "c"}]}, ["resourceClaims"], [{"name": "c"}], id="resourceClaims"),
        pytest.param({"runtimeClassName": "nvidia"}, ["runtimeClassName"], "nvidia", id="runtimeClassName"),
        pytest.param(
            {"securityContext": {"runAsUser": 7}},
            ["containers", 0, "securityContext", "runAsUser"],
            7,
            id="securityContext",
        ),
    ],
)
def test_a_runner_field_reaches_the_pod(given_: dict[str, Any], where: list[str | int], value: object) -> None:
    """As it is written, be it for all accelerators or for one."""
    for fields in ({"runner": given_}, {"accelerators": [{"name": "cpu", "kind": "CPU", "runner": given_}]}):
        found: Any = _pod(**fields)
        for step in where:
            found = found[step]
        assert found == value


def test_labels_annotations_and_queue_reach_job_and_pod() -> None:
    """For queues and policies; the operator's own words can't be replaced."""
    made = _job(
        runner={
            "labels": {"team": "a", "inferbench.dev/run": "forged", "app.kubernetes.io/managed-by": "me"},
            "annotations": {"note": "b", "inferbench.dev/cells": "forged"},
            "queueName": "night",
        }
    )
    for metadata in (made["metadata"], made["spec"]["template"]["metadata"]):
        assert metadata["labels"]["team"] == "a"
        assert metadata["labels"]["kueue.x-k8s.io/queue-name"] == "night"
        assert metadata["labels"]["inferbench.dev/run"] == "0123abcd"
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "inferbench-operator"
        assert metadata["annotations"]["note"] == "b"
        assert metadata["annotations"]["inferbench.dev/cells"] != "forged"
    assert "suspend" not in made["spec"]


@pytest.mark.parametrize(
    ("accelerator", "resource", "count"),
    [
        pytest.param(INF2, "aws.amazon.com/neuron", "12", id="all Neuron devices of the type"),
        pytest.param({"name": "a10g", "instanceTypes": ["g5.xlarge"]}, "nvidia.com/gpu", "1", id="the only GPU"),
        pytest.param({"name": "gpu", "kind": "NVIDIA", "devices": 2}, "nvidia.com/gpu", "2", id="two GPUs"),
    ],
)
def test_a_device_is_requested_and_its_taint_tolerated(accelerator: dict[str, Any], resource: str, count: str) -> None:
    """Request and limit of an extended resource are equal; the usual taint has the resource's name."""
    pod = _pod(accelerators=[accelerator], runner={"resources": {"limits": {"cpu": "2"}}})
    assert pod["containers"][0]["resources"] == {
        "limits": {"cpu": "2", resource: count},
        "requests": {resource: count},
    }
    assert pod["tolerations"] == [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]


def test_a_pod_that_names_no_size_takes_the_room_of_its_devices() -> None:
    """Requests and limits are equal and its processors are whole, for the quality of service "Guaranteed"."""
    size = {"cpu": "3", "memory": "12746Mi", "nvidia.com/gpu": "1"}
    a10g = {"name": "a10g", "instanceTypes": ["g5.xlarge"]}
    assert _container(accelerators=[a10g])["resources"] == {"limits": size, "requests": size}


@pytest.mark.parametrize("path", ["/dev/shm", "/tmp/"])  # noqa: S108 - in the pod
def test_the_users_own_scratch_volume_takes_the_place_of_ours(path: str) -> None:
    """Shared memory and /tmp are volumes of the pod's own, unless the user mounts others there."""
    usual = _container()["volumeMounts"]
    assert usual == [{"name": "tmp", "mountPath": "/tmp"}, {"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 - in the pod
    mine = {"name": "mine", "mountPath": path}
    pod = _pod(runner={"volumes": [{"name": "mine", "emptyDir": {}}], "volumeMounts": [mine]})
    (other,) = [mount for mount in usual if mount["mountPath"] != path.rstrip("/")]
    assert pod["containers"][0]["volumeMounts"] == [other, mine]
    assert {volume["name"] for volume in pod["volumes"]} == {other["name"], "mine"}


def test_shared_memory_is_bounded() -> None:
    """What is written there is memory of the pod."""
    (volume,) = [volume for volume in _pod()["volumes"] if volume["name"] == "shm"]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}


@pytest.mark.parametrize(
    ("own", "terms"),
    [
        pytest.param({}, [{}], id="nothing"),
        pytest.param({"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [A, B]}}}, [A, B], id="the user's own"),
    ],
)
def test_a_bad_node_is_avoided(own: dict[str, Any], terms: list[Any]) -> None:
    """In each of the alternatives, by the node's name, which no label can hide."""
    wanted = spec(runner={"affinity": own}, execution={"exclusiveNode": False})
    plan = group(expand(wanted))[0]
    placement = replace(place(plan.cells[0].accelerator, SETTINGS.catalogue, exclusive=False), avoid=("n1", "n2"))
    made = job(benchmark(wanted), "0123abcd", plan, plan.cells, 2, placement, SETTINGS)
    found = made["spec"]["template"]["spec"]["affinity"]["nodeAffinity"][_REQUIRED]["nodeSelectorTerms"]
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in ("n1", "n2")]
    assert found == [term | {"matchFields": fields} for term in terms]


def test_a_cpu_runner_requests_no_device() -> None:
    """It runs where there is none."""
    pod = _pod()
    assert pod["containers"][0]["resources"] == {}
    assert pod["tolerations"] == []


def test_instance_types_and_an_exclusive_node_are_required() -> None:
    """Any of the types, and no other runner of any benchmark in any namespace on the node."""
    affinity = _pod(accelerators=[INF2 | {"instanceTypes": ["inf2.xlarge", "inf2.8xlarge"]}])["affinity"]
    (term,) = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {
        "matchExpressions": [
            {
                "key": "node.kubernetes.io/instance-type",
                "operator": "In",
                "values": ["inf2.xlarge", "inf2.8xlarge"],
            }
        ]
    }
    (apart,) = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["labelSelector"] == {"matchExpressions": [{"key": "inferbench.dev/benchmark", "operator": "Exists"}]}
    assert apart["namespaceSelector"] == {}
    assert apart["topologyKey"] == "kubernetes.io/hostname"


def test_the_users_own_affinity_does_not_widen_the_hardware() -> None:
    """Each of its alternatives is still on the instance types, and no other runner is on the node."""
    rack = [{"labelSelector": {}, "topologyKey": "rack"}]
    soft = {"preferredDuringSchedulingIgnoredDuringExecution": []}
    own = {
        "nodeAffinity": soft | {_REQUIRED: {"nodeSelectorTerms": [A, B]}},
        "podAntiAffinity": {_REQUIRED: rack},
        "podAffinity": soft,
    }
    affinity = _pod(accelerators=[INF2], runner={"affinity": own})["affinity"]
    types = {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": INF2["instanceTypes"]}
    terms = affinity["nodeAffinity"][_REQUIRED]["nodeSelectorTerms"]
    assert terms == [term | {"matchExpressions": [*term.get("matchExpressions", []), types]} for term in (A, B)]
    assert "preferredDuringSchedulingIgnoredDuringExecution" in affinity["nodeAffinity"]
    assert affinity["podAffinity"] == soft
    assert affinity["podAntiAffinity"][_REQUIRED][0] == rack[0]
    assert len(affinity["podAntiAffinity"][_REQUIRED]) == 2


def test_an_empty_alternative_stays_empty_and_a_null_is_none() -> None:
    """The first stands for no node at all; the second is what a template leaves that has no value."""
    own = {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [{}, {"matchExpressions": None}]}}}
    types = {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": INF2["instanceTypes"]}
    affinity = _pod(accelerators=[INF2], runner={"affinity": own})["affinity"]
    assert affinity["nodeAffinity"][_REQUIRED]["nodeSelectorTerms"] == [{}, {"matchExpressions": [types]}]


@pytest.mark.parametrize(
    "own",
    [
        {"nodeAffinity": "here"},
        {"nodeAffinity": [1]},
        {"nodeAffinity": {_REQUIRED: "here"}},
        {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": ["here"]}}},
        {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": 7}]}}},
        {"podAntiAffinity": 7},
        {"podAntiAffinity": {_REQUIRED: 7}},
    ],
)
def test_what_is_no_affinity_is_left_to_the_api_server(own: dict[str, Any]) -> None:
    """It refuses the Job with a sentence about the field."""
    assert _pod(accelerators=[INF2], runner={"affinity": own})["affinity"] == own


def test_a_shared_node_of_any_type_needs_no_affinity() -> None:
    """Nothing is asked for."""
    assert "affinity" not in _pod(execution={"exclusiveNode": False})


def test_building_a_job_leaves_the_constants_alone() -> None:
    """What one benchmark adds is not there for the next."""
    before = json.dumps(_job())
    _job(runner={"securityContext": {"runAsUser": 7}, "labels": {"x": "y"}}, accelerators=[INF2])
    assert json.dumps(_job()) == before


benchmark_names = st.from_regex(r"\A[a-z0-9]([-a-z0-9.]{0,50}[a-z0-9])?\Z")


@settings(deadline=None)
@given(benchmark_names, st.integers(1, 1000), st.integers(0, 2**32))
def test_names_are_valid_for_every_benchmark(name: str, attempt: int, salt: int) -> None:
    """Whatever the benchmark's name, up to 52 characters, dots included."""
    job_name = names.job_name(benchmark=name, run=f"{salt:08x}", plan="abc", attempt=attempt)
    assert len(job_name) <= 63
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", job_name)
    result_name = names.result_name(benchmark=name, cell="0123456789")
    assert len(result_name) <= 63
    for value in (name, job_name, result_name):
        assert LABEL_VALUE.match(value)


def test_names_of_different_attempts_differ() -> None:
    """By run, plan and number; the benchmark's UID is in the run."""
    first = {"benchmark": "b", "run": "r", "plan": "p", "attempt": 1}
    others = [first | change for change in ({"run": "s"}, {"plan": "q"}, {"attempt": 2})]
    assert len({names.job_name(**each) for each in [first, *others]}) == 4  # type: ignore[arg-type]
    runs = {
        names.run_id(uid=uid, spec_hash=spec_hash, generation=generation)
        for uid, spec_hash, generation in [("u", "s", 1), ("v", "s", 1), ("u", "t", 1), ("u", "s", 2)]
    }
    assert len(runs) == 4
