"""Label out: what a task's user makes of an output, as plain Python values."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from inferbench_runner.backends.inputs import MASK, TOKENS, Inputs
from inferbench_runner.backends.tasks import Model, Task, Tokenizer

Decide = Callable[[Model, Inputs], list[object]]
"""Returns one decision for each input, from the output and what was read."""


def make_decide(task: Task, model: Model, tokenizer: Tokenizer = None) -> Decide:
    """Return what a pipeline for the task does with an output; the tokenizer is None for images."""
    names: Mapping[int, str] = model.config.id2label

    def label(number: int) -> str:
        return names.get(number, str(number))

    def classify(output: Model, _: Inputs) -> list[object]:
        return [label(number) for number in output.logits.argmax(-1).tolist()]

    def classify_tokens(output: Model, inputs: Inputs) -> list[object]:
        chosen = output.logits.argmax(-1).tolist()
        masks = inputs[MASK].tolist() if MASK in inputs else [[1] * len(row) for row in chosen]
        return [
            [label(number) for number, attended in zip(row, mask, strict=True) if attended]
            for row, mask in zip(chosen, masks, strict=True)
        ]

    def fill(output: Model, inputs: Inputs) -> list[object]:
        rows, columns = (inputs[TOKENS] == tokenizer.mask_token_id).nonzero(as_tuple=True)
        return [tokenizer.decode([number]) for number in output.logits[rows, columns].argmax(-1).tolist()]

    def answer(output: Model, inputs: Inputs) -> list[object]:
        starts, ends = (logits.argmax(-1).tolist() for logits in (output.start_logits, output.end_logits))
        return [
            tokenizer.decode(tokens[start : end + 1], skip_special_tokens=True)
            for tokens, start, end in zip(inputs[TOKENS].tolist(), starts, ends, strict=True)
        ]

    def pool(output: Model, inputs: Inputs) -> list[object]:
        hidden = output.last_hidden_state
        if MASK in inputs and hidden.shape[:2] == inputs[MASK].shape:
            mask = inputs[MASK].unsqueeze(-1)
            return list(((hidden * mask).sum(1) / mask.sum(1).clamp(min=1)).tolist())
        # Convolutional networks have their channels first and two dimensions of places behind them.
        return list((hidden.mean(1) if hidden.ndim == 3 else hidden.flatten(2).mean(2)).tolist())  # noqa: PLR2004

    by_name: dict[str, Decide] = {
        "text-classification": classify,
        "image-classification": classify,
        "feature-extraction": pool,
        "fill-mask": fill,
        "token-classification": classify_tokens,
        "question-answering": answer,
    }
    return by_name[task.name]
