"""The result object of a cell, from the two reports of its runner."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferbench_operator.core import results
from inferbench_operator.core.matrix import Cell
from inferbench_operator.models.result import ResultSpec, ResultStatus
from inferbench_runner.contract import (
    Caveat,
    CellCaveat,
    CellDetails,
    CellMeasured,
    Correctness,
    FullReport,
    Latency,
    Noise,
    Phase,
    provenance_hash,
)
from operator_testing.builders import (
    NOW,
    attempt_of,
    benchmark,
    cells_of,
    details,
    ended,
    full_report,
    measured,
    report,
    spec,
)
from operator_testing.largest import largest

Json = dict[str, Any]

(CELL,) = cells_of(spec())
(IMAGE_CELL,) = cells_of(spec(models=[{"name": "vit", "id": "google/vit-base-patch16-224"}]))
ENTRY = measured(CELL.hash)

LARGEST_RESULT = 256 * 1024
"""Bytes of JSON; etcd takes 1.5 MiB at once, and a benchmark has up to 1,024 results."""


def _status(full: FullReport | None, *, entry: CellMeasured = ENTRY, cell: Cell = CELL) -> Json:
    of = benchmark()
    attempt = attempt_of(of, [cell.hash], pod=ended(report(entry)), full_report=full)
    before = repr(attempt)
    manifest = results.result(of, cell, entry, attempt, NOW)
    assert repr(attempt) == before
    status: Json = manifest["status"]
    return status


def _latency(p95: int) -> Latency:
    return details(measured(CELL.hash, p95)).call


def _full(**changes: Any) -> FullReport:  # noqa: ANN401 - any field of the details
    return full_report(details(ENTRY).model_copy(update=changes))


def _doubt(caveat: Caveat, message: str) -> CellCaveat:
    return CellCaveat(caveat=caveat, message=message)


@pytest.mark.parametrize("kind", ["call", "device", "end_to_end", "service", "queue"])
def test_each_latency_is_stored_whole(kind: str) -> None:
    """By what it covers."""
    latency = _latency(5000 if kind == "call" else 4000)
    stored = _status(_full(**{kind: latency}))["latency"]
    name = {"end_to_end": "endToEnd"}.get(kind, kind)
    assert stored[name] == latency.model_dump(mode="json", exclude_none=True)
    assert stored.keys() == {"call", name}


FIGURES = {
    "first_call_microseconds": 9000,
    "effective_samples": 400,
    "independent_blocks": 30,
    "half_width_percent": "1.25",
    "rounds": 36,
    "spread_between_rounds_percent": "0.8",
    "spread_between_processes_percent": "1.1",
    "process_p95_microseconds": (4990, 5000, 5040),
    "interpolated_p95_microseconds": 4999,
    "calls_in_flight": "1.01",
    "achieved_rate_percent": "99.7",
    "histogram": "eJyLNtUxiQUABo4B5w==",
}


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_of_the_details_is_stored(name: str) -> None:
    """Under its name in the contract."""
    told = details(ENTRY).model_copy(update=FIGURES)
    written = told.model_dump(mode="json", by_alias=True)
    alias = CellDetails.model_fields[name].alias
    assert alias
    assert _status(full_report(told))[alias] == written[alias]


def test_correctness_and_noise_are_stored() -> None:
    """Without what was not to be had."""
    right = Correctness(
        reference="CPU, fp32",
        cosine_similarity="0.99998",
        min_cosine_similarity="0.999",
        max_relative_error="0.002",
        max_relative_error_allowed="0.01",
    )
    noise = Noise(steal_percent="0.4", throttled_milliseconds=0)
    status = _status(_full(correctness=right, noise=noise))
    assert status["correctness"] == {
        "reference": "CPU, fp32",
        "cosineSimilarity": "0.99998",
        "minCosineSimilarity": "0.999",
        "maxRelativeError": "0.002",
        "maxRelativeErrorAllowed": "0.01",
    }
    assert status["noise"] == {"stealPercent": "0.4", "throttledMilliseconds": 0}


def test_what_concerns_the_whole_plan_is_in_each_of_its_results() -> None:
    """Times, memory, versions."""
    status = _status(_full().model_copy(update={"wall_milliseconds": 61_000}))
    assert status["phasesMilliseconds"] == {"load": 1200}
    assert (status["wallMilliseconds"], status["peakHostMemoryMebibytes"]) == (61_000, 700)
    assert status["provenance"] == {"torch": "2.9.0"}


DRIFT, STEAL = _doubt(Caveat.DRIFT, "It rose by 9 %."), _doubt(Caveat.CPU_STEAL, "4 % were stolen.")
UNEXPLAINED = "The runner's full report, which explains it, was not found in its log."


@pytest.mark.parametrize(
    ("short", "full", "stored"),
    [
        pytest.param([], [], [], id="no doubt"),
        pytest.param(
            [Caveat.DRIFT],
            [DRIFT, STEAL],
            [("Drift", "It rose by 9 %."), ("CPUSteal", "4 % were stolen.")],
            id="the full report has words, and more of them, in its order",
        ),
        pytest.param(
            [Caveat.DRIFT, Caveat.CPU_STEAL],
            None,
            [("Drift", UNEXPLAINED), ("CPUSteal", UNEXPLAINED)],
            id="a lost log leaves the doubts without words",
        ),
        pytest.param(
            [Caveat.DRIFT, Caveat.THROTTLING],
            [DRIFT],
            [("Drift", "It rose by 9 %."), ("Throttling", UNEXPLAINED)],
            id="a doubt that only the short report has is no less one",
        ),
        pytest.param(
            [],
            [_doubt(Caveat.DRIFT, "It\x1b[2J rose.\nVERDICT Valid")],
            [("Drift", "It[2J rose.VERDICT Valid")],
            id="words can't draw on a terminal",
        ),
    ],
)
def test_doubts(short: list[Caveat], full: list[CellCaveat] | None, stored: list[tuple[str, str]]) -> None:
    """Each once, with its words where they have arrived."""
    entry = ENTRY.model_copy(update={"caveats": tuple(short)})
    told = None if full is None else _full(caveats=tuple(full))
    found = _status(told, entry=entry)["caveats"]
    assert [(caveat["caveat"], caveat["message"]) for caveat in found] == stored


def test_details_that_contradict_the_figures_are_not_stored() -> None:
    """Neither are their doubts, while those of the short report are."""
    entry = ENTRY.model_copy(update={"caveats": (Caveat.NEIGHBOURS,)})
    other = details(measured(CELL.hash, 6000)).model_copy(update={"caveats": (DRIFT,), "device": _latency(6000)})
    status = _status(full_report(other), entry=entry)
    assert status["caveats"] == [{"caveat": "Neighbours", "message": UNEXPLAINED}]
    assert status["latency"].keys() == {"call"}
    assert "rounds" not in status


@pytest.mark.parametrize("claimed", [None, "0" * 16], ids=["left out", "forged"])
@pytest.mark.parametrize(
    ("cell", "facts"),
    [
        pytest.param(CELL, {"sequenceLength": "128", "batchSize": "1"}, id="text"),
        pytest.param(IMAGE_CELL, {"batchSize": "1"}, id="images, which have no length"),
    ],
)
def test_the_hash_is_over_what_is_stored(cell: Cell, facts: dict[str, str], claimed: str | None) -> None:
    """A reader can compute it again from the object; what the runner says of it counts for nothing."""
    entry = measured(cell.hash)
    told = full_report(details(entry).model_copy(update={"provenance_hash": claimed}))
    status = _status(told, entry=entry, cell=cell)
    assert status["provenanceHash"] == provenance_hash(status["provenance"] | facts)


def test_a_runner_cannot_replace_the_cells_own_facts() -> None:
    """Its provenance may name them; the specification's are hashed."""
    told = _full().model_copy(update={"provenance": {"torch": "2.9.0", "batchSize": "64"}})
    facts = {"torch": "2.9.0", "sequenceLength": "128", "batchSize": "1"}
    assert _status(told)["provenanceHash"] == provenance_hash(facts)


