"""Inputs of a given shape: seeded, full length, and always bound by name.

A positional binding is how the published study swapped the attention mask and the token types of three of its models.
"""

from __future__ import annotations

import inspect
from typing import Final

import torch

from inferbench_runner.backends.tasks import Model
from inferbench_runner.contract import Shape
from inferbench_runner.errors import InvalidPlanError, ModelUnsupportedError, SequenceTooLongError

PIXELS: Final = "pixel_values"
TOKENS: Final = "input_ids"


def make_inputs(model: Model, shape: Shape, seed: int) -> dict[str, torch.Tensor]:
    """Return the model's inputs, in the model's own precision where they are not whole numbers."""
    generator = torch.Generator().manual_seed(seed)
    match model.main_input_name:
        case "pixel_values":
            return {PIXELS: _pixels(model, shape.batch_size, generator)}
        case "input_ids" if not model.config.is_encoder_decoder:
            return _tokens(model, shape, generator)
        case name:
            msg = f"model.id: {type(model).__name__} takes {name}; this runner feeds encoders with text or images."
            raise ModelUnsupportedError(msg)


def maximum_length(model: Model) -> int | None:
    """Return the most tokens that the model has positions for; None where nothing limits them.

    RoBERTa and its kin start counting after the padding position, so that 514 rows are positions for 512 tokens.
    """
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            reserved = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - reserved
    return getattr(model.config, "max_position_embeddings", None)


def _tokens(model: Model, shape: Shape, generator: torch.Generator) -> dict[str, torch.Tensor]:
    length = shape.sequence_length
    if length is None:
        field = "sequenceLength"
        raise InvalidPlanError(field, "a text model needs one", "give every shape a number of tokens")
    maximum = maximum_length(model)
    if maximum is not None and length > maximum:
        raise SequenceTooLongError(length, maximum)
    size = (shape.batch_size, length)
    accepted = inspect.signature(model.forward).parameters
    inputs = {TOKENS: _token_ids(model, size, generator)}
    if "attention_mask" in accepted:
        inputs["attention_mask"] = torch.ones(size, dtype=torch.long)
    # With a single type, as in RoBERTa, the tokenizer gives none either.
    if "token_type_ids" in accepted and getattr(model.config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = torch.zeros(size, dtype=torch.long)
    return inputs


def _token_ids(model: Model, size: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    """Draw from the whole vocabulary but the padding token, which models treat as absent."""
    vocabulary: int = model.config.vocab_size
    padding: int | None = model.config.pad_token_id
    if padding is None or not 0 <= padding < vocabulary:
        return torch.randint(vocabulary, size, generator=generator)
    drawn = torch.randint(vocabulary - 1, size, generator=generator)
    return drawn + (drawn >= padding)


def _pixels(model: Model, batch: int, generator: torch.Generator) -> torch.Tensor:
    side = model.config.image_size
    height, width = (side, side) if isinstance(side, int) else tuple(side)
    pixels = torch.randn((batch, model.config.num_channels, height, width), generator=generator)
    return pixels.to(model.dtype)
