"""The output gate with real models: right ones pass with room, wrong ones are refused."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from test_runner.builders import TINY_BERT

pytest.importorskip("torch", reason="install the torch extra to test the output gate")

import torch
from transformers.modeling_outputs import BaseModelOutput

from inferbench_runner.backends import reference as reference_module
from inferbench_runner.backends.cpu import CPUModel
from inferbench_runner.backends.inputs import half_padded
from inferbench_runner.backends.proof import Evidence, places, watched
from inferbench_runner.backends.reference import References, eager_attention, probes, rows_of
from inferbench_runner.backends.tasks import TASKS, model_class
from inferbench_runner.contract import FailureReason
from inferbench_runner.errors import DeviceUnusedError, ModelUnsupportedError, NumericMismatchError, RunnerError
from test_runner.tiny import SMALL, TINY_VIT, load_random, only_shape

WIDE_VIT = {"num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 512}
WIDE = WIDE_VIT | {"vocab_size": 99}
WIDE_DISTILBERT = {"n_layers": 2, "dim": 256, "n_heads": 4, "hidden_dim": 512, "vocab_size": 99}

Rewire = Callable[[dict[str, Any]], dict[str, Any]]


def rewire(loaded: CPUModel, change: Rewire) -> None:
    """Let the model get other inputs than those that it is called with."""
    forward = loaded.host.model.forward

    @wraps(forward)
    def changed(**inputs: Any) -> Any:  # noqa: ANN401  # passed through
        return forward(**change(inputs))

    loaded.host.model.forward = changed


def swap(inputs: dict[str, Any]) -> dict[str, Any]:
    """Exchange mask and types, as binding the tokenizer's output by position does."""
    return inputs | {"attention_mask": inputs["token_type_ids"], "token_type_ids": inputs["attention_mask"]}


def no_mask(inputs: dict[str, Any]) -> dict[str, Any]:
    """Attend to everything."""
    return inputs | {"attention_mask": torch.ones_like(inputs["attention_mask"])}


def no_types(inputs: dict[str, Any]) -> dict[str, Any]:
    """Leave the types out."""
    return inputs | {"token_type_ids": None}


@pytest.mark.parametrize(
    ("model_id", "config", "length"),
    [
        ("bert-base-uncased", WIDE, 16),
        ("bert-large-uncased", WIDE, 16),
        ("roberta-base", WIDE, 16),
        ("distilbert-base-uncased", WIDE_DISTILBERT, 16),
        ("albert-base-v2", WIDE | {"embedding_size": 64}, 16),
        ("google/vit-base-patch16-224", WIDE_VIT | {"image_size": 64}, None),
    ],
)
@pytest.mark.parametrize(("precision", "room"), [("fp32", 50), ("bf16", 3)])
def test_each_catalogue_model_passes_with_room(
    model_id: str, config: dict[str, Any], length: int | None, precision: str, room: int
) -> None:
    """A right model's figures are far inside of the tolerance, for a single input as for several."""
    for shape in ((length, 1), (length, 4)):
        loaded = load_random(model={"id": model_id, "config": config}, precision=precision, shapes=(shape,))
        found = loaded.verify(only_shape(loaded))
        assert float(found.max_relative_error) * room < float(found.max_relative_error_allowed)
        assert (1 - float(found.cosine_similarity)) * room < 1 - float(found.min_cosine_similarity)
        assert "on the CPU in fp32" in found.reference


