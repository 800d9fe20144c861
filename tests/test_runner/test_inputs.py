"""Inputs of a shape: what they are called, what is in them, and how long they may be."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="install the torch extra to test inputs")

from inferbench_runner.backends.inputs import make_inputs, maximum_length
from inferbench_runner.contract import Shape
from test_runner.builders import cell
from test_runner.tiny import SMALL, load_random


def test_inputs_are_bound_by_name_and_hold_no_padding() -> None:
    """A mask of ones and token types of zeros go to their own parameters, and no token is the padding one."""
    model = load_random(model={"config": SMALL | {"vocab_size": 5, "pad_token_id": 2}}).host.model
    inputs = make_inputs(model, Shape(cell=cell(0), sequence_length=400), 0)
    assert list(inputs) == ["input_ids", "attention_mask", "token_type_ids"]
    assert set(inputs["input_ids"].flatten().tolist()) == {0, 1, 3, 4}
    assert bool((inputs["attention_mask"] == 1).all())
    assert bool((inputs["token_type_ids"] == 0).all())


def test_positions_before_the_padding_one_are_not_counted() -> None:
    """RoBERTa has 514 rows of positions and takes 512 tokens; BERT has and takes 512."""
    assert maximum_length(load_random(model={"id": "roberta-base"}).host.model) == 512
    assert maximum_length(load_random().host.model) == 512
