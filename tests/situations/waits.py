"""What is waited for while a benchmark runs, before something else happens or in the place of it."""

from __future__ import annotations

from situations.history import BENCHMARKS, PODS, Json
from situations.scene import Wait, is_runner


def pod(state: str, attempt: int = 1) -> Wait:
    """Wait until a runner pod is unplaced, starting, running or ended."""
    return Wait(
        f"the pod of attempt {attempt} is {state}", PODS, lambda raw: is_runner(raw, attempt) and is_pod(raw, state)
    )


def is_pod(raw: Json, state: str) -> bool:
    """Whether a pod is unplaced, starting, running or ended."""
    status = raw["status"]
    container = (status.get("containerStatuses") or [{}])[0].get("state", {})
    scheduled: Json = next((found for found in status.get("conditions", []) if found["type"] == "PodScheduled"), {})
    return {
        "unplaced": scheduled.get("reason") == "Unschedulable",
        "starting": "waiting" in container,
        "running": "running" in container,
        "ended": status["phase"] in {"Succeeded", "Failed"},
    }[state]


def shows(
    state: str, reason: str = "", words: str = "", *, capacity: str = "", ready: str = "", attempt: int = 1
) -> Wait:
    """Wait until the status of the benchmark shows cells, and conditions, like these at the same time."""

    def holds(raw: Json) -> bool:
        status = raw["status"]
        cells = [
            entry
            for entry in status.get("results", [])
            if (entry["state"], entry.get("reason", ""), entry["attempts"]) == (state, reason, attempt)
            and words in entry.get("message", "")
        ]
        said = {found["type"]: (found["status"], found["reason"]) for found in status.get("conditions", [])}
        homely = not capacity or said.get("CapacityAvailable", ("",))[0] == capacity
        return bool(cells) and homely and (not ready or said.get("Ready") == ("False", ready))

    conditions = f"CapacityAvailable={capacity}, Ready={ready}"
    return Wait(f"cells of attempt {attempt} are {state} {reason} '{words}', {conditions}", BENCHMARKS, holds)


def condition(kind: str, status: str, reason: str, words: str = "") -> Wait:
    """Wait for a condition of the benchmark."""

    def holds(raw: Json) -> bool:
        return any(
            (found["type"], found["status"], found["reason"]) == (kind, status, reason) and words in found["message"]
            for found in raw["status"].get("conditions", [])
        )

    return Wait(f"{kind} is {status}, because {reason}: {words}", BENCHMARKS, holds)


def over(trigger: str) -> Wait:
    """Wait until a run that began for this reason is over."""

    def holds(raw: Json) -> bool:
        run = raw["status"].get("run", {})
        return run.get("trigger") == trigger and "completionTime" in run

    return Wait(f"a run is over that began because {trigger}", BENCHMARKS, holds)


def gone(kind: str, attempt: int = 1) -> Wait:
    """Wait until the Job, or the pod, of an attempt is gone."""
    return Wait(f"{kind} of attempt {attempt} are gone", kind, lambda raw: is_runner(raw, attempt), deleted=True)
