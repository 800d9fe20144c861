"""Stands in for torch-neuron, the library of the first generation of Inferentia, by the rules of its documentation.

`trace` returns a script module in whose graph one operator stands for all that was compiled. PyTorch's own functions
save and load it, so that a process which hasn't imported this library can't load it. It is for the PyTorch of the real
one only; the device, and what goes wrong, are in the folder that the other doubles use too.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

if not torch.__version__.startswith("1.13.1"):
    message = f"Invalid dependency version torch=={torch.__version__}. Expected torch==1.13.1"
    raise ImportError(message)

LOGGER = logging.getLogger("Neuron")

FAST_MATH = (
    {"all", "none"},
    {"fast-relayout", "no-fast-relayout"},
    {
        "fp32-cast-all",
        "fp32-cast-all-fp16",
        "fp32-cast-matmult",
        "fp32-cast-matmult-bf16",
        "fp32-cast-matmult-fp16",
    },
)
"""Values of the one option that anybody here uses: of each group, at most one."""

real_load = torch.jit.load

placed = SimpleNamespace(start=-1)
"""Core on which the next graph is loaded, counted among those that the process sees; -1 for the least used."""

programs: dict[bytes, Any] = {}
"""Compiled graphs, by their file."""


def _root() -> Path:
    return Path(os.environ["NEURON_DOUBLE_ROOT"])


def _has_device() -> bool:
    path = _root() / "proc/devices"
    return path.is_file() and bool(re.search(r"\d+ neuron$", path.read_text(), re.MULTILINE))


def _fault(when: str) -> dict[str, Any]:
    path = _root() / "faults.json"
    faults = json.loads(path.read_text()) if path.is_file() else []
    return next((dict(one) for one in faults if one["when"] == when), {})


def _visible() -> list[int]:
    """Return the cores that this process may use: a number or a range."""
    text = os.environ.get("NEURON_RT_VISIBLE_CORES")
    assert text, "the process claims all cores"
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def _refused(arguments: list[str]) -> str:
    """Return what the compiler has against its arguments."""
    values = arguments[1:]
    if arguments[:1] not in ([], ["--fast-math"]) or not set(values) <= set().union(*FAST_MATH):
        return f"neuron-cc: error: unrecognized arguments: {' '.join(arguments)}"
    if any(len(group & set(values)) > 1 for group in FAST_MATH):
        return f"neuron-cc: error: mutually exclusive: {' '.join(values)}"
    return ""


def _forward(inputs: list[torch.Tensor], neff: torch.Tensor, core: torch.Tensor) -> list[torch.Tensor]:
    """Run a compiled graph, for tensors of the very shapes that it was made for."""
    content = neff.numpy().tobytes()
    line, _, script = content.partition(b"\n")
    for number, (tensor, wanted) in enumerate(zip(inputs, json.loads(line)["shapes"], strict=True)):
        if list(tensor.shape) != wanted:
            received, expected = (" ".join(map(str, one)) for one in (tensor.shape, wanted))
            msg = f"Incorrect tensor shape at input tensor #{number}: received {received}, expected {expected}."
            raise RuntimeError(msg)
    if content not in programs:
        programs[content] = real_load(io.BytesIO(script))
    found = programs[content](*inputs)
    if int(core) >= 0:
        folder = _root() / f"sys/devices/virtual/neuron_device/neuron0/neuron_core{int(core)}/stats/other_info"
        count = folder / "inference_count"
        count.write_text(f"{int(count.read_text()) + 1}\n")
    return [found] if isinstance(found, torch.Tensor) else list(found)


LIBRARY = torch.library.Library("neuron", "DEF")
LIBRARY.define("forward_v2_1(Tensor[] inputs, Tensor neff, Tensor core) -> Tensor[]")
LIBRARY.impl("forward_v2_1", _forward, "CompositeExplicitAutograd")


class Compiled(torch.nn.Module):
    """What is left of a model of which all was compiled."""

    def __init__(self, neff: bytes, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.register_buffer("neff", torch.frombuffer(bytearray(neff), dtype=torch.uint8))
        self.register_buffer("core", torch.tensor(-1))  # none yet

    def forward(self, *tensors: torch.Tensor) -> Any:
        found = torch.ops.neuron.forward_v2_1(list(tensors), self.neff, self.core)
        return tuple(found[number] for number in range(self.outputs))


def trace(
    func: Any,
    example_inputs: Any,
    *,
    compiler_args: list[str] | None = None,
    compiler_workdir: str | None = None,
    **kwargs: Any,
) -> torch.jit.ScriptModule:
    """Compile a function for inputs of fixed shapes; what isn't for the compiler is for `torch.jit.trace`."""
    inputs = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    if compiler_workdir:
        Path(compiler_workdir).mkdir(parents=True, exist_ok=True)
    problem = _refused(list(compiler_args or [])) or _fault("trace").get("log")
    if problem:
        # The real one goes on with the processor's operators, and gives up when nothing else is left.
        LOGGER.error("neuron-cc failed with the following command line call:\nneuron-cc compile\n%s", problem)
        LOGGER.warning("torch.neuron.trace failed on _NeuronGraph$1; falling back to native python function call")
        msg = "No operations were successfully partitioned and compiled to neuron for this model - aborting trace!"
        raise RuntimeError(msg)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.trace(func, inputs, check_trace=False, **kwargs)
        found = script(*inputs)
        buffer = io.BytesIO()
        torch.jit.save(script, buffer)
        header = {"shapes": [list(one.shape) for one in inputs], "version": metadata.version("neuron-cc")}
        neff = json.dumps(header).encode() + b"\n" + buffer.getvalue()
        outputs = 1 if isinstance(found, torch.Tensor) else len(found)
        return torch.jit.trace(Compiled(neff, outputs), inputs, check_trace=False)


def load(path: Any, *others: Any, **named: Any) -> Any:
    """Stand in for `torch.jit.load`: a graph goes to its core at once."""
    module = real_load(path, *others, **named)
    if hasattr(module, "neff"):
        if not _has_device():
            msg = "The PyTorch Neuron Runtime could not be initialized."
            raise RuntimeError(msg)
        module.core.fill_(_visible()[max(placed.start, 0)])
    return module


@contextmanager
def _neuron_cores_context(start_nc: int = -1, nc_count: int = -1) -> Iterator[None]:
    """Load the graphs within the context onto these cores."""
    assert nc_count == 1
    before = placed.start
    placed.start = start_nc
    try:
        yield
    finally:
        placed.start = before


experimental = SimpleNamespace(neuron_cores_context=_neuron_cores_context)
"""Where the functions that place a graph are, and nowhere else."""

torch.jit.load = load
