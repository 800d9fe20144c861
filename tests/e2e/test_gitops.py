"""What a person or a pipeline waits for with kubectl comes when it should, and Argo CD's actions do what they say."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from cluster import FOREVER
from cluster.errors import KubectlError
from cluster.kubectl import find_kubectl, run_kubectl
from cluster.nodes import cpu_node
from cluster.observing import eventually
from cluster.outcomes import Exits
from e2e_harness import Harness, Json, benchmark
from operator_testing.gitops import FILES, RERUN, argo_customization

pytestmark = pytest.mark.e2e

NAME = "study"
REASON_OF_READY = "jsonpath={{.status.conditions[?(@.type=='Ready')].reason}}={}"


@pytest.fixture
def node(harness: Harness) -> None:
    """A simulated node on which everything is measured at once."""
    harness.agent.add_node(cpu_node("simulated", local=False))


def wait(harness: Harness, what: str, *, seconds: int = 60) -> str:
    """Wait with kubectl, as people do."""
    return harness.kubectl("wait", f"ib/{NAME}", f"--for={what}", f"--timeout={seconds}s")


def never(harness: Harness, what: str) -> bool:
    """Whether kubectl waits in vain, for a moment."""
    with pytest.raises(KubectlError) as caught:
        wait(harness, what, seconds=1)
    return "timed out waiting" in caught.value.stderr


@pytest.mark.usefixtures("node")
def test_success_is_ready_and_succeeded(harness: Harness) -> None:
    """Both conditions come, in the same moment, and neither of a failure."""
    harness.apply(benchmark(NAME))
    for what in ("condition=Ready", "condition=Succeeded", REASON_OF_READY.format("RunSucceeded")):
        assert "condition met" in wait(harness, what)
    assert never(harness, "condition=Stalled")


@pytest.mark.usefixtures("node")
def test_failure_is_stalled(harness: Harness) -> None:
    """Ready never comes, so that whoever has to know of a failure at once waits for it as well."""
    harness.agent.script(Exits(exit_code=1))
    harness.apply(benchmark(NAME, execution={"retries": 0}))
    for what in ("condition=Stalled", "condition=Succeeded=False", REASON_OF_READY.format("CellsFailed")):
        assert "condition met" in wait(harness, what)
    assert never(harness, "condition=Ready")
    assert never(harness, "condition=Succeeded")


def test_refusal_is_stalled(harness: Harness) -> None:
    """It is told from a failure by Accepted, and by the absence of Succeeded."""
    harness.apply(benchmark(NAME, exclude=[{}]))
    for what in ("condition=Stalled", "condition=Accepted=False", REASON_OF_READY.format("NoCells")):
        assert "condition met" in wait(harness, what)
    assert never(harness, "condition=Ready")
    assert never(harness, "condition=Succeeded=False")


@pytest.mark.usefixtures("node")
def test_suspension_is_waited_through(harness: Harness) -> None:
    """Nobody who waits gives up, and Ready comes once it is resumed."""
    harness.apply(benchmark(NAME, suspend=True))
    for what in ("condition=Suspended", REASON_OF_READY.format("Suspended")):
        assert "condition met" in wait(harness, what)
    assert never(harness, "condition=Ready")
    assert never(harness, "condition=Stalled")
    harness.apply(benchmark(NAME))
    assert "condition met" in wait(harness, "condition=Ready")


@pytest.mark.usefixtures("node")
def test_a_deletion_is_no_success(harness: Harness) -> None:
    """Whoever waits for it is told; for whoever waits for Ready kubectl goes on until its timeout, or finds nothing."""
    harness.agent.script(Exits(run_seconds=FOREVER))
    harness.apply(benchmark(NAME))
    wait(harness, "condition=Reconciling")
    with ThreadPoolExecutor() as pool:
        gone, ready = pool.submit(wait, harness, "delete"), pool.submit(wait, harness, "condition=Ready", seconds=5)
        harness.kubectl("delete", f"ib/{NAME}", "--wait=false")
        gone.result()
        with pytest.raises(KubectlError, match=r"timed out waiting|not found"):
            ready.result()


@pytest.mark.usefixtures("node")
def test_an_edit_is_waited_for_from_the_first_moment(harness: Harness) -> None:
    """The conditions say of which generation they speak: those of the last one are no success of this one."""
    harness.apply(benchmark(NAME))
    wait(harness, "condition=Ready")
    harness.operator.kill()
    harness.apply(benchmark(NAME, sequenceLengths=[8, 32]))
    assert never(harness, "condition=Ready")
    harness.operator.start()
    wait(harness, "condition=Ready")
    assert {length for _, _, length in harness.cells(NAME)} == {8, 32}


@pytest.mark.usefixtures("node")
def test_a_rerun_is_waited_for_by_its_name(harness: Harness) -> None:
    """An annotation makes no generation: Ready alone may be the last run's, until the operator has started this one."""
    harness.apply(benchmark(NAME))
    wait(harness, "condition=Ready")
    harness.operator.kill()
    harness.kubectl("annotate", f"ib/{NAME}", f"{RERUN}=second")
    assert "condition met" in wait(harness, "condition=Ready")
    assert never(harness, "jsonpath={.status.run.rerun}=second")
    raw = harness.get("ib", NAME)
    assert argo_customization().health(raw).status == "Progressing"
    harness.agent.script(Exits(run_seconds=FOREVER))
    harness.operator.start()
    wait(harness, "jsonpath={.status.run.rerun}=second")
    assert never(harness, "condition=Ready")
    assert never(harness, "condition=Succeeded")


