"""How long to measure: when a shape has enough samples, judged from the samples alone. Pure, without a clock.

Each of the plan's processes measures a shape in rounds. After its first rounds, and then after half as many each time,
a process looks: is the interval of the p95 narrow enough, with enough nearly independent blocks behind it? All
processes but the last only settle how many samples their own share takes: they aim at the width that would reach the
target if the rest did as well. The last one decides, and each of its looks spends a part of the error of 5 % that the
final interval may have, so that looking again and again doesn't make it too narrow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, sqrt
from typing import Final

from typing_extensions import Self

from inferbench_runner.clock import NS_PER_SECOND
from inferbench_runner.contract import LoadMode, Measurement, Profile
from inferbench_runner.interval import ERROR, Ordered, Percentile, Samples, pooled, widened

ROUNDS: Final = 60
"""Rounds over which the minima are spread: the more of them, the more of a slow host's moods a few samples see."""

MIN_BLOCKS: Final = 40
"""Fewest blocks behind an interval that is good enough to stop: with fewer, the width itself is a matter of chance."""

GROWTH: Final = 1.5
"""Length of the rounds after one look over that of those before, so that looks and rounds stay few."""

OPEN_LOOP_CALLS: Final = 400
"""Fewest arrivals of a round of an open loop, which starts with an empty queue that needs time to fill; its rounds are
fewer for it."""

LEGACY_CALLS: Final = 100
"""Samples of the published study."""

P95: Final = 95


@dataclass(frozen=True)
class Quota:
    """One round: calls and time to reach, and the time after which it ends in any case, in nanoseconds."""

    calls: int
    min_ns: int
    max_ns: int


@dataclass(frozen=True)
class Design:
    """How a shape's samples are spread, and when there are enough of them."""

    processes: int
    rounds: int
    """Rounds of each process before its first look."""
    quota: Quota
    share_ns: int
    """Longest time of one process for one shape."""
    min_samples: int
    target: float
    """Half the width of the p95's interval over the p95; infinite where the first look is the last."""

    @classmethod
    def from_measurement(cls, measurement: Measurement) -> Self:
        """Spread the plan's minima over its processes and their rounds."""
        longest = measurement.max_seconds * NS_PER_SECOND
        if measurement.profile is Profile.LEGACY_2023:
            return cls(1, 1, Quota(LEGACY_CALLS, 0, longest), longest, LEGACY_CALLS, float("inf"))
        processes = measurement.processes
        is_open = measurement.load.mode is LoadMode.OPEN
        rounds = ceil((MIN_BLOCKS if is_open else ROUNDS) / processes)
        parts = processes * rounds
        calls = max(ceil(measurement.min_samples / parts), OPEN_LOOP_CALLS if is_open else 1)
        quota = Quota(calls, ceil(measurement.min_seconds * NS_PER_SECOND / parts), max(longest // parts, 1))
        target = measurement.target_half_width_percent / 100
        return cls(processes, rounds, quota, longest // processes, measurement.min_samples, target)


@dataclass
class Progress:
    """One shape's call latencies so far, and whether it wants more of them."""

    design: Design
    processes: list[list[Samples]] = field(default_factory=list)
    """For each process that was started, its rounds in order."""
    error: float = ERROR / 2
    """Probability that the interval, taken now, misses: the part of 5 % that the present look may spend."""
    _share: int = -1
    _rounds: int = 0
    """Rounds of this share since its last look, or its beginning."""
    _stages: int = 0
    """Looks of this share."""
    _spent_ns: int = 0
    _looks: int = 0
    """Looks of the last share, of which each may be the one that ends the measuring."""
    _enough: bool = False

    def begin(self, share: int) -> None:
        """Start with the next process, which works on this share of the plan, counted from 0.

        A process that takes the place of one that died goes on with the same share.
        """
        self.processes.append([])
        if share != self._share:
            self._share, self._rounds, self._stages, self._spent_ns, self._enough = share, 0, 0, 0, False

    def wants_round(self) -> bool:
        """Whether the present process should measure another round."""
        return not self._enough and self._spent_ns < self.design.share_ns

    @property
    def quota(self) -> Quota:
        """The next round."""
        quota, growth = self.design.quota, GROWTH**self._stages
        return Quota(*(ceil(growth * part) for part in (quota.calls, quota.min_ns, quota.max_ns)))

    def add(self, samples: Samples, spent_ns: int) -> None:
        """Take in a round's latencies and the time that it took, in nanoseconds; look when it is time."""
        self.processes[-1].append(samples)
        self._rounds += 1
        self._spent_ns += spent_ns
        rounds = ceil(self.design.rounds / 2) if self._stages else self.design.rounds
        if self._rounds >= rounds:
            self._look()
            self._rounds, self._stages = 0, self._stages + 1

    def _look(self) -> None:
        last = self._share >= self.design.processes - 1
        if last:
            self._looks += 1
            # 1/2 + 1/6 + 1/12 + ... = 1: with any number of looks no more than the whole error is spent.
            self.error = ERROR / (self._looks * (self._looks + 1))
        done = min((self._share + 1) / self.design.processes, 1)
        ordered = self.ordered()
        enough = len(ordered.values) >= self.design.min_samples * done
        narrow = self._p95(ordered).half_width <= self.design.target / sqrt(done)
        self._enough = self.design.target == float("inf") or (
            enough and narrow and len(ordered.sizes) >= MIN_BLOCKS * done
        )

    def ordered(self) -> Ordered:
        """Return all samples in order, cut into blocks as long as their dependence."""
        return pooled(self.processes)

    def p95(self) -> Percentile:
        """Return the p95 with the interval that may be reported now."""
        return self._p95(self.ordered())

    def _p95(self, ordered: Ordered) -> Percentile:
        return widened(ordered.percentile(P95, self.error), self.processes, P95)
