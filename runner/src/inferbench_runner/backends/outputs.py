"""The output gate: a number is accepted only from a model whose output is one that it can have."""

from __future__ import annotations

import torch

from inferbench_runner.backends.tasks import Model, Task
from inferbench_runner.contract import Shape
from inferbench_runner.errors import ModelUnsupportedError, NumericMismatchError


def check_output(output: Model, task: Task, shape: Shape) -> None:
    """Raise a `RunnerError` unless the head's output is there, has the right dimensions and is finite throughout."""
    head = getattr(output, task.output, None)
    if not isinstance(head, torch.Tensor):
        msg = f"model.task: the output has no {task.output}, so this model doesn't do {task.name}; name another task."
        raise ModelUnsupportedError(msg)
    dimensions = tuple(head.shape)
    expected_rank = task.rank in {None, len(dimensions)}
    if dimensions[:1] != (shape.batch_size,) or not expected_rank or 0 in dimensions:
        msg = f"The output has dimensions {dimensions} for a batch of {shape.batch_size}; check the model's files."
        raise NumericMismatchError(msg)
    if task.rank == 3 and dimensions[1] != shape.sequence_length:  # noqa: PLR2004  # batch, tokens, labels
        msg = f"The output has {dimensions[1]} tokens for an input of {shape.sequence_length}; check the model's files."
        raise NumericMismatchError(msg)
    if not bool(torch.isfinite(head).all()):
        msg = "The output has values that are not finite; use another precision, or check the model's weights."
        raise NumericMismatchError(msg)
