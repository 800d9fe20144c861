"""The tools that are compared, each as one command that times a model: ours, a loop written by hand, and two peers."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Final

from cluster.bench.figures import percentile
from cluster.bench.running import Ended, RunnerFailedError, Watch, run, run_plan
from cluster.errors import ClusterError
from inferbench_runner.catalogue import known_configuration
from inferbench_runner.child import ALLOCATOR
from inferbench_runner.contract import AcceleratorKind, Device, Measurement, ModelRef, Plan, Shape

MODEL: Final = "google-bert/bert-base-uncased"
MODEL_TASK: Final = "text-classification"
SCRIPTS: Final = Path(__file__).with_name("scripts")
_CELL: Final = "0000000000"
_SLACK: Final = 1.05
"""Time over what the samples take at the pace of the loop, so that there are hardly fewer of them."""
_MS: Final = 1000


class ToolFailedError(ClusterError):
    """A program that is not ours, or a script beside this module, did not do its work."""

    def __init__(self, name: str, ended: Ended) -> None:
        """Say how it ended, and its last words."""
        words = ended.output.strip().splitlines()[-5:]
        super().__init__(f"{name} ended with {ended.code} and without a result: {' | '.join(words)}")


@dataclass(frozen=True, slots=True)
class Leg:
    """What a tool said, and how long it took to say it."""

    seconds: float
    """From the start of its process to the end."""
    samples: int
    p50_ms: float
    p95_ms: float


@dataclass(frozen=True, slots=True)
class Work:
    """What a tool is to measure: one model at one length, batch size 1."""

    length: int
    samples: int
    threads: int
    """As many processors as the tool may use at the time."""
    processes: int = 1


@dataclass
class Pace:
    """How long a call took in the loop written by hand, the last time that it ran."""

    ms: float = 0.0

    def of(self, leg: Leg) -> Leg:
        """Take it from a leg of the loop, which is returned."""
        self.ms = leg.p50_ms
        return leg


@dataclass(frozen=True, slots=True)
class Place:
    """A folder in which tools run, and the model there: all of them load the same files."""

    folder: Path

    @property
    def model(self) -> Path:
        """The folder of the model."""
        return self.folder / "model"


def save_model(where: Place, layers: int) -> None:
    """Put the model where it belongs, bert-base with so many layers and random weights, if it is not there yet."""
    if where.model.exists():
        return
    configuration = known_configuration(MODEL) | {"num_hidden_layers": layers}
    script = SCRIPTS / "save_model.py"
    ended = run([sys.executable, str(script), str(where.model), json.dumps(configuration)], where.folder)
    if ended.code:
        shutil.rmtree(where.model, ignore_errors=True)
        raise ToolFailedError(script.name, ended)


def ours(where: Place, work: Work, pace_ms: float, watch: Watch | None = None) -> Leg:
    """Run our runner for about as long as the samples take at this pace.

    It can't be told to take so many and no more: it goes on until its p95 has an interval, or its time is up.
    """
    plan = Plan(
        model=ModelRef(id=str(where.model), task=MODEL_TASK),
        device=Device(kind=AcceleratorKind.CPU),
        shapes=(Shape(cell=_CELL, sequence_length=work.length),),
        measurement=Measurement(
            min_samples=work.samples,
            min_seconds=0,
            max_seconds=ceil(_SLACK * work.samples * pace_ms / _MS),
            target_half_width_percent=100,
            processes=work.processes,
        ),
    )
    ran = run_plan(plan, where.folder, watch=watch)
    if (threads := ran.full.provenance.get("threads")) != str(work.threads):
        raise RunnerFailedError(0, f"It used {threads} threads instead of {work.threads}.")
    cell = ran.compact.measured[0]
    return Leg(ran.seconds, cell.samples, cell.p50_microseconds / _MS, cell.p95_microseconds / _MS)


def by_hand(where: Place, work: Work, *, python: str = sys.executable, watch: Watch | None = None) -> Leg:
    """Run the loop written by hand, in our environment or in another one."""
    numbers = (str(number) for number in (work.length, work.samples, work.threads))
    command = [python, str(SCRIPTS / "hand_loop.py"), str(where.model), *numbers]
    ended = run(command, where.folder, environment=environment(work), watch=watch)
    return _told("the loop written by hand", ended)


def optimum(where: Place, work: Work, python: str) -> Leg:
    """Run optimum-benchmark with its default launcher, in its own environment."""
    command = [python, str(SCRIPTS / "with_optimum.py"), str(where.model), str(work.length), str(work.samples)]
    return _told("optimum-benchmark", run(command, where.folder, environment=environment(work)))


def pyperf(where: Place, work: Work, packages: Path) -> Leg:
    """Run pyperf, which lies in a folder of its own, in our environment: with the same libraries as ours."""
    name, results = "pyperf", where.folder / "pyperf.json"
    results.unlink(missing_ok=True)
    options = {
        "processes": work.processes,
        "values": ceil(work.samples / work.processes),
        "loops": 1,
        "warmups": 10,
        "output": results,
    }
    command = [sys.executable, str(SCRIPTS / "with_pyperf.py")]
    command += [f"--{option}={value}" for option, value in options.items()]
    command += [str(where.model), str(work.length), str(work.threads)]
    ended = run(command, where.folder, environment=environment(work) | {"PYTHONPATH": str(packages)})
    if ended.code or not results.is_file():
        raise ToolFailedError(name, ended)
    values = sorted(pyperf_values(results.read_text(encoding="utf-8")))
    return Leg(ended.seconds, len(values), percentile(values, 50) * _MS, percentile(values, 95) * _MS)


def pyperf_values(document: str) -> Sequence[float]:
    """Return all values of pyperf's file of results, in seconds; calibrating runs have none."""
    runs = json.loads(document)["benchmarks"][0]["runs"]
    return [float(value) for one in runs for value in one.get("values", ())]


def last_object(output: str) -> dict[str, float] | None:
    """Return the last JSON object without inner ones that a program has printed; None where there is none."""
    start = output.rfind("{")
    end = output.find("}", start) + 1
    if start < 0 or not end:
        return None
    try:
        found: dict[str, float] = json.loads(output[start:end])
    except json.JSONDecodeError:
        return None
    return found


def _told(name: str, ended: Ended) -> Leg:
    found = last_object(ended.output)
    if ended.code or found is None:
        raise ToolFailedError(name, ended)
    return Leg(ended.seconds, round(found["samples"]), found["p50_ms"], found["p95_ms"])


def environment(work: Work) -> dict[str, str]:
    """Return an environment in which nothing is downloaded and this project is not to be found.

    Memory is given out as in the runner's measuring processes, whatever was called before.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return kept | ALLOCATOR | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(work.threads)}
