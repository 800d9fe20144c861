"""A Neuron device that is a folder of files, and libraries for it that keep the rules of the real ones."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferbench_runner.backends.base import Backend, Source
from inferbench_runner.backends.neuron import open_neuron, open_neuron_compiler
from inferbench_runner.contract import CellFailed, Compilation, Plan
from inferbench_runner.probe import Host
from inferbench_runner.run import Run
from test_runner.builders import Stage, host, make_run, plan, tree

ROOT = "NEURON_DOUBLE_ROOT"

SDK = Path(__file__).with_name("neuron_sdk")

DOCUMENTS = Path(__file__).with_name("neuron_documents")

VERSIONS = {"torch-neuronx": "2.8.0.2.10.16998", "neuronx-cc": "2.21.33363.0"}

INF1_VERSIONS = {"torch-neuron": "1.13.1.2.11.13.0", "neuron-cc": "1.24.0.0"}

DOUBLES = ("torch_neuronx", "torch_neuron", "neuronxcc", "neuronx_distributed", "torch_xla", "libneuronxla")

CORE = "sys/devices/virtual/neuron_device/neuron0/neuron_core"

DEVICE_FILES = {
    "proc/devices": "Character devices:\n  1 mem\n241 neuron\n\nBlock devices:\n  8 sd\n",
    "dev/neuron0": "",
    "sys/module/neuron/version": "2.22.2.0\n",
    "sys/devices/virtual/dmi/id/product_name": "inf2.xlarge\n",
    "sys/devices/virtual/neuron_device/neuron0/core_count": "2\n",
    **{f"{CORE}{core}/stats/other_info/inference_count": "7\n" for core in (0, 1)},
    **{f"{CORE}{core}/stats/memory_usage/device_mem/total": f"{(core + 1) * 2**20}\n" for core in (0, 1)},
}
"""An inf2.xlarge: one device with two cores."""


@dataclass(frozen=True)
class Machine:
    """A machine with the device, or without."""

    root: Path
    site: Path
    """Where the libraries' names and versions are, as pip leaves them."""
    programs: Path
    """Folder on the path for programs such as neuron-ls."""

    def open(self, wanted: Plan, machine: Host) -> Backend:
        """Stand in for `open_backend`."""
        return open_neuron(wanted, machine, self.root)

    def load(self, wanted: Plan) -> Any:  # noqa: ANN401  # the back end's model, whose class is heavy
        """Open the back end, and load the plan's model."""
        return self.open(wanted, host()).load(wanted.model, Source())

    def open_compiler(self, wanted: Plan, machine: Host) -> Backend:
        """Stand in for `open_compiler`."""
        return open_neuron_compiler(wanted, machine, None, self.root)

    def fail(self, *faults: Mapping[str, Any]) -> None:
        """Let things go wrong from now on."""
        (self.root / "faults.json").write_text(json.dumps(faults), encoding="utf-8")

    def executions(self) -> list[int]:
        """Return what each core has counted since the machine was made."""
        return [int((self.root / f"{CORE}{core}/stats/other_info/inference_count").read_text()) - 7 for core in (0, 1)]

    def hide_counters(self) -> None:
        """Take the counters away, as some containers do."""
        for path in self.root.rglob("inference_count"):
            path.unlink()

    def remove_device(self) -> None:
        """Take the driver away."""
        (self.root / "proc/devices").write_text("Character devices:\n  1 mem\n", encoding="utf-8")

    def be_inf1(self) -> None:
        """Become one with the first generation's device and libraries."""
        (self.root / "sys/devices/virtual/dmi/id/product_name").write_text("inf1.xlarge\n", encoding="utf-8")
        self.install(**{name.replace("-", "_"): version for name, version in INF1_VERSIONS.items()})

    def install(self, **versions: str) -> None:
        """Say which versions of the libraries there are, by their names with underscores."""
        for name, version in versions.items():
            self.remove(name)
            text = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
            tree(self.site, {f"{name}-{version}.dist-info/METADATA": text})

    def remove(self, name: str) -> None:
        """Take a library's version away."""
        for old in self.site.glob(f"{name}-*"):
            (old / "METADATA").unlink()
            old.rmdir()

    def program(self, name: str, text: str) -> None:
        """Put a program onto the path."""
        path = self.programs / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def monitor(self, *lines: str, first: str = ":", then: str = "exec sleep 600") -> Monitor:
        """Put a neuron-monitor onto the path that prints lines, and before and after does as a shell is told."""
        made = Monitor(self.root / "monitor.lines", self.root / "monitor.started")
        made.lines.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        made.log.write_text("", encoding="utf-8")
        checked = 'grep -q execution_stats "$2" || exit 1'
        steps = [f"log='{made.log}'", checked, 'echo $$ >> "$log"', first, f"cat '{made.lines}'", then]
        self.program("neuron-monitor", "\n".join(["#!/bin/sh", *steps, ""]))
        return made


