"""What the operator may do is what it needs, cluster-wide or in some namespaces, and a missing right is no end.

All on a control plane of its own: nobody else gives the operator rights there, or asks for anything in its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest
import yaml

from cluster import FOREVER, ControlPlane, Exits, NodeAgent, Stuck
from cluster.api import MERGE_PATCH
from cluster.nodes import cpu_node
from cluster.observing import eventually, job_manifest
from cluster.operator_process import CRDS, NAMESPACED_ROLE, ROLES, SERVICE_ACCOUNT, OperatorProcess
from cluster.outcomes import for_labels
from cluster.states import Waiting
from e2e_harness import Harness, Json, benchmark
from inferbench_operator.core.names import job_name
from operator_testing.statuses import StatusCollection
from situations.history import BENCHMARKS, Chronicle, path_of

pytestmark = pytest.mark.e2e

Right = tuple[str, str, str]
"""Group, resource with its subresource, and verb."""

ACCOUNT_NAMESPACE, ACCOUNT = SERVICE_ACCOUNT.split("/")
OPTIONAL = {"nodes", "nodepools"}
"""What the operator asks for with a role of its own, which need not be there."""


@pytest.fixture(scope="module")
def control_plane(statuses: StatusCollection) -> Iterator[ControlPlane]:
    """A control plane with the operator's account, which has no rights."""
    with ControlPlane(manifests=CRDS) as running, statuses.following(running):
        running.create_namespace(ACCOUNT_NAMESPACE)
        running.kubectl("create", "serviceaccount", ACCOUNT, f"--namespace={ACCOUNT_NAMESPACE}")
        yield running


@pytest.fixture(scope="module")
def kubeconfig(control_plane: ControlPlane) -> Path:
    """Kubeconfig of the operator's account."""
    return control_plane.kubeconfig_for(SERVICE_ACCOUNT)


@pytest.fixture(autouse=True)
def emptied(control_plane: ControlPlane) -> Iterator[None]:
    """Leave no benchmark to the operators of other tests."""
    yield
    control_plane.kubectl("delete", "ib", "--all", "--all-namespaces", "--wait=true")


@pytest.fixture
def everywhere(control_plane: ControlPlane) -> Iterator[None]:
    """The operator's rights in the whole cluster."""
    control_plane.kubectl("apply", f"--filename={ROLES}")
    eventually("the API server knows the role", lambda: _may(control_plane, "create", "jobs.batch", "kube-system"))
    yield
    control_plane.kubectl("delete", "clusterrolebinding", ACCOUNT)
    eventually("the role is gone", lambda: not _may(control_plane, "create", "jobs.batch", "kube-system"))


def _allow(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.kubectl("apply", f"--namespace={namespace}", f"--filename={NAMESPACED_ROLE}")
    eventually("the API server knows the role", lambda: _may(control_plane, "create", "jobs.batch", namespace))


def _may(control_plane: ControlPlane, verb: str, what: str, namespace: str = "") -> bool:
    """Ask the API server whether the operator may do something to `resource/subresource.group`."""
    resource, _, group = what.partition(".")
    resource, _, subresource = resource.partition("/")
    attributes = {"verb": verb, "group": group, "resource": resource, "subresource": subresource}
    groups = ["system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{ACCOUNT_NAMESPACE}"]
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{ACCOUNT_NAMESPACE}:{ACCOUNT}",
            "groups": groups,
            "resourceAttributes": attributes | {"namespace": namespace},
        },
    }
    answer = control_plane.kubectl("create", "--filename=-", "--output=json", stdin=json.dumps(review))
    allowed: bool = json.loads(answer)["status"]["allowed"]
    return allowed


@contextmanager
def _operator(kubeconfig: Path, folder: Path, *namespaces: str) -> Iterator[OperatorProcess]:
    """Run the operator, in all namespaces or in these."""
    arguments = tuple(f"--namespace={namespace}" for namespace in namespaces)
    with OperatorProcess(kubeconfig, folder / "operator.log", arguments) as process:
        yield process
    log = process.log.read_text()
    assert "Traceback" not in log, log


def _requests(control_plane: ControlPlane, since: datetime) -> list[Json]:
    """Return all requests for objects that the operator has made since then, and the API server has answered."""
    # The last line may be half written.
    lines = control_plane.layout.audit_log.read_text().splitlines(keepends=True)
    entries = [json.loads(line) for line in lines if line.endswith("\n")]
    return [
        entry
        for entry in entries
        if datetime.fromisoformat(entry["requestReceivedTimestamp"]) >= since
        and entry.get("objectRef", {}).get("resource", "nodes") not in OPTIONAL
    ]


