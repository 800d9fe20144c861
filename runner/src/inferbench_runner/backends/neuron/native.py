"""TorchNeuron: PyTorch's own compiler with Neuron's back end, from PyTorch 2.10 on; it compiles at the first call."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Final

import torch

from inferbench_runner.backends.inputs import Inputs
from inferbench_runner.backends.libraries import version
from inferbench_runner.backends.neuron.making import Graph
from inferbench_runner.backends.neuron.tracing import PLACE
from inferbench_runner.backends.proof import places
from inferbench_runner.backends.tasks import Model
from inferbench_runner.contract import Precision
from inferbench_runner.errors import RuntimeIncompatibleError

OLDEST: Final = (2, 10)
"""First release of PyTorch that has it."""

ARGUMENTS: Final = 'backend="neuron", dynamic=False'

DTYPES: Final = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


@dataclass(frozen=True)
class TorchNeuron:
    """`torch.compile` on the device, with the weights there in the plan's precision."""

    precision: Precision

    @property
    def name(self) -> str:
        """What compiles the model."""
        return f"torch.compile of torch {torch.__version__}, torch-neuronx {version('torch-neuronx')}"

    def make(self, model: Model, inputs: Inputs) -> Graph:
        """Move a copy of the model to the device and call it once, which compiles it for these inputs.

        Raises:
            RuntimeIncompatibleError: This PyTorch is too old for it.
        """
        found = tuple(int(part) for part in torch.__version__.partition("+")[0].split(".")[:2])
        if found < OLDEST:
            detail = f"TorchNeuron needs PyTorch 2.10, and this is {torch.__version__}; use execution Trace"
            raise RuntimeIncompatibleError(detail)
        moved = copy.deepcopy(model).to(device=PLACE, dtype=DTYPES[self.precision])
        compiled: Callable[..., Model] = torch.compile(moved, backend=PLACE, dynamic=False)

        def run(**tensors: torch.Tensor) -> Model:
            # Waiting is part of the copy back: the device works behind the program's back until then.
            output = compiled(**{name: self._moved(tensor) for name, tensor in tensors.items()})
            kept = {name: value.to("cpu") for name, value in output.items() if isinstance(value, torch.Tensor)}
            return SimpleNamespace(**kept)

        with torch.inference_mode():
            run(**inputs)
        return Graph(tuple(inputs), run, places(moved))

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        dtype = DTYPES[self.precision] if tensor.is_floating_point() else tensor.dtype
        return tensor.to(device=PLACE, dtype=dtype)
