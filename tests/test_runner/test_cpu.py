"""The CPU back end with real libraries and tiny models; nothing is downloaded."""

from __future__ import annotations

import os
import threading
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="install the torch extra to test the CPU back end")

import torch
from transformers import AutoTokenizer

from inferbench_runner.backends import open_backend
from inferbench_runner.backends.environment import DEFAULTS
from inferbench_runner.backends.tasks import TASKS, model_class
from inferbench_runner.contract import FailureReason, Shape
from inferbench_runner.errors import RunnerError
from inferbench_runner.probe import Host
from test_runner.builders import host, plan
from test_runner.tiny import (
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
    with full.bound(only_shape(full)) as one, half.bound(only_shape(half)) as other, torch.no_grad():
        outputs: list[Any] = [one.call(), other.call()]
        expected, found = outputs[0].last_hidden_state, outputs[1].last_hidden_state.float()
    similarity = torch.nn.functional.cosine_similarity(expected, found, dim=-1)
    assert similarity.min() > 0.99
    assert not torch.equal(expected, found)


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


def exhaust() -> None:
    """Ask PyTorch for more memory than there is, for its own words about that."""
    torch.empty(2**60, dtype=torch.int8)


def test_running_out_of_memory_in_a_call_is_typed() -> None:
    """PyTorch's own words for a failed allocation become the reason of one shape."""
    loaded = load_random()

    def exhausted() -> None:
        with loaded.bound(only_shape(loaded)):
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


def test_no_thread_of_a_tokenizer_competes() -> None:
    """The tokenizer's own thread pool is switched off before the library is imported."""
    open_backend(plan(), host())
    assert os.environ["TOKENIZERS_PARALLELISM"] == DEFAULTS["TOKENIZERS_PARALLELISM"] == "false"
