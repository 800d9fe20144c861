"""Stands in for torch-neuronx: its functions with their signatures, and the rules that its documentation gives them.

A "compiled" graph is TorchScript with a header that says for which compiler's version, target and shapes it was made.
The device is a folder, `NEURON_DOUBLE_ROOT`, with the files of a real one; faults are read from its faults.json.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

MAGIC = b"NEURON-DOUBLE "

OPTIONS = {
    "--auto-cast": {"none", "matmult", "all"},
    "--auto-cast-type": {"bf16", "fp16", "tf32", "fp8_e4m3"},
    "--optlevel": {"1", "2", "3"},
    "--target": {"inf2", "trn1", "trn1n", "trn2"},
    "--model-type": {"generic", "transformer", "unet-inference"},
    "--enable-mixed-precision-accumulation": None,
}
"""What the compiler's documentation lists, as far as anybody here uses it."""

GENERATIONS = {"inf1": 1, "inf2": 2, "trn1": 2, "trn1n": 2, "trn2": 3}
"""Generation of the cores in each family: graphs run on their own."""

real_save, real_load = torch.jit.save, torch.jit.load

placed = SimpleNamespace(start=0, count=1)
"""Cores on which the next graph is loaded."""


def _root() -> Path:
    return Path(os.environ["NEURON_DOUBLE_ROOT"])


def _has_device() -> bool:
    path = _root() / "proc/devices"
    return path.is_file() and bool(re.search(r"\d+ neuron$", path.read_text(), re.MULTILINE))


def _fault(when: str, shape: Sequence[int]) -> dict[str, Any]:
    """Carry out what is to go wrong, or return it where that is the caller's business."""
    path = _root() / "faults.json"
    for fault in json.loads(path.read_text()) if path.is_file() else []:
        if fault["when"] != when or fault.get("shape", list(shape)) != list(shape):
            continue
        if "log" in fault:
            os.write(2, fault["log"].encode() + b"\n")
        if "returncode" in fault:
            raise subprocess.CalledProcessError(fault["returncode"], ["neuronx-cc", "compile"])
        if "text" in fault:
            raise RuntimeError(fault["text"])
        return dict(fault)
    return {}


class Traced:
    """A compiled graph that is not on a device yet."""

    def __init__(self, script: Any, header: dict[str, Any]) -> None:
        self.script, self.header = script, header


