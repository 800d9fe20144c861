"""Filling the cache of compiled graphs from the command line, with processes of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="install the torch extra to compile graphs")

from inferbench_runner.compiling import Filling
from inferbench_runner.contract import (
    CACHE_VARIABLE,
    INVALID_PLAN_EXIT_CODE,
    TERMINATION_PATH_VARIABLE,
    CompactReport,
    Compilation,
    FailureReason,
    Phase,
    Shape,
)
from inferbench_runner.errors import OutOfMemoryError
from inferbench_runner.outlet import Outlet
from inferbench_runner.worker import Compile, Prepare
from test_runner.builders import FakeBackend, Fate, Stage, cell, fails, plan, plan_dict
from test_runner.neuron import SMALL, Machine, shapes

MADE = Compilation(milliseconds=1500, compiler="fake 1.0", key="abc")


def filling(tmp_path: Path, stage: Stage, backend: FakeBackend, **fields: Any) -> tuple[Filling, list[str]]:  # noqa: ANN401
    """Return a pass over three shapes that was not begun, and what it says."""
    said: list[str] = []
    outlet = Outlet(tmp_path / "message", may_create=True, say=said.append)
    return Filling(plan(shapes=shapes(8, 16, 32), **fields), outlet, backend.open, stage.start), said


def test_each_shape_is_compiled_and_none_is_called(tmp_path: Path) -> None:
    """One process, no reference, no verification; each line tells what became of a shape."""
    backend, stage = FakeBackend(on_compile=lambda _: MADE), Stage()
    one, said = filling(tmp_path, stage, backend)
    assert one.carry_out()
    assert [type(command) for _, command in stage.asked] == [Prepare, Compile, Compile, Compile]
    assert {step for step, _ in backend.log} == {"open", "load", "compile"}
    assert said[0] == "bert-base-uncased 8x1: Off, 1.5 s, abc"
    assert stage.servants[0].ended == "closed"


def test_nothing_to_compile_is_no_failure(tmp_path: Path) -> None:
    """An eager execution has no graphs."""
    one, said = filling(tmp_path, Stage(), FakeBackend())
    assert one.carry_out()
    assert said[0].endswith("nothing to compile")


def test_a_process_that_dies_costs_one_shape(tmp_path: Path) -> None:
    """Another process compiles what is left, and fetches nothing again."""
    stage = Stage(fates=[Fate(Compile, OutOfMemoryError("the kernel ended it"), index=1)])
    one, _ = filling(tmp_path, stage, FakeBackend(on_compile=lambda _: MADE))
    assert not one.carry_out()
    assert [(failed.cell, failed.phase, failed.reason) for failed in one.failed] == [
        (cell(1), Phase.COMPILE, FailureReason.OUT_OF_MEMORY)
    ]
    assert [command.index for _, command in stage.asked if isinstance(command, Compile)] == [0, 1, 2]
    assert [process for process, _ in stage.asked] == [0, 0, 0, 1, 1]


def test_what_can_not_be_loaded_fails_every_shape(tmp_path: Path) -> None:
    """Once: no other process would fare better."""
    stage = Stage()
    one, _ = filling(tmp_path, stage, FakeBackend(on_load=fails(MemoryError())))
    assert not one.carry_out()
    assert [failed.reason for failed in one.failed] == [FailureReason.OUT_OF_MEMORY] * 3
    assert {failed.phase for failed in one.failed} == {Phase.LOAD}
    assert len(stage.servants) == 1


def test_a_shape_that_fails_leaves_the_others(tmp_path: Path) -> None:
    """In the same process, and the termination message has it."""

    def compile_(shape: Shape) -> Compilation:
        if shape.sequence_length == 16:
            raise MemoryError
        return MADE

    one, _ = filling(tmp_path, Stage(), FakeBackend(on_compile=compile_))
    assert not one.carry_out()
    report = CompactReport.model_validate_json((tmp_path / "message").read_bytes())
    assert [failed.cell for failed in report.failed] == [cell(1)]


def run(tmp_path: Path, *arguments: str, **fields: Any) -> subprocess.CompletedProcess[str]:  # noqa: ANN401
    """Run the command line with a plan."""
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_dict(model={"config": SMALL}, **fields)), encoding="utf-8")
    variables = {**os.environ, TERMINATION_PATH_VARIABLE: str(tmp_path / "message")}
    command = [sys.executable, "-m", "inferbench_runner", *arguments, "--plan", str(path)]
    return subprocess.run(command, capture_output=True, text=True, env=variables, check=False)


def test_the_command_line_fills_the_cache_without_a_device(tmp_path: Path, neuron: Machine) -> None:
    """Exit code 0 with all graphs there, twice; the second time they were there before."""
    cache = tmp_path / "cache"
    os.environ[CACHE_VARIABLE] = str(cache)
    for outcome in ("Miss", "Hit"):
        done = run(tmp_path, "compile", "--target", "trn1", device={"kind": "Neuron"})
        assert done.returncode == 0, done.stderr
        assert f"8x1: {outcome}" in done.stderr
        assert done.stdout == ""
    (entry,) = (cache / "neuron").iterdir()
    assert json.loads((entry / "entry.json").read_text())["ingredients"]["target"] == "trn1"
    assert neuron.executions() == [0, 0]


def test_a_cache_that_can_not_be_written_ends_with_1(tmp_path: Path, neuron: Machine) -> None:
    """A file is in the folder's place; the sentence names the variable to set."""
    del neuron
    (tmp_path / "cache").write_text("no folder", encoding="utf-8")
    os.environ[CACHE_VARIABLE] = str(tmp_path / "cache")
    done = run(tmp_path, "compile", "--target", "inf2", device={"kind": "Neuron"})
    assert done.returncode == 1
    assert "CacheUnwritable in compile" in done.stderr
    assert CACHE_VARIABLE in done.stderr


