"""Models as they are built, from the catalogue, a configuration or files: their sizes, seeds and damages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="install the torch extra to build models")

import torch

from inferbench_runner.backends import open_backend
from inferbench_runner.backends.base import Source
from inferbench_runner.backends.configuration import random_configuration
from inferbench_runner.backends.inputs import make_inputs
from inferbench_runner.backends.tasks import choose_task, model_class
from inferbench_runner.contract import FailureReason, ModelRef, Shape, Weights
from inferbench_runner.errors import RunnerError
from test_runner.builders import TINY_BERT, cell, host, plan
from test_runner.tiny import MINILM, load_directory, load_random, only_shape, write_bert


@pytest.mark.parametrize(
    ("model_id", "body", "head"),
    [
        # Published sizes without a head, and what the library's classification head adds to (or, with RoBERTa, puts in
        # place of) the pooler: pooler, dense, output.
        ("bert-base-uncased", 109_482_240, 768 * 2 + 2),
        ("google-bert/bert-large-uncased", 335_141_888, 1024 * 2 + 2),
        ("roberta-base", 124_645_632, 768 * 2 + 2),
        ("distilbert/distilbert-base-uncased", 66_362_880, 768 * 768 + 768 + 768 * 2 + 2),
        ("albert-base-v2", 11_683_584, 768 * 2 + 2),
        ("google/vit-base-patch16-224", 85_798_656, 768 * 1000 + 1000),
    ],
)
def test_catalogue_models_have_the_published_sizes(model_id: str, body: int, head: int) -> None:
    """The number of parameters is the published one plus the head's."""
    configuration = random_configuration(ModelRef(id=model_id, weights=Weights.RANDOM))
    task = choose_task(None, configuration.model_type)
    with torch.device("meta"):
        model = model_class(task, configuration.model_type)(configuration)
    assert sum(parameter.numel() for parameter in model.parameters()) == body + head


def test_the_seed_decides_weights_and_inputs() -> None:
    """The same seed gives the same model and inputs, another seed others, whatever the number of threads."""
    one, same, other = load_random(seed=1), load_random(seed=1), load_random(seed=2)
    weights = [loaded.host.model.bert.encoder.layer[0].intermediate.dense.weight for loaded in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert weights[0].std().item() == pytest.approx(0.02, rel=0.1)
    tokens = [
        make_inputs(one.host.model, Shape(cell=cell(0), sequence_length=64), seed)["input_ids"] for seed in (1, 1, 2)
    ]
    assert torch.equal(tokens[0], tokens[1])
    assert not torch.equal(tokens[0], tokens[2])


def test_tied_weights_stay_tied() -> None:
    """The decoder of a masked language model shares its matrix with the embeddings."""
    model = load_random(model={"task": "fill-mask"}).host.model
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight


def test_a_directory_gives_the_configuration_for_random_weights(tmp_path: Path) -> None:
    """A config.json on a mounted volume is enough; overrides go on top of it."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", **TINY_BERT, "vocab_size": 77}))
    loaded = load_random(model={"id": str(tmp_path), "config": {"num_labels": 5}})
    assert (loaded.host.model.config.vocab_size, loaded.host.model.config.num_labels) == (77, 5)
    loaded.verify(only_shape(loaded))


@pytest.mark.parametrize("text", ["{", '{"model_type": "no-such"}', '{"auto_map": {"AutoConfig": "evil.Config"}}'])
def test_a_configuration_that_transformers_does_not_know_is_unsupported(tmp_path: Path, text: str) -> None:
    """Neither broken JSON nor a model that brings its own code is loaded."""
    (tmp_path / "config.json").write_text(text)
    (tmp_path / "evil.py").write_text("raise SystemExit('code of the model was run')")
    with pytest.raises(RunnerError) as caught:
        load_random(model={"id": str(tmp_path), "config": {}})
    assert caught.value.reason is FailureReason.MODEL_UNSUPPORTED


def test_a_published_model_is_loaded_from_its_directory() -> None:
    """A real model's files give all of its weights, and the output gate lets it pass."""
    loaded = load_directory(MINILM, "feature-extraction", shapes=((16, 2),))
    assert loaded.facts["parameters"] == "22713216"
    assert loaded.facts["initialisedTensors"] == "0"
    loaded.verify(only_shape(loaded))


def test_a_head_that_the_files_lack_is_named() -> None:
    """A missing head is initialised by the seed, and the report says which tensors that concerns."""
    one, same = (load_directory(MINILM, "text-classification", seed=3) for _ in range(2))
    assert one.facts["initialisedTensors"] == "2: classifier.bias classifier.weight"
    assert torch.equal(one.host.model.classifier.weight, same.host.model.classifier.weight)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("no folder", FailureReason.MODEL_NOT_FOUND),
        ("no config.json", FailureReason.MODEL_NOT_FOUND),
        ("no weights", FailureReason.MODEL_UNSUPPORTED),
        ("cut weights", FailureReason.MODEL_UNSUPPORTED),
        ("other sizes", FailureReason.MODEL_UNSUPPORTED),
    ],
)
def test_damaged_directories_are_told_apart(tmp_path: Path, damage: str, reason: FailureReason) -> None:
    """What is wrong with a model's directory decides the reason."""
    folder = tmp_path / "model"
    if damage != "no folder":
        folder.mkdir()
        (folder / "model.safetensors").symlink_to(MINILM / "model.safetensors")
        shutil.copy(MINILM / "config.json", folder)
    match damage:
        case "no config.json":
            (folder / "config.json").unlink()
        case "no weights":
            (folder / "model.safetensors").unlink()
        case "cut weights":
            (folder / "model.safetensors").unlink()
            (folder / "model.safetensors").write_bytes((MINILM / "model.safetensors").read_bytes()[:1000])
        case "other sizes":
            changed = json.loads((MINILM / "config.json").read_text()) | {"hidden_size": 24}
            (folder / "config.json").write_text(json.dumps(changed))
        case _:
            pass
    with pytest.raises(RunnerError) as caught:
        load_directory(folder)
    assert caught.value.reason is reason, str(caught.value)


def test_the_hubs_commit_is_a_fact(tmp_path: Path) -> None:
    """Which files were measured can be told later."""
    write_bert(tmp_path, tokenizer=False)
    wanted = plan(model={"id": "a/b", "weights": "Pretrained", "config": {}})
    loaded = open_backend(wanted, host()).load(wanted.model, Source(directory=tmp_path, commit="0123abcd"))
    assert loaded.facts["modelCommit"] == "0123abcd"