def _right(request: Json) -> Right:
    what = request["objectRef"]
    subresource = f"/{what['subresource']}" if "subresource" in what else ""
    return what.get("apiGroup", ""), what["resource"] + subresource, request["verb"]


def _code(request: Json) -> int:
    code: int = request["responseStatus"]["code"]
    return code


def test_with_a_role_in_two_namespaces_it_serves_these_and_no_other(
    control_plane: ControlPlane, agent: NodeAgent, kubeconfig: Path, tmp_path: Path
) -> None:
    """It asks for nothing that the Role does not give, and needs no right outside of the two."""
    for name in ("one", "two"):
        agent.add_node(cpu_node(name, local=False))
    served = [control_plane.create_namespace(f"served-{uuid4().hex[:8]}") for _ in range(2)]
    other = control_plane.create_namespace(f"other-{uuid4().hex[:8]}")
    for namespace in served:
        _allow(control_plane, namespace)
    began = datetime.now(UTC)

    with _operator(kubeconfig, tmp_path, *served) as operator:
        stranger, *harnesses = (Harness(control_plane, agent, operator, name) for name in (other, *served))
        for harness in (stranger, *harnesses):
            harness.apply(benchmark("study"))
        for harness in harnesses:
            harness.wait_until_finished("study")
            assert harness.condition("study", "Ready")["status"] == "True"
            assert len(harness.list("ibr")) == 2

    assert stranger.status("study") == {"observedGeneration": -1}
    assert stranger.list("jobs") == []
    assert "forbidden" not in operator.log.read_text()
    requests = _requests(control_plane, began)
    assert 403 not in {_code(request) for request in requests}
    assert {request["objectRef"].get("namespace") for request in requests} == set(served)


@pytest.mark.usefixtures("everywhere")
def test_it_has_the_rights_that_it_uses_and_no_other(
    control_plane: ControlPlane, agent: NodeAgent, kubeconfig: Path, namespace: str, tmp_path: Path
) -> None:
    """The audit log of a life with everything in it that needs a right names the rules of the ClusterRole."""
    agent.add_node(cpu_node("simulated", local=False))
    agent.add_node(cpu_node("other", local=False))
    agent.script(for_labels(Stuck((Waiting(),)), benchmark="silent"))
    agent.script(for_labels(Exits(run_seconds=FOREVER), benchmark="queued"))
    control_plane.kubectl("create", "--filename=-", stdin=_KUEUE)
    control_plane.kubectl("wait", "crd", "workloads.kueue.x-k8s.io", "--for=condition=Established", "--timeout=60s")
    began = datetime.now(UTC)

    def used() -> set[Right]:
        return {
            _right(request)
            for request in _requests(control_plane, began)
            if _code(request) < 400 or _code(request) == 409
        }

    with _operator(kubeconfig, tmp_path) as operator, Chronicle(control_plane) as chronicle:
        harness = Harness(control_plane, agent, operator, namespace)
        for name in ("silent", "queued", "study"):
            harness.apply(benchmark(name))
        _hold_back(harness, "queued")
        harness.wait_until_finished("study")
        _measure_again(harness)
        harness.apply(benchmark("study", gates=[_GATE]))
        eventually("the gate is judged", lambda: harness.status("study").get("gates"))
        _find_strangers_in_the_way(harness)
        _remove_a_cell(harness)
        _change_it_all_the_time(harness, chronicle, lambda: ("inferbench.dev", "inferencebenchmarks", "get") in used())
        for right in (("", "events", "list"), ("kueue.x-k8s.io", "workloads", "list")):
            eventually(f"the operator has used {right}", lambda right=right: right in used())  # type: ignore[misc]
    control_plane.kubectl("delete", "crd", "workloads.kueue.x-k8s.io")

    role = next(found for found in yaml.safe_load_all(ROLES.read_text()) if found["kind"] == "ClusterRole")
    rights = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    # A watch is written down when it ends, with the operator.
    watches = {right for right in rights if right[2] == "watch"}
    eventually("the watches have ended", lambda: watches - used(), lambda left: not left)
    assert used() == rights
    assert [found for found in _requests(control_plane, began) if _code(found) == 403] == []


