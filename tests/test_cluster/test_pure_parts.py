"""The parts of the embedded cluster that need no control plane."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from cluster.binary import BINARY_VARIABLE, cached_path, find_or_build
from cluster.environment import ConfigError, Mounts, expand, resolve
from cluster.errors import BinaryNotFoundError
from cluster.kubelet_server import tail_offset
from cluster.nodes import instance_node, node_manifest
from cluster.outcomes import Exits, Unstartable, choose, measured_report
from cluster.pods import Container, Json, Pod
from cluster.processes import GuardedProcess
from cluster.states import Running, Terminated, Waiting, evicted, now, pod_status
from cluster.termination import exit_code, message
from cluster.toolchain import parse_version
from cluster.workspace import PREFIX, Workspace, remove_stale
from inferbench_runner.contract import COMPACT_REPORT_BYTES, AcceleratorKind, Device, ModelRef, Plan, Shape

DATA: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("configmap", "settings"): {"a": "1"},
    ("secret", "token"): {"t": "s"},
}


async def fetch(kind: str, name: str) -> Mapping[str, str] | None:
    """The objects of DATA."""
    return DATA.get((kind, name))


def pod(**container: object) -> Pod:
    """A pod with one container."""
    return Pod("team", "pod-1", "uid-1", "node-1", (Container("runner", **container),), labels={"run": "r1"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("written", "log", "code", "expected"),
    [
        pytest.param(b"done", b"noise", 0, "done", id="the file counts"),
        pytest.param(b"", b"noise", 0, "", id="a success has no message from its log"),
        pytest.param(b"", b"noise", 1, "noise", id="a failure without a message shows its log"),
        pytest.param(None, b"noise", 1, "noise", id="a file that was never written is empty"),
        pytest.param(b"a" + b"b" * 4096, b"", 0, "b" * 4096, id="the end of the file is kept"),
        pytest.param(b"", b"line\n" * 100, 1, "line\n" * 80, id="80 lines of the log are kept"),
        pytest.param(b"", b"x" * 3000, 1, "x" * 2048, id="2048 bytes of the log are kept"),
        pytest.param(b"ab\xff", b"", 0, "ab\N{REPLACEMENT CHARACTER}", id="invalid bytes are replaced"),
        pytest.param(
            "aé".encode() * 2048, b"", 0, ("aé" * 2048).encode()[-4096:].decode(errors="replace"), id="a cut character"
        ),
    ],
)
def test_a_termination_message_is_what_a_kubelet_keeps(
    written: bytes | None, log: bytes, code: int, expected: str, tmp_path: Path
) -> None:
    """File first, then log, each with its limit."""
    path, output = tmp_path / "message", tmp_path / "log"
    output.write_bytes(log)
    if written is not None:
        path.write_bytes(written)
    assert message(path, output, code=code, from_logs=True) == expected


def test_signals_become_exit_codes() -> None:
    """128 + the signal's number."""
    assert [exit_code(code) for code in (0, 3, -9, -15)] == [0, 3, 137, 143]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("$(A)/x", "1/x"), ("$(B)", "$(B)"), ("$$(A)", "$(A)"), ("$A", "$A"), ("100%$", "100%$"), ("$$$(A)", "$1")],
)
def test_references_are_expanded_as_kubernetes_does(text: str, expected: str) -> None:
    """Known names are replaced, unknown ones stay, and a doubled sign stands for itself."""
    assert expand(text, {"A": "1"}) == expected


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"value": "plain"}, "plain"),
        ({}, ""),
        ({"value": "$(FIRST)!"}, "one!"),
        ({"valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}, "node-1"),
        ({"valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['run']"}}}, "r1"),
        ({"valueFrom": {"configMapKeyRef": {"name": "settings", "key": "a"}}}, "1"),
        ({"valueFrom": {"secretKeyRef": {"name": "token", "key": "t"}}}, "s"),
        ({"valueFrom": {"secretKeyRef": {"name": "none", "key": "t", "optional": True}}}, None),
    ],
)
def test_a_variable_comes_from_its_source(entry: Json, expected: str | None) -> None:
    """Each kind of source gives the value, and an absent optional one no variable."""
    container = Container("runner", env=({"name": "FIRST", "value": "one"}, {"name": "V", **entry}))
    assert asyncio.run(resolve(pod(), container, fetch)).get("V") == expected


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ({"configMapKeyRef": {"name": "none", "key": "a"}}, 'configmap "none" not found'),
        ({"secretKeyRef": {"name": "token", "key": "b"}}, "couldn't find key b in Secret team/token"),
        ({"resourceFieldRef": {"resource": "limits.cpu"}}, "does not support the source of V"),
    ],
)
def test_a_missing_source_is_named(source: Json, sentence: str) -> None:
    """The sentence is the one of the container's waiting state."""
    container = Container("runner", env=({"name": "V", "valueFrom": source},))
    with pytest.raises(ConfigError, match=sentence):
        asyncio.run(resolve(pod(), container, fetch))


