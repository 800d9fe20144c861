"""What of a specification starts a new run: field by field, and as README tells it."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, get_args

import pytest
import yaml
from pydantic import BaseModel

from inferbench_operator.core.decide import decide
from inferbench_operator.core.facts import Benchmark, Observed
from inferbench_operator.core.identity import NOT_MEASURED
from inferbench_operator.core.instance_table import with_table
from inferbench_operator.core.matrix import expand, spec_hash
from inferbench_operator.models.benchmark import BenchmarkSpec
from inferbench_operator.models.status import BenchmarkStatus, ConditionStatus, ConditionType, Trigger
from operator_testing.builders import NOW, benchmark, observed, result_of, run_of
from operator_testing.builders import SETTINGS as PLAIN

ROOT: Final = Path(__file__).parents[2]
SPOT: Final = b"""
inf2.xlarge: {usdPerHourSpot: "0.2"}
inf2.8xlarge: {usdPerHourSpot: "0.5"}
inf2.24xlarge: {usdPerHourSpot: "1.5"}
p4d.24xlarge: {usdPerHourSpot: "7"}
"""
SETTINGS: Final = replace(PLAIN, catalogue=with_table(PLAIN.catalogue, SPOT))

# One pod's worth of settings with every field given, and another valid value of each.
RUNNER: Final[dict[str, Any]] = {
    "image": "mine:1",
    "imagePullSecrets": ["pull"],
    "serviceAccountName": "reader",
    "resources": {"limits": {"cpu": "2"}},
    "env": [{"name": "A", "value": "1"}],
    "envFrom": [{"secretRef": {"name": "hub"}}],
    "volumes": [{"name": "models", "emptyDir": {}}],
    "volumeMounts": [{"name": "models", "mountPath": "/models"}],
    "labels": {"team": "a"},
    "annotations": {"note": "a"},
    "nodeSelector": {"zone": "a"},
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "affinity": {"podAffinity": {}},
    "priorityClassName": "high",
    "schedulerName": "mine",
    "runtimeClassName": "nvidia",
    "queueName": "queue",
    "resourceClaims": [{"name": "device", "resourceClaimTemplateName": "a"}],
    "securityContext": {"runAsUser": 1000},
}
OTHER_RUNNER: Final[dict[str, Any]] = {
    "image": "mine:2",
    "imagePullSecrets": ["push"],
    "serviceAccountName": "writer",
    "resources": {"limits": {"cpu": "4"}},
    "env": [{"name": "A", "value": "2"}],
    "envFrom": [{"secretRef": {"name": "other"}}],
    "volumes": [{"name": "models", "emptyDir": {"medium": "Memory"}}],
    "volumeMounts": [{"name": "models", "mountPath": "/other"}],
    "labels": {"team": "b"},
    "annotations": {"note": "b"},
    "nodeSelector": {"zone": "b"},
    "tolerations": [{"key": "b", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "low",
    "schedulerName": "other",
    "runtimeClassName": "kata",
    "queueName": "other",
    "resourceClaims": [{"name": "device", "resourceClaimTemplateName": "b"}],
    "securityContext": {"runAsUser": 1001},
}
RICH: Final[dict[str, Any]] = {
    "models": [
        {
            "name": "bert",
            "id": "google-bert/bert-base-uncased",
            "revision": "86b5e09",
            "task": "fill-mask",
            "weights": "Pretrained",
        },
        {
            "name": "small",
            "id": "google-bert/bert-base-uncased",
            "weights": "Random",
            "config": {"num_hidden_layers": 2},
        },
    ],
    "accelerators": [
        # The processors of a node that has devices, so that another kind has a place there as well.
        {"name": "cpu", "kind": "CPU", "instanceTypes": ["inf2.xlarge"], "maxParallelJobs": 2, "runner": RUNNER},
        {"name": "inf2", "instanceTypes": ["inf2.24xlarge"], "cores": 1},
        {
            "name": "part",
            "instanceTypes": ["p4d.24xlarge"],
            "devices": 1,
            "resourceName": "nvidia.com/gpu.shared",
            "execution": "Eager",
            "precision": "bf16",
        },
    ],
    "precisions": ["fp32"],
    "sequenceLengths": [8, 16],
    "batchSizes": [1],
    "include": [
        {"model": "small", "accelerator": "inf2", "precision": "bf16", "sequenceLength": 64, "batchSize": 2},
    ],
    "exclude": [
        {"model": "small", "accelerator": "inf2", "precision": "fp32", "sequenceLength": 8, "batchSize": 1},
    ],
    "measurement": {
        "profile": "Sound",
        "minSamples": 1000,
        "minSeconds": 10,
        "maxSeconds": 300,
        "targetHalfWidthPercent": 2,
        "processes": 3,
        "load": {"mode": "Open", "concurrency": 2, "arrivals": "Poisson", "ratePerSecond": 50},
    },
    "execution": {
        "maxParallelJobs": 4,
        "retries": 1,
        "disruptionRetries": 5,
        "onSuspend": "Finish",
        "exclusiveNode": True,
        "schedulingDeadlineSeconds": 1800,
        "startDeadlineSeconds": 900,
        "compileDeadlineSeconds": 1800,
        "measureDeadlineSeconds": 3600,
        "deadlineSeconds": 86_400,
        "maxCostUSD": "100",
        "ttlSecondsAfterFinished": 3600,
    },
    "pricing": "OnDemand",
    "compare": {"baseline": "cpu", "ignore": ["precision"]},
    "gates": [
        {
            "name": "interactive",
            "metric": "P95",
            "selector": {
                "model": "bert",
                "accelerator": "cpu",
                "precision": "fp32",
                "minSequenceLength": 8,
                "maxSequenceLength": 16,
                "batchSize": 1,
            },
            "maxMicroseconds": 5000,
            "minInferencesPerSecond": "10",
            "maxUSDPerMillionInferences": "1",
            "maxFailedCells": 0,
            "verdicts": ["Valid"],
            "baseline": "PreviousRun",
            "baselineName": "main",
            "maxIncreasePercent": 10,
            "maxDecreasePercent": 10,
            "onUndecided": "Pass",
        }
    ],
    "gateMode": "Enforce",
    "history": {"runs": 10},
    "reuse": "UnchangedCells",
    "schedule": {"cron": "0 3 * * 1", "timeZone": "Etc/UTC"},
    "suspend": False,
    "cancel": False,
    "runner": RUNNER | {"resourceClaims": []},
}
OTHER: Final[dict[str, Any]] = {
    "models.name": "other",
    "models.id": "google-bert/bert-large-uncased",
    "models.revision": "main",
    "models.task": "text-classification",
    "models.weights": "Random",
    "models.config": {"num_hidden_layers": 3},
    "accelerators.name": "other",
    "accelerators.kind": "Neuron",
    "accelerators.instanceTypes": ["inf2.8xlarge"],
    "accelerators.devices": 2,
    "accelerators.resourceName": "nvidia.com/mig-1g.5gb",
    "accelerators.cores": 2,
    "accelerators.execution": "Compile",
    "accelerators.precision": "fp16",
    "accelerators.maxParallelJobs": 1,
    **{f"accelerators.runner.{name}": value for name, value in OTHER_RUNNER.items()},
    "precisions": ["tf32"],
    "sequenceLengths": [8, 32],
    "batchSizes": [4],
    "include.model": "bert",
    "include.accelerator": "cpu",
    "include.precision": "fp16",
    "include.sequenceLength": 32,
    "include.batchSize": 3,
    "exclude.model": "bert",
    "exclude.accelerator": "cpu",
    "exclude.precision": "fp16",
    "exclude.sequenceLength": 16,
    "exclude.batchSize": 3,
    "measurement.profile": "Legacy2023",
    "measurement.minSamples": 1001,
    "measurement.minSeconds": 11,
    "measurement.maxSeconds": 301,
    "measurement.targetHalfWidthPercent": 3,
    "measurement.processes": 4,
    "measurement.load.mode": "Closed",
    "measurement.load.concurrency": 3,
    "measurement.load.arrivals": "Constant",
    "measurement.load.ratePerSecond": 51,
    "execution.maxParallelJobs": 3,
    "execution.retries": 2,
    "execution.disruptionRetries": 6,
    "execution.onSuspend": "Stop",
    "execution.exclusiveNode": False,
    "execution.schedulingDeadlineSeconds": 1801,
    "execution.startDeadlineSeconds": 901,
    "execution.compileDeadlineSeconds": 1801,
    "execution.measureDeadlineSeconds": 3601,
    "execution.deadlineSeconds": 86_401,
    "execution.maxCostUSD": "101",
    "execution.ttlSecondsAfterFinished": 3601,
    "pricing": "Spot",
    "compare.baseline": "inf2",
    "compare.ignore": [],
    "gates.name": "other",
    "gates.metric": "P99",
    "gates.selector.model": "small",
    "gates.selector.accelerator": "inf2",
    "gates.selector.precision": "bf16",
    "gates.selector.minSequenceLength": 9,
    "gates.selector.maxSequenceLength": 15,
    "gates.selector.batchSize": 2,
    "gates.maxMicroseconds": 5001,
    "gates.minInferencesPerSecond": "11",
    "gates.maxUSDPerMillionInferences": "2",
    "gates.maxFailedCells": 1,
    "gates.verdicts": ["Valid", "Noisy"],
    "gates.baseline": "Benchmark",
    "gates.baselineName": "other",
    "gates.maxIncreasePercent": 11,
    "gates.maxDecreasePercent": 11,
    "gates.onUndecided": "Fail",
    "gateMode": "Report",
    "history.runs": 11,
    "reuse": "Never",
    "schedule.cron": "0 4 * * 1",
    "schedule.timeZone": "Europe/Berlin",
    "suspend": True,
    "cancel": True,
    **{f"runner.{name}": value for name, value in OTHER_RUNNER.items()},
}


def _fields(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the paths of all fields, down to those that hold no further model."""
    for field in model.model_fields.values():
        path = f"{prefix}{field.alias}"
        inner = next(_models(field.annotation), None)
        yield from _fields(inner, f"{path}.") if inner else [path]


