"""Both definitions in a real API server: what it accepts, fills in, refuses and prints."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import ControlPlane, KubectlError
from inferbench_operator.core import results
from inferbench_operator.core.matrix import expand
from inferbench_operator.models.base import API_VERSION
from inferbench_operator.models.benchmark import MAX_CELLS, MAX_NAME_LENGTH, BenchmarkSpec
from inferbench_operator.models.result import ResultSpec, ResultStatus
from inferbench_operator.models.status import BenchmarkStatus
from inferbench_runner.contract import CellDetails, CellMeasured, FullReport
from operator_testing import builders
from operator_testing.builders import NOW, attempt_of
from operator_testing.largest import largest

pytestmark = pytest.mark.e2e

Spec = dict[str, Any]

QUARTER_OF_AN_HOUR = 900_000_000
"""Longest call, in microseconds, with which 1024 cells fit."""
LARGEST_STATUS = 512 * 1024
LARGEST_RESULT = 256 * 1024
MEASUREMENT: Spec = {
    "profile": "Sound",
    "minSamples": 1000,
    "minSeconds": 10,
    "maxSeconds": 300,
    "targetHalfWidthPercent": 2,
    "processes": 3,
    "load": {"mode": "Closed", "concurrency": 1},
}
"""What the API server fills in."""
BESIDE_LEGACY: dict[str, Spec] = {
    "100 samples": {"minSamples": 100},
    "another minimum time": {"minSeconds": 1},
    "another target": {"targetHalfWidthPercent": 5},
    "another number of processes": {"processes": 1},
    "concurrent calls": {"load": {"concurrency": 2}},
    "an open loop": {"load": {"mode": "Open", "ratePerSecond": 50}},
}
"""What may not be said beside the profile Legacy2023."""


def spec(**fields: Any) -> Spec:  # noqa: ANN401 - any JSON value
    """A valid specification of one cell, with the given fields instead of its own."""
    return {"models": [{"name": "bert", "id": "a/b"}], "accelerators": [{"name": "cpu", "kind": "CPU"}]} | fields


def model(**fields: Any) -> Spec:  # noqa: ANN401 - any JSON value
    """A valid model, with the given fields instead of its own."""
    return {"name": "bert", "id": "a/b"} | fields


def benchmark(name: str, of: Spec) -> str:
    """A manifest, as JSON, which is YAML."""
    return json.dumps({"apiVersion": API_VERSION, "kind": "InferenceBenchmark", "metadata": {"name": name}, "spec": of})


def try_out(control_plane: ControlPlane, manifest: str) -> dict[str, Any]:
    """The object as the API server would store it."""
    output = control_plane.kubectl("create", "--dry-run=server", "--output=json", "--filename=-", stdin=manifest)
    found: dict[str, Any] = json.loads(output)
    return found


@pytest.mark.parametrize("plural", ["inferencebenchmarks", "inferencebenchmarkresults"])
def test_definition_is_established_and_structural(control_plane: ControlPlane, plural: str) -> None:
    """The API server serves the kind and has nothing to say against its schema."""
    found = json.loads(control_plane.kubectl("get", "crd", f"{plural}.inferbench.dev", "--output=json"))
    conditions = {condition["type"]: condition["status"] for condition in found["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}


def test_both_kinds_are_in_one_category(control_plane: ControlPlane) -> None:
    """`kubectl get benchmarks` lists what belongs to the operator, and `kubectl get all` does not."""
    found = control_plane.kubectl("api-resources", "--categories=benchmarks", "--output=name").split()
    assert sorted(found) == ["inferencebenchmarkresults.inferbench.dev", "inferencebenchmarks.inferbench.dev"]


def test_client_side_apply_accepts_the_definitions(control_plane: ControlPlane, crds_folder: Path) -> None:
    """The files are small enough for the annotation that `kubectl apply` writes without `--server-side`."""
    output = control_plane.kubectl(
        "create", "--dry-run=server", "--save-config", "--filename=-", stdin=_copy(crds_folder)
    )
    assert output.count("created") == 2


def _copy(crds_folder: Path) -> str:
    """Both definitions under another group, so that they can be created beside the real ones."""
    texts = [path.read_text("utf-8") for path in sorted(crds_folder.glob("*.yaml"))]
    return "---\n".join(texts).replace("inferbench.dev", "copy.example")


def test_example_reads_back_as_it_was_written(control_plane: ControlPlane, example: Path) -> None:
    """The server's defaults are the models' defaults: both readings of a benchmark are equal."""
    text = example.read_text("utf-8")
    stored = try_out(control_plane, text)
    written = BenchmarkSpec.model_validate(yaml.safe_load(text)["spec"])
    assert BenchmarkSpec.model_validate(stored["spec"]) == written
    # And the server has filled them in, so that a reader of the object sees them.
    assert stored["spec"]["execution"]["retries"] == written.execution.retries
    assert stored["spec"]["measurement"]["maxSeconds"] == written.measurement.max_seconds


def test_unseen_benchmark_is_not_taken_for_a_finished_one(control_plane: ControlPlane) -> None:
    """Before the operator has seen it, a benchmark's observed generation is -1, which no generation is."""
    assert try_out(control_plane, benchmark("unseen", spec()))["status"] == {"observedGeneration": -1}


