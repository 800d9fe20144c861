"""What goes in: one plan for one runner."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, StringConstraints, model_validator
from typing_extensions import Self

from inferbench_runner.contract.base import MAX_SHAPES, MIN_ARRIVALS, CellHash, Contract
from inferbench_runner.contract.words import AcceleratorKind, Arrivals, Execution, LoadMode, Precision, Profile, Weights


class ModelRef(Contract):
    """The model to measure."""

    id: Annotated[str, StringConstraints(min_length=1, max_length=512)]
    """Hub id, or absolute path of a directory in the pod."""
    revision: Annotated[str, StringConstraints(max_length=128)] | None = None
    """Commit or tag on the hub; None means the default branch."""
    task: Annotated[str, StringConstraints(max_length=64)] | None = None
    """Pipeline task name; None means the architecture's own default."""
    weights: Weights = Weights.PRETRAINED
    config: dict[str, JsonValue] = Field(default_factory=dict)
    """Overrides of the model's configuration; with random weights only."""


class Device(Contract):
    """The device to measure on."""

    kind: AcceleratorKind
    execution: Execution | None = None
    """None means the back end's default (Eager on CPU)."""
    cores: Annotated[int, Field(ge=1, le=128)] | None = None
    """NeuronCores for one copy of the model."""


class Shape(Contract):
    """One cell of the plan: the input's shape and the hash that names it in reports."""

    cell: CellHash
    sequence_length: Annotated[int, Field(ge=1, le=131_072)] | None = None
    """Tokens per input; None for vision models, which have no such length."""
    batch_size: Annotated[int, Field(ge=1, le=4096)] = 1


class Load(Contract):
    """How calls follow each other."""

    mode: LoadMode = LoadMode.CLOSED
    concurrency: Annotated[int, Field(ge=1, le=256)] = 1
    """Calls in flight at the same time; in an open loop, at most."""
    arrivals: Arrivals | None = None
    """Open loop only; None means Poisson."""
    rate_per_second: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Calls per second; open loop only, and required there."""

    @model_validator(mode="after")
    def _mode_fits(self) -> Self:
        given = [self.arrivals, self.rate_per_second]
        if self.mode is LoadMode.OPEN and self.rate_per_second is None:
            msg = "an open loop needs a ratePerSecond"
            raise ValueError(msg)
        if self.mode is LoadMode.CLOSED and any(value is not None for value in given):
            msg = "arrivals and ratePerSecond belong to an open loop; leave them out, or set mode: Open"
            raise ValueError(msg)
        return self


class Measurement(Contract):
    """How each shape is measured: until the minima and the target are met, or the maximum time is up."""

    profile: Profile = Profile.SOUND
    min_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    min_seconds: Annotated[int, Field(ge=0, le=3600)] = 10
    max_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    target_half_width_percent: Annotated[int, Field(ge=1, le=100)] = 2
    """Half the width of the p95's interval, in percent of the p95, that ends the measuring."""
    processes: Annotated[int, Field(ge=1, le=32)] = 3
    """Fresh processes, one after the other, that share the samples of each shape."""
    load: Load = Load()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.profile is Profile.LEGACY_2023 and self.load != Load():
            msg = "profile Legacy2023 calls one after the other; leave load out"
            raise ValueError(msg)
        if (self.load.rate_per_second or MIN_ARRIVALS) * self.max_seconds < MIN_ARRIVALS:
            msg = f"ratePerSecond x maxSeconds must be {MIN_ARRIVALS} or more; raise one of them"
            raise ValueError(msg)
        return self


class Plan(Contract):
    """All that one runner has to know: one model, one device, one precision, at most eight shapes."""

    version: Literal[1] = 1
    model: ModelRef
    device: Device
    precision: Precision = Precision.FP32
    shapes: Annotated[tuple[Shape, ...], Field(min_length=1, max_length=MAX_SHAPES)]
    measurement: Measurement = Measurement()
    deadline_seconds: Annotated[int, Field(ge=1, le=604_800)] | None = None
    """Time after which the runner ends by itself, with exit code `DEADLINE_EXIT_CODE` and what it has measured."""
    compile_deadline_seconds: Annotated[int, Field(ge=1, le=604_800)] = 1800
    """Time after which compiling one shape's graph is given up."""
    image: Annotated[str, StringConstraints(max_length=512)] | None = None
    """Image that the runner was started from, for provenance: a process can't find out by itself."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0
    """Seed of random weights, of the inputs, of the order of shapes and of Poisson arrivals."""

    @model_validator(mode="after")
    def _cells_are_unique(self) -> Self:
        if len({shape.cell for shape in self.shapes}) != len(self.shapes):
            msg = "shapes: each cell may appear only once"
            raise ValueError(msg)
        return self
