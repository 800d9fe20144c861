"""What happens while a benchmark runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

from cluster import Node
from cluster.observing import eventually, job_manifest
from situations.history import BENCHMARKS, JOBS, PODS, path_of
from situations.scene import STUDY, Scene, Wait, is_runner
from situations.waits import is_pod

Act = Callable[[Scene], object]
"""Something that happens; what it returns is of no interest."""

_QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
_GRAVE: Final = 1_000_000
"""Priority of whatever is more important than a benchmark."""


def add_node(name: str, node: str | Node) -> Act:
    """A node comes, as from Karpenter."""
    return lambda scene: scene.add_node(name, node)


def remove_node(name: str) -> Act:
    """A machine goes, and its Node with it."""
    return lambda scene: scene.agent.remove_node(scene.node_name(name))


def lose_power(name: str) -> Act:
    """A machine is not heard of any more."""
    return lambda scene: scene.agent.silence_node(scene.node_name(name))


def taint(name: str, taint: str) -> Act:
    """A node gets a taint, or loses it where the taint ends in "-"."""
    return lambda scene: scene.kubectl("taint", "node", scene.node_name(name), taint)


def cordon(name: str) -> Act:
    """A node takes no more pods."""
    return lambda scene: scene.kubectl("cordon", scene.node_name(name))


def uncordon(name: str) -> Act:
    """A node takes pods again."""
    return lambda scene: scene.kubectl("uncordon", scene.node_name(name))


def set_devices(name: str, resource: str, count: int) -> Act:
    """A device plugin tells how many devices a node has."""

    def act(scene: Scene) -> None:
        amounts = {resource: str(count)}
        patch = json.dumps({"status": {"capacity": amounts, "allocatable": amounts}})
        scene.kubectl("patch", "node", scene.node_name(name), "--subresource=status", f"--patch={patch}")

    return act


def drain(attempt: int = 1) -> Act:
    """The Eviction API is asked to take a runner pod away, as by kubectl drain, Karpenter or a spot handler."""

    def act(scene: Scene) -> None:
        name = scene.pod(attempt)
        manifest = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        scene.chronicle.request("POST", f"{path_of(PODS, scene.namespace, name)}/eviction", manifest)

    return act


def evict(resource: str = "memory") -> Act:
    """The kubelet evicts the first runner pod."""
    return lambda scene: scene.agent.evict(scene.namespace, scene.pod(), resource)


def delete_pod(attempt: int = 1, *options: str) -> Act:
    """A person deletes a runner pod."""
    return lambda scene: scene.kubectl("delete", "pod", scene.pod(attempt), "--wait=false", *options)


def delete_job(attempt: int = 1) -> Act:
    """A person deletes a Job."""
    return lambda scene: scene.kubectl("delete", "job", scene.job(attempt), "--wait=false")


def occupy(resource: str, *, count: int = 1, priority: bool = False) -> Act:
    """Another pod takes devices for itself; with a priority, also from others."""

    def act(scene: Scene) -> None:
        grave = {"priorityClassName": scene.namespace} if priority else {}
        if priority:
            scene.create(
                {
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": {"name": scene.namespace},
                    "value": _GRAVE,
                }
            )
        container = {
            "name": "server",
            "image": "example.test/server:1",
            "resources": {"limits": {resource: str(count)}},
        }
        tolerations = [{"operator": "Exists", "effect": "NoSchedule"}]
        spec = {"containers": [container], "tolerations": tolerations, "terminationGracePeriodSeconds": 1}
        # Nodes of other situations have such devices as well.
        among = [{"key": "kubernetes.io/hostname", "operator": "In", "values": sorted(scene.nodes)}]
        required = {"nodeSelectorTerms": [{"matchExpressions": among}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        metadata = {"name": "server"}
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": spec | grave | {"affinity": affinity},
        }
        scene.create(manifest)
        scene.wait(
            Wait("the other pod runs", PODS, lambda raw: raw["metadata"]["name"] == "server" and is_pod(raw, "running"))
        )

    return act


def vacate() -> Act:
    """The other pod gives its devices back."""
    return lambda scene: scene.kubectl("delete", "pod", "server", "--wait=false")


def set_spec(**fields: Any) -> Act:  # noqa: ANN401 - any part of a specification
    """A person changes the benchmark."""
    return lambda scene: scene.patch(BENCHMARKS, STUDY, {"spec": fields})


def allow(**seconds: int) -> Act:
    """A person changes a deadline of the run that goes on; one that has passed by then ends it at once."""
    return set_spec(execution=seconds)


def rerun(token: str) -> Act:
    """A person asks for another run."""
    annotations = {"inferbench.dev/rerun": token}
    return lambda scene: scene.patch(BENCHMARKS, STUDY, {"metadata": {"annotations": annotations}})


def limit(what: str) -> Act:
    """A quota forbids a kind of objects altogether."""

    def act(scene: Scene) -> None:
        manifest = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "none"},
            "spec": {"hard": {what: "0"}},
        }
        scene.create(manifest)
        # The API server learns of quotas by a watch; an object that slips through would prove nothing.
        path = what.replace(".", r"\.")
        scene.kubectl("wait", "quota/none", f"--for=jsonpath={{.status.hard.{path}}}=0")

    return act


def lift_limit() -> Act:
    """The quota goes."""
    return lambda scene: scene.kubectl("delete", "quota", "none")


def create(kind: str, *arguments: str) -> Act:
    """A person makes something that was missing."""
    return lambda scene: scene.kubectl("create", kind, *arguments)


def lack(kind: str, name: str) -> Act:
    """Something is not there, even if a row that was played before has made it."""
    return lambda scene: scene.kubectl("delete", kind, name, "--ignore-not-found")


def label_namespace(label: str) -> Act:
    """An administrator labels the namespace."""
    return lambda scene: scene.kubectl("label", "namespace", scene.namespace, label)


def warn(reason: str, message: str) -> Act:
    """The kubelet tells in an Event what the first runner pod waits for."""

    def act(scene: Scene) -> None:
        name = scene.pod()
        involved = {"apiVersion": "v1", "kind": "Pod", "name": name, "namespace": scene.namespace}
        scene.create(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"generateName": f"{name}."},
                "type": "Warning",
                "reason": reason,
                "message": message,
                "involvedObject": involved,
            }
        )

    return act


def suspend_job(*, value: bool, attempt: int = 1) -> Act:
    """A queue holds a Job back, or lets it go."""

    def act(scene: Scene) -> None:
        wanted = Wait(f"there is the Job of attempt {attempt}", JOBS, lambda raw: is_runner(raw, attempt))
        scene.patch(JOBS, scene.wait(wanted)["metadata"]["name"], {"spec": {"suspend": value}})

    return act


def operator_away(*, until: Wait) -> Act:
    """The operator is killed, and comes back only after something has happened."""

    def act(scene: Scene) -> None:
        scene.operator.kill()
        try:
            scene.wait(until)
        finally:
            scene.operator.start()

    return act


def let_pass(seconds: float) -> Act:
    """Nothing happens for a while, in which something might that should not."""
    return lambda _scene: time.sleep(seconds)


def queue_up() -> Act:
    """A queue suspends every Job with its label before it is stored, as Kueue's webhook does."""

    def act(scene: Scene) -> None:
        metadata = {"name": scene.namespace}
        rule = {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"]}
        policy = {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": scene.namespace}},
                "resourceRules": [rule],
            },
            "matchConditions": [
                {"name": "queued", "expression": f"'{_QUEUE_LABEL}' in object.metadata.?labels.orValue({{}})"}
            ],
            "reinvocationPolicy": "Never",
            "mutations": [
                {
                    "patchType": "ApplyConfiguration",
                    "applyConfiguration": {"expression": "Object{spec: Object.spec{suspend: true}}"},
                }
            ],
        }
        api = {"apiVersion": "admissionregistration.k8s.io/v1"}
        binding = {"policyName": scene.namespace}
        scene.create(
            {**api, "kind": "MutatingAdmissionPolicy", "metadata": metadata, "spec": policy},
            {**api, "kind": "MutatingAdmissionPolicyBinding", "metadata": metadata, "spec": binding},
        )
        trial = json.loads(job_manifest("trial"))
        trial["metadata"]["labels"] = {_QUEUE_LABEL: "trial"}
        path = f"{path_of(JOBS, scene.namespace)}?dryRun=All"
        eventually("the queue sees new Jobs", lambda: scene.chronicle.request("POST", path, trial)["spec"]["suspend"])

    return act


