"""Plays rows of the table, and compares what the kubelet has said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final
from uuid import uuid4

from cluster.observing import PATIENCE_SECONDS, NeverHappenedError, eventually
from cluster.real.images import BUSYBOX_IMAGE
from situations.history import JOBS, PODS, Story, path_of
from tiers.rows import NODE, REGISTRY, Row
from tiers.sights import NAME, Sight, sight, steps
from tiers.stage import Stage, Tier

_LAST_WORD_SECONDS: Final = 40
_OBJECT: Final = "the-only-one"
"""Name of the pod, or of its Job; no word of a kubelet's."""


@contextmanager
def side_by_side(tier: Tier, rows: Iterable[Row]) -> Iterator[Mapping[str, Future[None]]]:
    """Play rows at the same time, as most of their time is waiting."""
    chosen = list(rows)
    with ThreadPoolExecutor(max_workers=max(len(chosen), 1)) as pool:
        yield {row.id: pool.submit(play, tier, row) for row in chosen}


def play(tier: Tier, row: Row) -> None:
    """Play a row in a namespace of its own."""
    namespace = tier.control_plane.create_namespace(f"tier-{uuid4().hex[:8]}")
    story = Story(tier.chronicle, namespace, PATIENCE_SECONDS)
    tier.expect(namespace, row.script)
    _create(tier, namespace, row)
    replacing = {namespace: "NAMESPACE", tier.registry: REGISTRY, tier.node: NODE}

    ends = [row.end] if row.or_end is None else [row.end, row.or_end]

    def seen() -> list[Sight]:
        return [sight(version.raw, replacing=replacing) for version in story.versions(PODS) if not version.deleted]

    try:
        pod = story.until("there is a pod", PODS, lambda _: True)["metadata"]["name"]
        if row.act:
            story.until(row.once, PODS, lambda raw: sight(raw, replacing=replacing).step == row.once)
            row.act(Stage(tier, namespace, pod))
        if row.gone:
            story.until("the pod is gone", PODS, lambda _: True, deleted=True)
        else:
            # In the end the two are compared once more, so that a difference is shown.
            with suppress(NeverHappenedError):
                eventually("all is said", lambda: seen()[-1], ends.__contains__, seconds=_LAST_WORD_SECONDS)
    finally:
        said = seen()
        kind = JOBS if row.job is not None else PODS
        tier.chronicle.request("DELETE", path_of(kind, namespace))
    told = steps(said)
    assert said[-1] in ends, f"after {told}, said in the end:\n{said[-1]}\ninstead of:\n{row.end}"
    assert _sure(told, row) == [step for step in row.steps if step not in _possible(row)], told


def _possible(row: Row) -> set[str]:
    return {step for step in row.steps if step.startswith("[")}


def _sure(told: Iterable[str], row: Row) -> list[str]:
    return [step for step in told if f"[{step}]" not in _possible(row)]


def _create(tier: Tier, namespace: str, row: Row) -> None:
    container: dict[str, Any] = {"name": NAME, "image": BUSYBOX_IMAGE, **row.container}
    container["image"] = container["image"].replace(REGISTRY, tier.registry)
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 5,
        "containers": [container],
        **row.pod,
    }
    if spec.get("nodeName"):
        spec["nodeName"] = tier.node
    manifest: dict[str, Any] = {"metadata": {"name": _OBJECT}, "spec": spec}
    kind = PODS
    if row.job is not None:
        manifest = {"metadata": {"name": _OBJECT}, "spec": {"backoffLimit": 0, "template": {"spec": spec}, **row.job}}
        kind = JOBS
    tier.chronicle.request("POST", path_of(kind, namespace), manifest)
