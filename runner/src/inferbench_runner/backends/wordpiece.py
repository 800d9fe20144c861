"""A seeded tokenizer of exactly the size of a model's vocabulary, for models that are built without any files.

It has the parts of BERT's: the same normaliser, splitting and greedy search for word pieces, so that it costs as much.
"""

from __future__ import annotations

import string
from itertools import accumulate
from random import Random
from typing import Final

from tokenizers import Tokenizer as Pieces
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from inferbench_runner.backends.inputs import MASK, TOKENS, TYPES
from inferbench_runner.backends.tasks import Configuration, Tokenizer

UNKNOWN: Final = "[UNK]"

SPECIAL: Final = {
    "[PAD]": ("pad_token_id",),
    UNKNOWN: ("unk_token_id",),
    "[CLS]": ("cls_token_id", "bos_token_id"),
    "[SEP]": ("sep_token_id", "eos_token_id"),
    "[MASK]": ("mask_token_id",),
}
"""Special tokens, and the keys by which a configuration names their numbers."""

SMALLEST: Final = len(SPECIAL) + 1
"""Smallest vocabulary with room for a word."""

CONTINUATION: Final = "##"

CONTINUED: Final = 0.2
"""Share of pieces that continue a word, about as many as BERT has."""

LETTERS: Final = range(2, 10)
"""Letters of a random piece."""


def seeded_tokenizer(configuration: Configuration, seed: int) -> Tokenizer:
    """Return a tokenizer whose numbers are all within the vocabulary, with special tokens where the model has them."""
    vocabulary = _vocabulary(configuration, seed)
    pieces = Pieces(models.WordPiece(vocabulary, unk_token=UNKNOWN, continuing_subword_prefix=CONTINUATION))
    # The stubs leave out that these can be assigned.
    pieces.normalizer = normalizers.BertNormalizer(lowercase=True)
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pieces.decoder = decoders.WordPiece(prefix=CONTINUATION)
    pieces.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")],
    )
    has_types = getattr(configuration, "type_vocab_size", 0) > 1
    return PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        pad_token="[PAD]",  # noqa: S106  # no secret
        unk_token=UNKNOWN,
        cls_token="[CLS]",  # noqa: S106
        sep_token="[SEP]",  # noqa: S106
        mask_token="[MASK]",  # noqa: S106
        model_input_names=[TOKENS, TYPES, MASK] if has_types else [TOKENS, MASK],
    )


def _vocabulary(configuration: Configuration, seed: int) -> dict[str, int]:
    size: int = configuration.vocab_size
    numbers: dict[int, str] = {}
    homeless: list[str] = []
    for name, keys in SPECIAL.items():
        named = [getattr(configuration, key, None) for key in keys]
        free = [number for number in named if isinstance(number, int) and 0 <= number < size and number not in numbers]
        if free:
            numbers[free[0]] = name
        else:
            homeless.append(name)
    words = _words(size - len(SPECIAL), seed)
    fillers = iter([*homeless, *words])
    return {numbers[number] if number in numbers else next(fillers): number for number in range(size)}


def _words(count: int, seed: int) -> list[str]:
    """Return different pieces: the letters first, so that every word can be spelt, then random ones."""
    draw = Random(seed)  # noqa: S311  # words, not secrets
    found = dict.fromkeys([*string.ascii_lowercase, *(CONTINUATION + letter for letter in string.ascii_lowercase)])
    while len(found) < count:
        # Drawn all at once, which takes a quarter of the time.
        lengths = draw.choices(LETTERS, k=count)
        letters = "".join(draw.choices(string.ascii_lowercase, k=sum(lengths)))
        beginnings = draw.choices((CONTINUATION, ""), (CONTINUED, 1 - CONTINUED), k=count)
        ends = accumulate(lengths)
        found |= dict.fromkeys(
            beginning + letters[end - length : end]
            for beginning, end, length in zip(beginnings, ends, lengths, strict=True)
        )
    return list(found)[:count]
