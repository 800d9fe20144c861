"""Builds the images where no registry can be reached, and runs them as a pod would: `python tests/images/rehearse.py`.

Needs root, Debian's packages buildah and debootstrap, the package index, and some 20 GB. The Dockerfiles are built as
they are, with one stand-in: for Docker's official Python image, a Debian of the same release with its own Python. Each
image then runs its entry point as process 1, as a user that no image knows, without capabilities, on a root folder that
can't be written, with an empty /tmp and only the image's own environment. The engine's usual storage is left alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

ROOT: Final = Path(__file__).parents[2]
CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")

TINY_BERT: Final = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
MEASUREMENT: Final = {"processes": 1, "minSamples": 60, "minSeconds": 0, "maxSeconds": 2, "targetHalfWidthPercent": 100}
CELL: Final = "0000000001"

USER: Final = "12345"
"""A user that no image knows; like those that OpenShift invents, it is in group 0."""

APART: Final = ("/usr/bin/unshare", "--mount", "--pid", "--fork")
"""Starts a command among mounts and processes of its own."""

# What the kubelet and a container's runtime do: a root folder of its own, the few devices, a file for the last words.
POD: Final = """
set -eu
root=$1 message=$2 user=$3
shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir -m 1777 "$root/dev/shm"
for name in null zero full random urandom; do
  : > "$root/dev/$name"
  mount --bind "/dev/$name" "$root/dev/$name"
done
: > "$root/dev/termination-log"
mount --bind "$message" "$root/dev/termination-log"
exec chroot "$root" setpriv --reuid="$user" --regid=0 --clear-groups --no-new-privs --inh-caps=-all \\
  --bounding-set=-all env --ignore-environment "$@"
"""


@dataclass(frozen=True)
class Ended:
    """What a pod leaves behind."""

    code: int
    out: str
    message: str


class Engine:
    """Buildah with storage of its own."""

    def __init__(self, folder: Path) -> None:
        """Keep everything below the folder."""
        self.folder = folder
        self._command = ["buildah", "--root", str(folder / "storage"), "--runroot", str(folder / "run")]

    def __call__(self, *arguments: str | Path) -> str:
        """Run a command of Buildah, and return what it prints."""
        done = subprocess.run([*self._command, *arguments], stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
        return done.stdout.strip()

    def build(self, name: str, context: Path, *arguments: str | Path) -> str:
        """Build an image, and return its name."""
        # Chroot isolation is the one that needs no namespaces that a build inside a container lacks.
        self("build", "--isolation=chroot", "--layers", f"--tag={name}", *arguments, context)
        return name

    def base(self, dockerfile: Path) -> str:
        """Return an image like the one that this Dockerfile starts from."""
        found = re.search(r"^ARG PYTHON_IMAGE=\S+/python:\S+-slim-(\w+)$", dockerfile.read_text(), re.MULTILINE)
        if found is None:
            msg = f"{dockerfile} has no default for PYTHON_IMAGE that this script knows"
            raise ValueError(msg)
        context = self.folder / found[1]
        if not (context / "root.tar").exists():
            packages = "ca-certificates,python-is-python3,python3-dev,python3-pip,python3-venv"
            run("debootstrap", "--variant=minbase", f"--include={packages}", found[1], context / "root")
            # As in Docker's images.
            run("find", context / "root/var/lib/apt/lists", "-mindepth", "1", "-delete")
            # A network of one's own may have a certificate authority of its own.
            shutil.copy(CERTIFICATES, (context / "root").joinpath(*CERTIFICATES.parts[1:]))
            run("tar", "--create", f"--directory={context / 'root'}", f"--file={context / 'root.tar'}", ".")
            shutil.rmtree(context / "root")
        (context / "Dockerfile").write_text(f"FROM scratch\nADD root.tar /\nENV PIP_CERT={CERTIFICATES}\n")
        return self.build(f"localhost/python-{found[1]}", context)


@dataclass(frozen=True)
class Image:
    """An image that was built, as a folder and with its own settings."""

    root: Path
    config: dict[str, Any]
    _message: Path

    @classmethod
    @contextmanager
    def laid_out(cls, engine: Engine, name: str) -> Iterator[Self]:
        """Yield the image, whose folder goes afterwards."""
        container = engine("from", "--pull-never", name)
        try:
            config = json.loads(engine("inspect", container))["OCIv1"]["config"]
            yield cls(Path(engine("mount", container)), config, engine.folder / "message")
        finally:
            engine("rm", container)

    def start(self, *arguments: str, command: Sequence[str] = (), **variables: str) -> subprocess.Popen[str]:
        """Start the entry point, or another command, as process 1 of a pod."""
        self._message.write_text("")
        self._message.chmod(0o666)
        environment = [*self.config["Env"], *(f"{name}={value}" for name, value in variables.items())]
        words = [*environment, *(command or self.config["Entrypoint"]), *arguments]
        return subprocess.Popen(
            [*APART, "sh", "-c", POD, "pod", self.root, self._message, USER, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self, pod: subprocess.Popen[str], send: signal.Signals | None = None) -> Ended:
        """Wait for a pod's end; a signal goes to its process 1 once that has begun to measure."""
        if send is not None:
            deadline = time.monotonic() + 120
            while '"doing"' not in self._message.read_text() and time.monotonic() < deadline and pod.poll() is None:
                time.sleep(0.1)
            (first,) = Path(f"/proc/{pod.pid}/task/{pod.pid}/children").read_text().split()
            os.kill(int(first), send)
        out, _ = pod.communicate(timeout=600)
        return Ended(pod.returncode, out, self._message.read_text())

    def run(self, *arguments: str, command: Sequence[str] = (), **variables: str) -> Ended:
        """Run the entry point, or another command, to its end."""
        return self.end(self.start(*arguments, command=command, **variables))