def test_explicit_null_is_the_same_as_nothing(control_plane: ControlPlane) -> None:
    """A template that leaves a value empty gets the default, or nothing where there is none."""
    nulls = {"sequenceLengths": None, "measurement": None, "reuse": None, "runner": None}
    stored = try_out(control_plane, benchmark("nulls", spec(models=[model(task=None, weights=None)], **nulls)))["spec"]
    assert stored["models"] == [{"name": "bert", "id": "a/b", "weights": "Pretrained"}]
    assert stored["sequenceLengths"] == [128]
    assert stored["measurement"] == MEASUREMENT
    assert stored["reuse"] == "UnchangedCells"
    assert "runner" not in stored


def test_partial_object_is_completed(control_plane: ControlPlane) -> None:
    """Giving one field of a defaulted object keeps the defaults of the others."""
    stored = try_out(control_plane, benchmark("partial", spec(measurement={"minSeconds": 1})))["spec"]
    assert stored["measurement"] == MEASUREMENT | {"minSeconds": 1}
    load = {"mode": "Open", "ratePerSecond": 50}
    stored = try_out(control_plane, benchmark("open", spec(measurement={"load": load})))["spec"]
    assert stored["measurement"] == MEASUREMENT | {"load": load | {"concurrency": 1}}


def test_empty_values_are_not_filled_in(control_plane: ControlPlane) -> None:
    """An accelerator's runner shows only what was written, because only that replaces fields of spec.runner."""
    accelerators = [{"name": "cpu", "kind": "CPU", "runner": {"image": "example.com/runner:1"}}]
    stored = try_out(control_plane, benchmark("sparse", spec(accelerators=accelerators)))["spec"]
    assert stored["accelerators"] == accelerators


def test_free_form_values_are_kept(control_plane: ControlPlane) -> None:
    """Fragments of a pod and a model's configuration pass through as they are, at any depth."""
    runner = {
        "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}],
        "resources": {"limits": {"cpu": "4", "memory": "8Gi"}},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
    }
    config = {"num_hidden_layers": 2, "rope_scaling": {"factor": 0.5, "type": None}}
    models = [model(weights="Random", config=config)]
    stored = try_out(control_plane, benchmark("free-form", spec(models=models, runner=runner)))["spec"]
    assert stored["runner"] == runner
    assert stored["models"][0]["config"] == config


