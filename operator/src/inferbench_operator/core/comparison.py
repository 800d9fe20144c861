"""Compares the accelerators of a finished run with each other: speed-ups over a baseline, and which cells are best.

A pair is two cells of the same model, precision, sequence length and batch size on two accelerators. What else has to
be equal for their ratio to speak of the hardware is in `COMPARED`; the rest of a result's provenance (drivers,
libraries, processors) is what differs between accelerators by nature.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import fsum, log
from typing import Final

from inferbench_operator.core.measured import Labels, Measured
from inferbench_operator.core.names import shortened
from inferbench_operator.core.ratio import Interval, geometric_mean, ratio
from inferbench_operator.models.gates import Compare, GateMetric
from inferbench_operator.models.status import MAX_COMPARISONS, Comparison
from inferbench_runner.contract import Precision, Verdict

PRECISION: Final = "precision"
COMPARED: Final = ("model", "modelCommit", "weights", "config", "modelClass", "task", "inputs", "profile", "load")
"""Fields of provenance that have to agree: the same network, fed and measured in the same way."""

_MESSAGE_LENGTH: Final = 320


def compare(rule: Compare, cells: Sequence[Measured]) -> list[Comparison]:
    """Return how each model on each accelerator and precision compares with the baseline, in the order of the cells."""
    usable = [cell for cell in cells if cell.verdict is not Verdict.INVALID and GateMetric.P95 in cell.figures]
    base: defaultdict[tuple[str, int | None, int], list[Measured]] = defaultdict(list)
    for cell in usable:
        if cell.labels.accelerator == rule.baseline:
            base[_shape(cell)].append(cell)
    groups: defaultdict[tuple[str, str, Precision], list[Measured]] = defaultdict(list)
    for cell in cells:
        if cell.labels.accelerator != rule.baseline:
            groups[cell.labels.model, cell.labels.accelerator, cell.labels.precision].append(cell)
    good = {id(cell) for cell in usable}
    listed = [
        _compared(rule, key, [cell for cell in group if id(cell) in good], base)
        for key, group in list(groups.items())[:MAX_COMPARISONS]
    ]
    if more := len(groups) - len(listed):
        message = shortened(
            f"{listed[-1].message} Comparisons that have no place here: {more}.".strip(), _MESSAGE_LENGTH
        )
        listed[-1] = listed[-1].model_copy(update={"message": message})
    return listed


def pareto(cells: Iterable[Measured]) -> frozenset[Labels]:
    """Return the cells that no other of the same model and length beats, in p95 and in cost per inference.

    Only where costs are known: without them the fastest cell would be all there is.
    """
    groups: defaultdict[tuple[str, int | None], list[tuple[float, float, Labels]]] = defaultdict(list)
    for cell in cells:
        latency, cost = cell.figures.get(GateMetric.P95), cell.figures.get(GateMetric.COST)
        if latency and cost and cell.verdict is not Verdict.INVALID:
            group = groups[cell.labels.model, cell.labels.sequence_length]
            group.append((latency.value, cost.value, cell.labels))
    best: set[Labels] = set()
    for group in groups.values():
        cheapest = float("inf")
        # By latency: whatever is cheaper than all that are faster is beaten by none.
        for _, usd, labels in sorted(group, key=lambda one: one[:2]):
            if usd < cheapest:
                best.add(labels)
                cheapest = usd
    return frozenset(best)


def _compared(
    rule: Compare,
    key: tuple[str, str, Precision],
    cells: Sequence[Measured],
    base: Mapping[tuple[str, int | None, int], Sequence[Measured]],
) -> Comparison:
    model, accelerator, precision = key
    pairs: list[tuple[Labels, Interval]] = []
    doubts: dict[str, int] = {}
    for cell in cells:
        other, doubt = _partner(rule, cell, base.get(_shape(cell), ()))
        if other is None:
            doubts[doubt] = doubts.get(doubt, 0) + 1
        else:
            pairs.append((cell.labels, ratio(other.figures[GateMetric.P95], cell.figures[GateMetric.P95])))
    if not cells:
        doubts["it has no figures that can be relied on"] = 0
    words = "; ".join(f"{doubt} (cells: {count})" if count else doubt for doubt, count in doubts.items())
    message = shortened(f"Not compared: {words}.", _MESSAGE_LENGTH) if doubts else ""
    found = Comparison(
        model=model, accelerator=accelerator, precision=precision, baseline=rule.baseline, message=message
    )
    if not pairs:
        return found
    ratios = [one for _, one in pairs]
    mean = geometric_mean(ratios)
    lengths = ((labels.sequence_length, one.value) for labels, one in pairs if labels.sequence_length)
    return found.model_copy(
        update={
            "cells": len(pairs),
            "speedup": _written(mean.value),
            "speedup_low": _written(mean.low),
            "speedup_high": _written(mean.high),
            "min_speedup": _written(min(one.value for one in ratios)),
            "max_speedup": _written(max(one.value for one in ratios)),
            "crossover_sequence_length": crossover(lengths),
        }
    )


def _shape(cell: Measured) -> tuple[str, int | None, int]:
    return cell.labels.model, cell.labels.sequence_length, cell.labels.batch_size


def _partner(rule: Compare, cell: Measured, like: Sequence[Measured]) -> tuple[Measured | None, str]:
    """Return which of the baseline's cells like it this one is compared with, or why none is."""
    equal = [other for other in like if other.labels.precision == cell.labels.precision]
    if not like:
        return None, f"{rule.baseline} has no such cell with figures"
    if not equal and (len(like) > 1 or PRECISION not in rule.ignore):
        found = " and ".join(sorted({other.labels.precision for other in like}))
        way = f"add {PRECISION} to compare.ignore" if len(like) == 1 else "give both the same precision"
        return (
            None,
            f"{PRECISION} is {cell.labels.precision}, and {found} on {rule.baseline}; {way} to compare all the same",
        )
    other = (equal or like)[0]
    for name in COMPARED:
        own, its = cell.circumstances.get(name), other.circumstances.get(name)
        if name not in rule.ignore and own and its and own != its:
            why = f"{name} is {shortened(own, 40)}, and {shortened(its, 40)} on {rule.baseline}"
            return None, f"{why}; add {name} to compare.ignore to compare all the same"
    return other, ""


def crossover(speedups: Iterable[tuple[int, float]]) -> int | None:
    """Return the shortest length from which on the other one of two is faster than at the shortest length.

    The speed-ups are given with their lengths; those of one length (several batch sizes) count by their geometric mean.
    """
    by_length: defaultdict[int, list[float]] = defaultdict(list)
    for length, speedup in speedups:
        by_length[length].append(log(speedup))
    faster = [(length, fsum(logs) / len(logs) > 0) for length, logs in sorted(by_length.items())]
    found = None
    for length, is_faster in reversed(faster):
        if is_faster == faster[0][1]:
            break
        found = length
    return found


def _written(value: float | None) -> str | None:
    return None if value is None else f"{value:.4f}"
