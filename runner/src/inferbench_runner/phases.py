"""Times each phase and gives its failures the phase's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from inferbench_runner.clock import now_ns, to_milliseconds
from inferbench_runner.contract import Phase
from inferbench_runner.errors import PhaseFailedError


@dataclass
class Phases:
    """Wall time by phase, summed up; a phase that was never entered is absent, not zero."""

    now: Callable[[], int] = now_ns
    on_enter: Callable[[Phase], object] = lambda _: None
    """Told of each phase before it begins."""
    _spent_ns: dict[Phase, int] = field(default_factory=dict)

    @contextmanager
    def step(self, phase: Phase) -> Iterator[None]:
        """Time the block, and raise `PhaseFailedError` from any exception in it.

        A stop request (`SystemExit`, `KeyboardInterrupt`) passes through: it is no failure of the phase.
        """
        self.on_enter(phase)
        start = self.now()
        try:
            yield
        except Exception as error:
            raise PhaseFailedError(phase, error) from error
        finally:
            self.add({phase: self.now() - start})

    def add(self, spent_ns: Mapping[Phase, int]) -> None:
        """Add times that were taken elsewhere."""
        for phase, time in spent_ns.items():
            self._spent_ns[phase] = self._spent_ns.get(phase, 0) + time

    def take(self) -> dict[Phase, int]:
        """Return the times in nanoseconds, and start again from nothing."""
        taken, self._spent_ns = self._spent_ns, {}
        return taken

    def to_milliseconds(self) -> dict[Phase, int]:
        """Return the wall time of each phase that was entered, in order, in milliseconds."""
        return {phase: to_milliseconds(self._spent_ns[phase]) for phase in Phase if phase in self._spent_ns}