@dataclass(frozen=True)
class Monitor:
    """A stand-in for neuron-monitor, and what it has left behind."""

    lines: Path
    log: Path

    @property
    def started(self) -> list[int]:
        """The process numbers of all that were started so far."""
        return [int(line) for line in self.log.read_text(encoding="utf-8").split()]

    @property
    def running(self) -> list[int]:
        """Those of them that are there, if only because this process has not reaped them."""
        return [number for number in self.started if _is_there(number)]


def _is_there(number: int) -> bool:
    try:
        state, parent = Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[:2]
    except OSError:
        return False
    return state != "Z" or int(parent) == os.getpid()


def monitored(
    pid: int | None = None, executed: int = 1, without_number: int = 0, latency: tuple[float, float] | None = None
) -> str:
    """Return a line of neuron-monitor's about a process, this one by default: the recorded document with other figures.

    The latency is the device's own, as p50 and p99 in seconds.
    """
    document = json.loads((DOCUMENTS / "neuron-monitor.json").read_text(encoding="utf-8"))
    runtime = document["neuron_runtime_data"][0]
    runtime["pid"] = os.getpid() if pid is None else pid
    stats = runtime["report"]["execution_stats"]
    stats["execution_summary"] |= {"completed": executed, "completed_with_num_err": without_number}
    known = stats["latency_stats"]["device_latency"]
    stats["latency_stats"]["device_latency"] = known | {"p50": latency[0], "p99": latency[1]} if latency else None
    return json.dumps(document)


@contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    """Yield a machine with an inf2.xlarge's device, torch-neuronx and its compiler; afterwards all is as before."""
    kept = dict(os.environ), list(sys.path)
    folder.mkdir(exist_ok=True)
    made = Machine(tree(folder / "root", DEVICE_FILES), folder / "site", folder / "bin")
    for path in (made.site, made.programs):
        path.mkdir()
    made.install(**{name.replace("-", "_"): version for name, version in VERSIONS.items()})
    sys.path[:0] = [str(SDK), str(made.site)]
    os.environ[ROOT] = str(made.root)
    os.environ["PATH"] = f"{made.programs}:{os.environ['PATH']}"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SDK), str(made.site), os.environ.get("PYTHONPATH", "")])
    for name in ("NEURON_RT_VISIBLE_CORES", "NEURON_PLATFORM_TARGET_OVERRIDE", "INFERBENCH_CACHE"):
        os.environ.pop(name, None)
    try:
        yield made
    finally:
        _forget()
        sys.path[:] = kept[1]
        os.environ.clear()
        os.environ.update(kept[0])


def _forget() -> None:
    """Undo what importing the doubles has done."""
    double = sys.modules.get("torch_neuronx")
    if double is not None and hasattr(double, "real_save"):
        import torch  # noqa: PLC0415  # there, since the double has imported it

        torch.jit.save, torch.jit.load = double.real_save, double.real_load
    for name in [name for name in sys.modules if name.partition(".")[0] in DOUBLES]:
        del sys.modules[name]


def neuron_plan(**fields: Any) -> Plan:  # noqa: ANN401  # passed through
    """Return a plan for the device, with a model that is compiled in no time."""
    fields["device"] = {"kind": "Neuron"} | dict(fields.get("device") or {})
    fields["model"] = {"config": SMALL} | dict(fields.get("model") or {})
    fields["measurement"] = {"processes": 1} | dict(fields.get("measurement") or {})
    return plan(**fields)


SMALL = {
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 99,
}


def open_in_child(wanted: Plan, machine: Host) -> Backend:
    """Open the back end in a fresh process, which has the machine's environment and no object of the test's."""
    return open_neuron(wanted, machine, Path(os.environ[ROOT]))


def shapes(*lengths: int) -> tuple[tuple[int, int], ...]:
    """Return shapes of one input each."""
    return tuple((length, 1) for length in lengths)


QUICK = {"maxSeconds": 1, "targetHalfWidthPercent": 100}
"""As little as gives a number."""


@dataclass(frozen=True)
class Ended:
    """A run that is over."""

    run: Run

    @property
    def failed(self) -> dict[int, CellFailed]:
        """The cells that failed, by their index."""
        return {one.index: one.failed for one in self.run.cells if one.failed}

    @property
    def measured(self) -> list[int]:
        """The indices of those that have figures."""
        return [one.index for one in self.run.cells if one.measured and not one.failed]

    @property
    def compilations(self) -> list[Compilation]:
        """How their graphs came about."""
        return [one.compilation for one in self.run.cells if one.compilation]


def carried_out(tmp_path: Path, neuron: Machine, **fields: Any) -> Ended:  # noqa: ANN401  # passed through
    """Carry a plan out on the machine, in this process."""
    fields["measurement"] = QUICK | dict(fields.get("measurement") or {})
    outcome = make_run(tmp_path, neuron_plan(**fields), Stage())
    outcome.run.open_backend = neuron.open
    outcome.run.carry_out()
    return Ended(outcome.run)