def run(*command: str | Path) -> None:
    """Run a command that must succeed."""
    subprocess.run(command, check=True)


def check(fact: str, ended: Ended, *, holds: bool) -> None:
    """Print a fact that holds; end with what the pod said when it does not."""
    if not holds:
        sys.exit(f"NOT TRUE: {fact} (exit code {ended.code})\n{ended.message}\n{ended.out}")
    print(f"  {fact}", flush=True)  # noqa: T201  # this is what the script is for


def check_layout(image: Image, module: str, *, compiler: bool) -> None:
    """Check what every image has and lacks."""
    ended = image.run(command=["sh", "-c", "touch /x /opt/venv/x 2>&1; id -u; touch /tmp/x && echo wrote"])
    check("only /tmp can be written, as any user", ended, holds=ended.out.endswith("12345\nwrote\n"))
    ended = image.run(command=["python", "-v", "-c", f"import asyncio, {module}.__main__"])
    compiled = re.findall(r"^# code object from '.*\.py'$", ended.out, re.MULTILINE)
    check("every module comes with its bytecode", ended, holds=not compiled and ended.code == 0)
    find = "find /root/.cache /var/lib/apt/lists /opt/venv/bin/pip* -type f 2>/dev/null"
    ended = image.run(command=["sh", "-c", f"for tool in c++ cc ld make; do command -v $tool; done; {find}; true"])
    wanted = ["c++", "cc", "ld"] if compiler else []
    found = [Path(line).name for line in ended.out.split()]
    check(f"build tools: {' '.join(wanted) or 'none'}; no caches, no pip", ended, holds=found == wanted)


def check_operator(image: Image) -> None:
    """Run the operator."""
    check_layout(image, "inferbench_operator", compiler=False)
    ended = image.run("--help")
    check("the entry point is the operator", ended, holds=ended.code == 0 and "--liveness" in ended.out)
    ended = image.run()
    check(f"without a cluster: {ended.out.splitlines()[-1]}", ended, holds=ended.code == 1)
    ended = image.run(command=["python", "-c", "import torch"])
    check("there is no torch", ended, holds="No module named 'torch'" in ended.out)


def plan(execution: str, **measurement: int) -> str:
    """Return a plan for a model that is built in a moment."""
    return json.dumps(
        {
            "model": {"id": "bert-base-uncased", "weights": "Random", "config": TINY_BERT},
            "device": {"kind": "CPU", "execution": execution},
            "shapes": [{"cell": CELL, "sequenceLength": 8, "batchSize": 1}],
            "measurement": MEASUREMENT | measurement,
        }
    )


def check_runner(image: Image) -> None:
    """Run the runner."""
    check_layout(image, "inferbench_runner", compiler=True)
    for execution in ("Eager", "Compile"):
        ended = image.run(INFERBENCH_PLAN=plan(execution))
        measured = [cell["cell"] for cell in json.loads(ended.message or "{}").get("measured", [])]
        check(f"{execution} on the CPU has figures", ended, holds=ended.code == 0 and measured == [CELL])
    pod = image.start(INFERBENCH_PLAN=plan("Eager", minSeconds=600, maxSeconds=600))
    ended = image.end(pod, signal.SIGTERM)
    check("SIGTERM ends it with 143, and with a report", ended, holds=ended.code == 143 and bool(ended.message))


IMAGES: Final[dict[str, tuple[str, list[str], Callable[[Image], None]]]] = {
    "operator": ("operator/Dockerfile", [], check_operator),
    # PyTorch's own index isn't a package registry that every network reaches; the build for CUDA also runs on a CPU.
    "cpu": ("runner/Dockerfile", ["--target=cpu", "--build-arg=TORCH_INDEX=https://pypi.org/simple"], check_runner),
    "cuda": ("runner/Dockerfile", ["--target=cuda"], check_runner),
}


def main() -> None:
    """Build and run the images that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="where to keep Debian, layers and images; may be used again")
    parser.add_argument("images", nargs="*", choices=IMAGES, default=["operator", "cpu"])
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    engine = Engine(arguments.folder.resolve())
    for name in arguments.images:
        dockerfile, options, check_image = IMAGES[name]
        base = engine.base(ROOT / dockerfile)
        argument = f"--build-arg=PYTHON_IMAGE={base}"
        built = engine.build(f"localhost/{name}", ROOT, f"--file={dockerfile}", argument, *options)
        print(name, flush=True)  # noqa: T201  # this is what the script is for
        with Image.laid_out(engine, built) as image:
            check_image(image)


if __name__ == "__main__":
    main()
