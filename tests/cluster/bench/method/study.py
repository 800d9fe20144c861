"""How much of a runner's time is spent in timed calls, over the whole published study on this machine's processors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml

from cluster.bench.figures import Figure, significant
from cluster.bench.method.settings import Settings
from cluster.bench.running import run_plan
from inferbench_operator.core.matrix import expand, group
from inferbench_operator.models.benchmark import BenchmarkSpec
from inferbench_runner.contract import AcceleratorKind, Device, FullReport, Measurement, ModelRef, Phase, Plan, Weights

STUDY: Final = Path(__file__).parents[4] / "crds" / "examples" / "published-study.yaml"
_FLOOR: Final = 85
_MICROSECONDS: Final = 1_000_000


@dataclass
class _Total:
    """What was spent, in seconds."""

    wall: float = 0.0
    timed: float = 0.0
    phases: Counter[Phase] = field(default_factory=Counter)
    """In milliseconds."""

    def figure(self, name: str, detail: str = "", floor: float | None = None) -> Figure:
        """Return the share of the time that is spent in timed calls, with what the rest of it went into."""
        named = sum(self.phases.values()) / 1000
        spent = ", ".join(f"{phase} {significant(ms / 1000)}" for phase, ms in self.phases.items())
        told = f"{significant(self.timed)} of {significant(self.wall)} s; {spent}, the rest {self.wall - named:.1f} s"
        return Figure(
            name, 100 * self.timed / self.wall, "%", None, f"{told}; {detail}" if detail else told, floor=floor
        )


def study(folder: Path, settings: Settings) -> Iterator[Figure]:
    """Measure one plan for each model, and sum up."""
    total = _Total()
    for name, plan in plans(settings):
        ran = run_plan(plan, folder)
        one = _Total(ran.seconds, timed_seconds(ran.full), Counter(ran.full.phases_milliseconds))
        total.wall, total.timed = total.wall + one.wall, total.timed + one.timed
        total.phases += one.phases
        yield one.figure(f"share of the time in timed calls, {name}")
    yield total.figure("share of the time in timed calls, whole study", _settings(settings.study), _FLOOR)


def plans(settings: Settings) -> list[tuple[str, Plan]]:
    """Return the study's plans for its CPU nodes, by name of the model, with random weights."""
    spec = BenchmarkSpec.model_validate(yaml.safe_load(STUDY.read_text(encoding="utf-8"))["spec"])
    cells = [cell for cell in expand(spec) if cell.accelerator.kind is AcceleratorKind.CPU]
    found = []
    for part in group(cells):
        model = part.cells[0].model
        if settings.study_models and model.name not in settings.study_models:
            continue
        plan = Plan(
            model=ModelRef(id=model.id, task=model.task, weights=Weights.RANDOM),
            device=Device(kind=AcceleratorKind.CPU),
            shapes=tuple(cell.shape for cell in part.cells),
            measurement=settings.study,
        )
        found.append((model.name, plan))
    return found


def timed_seconds(report: FullReport) -> float:
    """Return the time in windows of timed calls: those of the samples, and the calls from text or image to label."""
    windows = sum(cell.measure_milliseconds for cell in report.cells) / 1000
    ends = (cell.end_to_end for cell in report.cells if cell.end_to_end)
    return windows + sum(end.samples * end.mean_microseconds for end in ends) / _MICROSECONDS


def _settings(measurement: Measurement) -> str:
    return (
        f"a cell takes {measurement.min_samples} samples and {measurement.min_seconds} s at least, until its p95 is "
        f"known to {measurement.target_half_width_percent} % or {measurement.max_seconds} s are over, in "
        f"{measurement.processes} process{'es' if measurement.processes > 1 else ''}"
    )
