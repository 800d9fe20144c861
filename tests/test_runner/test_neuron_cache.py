"""Graphs for Neuron that are kept: found again, told apart, and compiled ahead on a machine without the device."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="install the torch extra to test the Neuron back end")

import torch

from inferbench_runner.artefacts import ENTRY, GRAPH
from inferbench_runner.backends import open_compiler
from inferbench_runner.child import Child
from inferbench_runner.compiling import Filling
from inferbench_runner.contract import CACHE_VARIABLE, CacheOutcome, CompactReport, FailureReason, Phase, Plan
from inferbench_runner.errors import RunnerError
from inferbench_runner.outlet import Outlet
from test_runner.builders import Stage, cell, host, make_run
from test_runner.neuron import QUICK, Ended, Machine, carried_out, neuron_plan, open_in_child, shapes
from test_runner.tiny import write_bert

pytestmark = pytest.mark.filterwarnings("ignore:No Neuron device")


def test_the_second_run_finds_the_graphs_of_the_first(tmp_path: Path, neuron: Machine, graphs: Path) -> None:
    """A miss that says why, then a hit with the same key, and nothing is compiled any more."""
    first = carried_out(tmp_path, neuron, shapes=shapes(8, 16)).compilations
    assert {(one.cache, one.miss) for one in first} == {(CacheOutcome.MISS, "no entry")}
    neuron.fail({"when": "trace", "text": "neuronx-cc failed with 1"})
    ended = carried_out(tmp_path, neuron, shapes=shapes(8, 16))
    assert ended.measured == [0, 1]
    assert [(one.cache, one.miss, one.key) for one in ended.compilations] == [
        (CacheOutcome.HIT, "", one.key) for one in first
    ]
    assert {path.name for path in graphs.iterdir()} == {one.key for one in first}


@pytest.mark.parametrize(
    ("fields", "miss"),
    [
        ({"seed": 1}, "no entry"),
        ({"model": {"task": "fill-mask"}}, "no entry"),
        ({"precision": "bf16"}, "entry of arguments --auto-cast none"),
    ],
)
def test_another_graph_has_another_key(
    tmp_path: Path, neuron: Machine, graphs: Path, fields: dict[str, Any], miss: str
) -> None:
    """Other weights, another task or precision: all of it is compiled anew."""
    carried_out(tmp_path, neuron)
    (found,) = carried_out(tmp_path, neuron, **fields).compilations
    assert found.cache is CacheOutcome.MISS
    assert found.miss.startswith(miss)
    assert len(list(graphs.iterdir())) == 2


def test_a_graph_of_another_compiler_is_made_anew(tmp_path: Path, neuron: Machine, graphs: Path) -> None:
    """The old one would not load; the miss names both versions, and both stay."""
    carried_out(tmp_path, neuron)
    neuron.install(neuronx_cc="2.22.0")
    ended = carried_out(tmp_path, neuron)
    assert ended.measured == [0]
    assert ended.compilations[0].miss == "entry of compiler neuronx-cc 2.21.33363.0, now 2.22.0"
    assert len(list(graphs.iterdir())) == 2


@pytest.mark.parametrize("name", [GRAPH, ENTRY])
def test_a_damaged_graph_is_made_anew(tmp_path: Path, neuron: Machine, graphs: Path, name: str) -> None:
    """It never reaches the device, and the next run finds a whole one."""
    carried_out(tmp_path, neuron)
    path = next(graphs.iterdir()) / name
    path.write_bytes(path.read_bytes()[:-9])
    (found,) = carried_out(tmp_path, neuron).compilations
    assert found.miss.startswith("damaged: ")
    (again,) = carried_out(tmp_path, neuron).compilations
    assert again.cache is CacheOutcome.HIT


def full(*_: object, **__: object) -> None:
    """Be a disk without room."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_does_not_stop_a_measurement(
    tmp_path: Path, neuron: Machine, graphs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph is used and not kept, and the report says so."""
    monkeypatch.setattr(shutil, "copyfile", full)
    ended = carried_out(tmp_path, neuron)
    assert ended.measured == [0]
    assert ended.compilations[0].miss == "no entry; not stored: No space left on device"
    assert list(graphs.iterdir()) == []


def test_a_cache_that_can_not_be_made_does_not_stop_a_measurement(tmp_path: Path, neuron: Machine) -> None:
    """Neither for graphs nor, though PyTorch makes its own when it is imported, for anything else."""
    del neuron  # its environment is this one
    (tmp_path / "cache").write_text("no folder", encoding="utf-8")
    os.environ[CACHE_VARIABLE] = str(tmp_path / "cache")
    outcome = make_run(tmp_path, neuron_plan(measurement=QUICK), Stage())
    outcome.run.open_backend, outcome.run.start = open_in_child, Child
    outcome.run.carry_out()
    ended = Ended(outcome.run)
    assert ended.measured == [0], ended.failed
    assert ended.compilations[0].miss.startswith("no entry; not stored: ")


def filled(tmp_path: Path, neuron: Machine, wanted: Plan) -> tuple[Filling, bool, list[str]]:
    """Fill the cache in this process; return the pass, whether all went well and what was said."""
    said: list[str] = []
    outlet = Outlet(tmp_path / "message", may_create=True, say=said.append)
    filling = Filling(wanted, outlet, neuron.open_compiler, Stage().start)
    return filling, filling.carry_out(), said


def test_graphs_that_were_compiled_without_a_device_are_found_by_the_measurement(
    tmp_path: Path, neuron: Machine, graphs: Path
) -> None:
    """For the family of the device that measures, under the very same key."""
    wanted = neuron_plan(shapes=shapes(8, 16), measurement=QUICK)
    devices = (neuron.root / "proc/devices").read_text()
    neuron.remove_device()
    os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "inf2"
    _, done, said = filled(tmp_path, neuron, wanted)
    assert done, said
    assert all("Miss (no entry)" in line for line in said)
    assert neuron.executions() == [0, 0]
    (neuron.root / "proc/devices").write_text(devices)
    ended = carried_out(tmp_path, neuron, shapes=shapes(8, 16))
    assert {one.cache for one in ended.compilations} == {CacheOutcome.HIT}
    assert {one.key for one in ended.compilations} == {path.name for path in graphs.iterdir()}


def test_compiling_again_finds_everything(tmp_path: Path, neuron: Machine, graphs: Path) -> None:
    """With a device too, nothing is loaded onto it."""
    for outcome in ("Miss", "Hit"):
        _, done, said = filled(tmp_path, neuron, neuron_plan())
        assert done
        assert f": {outcome}" in said[0]
    assert neuron.executions() == [0, 0]
    assert len(list(graphs.iterdir())) == 1


def test_a_graph_that_can_not_be_kept_fails_the_compile_command(
    tmp_path: Path, neuron: Machine, graphs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeping it is all that was asked for: the sentence names the variable, and the termination message has it."""
    monkeypatch.setattr(shutil, "copyfile", full)
    filling, done, _ = filled(tmp_path, neuron, neuron_plan())
    assert not done
    assert (filling.failed[0].phase, filling.failed[0].reason) == (Phase.COMPILE, FailureReason.CACHE_UNWRITABLE)
    assert str(graphs) in filling.failed[0].message
    assert CACHE_VARIABLE in filling.failed[0].message
    report = CompactReport.model_validate_json((tmp_path / "message").read_bytes())
    assert report.failed == tuple(filling.failed)