def _named(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number:03}".ljust(40, "x") for number in range(count)]


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        pytest.param("n" * MAX_NAME_LENGTH, spec(), id="the longest name"),
        pytest.param(
            "most-cells",
            spec(models=[model(name=f"m{n}") for n in range(32)], sequenceLengths=list(range(1, 33))),
            id="exactly 1024 cells",
        ),
        pytest.param(
            "longest-lists",
            spec(
                models=[
                    model(name=name, id="i" * 512, weights="Random", config={f"k{n}": n for n in range(32)})
                    for name in _named("m", 32)
                ],
                accelerators=[
                    {"name": name, "kind": "CPU", "instanceTypes": [f"t{n}.large" for n in range(16)]}
                    for name in _named("a", 16)
                ],
                include=[{"model": _named("m", 32)[-1], "accelerator": _named("a", 16)[-1]}] * 128,
                exclude=[{"model": _named("m", 32)[-1], "accelerator": _named("a", 16)[-1]}] * 64,
            ),
            id="lists and names as long as they may be, within what the rules may cost",
        ),
        pytest.param(
            "poisson",
            spec(
                measurement={
                    "load": {"mode": "Open", "concurrency": 256, "arrivals": "Poisson", "ratePerSecond": 1_000_000}
                }
            ),
            id="an open loop",
        ),
        pytest.param(
            "legacy",
            spec(measurement={"profile": "Legacy2023", "maxSeconds": 1}),
            id="the method of 2023, in less time than the other one's shortest",
        ),
        pytest.param(
            "legacy-in-full",
            spec(measurement=MEASUREMENT | {"profile": "Legacy2023"}),
            id="the method of 2023, read back with all defaults",
        ),
    ],
)
def test_benchmark_at_its_bounds_is_accepted(control_plane: ControlPlane, name: str, accepted: Spec) -> None:
    """What the schema allows, the rules can check without running out of their budget."""
    stored = try_out(control_plane, benchmark(name, accepted))["spec"]
    assert BenchmarkSpec.model_validate(stored) == BenchmarkSpec.model_validate(accepted)


