"""The CPU back end with real libraries and tiny models; nothing is downloaded."""

from __future__ import annotations

import json
import os
import shutil
import threading
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from test_runner.builders import TINY_BERT, cell, host, plan

pytest.importorskip("torch", reason="install the torch extra to test the CPU back end")

import torch
from transformers import AutoTokenizer

from inferbench_runner.backends import open_backend
from inferbench_runner.backends.base import Source
from inferbench_runner.backends.configuration import random_configuration
from inferbench_runner.backends.environment import DEFAULTS
from inferbench_runner.backends.inputs import make_inputs, maximum_length
from inferbench_runner.backends.outputs import check_output
from inferbench_runner.backends.tasks import TASKS, choose_task, model_class
from inferbench_runner.contract import FailureReason, ModelRef, Shape, Weights
from inferbench_runner.errors import RunnerError
from inferbench_runner.probe import Host
from test_runner.tiny import (
    MINILM,
    SMALL,
    TINY_ALBERT,
    TINY_DISTILBERT,
    TINY_VIT,
    load,
    load_directory,
    load_random,
    only_shape,
    run_end_to_end,
    write_bert,
)


def shape(length: int | None = 8, batch: int = 1) -> Shape:
    """Return a shape."""
    return Shape(cell=cell(0), sequence_length=length, batch_size=batch)


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


