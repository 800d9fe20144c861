"""How a specification becomes cells and plans."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferbench_operator.core.matrix import Cell, expand, group, spec_hash
from inferbench_operator.models.benchmark import BenchmarkSpec
from inferbench_runner.contract import MAX_SHAPES
from operator_testing.builders import spec, spec_json

VIT = {"name": "vit", "id": "google/vit-base-patch16-224"}
TWO: list[dict[str, Any]] = [{"name": "cpu", "kind": "CPU"}, {"name": "inf2", "instanceTypes": ["inf2.xlarge"]}]


def _points(wanted: BenchmarkSpec) -> list[tuple[str, str, str, int | None, int]]:
    return [
        (cell.model.name, cell.accelerator.name, cell.precision.value, cell.sequence_length, cell.batch_size)
        for cell in expand(wanted)
    ]


def _hashes(**fields: Any) -> list[str]:  # noqa: ANN401 - any part of a specification
    return [cell.hash for cell in expand(spec(**fields))]


@pytest.mark.parametrize(
    ("fields", "points"),
    [
        pytest.param({}, [("bert", "cpu", "fp32", 128, 1)], id="two lines make one cell of all defaults"),
        pytest.param(
            {"sequenceLengths": [8, 16], "batchSizes": [1, 4]},
            [("bert", "cpu", "fp32", length, batch) for length in (8, 16) for batch in (1, 4)],
            id="every length meets every batch size, in the order given",
        ),
        pytest.param(
            {"accelerators": [TWO[0] | {"precision": "bf16"}], "precisions": ["fp32", "fp16"]},
            [("bert", "cpu", "bf16", 128, 1)],
            id="an accelerator's own precision replaces all others",
        ),
        pytest.param(
            {"models": [VIT], "sequenceLengths": [8, 16, 32]},
            [("vit", "cpu", "fp32", None, 1)],
            id="a vision model is measured once, without a length",
        ),
        pytest.param(
            {"models": [{"name": "own", "id": "/models/own", "task": "image-classification"}]},
            [("own", "cpu", "fp32", None, 1)],
            id="a vision task makes a vision model of any id",
        ),
        pytest.param(
            {"accelerators": TWO, "exclude": [{"accelerator": "inf2"}]},
            [("bert", "cpu", "fp32", 128, 1)],
            id="a pattern of one field excludes all cells that match it",
        ),
        pytest.param(
            {"sequenceLengths": [8, 16], "exclude": [{"model": "bert", "sequenceLength": 8, "batchSize": 2}]},
            [("bert", "cpu", "fp32", 8, 1), ("bert", "cpu", "fp32", 16, 1)],
            id="a cell is excluded only where all fields of the pattern match",
        ),
        pytest.param(
            {"exclude": [{}], "include": [{"model": "bert", "accelerator": "cpu", "sequenceLength": 5}]},
            [("bert", "cpu", "fp32", 5, 1)],
            id="what is included stays, whatever is excluded",
        ),
        pytest.param(
            {"include": [{"model": "bert", "accelerator": "cpu", "sequenceLength": 128}]},
            [("bert", "cpu", "fp32", 128, 1)],
            id="a cell that is in the matrix already is not measured twice",
        ),
        pytest.param(
            {"models": [VIT], "include": [{"model": "vit", "accelerator": "cpu", "sequenceLength": 5, "batchSize": 2}]},
            [("vit", "cpu", "fp32", None, 1), ("vit", "cpu", "fp32", None, 2)],
            id="an included cell of a vision model has no length",
        ),
        pytest.param({"exclude": [{}]}, [], id="an empty pattern excludes everything"),
    ],
)
def test_expansion(fields: dict[str, Any], points: list[tuple[str, str, str, int | None, int]]) -> None:
    """A specification names exactly these cells."""
    assert _points(spec(**fields)) == points


MEASURED = [
    pytest.param({"execution": {"exclusiveNode": False}}, id="neighbours on the node"),
    pytest.param({"models": [{"name": "bert", "id": "other"}]}, id="model id"),
    pytest.param({"models": [{"name": "bert", "id": "google-bert/bert-base-uncased", "revision": "1"}]}, id="revision"),
    pytest.param(
        {"models": [{"name": "bert", "id": "google-bert/bert-base-uncased", "weights": "Random"}]}, id="weights"
    ),
    pytest.param(
        {
            "models": [
                {
                    "name": "bert",
                    "id": "google-bert/bert-base-uncased",
                    "weights": "Random",
                    "config": {"num_hidden_layers": 2},
                }
            ]
        },
        id="configuration",
    ),
    pytest.param({"models": [{"name": "bert", "id": "google-bert/bert-base-uncased", "task": "fill-mask"}]}, id="task"),
    pytest.param({"accelerators": [TWO[1] | {"name": "cpu"}]}, id="instance types"),
    pytest.param({"accelerators": [TWO[0] | {"devices": 2}]}, id="devices"),
    pytest.param({"accelerators": [TWO[0] | {"cores": 2}]}, id="cores"),
    pytest.param({"accelerators": [TWO[0] | {"execution": "Compile"}]}, id="execution"),
    pytest.param({"precisions": ["bf16"]}, id="precision"),
    pytest.param({"sequenceLengths": [64]}, id="sequence length"),
    pytest.param({"batchSizes": [2]}, id="batch size"),
    pytest.param({"measurement": {"minSamples": 999}}, id="samples"),
    pytest.param({"measurement": {"maxSeconds": 99}}, id="time"),
    pytest.param({"measurement": {"profile": "Legacy2023"}}, id="method of measuring"),
    pytest.param({"measurement": {"targetHalfWidthPercent": 5}}, id="target"),
    pytest.param({"measurement": {"processes": 1}}, id="processes"),
    pytest.param({"measurement": {"load": {"concurrency": 2}}}, id="calls in flight"),
    pytest.param({"measurement": {"load": {"mode": "Open", "ratePerSecond": 50}}}, id="open loop"),
    pytest.param({"runner": {"image": "mine:1"}}, id="image"),
    pytest.param({"runner": {"env": [{"name": "OMP_NUM_THREADS", "value": "1"}]}}, id="environment"),
    pytest.param({"runner": {"resources": {"limits": {"cpu": "2"}}}}, id="resources"),
    pytest.param({"runner": {"nodeSelector": {"zone": "a"}}}, id="node selector"),
    pytest.param({"runner": {"runtimeClassName": "nvidia"}}, id="runtime class"),
    pytest.param({"accelerators": [TWO[0] | {"runner": {"image": "mine:1"}}]}, id="the accelerator's image"),
]


@pytest.mark.parametrize("fields", MEASURED)
def test_whatever_can_change_the_figure_changes_the_hash(fields: dict[str, Any]) -> None:
    """Another hash means that the cell is measured again."""
    assert _hashes(**fields) != _hashes()


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"models": [{"name": "b", "id": "google-bert/bert-base-uncased"}]}, id="name of the model"),
        pytest.param({"accelerators": [{"name": "c", "kind": "CPU"}]}, id="name of the accelerator"),
        pytest.param({"runner": {"labels": {"team": "a"}, "annotations": {"note": "b"}}}, id="labels and annotations"),
        pytest.param({"runner": {"tolerations": [{"operator": "Exists"}]}}, id="tolerations"),
        pytest.param({"runner": {"priorityClassName": "high", "queueName": "q"}}, id="priority and queue"),
        pytest.param({"runner": {"serviceAccountName": "s", "imagePullSecrets": ["p"]}}, id="accounts and secrets"),
        pytest.param({"execution": {"retries": 3, "maxParallelJobs": 1}}, id="retries and parallel Jobs"),
        pytest.param({"reuse": "Never"}, id="reuse"),
        pytest.param({"measurement": {"load": {}}}, id="an empty load"),
        pytest.param(
            {"measurement": {"profile": "Sound", "processes": 3, "load": {"mode": "Closed", "arrivals": None}}},
            id="defaults that are written out",
        ),
        pytest.param({"accelerators": [{"name": "cpu", "kind": "CPU", "precision": "fp32"}]}, id="where it comes from"),
    ],
)
def test_whatever_cannot_change_the_figure_leaves_the_hash(fields: dict[str, Any]) -> None:
    """The same hash means that an earlier result stands."""
    assert _hashes(**fields) == _hashes()


def test_the_order_of_instance_types_says_nothing() -> None:
    """They are a set: any of them will do."""
    types = ["inf2.xlarge", "inf2.8xlarge"]
    one, other = ({"accelerators": [{"name": "a", "instanceTypes": order}]} for order in (types, types[::-1]))
    assert _hashes(**one) == _hashes(**other)


def test_the_hash_is_the_same_in_every_version() -> None:
    """A hash that changes by itself would measure every benchmark again; change this one only on purpose."""
    assert _hashes() == ["40f7a23ca2"]


def test_an_accelerators_runner_lies_over_the_benchmarks() -> None:
    """What the accelerator gives replaces the field as a whole; what it leaves out stays."""
    runner = {"image": "a", "env": [{"name": "A", "value": "1"}], "nodeSelector": {"zone": "a"}}
    own = {"image": "b", "env": []}
    (cell,) = expand(spec(runner=runner, accelerators=[TWO[0] | {"runner": own}]))
    assert (cell.runner.image, cell.runner.env, cell.runner.node_selector) == ("b", [], {"zone": "a"})


axes = st.fixed_dictionaries(
    {
        "models": st.integers(1, 3).map(lambda n: [{"name": f"m{i}", "id": f"org/m{i}"} for i in range(n)]),
        "accelerators": st.integers(1, 2).map(lambda n: TWO[:n]),
        "precisions": st.lists(st.sampled_from(["fp32", "tf32", "bf16", "fp16"]), min_size=1, unique=True),
        "sequenceLengths": st.lists(st.integers(1, 512), min_size=1, max_size=12, unique=True),
        "batchSizes": st.lists(st.integers(1, 64), min_size=1, max_size=3, unique=True),
    }
)


@settings(max_examples=30, deadline=None)
@given(axes)
def test_the_matrix_is_the_product_of_its_axes(fields: dict[str, list[Any]]) -> None:
    """As many cells as combinations, and no two alike."""
    cells = expand(spec(**fields))
    size = 1
    for axis in fields.values():
        size *= len(axis)
    assert len(cells) == len({cell.hash for cell in cells}) == size


@settings(max_examples=30, deadline=None)
@given(axes, st.randoms(use_true_random=False))
def test_order_changes_neither_cells_nor_run(fields: dict[str, list[Any]], rng: random.Random) -> None:
    """Whoever sorts a list starts no new run."""
    mixed = {name: rng.sample(axis, len(axis)) for name, axis in fields.items()}
    assert spec_hash(expand(spec(**fields))) == spec_hash(expand(spec(**mixed)))


@settings(max_examples=30, deadline=None)
@given(axes)
def test_plans_hold_each_cell_once_and_fit_one_pod(fields: dict[str, list[Any]]) -> None:
    """A plan has one model, accelerator and precision, and at most eight shapes."""
    cells = expand(spec(**fields))
    plans = group(cells)
    assert sorted(cell.hash for plan in plans for cell in plan.cells) == sorted(cell.hash for cell in cells)
    assert len({plan.hash for plan in plans}) == len(plans)
    for plan in plans:
        assert 1 <= len(plan.cells) <= MAX_SHAPES
        assert len({(cell.model.name, cell.accelerator.name, cell.precision) for cell in plan.cells}) == 1


@settings(max_examples=30, deadline=None)
@given(axes)
def test_no_more_plans_than_needed(fields: dict[str, list[Any]]) -> None:
    """Each pod loads the model once, so plans are filled up."""
    cells = expand(spec(**fields))
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.model.name, cell.accelerator.name, cell.precision), []).append(cell)
    assert len(group(cells)) == sum(-(-len(same) // MAX_SHAPES) for same in groups.values())


def test_the_largest_matrix_is_expanded_whole() -> None:
    """1,024 cells are 1,024 cells."""
    wanted = spec_json(
        models=[{"name": f"m{i}", "id": f"org/m{i}"} for i in range(16)],
        accelerators=[{"name": f"a{i}", "kind": "CPU", "cores": i + 1} for i in range(16)],
        sequenceLengths=[8, 16, 32, 64],
    )
    assert len({cell.hash for cell in expand(BenchmarkSpec.model_validate(wanted))}) == 1024