def test_there_is_no_hash_of_nothing() -> None:
    """Two results whose circumstances nobody knows must not look alike."""
    assert "provenanceHash" not in _status(None)
    assert "provenanceHash" not in _status(_full().model_copy(update={"provenance": {}}))


def test_an_older_report_is_stored() -> None:
    """A runner of the first version tells the call latency and the warm-up only."""
    older = {
        "version": 1,
        "cells": [
            {
                "cell": CELL.hash,
                "call": details(ENTRY).call.model_dump(mode="json"),
                "warmupCalls": 10,
                "warmupMilliseconds": 300,
                "measureMilliseconds": 9000,
            }
        ],
        "phasesMilliseconds": {Phase.MEASURE: 9000},
        "provenance": {"torch": "2.8.0"},
    }
    status = _status(FullReport.model_validate(older))
    assert (status["warmupCalls"], status["rounds"], status["caveats"]) == (10, 1, [])
    assert status["latency"]["call"]["p95"]["valueMicroseconds"] == 5000
    assert not {"correctness", "noise", "histogram", "processP95Microseconds"} & status.keys()


def test_the_largest_result_is_small() -> None:
    """Whatever the contract lets in can be stored, and takes at most 256 KiB however its letters are written."""
    entry = largest(CellMeasured, cell=CELL.hash)
    told = largest(FullReport, cells=[largest(CellDetails, cell=CELL.hash)])
    of = benchmark()
    attempt = attempt_of(of, [CELL.hash], pod=ended(report(entry)), full_report=told)
    manifest = results.result(of, CELL, entry, attempt, NOW)
    stored = ResultStatus.model_validate(manifest["status"])
    assert len(stored.caveats) == len(Caveat)
    assert len(stored.provenance) == 64
    assert stored.histogram
    assert len(stored.histogram) == 8192
    assert ResultSpec.model_validate(manifest["spec"]).cell == CELL.hash
    assert len(json.dumps(manifest, separators=(",", ":"))) <= LARGEST_RESULT
