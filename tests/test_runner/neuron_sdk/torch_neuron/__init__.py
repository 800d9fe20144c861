"""Stands in for torch-neuron, the library for the first generation of Inferentia; the device is torch_neuronx's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch_neuronx import Traced, compiled, neuron_cores_context, set_neuron_cores

CASTS = {"fp32-cast-all", "fp32-cast-all-fp16", "fp32-cast-matmult"}

RELAYOUTS = {"fast-relayout", "no-fast-relayout"}


def trace(
    func: Any,
    example_inputs: Any,
    *_: Any,
    compiler_workdir: str | None = None,
    compiler_args: list[str] | None = None,
) -> Traced:
    """Compile a function for inputs of fixed shapes; no device is needed."""
    arguments = list(compiler_args or [])
    match arguments:
        case ["--fast-math", cast, relayout] if cast in CASTS and relayout in RELAYOUTS:
            pass
        case _:
            msg = f"neuron-cc failed with 2: {' '.join(arguments)} is not understood"
            raise RuntimeError(msg)
    inputs = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    return compiled(func, inputs, arguments, compiler_workdir, "neuron-cc", "inf1")


# It has these nowhere else.
experimental = SimpleNamespace(set_neuron_cores=set_neuron_cores, neuron_cores_context=neuron_cores_context)
