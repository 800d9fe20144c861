"""Expands a specification into cells and groups them into plans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, product

from inferbench_operator.core.identity import cell_hash
from inferbench_operator.core.measured import Labels
from inferbench_operator.core.names import digest
from inferbench_operator.models.benchmark import (
    Accelerator,
    BenchmarkSpec,
    CellSelector,
    Model,
    Runner,
)
from inferbench_runner.contract import MAX_SHAPES, Precision, Shape

_VISION_TASKS = frozenset({"image-classification", "image-feature-extraction", "object-detection"})
_VISION_IDS = frozenset({"google/vit-base-patch16-224"})


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the matrix."""

    hash: str
    """First 10 hex digits of SHA-256 over everything in the specification that can change the cell's figures."""
    model: Model
    accelerator: Accelerator
    runner: Runner
    """The benchmark's runner settings with the accelerator's own over them."""
    precision: Precision
    sequence_length: int | None
    batch_size: int

    @property
    def shape(self) -> Shape:
        """The cell as the runner knows it."""
        return Shape(cell=self.hash, sequence_length=self.sequence_length, batch_size=self.batch_size)

    @property
    def labels(self) -> Labels:
        """What people call the cell."""
        return Labels(self.model.name, self.accelerator.name, self.precision, self.sequence_length, self.batch_size)

    @property
    def title(self) -> str:
        """The cell in words, for messages."""
        return self.labels.title


@dataclass(frozen=True, slots=True)
class PlanGroup:
    """Cells that one pod measures: same model, accelerator and precision, at most eight shapes."""

    hash: str
    cells: tuple[Cell, ...]


def expand(spec: BenchmarkSpec) -> tuple[Cell, ...]:
    """Return all cells of the matrix in the order of the specification, without the excluded and with the included."""
    matrix = (cell for cell in _product(spec) if not any(_matches(cell, pattern) for pattern in spec.exclude))
    unique: dict[tuple[str, str, str], Cell] = {}
    for cell in (*matrix, *_included(spec)):
        unique.setdefault((cell.hash, cell.model.name, cell.accelerator.name), cell)
    return tuple(unique.values())


def group(cells: Iterable[Cell]) -> tuple[PlanGroup, ...]:
    """Group cells into plans; stable for the same cells, whatever has been measured of them."""
    ordered = sorted(cells, key=lambda cell: (cell.model.name, cell.accelerator.name, cell.precision))
    return tuple(
        PlanGroup(hash=digest([cell.hash for cell in part], 10), cells=part)
        for _, same in groupby(ordered, key=lambda cell: (cell.model.name, cell.accelerator.name, cell.precision))
        for part in _parts(tuple(same))
    )


def spec_hash(cells: Iterable[Cell]) -> str:
    """Return the hash of the part of the specification that starts a new run when it changes: the set of cells."""
    return digest(sorted(cell.hash for cell in cells), 10)


def is_vision(model: Model) -> bool:
    """Whether the model takes images, so that sequence lengths mean nothing to it."""
    return model.task in _VISION_TASKS or model.id in _VISION_IDS


def _parts(cells: tuple[Cell, ...]) -> Iterator[tuple[Cell, ...]]:
    for start in range(0, len(cells), MAX_SHAPES):
        yield cells[start : start + MAX_SHAPES]


def _product(spec: BenchmarkSpec) -> Iterator[Cell]:
    for model, accelerator in product(spec.models, spec.accelerators):
        precisions = [accelerator.precision] if accelerator.precision else spec.precisions
        lengths = [None] if is_vision(model) else spec.sequence_lengths
        for precision, length, batch in product(precisions, lengths, spec.batch_sizes):
            yield _cell(spec, model, accelerator, precision, length, batch)


def _included(spec: BenchmarkSpec) -> Iterator[Cell]:
    models = {model.name: model for model in spec.models}
    accelerators = {accelerator.name: accelerator for accelerator in spec.accelerators}
    for extra in spec.include:
        model, accelerator = models[extra.model], accelerators[extra.accelerator]
        precision = extra.precision or accelerator.precision or Precision.FP32
        length = None if is_vision(model) else extra.sequence_length
        yield _cell(spec, model, accelerator, precision, length, extra.batch_size)


def _cell(
    spec: BenchmarkSpec,
    model: Model,
    accelerator: Accelerator,
    precision: Precision,
    sequence_length: int | None,
    batch_size: int,
) -> Cell:
    runner = merged(spec.runner, accelerator.runner)
    return Cell(
        hash=cell_hash(
            spec,
            model,
            accelerator,
            runner,
            precision=precision,
            sequence_length=sequence_length,
            batch_size=batch_size,
        ),
        model=model,
        accelerator=accelerator,
        runner=runner,
        precision=precision,
        sequence_length=sequence_length,
        batch_size=batch_size,
    )


def merged(base: Runner, override: Runner | None) -> Runner:
    """Return `base` with every field that `override` gives, be it to empty it."""
    if override is None:
        return base
    return base.model_copy(update={name: getattr(override, name) for name in override.model_fields_set})


def _matches(cell: Cell, pattern: CellSelector) -> bool:
    wanted = (
        (pattern.model, cell.model.name),
        (pattern.accelerator, cell.accelerator.name),
        (pattern.precision, cell.precision),
        (pattern.sequence_length, cell.sequence_length),
        (pattern.batch_size, cell.batch_size),
    )
    return all(value is None or value == found for value, found in wanted)
