"""From text or image to label, with real tokenizers and processors; expected labels come from independent code."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="install the torch extra to test end-to-end calls")

import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer
from transformers import BertModel, ViTConfig, ViTForImageClassification

from inferbench_runner.backends import endtoend, images, wordpiece
from inferbench_runner.backends import text as text_module
from inferbench_runner.backends.configuration import random_configuration
from inferbench_runner.backends.cpu import CPUModel
from inferbench_runner.backends.decisions import make_decide
from inferbench_runner.backends.inputs import make_inputs
from inferbench_runner.backends.tasks import TASKS
from inferbench_runner.backends.text import TextProcessor
from inferbench_runner.backends.wordpiece import seeded_tokenizer
from inferbench_runner.contract import ModelRef, Shape, Weights
from test_runner.builders import cell
from test_runner.tiny import (
    MINILM,
    SMALL,
    TINY_ALBERT,
    TINY_DISTILBERT,
    TINY_VIT,
    load_directory,
    load_random,
    make_tokenizer,
    only_shape,
    run_end_to_end,
    write_bert,
)

# Until version 5 of the library the shorter name was that of the processor which works on the host.
HostProcessor = getattr(transformers, "ViTImageProcessorPil", None) or transformers.ViTImageProcessor


class Recorder:
    """A tokenizer that writes down what it was given."""

    def __init__(self, tokenizer: Any) -> None:  # noqa: ANN401  # the library has no types
        """Stand in front of a tokenizer."""
        self._tokenizer = tokenizer
        self.given: list[tuple[list[str], ...]] = []

    def __call__(self, *texts: Any, **options: object) -> Any:  # noqa: ANN401
        """Write down and pass on."""
        self.given.append(texts)
        return self._tokenizer(*texts, **options)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Pass everything else on."""
        return getattr(self._tokenizer, name)

    def __len__(self) -> int:
        """Pass on."""
        return len(self._tokenizer)


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """Record what each tokenizer is given that is loaded, or made, from now on."""
    found: list[Recorder] = []

    def record(tokenizer: Any) -> Recorder:  # noqa: ANN401
        found.append(Recorder(tokenizer))
        return found[-1]

    load, seeded = text_module.load_tokenizer, seeded_tokenizer
    monkeypatch.setattr(endtoend, "load_tokenizer", lambda directory: record(load(directory)))
    monkeypatch.setattr(wordpiece, "seeded_tokenizer", lambda *arguments: record(seeded(*arguments)))
    return found


