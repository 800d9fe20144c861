"""Texts that are too long for their field."""

from __future__ import annotations

from inferbench_operator.core.names import shortened

PULL = 'Back-off pulling image "a/b:1": failed to pull and unpack image "a/b:1": failed to resolve reference: not found'


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    """What failed is said first, and why comes last."""
    short = shortened(PULL, 60)
    assert len(short) == 60
    assert short.startswith('Back-off pulling image "a/b:1"')
    assert short.endswith("not found")
    assert short.count("…") == 1


def test_a_text_that_fits_is_left_alone() -> None:
    """To the last character."""
    assert shortened(PULL, len(PULL)) == PULL
