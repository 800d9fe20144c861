"""How far an output may be from the reference: expected figures come from numpy."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="install the torch extra to test the comparison")

import torch

from inferbench_runner.backends.comparison import TOLERANCES, Scale, compare
from inferbench_runner.contract import CellFailed, Correctness, FailureReason, Phase, Precision
from inferbench_runner.errors import NumericMismatchError


def outputs(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    """Return a matrix as a model's head gives it."""
    return torch.randn((rows, width), generator=torch.Generator().manual_seed(seed))


def compared(
    output: torch.Tensor,
    reference: torch.Tensor,
    precision: Precision = Precision.BF16,
    *,
    chooses: bool = True,
    scale: Scale | None = None,
) -> Correctness:
    """Compare one output with its reference."""
    return compare([output], [reference], precision, chooses=chooses, scale=scale)


def test_figures_are_those_of_their_definitions() -> None:
    """Cosine of the worst row, largest difference over the largest magnitude, share of equal choices."""
    reference = outputs(16, 50)
    output = reference + 0.02 * outputs(16, 50, seed=1)
    found = compared(output, reference)
    one, other = output.double().numpy(), reference.double().numpy()
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    assert float(found.cosine_similarity) == pytest.approx(((one * other).sum(axis=1) / lengths).min(), abs=1e-8)
    assert float(found.max_relative_error) == pytest.approx(abs(one - other).max() / abs(other).max(), abs=1e-8)
    assert found.top1_agreement_percent is not None
    assert float(found.top1_agreement_percent) == 100


def test_vectors_choose_nothing() -> None:
    """An output that is no choice among labels, or has one label only, has no share of equal choices."""
    assert compared(outputs(2, 9), outputs(2, 9), chooses=False).top1_agreement_percent is None
    assert compared(outputs(2, 1), outputs(2, 1)).min_top1_agreement_percent is None


def test_the_exact_output_passes_in_every_precision() -> None:
    """Nothing differs, so that the figures are perfect."""
    for precision in Precision:
        found = compared(outputs(4, 3), outputs(4, 3), precision)
        assert (float(found.cosine_similarity), float(found.max_relative_error)) == (1, 0)


def test_smaller_formats_may_differ_more() -> None:
    """The tolerances follow the number of bits."""
    order = [TOLERANCES[one] for one in (Precision.FP32, Precision.TF32, Precision.FP16, Precision.BF16)]
    assert [each.error for each in order] == sorted(each.error for each in order)
    assert [each.cosine for each in order] == sorted((each.cosine for each in order), reverse=True)
    assert set(TOLERANCES) == set(Precision)


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("another direction", outputs(4, 50, seed=1)),
        ("the opposite direction", -outputs(4, 50)),
        ("another size", 1.5 * outputs(4, 50)),
        ("one wrong element", outputs(4, 50).index_put((torch.tensor(0), torch.tensor(0)), torch.tensor(3.0))),
        ("one row of another input", torch.cat((outputs(4, 50)[:3], outputs(4, 50, seed=1)[:1]))),
        ("nothing", torch.zeros(4, 50)),
    ],
)
def test_wrong_outputs_are_refused_with_their_figures(name: str, output: torch.Tensor) -> None:
    """Whatever is wrong, the sentence has the figures, and fits into the report."""
    del name
    with pytest.raises(
        NumericMismatchError, match=r"cosine -?[\d.]+ \(at least 0.98\), error [\d.]+ \(at most 0.15\)"
    ) as e:
        compared(output, outputs(4, 50))
    CellFailed(cell="0" * 10, phase=Phase.VERIFY, reason=FailureReason.NUMERIC_MISMATCH, message=str(e.value))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused(value: float) -> None:
    """Neither an output nor a reference that is not finite can be compared."""
    broken = outputs(2, 3).fill_(value)
    for pair in ((broken, outputs(2, 3)), (outputs(2, 3), broken)):
        with pytest.raises(NumericMismatchError, match="finite"):
            compared(*pair)


def test_other_dimensions_are_refused() -> None:
    """A static graph for another shape gives itself away."""
    with pytest.raises(NumericMismatchError, match=r"\(2, 3\).*\(4, 3\)"):
        compared(outputs(2, 3), outputs(4, 3))


def test_a_tie_may_be_decided_either_way() -> None:
    """Two labels nearer to each other than rounding moves them count as no disagreement; a clear choice counts."""
    reference = torch.tensor([[1.0, 0.999], [1.0, 0.0]])
    tie = compared(torch.tensor([[0.998, 1.0], [1.0, 0.0]]), reference)
    assert tie.top1_agreement_percent is not None
    assert float(tie.top1_agreement_percent) == 100
    with pytest.raises(NumericMismatchError, match="same label in 50 %"):
        compared(torch.tensor([[1.0, 0.999], [0.0, 1.0]]), reference)


def test_a_row_near_zero_is_no_reason_to_refuse() -> None:
    """By chance both labels of an input can be near zero: the size of other outputs says what rounding is worth."""
    reference, output = torch.tensor([[0.004, -0.002]]), torch.tensor([[0.001, 0.003]])
    usual = Scale(magnitude=0.4, rms=0.25)
    found = compared(output, reference, scale=usual)
    assert float(found.max_relative_error) == pytest.approx(0.005 / 0.4)
    with pytest.raises(NumericMismatchError):
        compared(output, reference)


def test_an_output_of_zeros_is_compared_too() -> None:
    """A head that gives zeros is the right one where the reference does so, and wrong where only it does."""
    zeros = torch.zeros(2, 3)
    assert float(compared(zeros, zeros).max_relative_error) == 0
    with pytest.raises(NumericMismatchError):
        compared(outputs(2, 3), zeros)