def _models(annotation: Any) -> Iterator[type[BaseModel]]:  # noqa: ANN401 - any type
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


FIELDS: Final = tuple(_fields(BenchmarkSpec))


def _readme() -> dict[str, tuple[str, str]]:
    """Return the rows of README's table by field: whether it starts a new run, and what a change does."""
    section = (ROOT / "README.md").read_text("utf-8").partition("### What starts a new run")[2].partition("\n#")[0]
    rows: dict[str, tuple[str, str]] = {}
    for named, starts, does in re.findall(r"^\| (`.*?) \| (.*?) \| (.*?) \|$", section, flags=re.MULTILINE):
        blocks, colon, names = named.partition(": ")
        prefixes = [f"{block}." for block in re.findall("`(.+?)`", blocks)] if colon else [""]
        for path in (prefix + name for prefix in prefixes for name in re.findall("`(.+?)`", names if colon else named)):
            assert path not in rows, f"{path} is named twice"
            rows[path] = (starts, does)
    return rows


README: Final = _readme()


def _changed(path: str) -> BenchmarkSpec:
    """Return the rich specification with another value of one field, in the first place that gives it.

    The API server's rules across fields are left aside, so that one changes by itself.
    """
    wanted = copy.deepcopy(RICH)
    *blocks, name = path.split(".")
    found = [wanted]
    for block in blocks:
        inner = (place[block] for place in found if block in place)
        found = [place for each in inner for place in (each if isinstance(each, list) else [each])]
    place = next(place for place in found if name in place)
    assert place[name] != OTHER[path]
    place[name] = OTHER[path]
    return BenchmarkSpec.model_validate(wanted)


