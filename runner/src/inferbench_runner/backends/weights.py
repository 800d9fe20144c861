"""A model with its weights: from safetensors files, or random ones that are the same for the same seed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from transformers.utils import logging

from inferbench_runner.backends.configuration import refused
from inferbench_runner.backends.tasks import Configuration, Model
from inferbench_runner.errors import ModelUnsupportedError, OutOfMemoryError, is_out_of_memory

try:
    from transformers.initialization import no_init_weights

    DTYPE = "dtype"
except ImportError:  # transformers 4
    from transformers.modeling_utils import no_init_weights

    DTYPE = "torch_dtype"

DEFAULT_DEVIATION: Final = 0.02
"""Standard deviation of random weights where the configuration has no `initializer_range`."""

SEED_STRIDE: Final = 2**20
"""Distance between the seeds of two parameters' generators under different plan seeds: no model has as many."""


@dataclass(frozen=True)
class Weighted:
    """A model and what its files did not say."""

    model: Model
    initialised: tuple[str, ...] = ()
    """Names of tensors that are absent from the files, so that they were initialised at random: often the head."""


def random_model(kind: type[Model], configuration: Configuration, seed: int, *, overridden: bool) -> Weighted:
    """Build a model in fp32 from its configuration, with seeded weights.

    The library's own initialisation takes 17 s for bert-large, since every weight is drawn twice on one thread; it is
    switched off and each matrix drawn once, in parallel.
    """
    try:
        with no_init_weights():
            model = kind(configuration)
        model.tie_weights()
        fill(model, seed, float(getattr(configuration, "initializer_range", DEFAULT_DEVIATION)))
    except Exception as error:
        if is_out_of_memory(error):
            raise OutOfMemoryError from error
        if overridden:
            raise refused(error) from error
        # As above: by version and architecture, any of a dozen types.
        msg = f"model.id: no model can be built from this configuration; correct its config.json: {error}"
        raise ModelUnsupportedError(msg) from error
    return Weighted(model)


def fill(model: torch.nn.Module, seed: int, deviation: float) -> None:
    """Draw matrices from a normal distribution; scales become 1 and biases 0, as in the models' own initialisation.

    Each parameter has its own generator, so that the number of threads doesn't change a single weight.
    """

    def draw(index: int, name: str, parameter: torch.Tensor) -> None:
        with torch.no_grad():
            if parameter.ndim > 1:
                generator = torch.Generator().manual_seed(seed * SEED_STRIDE + index)
                parameter.normal_(0.0, deviation, generator=generator)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)

    # named_parameters shows tied weights once.
    with ThreadPoolExecutor(max_workers=torch.get_num_threads()) as pool:
        jobs = [pool.submit(draw, index, *pair) for index, pair in enumerate(model.named_parameters())]
        for job in jobs:
            job.result()


def pretrained_model(kind: type[Model], directory: Path, seed: int) -> Weighted:
    """Load a model in fp32 from a directory's safetensors files; pickled weights are never opened.

    The seed serves tensors that the files lack, such as the head of a model that was published without one.
    """
    if not any(directory.glob("*.safetensors")):
        msg = (
            f"model.id: {directory.name} has no safetensors weights; convert them with save_pretrained, "
            "or use weights: Random."
        )
        raise ModelUnsupportedError(msg)
    torch.manual_seed(seed)
    logging.disable_progress_bar()
    try:
        model, loading = kind.from_pretrained(
            directory,
            local_files_only=True,
            output_loading_info=True,
            trust_remote_code=False,
            use_safetensors=True,
            **{DTYPE: torch.float32},
        )
    except Exception as error:
        if is_out_of_memory(error):
            raise OutOfMemoryError from error
        # Damaged files, sizes that don't fit the configuration, missing libraries: by version, any of a dozen types.
        msg = f"model.id: the weights in {directory.name} can't be loaded; check the files: {error}"
        raise ModelUnsupportedError(msg) from error
    return Weighted(model, tuple(sorted(loading["missing_keys"])))
