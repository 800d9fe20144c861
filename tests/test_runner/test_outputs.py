"""The output gate: what no model of a task gives is refused."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="install the torch extra to test outputs")

import torch

from inferbench_runner.backends.outputs import check_output
from inferbench_runner.backends.tasks import TASKS
from inferbench_runner.contract import FailureReason, Shape
from inferbench_runner.errors import RunnerError
from test_runner.builders import cell


@pytest.mark.parametrize(
    ("logits", "reason"),
    [
        (torch.tensor([[1.0, float("nan")]]), FailureReason.NUMERIC_MISMATCH),
        (torch.tensor([[1.0, float("inf")]]), FailureReason.NUMERIC_MISMATCH),
        (torch.zeros(2, 2), FailureReason.NUMERIC_MISMATCH),
        (torch.zeros(1, 2, 3), FailureReason.NUMERIC_MISMATCH),
        (None, FailureReason.MODEL_UNSUPPORTED),
    ],
)
def test_the_gate_refuses_what_no_model_of_the_task_gives(logits: torch.Tensor | None, reason: FailureReason) -> None:
    """Outputs that are not finite, have another batch size or rank, or lack the head are refused."""

    class Output:
        pass

    output = Output()
    if logits is not None:
        output.logits = logits  # type: ignore[attr-defined]
    with pytest.raises(RunnerError) as caught:
        check_output(output, TASKS["text-classification"], Shape(cell=cell(0), sequence_length=8))
    assert caught.value.reason is reason
