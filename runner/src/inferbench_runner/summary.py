"""Turns a shape's rounds into figures. Pure: samples in, numbers out, nothing measured, nothing dropped.

All times are nanoseconds. Percentiles and their intervals come from `interval`; doubts about them from `caveats`.
"""

from __future__ import annotations

import json
import operator
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import ceil, floor, log, sqrt
from typing import Final
from zlib import compress

import numpy as np
from numpy.typing import NDArray

from inferbench_runner.adaptive import P95, Progress
from inferbench_runner.contract import MIN_SAMPLES_FOR_P95
from inferbench_runner.interval import Ordered, Percentile, Samples, blocks, cut, disagree, widened
from inferbench_runner.measure import Series, Warmup
from inferbench_runner.noise import Counters
from inferbench_runner.usage import Usage

PERCENTILES: Final = (50, 90, 95, 99)

CERTAIN: Final = 3.29
"""Standard deviations beyond which a trend is no chance: 1 in 1,000."""

HISTOGRAM_CHARACTERS: Final = 8192
"""Longest histogram that the contract takes."""

MOST_POINTS: Final = 500
"""Points whose pairs are looked at for a trend: more rounds than that are taken together."""

NEAR: Final = 2.5
"""Standard errors around the p95's level within which a gap between two modes makes it jump."""

GAP_SHARE: Final = 1 / 3
"""Part of the values near the p95 that one empty stretch must take to count as a gap between two modes."""

GAP_SIZE: Final = 0.05
"""Smallest such stretch, over the p95."""

HIGHEST_LEVEL: Final = 0.99
"""Beyond it a few stalls lie far apart from each other, which makes no second mode."""


@dataclass(frozen=True)
class Round:
    """One window of one shape in one process."""

    process: int
    begun_ns: int
    series: Series
    end_to_end: Sequence[int] = ()
    settling: int = 0
    """Untimed calls before the first sample."""
    counters: Counters = field(default_factory=Counters)
    usage: Usage | None = None
    """What the device did meanwhile; None for a processor."""


@dataclass(frozen=True)
class Distribution:
    """The distribution of one kind of latency."""

    count: int
    mean: int
    minimum: int
    p50: Percentile
    p90: Percentile
    p95: Percentile
    p99: Percentile
    maximum: int
    interpolated_p95: int

    @classmethod
    def of(
        cls,
        processes: Sequence[Sequence[Samples]],
        lengths: Sequence[Sequence[int]],
        error: float,
        *,
        interpolated: bool = False,
    ) -> Distribution:
        """Summarise the rounds of processes, cut into blocks of so many rounds each.

        Interpolated percentiles, between two samples, are those of numpy's default.
        """
        ordered = Ordered.from_blocks(blocks(processes, lengths))
        values = ordered.values
        found = [widened(ordered.percentile(percent, error), processes, percent) for percent in PERCENTILES]
        lines = [round(float(line)) for line in np.percentile(values, PERCENTILES)]
        if interpolated:
            found = [replace(one, value=line) for one, line in zip(found, lines, strict=True)]
        return cls(
            count=len(values),
            mean=round(float(values.mean())),
            minimum=int(values[0]),
            p50=found[0],
            p90=found[1],
            p95=found[2],
            p99=found[3],
            maximum=int(values[-1]),
            interpolated_p95=lines[PERCENTILES.index(P95)],
        )


@dataclass(frozen=True)
class Figures:
    """All that is known about one shape."""

    call: Distribution
    end_to_end: Distribution | None
    device: Distribution | None
    service: Distribution | None
    queue: Distribution | None
    blocks: int
    """Blocks behind the interval of the call's p95."""
    rounds: int
    process_p95: tuple[int, ...]
    processes_disagree: bool
    round_spread: float
    """Standard deviation of the rounds' medians over the median."""
    drift: float
    """Change of the latency from the first round to the last over its median, where it is no chance; else 0."""
    gap: float
    """Size of the gap between two modes at the p95 over the p95; 0 without one."""
    calls_per_second: float
    in_flight: float
    """Throughput times mean service time: the mean number of calls that were being served."""
    achieved: float | None
    """Rate reached over the rate asked for; None in a closed loop."""
    warmup_calls: int
    warmup_ns: int
    warmups_settled: bool
    first_ns: int | None
    measured_ns: int
    counters: Counters
    usage: Usage | None
    """What the device did; None for a processor."""
    histogram: str | None
    """Of the call latencies, compressed."""


def figures(
    progress: Progress, rounds: Sequence[Round], warmups: Sequence[Warmup], *, interpolated: bool = False
) -> Figures:
    """Return the figures of a shape that has at least one round."""
    lengths = cut(progress.processes)
    ordered = Ordered.from_blocks(blocks(progress.processes, lengths))
    error = progress.error

    def distribution(samples_of: Callable[[Round], Sequence[int]]) -> Distribution | None:
        groups = [
            [as_samples(samples_of(one)) for one in rounds if one.process == process]
            for process in sorted({one.process for one in rounds})
        ]
        if not any(len(samples) for group in groups for samples in group):
            return None
        return Distribution.of(groups, lengths, error)

    call = Distribution.of(progress.processes, lengths, error, interpolated=interpolated)
    service = distribution(lambda one: one.series.service)
    elapsed_ns = max(sum(one.series.elapsed_ns for one in rounds), 1)
    return Figures(
        call=call,
        end_to_end=distribution(lambda one: one.end_to_end),
        device=distribution(lambda one: one.series.device),
        service=service,
        queue=distribution(lambda one: one.series.queue) if service else None,
        blocks=len(ordered.sizes),
        rounds=len(rounds),
        process_p95=tuple(_p95(process) for process in progress.processes if process),
        processes_disagree=disagree(progress.processes, P95),
        round_spread=_spread(rounds),
        drift=drift([one.begun_ns for one in rounds], [_median(one) for one in rounds]),
        gap=gap_at_p95(ordered, call.p95),
        calls_per_second=sum(one.series.completed for one in rounds) * 1e9 / elapsed_ns,
        in_flight=sum(one.series.busy_ns for one in rounds) / elapsed_ns,
        achieved=achieved_rate(rounds) if service else None,
        warmup_calls=sum(one.calls for one in warmups) + sum(one.settling for one in rounds),
        warmup_ns=sum(one.elapsed_ns for one in warmups),
        warmups_settled=all(one.settled for one in warmups),
        first_ns=warmups[0].first_ns if warmups else None,
        measured_ns=sum(one.series.elapsed_ns for one in rounds),
        counters=sum((one.counters for one in rounds), Counters()),
        usage=_usage(rounds),
        histogram=histogram(ordered.values),
    )


