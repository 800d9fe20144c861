"""Tokenizers and image processors that are there but can't be used: typed failures that say what to put right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from test_runner.builders import TINY_BERT

pytest.importorskip("torch", reason="install the torch extra to test processors")

import torch
from transformers import AutoTokenizer, ViTConfig, ViTForImageClassification

from inferbench_runner.contract import CellFailed, FailureReason, Phase
from inferbench_runner.errors import ProcessorUnusableError
from inferbench_runner.words import one_line
from test_runner.tiny import WORDS, load_directory, make_tokenizer, only_shape, write_bert

Damage = Callable[[Path], object]


def change(directory: Path, name: str, **fields: object) -> None:
    """Change fields of a JSON file; None takes one away."""
    path = directory / name
    content: dict[str, Any] = (json.loads(path.read_text()) if path.exists() else {}) | fields
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def failure(directory: Path, task: str | None = None, length: int | None = 8) -> str:
    """Return the sentence with which loading or checking the model in the directory fails."""

    def verify() -> None:
        loaded = load_directory(directory, task, shapes=((length, 2),))
        loaded.verify(only_shape(loaded))

    with pytest.raises(ProcessorUnusableError) as caught:
        verify()
    assert caught.value.reason is FailureReason.PROCESSOR_UNUSABLE
    message = one_line(str(caught.value), 240)
    CellFailed(cell="0" * 10, phase=Phase.LOAD, reason=caught.value.reason, message=message)
    return message


def too_many_words(directory: Path) -> None:
    """Use the tokenizer of a model with more words."""
    make_tokenizer([*WORDS, *(f"word{number}" for number in range(90))]).save_pretrained(directory)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: (path / "tokenizer.json").write_text("{"), ["tokenizer.json of", "no valid JSON", "replace it"]),
        (lambda path: (path / "tokenizer_config.json").write_text("["), ["tokenizer_config.json of", "no valid JSON"]),
        (lambda path: (path / "tokenizer.json").write_text("{}"), ["the tokenizer of", "can't be loaded"]),
        (lambda path: (path / "tokenizer_config.json").write_text("[]"), ["the tokenizer of", "can't be loaded"]),
        (lambda path: (path / "tokenizer.json").write_bytes(b"\xff\xfe"), ["tokenizer.json of", "no valid JSON"]),
        (too_many_words, ["up to token 102", "embedding to 98", "tokenizer that the model was trained with"]),
        (
            lambda path: change(path, "tokenizer_config.json", pad_token=None),
            ["tokenizer_config.json has no pad_token", "padding", "name one of the vocabulary's tokens"],
        ),
    ],
)
def test_a_broken_tokenizer_is_named(tmp_path: Path, damage: Damage, words: list[str]) -> None:
    """The sentence names the file or the field, and what to do about it."""
    write_bert(tmp_path)
    damage(tmp_path)
    message = failure(tmp_path)
    assert not [word for word in words if word not in message], message


def test_a_decoders_tokenizer_pads_with_its_end_token(tmp_path: Path) -> None:
    """A tokenizer that has no padding, as those of decoders, but an end of text, is usable."""
    write_bert(tmp_path)
    change(tmp_path, "tokenizer_config.json", pad_token=None, eos_token="[SEP]")  # noqa: S106  # no secret
    loaded = load_directory(tmp_path)
    loaded.verify(only_shape(loaded))
    assert "not measured" not in loaded.facts["endToEnd"]


def test_a_model_that_fills_masks_needs_one(tmp_path: Path) -> None:
    """A tokenizer without a mask token doesn't fit the task."""
    write_bert(tmp_path)
    change(tmp_path, "tokenizer_config.json", mask_token=None)
    message = failure(tmp_path, "fill-mask")
    assert "no mask_token" in message
    assert "fill-mask" in message


