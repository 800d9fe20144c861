"""How far an output may be from the reference, and how far it is: the gate in front of every number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final

import torch
from typing_extensions import Self

from inferbench_runner.contract import Correctness, Precision
from inferbench_runner.errors import NumericMismatchError


@dataclass(frozen=True)
class Tolerance:
    """Limits within which an output counts as that of the same model."""

    cosine: float
    """Least cosine similarity of a row."""
    error: float
    """Largest relative error."""
    agreement_percent: float
    """Least share of decisions in which the same label is chosen."""


TOLERANCES: Final = {
    # 24 bits of significand: only the order of the additions differs, which moves outputs by 1 to 3 millionths. The
    # limit leaves room for a device's own exponential and error functions and for deeper models, and none for a device
    # that was asked for fp32 and multiplies in a smaller format, which moves them by 500 millionths and more.
    Precision.FP32: Tolerance(0.99999, 0.0001, 100),
    # 11 bits in the products, 24 in the sums.
    Precision.TF32: Tolerance(0.9995, 0.02, 99.9),
    # 11 bits everywhere: 0.2 % after 6 layers, an eighth of what bfloat16 has.
    Precision.FP16: Tolerance(0.9995, 0.02, 99),
    # 8 bits everywhere: 1 % in outputs with many elements, up to 3 % in the two labels of a model of 12 layers and up
    # to 6 % of one of 24. A swap of masks and types moves them by 30 to 150 %.
    Precision.BF16: Tolerance(0.98, 0.15, 99),
}

SHORT: Final = 0.5
"""Length of a row over the longest one's, below which its direction counts in proportion: that of a row near zero is
noise."""


@dataclass(frozen=True)
class Scale:
    """How large the elements of a model's output are; a single output can be near zero by chance."""

    magnitude: float = 0.0
    """Largest magnitude of an element."""
    rms: float = 0.0
    """Root mean square of a row's elements, the largest of all rows."""

    @classmethod
    def of(cls, outputs: Sequence[torch.Tensor]) -> Self:
        """Return the scale of outputs whose rows are decisions or vectors."""
        return cls(
            magnitude=max((float(rows.abs().max()) for rows in outputs), default=0.0),
            rms=max((float(rows.double().square().mean(-1).max().sqrt()) for rows in outputs), default=0.0),
        )

    def joined(self, other: Scale) -> Scale:
        """Return the larger of both."""
        return Scale(max(self.magnitude, other.magnitude), max(self.rms, other.rms))


@dataclass(frozen=True)
class Figures:
    """How far outputs are from their references."""

    cosine: float
    error: float
    agreement_percent: float | None

    def within(self, tolerance: Tolerance) -> bool:
        """Whether all of them are tolerable."""
        agreed = self.agreement_percent is None or self.agreement_percent >= tolerance.agreement_percent
        return self.cosine >= tolerance.cosine and self.error <= tolerance.error and agreed


def compare(
    outputs: Sequence[torch.Tensor],
    references: Sequence[torch.Tensor],
    precision: Precision,
    *,
    chooses: bool,
    scale: Scale | None = None,
    reference: str = "",
) -> Correctness:
    """Return how far outputs are from their references, row by row, or raise `NumericMismatchError` if too far.

    The scale is that of the model's outputs in general, where more of them are known than these references.
    """
    tolerance = TOLERANCES[precision]
    if [rows.shape for rows in outputs] != [rows.shape for rows in references]:
        found, wanted = ([tuple(rows.shape) for rows in each] for each in (outputs, references))
        msg = f"The output has dimensions {found}, and on the CPU in fp32 {wanted}; check the compiled model's inputs."
        raise NumericMismatchError(msg)
    if not all(bool(torch.isfinite(rows).all()) for rows in (*outputs, *references)):
        msg = "The output has values that are not finite; use another precision, or check the model's weights."
        raise NumericMismatchError(msg)
    whole = Scale.of(references).joined(scale or Scale())
    figures = _measured(outputs, references, whole, tolerance, chooses=chooses)
    if not figures.within(tolerance):
        raise NumericMismatchError(_sentence(figures, tolerance, precision))
    agreement = figures.agreement_percent
    return Correctness(
        reference=reference,
        cosine_similarity=_share(figures.cosine),
        min_cosine_similarity=_share(tolerance.cosine),
        max_relative_error=_share(figures.error),
        max_relative_error_allowed=_share(tolerance.error),
        top1_agreement_percent=None if agreement is None else _share(agreement),
        min_top1_agreement_percent=None if agreement is None else _share(tolerance.agreement_percent),
    )


def _measured(
    outputs: Sequence[torch.Tensor],
    references: Sequence[torch.Tensor],
    scale: Scale,
    tolerance: Tolerance,
    *,
    chooses: bool,
) -> Figures:
    cosine, difference, decisions, disagreements = 1.0, 0.0, 0, 0
    for output, reference in zip(outputs, references, strict=True):
        found, wanted = output.double(), reference.double()
        difference = max(difference, float((found - wanted).abs().max()))
        cosine = min(cosine, float(_cosines(found, wanted, scale).min()))
        if chooses and wanted.shape[-1] > 1:
            first, second = wanted.topk(2).values.unbind(-1)
            # Where two labels are nearer to each other than what is allowed, rounding may choose either.
            clear = first - second >= tolerance.error * scale.magnitude
            disagreements += int((clear & (found.argmax(-1) != wanted.argmax(-1))).sum())
            decisions += len(wanted)
    error = difference / scale.magnitude if scale.magnitude else float(difference > 0)
    return Figures(cosine, error, 100 * (1 - disagreements / decisions) if decisions else None)


def _cosines(found: torch.Tensor, wanted: torch.Tensor, scale: Scale) -> torch.Tensor:
    """Return each row's cosine similarity; the deviation of rows shorter than usual counts by their share."""
    lengths = wanted.norm(dim=-1)
    usual = SHORT * scale.rms * sqrt(wanted.shape[-1])
    shares = (lengths / usual).square().clamp(max=1) if usual else torch.zeros_like(lengths)
    return 1 - (1 - torch.nn.functional.cosine_similarity(found, wanted, dim=-1)) * shares


def _sentence(figures: Figures, tolerance: Tolerance, precision: Precision) -> str:
    labels = "" if figures.agreement_percent is None else f", same label in {figures.agreement_percent:.4g} %"
    return (
        f"The output is not that of the model on the CPU in fp32: cosine {figures.cosine:.4f} (at least "
        f"{tolerance.cosine:g}), error {figures.error:.2g} (at most {tolerance.error:g}){labels}; "
        f"use another precision than {precision}, or a runner.image with other libraries."
    )


def _share(value: float) -> str:
    return f"{value:.9f}"