@pytest.mark.parametrize("task", ["text-classification", "fill-mask", "feature-extraction", "question-answering"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_swapped_mask_and_types_are_caught(task: str, precision: str) -> None:
    """The published study's fault can't get a number here, in any task or precision."""
    loaded = load_random(model={"task": task}, precision=precision, shapes=((32, 1),))
    loaded.verify(only_shape(loaded))
    rewire(loaded, swap)
    with pytest.raises(NumericMismatchError):
        loaded.verify(only_shape(loaded))


@pytest.mark.parametrize("change", [no_mask, no_types])
def test_inputs_that_are_ignored_are_caught(change: Rewire) -> None:
    """With padding and both types in the check, neither mask nor types can be left out."""
    loaded = load_random(shapes=((8, 1),))
    rewire(loaded, change)
    with pytest.raises(NumericMismatchError):
        loaded.verify(only_shape(loaded))


def test_the_timed_inputs_are_compared_too() -> None:
    """A model that is wrong for full rows only is refused, since those are what is timed."""
    loaded = load_random(shapes=((8, 1),))
    loaded.verify(only_shape(loaded))
    rewire(loaded, lambda inputs: inputs | {"input_ids": inputs["input_ids"] * (1 - inputs["attention_mask"].min())})
    with pytest.raises(NumericMismatchError):
        loaded.verify(only_shape(loaded))


@pytest.mark.parametrize("value", [float("nan"), 3.0])
def test_broken_weights_are_caught(value: float) -> None:
    """A weight that changed after the reference was computed, to something finite or not, is a mismatch."""
    loaded = load_random()
    with torch.no_grad():
        loaded.host.model.classifier.weight[0] = value
    with pytest.raises(NumericMismatchError):
        loaded.verify(only_shape(loaded))


def test_weights_that_were_broken_before_are_caught_as_well() -> None:
    """A model whose output is not finite in fp32 either has no reference, which fails its shapes and not the load."""
    loaded = load_random(referred=False, model={"config": SMALL | {"initializer_range": 1e30}})
    with pytest.raises(NumericMismatchError, match="finite"):
        loaded.refer(only_shape(loaded))


def test_half_of_a_row_is_padding() -> None:
    """The check has padding, both types, and the full-length inputs left as they were; short rows have no room."""
    model = load_random().host.model
    shape = only_shape(load_random(shapes=((9, 2),)))
    whole, padded = (probe.inputs for probe in probes(model, shape, 0))
    assert whole["attention_mask"].tolist() == [[1] * 9] * 2
    assert padded["attention_mask"].tolist() == [[1] * 5 + [0] * 4] * 2
    assert padded["token_type_ids"].tolist() == [[0, 0, 1, 1, 1, 0, 0, 0, 0]] * 2
    assert padded["input_ids"][:, 5:].eq(0).all()
    assert torch.equal(padded["input_ids"][:, :5], whole["input_ids"][:, :5])
    assert half_padded(model, {name: tensor[:, :3] for name, tensor in whole.items()}) is None


def test_a_reference_is_the_same_however_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large batches go through the reference in pieces, and the rows keep their order."""
    for task in ("question-answering", "token-classification"):
        loaded = load_random(model={"task": task}, shapes=((8, 5),))
        shape = only_shape(loaded)
        monkeypatch.setattr(reference_module, "CHUNK", 16)
        pieces = References(loaded.host.model, TASKS[task], 0)
        pieces.add(shape)
        monkeypatch.undo()
        for one, other in zip(loaded.host.references.of(shape), pieces.of(shape), strict=True):
            assert torch.allclose(one, other, atol=1e-6)


def test_what_another_process_found_right_is_compared_with() -> None:
    """It is not computed again, and a process whose model has other weights is found out."""
    shape = only_shape(first := load_random(referred=False))
    rows = first.refer(shape)
    same, other = load_random(referred=False), load_random(referred=False, seed=1)
    assert same.refer(shape, rows) is rows
    same.verify(shape)
    other.refer(shape, rows)
    with pytest.raises(NumericMismatchError):
        other.verify(shape)


def test_large_outputs_are_thinned_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an output with too many elements the first, the last and some tokens between are kept, padding never."""
    monkeypatch.setattr(reference_module, "ELEMENTS", 3 * 2 * 4)
    logits = torch.arange(10.0).reshape(1, 10, 1).expand(2, 10, 4)

    class Output:
        pass

    output = Output()
    output.logits = logits  # type: ignore[attr-defined]
    rows = rows_of(output, TASKS["fill-mask"], 2, 7)
    assert rows[:, 0].tolist() == [0, 3, 6, 0, 3, 6]


def test_attention_is_eager_for_the_reference_only() -> None:
    """The model is measured with its own attention afterwards, whatever happened meanwhile."""
    loaded = load_random()
    usual = loaded.facts["attention"]

    def interrupted() -> None:
        with eager_attention(loaded.host.model) as used:
            assert used == loaded.host.model.config._attn_implementation == "eager"  # noqa: SLF001  # the library's own name
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert loaded.host.model.config._attn_implementation == usual == "sdpa"  # noqa: SLF001


def test_a_failed_reference_holds_no_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a failed computation had allocated is free again: the other shapes need it."""
    held: list[weakref.ref[torch.Tensor]] = []

    def failing(*_: object) -> None:
        large = torch.zeros(8)
        held.append(weakref.ref(large))
        torch.empty(2**60, dtype=torch.int8)

    monkeypatch.setattr(reference_module, "check_output", failing)
    loaded = load_random(referred=False)
    with pytest.raises(RunnerError) as caught:
        loaded.refer(only_shape(loaded))
    gc.collect()
    assert held
    assert not [each for each in held if each() is not None]
    assert caught.value.reason is FailureReason.OUT_OF_MEMORY


def test_a_model_that_refuses_a_shape_is_unsupported_there(tmp_path: Path) -> None:
    """A decoder without padding takes single inputs only: its own words are the failure of the other shape."""
    sizes = {"model_type": "gpt2", "n_layer": 1, "n_embd": 32, "n_head": 2, "vocab_size": 99}
    (tmp_path / "config.json").write_text(json.dumps(sizes | {"bos_token_id": 1, "eos_token_id": 2}))
    loaded = load_random(referred=False, model={"id": str(tmp_path), "config": {}}, shapes=((8, 1), (8, 2)))
    one, two = loaded.plan.shapes
    loaded.refer(one)
    with pytest.raises(ModelUnsupportedError, match=r"can't be called with 2 inputs of 8 tokens; use .* padding token"):
        loaded.refer(two)
    loaded.verify(one)


def test_a_model_of_sound_is_unsupported_and_not_an_accident(tmp_path: Path) -> None:
    """What takes neither text nor images is refused shape by shape, by name."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(sizes | {"model_type": "audio-spectrogram-transformer"}))
    loaded = load_random(referred=False, model={"id": str(tmp_path), "config": {}, "task": "feature-extraction"})
    with pytest.raises(ModelUnsupportedError, match="takes input_values; this runner feeds"):
        loaded.refer(only_shape(loaded))
    assert loaded.facts["endToEnd"] == "not measured: the model takes input_values"


def test_a_model_without_the_tasks_output_fails_its_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward pass that gives no logits is no classifier, whatever its configuration says."""
    kind = model_class(TASKS["text-classification"], "bert")
    forward = kind.forward

    @wraps(forward)
    def headless(self: Any, **inputs: Any) -> Any:  # noqa: ANN401  # passed through
        return BaseModelOutput(last_hidden_state=forward(self, **inputs).logits)

    monkeypatch.setattr(kind, "forward", headless)
    loaded = load_random(referred=False)
    with pytest.raises(ModelUnsupportedError, match=r"model\.task: the output has no logits"):
        loaded.refer(only_shape(loaded))


def test_few_images_are_enough_for_the_scale() -> None:
    """A classifier of images with few labels has a scale from more images than the one that is compared."""
    loaded = load_random(model={"id": "google/vit-base-patch16-224", "config": TINY_VIT}, shapes=((None, 1),))
    loaded.host.references.complete()
    (rows,) = loaded.host.references.of(only_shape(loaded))
    assert loaded.host.references.scale.magnitude >= float(rows.abs().max())


def test_the_device_that_was_asked_for_must_have_worked() -> None:
    """Weights elsewhere, or a device that stood still during the call, are refused; both on the device pass."""
    model = load_random(model={"config": TINY_BERT | {"vocab_size": 9}}).host.model
    counter = iter([5, 9])
    output, evidence = watched(lambda: "output", model, lambda: next(counter))
    assert (output, evidence) == ("output", Evidence(frozenset({"cpu"}), 4))
    evidence.require("CPU", "cpu")
    for wrong, place in ((Evidence(places(model), 4), "cuda"), (Evidence(places(model), 0), "cpu")):
        with pytest.raises(DeviceUnusedError, match="was asked for"):
            wrong.require("NVIDIA", place)
