"""An operator that hears of changes, and passes over its benchmark, when a test tells it to.

Cache, applier and decisions are the real ones; what it knows may be old, and it may die after any of its writes.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, TypeVar

from inferbench_operator.core.decide import Decision, decide
from inferbench_operator.core.facts import Observed
from inferbench_operator.kube.apply import Applier
from inferbench_operator.kube.cache import Cache
from inferbench_operator.kube.errors import KubernetesError
from inferbench_operator.kube.kinds import WATCHED, Kind
from inferbench_operator.kube.parse import Key
from operator_testing.builders import NAME, NAMESPACE, SETTINGS
from operator_testing.hand_cluster import Clock
from operator_testing.server import Crash, Fault, Faults, Json, Server, ServerClient

KEY: Final = Key(NAMESPACE, NAME)
_Answer = TypeVar("_Answer")


@dataclass(eq=False)
class HandOperator:
    """An operator that hears of changes, and passes over the benchmark, when it is told to."""

    server: Server
    clock: Clock
    check: Callable[[Observed, Decision, datetime], None]
    """Called with every decision."""
    wake_at: datetime | None = None
    """When it would look again by itself."""
    news: defaultdict[str, deque[tuple[Kind, str, Json]]] = field(default_factory=lambda: defaultdict(deque))
    """What it has not heard yet, by UID; of one object it hears in order."""
    heard: list[tuple[Kind, str, Json]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Watch the server, and live."""
        self.server.watchers.append(self._saw)
        self.restart()

    def restart(self) -> None:
        """Forget everything, and list what there is."""
        self._deaths: dict[int, Fault] = {}
        self._faults = Faults(self._deaths)
        self.cache = Cache()
        self._applier = Applier(ServerClient(self.server, self._faults), self.cache, SETTINGS)
        self.news.clear()
        self.heard.clear()
        self.list()

    def list(self) -> None:
        """List everything, as it does now and then in case a watch has missed something."""
        list_all(self.server, self.cache)
        self.wake_at = self.clock.now

    @property
    def rests(self) -> bool:
        """Whether there is nothing that it has not heard, and nothing that it wants to look at now."""
        return not self.news and (self.wake_at is None or self.wake_at > self.clock.now)

    def hear(self, uid: str) -> None:
        """Hear the next news of one object."""
        kind, event, raw = self.news[uid].popleft()
        self.heard.append((kind, event, raw))
        self._put(kind, event, raw)
        if not self.news[uid]:
            del self.news[uid]

    def hear_all(self) -> None:
        """Hear everything."""
        for uid in list(self.news):
            while uid in self.news:
                self.hear(uid)

    def hear_again(self, number: int) -> None:
        """Hear once more what it has heard already."""
        if self.heard:
            self._put(*self.heard[number % len(self.heard)])

    def view(self) -> Observed | None:
        """Return what it knows."""
        observed = self.cache.observe(KEY)
        if observed is None:
            return None
        refusals, blocked = self._applier.refusals(observed.benchmark), self._applier.blocked(KEY)
        return replace(observed, refusals=refusals, blocked=blocked)

    def will_die(self, writes: int) -> None:
        """Let it die after so many more writes."""
        self._deaths[self._faults.writes + writes] = Fault.DIES_AFTER

    def look(self) -> None:
        """Pass over the benchmark once."""
        observed, now = self.view(), self.clock.now
        self.wake_at = None
        if observed is None:
            return
        decision = decide(observed, now, SETTINGS)
        self.check(observed, decision, now)
        try:
            put_off = _answer(self._applier.apply(KEY, observed, decision, now))
        except Crash:
            self.restart()
        except KubernetesError:
            self.wake_at = now
        else:
            self.wake_at = min((time for time in (decision.look_again_at, put_off) if time), default=None)

    def _saw(self, kind: Kind, event: str, raw: Json) -> None:
        if kind in WATCHED:
            self.news[raw["metadata"]["uid"]].append((kind, event, raw))

    def _put(self, kind: Kind, event: str, raw: Json) -> None:
        uid = raw["metadata"]["uid"]
        if self.cache.remove(kind, KEY, uid) if event == "DELETED" else self.cache.put(kind, raw):
            self.wake_at = self.clock.now


def list_all(server: Server, cache: Cache) -> None:
    """Let a cache take in a listing of everything."""
    for kind in WATCHED:
        cache.replace_all(kind, server.all(kind), server.version, None)


def _answer(coroutine: Coroutine[Any, Any, _Answer]) -> _Answer:
    """Run a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        answer: _Answer = stop.value
        return answer
    message = "it waits for something"
    raise AssertionError(message)
