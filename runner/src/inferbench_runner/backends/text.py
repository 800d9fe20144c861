"""Text in: a model's tokenizer, and seeded texts that it turns into about as many tokens as a shape has."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Final

from inferbench_runner.backends.inputs import TOKENS, Inputs, accepted_names
from inferbench_runner.backends.tasks import Model, Task, Tokenizer
from inferbench_runner.contract import Shape
from inferbench_runner.errors import ProcessorUnusableError, is_out_of_memory

VOCABULARIES: Final = (
    "tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model",
)  # fmt: skip
"""Files of which a tokenizer has at least one."""

SETTINGS: Final = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")

CANDIDATES: Final = 1024
"""Entries of the vocabulary from which words are taken."""

FALLBACK: Final = "a"
"""Word where the vocabulary has none that stays in one piece."""

Read = Callable[[], Inputs]
"""Turns the same raw inputs into tensors, each time anew."""


@dataclass(frozen=True)
class TextProcessor:
    """A tokenizer that fits a model."""

    tokenizer: Tokenizer
    task: Task
    accepted: frozenset[str]
    """Names of the tensors that the model takes."""
    rows: int
    """Rows of the model's embedding: one more than the largest number that a token may have."""
    seed: int

    @property
    def size(self) -> str:
        """How large the vocabulary is."""
        return f"{len(self.tokenizer)} tokens"

    def reader(self, shape: Shape) -> Read | None:
        """Return what reads texts of the shape's size; None where it leaves no room for a word beside the marks."""
        length = shape.sequence_length or 0
        pair = self.task.name == "question-answering"
        room = length - self.tokenizer.num_special_tokens_to_add(pair=pair)
        if room < (2 if pair else 1):
            return None
        texts = self._texts(shape.batch_size, room, pair=pair)
        tokenizer, accepted = self.tokenizer, self.accepted

        def read() -> Inputs:
            encoded = tokenizer(*texts, padding="max_length", truncation=True, max_length=length, return_tensors="pt")
            return {name: tensor for name, tensor in encoded.items() if name in accepted}

        return read

    def check(self, inputs: Inputs, shape: Shape) -> None:
        """Raise `ProcessorUnusableError` unless the model can take what was read."""
        what, own = "the tokenizer", "use the tokenizer that the model was trained with"
        tokens = inputs.get(TOKENS)
        if tokens is None:
            raise ProcessorUnusableError(what, f"yields no {TOKENS}, only {', '.join(inputs) or 'nothing'}", own)
        size = (shape.batch_size, shape.sequence_length)
        if tuple(tokens.shape) != size:
            raise ProcessorUnusableError(what, f"yields {tuple(tokens.shape)} tokens where {size} were asked for", own)
        if not 0 <= int(tokens.min()) <= int(tokens.max()) < self.rows:
            problem = f"yields the token {int(tokens.max())}, and the model's embedding has {self.rows} rows"
            raise ProcessorUnusableError(what, problem, own)

    def _texts(self, count: int, words: int, *, pair: bool) -> tuple[list[str], ...]:
        """Return as many different texts, in one list, or two of questions and what they are about."""
        known = self._words
        draw = Random(self.seed)  # noqa: S311  # texts, not secrets
        drawn = [draw.choices(known, k=words) for _ in range(count)]
        if self.task.name == "fill-mask":
            for text in drawn:
                # The first word is never cut off, however many pieces the others have.
                text[0] = str(self.tokenizer.mask_token)
        if not pair:
            return ([" ".join(text) for text in drawn],)
        cut = max(1, words // 4)
        return [" ".join(text[:cut]) for text in drawn], [" ".join(text[cut:]) for text in drawn]

    @cached_property
    def _words(self) -> Sequence[str]:
        """Return words of the vocabulary, each of which becomes one token inside a text."""
        marks = set(self.tokenizer.all_special_tokens)
        names = sorted(name for name in self.tokenizer.get_vocab() if name not in marks)
        some = Random(self.seed).sample(names, min(CANDIDATES, len(names)))  # noqa: S311
        plain = [word for name in some if (word := name.lstrip("Ġ▁")).isalpha()]
        if not plain:
            return [FALLBACK]
        # The first word of a text may be cut in another way than those that follow a blank.
        twice, thrice = (self._lengths(" ".join([word] * times) for word in plain) for times in (2, 3))
        whole = [word for word, two, three in zip(plain, twice, thrice, strict=True) if three == two + 1]
        return whole or plain

    def _lengths(self, texts: Iterable[str]) -> list[int]:
        encoded = self.tokenizer(list(texts), add_special_tokens=False, padding=False, truncation=False)
        return [len(tokens) for tokens in encoded[TOKENS]]


def load_tokenizer(directory: Path) -> Tokenizer | None:
    """Return the tokenizer whose files are in a model's directory; None where it has none."""
    if not any((directory / name).is_file() for name in VOCABULARIES):
        return None
    from transformers import AutoTokenizer  # noqa: PLC0415  # not needed for images

    try:
        return AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        # Broken files, missing libraries, classes that the library doesn't have: a dozen types of exception.
        raise unusable(directory, (*VOCABULARIES, *SETTINGS), "tokenizer", error) from error


def fit_tokenizer(tokenizer: Tokenizer, model: Model, task: Task, seed: int) -> TextProcessor:
    """Return the tokenizer with what is known of the model, or raise `ProcessorUnusableError` for one of another."""
    rows = _embedding_rows(model)
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= rows:
        what, problem = (
            "the tokenizer's vocabulary",
            f"goes up to token {largest}, and the model's embedding to {rows - 1}",
        )
        raise ProcessorUnusableError(what, problem, "use the tokenizer that the model was trained with")
    if getattr(tokenizer, "pad_token", None) is None:
        # Decoders have none, since they are trained on endless text; what is masked may be any token.
        tokenizer.pad_token = getattr(tokenizer, "eos_token", None)
    needed = ["pad_token", *(["mask_token"] if task.name == "fill-mask" else [])]
    for name in needed:
        if getattr(tokenizer, name, None) is None:
            problem = f"has no {name}, which {'padding' if name == 'pad_token' else task.name} needs"
            raise ProcessorUnusableError(SETTINGS[0], problem, f"name one of the vocabulary's tokens as {name}")
    return TextProcessor(tokenizer, task, accepted_names(model), rows, seed)


def unusable(directory: Path, names: Iterable[str], kind: str, error: Exception) -> ProcessorUnusableError:
    """Return the failure that names the first file which is no JSON object, or else the directory."""
    for name in names:
        path = directory / name
        if path.suffix == ".json" and path.is_file():
            try:
                json.loads(path.read_bytes())
            except ValueError:
                way_out = f"replace it by the model's own, or leave the {kind}'s files out to measure calls only"
                return ProcessorUnusableError(f"{name} of {directory.name}", "is no valid JSON", way_out)
    way_out = f"replace its files by the model's own: {type(error).__name__}: {error}"
    return ProcessorUnusableError(f"the {kind} of {directory.name}", "can't be loaded", way_out)


def _embedding_rows(model: Model) -> int:
    embedding = model.get_input_embeddings()
    return int(getattr(embedding, "num_embeddings", model.config.vocab_size))
