"""Images in: a model's image processor, and seeded pictures as a camera's software hands them over.

The processors used are those that work on the host with numpy and Pillow; torchvision is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from inferbench_runner.backends.inputs import PIXELS, Inputs, image_format
from inferbench_runner.backends.tasks import Configuration, ImageProcessor, Model
from inferbench_runner.backends.text import Read, unusable
from inferbench_runner.contract import Shape
from inferbench_runner.errors import ProcessorUnusableError, is_out_of_memory

SETTINGS: Final = ("preprocessor_config.json", "processor_config.json")
"""Files of which an image processor has at least one."""

PICTURE: Final = (480, 640)
"""Height and width of a picture: those of the one that the published study used."""

DIFFERENT: Final = 64
"""Most different pictures in a batch: each takes a megabyte, and what they show doesn't change the work."""


@dataclass(frozen=True)
class PictureProcessor:
    """An image processor and what its model takes."""

    processor: ImageProcessor
    model: Model
    """Its precision is that of the images: what the processor yields is fp32."""
    channels: int
    height: int
    width: int
    seed: int

    @property
    def size(self) -> str:
        """What the processor makes of a picture."""
        return f"{self.width}x{self.height} pixels"

    def reader(self, shape: Shape) -> Read:
        """Return what reads as many pictures as the shape's batch has."""
        draw = np.random.default_rng(self.seed)
        size = (min(shape.batch_size, DIFFERENT), *PICTURE, self.channels)
        different = draw.integers(256, size=size, dtype=np.uint8)
        pictures = [different[number % DIFFERENT] for number in range(shape.batch_size)]
        processor, dtype = self.processor, self.model.dtype

        def read() -> Inputs:
            encoded = processor(images=pictures, return_tensors="pt")
            return {PIXELS: encoded[PIXELS].to(dtype)}

        return read

    def check(self, inputs: Inputs, shape: Shape) -> None:
        """Raise `ProcessorUnusableError` unless the model can take what was read."""
        wanted = (shape.batch_size, self.channels, self.height, self.width)
        if tuple(inputs[PIXELS].shape) != wanted:
            problem = f"makes images of {tuple(inputs[PIXELS].shape)}, and the model takes {wanted}"
            way_out = "correct size or crop_size there, or image_size in config.json"
            raise ProcessorUnusableError(SETTINGS[0], problem, way_out)


def load_image_processor(directory: Path) -> ImageProcessor | None:
    """Return the image processor whose settings are in a model's directory; None where it has none."""
    if not any((directory / name).is_file() for name in SETTINGS):
        return None
    from transformers import AutoImageProcessor  # noqa: PLC0415  # not needed for text

    try:
        return AutoImageProcessor.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False, backend="pil"
        )
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise unusable(directory, SETTINGS, "image processor", error) from error


def seeded_image_processor(configuration: Configuration) -> ImageProcessor | None:
    """Return the architecture's own image processor with the configuration's sizes; None where it has none."""
    import transformers  # noqa: PLC0415  # an attribute of the lazy package: the lookup imports the one module
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES  # noqa: PLC0415

    names: Any = IMAGE_PROCESSOR_MAPPING_NAMES.get(configuration.model_type)
    # Until version 5 of the library the first of two was the one that works on the host.
    name = names.get("pil") if isinstance(names, Mapping) else names[0] if names else None
    if name is None:
        return None
    channels, height, width = image_format(configuration)
    half = [0.5] * channels
    sides = {"height": height, "width": width}
    return getattr(transformers, name)(size=sides, crop_size=sides, image_mean=half, image_std=half)


def fit_image_processor(processor: ImageProcessor, model: Model, seed: int) -> PictureProcessor:
    """Return the processor with what is known of the model."""
    return PictureProcessor(processor, model, *image_format(model.config), seed)