def test_one_shape_that_does_not_compile_leaves_the_others(tmp_path: Path, neuron: Machine, graphs: Path) -> None:
    """All that can be had is in the cache afterwards."""
    neuron.fail({"when": "trace", "shape": [1, 16], "returncode": -9})
    filling, done, _ = filled(tmp_path, neuron, neuron_plan(shapes=shapes(8, 16, 4)))
    assert not done
    assert [(one.cell, one.reason) for one in filling.failed] == [(cell(1), FailureReason.COMPILE_OUT_OF_MEMORY)]
    assert len(list(graphs.iterdir())) == 2


@pytest.mark.parametrize(
    ("variables", "fields", "target", "words"),
    [
        ({CACHE_VARIABLE: ""}, {}, "inf2", CACHE_VARIABLE),
        ({}, {}, None, "--target"),
        ({}, {"device": {"execution": "TorchNeuron"}}, "trn2", "device.execution"),
        ({}, {"device": {"kind": "CPU"}}, "trn2", "--target: CPU has no families"),
        ({}, {"precision": "fp32"}, "inf1", "fp32"),
    ],
)
def test_what_can_not_be_compiled_ahead_is_refused(
    neuron: Machine, graphs: Path, variables: dict[str, str], fields: dict[str, Any], target: str | None, words: str
) -> None:
    """Before anything heavy is done."""
    del neuron, graphs
    os.environ.update(variables)
    with pytest.raises(RunnerError, match=words):
        open_compiler(neuron_plan(**fields), host(), target)


def test_keys_hold_for_pretrained_files_too(neuron: Machine, graphs: Path, tmp_path: Path) -> None:
    """Files without a commit are told apart by their content."""
    del graphs
    keys = []
    for number in range(2):
        directory = tmp_path / "model"
        model = write_bert(directory)
        if number:
            with torch.no_grad():
                model.classifier.weight.mul_(2)
            model.save_pretrained(directory)
        wanted = neuron_plan(model={"id": str(directory), "weights": "Pretrained", "config": {}})
        backend = neuron.open(wanted, host())
        loaded = backend.load(wanted.model, backend.fetch(wanted.model))
        loaded.refer(wanted.shapes[0])
        found = loaded.compile(wanted.shapes[0])
        assert found is not None
        loaded.verify(wanted.shapes[0])
        keys.append(found.key)
    assert len(set(keys)) == 2
