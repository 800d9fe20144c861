"""What a right output is: that of the same model on the CPU in fp32, with eager attention, on the same inputs.

The full-precision weights are gone once a model was converted or moved to a device, so the references of all shapes
are computed before that, shape by shape: one that is too large for the host's memory then fails by itself.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import torch

from inferbench_runner.backends.base import Rows
from inferbench_runner.backends.comparison import Scale
from inferbench_runner.backends.inputs import (
    TOKENS,
    Inputs,
    attended_length,
    half_padded,
    make_inputs,
    maximum_length,
)
from inferbench_runner.backends.outputs import check_output
from inferbench_runner.backends.tasks import Model, Task
from inferbench_runner.contract import Shape
from inferbench_runner.errors import ModelUnsupportedError, OutOfMemoryError, RunnerError, is_out_of_memory

ELEMENTS: Final = 2**21
"""Most elements of one reference, 8 MiB: a masked language model has as many labels at each token as it has words."""

CHUNK: Final = 8192
"""Tokens in one forward pass: eager attention needs more memory than the attention that is measured."""

CHUNK_IMAGES: Final = 16

UNKNOWN: Final = "unknown"

FEW_LABELS: Final = 64
"""Labels below which one output says too little about how large the elements of this model's outputs are."""

MORE_TEXTS: Final = 16
"""Inputs that then tell more about it; they are not compared."""

MORE_TOKENS: Final = 16

MORE_IMAGES: Final = 4


@dataclass(frozen=True)
class Probe:
    """Inputs on which an output is compared."""

    inputs: Inputs
    attended: int | None = None
    """Tokens at the start of each row that are no padding; None for images."""


@dataclass
class References:
    """The right outputs of a model, which is on the CPU in fp32 for as long as any are added."""

    model: Model
    task: Task
    seed: int
    _outputs: dict[Shape, tuple[torch.Tensor, ...]] = field(default_factory=dict)
    _scale: Scale | None = None

    @property
    def description(self) -> str:
        """What the measured outputs are compared with."""
        with eager_attention(self.model) as used:
            return f"the same model on the CPU in fp32 with {used} attention, on the same inputs"

    def add(self, shape: Shape, known: Rows | None = None) -> Rows:
        """Return the right rows for each of the shape's probes: those that are known, or else computed now.

        Raises:
            RunnerError: The model has no output for this shape, or needs more memory for it than there is.
        """
        if known is not None:
            self._outputs[shape] = tuple(torch.from_numpy(rows) for rows in known)
            return known
        model, seed = self.model, self.seed
        with eager_attention(model), torch.inference_mode():
            try:
                found = tuple(_computed(model, self.task, shape, probe) for probe in probes(model, shape, seed))
            except Exception as error:  # noqa: BLE001  # whatever it is, it concerns this one shape
                release(error)
                raise _typed(error, model, shape) from None
        self._outputs[shape] = found
        return tuple(rows.numpy() for rows in found)

    def complete(self) -> None:
        """Find how large the outputs are in general; none can be added any more."""
        found = [rows for each in self._outputs.values() for rows in each]
        if found and found[0].shape[1] < FEW_LABELS:
            with eager_attention(self.model), torch.inference_mode():
                found += _more(self.model, self.task, self.seed)
        self._scale = Scale.of(found)

    @property
    def scale(self) -> Scale:
        """How large the model's outputs are in general."""
        if self._scale is None:
            msg = "the scale is asked for before the references are complete"
            raise RuntimeError(msg)
        return self._scale

    def of(self, shape: Shape) -> tuple[torch.Tensor, ...]:
        """Return the right rows for each of the shape's probes."""
        return self._outputs[shape]


def probes(model: Model, shape: Shape, seed: int) -> tuple[Probe, ...]:
    """Return the inputs to time, and where there can be a mask, the same with padding."""
    inputs = make_inputs(model, shape, seed)
    whole = Probe(inputs, inputs[TOKENS].shape[1] if TOKENS in inputs else None)
    padded = half_padded(model, inputs)
    if padded is None:
        return (whole,)
    return whole, Probe(padded, attended_length(inputs[TOKENS].shape[1]))


