"""The runner's percentiles over those of a loop written by hand, which makes its calls between the runner's rounds.

A machine that others use as well changes by a tenth within a minute, which is ten times what is asked about. So both
are there at the same time: next to each round that the runner's supervisor asks of a measuring process, the loop, in a
process of its own, makes as many calls of the same length, in turn before it and after it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median, quantiles
from typing import Final

from cluster.bench.figures import Figure, percentile, significant
from cluster.bench.method.pairs import ratio
from cluster.bench.method.settings import Settings
from cluster.bench.method.tools import MODEL_TASK, SCRIPTS, Place, ToolFailedError, Work, environment
from cluster.bench.running import Ended, TooFewProcessorsError, processors
from inferbench_runner.adaptive import Progress
from inferbench_runner.child import Child, Servant
from inferbench_runner.contract import (
    AcceleratorKind,
    Device,
    FullReport,
    Measurement,
    ModelRef,
    Phase,
    Plan,
    Shape,
)
from inferbench_runner.outlet import Outlet
from inferbench_runner.run import Run
from inferbench_runner.summary import Round
from inferbench_runner.worker import Command, Measure, OpenBackend, Reply

_AIM: Final = (0.99, 1.01)
_HOUR: Final = 3600
_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Turn:
    """A round of the runner and the loop's calls next to it."""

    process: int
    mine: Sequence[int]
    """Latencies in nanoseconds."""
    hand: Sequence[int]


def loop(where: Place, settings: Settings) -> Iterator[Figure]:
    """Compare them at each length with each number of threads."""
    for threads in settings.loop_threads:
        for length, samples in settings.loop_samples.items():
            work = Work(length, samples, threads, settings.loop_processes)
            try:
                with processors(threads):
                    turns = take_turns(where, work)
            except TooFewProcessorsError as error:
                name = f"runner's p50 and p95 over a hand-written loop's, {threads} threads"
                yield Figure(name, None, "x", detail=f"not measured: {error}")
                break
            yield from figures(turns, work)


def take_turns(where: Place, work: Work) -> list[Turn]:
    """Run the runner's own supervisor with its own measuring processes, and the loop beside each of them."""
    turns: list[Turn] = []
    plan = Plan(
        model=ModelRef(id=str(where.model), task=MODEL_TASK),
        device=Device(kind=AcceleratorKind.CPU),
        shapes=(Shape(cell="0" * 10, sequence_length=work.length),),
        measurement=Measurement(
            min_samples=work.samples,
            min_seconds=0,
            max_seconds=_HOUR,
            target_half_width_percent=100,
            processes=work.processes,
        ),
    )

    def start(plan: Plan, open_backend: OpenBackend) -> Servant:
        return Rivals(Child(plan, open_backend), Hand(where, work), turns)

    run = Run(plan, _Quiet(where.folder / "turns", may_create=True, say=lambda _: None), start=start)
    # So many pairs are wanted and no interval, for which a noisy machine would need many more.
    design = replace(run.design, target=float("inf"))
    for cell in run.cells:
        cell.progress = Progress(design)
    run.carry_out()
    return turns


def figures(turns: Sequence[Turn], work: Work) -> Iterator[Figure]:
    """Yield both ratios: of the medians round by round, of the p95 process by process."""
    title = f"over a hand-written loop's, length {work.length}, {work.threads} thread{'s' if work.threads > 1 else ''}"
    rounds = [median(turn.mine) / median(turn.hand) for turn in turns]
    low, middle, high = quantiles(rounds, n=4)
    detail = f"middle half of {len(rounds)} pairs of rounds {low:.3f} to {high:.3f}; {_medians(turns, 50)}"
    yield _figure(f"runner's p50 {title}", middle, detail)
    processes = [[turn for turn in turns if turn.process == number] for number in {turn.process for turn in turns}]
    found = ratio((_of(each, 95, _mine), _of(each, 95, _hand)) for each in processes)
    detail = f"{found}; {_medians(turns, 95)}"
    yield _figure(f"runner's p95 {title}", found.middle, detail)


def _medians(turns: Sequence[Turn], percent: int) -> str:
    mine, hand = (_of(turns, percent, side) / _NS_PER_MS for side in (_mine, _hand))
    count = sum(len(turn.mine) for turn in turns)
    return f"p{percent} {significant(mine, 4)} and {significant(hand, 4)} ms over all {count} samples of each"


def _of(turns: Sequence[Turn], percent: int, side: Callable[[Turn], Sequence[int]]) -> float:
    return percentile(sorted(latency for turn in turns for latency in side(turn)), percent)


def _mine(turn: Turn) -> Sequence[int]:
    return turn.mine


def _hand(turn: Turn) -> Sequence[int]:
    return turn.hand


def _figure(name: str, value: float, detail: str) -> Figure:
    return Figure(name, value, "x", _AIM[1], detail, floor=_AIM[0], digits=4)


class _Quiet(Outlet):
    """Keeps the report's line out of the bench's own output."""

    def deliver(self, report: FullReport) -> None:
        """Leave it."""


class Hand:
    """The loop written by hand, waiting for its turns."""

    def __init__(self, where: Place, work: Work) -> None:
        """Start it; it ends when its input does, so with us in any case."""
        self._log = where.folder / "hand.log"
        numbers = (str(number) for number in (work.length, work.threads))
        command = [sys.executable, str(SCRIPTS / "hand_turns.py"), str(where.model), *numbers]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=where.folder,
                env=environment(work),
                text=True,
            )

    def turn(self, calls: int) -> list[int]:
        """Return the latencies of so many calls."""
        process = self._process
        if process.stdin is None or process.stdout is None:
            msg = "the loop was started without pipes"
            raise RuntimeError(msg)
        try:
            process.stdin.write(f"{calls}\n")
            process.stdin.flush()
            latencies: list[int] = json.loads(process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError) as error:
            name, words = "the loop written by hand", self._log.read_text(encoding="utf-8", errors="replace")
            raise ToolFailedError(name, Ended(process.wait(), 0, words)) from error
        return latencies

    def close(self) -> None:
        """Let it end."""
        self._process.communicate()


@dataclass
class Rivals:
    """A measuring process and the loop beside it, which take turns."""

    child: Servant
    hand: Hand
    turns: list[Turn] = field(default_factory=list)
    _number: int = 0

    def ask(self, command: Command, seconds: float, on_phase: Callable[[Phase], object]) -> Reply:
        """Let the process do what it is told; next to a round the loop makes as many calls."""
        if not isinstance(command, Measure):
            return self.child.ask(command, seconds, on_phase)
        calls = command.quota.calls
        self._number += 1
        before = self.hand.turn(calls) if self._number % 2 else None
        reply = self.child.ask(command, seconds, on_phase)
        after = before or self.hand.turn(calls)
        if isinstance(reply.value, Round):
            self.turns.append(Turn(command.process, list(reply.value.series.calls), after))
        return reply

    def close(self) -> None:
        """Let both go."""
        self.hand.close()
        self.child.close()

    def kill(self) -> None:
        """End both."""
        self.hand.close()
        self.child.kill()
