"""What is kept of earlier runs, in the benchmark and in each result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from inferbench_operator.core import results
from inferbench_operator.core.facts import Result
from inferbench_operator.kube import parse
from inferbench_operator.kube.kinds import BENCHMARK
from operator_testing.builders import (
    IMAGE,
    NOW,
    attempt_of,
    benchmark,
    cells_of,
    ended,
    measured,
    report,
    result_of,
    spec,
    spec_json,
)
from operator_testing.cluster import Ending, Outcome, figure_of
from operator_testing.server import Json
from operator_testing.world import NAME, Act, Script, World, play

EVERY = 200.0
"""Seconds between two requests for another run, each of which takes half a minute."""


def _rerun(token: str) -> Act:
    annotations = {"inferbench.dev/rerun": token}
    return lambda world: world.server.change(
        BENCHMARK, NAME, lambda raw: raw["metadata"].update(annotations=annotations)
    )


def _world(runs: int, *, keep: int | None = None, outcomes: Sequence[Outcome] = (), every: float = EVERY) -> World:
    """Play a benchmark of one cell on inf2.xlarge that runs so many times."""
    fields: Json = {} if keep is None else {"history": {"runs": keep}}
    wanted = spec_json(
        accelerators=[{"name": "inf2", "instanceTypes": ["inf2.xlarge"]}],
        execution={"retries": 0, "ttlSecondsAfterFinished": 5},
        **fields,
    )
    acts = [(every * number, _rerun(str(number))) for number in range(1, runs)]
    return play(Script(wanted, acts=acts, outcomes=outcomes))


def test_a_run_that_is_over_is_remembered_when_the_next_one_starts() -> None:
    """With how it ended, how long it took and what it cost; the latest first, the present one not among them."""
    world = _world(3, outcomes=[Outcome(), Outcome(Ending.SEGFAULT)])
    second, first = world.status["history"]
    assert (first["trigger"], first["reason"], first["total"], first["succeeded"]) == ("Created", "RunSucceeded", 1, 1)
    assert (second["trigger"], second["reason"], second["succeeded"], second["failed"]) == (
        "Rerun",
        "CellsFailed",
        0,
        1,
    )
    cell = world.status["results"][0]["cell"]
    assert first["slowestP95Microseconds"] == figure_of(cell)
    assert "slowestP95Microseconds" not in second
    # Ten seconds for the shape and three to start, in whole seconds, at the price of inf2.xlarge.
    assert float(first["spentUSD"]) == pytest.approx(13 * 0.7582 / 3600, abs=0.0005)
    assert first["startTime"] < first["completionTime"] < second["startTime"]
    assert world.status["run"]["id"] not in {first["id"], second["id"]}


def test_a_run_that_was_cut_short_by_the_next_one_has_no_end() -> None:
    """It was superseded."""
    world = _world(2, every=8.0)
    assert [(past["reason"], "completionTime" in past) for past in world.status["history"]] == [("Superseded", False)]


def test_a_run_ended_as_it_did_whatever_was_refused_since() -> None:
    """A mistake in the specification says nothing about the run before it."""

    def set_lengths(*lengths: int) -> Act:
        return lambda world: world.server.change(
            BENCHMARK, NAME, lambda raw: raw["spec"].update(sequenceLengths=list(lengths), exclude=[])
        )

    def exclude_all(world: World) -> None:
        world.server.change(BENCHMARK, NAME, lambda raw: raw["spec"].update(exclude=[{}]))

    acts: list[tuple[float, Act]] = [(200.0, exclude_all), (300.0, set_lengths(8, 16))]
    world = play(Script(spec_json(execution={"ttlSecondsAfterFinished": 5}), acts=acts))
    assert [(past["reason"], past["succeeded"]) for past in world.status["history"]] == [("RunSucceeded", 1)]


@pytest.mark.parametrize(("keep", "left"), [(None, 5), (2, 2), (0, 0)])
def test_no_more_is_kept_than_is_asked_for(keep: int | None, left: int) -> None:
    """Ten by default; of both runs and measurements."""
    world = _world(6, keep=keep)
    assert len(world.status.get("history", [])) == left
    (result,) = world.results.values()
    assert len(result["status"].get("history", [])) == left


def test_a_result_keeps_the_earlier_figures() -> None:
    """As they were told then, the latest first."""
    of = benchmark(spec(history={"runs": 2}))
    cell = cells_of(spec(history={"runs": 2}))[0]
    stored = result_of(of, cell, run="0000000a", p95=5000)
    for number, p95 in enumerate((4000, 3000, 2000)):
        figures = measured(cell.hash, p95)
        attempt = attempt_of(of, run=f"0000000{number}", pod=ended(report(figures)))
        finished = NOW + timedelta(hours=number)
        stored = _stored(results.result(of, cell, figures, attempt, finished, earlier=stored))
    assert json.loads(stored.history) == [
        {
            "run": f"0000000{number}",
            "completionTime": f"2026-01-05T1{2 + number}:00:00Z",
            "verdict": "Valid",
            "samples": 1000,
            "p95Microseconds": p95,
            "p95LowMicroseconds": p95 - 50,
            "p95HighMicroseconds": p95 + 50,
            "runnerImage": IMAGE,
            "p50Microseconds": p95 - 1000,
            "p99Microseconds": p95 + 100,
            "inferencesPerSecond": "240.5",
        }
        for number, p95 in ((1, 3000), (0, 4000))
    ]


@pytest.mark.parametrize("history", [[{"run": "of another version"}], "none", [1], {"a": 1}])
def test_a_history_that_nobody_can_read_is_left_behind(history: Any) -> None:  # noqa: ANN401 - any JSON value
    """A figure must not be lost for it."""
    of = benchmark()
    cell = cells_of(spec())[0]
    figures = measured(cell.hash)
    manifest = results.result(of, cell, figures, attempt_of(of, pod=ended(report(figures))), NOW)
    manifest["status"]["history"] = history
    again = results.result(
        of, cell, figures, attempt_of(of, pod=ended(report(figures))), NOW, earlier=_stored(manifest)
    )
    assert [entry["p95Microseconds"] for entry in again["status"]["history"]] == [5000]


def _stored(manifest: Json) -> Result:
    """Return a manifest as the operator reads it again."""
    found = parse.result({**manifest, "metadata": manifest["metadata"] | {"uid": "1", "resourceVersion": "1"}})
    assert found
    return found
