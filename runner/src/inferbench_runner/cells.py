"""What is known about each shape of a plan while it is measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferbench_runner.adaptive import Progress
from inferbench_runner.backends.base import Rows
from inferbench_runner.caveats import Circumstances
from inferbench_runner.contract import CellFailed, Compilation, Correctness, Measurement, Profile, Shape
from inferbench_runner.measure import Warmup
from inferbench_runner.report import Measured
from inferbench_runner.summary import Round, figures


@dataclass
class Cell:
    """One shape of the plan, its rounds so far, and what came of it."""

    index: int
    shape: Shape
    progress: Progress
    rounds: list[Round] = field(default_factory=list)
    warmups: list[Warmup] = field(default_factory=list)
    right: Rows | None = None
    """What its outputs are compared with, once a process has computed it."""
    correctness: Correctness | None = None
    compilation: Compilation | None = None
    """By the first process that measured the shape."""
    failed: CellFailed | None = None
    shares: int = 0
    """Processes' shares that are over."""
    finished: int = 0
    """Those of them that were finished."""
    measured: Measured | None = None
    """As of the last report."""
    slowest_ns: int = 0
    """Longest time that verifying took: no call takes longer."""

    @property
    def samples(self) -> int:
        """Samples so far."""
        return sum(len(one.series.calls) for one in self.rounds)

    def is_unfinished(self, share: int) -> bool:
        """Whether this share of the cell is still to be measured."""
        return not self.failed and self.shares <= share

    def summarise(self, measurement: Measurement, *, interleaved: bool, step_ns: int) -> None:
        """Bring the figures up to date, if there are any."""
        if not self.rounds or self.failed:
            return
        found = figures(
            self.progress,
            self.rounds,
            self.warmups,
            interpolated=measurement.profile is Profile.LEGACY_2023,
        )
        circumstances = Circumstances(measurement, self.finished, interleaved, step_ns)
        self.measured = Measured.from_figures(self.shape, found, circumstances, self.correctness, self.compilation)
