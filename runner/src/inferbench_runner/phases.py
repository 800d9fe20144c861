"""Times each phase and gives its failures the phase's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from inferbench_runner.clock import now_ns, to_milliseconds
from inferbench_runner.contract import Phase
from inferbench_runner.errors import PhaseFailedError


@dataclass
class Phases:
    """Wall time by phase, summed over all shapes; a phase that was never entered is absent, not zero."""

    now: Callable[[], int] = now_ns
    _spent_ns: dict[Phase, int] = field(default_factory=dict)

    @contextmanager
    def step(self, phase: Phase) -> Iterator[None]:
        """Time the block, and raise `PhaseFailedError` from any exception in it.

        A stop request (`SystemExit`, `KeyboardInterrupt`) passes through: it is no failure of the phase.
        """
        start = self.now()
        try:
            yield
        except Exception as error:
            raise PhaseFailedError(phase, error) from error
        finally:
            self._spent_ns[phase] = self._spent_ns.get(phase, 0) + self.now() - start

    def to_milliseconds(self) -> dict[Phase, int]:
        """Return the wall time of each phase that was entered, in order, in milliseconds."""
        return {phase: to_milliseconds(self._spent_ns[phase]) for phase in Phase if phase in self._spent_ns}
