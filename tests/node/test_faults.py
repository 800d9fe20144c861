"""What becomes of a benchmark when something breaks on a real node: typed reasons, and nothing measured twice."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from cluster.observing import eventually
from cluster.real import RealNode
from cluster.real.images import BUSYBOX_IMAGE, Image, LayerWriter
from cluster.real.node import CONTAINERD, KUBELET, NAME
from cluster.real.packages import find_or_unpack
from cluster.real.provisioning import RUNNER, wait_for_operator
from e2e_harness import Harness, Json, benchmark
from node_testing.containers import report_so_far, running_supervisor
from node_testing.models import BERT
from node_testing.registries import registry_without_images

pytestmark = pytest.mark.node

# Long enough to break something in the middle: two processes of some seconds each.
MEASUREMENT = {"processes": 2, "minSamples": 130, "minSeconds": 6, "maxSeconds": 20, "targetHalfWidthPercent": 100}


TALKATIVE = """#!/bin/sh
printf '{"measured": [], "failed": [], "padding": "' >/dev/termination-log
busybox yes x | busybox tr -d '\\n' | busybox head -c 5000 >>/dev/termination-log
printf '"}' >>/dev/termination-log
"""


def small(name: str, *, runner: Json | None = None, **spec: Any) -> Json:  # noqa: ANN401 - any part of a specification
    """Return a benchmark of two cells that runs for half a minute; `spec` replaces or adds fields."""
    defaults = {"models": [BERT], "measurement": MEASUREMENT}
    return benchmark(name, runner=RUNNER | dict(runner or {}), **(defaults | spec))


def measuring(harness: Harness) -> int:
    """Wait until a runner has figures of both cells, and return its first process."""
    (pod,) = eventually("the runner runs", lambda: harness.list("pods"))
    found = running_supervisor()
    eventually(
        "it has some figures",
        lambda: report_so_far(pod["metadata"]["uid"]),
        lambda report: len(report.measured) == 2,
        seconds=180,
    )
    return found


def assert_measured_once(harness: Harness, *, jobs: int, attempts: set[int]) -> None:
    """No later attempt was given a cell that an earlier one has measured."""
    found = sorted(harness.list("jobs"), key=lambda job: int(job["metadata"]["labels"]["inferbench.dev/attempt"]))
    assert len(found) == jobs
    results = {result["spec"]["cell"]: result["status"]["attempt"] for result in harness.list("ibr")}
    assert set(results.values()) == attempts
    for number, job in enumerate(found, start=1):
        given = set(job["metadata"]["annotations"]["inferbench.dev/cells"].split(","))
        assert not given & {cell for cell, attempt in results.items() if attempt < number}


def assert_ready(harness: Harness, name: str) -> None:
    """The run succeeded with figures for all cells."""
    ready = harness.condition(name, "Ready")
    assert ready["status"] == "True", ready["message"]


def reasons(harness: Harness) -> list[str]:
    """Return the reasons of the Events on benchmarks."""
    return [
        event["reason"] for event in harness.list("events") if event["involvedObject"]["kind"] == "InferenceBenchmark"
    ]


def failed(status: Json) -> list[tuple[str, str]]:
    """Return reason and message of each cell; all have failed."""
    assert {entry["state"] for entry in status["results"]} == {"failed"}, status["results"]
    return [(entry["reason"], entry["message"]) for entry in status["results"]]


def test_a_container_killed_before_its_first_figure_is_tried_again(harness: Harness) -> None:
    """SIGKILL from outside is RunnerKilled, and costs one retry."""
    harness.apply(small("killed"))
    os.kill(running_supervisor(), signal.SIGKILL)

    harness.wait_until_finished("killed", every=1)

    assert_ready(harness, "killed")
    assert_measured_once(harness, jobs=2, attempts={2})
    assert "RunnerKilled" in reasons(harness)


def test_a_container_killed_with_figures_keeps_them(harness: Harness) -> None:
    """What the first process had measured stands, with its doubts, and is not measured again."""
    harness.apply(small("half"))
    os.kill(measuring(harness), signal.SIGKILL)

    harness.wait_until_finished("half", every=1)

    assert_measured_once(harness, jobs=1, attempts={1})
    for result in harness.list("ibr"):
        assert "FewerProcesses" in {doubt["caveat"] for doubt in result["status"]["caveats"]}


@pytest.mark.parametrize("parts", [(KUBELET,), (CONTAINERD,), (KUBELET, CONTAINERD)], ids="+".join)
def test_a_run_goes_on_without_parts_of_its_node(harness: Harness, operated: RealNode, parts: tuple[str, ...]) -> None:
    """SIGKILL of kubelet and containerd in mid-run changes nothing."""
    harness.apply(small("undisturbed"))
    before = measuring(harness)
    for part in parts:
        operated.kill_part(part)
    for part in reversed(parts):
        operated.start_part(part)
    operated.wait_until_ready()
    assert Path(f"/proc/{before}").exists(), "the parts came back in the middle of the run"

    harness.wait_until_finished("undisturbed", every=1)

    assert_ready(harness, "undisturbed")
    assert_measured_once(harness, jobs=1, attempts={1})


def test_a_drained_runner_is_started_again(harness: Harness) -> None:
    """An eviction is Drained, costs no retry, and the benchmark waits for a node meanwhile."""
    harness.apply(small("drained", execution={"retries": 0}))
    measuring(harness)
    try:
        harness.control_plane.kubectl(
            "drain", NAME, "--pod-selector=inferbench.dev/benchmark", "--force", "--delete-emptydir-data"
        )
        eventually(
            "it waits",
            lambda: harness.condition("drained", "CapacityAvailable"),
            lambda found: found.get("status") == "False" and "unschedulable" in found["message"],
        )
    finally:
        harness.control_plane.kubectl("uncordon", NAME)

    status = harness.wait_until_finished("drained", every=1)

    assert_ready(harness, "drained")
    assert {entry["attempts"] for entry in status["results"]} == {2}
    assert {entry["disruptions"] for entry in status["results"]} == {1}
    assert_measured_once(harness, jobs=2, attempts={2})
    assert "Drained" in reasons(harness)


def test_a_run_ends_without_its_operator_in_between(harness: Harness, operated: RealNode) -> None:
    """The operator's pod is killed in mid-run, and its successor goes on."""
    harness.apply(small("headless"))
    measuring(harness)
    within = "--namespace=inferbench-system"
    operated.control_plane.kubectl("delete", "pods", "--all", within, "--force", "--grace-period=0")
    wait_for_operator(operated.control_plane)

    harness.wait_until_finished("headless", every=1)

    assert_ready(harness, "headless")
    assert_measured_once(harness, jobs=1, attempts={1})