def drift(times: Sequence[int], medians: Sequence[float]) -> float:
    """Return the change from the first time to the last over the median, or 0 where it may be chance.

    Size by the median of all pairwise slopes: Sen, "Estimates of the Regression Coefficient Based on Kendall's Tau",
    Journal of the American Statistical Association 63 (1968); significance by the Mann-Kendall test.
    """
    if len(medians) > MOST_POINTS:
        parts = np.array_split(np.arange(len(medians)), MOST_POINTS)
        times = [times[part[len(part) // 2]] for part in parts]
        medians = [float(np.median([medians[index] for index in part])) for part in parts]
    count = len(medians)
    first, second = np.triu_indices(count, 1)
    if not len(first):
        return 0.0
    when, what = np.asarray(times, float), np.asarray(medians, float)
    rise = what[second] - what[first]
    score = abs(float(np.sign(rise).sum())) - 1
    if score <= CERTAIN * sqrt(count * (count - 1) * (2 * count + 5) / 18):
        return 0.0
    slope = float(np.median(rise / np.maximum(when[second] - when[first], 1)))
    return slope * float(when[-1] - when[0]) / float(np.median(what))


def gap_at_p95(ordered: Ordered, p95: Percentile) -> float:
    """Return the size of a gap between two modes that the p95 can't be told to lie below or above; 0 without one."""
    count = len(ordered.values)
    if count < MIN_SAMPLES_FOR_P95 or p95.low is None:
        return 0.0
    level = P95 / 100
    near = NEAR * sqrt(level * (1 - level) / p95.effective)
    first, last = floor((level - near) * count), ceil(min(level + near, HIGHEST_LEVEL) * count)
    values = ordered.values[first:last]
    largest = int(np.diff(values).max(initial=0))
    stretch = int(values[-1] - values[0])
    wide = largest >= GAP_SHARE * stretch and largest >= GAP_SIZE * p95.value
    return largest / p95.value if wide and p95.value else 0.0


def achieved_rate(rounds: Sequence[Round]) -> float:
    """Return the rate of real starts over the rate of intended ones: 1 unless the calls fall more and more behind.

    Taken from the slope of real against intended starts, by least squares within the rounds: a queue that is long but
    does not grow leaves it at 1. Calls that were due and never made count as well.
    """
    together = spread = 0.0
    for one in rounds:
        asked = np.asarray(one.series.asked_ns[: len(one.series.calls)], float)
        if len(asked) > 1:
            began = asked + as_samples(one.series.queue)
            asked -= asked.mean()
            together += float(asked @ (began - began.mean()))
            spread += float(asked @ asked)
    kept = min(spread / together, 1.0) if together > 0 else 1.0
    called, due = (
        sum(map(len, parts)) for parts in zip(*((r.series.calls, r.series.asked_ns) for r in rounds), strict=True)
    )
    return min(kept, called / max(due, 1))


def as_samples(numbers: Sequence[int]) -> Samples:
    """Return the numbers as an array, without a copy where they are one already."""
    return np.asarray(numbers, dtype=np.int64)


def _usage(rounds: Sequence[Round]) -> Usage | None:
    spans = [one.usage for one in rounds if one.usage]
    return reduce(operator.add, spans) if spans else None


def _p95(rounds: Sequence[Samples]) -> int:
    return Ordered.from_blocks(rounds).percentile(P95).value


def _median(one: Round) -> float:
    return float(np.median(as_samples(one.series.calls)))


def _spread(rounds: Sequence[Round]) -> float:
    medians: NDArray[np.float64] = np.array([_median(one) for one in rounds])
    return float(medians.std(ddof=1) / np.median(medians)) if len(medians) > 1 else 0.0


def histogram(values: Samples) -> str | None:
    """Return the latencies as counts in buckets 1 % wide: base64 of zlib of JSON pairs [bucket, count].

    Bucket k holds [1.01^k, 1.01^(k+1)) nanoseconds, so that histograms of different runs can be added up. None where
    latencies are so scattered, over ten decades or more, that they don't fit into a report.
    """
    buckets, counts = np.unique(np.floor(np.log(np.maximum(values, 1)) / log(1.01)).astype(int), return_counts=True)
    pairs = [[int(bucket), int(count)] for bucket, count in zip(buckets, counts, strict=True)]
    text = b64encode(compress(json.dumps(pairs, separators=(",", ":")).encode(), 9)).decode()
    return text if len(text) <= HISTOGRAM_CHARACTERS else None
