"""The runner's percentiles over those of a loop written by hand, in fresh processes that take turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Final

from cluster.bench.figures import Figure, significant
from cluster.bench.method.pairs import in_turns, ratio
from cluster.bench.method.settings import Settings
from cluster.bench.method.tools import Leg, Pace, Place, Work, by_hand, ours
from cluster.bench.running import TooFewProcessorsError, processors

_AIM: Final = (0.99, 1.01)


def loop(where: Place, settings: Settings) -> Iterator[Figure]:
    """Compare them at each length with each number of threads."""
    for threads in settings.loop_threads:
        for length, samples in settings.loop_samples.items():
            yield from _compare(where, Work(length, samples, threads), settings.loop_pairs)


def _compare(where: Place, work: Work, pairs: int) -> Iterator[Figure]:
    title = f"over a hand-written loop's, length {work.length}, {work.threads} thread{'s' if work.threads > 1 else ''}"
    pace = Pace()
    try:
        with processors(work.threads):
            hand, mine = in_turns(
                [lambda: pace.of(by_hand(where, work)), lambda: ours(where, work, pace.ms)],
                pairs,
            )
    except TooFewProcessorsError as error:
        yield Figure(f"runner's p50 and p95 {title}", None, "x", detail=f"not measured: {error}")
        return
    yield _figure(f"runner's p50 {title}", mine, hand, lambda leg: leg.p50_ms)
    yield _figure(f"runner's p95 {title}", mine, hand, lambda leg: leg.p95_ms)


def _figure(name: str, mine: Sequence[Leg], hand: Sequence[Leg], of: Callable[[Leg], float]) -> Figure:
    first, second = ([of(leg) for leg in legs] for legs in (mine, hand))
    found = ratio(zip(first, second, strict=True))
    detail = (
        f"{found}; medians {significant(median(first))} and {significant(median(second))} ms, "
        f"{median(leg.samples for leg in mine):.0f} and {median(leg.samples for leg in hand):.0f} samples a process"
    )
    return Figure(name, found.middle, "x", _AIM[1], detail, floor=_AIM[0], digits=4)