FOLDER = "set it to a folder that the measuring pods mount too"
NO_GRAPHS = "makes nothing that can be kept; compile only plans with Compile, or for Neuron"


@pytest.mark.parametrize(
    ("device", "cache", "sentence"),
    [
        ({"kind": "CPU", "execution": "Compile"}, None, f"{CACHE_VARIABLE}: it is not set, .*; {FOLDER}"),
        ({"kind": "NVIDIA", "execution": "Compile"}, None, f"{CACHE_VARIABLE}: it is not set, .*; {FOLDER}"),
        (
            {"kind": "CPU", "execution": "Compile"},
            "file/cache",
            f"{CACHE_VARIABLE}: .*/cache can't be written; {FOLDER}",
        ),
        ({"kind": "CPU", "execution": "CUDAGraphs"}, "cache", f"device.execution: CUDAGraphs {NO_GRAPHS}"),
        ({"kind": "NVIDIA", "execution": "CUDAGraphs"}, "cache", f"device.execution: CUDAGraphs {NO_GRAPHS}"),
        ({"kind": "NVIDIA", "execution": "CUDAGraphs"}, None, f"device.execution: CUDAGraphs {NO_GRAPHS}"),
        ({"kind": "NVIDIA"}, "cache", f"device.execution: Eager {NO_GRAPHS}"),
    ],
    ids=["no cache", "no cache on NVIDIA", "unwritable", "graphs on CPU", "graphs", "graphs and no cache", "eager"],
)
def test_what_could_not_be_kept_is_not_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: dict[str, Any], cache: str | None, sentence: str
) -> None:
    """The sentence, which the termination message has for each shape, names the field or variable and the way out."""
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    for name in (CACHE_VARIABLE, "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    if cache:
        monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / cache))
    done = run(tmp_path, "compile", device=device, shapes=shapes(8, 16))
    assert done.returncode == 1
    report = CompactReport.model_validate_json((tmp_path / "message").read_bytes())
    assert [(one.cell, one.phase, one.reason) for one in report.failed] == [
        (cell(index), Phase.PROBE, FailureReason.INVALID_PLAN) for index in range(2)
    ]
    for text in (done.stderr, report.failed[0].message):
        assert re.search(sentence, text), text
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("arguments", "fields", "words"),
    [
        (["--target", "inf2"], {}, "--target belongs to compile"),
        (["compile"], {"seed": -1}, "seed: "),
        (["build"], {}, "invalid choice"),
    ],
)
def test_what_makes_no_sense_ends_with_2(
    tmp_path: Path, arguments: list[str], fields: dict[str, Any], words: str
) -> None:
    """As an invalid plan of a measurement does."""
    done = run(tmp_path, *arguments, **fields)
    assert done.returncode == INVALID_PLAN_EXIT_CODE
    assert words in done.stderr