@pytest.mark.usefixtures("node")
def test_a_pipeline_goes_on_only_after_success(harness: Harness, tmp_path: Path) -> None:
    """The script ends with the run, at once, and says why; a run before it is no excuse."""
    assert _pipeline(harness, tmp_path, [8])[0] == 0
    harness.agent.script(Exits(exit_code=1))
    code, told = _pipeline(harness, tmp_path, [8, 16])
    assert (code, "Failed cells: 1 of 2" in told) == (1, True)
    harness.agent.clear_scripts()
    code, told = _pipeline(harness, tmp_path, [8, 32])
    assert (code, "All 2 cells have figures" in told) == (0, True)


def _pipeline(harness: Harness, folder: Path, lengths: list[int]) -> tuple[int, str]:
    """Run the script on a benchmark of these lengths; return its exit code and what it prints."""
    manifest = benchmark(NAME, sequenceLengths=lengths, execution={"retries": 0})
    manifest["metadata"]["namespace"] = harness.namespace
    path = folder / "benchmark.yaml"
    path.write_text(yaml.safe_dump(manifest))
    config = folder / "kubeconfig"
    config.write_bytes(harness.control_plane.kubeconfig.read_bytes())
    run_kubectl(config, "config", "set-context", "--current", f"--namespace={harness.namespace}")
    (folder / "kubectl").unlink(missing_ok=True)
    (folder / "kubectl").symlink_to(find_kubectl())
    environment = {
        "HOME": str(folder),  # where kubectl keeps what it knows of the cluster's kinds
        "KUBECONFIG": str(config),
        "PATH": f"{folder}:{os.environ['PATH']}",
    }
    command = [FILES.parent / "examples" / "ci-gate.sh", path, NAME, "100s"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.usefixtures("node")
def test_the_actions_of_argo_cd_do_what_they_say(harness: Harness) -> None:
    """Each is enabled while it makes sense, is taken by the API server, and comes about."""
    harness.agent.script(Exits(run_seconds=FOREVER))
    harness.apply(benchmark(NAME, execution={"onSuspend": "Stop"}))
    wait(harness, REASON_OF_READY.format("Measuring"))
    assert _act(harness, "suspend") == {"rerun", "suspend", "cancel"}
    wait(harness, REASON_OF_READY.format("Suspended"))
    assert argo_customization().health(harness.get("ib", NAME)).status == "Suspended"
    assert _act(harness, "resume") == {"resume", "cancel"}
    wait(harness, REASON_OF_READY.format("Measuring"))
    _act(harness, "cancel")
    wait(harness, REASON_OF_READY.format("Cancelled"))
    assert argo_customization().health(harness.get("ib", NAME)).status == "Degraded"
    harness.agent.clear_scripts()
    assert _act(harness, "resume") == {"resume"}
    wait(harness, "condition=Ready")
    first = harness.status(NAME)["run"]["id"]
    assert _act(harness, "rerun") == {"rerun"}
    eventually("there is another run", lambda: harness.status(NAME)["run"], lambda run: run["id"] != first)
    wait(harness, "condition=Ready")
    assert harness.status(NAME)["run"]["trigger"] == "Rerun"


def _act(harness: Harness, name: str) -> set[str]:
    """Do what Argo CD does for a person who chooses an action; return those that could be chosen."""
    raw: Json = harness.get("ib", NAME)
    enabled = argo_customization().enabled_actions(raw)
    changed = argo_customization().act(name, raw)
    parts = {"spec": {key: changed["spec"].get(key) for key in ("suspend", "cancel")}}
    parts["metadata"] = {"annotations": changed["metadata"].get("annotations", {})}
    harness.kubectl("patch", "ib", NAME, "--type=merge", f"--patch={yaml.safe_dump(parts)}")
    return enabled