def encode(path: Path, text: str, length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ids, mask and types of one text, padded by hand, as the tokenizer's own library gives them."""
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    encoded = tokenizer.encode(text)
    assert len(encoded.ids) <= length
    rest = [0] * (length - len(encoded.ids))
    rows = (encoded.ids + rest, encoded.attention_mask + rest, encoded.type_ids + rest)
    ids, mask, types = (torch.tensor([row]) for row in rows)
    return ids, mask, types


def test_a_tokenizers_order_of_keys_does_not_matter(tmp_path: Path, recorders: list[Recorder]) -> None:
    """BERT's tokenizer yields ids, types, mask, and its forward pass takes ids, mask, types: names decide, not places.

    By place the labels would be others, which shows that the test can fail.
    """
    model = write_bert(tmp_path)
    loaded = load_directory(tmp_path, shapes=((12, 40),))
    labels = run_end_to_end(loaded)
    (texts,) = recorders[0].given[-1]
    expected, by_place = [], []
    for text in texts:
        ids, mask, types = encode(tmp_path, text, 12)
        with torch.no_grad():
            right = model(input_ids=ids, attention_mask=mask, token_type_ids=types).logits
            swapped = model(ids, types, mask).logits
        expected.append(["bad", "fair", "good"][int(right.argmax())])
        by_place.append(["bad", "fair", "good"][int(swapped.argmax())])
    assert list(make_tokenizer()("red cat")) == ["input_ids", "token_type_ids", "attention_mask"]
    assert labels == expected
    assert labels != by_place
    assert len(set(texts)) > 35


def test_a_published_tokenizer_and_model_give_the_vector_that_their_own_libraries_give(
    recorders: list[Recorder],
) -> None:
    """A sentence's vector is the mean over its tokens, as for this model is usual."""
    loaded = load_directory(MINILM, "feature-extraction", shapes=((24, 2),))
    vectors = run_end_to_end(loaded)
    (texts,) = recorders[0].given[-1]
    model = BertModel.from_pretrained(MINILM).eval()
    for text, vector in zip(texts, vectors, strict=True):
        ids, mask, types = encode(MINILM, text, 24)
        with torch.no_grad():
            hidden = model(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state[0].numpy()
        attended = hidden[: int(mask.sum())]
        assert np.allclose(vector, attended.mean(axis=0), atol=1e-5)


def test_texts_have_about_as_many_tokens_as_the_shape() -> None:
    """Real words, of which hardly any is cut into pieces: the rows are full, and the seed decides which they are."""
    loaded = load_directory(MINILM, "feature-extraction")
    assert loaded.facts["processor"].startswith("BertTokenizer")
    assert loaded.facts["processorSize"] == "30522 tokens"
    processor = loaded.host.end_to_end.processor
    assert isinstance(processor, TextProcessor)
    for length in (8, 64, 512):
        shape = Shape(cell=cell(0), sequence_length=length, batch_size=3)
        readers = [replace(processor, seed=seed).reader(shape) for seed in (1, 1, 2)]
        one, same, other = (read() for read in readers if read)
        for row in (one, same, other):
            assert row["input_ids"].shape == (3, length)
            assert row["attention_mask"].float().mean() > 0.95
            assert len({tuple(ids) for ids in row["input_ids"].tolist()}) == 3
        assert torch.equal(one["input_ids"], same["input_ids"])
        assert not torch.equal(one["input_ids"], other["input_ids"])


@pytest.mark.parametrize(
    ("model", "task", "length", "kind"),
    [
        ({}, None, 8, str),
        ({}, "feature-extraction", 8, list),
        ({}, "fill-mask", 8, str),
        ({}, "token-classification", 8, list),
        ({}, "question-answering", 8, str),
        ({"id": "roberta-base"}, None, 8, str),
        ({"id": "albert-base-v2", "config": TINY_ALBERT}, None, 8, str),
        ({"id": "distilbert-base-uncased", "config": TINY_DISTILBERT}, None, 8, str),
        ({"id": "google/vit-base-patch16-224", "config": TINY_VIT}, None, None, str),
        ({"id": "google/vit-base-patch16-224", "config": TINY_VIT}, "feature-extraction", None, list),
        ({"id": "google/vit-base-patch16-224", "config": TINY_VIT | {"num_channels": 1}}, None, None, str),
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_models_without_files_are_measured_end_to_end_too(
    model: dict[str, Any], task: str | None, length: int | None, kind: type, precision: str
) -> None:
    """Each task of each architecture has a decision for each input, with a seeded tokenizer or its own processor."""
    loaded = load_random(model=model | {"task": task}, precision=precision, shapes=((length, 3),))
    decisions = run_end_to_end(loaded)
    assert [type(one) for one in decisions] == [kind] * 3
    assert "not measured" not in loaded.facts["endToEnd"]


@pytest.mark.parametrize(
    ("model_id", "special"),
    [
        ("bert-base-uncased", {"[PAD]": 0}),
        ("roberta-base", {"[CLS]": 0, "[PAD]": 1, "[SEP]": 2}),
        ("albert-base-v2", {"[PAD]": 0, "[CLS]": 2, "[SEP]": 3}),
        ("distilbert-base-uncased", {"[PAD]": 0}),
    ],
)
def test_a_seeded_vocabulary_is_the_models_own_size(model_id: str, special: dict[str, int]) -> None:
    """Each number of the embedding is one token, and special tokens are where the configuration has them."""
    configuration = random_configuration(ModelRef(id=model_id, weights=Weights.RANDOM))
    tokenizer = seeded_tokenizer(configuration, 3)
    vocabulary = tokenizer.get_vocab()
    assert sorted(vocabulary.values()) == list(range(configuration.vocab_size))
    assert {name: vocabulary[name] for name in special} == special
    assert (
        vocabulary == seeded_tokenizer(configuration, 3).get_vocab() != seeded_tokenizer(configuration, 4).get_vocab()
    )
    types = ["token_type_ids"] if getattr(configuration, "type_vocab_size", 0) > 1 else []
    assert list(tokenizer("some words")) == ["input_ids", *types, "attention_mask"]
    assert tokenizer.decode(tokenizer("some words")["input_ids"], skip_special_tokens=True) == "some words"


@pytest.mark.parametrize(("size", "measured"), [(5, False), (6, True)])
def test_a_vocabulary_without_words_is_not_measured_end_to_end(size: int, measured: bool) -> None:  # noqa: FBT001
    """Where there is no room beside the special tokens, the call is still measured and the fact says why no more is."""
    loaded = load_random(model={"config": SMALL | {"vocab_size": size}})
    loaded.verify(only_shape(loaded))
    with loaded.bound(only_shape(loaded)) as bound:
        assert (bound.end_to_end is not None) is measured
    assert ("not measured: a vocabulary of 5" in loaded.facts["endToEnd"]) is not measured


@pytest.mark.parametrize(("task", "length"), [(None, 2), ("question-answering", 4)])
def test_a_length_without_room_for_a_word_is_measured_without_text(task: str | None, length: int) -> None:
    """Such a shape has no end-to-end call; one token more, and it has."""
    loaded = load_random(model={"task": task}, shapes=((length, 1), (length + 1, 1)))
    for shape, expected in zip(loaded.plan.shapes, (False, True), strict=True):
        loaded.verify(shape)
        with loaded.bound(shape) as bound:
            assert (bound.end_to_end is not None) is expected


def test_a_masked_word_is_filled_with_the_likeliest_one(recorders: list[Recorder]) -> None:
    """The word is that of the largest logit at the masked place, of which each text has one."""
    loaded = load_random(model={"task": "fill-mask"}, shapes=((8, 4),))
    words = run_end_to_end(loaded)
    (texts,) = recorders[0].given[-1]
    vocabulary = {number: word for word, number in recorders[0].get_vocab().items()}
    for text, word in zip(texts, words, strict=True):
        tokens = recorders[0](text)
        place = tokens["input_ids"].index(recorders[0].mask_token_id)
        assert tokens["input_ids"].count(recorders[0].mask_token_id) == 1
        with torch.no_grad():
            logits = loaded.host.model(**{name: torch.tensor([row]) for name, row in tokens.items()}).logits[0, place]
        assert word == vocabulary[int(logits.argmax())]


def test_an_answer_is_the_text_between_the_likeliest_ends(recorders: list[Recorder]) -> None:
    """A question and its context go in as two texts with two types of token, and words of them come out."""
    loaded = load_random(model={"task": "question-answering"}, shapes=((16, 12),), seed=4)
    answers = run_end_to_end(loaded)
    questions, contexts = recorders[0].given[-1]
    expected = []
    for question, context in zip(questions, contexts, strict=True):
        tokens = recorders[0]([question], [context], return_tensors="pt")
        assert set(tokens["token_type_ids"][0].tolist()) == {0, 1}
        with torch.no_grad():
            output = loaded.host.model(**tokens)
        start, end = int(output.start_logits.argmax()), int(output.end_logits.argmax())
        pieces = recorders[0].convert_ids_to_tokens(tokens["input_ids"][0][start : end + 1].tolist())
        expected.append(" ".join(piece for piece in pieces if not piece.startswith("[")).replace(" ##", ""))
    assert answers == expected
    assert any(answers)


def test_each_attended_token_gets_a_label() -> None:
    """Token classification gives one label per token of the text, by the configuration's names."""
    config = SMALL | {"num_labels": 3}
    loaded = load_random(model={"task": "token-classification", "config": config}, shapes=((8, 2),))
    read = _read(loaded)
    with torch.no_grad():
        expected = loaded.host.model(**read).logits.numpy().argmax(axis=2)
    assert run_end_to_end(loaded) == [[f"LABEL_{number}" for number in row] for row in expected]


@pytest.mark.parametrize("pretrained", [False, True])
def test_a_picture_becomes_the_label_that_arithmetic_by_hand_gives(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pretrained: bool,  # noqa: FBT001
) -> None:
    """Resized, scaled to [-1, 1] and classified: torchvision is not needed, and the largest logit's name comes out."""
    given: list[Any] = []
    fit = images.fit_image_processor

    def recording(processor: Any, *rest: Any) -> images.PictureProcessor:  # noqa: ANN401
        def process(*, images: list[Any], return_tensors: str) -> Any:  # noqa: ANN401
            given.append(images)
            return processor(images=images, return_tensors=return_tensors)

        return fit(process, *rest)

    monkeypatch.setattr(images, "fit_image_processor", recording)
    if pretrained:
        torch.manual_seed(2)
        ViTForImageClassification(ViTConfig(**TINY_VIT, initializer_range=0.5)).save_pretrained(tmp_path)
        HostProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path)
        loaded = load_directory(tmp_path, shapes=((None, 3),))
    else:
        loaded = load_random(model={"id": "google/vit-base-patch16-224", "config": TINY_VIT}, shapes=((None, 3),))
    labels = run_end_to_end(loaded)
    expected = []
    for picture in given[-1]:
        assert picture.shape == (480, 640, 3)
        assert picture.dtype == np.uint8
        small = np.asarray(Image.fromarray(picture).resize((32, 32), Image.Resampling.BILINEAR), dtype=np.float32)
        pixels = torch.from_numpy((small / 255 - 0.5) / 0.5).permute(2, 0, 1).unsqueeze(0)
        with torch.no_grad():
            expected.append(f"LABEL_{int(loaded.host.model(pixel_values=pixels).logits.argmax())}")
    assert labels == expected
    assert loaded.facts["processorSize"] == "32x32 pixels"


def test_channels_that_no_picture_has_are_measured_without_pictures() -> None:
    """An override that no image processor can serve leaves the call, and the fact says why there is no more."""
    config = TINY_VIT | {"num_channels": 5}
    loaded = load_random(model={"id": "google/vit-base-patch16-224", "config": config}, shapes=((None, 1),))
    loaded.verify(only_shape(loaded))
    assert loaded.facts["endToEnd"].startswith("not measured: the architecture's image processor can't serve")


def test_a_convolutional_network_takes_the_usual_size(tmp_path: Path) -> None:
    """Its configuration has no size of images, and each task has a decision for it too."""
    sizes = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "num_labels": 3}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    for task, output in (("image-classification", "logits"), ("feature-extraction", "last_hidden_state")):
        loaded = load_random(model={"id": str(tmp_path), "config": {}, "task": task}, shapes=((None, 2),))
        loaded.verify(only_shape(loaded))
        inputs = make_inputs(loaded.host.model, only_shape(loaded), 0)
        assert inputs["pixel_values"].shape == (2, 3, 224, 224)
        found: Any = make_decide(TASKS[task], loaded.host.model)(loaded.host.model(**inputs), inputs)
        with torch.no_grad():
            expected = getattr(loaded.host.model(**inputs), output).numpy()
        if output == "logits":
            assert found == [f"LABEL_{number}" for number in expected.argmax(axis=1)]
        else:
            assert np.allclose(found, expected.mean(axis=(2, 3)), atol=1e-6)


def test_a_directory_without_a_tokenizer_is_measured_without_text(tmp_path: Path) -> None:
    """The call is measured all the same, and the fact says why the rest is not."""
    write_bert(tmp_path, tokenizer=False)
    loaded = load_directory(tmp_path)
    loaded.verify(only_shape(loaded))
    with loaded.bound(only_shape(loaded)) as bound:
        assert bound.end_to_end is None
    assert loaded.facts["endToEnd"] == "not measured: the model's directory has no tokenizer.json and no vocabulary"


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collector")
def test_calls_leave_nothing_for_the_garbage_collector() -> None:
    """The collector is off while a latency is measured, so that a cycle per call would fill the memory."""
    text = load_random()
    image = load_random(model={"id": "google/vit-base-patch16-224", "config": TINY_VIT}, shapes=((None, 1),))
    for loaded in (text, image):
        with loaded.bound(only_shape(loaded)) as bound, bound.worker():
            assert bound.end_to_end is not None
            bound.end_to_end()
            gc.collect()
            for _ in range(5):
                bound.end_to_end()
                bound.call()
            assert gc.collect() == 0


def _read(loaded: CPUModel) -> dict[str, torch.Tensor]:
    """Return what the processor makes of the first shape's raw inputs."""
    assert loaded.host.end_to_end.processor is not None
    read = loaded.host.end_to_end.processor.reader(only_shape(loaded))
    assert read is not None
    return read()