def kueue() -> Act:
    """Kueue's Workloads can be made, as far as the operator reads them."""

    def act(scene: Scene) -> None:
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        manifest = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": "workloads.kueue.x-k8s.io",
                "annotations": {"api-approved.kubernetes.io": "unapproved, a double"},
            },
            "spec": {
                "group": "kueue.x-k8s.io",
                "names": {"kind": "Workload", "plural": "workloads"},
                "scope": "Namespaced",
                "versions": [{"name": "v1beta1", "served": True, "storage": True, "schema": schema}],
            },
        }
        scene.kubectl("apply", "--server-side", "--filename=-", stdin=json.dumps(manifest))
        scene.kubectl("wait", "crd/workloads.kueue.x-k8s.io", "--for=condition=Established")

    return act


def queue_says(reason: str, message: str) -> Act:
    """Kueue says in the Workload of the first Job why it does not reserve a quota for it."""

    def act(scene: Scene) -> None:
        job = scene.wait(Wait("there is a Job", JOBS, lambda raw: is_runner(raw, 1)))
        condition = {
            "type": "QuotaReserved",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": job["metadata"]["creationTimestamp"],
        }
        scene.create(
            {
                "apiVersion": "kueue.x-k8s.io/v1beta1",
                "kind": "Workload",
                "metadata": {"name": "job", "labels": {"kueue.x-k8s.io/job-uid": job["metadata"]["uid"]}},
                "status": {"conditions": [condition]},
            }
        )

    return act
