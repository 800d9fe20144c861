"""Tasks: which head of a model does one, and what its output must look like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from inferbench_runner.errors import ModelUnsupportedError, TaskUnsupportedError

# That library ships no types: for a type checker all of them are Any.
Configuration: TypeAlias = PretrainedConfig
Model: TypeAlias = PreTrainedModel
Tokenizer: TypeAlias = Any
ImageProcessor: TypeAlias = Any


@dataclass(frozen=True)
class Task:
    """One pipeline task."""

    name: str
    mapping: str
    """Name of the library's table from model type to the class with the head."""
    output: str
    """The output by which the head is recognised."""
    rank: int | None
    """Dimensions of that output; None where they depend on the model."""
    chooses: bool = True
    """Whether the output chooses: its largest element in each row is the answer."""
    further: tuple[str, ...] = ()
    """Outputs without which that one is no answer."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """All that a caller needs of the model's output, the one that shows the head first."""
        return (self.output, *self.further)


TASKS: Final = {
    task.name: task
    for task in (
        Task("text-classification", "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES", "logits", 2),
        Task("image-classification", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", "logits", 2),
        Task("feature-extraction", "MODEL_MAPPING_NAMES", "last_hidden_state", None, chooses=False),
        Task("fill-mask", "MODEL_FOR_MASKED_LM_MAPPING_NAMES", "logits", 3),
        Task("token-classification", "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES", "logits", 3),
        Task(
            "question-answering",
            "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
            "start_logits",
            2,
            further=("end_logits",),
        ),
    )
}

DEFAULT_TASKS: Final = ("text-classification", "image-classification")
"""Tasks of the published study, tried in this order where the plan names none."""


def choose_task(name: str | None, model_type: str) -> Task:
    """Return the task to measure: the named one, or the default for the architecture."""
    supported = [task.name for task in TASKS.values() if model_type in _classes(task)]
    wanted = [name] if name is not None else list(DEFAULT_TASKS)
    for candidate in wanted:
        if candidate in supported:
            return TASKS[candidate]
    if not supported:
        msg = f"model.id: {model_type} models are not supported; use an encoder for text or a classifier of images."
        raise ModelUnsupportedError(msg)
    raise TaskUnsupportedError(" or ".join(wanted), model_type, supported)


def model_class(task: Task, model_type: str) -> type[Model]:
    """Return the class that does the task.

    It is imported from the architecture's own module instead of through the library's automatic classes, which import
    what they need and more.
    """
    import transformers  # noqa: PLC0415  # an attribute of the lazy package: the lookup imports the one module

    found = _classes(task)[model_type]
    name = found if isinstance(found, str) else found[0]
    kind: type[Model] = getattr(transformers, name)
    return kind


def _classes(task: Task) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(modeling_auto, task.mapping)
    return found