def test_only_paths_below_a_mount_are_rewritten(tmp_path: Path) -> None:
    """The longest mount path wins, and other text stays."""
    mounts = Mounts({"/cache": tmp_path / "a", "/cache/hub": tmp_path / "b"})
    texts = ["/cache", "/cache/x", "/cache/hub/y", "/cached", "see /cache"]
    expected = [f"{tmp_path}/a", f"{tmp_path}/a/x", f"{tmp_path}/b/y", "/cached", "see /cache"]
    assert [mounts.translate(text) for text in texts] == expected


def test_a_phase_follows_from_the_containers() -> None:
    """Pending while one waits, then Running, then the worst end; an eviction is a failure with its reason."""
    ends = {code: Terminated(code, "any", "", now(), now()) for code in (0, 1)}
    states = {"Pending": Waiting(), "Running": Running(now()), "Succeeded": ends[0], "Failed": ends[1]}
    for phase, state in states.items():
        assert pod_status(pod(), (state,), started=now())["phase"] == phase
    status = pod_status(pod(), (ends[1],), started=now(), interruption=evicted())
    assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
    assert status["conditions"][-1]["type"] == "DisruptionTarget"


@pytest.mark.parametrize(("lines", "expected"), [(0, b""), (1, b"c"), (2, b"b\nc"), (9, b"a\nb\nc")])
def test_a_log_is_cut_by_lines(lines: int, expected: bytes, tmp_path: Path) -> None:
    """A last line without an end counts as a line."""
    path = tmp_path / "log"
    path.write_bytes(b"a\nb\nc")
    assert path.read_bytes()[tail_offset(path, lines) :] == expected


def test_the_last_script_decides_and_a_broken_one_fails_the_pod() -> None:
    """A script that has no outcome leaves the pod to earlier ones; an error in one shows in the pod's message."""
    first, second = Exits(exit_code=1), Exits(exit_code=2)
    assert choose([lambda _: first, lambda _: second], pod()) == second
    assert choose([lambda _: first, lambda _: None], pod()) == first
    broken = choose([lambda pod: Exits(message=pod.labels["none"])], pod())
    assert isinstance(broken, Unstartable)
    assert broken.message == "the script for this pod failed: KeyError('none')"


def test_a_report_on_a_full_plan_fits_into_a_message() -> None:
    """Eight shapes, the most a plan may have."""
    shapes = tuple(Shape(cell=f"{number:010x}", sequence_length=8 << number) for number in range(8))
    plan = Plan(model=ModelRef(id="m"), device=Device(kind=AcceleratorKind.CPU), shapes=shapes)
    assert len(measured_report(plan).model_dump_json(exclude_defaults=True)) <= COMPACT_REPORT_BYTES


def test_a_named_binary_has_to_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The variable comes first, and a wrong one is told rather than passed over."""
    monkeypatch.setenv(BINARY_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(BinaryNotFoundError, match="unset it to have the program built"):
        find_or_build()


def test_a_cached_binary_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is built when the cache has the program for these sources."""
    monkeypatch.delenv(BINARY_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cached_path().parent.mkdir()
    cached_path().touch()
    assert find_or_build() == cached_path()


def test_a_version_of_go_is_read() -> None:
    """Release candidates and strange answers too."""
    told = ["go version go1.26.8 linux/amd64", "go version go1.27rc1 linux/arm64", "command not found"]
    assert [parse_version(text) for text in told] == [(1, 26), (1, 27), (0, 0)]


def test_a_folder_in_use_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only folders of dead owners go, whatever process has their id by now."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    used = Workspace.create()
    dead = tmp_path / f"{PREFIX}{os.getpid()}-dead"
    dead.mkdir()
    (dead / "owner.lock").touch()
    assert remove_stale() == [dead]
    assert used.path.is_dir()
    used.remove()
    assert not used.path.exists()


def test_a_guarded_program_runs_as_if_unguarded(tmp_path: Path) -> None:
    """Its exit code arrives, and a broken pipe ends it, though Python itself ignores that signal."""
    codes = []
    for command in ("exit 5", "kill -PIPE $$"):
        with (tmp_path / "log").open("wb") as output:
            process = GuardedProcess.start(["sh", "-c", command], output=output)
        codes.append(process.reap())
    assert codes == [5, -13]


def test_a_program_ends_with_its_starter(tmp_path: Path) -> None:
    """When the starter is killed, the whole group of its program is."""
    code = (
        "import os, signal, sys; from pathlib import Path; from cluster.processes import GuardedProcess\n"
        "GuardedProcess.start(['sh', '-c', 'sleep 600 & wait'], output=sys.stdout.buffer)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    # The pipe ends only when all who could write to it have ended.
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout) == (-9, b"")


def test_a_node_without_devices_has_no_taint() -> None:
    """A simulated node of such a type has its size and architecture, and nothing that keeps pods away."""
    node = node_manifest(instance_node("a", "c7g.2xlarge"), port=1)
    assert node["spec"]["taints"] == []
    assert node["metadata"]["labels"]["kubernetes.io/arch"] == "arm64"
    allocatable = node["status"]["allocatable"]
    assert (allocatable["cpu"], allocatable["memory"]) == ("7910m", "14103Mi")
    assert not [name for name in allocatable if "/" in name]