def _status(facts: Observed) -> BenchmarkStatus:
    status = decide(facts, NOW, SETTINGS).status
    assert status
    accepted = next(found for found in status.conditions if found.type is ConditionType.ACCEPTED)
    assert accepted.status is ConditionStatus.TRUE, accepted.message
    return status


def _started() -> Benchmark:
    of = benchmark(BenchmarkSpec.model_validate(RICH))
    return replace(of, status=_status(observed(of)))


def _finished() -> Observed:
    of = _started()
    assert of.spec
    facts = observed(of, *(result_of(of, cell, run=run_of(of)) for cell in expand(of.spec)))
    status = _status(facts)
    assert status.run
    assert status.run.completion_time
    return replace(facts, benchmark=replace(of, status=status))


FINISHED: Final = _finished()


def test_every_field_has_a_row_in_readme_and_no_row_is_of_another() -> None:
    """Whoever adds a field decides what a change of it does, and gives the test another value to try."""
    assert sorted(README) == sorted(FIELDS)
    assert sorted(OTHER) == sorted(FIELDS)
    assert {starts for starts, _ in README.values()} == {"yes", "no"}


def test_the_table_in_code_names_fields_that_there_are() -> None:
    """A name that is misspelt there, or a field that is gone, would decide nothing."""
    parents = {path.rpartition(".")[0] for path in FIELDS}
    assert {*FIELDS, *parents}.issuperset(NOT_MEASURED)


@pytest.mark.parametrize("path", FIELDS)
def test_a_field_starts_a_new_run_of_a_finished_benchmark_just_when_readme_says_so(path: str) -> None:
    """Every other field leaves the run complete."""
    edited = replace(FINISHED.benchmark, spec=_changed(path), generation=2)
    before, after = FINISHED.benchmark.status.run, _status(replace(FINISHED, benchmark=edited)).run
    assert before
    assert after
    if README[path][0] == "yes":
        assert (after.id != before.id, after.trigger) == (True, Trigger.SPEC_CHANGED)
    else:
        assert (after.id, after.completion_time) == (before.id, before.completion_time)


@pytest.mark.parametrize("path", [path for path, (starts, _) in README.items() if starts == "no"])
def test_a_field_changes_the_next_job_just_when_readme_says_so(path: str) -> None:
    """Of those that start no new run."""
    before = _started()
    edited = replace(before, spec=_changed(path), generation=2)
    old, new = (
        {job["metadata"]["name"]: job for job in decide(observed(of), NOW, SETTINGS).create_jobs}
        for of in (before, edited)
    )
    changed = any(old[name] != new[name] for name in old.keys() & new.keys())
    assert changed == ("the next Job" in README[path][1])


@pytest.mark.parametrize(
    ("wanted", "number", "run"),
    [
        ("minimal", 8, "efe0334410"),
        ("published-method", 3, "4563eaf681"),
        ("published-study", 143, "86a59934ab"),
        ("quickstart", 6, "6922b5c0b5"),
        (RICH, 12, "8be7f195a2"),
    ],
)
def test_no_version_measures_again_what_another_has_measured(
    wanted: str | dict[str, Any], number: int, run: str
) -> None:
    """The hash over all cells of a specification, which depends on every field: change one here only on purpose."""
    if isinstance(wanted, str):
        wanted = yaml.safe_load((ROOT / f"crds/examples/{wanted}.yaml").read_text("utf-8"))["spec"]
    cells = expand(BenchmarkSpec.model_validate(wanted))
    assert (len(cells), spec_hash(cells)) == (number, run)
