"""A queue of keys that holds each key once, hands a key to one worker at a time, and can wait.

The same rules as client-go's work queue: a key that is added while it is being worked on is handed out again
afterwards; a key that failed comes back after a delay that doubles with every failure in a row.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from inferbench_operator.kube import metrics
from inferbench_operator.kube.parse import Key

_FIRST_DELAY: Final = 0.2
_LONGEST_DELAY: Final = 60.0


class WorkQueue:
    """Keys of benchmarks that need a pass."""

    def __init__(self) -> None:
        """Start empty."""
        self._ready: deque[Key] = deque()
        self._waiting_for_worker: set[Key] = set()
        self._in_work: set[Key] = set()
        self._again: set[Key] = set()
        self._later: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._filled = asyncio.Event()

    def add(self, key: Key) -> None:
        """Ask for a pass over the key, now."""
        if timer := self._later.pop(key, None):
            timer.cancel()
        if key in self._in_work:
            self._again.add(key)
        elif key not in self._waiting_for_worker:
            self._waiting_for_worker.add(key)
            self._ready.append(key)
            self._filled.set()
        metrics.queue_length(len(self._ready))

    def add_later(self, key: Key, seconds: float) -> None:
        """Ask for a pass over the key in `seconds`, unless an earlier one is due anyway."""
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        timer = self._later.get(key)
        if timer and timer.when() <= due:
            return
        if timer:
            timer.cancel()
        self._later[key] = loop.call_at(due, self.add, key)

    def failed(self, key: Key) -> None:
        """Ask for a pass over a key whose last pass failed: later with every failure in a row."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self.add_later(key, min(_FIRST_DELAY * 2**failures, _LONGEST_DELAY))

    def succeeded(self, key: Key) -> None:
        """Forget earlier failures of a key."""
        self._failures.pop(key, None)

    async def get(self) -> Key:
        """Wait for a key; `done` must follow."""
        while not self._ready:
            self._filled.clear()
            await self._filled.wait()
        key = self._ready.popleft()
        self._waiting_for_worker.discard(key)
        self._in_work.add(key)
        metrics.queue_length(len(self._ready))
        return key

    def done(self, key: Key) -> None:
        """Give back a key after its pass."""
        self._in_work.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)