_GATE = {
    "name": "stored",
    "metric": "P95",
    "baseline": "ConfigMap",
    "baselineName": "kube-root-ca.crt",
    "maxIncreasePercent": 10,
}
_KUEUE = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: workloads.kueue.x-k8s.io
  annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes-sigs/kueue/pull/1"}
spec:
  group: kueue.x-k8s.io
  names: {kind: Workload, plural: workloads, singular: workload}
  scope: Namespaced
  versions:
  - name: v1beta2
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"""


def _hold_back(harness: Harness, name: str) -> None:
    """Suspend the benchmark's Job, as a queue does."""
    job = eventually("there is a Job to suspend", lambda: _job_of(harness, name))
    harness.kubectl("patch", "job", job["metadata"]["name"], '--patch={"spec": {"suspend": true}}')


def _job_of(harness: Harness, name: str) -> Json:
    """Return a Job of the benchmark, or nothing."""
    of = ((job["metadata"].get("labels", {}).get("inferbench.dev/benchmark"), job) for job in harness.list("jobs"))
    return next((job for benchmark, job in of if benchmark == name), {})


def _measure_again(harness: Harness) -> None:
    """Ask for another run by the annotation: its results take the place of those before, and its Job of the other."""
    first = harness.status("study")["run"]["id"]
    harness.kubectl("annotate", "ib", "study", "inferbench.dev/rerun=again")
    eventually("another run has begun", lambda: harness.status("study")["run"]["id"] != first)
    harness.wait_until_finished("study")


def _find_strangers_in_the_way(harness: Harness) -> None:
    """Have a Job and results there already, of somebody else, under names that the next run needs."""
    plan = _job_of(harness, "study")["metadata"]["labels"]["inferbench.dev/plan"]
    # The results of a benchmark that is deleted without them are nobody's.
    harness.kubectl("delete", "ib", "study", "--cascade=orphan", "--wait=true")
    harness.apply(benchmark("study", suspend=True))
    run = eventually("the next run has a name", lambda: harness.status("study").get("run", {}).get("id"))
    job = json.loads(job_manifest(job_name(benchmark="study", run=run, plan=plan, attempt=1)))
    job["spec"]["suspend"] = True
    harness.apply(job)
    strangers = {found["metadata"]["uid"] for kind in ("ibr", "jobs") for found in harness.list(kind)}
    harness.apply(benchmark("study"))
    harness.wait_until_finished("study")
    names = {found["metadata"]["name"] for found in harness.list("ibr")}
    assert len(names) == 2
    left = [found for kind in ("ibr", "jobs") for found in harness.list(kind) if found["metadata"]["uid"] in strangers]
    assert {found["metadata"]["name"] for found in left}.isdisjoint({*names, job["metadata"]["name"]})


def _remove_a_cell(harness: Harness) -> None:
    """Take a length out of the specification, and its result with it."""
    harness.apply(benchmark("study", sequenceLengths=[8]))
    eventually("one result is left", lambda: len(harness.list("ibr")) == 1)


def _change_it_all_the_time(harness: Harness, chronicle: Chronicle, done: Callable[[], bool]) -> None:
    """Change the benchmark again and again while it runs, until the operator has lost an update to it."""
    numbers = count()

    def change() -> bool:
        for _ in range(20):
            token = str(next(numbers))
            annotations = {"touched": token, "inferbench.dev/rerun": token[:-1]}
            patch = {"metadata": {"annotations": annotations}}
            chronicle.request("PATCH", path_of(BENCHMARKS, harness.namespace, "study"), patch, content_type=MERGE_PATCH)
        return done()

    eventually("the operator has read again what somebody else has changed", change)


NEVER = (
    ("get", "secrets"),
    ("create", "pods/exec"),
    ("patch", "inferencebenchmarks.inferbench.dev"),
    ("update", "inferencebenchmarks.inferbench.dev"),
    ("list", "namespaces"),
    ("list", "customresourcedefinitions.apiextensions.k8s.io"),
)
"""What it must not do, however it is installed."""


@pytest.mark.usefixtures("everywhere")
def test_with_rights_everywhere_it_may_not_do_more_than_it_needs(control_plane: ControlPlane, namespace: str) -> None:
    """No Secrets, no exec, no change of the benchmarks themselves, no look at the cluster's own objects."""
    assert _may(control_plane, "create", "jobs.batch", namespace)
    for verb, what in NEVER:
        for where in (namespace, ""):
            assert not _may(control_plane, verb, what, where), f"{verb} {what} in {where or 'all namespaces'}"