def rows_of(output: Model, task: Task, batch: int, attended: int | None) -> torch.Tensor:
    """Return what of an output is compared, as a matrix in fp32: a row for each decision or vector.

    Padding is left out, since what a model says about it means nothing; so are tokens in regular intervals where
    there would be too many elements.
    """
    head: torch.Tensor = getattr(output, task.output)
    if task.name == "question-answering":
        # The order in which the rows of a batch follow each other must not depend on how it was cut into pieces.
        head = torch.stack((output.start_logits, output.end_logits), dim=1)[..., :attended]
    elif head.ndim == 3:  # noqa: PLR2004  # batch, tokens, labels
        head = head[:, :attended]
        kept = max(1, ELEMENTS // (batch * head.shape[2]))
        if kept < head.shape[1]:
            head = head[:, torch.linspace(0, head.shape[1] - 1, kept).long()]
    rows = head.flatten(0, 1) if head.ndim == 3 else head.flatten(1)  # noqa: PLR2004
    return rows.detach().to("cpu", torch.float32)


@contextmanager
def eager_attention(model: Model) -> Iterator[str]:
    """Let the model compute attention step by step, where its architecture lets one choose, and then as before.

    Yields:
        How it computes attention meanwhile.
    """
    usual, choose = attention(model), getattr(model, "set_attn_implementation", None)
    if usual == UNKNOWN or choose is None:
        yield usual
        return
    choose("eager")
    try:
        yield attention(model)
    finally:
        choose(usual)


def attention(model: Model) -> str:
    """Return the library's word for how the model computes attention."""
    return str(getattr(model.config, "_attn_implementation", None) or UNKNOWN)


def _computed(model: Model, task: Task, shape: Shape, probe: Probe) -> torch.Tensor:
    batch = shape.batch_size
    size = max(1, CHUNK // shape.sequence_length) if shape.sequence_length else CHUNK_IMAGES
    chunks: list[torch.Tensor] = []
    for start in range(0, batch, size):
        part = {name: tensor[start : start + size] for name, tensor in probe.inputs.items()}
        output = model(**part)
        check_output(output, task, shape.model_copy(update={"batch_size": min(size, batch - start)}))
        chunks.append(rows_of(output, task, batch, probe.attended))
    return torch.cat(chunks)


def _more(model: Model, task: Task, seed: int) -> list[torch.Tensor]:
    """Return the outputs for a few more short inputs, or none where they can't be had."""
    is_text = model.main_input_name == TOKENS
    try:
        length = min(MORE_TOKENS, maximum_length(model) or MORE_TOKENS) if is_text else None
        shape = Shape(cell="0" * 10, sequence_length=length, batch_size=MORE_TEXTS if is_text else MORE_IMAGES)
        return [_computed(model, task, shape, Probe(make_inputs(model, shape, (seed + 1) % 2**32), length))]
    except Exception:  # noqa: BLE001  # the shapes themselves have outputs, which is enough
        return []


def _typed(error: Exception, model: Model, shape: Shape) -> RunnerError:
    """Return our own failure for whatever a model in its plainest form ended with."""
    if isinstance(error, RunnerError):
        return error
    if is_out_of_memory(error):
        return OutOfMemoryError()
    length = "" if shape.sequence_length is None else f" of {shape.sequence_length} tokens"
    return ModelUnsupportedError(
        f"model.id: {type(model).__name__} can't be called with {shape.batch_size} inputs{length}; use another model, "
        f"or another shape: {type(error).__name__}: {error}"
    )


def release(error: Exception) -> None:
    """Let go what an exception's frames hold on to: tensors, of which there may be no room for any more."""
    link: BaseException | None = error
    while link is not None:
        if link.__traceback__ is not None:
            traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__
