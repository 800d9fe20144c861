"""Measuring things side by side: in turns, so that a machine's moods fall on all of them, and compared pair by pair."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from cluster.bench.figures import significant

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as much the first of each pair is as the second, over all pairs."""

    middle: float
    """The median."""
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        """The spread in words."""
        if self.pairs == 1:
            return "1 pair"
        return f"{significant(self.low, 4)} to {significant(self.high, 4)} in {self.pairs} pairs"


def ratio(pairs: Iterable[tuple[float, float]]) -> Ratio:
    """Compare pairs of positive numbers."""
    found = [first / second for first, second in pairs]
    return Ratio(median(found), min(found), max(found), len(found))


def in_turns(works: Sequence[Callable[[], _T]], times: int) -> list[list[_T]]:
    """Do each work so many times, in the order A B, B A, A B and so on.

    Returns:
        For each work its results, so that results with the same index were made next to each other.
    """
    found: list[list[_T]] = [[] for _ in works]
    for number in range(times):
        order = list(zip(works, found, strict=True))
        for work, results in reversed(order) if number % 2 else order:
            results.append(work())
    return found
