"""What a kubelet says of a pod, without the names, numbers and times that differ from one pod to the next. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

Json = Mapping[str, Any]

NAME: Final = "work"
"""Of each pod's container."""

_TIMES: Final = ("startedAt", "finishedAt")
_EPOCH: Final = "1970-01-01T00:00:00Z"
_PATTERNS: Final = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:]+(\.\d+)?Z"), "TIME"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "UID"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "ID"),
    (re.compile(r"used: \d+, capacity: \d+"), "used: N, capacity: N"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """One version of a pod's status."""

    phase: str
    deleting: bool = False
    reason: str = ""
    message: str = ""
    container: Json | None = None
    """State of the only container, as in the object, but for times, of which only an unset one is told from others."""
    known: bool = False
    """Whether the container has an id."""
    ready: bool = False
    restarts: int = 0
    conditions: Mapping[str, str] = field(default_factory=dict)
    """Status, reason and message by type."""

    def but(self, **fields: Any) -> Self:  # noqa: ANN401 - any of its own fields
        """Return the same with other values of some fields."""
        return replace(self, **fields)

    @property
    def step(self) -> str:
        """What of it has to come in an order, in words."""
        state = ""
        for kind, found in (self.container or {}).items():
            state = " ".join(str(word) for word in (kind, found.get("reason", ""), found.get("exitCode", "")))
        words = f"{self.phase} {self.reason} {state}".split()
        return " ".join([*(["deleted:"] if self.deleting else []), *words])


def sight(raw: Json, *, replacing: Mapping[str, str]) -> Sight:
    """Return what is said of a pod; `replacing` are texts that differ from play to play, and what stands for them."""
    status = raw.get("status", {})
    names = {**replacing, raw["metadata"]["name"]: "POD"}

    def plain(text: str) -> str:
        for found, stand_in in names.items():
            text = text.replace(found, stand_in)
        for pattern, stand_in in _PATTERNS:
            text = pattern.sub(stand_in, text)
        return text

    (container,) = status.get("containerStatuses") or [{}]
    return Sight(
        phase=status["phase"],
        deleting="deletionTimestamp" in raw["metadata"],
        reason=status.get("reason", ""),
        message=plain(status.get("message", "")),
        container={kind: _state(found, plain) for kind, found in container["state"].items()} if container else None,
        known=bool(container.get("containerID")),
        ready=container.get("ready", False),
        restarts=container.get("restartCount", 0),
        conditions={
            found["type"]: f"{found['status']} {found.get('reason', '')} {plain(found.get('message', ''))}".strip()
            for found in status.get("conditions", [])
        },
    )


def steps(sights: Iterable[Sight]) -> list[str]:
    """Return what came after what; what is said again, as of an image that is tried again, counts once."""
    return list(dict.fromkeys(seen.step for seen in sights))


def _state(found: Json, plain: Callable[[str], str]) -> Json:
    times = {key: "never" if found[key] in {None, _EPOCH} else "then" for key in _TIMES if key in found}
    return {
        **{
            key: plain(value) if isinstance(value, str) else value
            for key, value in found.items()
            if key != "containerID"
        },
        **times,
    }
