"""Plays a row of the table and compares what has become of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from typing import Any
from uuid import uuid4

from cluster import FOREVER, ControlPlane, Exits, NodeAgent, Outcome, Pod, Script
from cluster.operator_process import OperatorProcess
from e2e_harness import benchmark
from situations.history import BENCHMARKS, JOBS, PODS, RESULTS, Chronicle, Json, Story, path_of
from situations.rows import Row
from situations.rules import GOOD, broken_rules, is_over
from situations.scene import RIVAL, STUDY, Scene, Wait, is_runner


@dataclass(frozen=True, slots=True)
class Stage:
    """The cluster on which all rows are played, and the operator."""

    control_plane: ControlPlane
    agent: NodeAgent
    operator: OperatorProcess
    chronicle: Chronicle
    kills: bool
    """Whether the operator is killed in each row that is played, and started again."""

    def play(self, row: Row) -> None:
        """Play a row in a namespace of its own."""
        namespace = f"situation-{uuid4().hex[:8]}"
        story = Story(self.chronicle, namespace, row.patience_seconds)
        scene = Scene(self.control_plane, self.agent, self.operator, self.chronicle, namespace, story)
        scene.open()
        self.agent.script(_script(row, namespace))
        try:
            self._play(row, scene)
        except Exception as error:
            error.add_note(story.told())
            raise
        finally:
            scene.close()

    def _play(self, row: Row, scene: Scene) -> None:
        for name, node in row.nodes.items():
            scene.add_node(name, node)
        for act in row.before:
            act(scene)
        _apply(row, scene)
        if self.kills and not row.is_killed_before_acts:
            scene.wait(Wait("the operator has begun", BENCHMARKS, _has_begun))
            self._kill_while(lambda: None)
        for step in row.meanwhile:
            if isinstance(step, Wait):
                scene.wait(step)
            elif self.kills and row.is_killed_before_acts:
                self._kill_while(partial(step, scene))
            else:
                step(scene)
        _compare(row, scene)

    def _kill_while(self, act: Callable[[], object]) -> None:
        self.operator.kill()
        try:
            act()
        finally:
            self.operator.start()


def _script(row: Row, namespace: str) -> Script:
    outcomes = chain(row.pods, repeat(None))

    def outcome_of(pod: Pod) -> Outcome | None:
        if pod.namespace != namespace:
            return None
        is_ours = "inferbench.dev/benchmark" in pod.labels
        return next(outcomes) if is_ours else Exits(run_seconds=FOREVER)

    return outcome_of


def _apply(row: Row, scene: Scene) -> None:
    for name in (STUDY, RIVAL) if row.rival else (STUDY,):
        manifest = benchmark(name, **row.spec, execution=dict(row.execution))
        scene.chronicle.request("POST", path_of(BENCHMARKS, scene.namespace), manifest)


def _compare(row: Row, scene: Scene) -> None:
    story = scene.story
    for name in (STUDY, RIVAL) if row.rival else (STUDY,):
        scene.wait(Wait(f"{name} is over", BENCHMARKS, partial(_is_over, name)))
        raw = scene.chronicle.request("GET", path_of(BENCHMARKS, scene.namespace, name))
        _compare_status(row, raw["status"])
        results = [found for found in scene.listed(RESULTS) if found["spec"]["benchmark"] == name]
        assert len(results) == sum(cells.count for cells in row.end if cells.state in GOOD)
    story.catch_up()
    broken = broken_rules(story)
    assert not broken, "\n".join(broken)
    made = {version.uid for version in story.versions(JOBS)}
    assert row.jobs in {None, len(made)}, f"{len(made)} Jobs"
    assert row.at_once is None or _at_once(story) <= row.at_once, f"{_at_once(story)} Jobs at once"
    for version in story.versions(PODS):
        if is_runner(version.raw):
            limits = version.raw["spec"]["containers"][0]["resources"].get("limits", {})
            assert row.asks.items() <= limits.items()


def _has_begun(raw: Json) -> bool:
    return is_over(raw) or any(entry["state"] != "pending" for entry in raw["status"].get("results", []))


def _is_over(name: str, raw: Json) -> bool:
    return raw["metadata"]["name"] == name and is_over(raw)


def _compare_status(row: Row, status: Json) -> None:
    found = Counter(
        (
            entry["state"],
            entry.get("reason", ""),
            entry["attempts"],
            entry.get("disruptions", 0),
            entry.get("stops", 0),
        )
        for entry in status.get("results", [])
    )
    wanted = {
        (cells.state, cells.reason, cells.attempts, cells.disruptions, cells.stops): cells.count for cells in row.end
    }
    assert found == wanted, status.get("results")
    for cells in row.end:
        for entry in status["results"]:
            if (entry["state"], entry.get("reason", "")) == (cells.state, cells.reason):
                assert all(words in entry.get("message", "") for words in cells.words), entry
    conditions = {said["type"]: (said["status"], said["reason"]) for said in status["conditions"]}
    assert conditions == _conditions(row), status["conditions"]


def _conditions(row: Row) -> dict[str, tuple[str, str]]:
    if not row.end:
        return dict(row.conditions)
    states = {cells.state for cells in row.end}
    wanted: dict[str, Any] = {"Accepted": ("True", "Accepted")}
    if row.capacity:
        wanted["CapacityAvailable"] = (row.capacity, "PodsScheduled" if row.capacity == "True" else "Unschedulable")
    if states <= GOOD:
        wanted |= {"Ready": ("True", "RunSucceeded"), "Succeeded": ("True", "RunSucceeded")}
    else:
        reason = "Cancelled" if "skipped" in states else "CellsFailed"
        wanted |= {"Stalled": ("True", reason), "Ready": ("False", reason), "Succeeded": ("False", reason)}
    return wanted | dict(row.conditions)


def _at_once(story: Story) -> int:
    """Return the largest number of Jobs at the same time whose pods had not ended."""
    going: set[str] = set()
    ended: set[str] = set()
    most = 0
    for version in sorted([*story.versions(JOBS), *story.versions(PODS)], key=lambda version: version.revision):
        status, owner = version.raw["status"], version.uid
        if version.kind == PODS:
            owner = next((found["uid"] for found in version.raw["metadata"].get("ownerReferences", [])), "")
        if version.deleted or status.get("phase") in {"Succeeded", "Failed"}:
            ended.add(owner)
        elif version.kind == JOBS:
            going.add(owner)
        most = max(most, len(going - ended))
    return most