@pytest.mark.parametrize(
    ("refused", "field", "fix"),
    [
        pytest.param(
            spec(precisions=["fp8"]), "spec.precisions[0]", 'supported values: "fp32", "tf32"', id="unknown precision"
        ),
        pytest.param(spec(models=[]), "spec.models", "at least 1 item", id="no model"),
        pytest.param(
            spec(execution={"maxCostUSD": "cheap"}), "spec.execution.maxCostUSD", "should match", id="a price in words"
        ),
        pytest.param(
            spec(execution={"maxCostUSD": "-1"}), "spec.execution.maxCostUSD", "should match", id="a negative price"
        ),
        pytest.param(spec(history={"runs": 51}), "spec.history.runs", "less than or equal to 50", id="a long history"),
        pytest.param({"accelerators": spec()["accelerators"]}, "spec.models", "Required value", id="models left out"),
        pytest.param(spec(accelerators=[]), "spec.accelerators", "at least 1 item", id="no accelerator"),
        pytest.param(spec(models=[{"name": "bert"}]), "spec.models[0].id", "Required value", id="model without an id"),
        pytest.param(
            spec(models=[model(), model(id="c/d")]), "spec.models[1]", "Duplicate value", id="two models of one name"
        ),
        pytest.param(
            spec(accelerators=[{"name": "a", "kind": "CPU"}] * 2),
            "spec.accelerators[1]",
            "Duplicate value",
            id="two accelerators of one name",
        ),
        pytest.param(
            spec(models=[model(name="BERT base")]), "spec.models[0].name", "should match", id="name unfit for a label"
        ),
        pytest.param(
            spec(models=[model(name="b" * 41)]), "spec.models[0].name", "more than 40", id="model name too long"
        ),
        pytest.param(
            spec(models=[model(name=f"m{n}") for n in range(33)]), "spec.models", "at most 32 items", id="33 models"
        ),
        pytest.param(
            spec(models=[model(config={"num_hidden_layers": 2})]),
            "spec.models[0].config",
            "needs weights: Random",
            id="configuration of pretrained weights",
        ),
        pytest.param(
            spec(accelerators=[{"name": "inf2"}]),
            "spec.accelerators[0]",
            "such as inf2.xlarge, or set kind to CPU, Neuron or NVIDIA",
            id="accelerator with neither instance types nor a kind",
        ),
        pytest.param(
            spec(accelerators=[{"name": "gpu", "kind": "GPU"}]),
            "spec.accelerators[0].kind",
            'supported values: "CPU", "Neuron", "NVIDIA"',
            id="unknown kind of accelerator",
        ),
        pytest.param(
            spec(accelerators=[{"name": "inf2", "instanceTypes": ["inf2"]}]),
            "spec.accelerators[0].instanceTypes[0]",
            "should match",
            id="instance family instead of an instance type",
        ),
        pytest.param(
            spec(
                models=[model(name=f"m{n}") for n in range(32)],
                sequenceLengths=list(range(1, 33)),
                include=[{"model": "m0", "accelerator": "cpu", "batchSize": 2}],
            ),
            "spec",
            "more than 1024 cells; split it into several benchmarks",
            id="1025 cells",
        ),
        pytest.param(
            spec(include=[{"model": "gpt", "accelerator": "cpu"}]),
            "spec.include",
            "must name a model of spec.models",
            id="extra cell of a model that is not listed",
        ),
        pytest.param(
            spec(exclude=[{"accelerator": "gpu"}]),
            "spec.exclude",
            "an accelerator of spec.accelerators, or leave them out",
            id="excluded cells of an accelerator that is not listed",
        ),
        *(
            pytest.param(spec(gates=[{"name": "gate", **gate}]), f"spec.gates{where}", words, id=name)
            for name, where, words, gate in (
                (
                    "gate on a model that is not listed",
                    "",
                    "must name a model of spec.models",
                    {"metric": "P95", "maxMicroseconds": 1, "selector": {"model": "gpt"}},
                ),
                (
                    "gate without a limit",
                    "[0]",
                    "needs either maxMicroseconds or a baseline",
                    {"metric": "P95"},
                ),
                (
                    "gate with two limits",
                    "[0]",
                    "needs either maxMicroseconds or a baseline",
                    {"metric": "P95", "maxMicroseconds": 1, "baseline": "PreviousRun", "maxIncreasePercent": 10},
                ),
                (
                    "gate with a limit of another metric",
                    "[0]",
                    "remove what is not for this metric",
                    {"metric": "P95", "maxMicroseconds": 1, "maxFailedCells": 1},
                ),
                (
                    "gate with a negative tolerance",
                    "[0].maxIncreasePercent",
                    "greater than or equal to 0",
                    {"metric": "P95", "baseline": "PreviousRun", "maxIncreasePercent": -1},
                ),
                (
                    "gate without a tolerance",
                    "[0]",
                    "maxIncreasePercent is needed with a baseline",
                    {"metric": "Cost", "baseline": "PreviousRun"},
                ),
                (
                    "gate on throughput that may rise",
                    "[0]",
                    "maxIncreasePercent is needed with a baseline of P50",
                    {"metric": "Throughput", "baseline": "PreviousRun", "maxIncreasePercent": 10},
                ),
                (
                    "gate without the name of its baseline",
                    "[0]",
                    "baselineName names the Benchmark or the ConfigMap",
                    {"metric": "P95", "baseline": "Benchmark", "maxIncreasePercent": 10},
                ),
                (
                    "gate on verdicts with a baseline",
                    "[0].baseline",
                    "are not compared with a baseline",
                    {"metric": "Verdict", "baseline": "PreviousRun"},
                ),
                (
                    "gate whose lengths are exchanged",
                    "[0].selector.minSequenceLength",
                    "exchange them",
                    {
                        "metric": "P95",
                        "maxMicroseconds": 1,
                        "selector": {"minSequenceLength": 9, "maxSequenceLength": 8},
                    },
                ),
            )
        ),
        pytest.param(
            spec(
                gates=[{"name": "a", "metric": "P95", "baseline": "PreviousRun", "maxIncreasePercent": 10}],
                history={"runs": 0},
            ),
            "spec.gates",
            "needs history.runs of at least 1",
            id="gate against a history that is not kept",
        ),
        pytest.param(
            spec(compare={"baseline": "gpu"}),
            "spec.compare",
            "must name an accelerator of spec.accelerators",
            id="comparison with an accelerator that is not listed",
        ),
        pytest.param(spec(sequenceLengths=[8, 8]), "spec.sequenceLengths[1]", "Duplicate value", id="a length twice"),
        pytest.param(spec(sequenceLengths=[]), "spec.sequenceLengths", "at least 1 item", id="empty list of lengths"),
        pytest.param(spec(batchSizes=[0]), "spec.batchSizes[0]", "greater than or equal to 1", id="batch size zero"),
        pytest.param(
            spec(measurement={"minSeconds": 400}),
            "spec.measurement.minSeconds",
            "must not exceed maxSeconds, which is 300 unless it is given",
            id="minimum above the maximum that holds by default",
        ),
        pytest.param(
            spec(measurement={"load": {"mode": "Open"}}),
            "spec.measurement.load.ratePerSecond",
            "mode: Open needs ratePerSecond, the number of calls to start per second; give it, or leave mode at Closed",
            id="open loop without a rate",
        ),
        pytest.param(
            spec(measurement={"maxSeconds": 20, "load": {"mode": "Open", "ratePerSecond": 19}}),
            "spec.measurement.load.ratePerSecond",
            "load.ratePerSecond times maxSeconds must be 400 or more",
            id="open loop with too few calls to tell a p95",
        ),
        pytest.param(
            spec(measurement={"load": {"ratePerSecond": 50}}),
            "spec.measurement.load.mode",
            "mode is Closed unless it is given; set mode: Open, or leave them out",
            id="rate of a closed loop",
        ),
        pytest.param(
            spec(measurement={"load": {"mode": "Closed", "arrivals": "Poisson"}}),
            "spec.measurement.load.mode",
            "arrivals and ratePerSecond belong to mode: Open",
            id="arrivals of a closed loop",
        ),
        pytest.param(
            spec(measurement={"load": {"concurrency": 257}}),
            "spec.measurement.load.concurrency",
            "less than or equal to 256",
            id="too many calls at the same time",
        ),
        pytest.param(
            spec(measurement={"targetHalfWidthPercent": 0}),
            "spec.measurement.targetHalfWidthPercent",
            "greater than or equal to 1",
            id="a target that no measurement can reach",
        ),
        pytest.param(
            spec(measurement={"profile": "Quick"}),
            "spec.measurement.profile",
            'supported values: "Sound", "Legacy2023"',
            id="unknown profile",
        ),
        *(
            pytest.param(
                spec(measurement={"profile": "Legacy2023"} | own),
                "spec.measurement.profile",
                "measures 100 calls in one process; leave minSamples, minSeconds, targetHalfWidthPercent, processes "
                "and load out, or set profile: Sound",
                id=f"the method of 2023 with {name}",
            )
            for name, own in BESIDE_LEGACY.items()
        ),
        pytest.param(
            spec(measurement={"minSamples": 1.5}),
            "spec.measurement.minSamples",
            "must be of type int",
            id="fraction where an integer belongs",
        ),
        pytest.param(
            spec(measurement={"minSamples": "1000"}),
            "spec.measurement.minSamples",
            "must be of type integer",
            id="string where an integer belongs",
        ),
        pytest.param(
            spec(sequenceLenghts=[8]), "spec.sequenceLenghts", "unknown field", id="misspelt field of the specification"
        ),
        pytest.param(
            spec(models=[model(revison="main")]),
            "spec.models[0].revison",
            "unknown field",
            id="misspelt field of a model",
        ),
    ],
)
def test_bad_specification_is_refused(control_plane: ControlPlane, refused: Spec, field: str, fix: str) -> None:
    """The API server refuses it at once, names the field and says what it wants instead."""
    with pytest.raises(KubectlError) as caught:
        try_out(control_plane, benchmark("refused", refused))
    message = str(caught.value)
    assert f"{field}: " in message or f'"{field}"' in message
    assert fix in message


