"""A queue such as Kueue's on a real node: it holds a Job back, sends it to nodes of its choice, and takes it back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.real.node import NAME
from cluster.real.provisioning import RUNNER
from e2e_harness import Harness, benchmark
from node_testing.containers import running_supervisor, supervisors
from node_testing.models import BERT
from situations.acts import let_pass, queue_up, suspend_job
from situations.history import JOBS, PODS, Chronicle, Story
from situations.scene import STUDY, Scene
from situations.waits import gone, shows

pytestmark = pytest.mark.node

POOL = "inferbench.test/pool"
TAINT = f"{POOL}=queued:NoSchedule"
FLAVOR = {
    "nodeSelector": {POOL: "queued"},
    "tolerations": [{"key": POOL, "operator": "Equal", "value": "queued", "effect": "NoSchedule"}],
}
"""What Kueue adds to the pods of a Job that it admits: those of the ResourceFlavor that has room for it."""
SECONDS = 5
"""Of the scheduling deadline, which is over long before the queue lets the Job go."""


@pytest.fixture
def scene(harness: Harness) -> Iterator[Scene]:
    """The namespace with a queue in it, and all that happens there."""
    nobody: Any = None  # neither a node agent nor an operator of this machine
    with Chronicle(harness.control_plane) as chronicle:
        story = Story(chronicle, harness.namespace, 180)
        made = Scene(harness.control_plane, nobody, nobody, chronicle, harness.namespace, story)
        queue_up()(made)
        yield made


@pytest.fixture
def pool(harness: Harness) -> Iterator[None]:
    """The node belongs to a pool that only pods of the queue's may use."""
    harness.kubectl("label", "node", NAME, f"{POOL}=queued")
    harness.kubectl("taint", "node", NAME, TAINT)
    yield
    harness.kubectl("taint", "node", NAME, f"{TAINT}-")
    harness.kubectl("label", "node", NAME, f"{POOL}-")


def admit(scene: Scene) -> None:
    """Let the Job go to the pool, in one patch, as Kueue does."""
    (job,) = scene.listed(JOBS)
    patch = {"spec": {"suspend": False, "template": {"spec": FLAVOR}}}
    scene.kubectl("patch", "job", job["metadata"]["name"], "--type=merge", f"--patch={json.dumps(patch)}")


@pytest.mark.usefixtures("pool")
def test_a_queue_decides_when_and_where_a_job_runs(harness: Harness, scene: Scene) -> None:
    """Nothing runs and no clock does while it is held back; taken back in mid-run, it starts again without blame."""
    measurement = {"processes": 2, "minSamples": 130, "minSeconds": 6, "maxSeconds": 20, "targetHalfWidthPercent": 100}
    harness.apply(
        benchmark(
            STUDY,
            models=[BERT],
            measurement=measurement,
            runner=RUNNER | {"queueName": "team"},
            execution={"schedulingDeadlineSeconds": SECONDS, "retries": 0},
        )
    )
    scene.wait(shows("waiting", "Queued", ready="Queued"))
    let_pass(SECONDS + 1)(scene)

    assert not scene.listed(PODS), "a suspended Job has no pods"
    assert {entry["reason"] for entry in harness.status(STUDY)["results"]} == {"Queued"}, "its time has not begun"
    admit(scene)

    running_supervisor()
    scene.wait(shows("running"))
    (pod,) = scene.listed(PODS)
    assert pod["spec"]["nodeSelector"] == FLAVOR["nodeSelector"]
    suspend_job(value=True)(scene)
    scene.wait(shows("waiting", "Queued", ready="Queued"))
    scene.wait(gone(PODS))
    assert not list(supervisors()), "nothing runs any more"
    let_pass(SECONDS + 1)(scene)
    assert {entry["reason"] for entry in harness.status(STUDY)["results"]} == {"Queued"}
    suspend_job(value=False)(scene)

    status = harness.wait_until_finished(STUDY, every=1)

    assert {entry["state"] for entry in status["results"]} == {"succeeded"}, status["results"]
    assert {(entry["attempts"], entry.get("disruptions", 0)) for entry in status["results"]} == {(1, 0)}
    assert len(scene.listed(JOBS)) == 1