def test_with_rights_in_one_namespace_it_has_none_in_others(control_plane: ControlPlane, namespace: str) -> None:
    """Least of all in kube-system."""
    _allow(control_plane, namespace)
    for verb, what in NEVER:
        for where in (namespace, "kube-system", ""):
            assert not _may(control_plane, verb, what, where), f"{verb} {what} in {where or 'all namespaces'}"
    for where in ("kube-system", ACCOUNT_NAMESPACE, ""):
        assert not _may(control_plane, "create", "jobs.batch", where)
        assert not _may(control_plane, "list", "inferencebenchmarks.inferbench.dev", where)


def test_a_namespace_without_rights_or_not_there_yet_is_served_once_it_is(
    control_plane: ControlPlane, agent: NodeAgent, kubeconfig: Path, tmp_path: Path
) -> None:
    """Each is told in a sentence, once; the other one is served meanwhile, and the operator does not end."""
    for name in ("one", "two", "three"):
        agent.add_node(cpu_node(name, local=False))
    served, barred = (control_plane.create_namespace(f"{name}-{uuid4().hex[:8]}") for name in ("served", "barred"))
    missing = f"missing-{uuid4().hex[:8]}"
    _allow(control_plane, served)
    began = datetime.now(UTC)

    with _operator(kubeconfig, tmp_path, barred, missing, served) as operator:
        one, two, three = (Harness(control_plane, agent, operator, name) for name in (served, barred, missing))
        one.apply(benchmark("study"))
        two.apply(benchmark("study"))
        one.wait_until_finished("study")
        # Left to itself, Kopf ends the operator when it is refused for the ninth time, after a minute.
        eventually("Kopf was refused ten times", lambda: _refusals(control_plane, began, barred, 403) >= 10)
        assert two.status("study") == {"observedGeneration": -1}
        for name in (barred, missing):
            assert _said(operator, f"in namespace {name} are left alone") == 1, operator.log.read_text()
            assert _said(operator, name) == 1, operator.log.read_text()

        control_plane.create_namespace(missing)
        for harness in (two, three):
            _allow(control_plane, harness.namespace)
        three.apply(benchmark("study"))
        for harness in (one, two, three):
            # Sooner than the next listing of everything: it is a watch that tells of these.
            harness.apply(benchmark("next"))
        for harness in (two, three):
            harness.wait_until_finished("study")
            assert _said(operator, f"in namespace {harness.namespace} are looked after from now on") == 1
        for harness in (one, two, three):
            harness.wait_until_finished("next")


@pytest.mark.usefixtures("everywhere")
def test_kinds_that_are_taken_away_and_brought_back_are_no_end(
    control_plane: ControlPlane, agent: NodeAgent, kubeconfig: Path, tmp_path: Path
) -> None:
    """Every watch of them is answered with 404 meanwhile, which would end Kopf at once."""
    agent.add_node(cpu_node("simulated", local=False))
    began = datetime.now(UTC)
    with _operator(kubeconfig, tmp_path) as operator:
        harness = Harness(control_plane, agent, operator, control_plane.create_namespace(f"bare-{uuid4().hex[:8]}"))
        harness.apply(benchmark("study"))
        harness.wait_until_finished("study")
        crds = [f"--filename={path}" for path in CRDS]
        control_plane.kubectl("delete", "--wait=true", *crds)
        eventually("Kopf was refused", lambda: _refusals(control_plane, began, None, 404) >= 2)

        control_plane.kubectl("apply", "--server-side", *crds)
        control_plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", *crds)
        harness.apply(benchmark("study"))
        harness.wait_until_finished("study")
        assert harness.condition("study", "Ready")["status"] == "True"


def _refusals(control_plane: ControlPlane, since: datetime, namespace: str | None, code: int) -> int:
    """Count how often Kopf was refused the benchmarks in a namespace, or (None) in all."""
    return sum(
        request["objectRef"]["resource"] == BENCHMARKS
        and request["objectRef"].get("namespace") == namespace
        and request["userAgent"].startswith("kopf/")
        and _code(request) == code
        for request in _requests(control_plane, since)
    )


def _said(operator: OperatorProcess, words: str) -> int:
    return sum(words in line for line in operator.log.read_text().splitlines())