def test_name_too_long_for_its_results_is_refused(control_plane: ControlPlane) -> None:
    """A benchmark whose results could not be named after it is refused before anything is measured."""
    with pytest.raises(KubectlError, match=r"metadata\.name is longer than 52 characters; shorten it"):
        try_out(control_plane, benchmark("n" * (MAX_NAME_LENGTH + 1), spec()))


def test_columns_show_the_state_of_a_benchmark(control_plane: ControlPlane) -> None:
    """`kubectl get ib` reads condition Ready wherever it stands in the list, and `-o wide` adds the sentence."""
    control_plane.kubectl("create", "--filename=-", stdin=benchmark("columns", spec()))
    headers = control_plane.kubectl("get", "ib", "columns").splitlines()[0].split()
    assert headers == ["NAME", "READY", "CELLS", "MAX-P95-MICROS", "GATES", "REASON", "AGE"]
    status = BenchmarkStatus.model_validate(
        {
            "observedGeneration": 1,
            "conditions": [
                _condition("Reconciling", "True", "Measuring", "Working."),
                _condition("Ready", "False", "Measuring", "3 of 8 cells have figures."),
                _condition("GatesPassed", "True", "GatesPassed", "Gates passed: 1 of 1."),
            ],
            "run": {
                "id": "0123abcd",
                "trigger": "Created",
                "specHash": "0123456789",
                "startTime": datetime(2026, 1, 1, tzinfo=UTC),
            },
            "cells": {"total": 8, "waiting": 2, "running": 1, "failed": 4, "succeeded": 3, "progress": "3/8"},
            "slowestP95Microseconds": 4711,
        }
    )
    _write_status(control_plane, "columns", status)
    _, row = control_plane.kubectl("get", "ib", "columns", "--output=wide").splitlines()
    assert row.split()[1:6] == ["False", "3/8", "4711", "True", "Measuring"]
    assert row.split()[7:11] == ["0123abcd", "2", "1", "4"]
    assert row.endswith("3 of 8 cells have figures.")


