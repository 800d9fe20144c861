"""Configurations that make no model: each a typed failure that names what to change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import BertForSequenceClassification

from inferbench_runner.backends.configuration import model_directory, random_configuration
from inferbench_runner.backends.weights import random_model
from inferbench_runner.contract import ModelRef, Weights
from inferbench_runner.errors import ModelNotFoundError, ModelUnsupportedError

TINY = {
    "model_type": "bert",
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 100,
}


def built(directory: Path, **changes: object) -> BertForSequenceClassification:
    """Build a model from a directory whose configuration has these changes."""
    (directory / "config.json").write_text(json.dumps(TINY | changes), encoding="utf-8")
    configuration = random_configuration(ModelRef(id=str(directory), weights=Weights.RANDOM))
    return random_model(BertForSequenceClassification, configuration, 0, overridden=False).model


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"hidden_size": "abc"}, id="a size that is no number"),
        pytest.param({"num_attention_heads": 5}, id="heads that don't divide the size"),
        pytest.param({"hidden_act": "nope"}, id="an activation that does not exist"),
        pytest.param({"vocab_size": -1}, id="a negative vocabulary"),
        pytest.param({"pad_token_id": 1_000_000}, id="a padding token beyond the vocabulary"),
        pytest.param({"model_type": "nonesuch"}, id="an unknown architecture"),
    ],
)
def test_a_broken_configuration_is_a_typed_failure(tmp_path: Path, changes: dict[str, object]) -> None:
    """Whatever the library raises, the sentence names the file; the same directory without the fault works."""
    assert built(tmp_path)
    with pytest.raises(ModelUnsupportedError, match=r"config\.json"):
        built(tmp_path, **changes)


def test_a_path_that_is_too_long_is_not_found() -> None:
    """The kernel's own refusal is no traceback."""
    with pytest.raises(ModelNotFoundError, match="is no path"):
        model_directory("/" + "a" * 300)
