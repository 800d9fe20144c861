"""Who may start how many Jobs where the operator has a limit over all benchmarks: first come, first served."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from inferbench_operator.kube.parse import Key

_LAST: Final = datetime.max.replace(tzinfo=UTC)


@dataclass
class Turns:
    """The benchmarks that wait for a place, in the order in which their runs started, and the places being taken."""

    limit: int | None
    _waiting: dict[Key, tuple[datetime, int]] = field(default_factory=dict)
    _taking: dict[Key, int] = field(default_factory=dict)
    """Jobs that passes are about to create, and that the cache does not know yet."""

    def slots(self, key: Key, started: datetime | None, active: int) -> int | None:
        """Return how many Jobs a benchmark may start whose run started at that time, beside so many of all."""
        if self.limit is None:
            return None
        mine = (started or _LAST, key.namespace, key.name)
        earlier = sum(
            count
            for other, (since, count) in self._waiting.items()
            if other != key and (since, other.namespace, other.name) < mine
        )
        return max(self.limit - active - sum(self._taking.values()) - earlier, 0)

    def take(self, key: Key, started: datetime | None, *, creates: int, held: int) -> None:
        """Note what a decision is about to create, and for how many Jobs it found no place."""
        if self.limit is None:
            return
        self._taking[key] = creates
        self._waiting.pop(key, None)
        if held:
            self._waiting[key] = (started or _LAST, held)

    def done(self, key: Key) -> None:
        """Forget what was about to be created: the cache knows it now, or it failed."""
        self._taking.pop(key, None)

    def forget(self, key: Key) -> None:
        """Let nobody wait for a benchmark that is gone, or whose pass failed."""
        self._waiting.pop(key, None)

    def next(self, active: int) -> list[Key]:
        """Return who should look again because there are free places, the first of them first."""
        if self.limit is None or active + sum(self._taking.values()) >= self.limit:
            return []
        return sorted(self._waiting, key=lambda key: (self._waiting[key][0], key.namespace, key.name))