def _condition(kind: str, status: str, reason: str, message: str) -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": datetime(2026, 1, 1, tzinfo=UTC),
    }


def _write_status(control_plane: ControlPlane, name: str, status: BenchmarkStatus) -> None:
    patch = control_plane.folder / f"{name}.json"
    patch.write_text(json.dumps({"status": status.model_dump(mode="json", by_alias=True, exclude_none=True)}), "utf-8")
    control_plane.kubectl(
        "patch", "ib", name, "--subresource=status", "--type=merge", f"--patch-file={patch}", "--output=name"
    )


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(
            {
                "state": "succeeded",
                "attempts": 1,
                "verdict": "Inconclusive",
                "samples": 1_000_000,
                "p50Microseconds": QUARTER_OF_AN_HOUR,
                "p95Microseconds": QUARTER_OF_AN_HOUR,
                "p95LowMicroseconds": QUARTER_OF_AN_HOUR,
                "p95HighMicroseconds": QUARTER_OF_AN_HOUR,
                "p99Microseconds": QUARTER_OF_AN_HOUR,
                "inferencesPerSecond": "9" * 12,
                "usdPerMillionInferences": "9" * 12,
                "pareto": True,
            },
            id="all cells measured",
        ),
        pytest.param(
            {"state": "failed", "attempts": 2, "reason": "R" * 64, "message": "m" * 200},
            id="all cells failed",
        ),
    ],
)
def test_status_of_the_largest_benchmark_is_stored(control_plane: ControlPlane, cell: dict[str, Any]) -> None:
    """A status of 1024 cells with the longest texts is accepted, reads back as written, and is at most 512 KiB."""
    name = f"largest-{cell['state']}"
    entries = [
        {
            "cell": f"{number:010x}",
            "model": "m" * 40,
            "accelerator": "a" * 40,
            "precision": "bf16",
            "sequenceLength": 131_072,
            "batchSize": 4096,
        }
        | cell
        for number in range(MAX_CELLS)
    ]
    status = BenchmarkStatus.model_validate({"observedGeneration": 1, "results": entries})
    control_plane.kubectl("create", "--filename=-", stdin=benchmark(name, spec()))
    _write_status(control_plane, name, status)
    stored = json.loads(control_plane.kubectl("get", "ib", name, "--output=json"))["status"]
    control_plane.kubectl("delete", "ib", name)
    assert BenchmarkStatus.model_validate(stored) == status
    assert len(json.dumps(stored, separators=(",", ":"))) <= LARGEST_STATUS


