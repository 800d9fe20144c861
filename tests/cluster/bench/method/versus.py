"""Time to a result, and the result itself, beside two peers: all of them take as many samples of the same model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Final

from cluster.bench.figures import Figure, significant
from cluster.bench.method.pairs import in_turns, ratio
from cluster.bench.method.peers import NotInstalledError, Peers
from cluster.bench.method.settings import Settings
from cluster.bench.method.tools import Leg, Pace, Place, ToolFailedError, Work, by_hand, optimum, ours, pyperf
from cluster.bench.running import TooFewProcessorsError, processors

_AIM: Final = 1
_UNABLE: Final = (NotInstalledError, ToolFailedError, TooFewProcessorsError)


def versus_optimum(where: Place, settings: Settings, peers: Peers) -> Iterator[Figure]:
    """Compare with optimum-benchmark, whose p50 is compared with a hand-written loop's in its own environment."""
    name = "optimum-benchmark"
    try:
        python = peers.optimum()
        for length, samples in settings.optimum_samples.items():
            work = Work(length, samples, settings.peer_threads)
            peer = partial(optimum, where, work, python)
            hand, mine, theirs, hand_there = _turns(
                where, work, settings.peer_pairs, peer, partial(by_hand, where, work, python=python)
            )
            yield _time(name, work, mine, theirs)
            yield _p50(f"runner, beside {name}:", work, mine, hand)
            yield _p50(f"{name} with transformers 4:", work, theirs, hand_there)
    except _UNABLE as error:
        yield _missing(name, error)


def versus_pyperf(where: Place, settings: Settings, peers: Peers) -> Iterator[Figure]:
    """Compare with pyperf, with as many processes; each of them loads the model."""
    name = "pyperf"
    try:
        packages = peers.pyperf()
        for length, samples in settings.pyperf_samples.items():
            work = Work(length, samples, settings.peer_threads, settings.pyperf_processes)
            peer = partial(pyperf, where, work, packages)
            hand, mine, theirs = _turns(where, work, settings.peer_pairs, peer)
            yield _time(name, work, mine, theirs)
            yield _p50(f"runner, beside {name}:", work, mine, hand)
            yield _p50(f"{name}:", work, theirs, hand)
    except _UNABLE as error:
        yield _missing(name, error)


def _turns(where: Place, work: Work, times: int, *others: Callable[[], Leg]) -> list[list[Leg]]:
    """Let the loop written by hand, our runner and the others take turns; return the legs of each."""
    pace = Pace()
    works = (lambda: pace.of(by_hand(where, work)), lambda: ours(where, work, pace.ms), *others)
    with processors(work.threads):
        return in_turns(works, times)


def _time(name: str, work: Work, mine: Sequence[Leg], theirs: Sequence[Leg]) -> Figure:
    found = ratio((first.seconds, second.seconds) for first, second in zip(mine, theirs, strict=True))
    seconds = [significant(median(leg.seconds for leg in legs)) for legs in (mine, theirs)]
    samples = [f"{median(leg.samples for leg in legs):.0f}" for legs in (mine, theirs)]
    detail = f"{found}; medians {seconds[0]} and {seconds[1]} s for {samples[0]} and {samples[1]} samples, {_how(work)}"
    return Figure(f"runner's time to a result over {name}'s, length {work.length}", found.middle, "x", _AIM, detail)


def _p50(name: str, work: Work, tool: Sequence[Leg], hand: Sequence[Leg]) -> Figure:
    found = ratio((first.p50_ms, second.p50_ms) for first, second in zip(tool, hand, strict=True))
    ms = [significant(median(leg.p50_ms for leg in legs)) for legs in (tool, hand)]
    detail = f"{found}; medians {ms[0]} and {ms[1]} ms, {_how(work)}"
    return Figure(f"{name} p50 over a hand-written loop's, length {work.length}", found.middle, "x", None, detail)


def _how(work: Work) -> str:
    processes = f", {work.processes} processes" if work.processes > 1 else ""
    return f"{work.threads} threads{processes}"


def _missing(name: str, error: Exception) -> Figure:
    return Figure(f"runner's time to a result over {name}'s", None, "x", _AIM, f"not measured: {error}")