def test_a_run_ends_after_a_reboot_of_its_node(harness: Harness, operated: RealNode) -> None:
    """The containers of operator and runner are gone; the run ends all the same."""
    harness.apply(small("rebooted"))
    measuring(harness)
    operated.reboot()
    wait_for_operator(operated.control_plane)

    status = harness.wait_until_finished("rebooted", every=1)

    assert_ready(harness, "rebooted")
    assert {entry["disruptions"] for entry in status["results"]} == {1}
    assert_measured_once(harness, jobs=2, attempts={2})
    assert "NodeShutdown" in reasons(harness)


def test_an_image_that_no_registry_has_is_not_tried_again(harness: Harness) -> None:
    """The registry's own word decides: another pod would not get it either."""
    with registry_without_images() as registry:
        execution = {"startDeadlineSeconds": 10}
        harness.apply(small("absent", runner={"image": f"{registry}/absent:1"}, execution=execution))

        status = harness.wait_until_finished("absent", every=1)

    for reason, message in failed(status):
        assert reason in {"ErrImagePull", "ImagePullBackOff"}
        assert "not found" in message
    assert {entry["attempts"] for entry in status["results"]} == {1}


def test_an_image_without_the_runner_says_so(harness: Harness) -> None:
    """The container never starts, and runc's sentence is in the status."""
    harness.apply(small("hollow", runner={"image": BUSYBOX_IMAGE}, execution={"retries": 0}))

    status = harness.wait_until_finished("hollow", every=1)

    for reason, message in failed(status):
        assert reason == "RunnerFailed"
        assert "executable file not found in $PATH" in message


def test_a_message_over_4096_bytes_is_refused(harness: Harness, operated: RealNode, tmp_path: Path) -> None:
    """The kubelet cuts it, and half a report is none."""
    with LayerWriter(tmp_path / "layer.tar") as writer:
        writer.add(find_or_unpack().busybox, "/bin/busybox")
        writer.add_link("/bin/sh", "busybox")
        writer.add_text("/bin/python", TALKATIVE, mode=0o755)
        layer = writer.done()
    image = Image("inferbench.test/talkative:1", [layer], environment={"PATH": "/bin"}, user="10001:0")
    operated.load_images([image], tmp_path)
    harness.apply(small("talkative", runner={"image": image.name}, execution={"retries": 0}))

    status = harness.wait_until_finished("talkative", every=1)

    assert {reason for reason, _ in failed(status)} == {"ReportInvalid"}


def test_a_model_that_does_not_fit_into_the_limit_is_out_of_memory(harness: Harness) -> None:
    """The kernel kills the process that loads, and each cell says so and in which phase."""
    embeddings = BERT | {"config": BERT["config"] | {"hidden_size": 256, "vocab_size": 400_000}}
    limits = {"resources": {"limits": {"memory": "512Mi"}}}
    harness.apply(small("large", models=[embeddings], runner=limits, execution={"retries": 0}))

    status = harness.wait_until_finished("large", every=1)

    for reason, message in failed(status):
        assert reason == "OutOfMemory"
        assert message.endswith("(in load)")


def test_calls_that_do_not_fit_into_the_limit_together_are_out_of_memory(harness: Harness) -> None:
    """One at a time they fit, so that the kernel kills the process only when the load is on."""
    wide = BERT | {"config": BERT["config"] | {"intermediate_size": 4096}}
    limits = {"resources": {"limits": {"memory": "1300Mi"}}}
    measurement = MEASUREMENT | {"load": {"mode": "Closed", "concurrency": 8}}
    harness.apply(
        small(
            "crowded",
            models=[wide],
            sequenceLengths=[8, 512],
            batchSizes=[32],
            measurement=measurement,
            runner=limits,
            execution={"retries": 0},
        )
    )

    status = harness.wait_until_finished("crowded", every=1, seconds=300)

    entries = {entry["sequenceLength"]: entry for entry in status["results"]}
    assert entries[8]["state"] == "succeeded", "what was measured stands"
    assert entries[512]["reason"] == "OutOfMemory"
    assert entries[512]["message"].endswith("(in measure)")


def test_a_quota_that_holds_the_runner_back_is_told(harness: Harness) -> None:
    """The control group's own count of throttled time becomes a caveat, and the verdict is Noisy."""
    limits = {"resources": {"limits": {"cpu": "400m", "memory": "1Gi"}}}
    measurement = MEASUREMENT | {"processes": 1}
    harness.apply(small("throttled", sequenceLengths=[128], runner=limits, measurement=measurement))

    harness.wait_until_finished("throttled", every=1)

    (result,) = harness.list("ibr")
    assert "Throttling" in {doubt["caveat"] for doubt in result["status"]["caveats"]}
    assert result["status"]["verdict"] == "Noisy"