class Loaded:
    """A compiled graph on its cores."""

    def __init__(self, script: Any, header: dict[str, Any], start: int, count: int) -> None:
        self.script, self.header, self.start, self.count = script, header, start, count

    @property
    def inlined_graph(self) -> str:
        """The graph's code, as of a script module."""
        plain = _fault("graph", ()).get("plain")
        return "%4 = aten::linear(%1, %2, %3)" if plain else "%2 : Tensor[] = neuron::forward_v2_1(%1, %model)"

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Run it, for tensors of the very shapes that it was made for."""
        wanted = self.header["shapes"]
        if len(tensors) != len(wanted):
            msg = f"Expected {len(wanted)} inputs, received {len(tensors)}"
            raise RuntimeError(msg)
        for number, (tensor, shape) in enumerate(zip(tensors, wanted, strict=True)):
            if tensor.device.type != "cpu":
                msg = f"Expected CPU tensor at input tensor #{number}"
                raise RuntimeError(msg)
            if list(tensor.shape) != shape:
                received, expected = (" ".join(map(str, one)) for one in (tensor.shape, shape))
                msg = f"Incorrect tensor shape at input tensor #{number}: received {received}, expected {expected}."
                raise RuntimeError(msg)
        fault = _fault("call", tensors[0].shape)
        if "swap" in fault:
            one, other = fault["swap"]
            order = list(tensors)
            order[one], order[other] = order[other], order[one]
            tensors = tuple(order)
        found = self.script(*tensors)
        if fault.get("nan"):
            found = tuple(torch.full_like(one, float("nan")) for one in found)
        if not fault.get("idle"):
            _count(self.start)
        return found


def _count(core: int) -> None:
    cores = sorted((_root() / "sys/devices/virtual/neuron_device").glob("neuron*/neuron_core*"))
    if core < len(cores):
        path = cores[core] / "stats/other_info/inference_count"
        if path.is_file():
            path.write_text(f"{int(path.read_text()) + 1}\n")


def trace(  # noqa: PLR0913  # the real one has as many
    func: Any,
    example_inputs: Any,
    *_: Any,
    input_output_aliases: dict[Any, Any] | None = None,
    compiler_workdir: str | None = None,
    compiler_args: str | list[str] | None = None,
    partitioner_config: Any = None,
    inline_weights_to_neff: bool = True,
    cpu_backend: bool = False,
) -> Traced:
    """Compile a function for inputs of fixed shapes."""
    assert not input_output_aliases
    assert partitioner_config is None
    assert inline_weights_to_neff
    arguments = compiler_args.split() if isinstance(compiler_args, str) else list(compiler_args or [])
    told = _checked(arguments)
    if cpu_backend and "--target" not in told:
        msg = "cpu_backend needs a --target"
        raise ValueError(msg)
    if not cpu_backend and not _has_device():
        msg = "Bad StatusOr access: INVALID_ARGUMENT: PJRT_Client_Create: Init: error condition !(num_devices > 0)"
        raise RuntimeError(msg)
    inputs = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    return compiled(func, inputs, arguments, compiler_workdir, "neuronx-cc", told.get("--target", "inf2"))


def compiled(  # all that the compiler is given
    func: Any, inputs: tuple[Any, ...], arguments: list[str], folder: str | None, compiler: str, target: str
) -> Traced:
    """Do what comes after the arguments have been understood; torch-neuron's double does the same."""
    _fault("trace", inputs[0].shape)
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / "log-neuron-cc.txt").write_text("done\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.trace(func, inputs, strict=False, check_trace=False)
    header = {
        "compiler": compiler,
        "version": metadata.version(compiler),
        "target": target,
        "arguments": arguments,
        "shapes": [list(one.shape) for one in inputs],
    }
    return Traced(script, header)


def _checked(arguments: list[str]) -> dict[str, str]:
    told: dict[str, str] = {}
    left = list(arguments)
    while left:
        option = left.pop(0)
        values = OPTIONS.get(option, ())
        value = "" if values is None else left.pop(0) if left else ""
        if values is not None and value not in values:
            msg = f"neuronx-cc failed with 2: {option} {value} is not understood"
            raise RuntimeError(msg)
        told[option] = value
    return told


def save(module: Any, path: Any, *others: Any, **named: Any) -> None:
    """Stand in for `torch.jit.save`."""
    if not isinstance(module, Traced):
        real_save(module, path, *others, **named)
        return
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        real_save(module.script, buffer)
    Path(path).write_bytes(MAGIC + json.dumps(module.header).encode() + b"\n" + buffer.getvalue())


def load(path: Any, *others: Any, **named: Any) -> Any:
    """Stand in for `torch.jit.load`: the graph goes to its cores at once."""
    content = Path(path).read_bytes()
    if not content.startswith(MAGIC):
        return real_load(path, *others, **named)
    line, _, script = content.removeprefix(MAGIC).partition(b"\n")
    header = json.loads(line)
    if not _has_device():
        warnings.warn("No Neuron device detected! Model loading is skipped.", stacklevel=2)
        return None
    fault = _fault("load", header["shapes"][0])
    if header["version"] != metadata.version(header["compiler"]):
        os.write(2, b"ERROR  NMGR:kmgr_load_nn  NEFF version mismatch supported: 1.1 received: 2.0\n")
        msg = "Could not load the model status=10 message=Unsupported NEFF Version"
        raise RuntimeError(msg)
    product = (_root() / "sys/devices/virtual/dmi/id/product_name").read_text().partition(".")[0]
    if GENERATIONS[header["target"]] != GENERATIONS[product]:
        msg = "Could not load the model status=10 message=Unsupported NEFF Version"
        raise RuntimeError(msg)
    visible = _visible()
    if placed.start + placed.count > len(visible):
        msg = "Could not load the model status=9 message=Not enough NC"
        raise RuntimeError(msg)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = real_load(io.BytesIO(script))
    return Loaded(loaded, header, fault.get("core", visible[placed.start]), placed.count)


def _visible() -> list[int]:
    """Return the cores that this process may use: a number or a range."""
    text = os.environ.get("NEURON_RT_VISIBLE_CORES")
    assert text, "the process claims all cores"
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


@contextmanager
def neuron_cores_context(start_nc: int = -1, nc_count: int = -1) -> Iterator[None]:
    """Load the graphs within the context onto these cores."""
    before = placed.start, placed.count
    placed.start, placed.count = max(start_nc, 0), max(nc_count, 1)
    try:
        yield
    finally:
        placed.start, placed.count = before


def set_neuron_cores(trace: Loaded, start_nc: int = -1, nc_count: int = -1) -> None:
    """Move a graph that is loaded."""
    visible = _visible()
    trace.start, trace.count = visible[max(start_nc, 0)], max(nc_count, 1)


def move_trace_to_device(trace: Loaded, device_id: int) -> None:
    """Move weights that are not part of the graph."""
    raise NotImplementedError


class DataParallel:
    """Spreads a batch over cores, which nobody here does."""


experimental = SimpleNamespace(set_neuron_cores=set_neuron_cores, neuron_cores_context=neuron_cores_context)

torch.jit.save, torch.jit.load = save, load
