"""Inputs of a given shape: seeded, and always bound by name.

A positional binding is how the published study swapped the attention mask and the token types of three of its models.
"""

from __future__ import annotations

import inspect
from typing import Final, TypeAlias

import torch

from inferbench_runner.backends.tasks import Configuration, Model
from inferbench_runner.contract import Shape
from inferbench_runner.errors import InvalidPlanError, ModelUnsupportedError, SequenceTooLongError

PIXELS: Final = "pixel_values"
TOKENS: Final = "input_ids"
MASK: Final = "attention_mask"
TYPES: Final = "token_type_ids"

SIDE: Final = 224
"""Height and width of images for a model that takes any, as convolutional networks do."""

CHANNELS: Final = 3
"""Channels where a configuration doesn't count them: red, green and blue."""

Inputs: TypeAlias = dict[str, torch.Tensor]
"""Tensors by the name of the parameter that takes them."""


def make_inputs(model: Model, shape: Shape, seed: int) -> Inputs:
    """Return the inputs to time: full length, in the model's own precision where they are not whole numbers."""
    generator = torch.Generator().manual_seed(seed)
    match model.main_input_name:
        case "pixel_values":
            return {PIXELS: _pixels(model, shape.batch_size, generator)}
        case "input_ids" if not model.config.is_encoder_decoder:
            return _tokens(model, shape, generator)
        case name:
            msg = f"model.id: {type(model).__name__} takes {name}; this runner feeds encoders with text or images."
            raise ModelUnsupportedError(msg)


def half_padded(model: Model, inputs: Inputs) -> Inputs | None:
    """Return the inputs with padding in the second half of each row, and both token types in the first.

    A mask that is ignored, or swapped with the types, then changes the output. None where a model takes no mask or a
    row has no room for three kinds of token.
    """
    if MASK not in inputs or inputs[TOKENS].shape[1] < 4:  # noqa: PLR2004  # two types of token, and two of padding
        return None
    padded = {name: tensor.clone() for name, tensor in inputs.items()}
    attended = attended_length(padded[TOKENS].shape[1])
    padded[TOKENS][:, attended:] = model.config.pad_token_id or 0
    padded[MASK][:, attended:] = 0
    if TYPES in padded:
        padded[TYPES][:, attended // 2 : attended] = 1
    return padded


def attended_length(length: int) -> int:
    """Return how many tokens of a half-padded row are none of the padding."""
    return length - length // 2


def accepted_names(model: Model) -> frozenset[str]:
    """Return the names that the forward pass takes: what else a tokenizer yields is not the model's."""
    return frozenset(inspect.signature(model.forward).parameters)


def maximum_length(model: Model) -> int | None:
    """Return the most tokens that the model has positions for; None where nothing limits them.

    RoBERTa and its kin start counting after the padding position, so that 514 rows are positions for 512 tokens.
    """
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            reserved = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - reserved
    return getattr(model.config, "max_position_embeddings", None)


def image_format(configuration: Configuration) -> tuple[int, int, int]:
    """Return channels, height and width of the images that a model takes."""
    # A model for text and images keeps what it says about images apart.
    vision = getattr(configuration, "vision_config", configuration)
    side = getattr(vision, "image_size", SIDE)
    height, width = (side, side) if isinstance(side, int) else side
    return getattr(vision, "num_channels", CHANNELS), height, width


def _tokens(model: Model, shape: Shape, generator: torch.Generator) -> Inputs:
    length = shape.sequence_length
    if length is None:
        field = "sequenceLength"
        raise InvalidPlanError(field, "a text model needs one", "give every shape a number of tokens")
    maximum = maximum_length(model)
    if maximum is not None and length > maximum:
        raise SequenceTooLongError(length, maximum)
    size = (shape.batch_size, length)
    accepted = accepted_names(model)
    inputs = {TOKENS: _token_ids(model, size, generator)}
    if MASK in accepted:
        inputs[MASK] = torch.ones(size, dtype=torch.long)
    # With a single type, as in RoBERTa, the tokenizer gives none either.
    if TYPES in accepted and getattr(model.config, "type_vocab_size", 0) > 1:
        inputs[TYPES] = torch.zeros(size, dtype=torch.long)
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
    pixels = torch.randn((batch, *image_format(model.config)), generator=generator)
    return pixels.to(model.dtype)