@pytest.mark.parametrize(
    ("model", "task", "length"),
    [
        ({}, "text-classification", 8),
        ({}, "feature-extraction", 8),
        ({}, "fill-mask", 8),
        ({}, "token-classification", 8),
        ({}, "question-answering", 8),
        ({"id": "roberta-base"}, None, 64),
        ({"id": "albert-base-v2", "config": TINY_ALBERT}, None, 8),
        ({"id": "distilbert-base-uncased", "config": TINY_DISTILBERT}, None, 8),
        ({"id": "google/vit-base-patch16-224", "config": TINY_VIT}, None, None),
        ({"id": "google/vit-base-patch16-224", "config": TINY_VIT}, "feature-extraction", None),
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_each_architecture_and_task_passes_its_own_gate(
    model: dict[str, Any], task: str | None, length: int | None, precision: str
) -> None:
    """Every task of every architecture in the catalogue runs, in both precisions, with more than one input."""
    loaded = load_random(model=model | {"task": task}, precision=precision, shapes=((length, 2),))
    correctness = loaded.verify(only_shape(loaded))
    assert float(correctness.max_relative_error) < float(correctness.max_relative_error_allowed) / 4
    assert loaded.facts["precision"] == {"fp32": "float32", "bf16": "bfloat16"}[precision]
    assert loaded.facts["attention"] == "sdpa"


def test_bfloat16_differs_from_full_precision_by_its_rounding_only() -> None:
    """The same weights and inputs give nearly the same output, so that bf16 does what it says."""
    full, half = (load_random(model={"task": "feature-extraction"}, precision=name) for name in ("fp32", "bf16"))
    with full.bound(shape()) as one, half.bound(shape()) as other, torch.no_grad():
        outputs: list[Any] = [one.call(), other.call()]
        expected, found = outputs[0].last_hidden_state, outputs[1].last_hidden_state.float()
    similarity = torch.nn.functional.cosine_similarity(expected, found, dim=-1)
    assert similarity.min() > 0.99
    assert not torch.equal(expected, found)


def test_the_seed_decides_weights_and_inputs() -> None:
    """The same seed gives the same model and inputs, another seed others, whatever the number of threads."""
    one, same, other = load_random(seed=1), load_random(seed=1), load_random(seed=2)
    weights = [loaded.host.model.bert.encoder.layer[0].intermediate.dense.weight for loaded in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert weights[0].std().item() == pytest.approx(0.02, rel=0.1)
    tokens = [make_inputs(one.host.model, shape(64), seed)["input_ids"] for seed in (1, 1, 2)]
    assert torch.equal(tokens[0], tokens[1])
    assert not torch.equal(tokens[0], tokens[2])


def test_tied_weights_stay_tied() -> None:
    """The decoder of a masked language model shares its matrix with the embeddings."""
    model = load_random(model={"task": "fill-mask"}).host.model
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight


def test_inputs_are_bound_by_name_and_hold_no_padding() -> None:
    """A mask of ones and token types of zeros go to their own parameters, and no token is the padding one."""
    model = load_random(model={"config": SMALL | {"vocab_size": 5, "pad_token_id": 2}}).host.model
    inputs = make_inputs(model, shape(400), 0)
    assert list(inputs) == ["input_ids", "attention_mask", "token_type_ids"]
    assert set(inputs["input_ids"].flatten().tolist()) == {0, 1, 3, 4}
    assert bool((inputs["attention_mask"] == 1).all())
    assert bool((inputs["token_type_ids"] == 0).all())


def test_positions_before_the_padding_one_are_not_counted() -> None:
    """RoBERTa has 514 rows of positions and takes 512 tokens; BERT has and takes 512."""
    assert maximum_length(load_random(model={"id": "roberta-base"}).host.model) == 512
    assert maximum_length(load_random().host.model) == 512


@pytest.mark.parametrize(
    ("fields", "length", "reason", "words"),
    [
        ({}, 513, FailureReason.SEQUENCE_TOO_LONG, ["513", "512"]),
        ({"model": {"id": "roberta-base"}}, 513, FailureReason.SEQUENCE_TOO_LONG, ["513", "512"]),
        ({}, None, FailureReason.INVALID_PLAN, ["sequenceLength"]),
        ({"model": {"id": "bert-huge-uncased"}}, 8, FailureReason.MODEL_NOT_FOUND, ["bert-huge", "bert-large-uncased"]),
        ({"model": {"id": "/nowhere"}}, 8, FailureReason.MODEL_NOT_FOUND, ["/nowhere"]),
        ({"model": {"task": "summarization"}}, 8, FailureReason.TASK_UNSUPPORTED, ["summarization", "fill-mask"]),
        ({"model": {"task": "image-classification"}}, 8, FailureReason.TASK_UNSUPPORTED, ["bert", "text-class"]),
        (
            {"model": {"config": {"num_hiden_layers": 1}}},
            8,
            FailureReason.INVALID_MODEL_CONFIG,
            ["model.config.num_hiden_layers", "did you mean num_hidden_layers"],
        ),
        ({"model": {"config": {"zzz": 1}}}, 8, FailureReason.INVALID_MODEL_CONFIG, ["zzz", "config.json"]),
        ({"model": {"config": {"dtype": "float16"}}}, 8, FailureReason.INVALID_MODEL_CONFIG, ["dtype"]),
        ({"model": {"config": {"hidden_size": "32"}}}, 8, FailureReason.INVALID_MODEL_CONFIG, ["hidden_size", "int"]),
        ({"model": {"config": {"hidden_size": True}}}, 8, FailureReason.INVALID_MODEL_CONFIG, ["hidden_size", "int"]),
        ({"model": {"config": {"hidden_size": 33}}}, 8, FailureReason.INVALID_MODEL_CONFIG, ["33"]),
        ({"model": {"config": {"hidden_size": 2**40}}}, 8, FailureReason.OUT_OF_MEMORY, ["memory"]),
        ({"precision": "fp16"}, 8, FailureReason.PRECISION_UNSUPPORTED, ["fp16", "fp32 or bf16"]),
        ({"precision": "tf32"}, 8, FailureReason.PRECISION_UNSUPPORTED, ["tf32"]),
        ({"device": {"execution": "Trace"}}, 8, FailureReason.EXECUTION_UNSUPPORTED, ["Trace", "Eager"]),
    ],
)
def test_failures_are_typed_and_name_the_way_out(
    fields: dict[str, Any], length: int | None, reason: FailureReason, words: list[str]
) -> None:
    """Each kind of failure has its own reason and one sentence with the field and what to do."""

    def verify() -> None:
        loaded = load_random(**fields, shapes=((length, 1),))
        loaded.verify(only_shape(loaded))

    with pytest.raises(RunnerError) as caught:
        verify()
    assert caught.value.reason is reason
    assert not [word for word in words if word not in str(caught.value)], str(caught.value)


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


@pytest.mark.parametrize(
    ("logits", "reason"),
    [
        (torch.tensor([[1.0, float("nan")]]), FailureReason.NUMERIC_MISMATCH),
        (torch.tensor([[1.0, float("inf")]]), FailureReason.NUMERIC_MISMATCH),
        (torch.zeros(2, 2), FailureReason.NUMERIC_MISMATCH),
        (torch.zeros(1, 2, 3), FailureReason.NUMERIC_MISMATCH),
        (None, FailureReason.MODEL_UNSUPPORTED),
    ],
)
def test_the_gate_refuses_what_no_model_of_the_task_gives(logits: torch.Tensor | None, reason: FailureReason) -> None:
    """Outputs that are not finite, have another batch size or rank, or lack the head are refused."""

    class Output:
        pass

    output = Output()
    if logits is not None:
        output.logits = logits  # type: ignore[attr-defined]
    with pytest.raises(RunnerError) as caught:
        check_output(output, TASKS["text-classification"], shape(8, batch=1))
    assert caught.value.reason is reason


def exhaust() -> None:
    """Ask PyTorch for more memory than there is, for its own words about that."""
    torch.empty(2**60, dtype=torch.int8)


def test_running_out_of_memory_in_a_call_is_typed() -> None:
    """PyTorch's own words for a failed allocation become the reason of one shape."""
    loaded = load_random()

    def exhausted() -> None:
        with loaded.bound(shape()):
            exhaust()

    with pytest.raises(RunnerError) as caught:
        exhausted()
    assert caught.value.reason is FailureReason.OUT_OF_MEMORY


def test_a_batch_that_does_not_fit_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Running out of memory, at load or in the check, and too long a row are failures of their own shapes only."""
    kind = model_class(TASKS["text-classification"], "bert")
    forward = kind.forward

    @wraps(forward)
    def limited(self: Any, **inputs: Any) -> Any:  # noqa: ANN401  # passed through
        rows, tokens = inputs["input_ids"].shape
        # The reference of the third shape fails; that of the fourth is computed in pieces, and only its call fails.
        if tokens == 32 or rows > 600:
            exhaust()
        return forward(self, **inputs)

    monkeypatch.setattr(kind, "forward", limited)
    loaded = load_random(referred=False, shapes=((8, 1), (513, 1), (32, 1), (16, 700), (16, 2)))
    found: dict[Shape, FailureReason] = {}
    for step in (loaded.refer, loaded.verify):
        for each in loaded.plan.shapes:
            if each not in found:
                try:
                    step(each)
                except RunnerError as error:
                    found[each] = error.reason
    memory, long = FailureReason.OUT_OF_MEMORY, FailureReason.SEQUENCE_TOO_LONG
    assert [found.get(each) for each in loaded.plan.shapes] == [None, long, memory, memory, None]


@pytest.mark.parametrize(("profile", "expected"), [("Sound", False), ("Legacy2023", True)])
def test_calls_keep_autograd_only_under_the_method_of_2023(profile: str, expected: bool) -> None:  # noqa: FBT001
    """The published study ran with autograd on, which costs time; the fact says which it was."""
    wanted = plan(model={"config": SMALL}, measurement={"profile": profile})
    backend = open_backend(wanted, host())
    loaded = load(wanted)
    with loaded.bound(only_shape(loaded)) as bound, bound.worker():
        output: Any = bound.call()
    assert output.logits.requires_grad is expected
    assert backend.facts["autograd"] == ("on" if expected else "off")
    loaded.verify(only_shape(loaded))


def test_the_method_of_2023_has_vectors_and_labels_too() -> None:
    """What comes out is plain Python, with autograd on as well."""
    for task in ("feature-extraction", "text-classification"):
        loaded = load_random(model={"task": task}, measurement={"profile": "Legacy2023"})
        assert len(run_end_to_end(loaded)) == 1


def test_inference_mode_is_each_threads_own() -> None:
    """Binding enters no mode: a thread that enters the worker calls without autograd, and its neighbour as it was."""
    loaded = load_random()
    found: dict[str, bool] = {}

    def work() -> None:
        with bound.worker():
            output: Any = bound.call()
        found["thread"] = output.logits.is_inference()

    with loaded.bound(only_shape(loaded)) as bound:
        assert not torch.is_inference_mode_enabled()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        output: Any = bound.call()
        found["here"] = output.logits.is_inference()
    assert found == {"thread": True, "here": False}


@pytest.mark.parametrize(("processors", "concurrency", "threads"), [(8, 1, 8), (8, 3, 2), (2, 4, 1)])
def test_calls_in_flight_share_the_processors(processors: int, concurrency: int, threads: int) -> None:
    """The threads of all calls together are no more than can run, and each has at least one."""
    wide = Host("test", (), "test", "3", tuple(range(processors)), None, None)
    before = torch.get_num_threads()
    try:
        backend = open_backend(plan(measurement={"load": {"concurrency": concurrency}}), wide)
        assert torch.get_num_threads() == threads
        assert backend.facts["threads"] == str(threads)
    finally:
        torch.set_num_threads(before)


def test_what_was_verified_is_what_is_timed() -> None:
    """The call that a shape is measured with is the object whose output was compared."""
    loaded = load_random()
    called: list[object] = []
    forward = loaded.host.model.forward

    @wraps(forward)
    def watched(**inputs: Any) -> Any:  # noqa: ANN401  # passed through
        called.append(inputs["input_ids"])
        return forward(**inputs)

    loaded.host.model.forward = watched
    loaded.verify(only_shape(loaded))
    with loaded.bound(only_shape(loaded)) as bound:
        bound.call()
    assert sum(inputs is called[-1] for inputs in called) == 2


def test_each_fact_is_short_and_none_differs_by_process(tmp_path: Path) -> None:
    """Facts fit into a report beside the runner's own, tell versions, and are the same in the next process."""
    write_bert(tmp_path)
    wanted = plan(model={"id": str(tmp_path), "weights": "Pretrained", "config": {}})
    facts = [dict(open_backend(wanted, host()).facts) | dict(load_directory(tmp_path).facts) for _ in range(2)]
    assert facts[0] == facts[1]
    assert len(facts[0]) <= 35
    assert max(len(value) for value in facts[0].values()) <= 256
    assert facts[0]["torch"] == torch.__version__
    assert facts[0]["processor"] == type(AutoTokenizer.from_pretrained(tmp_path)).__name__
    assert facts[0]["processorSize"] == "13 tokens"
    assert facts[0]["float32Matmul"] == "highest"
    assert {"unknown", "none", ""} & set(facts[0].values()) <= {facts[0]["modelCommit"]}


def test_the_hubs_commit_is_a_fact(tmp_path: Path) -> None:
    """Which files were measured can be told later."""
    write_bert(tmp_path, tokenizer=False)
    wanted = plan(model={"id": "a/b", "weights": "Pretrained", "config": {}})
    loaded = open_backend(wanted, host()).load(wanted.model, Source(directory=tmp_path, commit="0123abcd"))
    assert loaded.facts["modelCommit"] == "0123abcd"


def test_no_thread_of_a_tokenizer_competes() -> None:
    """The tokenizer's own thread pool is switched off before the library is imported."""
    open_backend(plan(), host())
    assert os.environ["TOKENIZERS_PARALLELISM"] == DEFAULTS["TOKENIZERS_PARALLELISM"] == "false"