def test_code_beside_a_tokenizer_is_never_run(tmp_path: Path) -> None:
    """A tokenizer that brings a class of its own is replaced by the library's, or refused."""
    write_bert(tmp_path)
    change(tmp_path, "tokenizer_config.json", tokenizer_class="Own", auto_map={"AutoTokenizer": ["own.Own", None]})
    (tmp_path / "own.py").write_text("raise SystemExit('code of the model was run')")
    try:
        loaded = load_directory(tmp_path)
    except ProcessorUnusableError:
        return
    loaded.verify(only_shape(loaded))


@pytest.mark.parametrize(
    ("change_read", "words"),
    [
        (lambda read: {name: tensor for name, tensor in read.items() if name != "input_ids"}, "yields no input_ids"),
        (lambda read: dict(read) | {"input_ids": read["input_ids"] + 1000}, "and the model's embedding has 99 rows"),
        (lambda read: dict(read) | {"input_ids": read["input_ids"][:, :4]}, r"yields (2, 4) tokens where (2, 8)"),
    ],
)
def test_what_a_tokenizer_yields_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change_read: Callable[[Any], object], words: str
) -> None:
    """No ids, ids out of range, or another length than was asked for: none of these reaches the model."""
    write_bert(tmp_path)
    real = AutoTokenizer.from_pretrained(tmp_path)

    class Odd:
        def __call__(self, *texts: object, **options: object) -> Any:  # noqa: ANN401  # as the tokenizer
            read = real(*texts, **options)
            return change_read(read) if options.get("return_tensors") else read

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401
            return getattr(real, name)

        def __len__(self) -> int:
            return len(real)

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: Odd())
    assert words in failure(tmp_path)


def test_a_tokenizer_that_fails_is_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a tokenizer raises on its input is the tokenizer's failure, with its words."""
    write_bert(tmp_path)
    loaded = load_directory(tmp_path)
    processor = loaded.host.end_to_end.processor
    assert processor is not None

    def fail() -> None:
        msg = "no such rule"
        raise ValueError(msg)

    monkeypatch.setattr(type(processor), "reader", lambda *_: fail)
    with pytest.raises(ProcessorUnusableError, match=r"fails on its input; .*ValueError: no such rule"):
        loaded.verify(only_shape(loaded))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("{", ["preprocessor_config.json of", "no valid JSON"]),
        ('{"image_processor_type": "Nope"}', ["the image processor of", "can't be loaded"]),
        ('{"image_processor_type": "ViTImageProcessor", "size": "x"}', ["the image processor of", "can't be loaded"]),
        (
            '{"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 24}}',
            ["preprocessor_config.json makes images of (2, 3, 16, 24)", "takes (2, 3, 32, 32)", "correct size"],
        ),
        (
            '{"image_processor_type": "ViTImageProcessor", "size": 32, "image_mean": [0.5, 0.5]}',
            ["fails on its input", "replace its files"],
        ),
        ('{"image_processor_type": "E", "auto_map": {"AutoImageProcessor": "e.E"}}', ["can't be loaded"]),
    ],
)
def test_a_broken_image_processor_is_named(tmp_path: Path, settings: str, words: list[str]) -> None:
    """The same holds for pictures: the file, the sizes, and what to do."""
    torch.manual_seed(0)
    ViTForImageClassification(ViTConfig(**TINY_BERT, image_size=32)).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(settings)
    (tmp_path / "e.py").write_text("raise SystemExit('code of the model was run')")
    message = failure(tmp_path, length=None)
    assert not [word for word in words if word not in message], message


def test_running_out_of_memory_is_no_fault_of_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of texts for which there is no memory is told as that."""
    write_bert(tmp_path)
    loaded = load_directory(tmp_path)
    processor = loaded.host.end_to_end.processor
    assert processor is not None

    def exhaust() -> None:
        raise MemoryError

    monkeypatch.setattr(type(processor), "reader", lambda *_: exhaust)
    with pytest.raises(Exception, match="memory ran out") as caught:
        loaded.verify(only_shape(loaded))
    assert getattr(caught.value, "reason", None) is FailureReason.OUT_OF_MEMORY
