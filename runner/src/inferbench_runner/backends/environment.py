"""Switches of the model libraries that act only when they are set before the first import."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from inferbench_runner.contract import CACHE_VARIABLE
from inferbench_runner.probe import Host
from inferbench_runner.scratch import SCRATCH_VARIABLE

DEFAULTS: Final = {
    # Progress bars and hints would drown the runner's own lines; a failure reaches us as an exception anyway.
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    # Neither a background thread nor the network may work while a latency is measured.
    "DISABLE_SAFETENSORS_CONVERSION": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # Devices are counted as the driver and its tools count them, and not the fastest first.
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    # A tokenizer's own threads would compete with the model's for the processors.
    "TOKENIZERS_PARALLELISM": "false",
}


INDUCTOR: Final = "inductor"
"""Folder of PyTorch's own compiler; in the cache of artefacts, which processor it is for stands behind it."""

INDUCTOR_VARIABLE: Final = "TORCHINDUCTOR_CACHE_DIR"


def prepare_environment(environment: MutableMapping[str, str], host: Host) -> None:
    """Set each switch that the user has not set.

    What PyTorch compiles is kept in the cache of artefacts, or else until the run is over: its own folder for that is
    the machine's, so that what one run has left there would shorten the compilations of the next.
    """
    for name, value in DEFAULTS.items():
        environment.setdefault(name, value)
    if INDUCTOR_VARIABLE not in environment and (place := next(filter(_is_writable, _places(environment, host)), None)):
        environment[INDUCTOR_VARIABLE] = str(place)


def _places(environment: Mapping[str, str], host: Host) -> Iterator[Path]:
    """Yield the folders that there are for what PyTorch compiles, the best one first.

    What it makes for one kind of processor must not be found by another that shares the volume: it asks for the
    processor's own instructions, and does not keep apart what it got.
    """
    if kept := environment.get(CACHE_VARIABLE):
        processor = sha256(" ".join((host.cpu_model, *sorted(host.cpu_flags))).encode()).hexdigest()[:8]
        yield Path(kept) / f"{INDUCTOR}-{processor}"
    if scratch := environment.get(SCRATCH_VARIABLE):
        yield Path(scratch) / INDUCTOR


def why_unkept(environment: Mapping[str, str]) -> str:
    """Say why the cache of artefacts doesn't keep what PyTorch compiles; nothing where it does, or there is none."""
    folder, used = environment.get(CACHE_VARIABLE), environment.get(INDUCTOR_VARIABLE, "")
    if not folder or Path(used).is_relative_to(folder):
        return ""
    return f"{INDUCTOR_VARIABLE} is {used}" if _is_writable(Path(folder)) else f"{folder} can't be written"


def _is_writable(folder: Path) -> bool:
    """Whether a folder is there now, for PyTorch to write to: it makes one when it is imported, or fails there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)
