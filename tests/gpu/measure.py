"""Measures a BERT on a machine with a GPU, and prints what only such a machine can show.

    python tests/gpu/measure.py

First each execution in each precision: the call from host to host, the device's own time in it, its energy, and
whether it was slowed down. Then what it matters how a call is timed: synchronised, as the study of 2023 did it, and by
the device's own events. Nothing is downloaded: the weights are random. A line takes a few seconds, and one that is
compiled a minute: `--executions Eager CUDAGraphs` leaves those out. `--kind CPU` tries the script itself.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Final, Self

from inferbench_runner.adaptive import Quota
from inferbench_runner.clock import NS_PER_SECOND
from inferbench_runner.contract import Correctness, Plan
from inferbench_runner.summary import Round
from inferbench_runner.usage import Usage
from inferbench_runner.worker import Bind, Command, Compile, Failure, Measure, Prepare, Refer, Release, Warm, Worker

EXECUTIONS: Final = ("Eager", "Compile", "CUDAGraphs")
PRECISIONS: Final = ("fp32", "tf32", "bf16")
LENGTHS: Final = (8, 16, 32, 64, 128, 256, 512)
HEADER: Final = (
    f"{'execution':<11}{'precision':<10}{'tokens':>6}{'call µs':>10}{'device µs':>11}{'device':>8}{'mJ/call':>9}"
    f"{'MHz':>12}{'error':>10}  slowed by; neighbours and sharing"
)


@dataclass(frozen=True)
class Row:
    """One shape, measured in one way."""

    execution: str
    precision: str
    length: int
    round: Round
    correctness: Correctness

    @property
    def call(self) -> float:
        """Median call, in microseconds."""
        return median(self.round.series.calls) / 1000

    @property
    def device(self) -> float | None:
        """Median time of the device, in microseconds; None where it was not asked."""
        return median(self.round.series.device) / 1000 if self.round.series.device else None

    def __str__(self) -> str:
        """Return the line of the table."""
        usage, device, calls = self.round.usage or Usage(), self.device, len(self.round.series.calls)
        energy, low, high = usage.energy_millijoules, usage.lowest_megahertz, usage.highest_megahertz
        times = ("?", "?") if device is None else (f"{device:.1f}", f"{device / self.call:.0%}")
        joules = "?" if energy is None else f"{energy / calls:.1f}"
        clocks = "?" if low is None else f"{low}-{high}"
        slowed = " ".join(sorted(usage.throttled)) or ("nothing" if self.round.usage else "?")
        others = ["?" if usage.neighbours is None else str(usage.neighbours), *sorted(usage.sharing)]
        return (
            f"{self.execution:<11}{self.precision:<10}{self.length:>6}{self.call:>10.1f}{times[0]:>11}{times[1]:>8}"
            f"{joules:>9}{clocks:>12}{float(self.correctness.max_relative_error):>10.1e}  {slowed}; {' '.join(others)}"
        )


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    kind: str
    layers: int
    lengths: Sequence[int]
    seconds: float
    executions: Sequence[str]

    @classmethod
    def parse(cls) -> Self:
        """Read the command line."""
        parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
        parser.add_argument("--kind", default="NVIDIA", choices=["NVIDIA", "CPU"])
        parser.add_argument("--layers", type=int, default=12)
        parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
        parser.add_argument("--seconds", type=float, default=2.0, help="for each line of the table")
        parser.add_argument("--executions", nargs="+", default=EXECUTIONS, choices=EXECUTIONS)
        found = parser.parse_args()
        return cls(found.kind, found.layers, found.lengths, found.seconds, found.executions)

    def plan(self, execution: str, precision: str, profile: str) -> Plan:
        """Return the plan for one model."""
        shapes = [{"cell": f"{length:010x}", "sequenceLength": length, "batchSize": 1} for length in self.lengths]
        model = {"id": "bert-base-uncased", "weights": "Random", "config": {"num_hidden_layers": self.layers}}
        return Plan.model_validate(
            {
                "model": model,
                "device": {"kind": self.kind, "execution": execution},
                "precision": precision,
                "shapes": shapes,
                "measurement": {"profile": profile},
            }
        )


def measure(options: Options, execution: str, precision: str, profile: str = "Sound") -> Iterator[Row]:
    """Yield each length's row; what fails is told and left out."""
    worker = Worker(options.plan(execution, precision, profile))
    quota = Quota(100, round(options.seconds * NS_PER_SECOND), round(10 * options.seconds * NS_PER_SECOND))
    lengths = range(len(options.lengths))
    begin: list[Command] = [Prepare(), *(Refer(index) for index in lengths)]
    if any(failed(worker, command, f"{execution} {precision}") for command in begin):
        return
    for index in lengths:
        if failed(worker, Compile(index), f"{execution} {precision}"):
            continue
        correctness = worker.handle(Bind(index)).value
        if not isinstance(correctness, Correctness):
            say(f"{execution} {precision} {options.lengths[index]}: {getattr(correctness, 'sentence', correctness)}")
            continue
        worker.handle(Warm(index, quota))
        found = worker.handle(Measure(index, quota, 0, "")).value
        if isinstance(found, Round):
            yield Row(execution, precision, options.lengths[index], found, correctness)
        worker.handle(Release(index))
    worker.close()


def failed(worker: Worker, command: Command, what: str) -> bool:
    """Carry a command out; whether it failed, which is told."""
    value = worker.handle(command).value
    if isinstance(value, Failure):
        say(f"{what}: {value.reason} in {value.phase}: {value.sentence}")
    return isinstance(value, Failure)


def say(line: str = "") -> None:
    """Write a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Print both tables."""
    options = Options.parse()
    say(HEADER)
    sound: dict[int, Row] = {}
    for execution, precision in product(options.executions, PRECISIONS):
        for row in measure(options, execution, precision):
            say(str(row))
            if (execution, precision) == (EXECUTIONS[0], PRECISIONS[0]):
                sound[row.length] = row
    say()
    say(f"{'Eager fp32':<21}{'tokens':>6}{'synchronised µs':>17}{'as in 2023 µs':>15}{'events µs':>11}")
    for row in measure(options, EXECUTIONS[0], PRECISIONS[0], "Legacy2023"):
        other = sound.get(row.length)
        if other:
            events = "?" if other.device is None else f"{other.device:.1f}"
            say(f"{'':<21}{row.length:>6}{other.call:>17.1f}{row.call:>15.1f}{events:>11}")


if __name__ == "__main__":
    main()
