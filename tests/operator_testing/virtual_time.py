"""An event loop whose clock jumps to the next timer instead of waiting for it: an hour passes in a millisecond."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

EPOCH: Final = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
"""What the calendar says when the loop starts."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop for code that waits only for timers and for other code in the same loop."""

    def __init__(self) -> None:
        """Start at zero seconds."""
        self.seconds = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Return the virtual seconds since the start."""
        return self.seconds


class _JumpingSelector(selectors.BaseSelector):
    """Moves the clock where a real selector would wait."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._real = selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            message = "no timer is set and nothing is ready: this would wait for ever"
            raise AssertionError(message)
        if timeout > 0:
            self._loop.seconds += timeout
        return self._real.select(0)

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:  # noqa: ANN401
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:  # noqa: ANN401 - the base class's signature
        return self._real.unregister(fileobj)

    def close(self) -> None:
        self._real.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()


def now() -> datetime:
    """Return the virtual calendar time of the running loop."""
    return EPOCH + timedelta(seconds=asyncio.get_running_loop().time())


class VirtualCalendar(datetime):
    """Stands in for `datetime` in a module that asks it for the time."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]  # noqa: ANN401 - a plain time is as good
        """Return the virtual time."""
        assert tz is UTC
        return now()
