"""End to end: text or image in, label out. What a user waits for, around the same forward pass that a call is.

    raw inputs ──processor──> tensors by name ──forward──> output ──decide──> labels

All of it is timed but the drawing of the raw inputs, which happens once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from inferbench_runner.backends.base import Call, Facts
from inferbench_runner.backends.decisions import Decide, make_decide
from inferbench_runner.backends.inputs import PIXELS, TOKENS, Inputs
from inferbench_runner.backends.tasks import Model, Task
from inferbench_runner.backends.text import Read, fit_tokenizer, load_tokenizer
from inferbench_runner.contract import Shape
from inferbench_runner.errors import ProcessorUnusableError, is_out_of_memory

Forward = Callable[[Inputs], Model]
"""The forward pass as a call makes it, with inputs by name."""


class Processor(Protocol):
    """What turns raw inputs into tensors."""

    @property
    def size(self) -> str:
        """How large its vocabulary or its images are."""
        ...

    def reader(self, shape: Shape) -> Read | None:
        """Return what reads inputs of the shape; None where there can't be any."""
        ...

    def check(self, inputs: Inputs, shape: Shape) -> None:
        """Raise `ProcessorUnusableError` unless the model can take what was read."""
        ...


@dataclass(frozen=True)
class EndToEnd:
    """How raw inputs become labels, or why that can't be measured."""

    facts: Facts
    processor: Processor | None = None
    decide: Decide | None = None

    def bind(self, shape: Shape, forward: Forward) -> Call | None:
        """Return the call to measure; None where there is none for this shape.

        Raises:
            ProcessorUnusableError: The model can't take what its processor makes of inputs of this shape.
        """
        decide = self.decide
        if self.processor is None or decide is None or (read := self.processor.reader(shape)) is None:
            return None
        self.processor.check(_tried(read, self.facts["processor"]), shape)

        def call() -> list[object]:
            inputs = read()
            return decide(forward(inputs), inputs)

        return call


def _tried(read: Read, name: str) -> Inputs:
    try:
        return read()
    except Exception as error:
        if is_out_of_memory(error):
            raise
        way_out = f"replace its files by the model's own: {type(error).__name__}: {error}"
        raise ProcessorUnusableError(name, "fails on its input", way_out) from error


def make_end_to_end(model: Model, task: Task, directory: Path | None, seed: int) -> EndToEnd:
    """Return how a model is measured end to end: with the processor in its directory or, without one, a seeded one.

    Raises:
        ProcessorUnusableError: The directory has a processor, but a broken one or that of another model.
    """
    if model.main_input_name not in {PIXELS, TOKENS}:
        return _unmeasured(f"the model takes {model.main_input_name}")
    images = model.main_input_name == PIXELS
    if directory is None:
        return _seeded_images(model, task, seed) if images else _seeded_text(model, task, seed)
    if images:
        from inferbench_runner.backends.images import (  # noqa: PLC0415  # brings Pillow, which text doesn't need
            fit_image_processor,
            load_image_processor,
        )

        processor = load_image_processor(directory)
        if processor is None:
            return _unmeasured("the model's directory has no preprocessor_config.json")
        return _measured(task, model, type(processor).__name__, fit_image_processor(processor, model, seed))
    tokenizer = load_tokenizer(directory)
    if tokenizer is None:
        return _unmeasured("the model's directory has no tokenizer.json and no vocabulary")
    return _measured(task, model, type(tokenizer).__name__, fit_tokenizer(tokenizer, model, task, seed))


def _seeded_text(model: Model, task: Task, seed: int) -> EndToEnd:
    from inferbench_runner.backends.wordpiece import SMALLEST, seeded_tokenizer  # noqa: PLC0415  # not needed otherwise

    if model.config.vocab_size < SMALLEST:
        return _unmeasured(f"a vocabulary of {model.config.vocab_size} has no room for words")
    tokenizer = seeded_tokenizer(model.config, seed)
    return _measured(task, model, "seeded WordPiece", fit_tokenizer(tokenizer, model, task, seed))


def _seeded_images(model: Model, task: Task, seed: int) -> EndToEnd:
    from inferbench_runner.backends.images import fit_image_processor, seeded_image_processor  # noqa: PLC0415  # as above

    try:
        processor = seeded_image_processor(model.config)
        if processor is None:
            return _unmeasured(f"{model.config.model_type} has no image processor without torchvision")
        fitted = fit_image_processor(processor, model, seed)
        one = Shape(cell="0" * 10)
        fitted.check(fitted.reader(one)(), one)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        # Whoever overrides sizes or channels asks for a model, not for pictures that its architecture never sees.
        return _unmeasured(f"the architecture's image processor can't serve this configuration: {error}")
    return _measured(task, model, type(processor).__name__, fitted)


def _measured(task: Task, model: Model, name: str, processor: Processor) -> EndToEnd:
    tokenizer = getattr(processor, "tokenizer", None)
    what = "seeded pictures in" if tokenizer is None else "seeded text in, padded or cut to the shape's length"
    facts = {
        "endToEnd": f"{what}; {'decision' if task.chooses else 'mean vector'} out",
        "processor": name,
        "processorSize": processor.size,
    }
    return EndToEnd(facts, processor, make_decide(task, model, tokenizer))


def _unmeasured(reason: str) -> EndToEnd:
    return EndToEnd({"endToEnd": f"not measured: {reason}"})