def result(name: str, **spec_fields: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON value
    """The result of one cell, complete, with the given fields of its specification instead of its own."""
    p95 = {"valueMicroseconds": 950, "lowMicroseconds": 940, "highMicroseconds": 965}
    only = {"valueMicroseconds": 500}
    of = ResultSpec.model_validate(
        {
            "cell": "0123456789",
            "benchmark": "bert-base",
            "model": "bert",
            "modelId": "a/b",
            "accelerator": "cpu",
            "precision": "fp32",
            "sequenceLength": 128,
            "batchSize": 1,
        }
        | spec_fields
    )
    call = {"samples": 1000, "meanMicroseconds": 510, "p50": only, "p90": only, "p95": p95, "p99": p95}
    status = ResultStatus.model_validate(
        {
            "run": "0123abcd",
            "attempt": 1,
            "completionTime": datetime(2026, 1, 1, tzinfo=UTC),
            "verdict": "Valid",
            "latency": {"call": call | {"maxMicroseconds": 970}},
            "inferencesPerSecond": "1960.7",
            "cost": {"usdPerMillionInferences": "0.5", "usdPerHour": "3.5", "pricing": "Spot"},
            "phasesMilliseconds": {"load": 12, "measure": 510},
            "runnerImage": "example.com/runner:1",
            "node": "node-1",
            "provenance": {"torch": "2.8.0"},
        }
    )
    return {
        "apiVersion": API_VERSION,
        "kind": "InferenceBenchmarkResult",
        "metadata": {"name": name, "labels": {"inferbench.dev/benchmark": "bert-base"}},
        "spec": of.model_dump(mode="json", by_alias=True, exclude_none=True),
        "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
    }


def apply(control_plane: ControlPlane, manifest: dict[str, Any]) -> None:
    """Write it as the operator does, whether it is there or not."""
    control_plane.kubectl("apply", "--server-side", "--filename=-", stdin=json.dumps(manifest))


def test_columns_show_the_figures_of_a_result(control_plane: ControlPlane) -> None:
    """One write creates a result whole, and `kubectl get ibr` is the table of results."""
    apply(control_plane, result("columns"))
    selected = ("get", "ibr", "columns")
    headers, row = (line.split() for line in control_plane.kubectl(*selected, "--output=wide").splitlines())
    shown = dict(zip(headers, row, strict=True))
    del shown["NAME"], shown["AGE"]
    assert shown == {
        "MODEL": "bert",
        "ACCELERATOR": "cpu",
        "PRECISION": "fp32",
        "SEQ": "128",
        "BATCH": "1",
        "P95-MICROS": "950",
        "LOW": "940",
        "HIGH": "965",
        "VERDICT": "Valid",
        "SAMPLES": "1000",
        "P50-MICROS": "500",
        "P99-MICROS": "950",
        "INFERENCES/S": "1960.7",
        "USD/MILLION": "0.5",
        "NODE": "node-1",
    }
    narrow = control_plane.kubectl(*selected).splitlines()[0].split()
    assert narrow == ["NAME", *list(shown)[:9], "AGE"]


def test_result_reads_back_as_it_was_written(control_plane: ControlPlane) -> None:
    """The server adds nothing to a result that its models do not know."""
    written = result("read-back")
    apply(control_plane, written)
    stored = json.loads(control_plane.kubectl("get", "ibr", "read-back", "--output=json"))
    assert ResultSpec.model_validate(stored["spec"]) == ResultSpec.model_validate(written["spec"])
    assert ResultStatus.model_validate(stored["status"]) == ResultStatus.model_validate(written["status"])


def test_largest_result_is_stored(control_plane: ControlPlane) -> None:
    """Whatever a runner may say of a cell is accepted as the operator writes it, and reads back whole."""
    (cell,) = expand(BenchmarkSpec.model_validate(spec()))
    entry = largest(CellMeasured, cell=cell.hash)
    report = largest(FullReport, cells=[largest(CellDetails, cell=cell.hash)])
    attempt = attempt_of(builders.benchmark(), [cell.hash], full_report=report)
    written = results.result(builders.benchmark(), cell, entry, attempt, NOW)
    # Neither its namespace nor its owner is there.
    for field in ("namespace", "ownerReferences"):
        del written["metadata"][field]
    apply(control_plane, written)
    name = written["metadata"]["name"]
    stored = json.loads(control_plane.kubectl("get", "ibr", name, "--output=json", "--show-managed-fields"))
    control_plane.kubectl("delete", "ibr", name)
    assert stored["status"] == written["status"]
    assert len(json.dumps(stored, separators=(",", ":"))) <= LARGEST_RESULT


def test_doubt_that_is_there_twice_is_refused(control_plane: ControlPlane) -> None:
    """A list of doubts is keyed by the doubt, so that tools can merge and find them."""
    twice = result("twice")
    twice["status"]["caveats"] = [{"caveat": "Drift", "message": "It rose."}] * 2
    with pytest.raises(KubectlError, match=r"(?i)duplicate"):
        apply(control_plane, twice)


def test_result_without_figures_is_refused(control_plane: ControlPlane) -> None:
    """Half a result can't exist."""
    half = result("half")
    del half["status"]
    with pytest.raises(KubectlError, match="status: Required value"):
        apply(control_plane, half)


def test_result_keeps_its_cell_and_may_change_its_names(control_plane: ControlPlane) -> None:
    """A model may be renamed in the benchmark, but a result never becomes that of another cell."""
    apply(control_plane, result("identity"))
    apply(control_plane, result("identity", model="renamed"))
    with pytest.raises(KubectlError, match="cell and benchmark never change; a result of another"):
        apply(control_plane, result("identity", cell="9876543210"))


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        pytest.param("ib", "An experiment: how fast do these models answer on this hardware?", id="what it is"),
        pytest.param("ib", "kubectl get ibr -l inferbench.dev/benchmark=NAME", id="where the answer is"),
        pytest.param("ib", "- {name: inf2, instanceTypes: [inf2.xlarge]}", id="an example with its lines kept"),
        pytest.param("ib.spec", "Input lengths to measure, in tokens.", id="fields of the specification"),
        pytest.param("ib.spec.models", "Hub id such as google-bert/bert-base-uncased", id="fields of a model"),
        pytest.param("ib.spec.measurement.maxSeconds", "Default: 300.", id="defaults in words"),
        pytest.param("ib.spec.measurement", "Legacy2023: 10 warm-up calls and 100 timed ones", id="values in words"),
        pytest.param("ib.spec.measurement.load", "counts from the intended start", id="fields of a field"),
        pytest.param("ib.spec.accelerators.runner", "Environment variables of the container", id="a part used twice"),
        pytest.param("ib.status", "-1 until the operator has seen the object.", id="fields of the status"),
        pytest.param("ibr", "only Valid figures should decide anything.", id="what a result is"),
        pytest.param("ibr.status.latency.call.p95", "The order statistic of rank ceil(p*n)", id="figures of a result"),
        pytest.param("ibr.status.latency.endToEnd", "Text or image in, label out", id="what a latency covers"),
        pytest.param(
            "ibr.status.caveats", "What was seen, with its figure, and what to do", id="doubts about a result"
        ),
        pytest.param("ibr.status.noise.stealPercent", "a decimal string", id="units of what is no integer"),
    ],
)
def test_explain_is_a_manual(control_plane: ControlPlane, path: str, sentence: str) -> None:
    """`kubectl explain` answers in sentences, down to the last field."""
    assert sentence in " ".join(control_plane.kubectl("explain", path).split())
