"""The Dockerfiles, as data: what each image starts from, holds, runs and runs as. `images/rehearse.py` builds them."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from dockerfile_parse import DockerfileParser
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from inferbench_operator.core.settings import Settings

ROOT = Path(__file__).parents[2]

MODULES = {"operator": "inferbench_operator", "runner": "inferbench_runner"}
"""What the images of each folder run."""

INSTALLED = {
    ("operator", "operator"): set(),
    ("runner", "cpu"): {"${COMPILER}"},
    ("runner", "cuda"): {"${COMPILER}"},
    ("runner", "neuronx"): {
        "aws-neuronx-collectives=${NEURONX_COLLECTIVES_VERSION}*",
        "aws-neuronx-runtime-lib=${NEURONX_RUNTIME_VERSION}*",
        "aws-neuronx-tools=${NEURONX_TOOLS_VERSION}*",
    },
    ("runner", "neuron-inf1"): {"aws-neuronx-tools=${NEURONX_TOOLS_VERSION}*"},
}
"""Each image, by the folder of its Dockerfile and its stage, with what it adds to the packages of its base."""

BASE = "org.opencontainers.image.base.name"
"""Label that names what an image starts from."""

CONTEXT = {"LICENSE", "README.md", "operator/src", "pyproject.toml", "requirements.lock", "runner/src"}
"""What a build may see of the repository."""


@dataclass(frozen=True)
class Step:
    """One instruction."""

    word: str
    value: str

    @property
    def words(self) -> list[str]:
        """The value as a shell would split it."""
        return shlex.split(self.value)


@dataclass(frozen=True)
class Stage:
    """What stands between one FROM and the next."""

    base: str
    name: str
    steps: list[Step]


@dataclass(frozen=True)
class Dockerfile:
    """A file with its stages; the last one may have no name."""

    arguments: dict[str, str]
    """Those above the first stage, with their defaults."""
    stages: dict[str, Stage]

    @classmethod
    def read(cls, folder: str) -> Dockerfile:
        """Read the file of a folder."""
        with (ROOT / folder / "Dockerfile").open("rb") as file:
            found = DockerfileParser(fileobj=file, env_replace=False).structure
        steps = [Step(part["instruction"], part["value"]) for part in found if part["instruction"] != "COMMENT"]
        starts = [index for index, step in enumerate(steps) if step.word == "FROM"]
        stages = {}
        for start, end in zip(starts, [*starts[1:], len(steps)], strict=True):
            base, _, name = steps[start].value.partition(" AS ")
            stages[name] = Stage(base, name, steps[start + 1 : end])
        return cls(dict(step.value.split("=", 1) for step in steps[: starts[0]]), stages)

    def history(self, name: str) -> list[Step]:
        """Return all steps that lead to a stage's image."""
        stage = self.stages[name]
        return [*(self.history(stage.base) if stage.base in self.stages else []), *stage.steps]


@pytest.fixture(scope="module", params=MODULES)
def folder(request: pytest.FixtureRequest) -> str:
    """Folder of each Dockerfile in turn."""
    return str(request.param)


@pytest.fixture(scope="module")
def dockerfile(folder: str) -> Dockerfile:
    """Each Dockerfile in turn."""
    return Dockerfile.read(folder)


@pytest.fixture(scope="module", params=INSTALLED, ids="-".join)
def image(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Each image in turn."""
    found: tuple[str, str] = request.param
    return found


@pytest.fixture(scope="module")
def history(image: tuple[str, str]) -> list[Step]:
    """All steps that lead to each image."""
    return Dockerfile.read(image[0]).history(image[1])


@pytest.fixture(scope="module")
def project(root: Path) -> dict[str, Any]:
    """The project's own description."""
    found: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return found


def values(steps: list[Step], word: str) -> list[str]:
    """Return the values of all instructions of one kind."""
    return [step.value for step in steps if step.word == word]


def pairs(steps: list[Step], word: str) -> dict[str, str]:
    """Return the names and values that instructions of one kind set."""
    found = [step.words for step in steps if step.word == word]
    return dict(pair.split("=", 1) for words in found for pair in words if "=" in pair)


def installed(steps: list[Step]) -> set[str]:
    """Return what apt-get installs."""
    commands = [re.split(r"&&|;", value) for value in values(steps, "RUN")]
    words = [shlex.split(command) for parts in commands for command in parts if "apt-get install" in command]
    return {word for found in words for word in found if not word.startswith("-")} - {"apt-get", "install"}


def test_every_image_is_known(dockerfile: Dockerfile, folder: str) -> None:
    """A stage that no other one starts from or copies from is an image, which the tests below have to cover."""
    used = {stage.base for stage in dockerfile.stages.values()}
    copies = [value for stage in dockerfile.stages.values() for value in values(stage.steps, "COPY")]
    used |= {source for copy in copies for source in re.findall(r"--from=(\S+)", copy)}
    assert set(dockerfile.stages) - used - {""} == {name for where, name in INSTALLED if where == folder}


def test_base_images_are_arguments(dockerfile: Dockerfile) -> None:
    """Whoever builds can name a mirror and a digest; each argument has a default with a tag, or is a stage's name."""
    for stage in dockerfile.stages.values():
        if stage.base not in dockerfile.stages:
            assert stage.base.startswith("${")
            default = dockerfile.arguments[stage.base.strip("${}")]
            assert default in dockerfile.stages or re.fullmatch(r"docker\.io/library/python:3\.1\d-slim-\w+", default)


def test_no_image_runs_as_root(history: list[Step]) -> None:
    """The kubelet checks `runAsNonRoot` by number; group 0 is what users that OpenShift invents are in."""
    assert re.fullmatch(r"[1-9]\d*:0", values(history, "USER")[-1])


def test_an_image_writes_nothing_but_below_tmp(history: list[Step]) -> None:
    """A pod's root folder is read-only: no bytecode is written, and caches follow HOME."""
    variables = pairs(history, "ENV")
    assert variables["HOME"] == "/tmp"  # noqa: S108  # in the pod
    assert variables["PYTHONDONTWRITEBYTECODE"] == "1"
    assert any("compileall" in value for value in values(history, "RUN"))


def test_the_entry_point_is_a_module_that_exists(image: tuple[str, str], history: list[Step]) -> None:
    """A list starts Python itself as process 1, where a sentence would start a shell that keeps signals to itself."""
    (entry,) = values(history, "ENTRYPOINT")
    assert json.loads(entry) == ["python", "-m", MODULES[image[0]]]
    assert find_spec(f"{MODULES[image[0]]}.__main__")


def test_an_image_has_labels(history: list[Step], project: dict[str, Any]) -> None:
    """A registry shows what an image is, and which version of this project is in it."""
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in pairs(history, "LABEL").items()}
    assert {"title", "description", "licenses", "version", "base.name"} <= set(labels)
    assert all(labels.values())
    assert labels["licenses"] == project["license"]
    assert pairs(history, "ARG")["VERSION"] == project["version"]


def test_an_image_holds_no_build_tools(image: tuple[str, str], history: list[Step]) -> None:
    """Packages are those of the list above, and Python's come as one folder that another stage has filled."""
    assert installed(history) == INSTALLED[image]
    assert not any(re.search(r"\bpip\b|hatch", value) for value in values(history, "RUN"))
    copies = values(history, "COPY")
    assert copies
    assert all(re.fullmatch(r"--from=[a-z0-9-]*venv /opt/venv /opt/venv", copy) for copy in copies)


def test_no_cache_of_an_installer_stays(dockerfile: Dockerfile) -> None:
    """What is downloaded to install something is gone in the same step."""
    for value in [value for stage in dockerfile.stages.values() for value in values(stage.steps, "RUN")]:
        assert len(re.findall(r"pip\b.* install", value)) == value.count("--no-cache-dir")
        assert "apt-get update" not in value or value.rstrip("fi; ").endswith("rm -rf /var/lib/apt/lists/*")


def test_a_build_sees_only_sources(dockerfile: Dockerfile, root: Path) -> None:
    """No step copies anything of the repository but what the wheel is made of, and the engine gets nothing else."""
    copies = [step.words for stage in dockerfile.stages.values() for step in stage.steps if step.word == "COPY"]
    sources = {source for words in copies if not words[0].startswith("--from=") for source in words[:-1]}
    assert sources == CONTEXT
    patterns = [line for line in (root / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert patterns[0] == "*"
    assert {pattern.removeprefix("!") for pattern in patterns if pattern.startswith("!")} == CONTEXT


def test_no_secret_is_an_argument(dockerfile: Dockerfile) -> None:
    """Arguments and variables stay in an image's history for everybody to read."""
    steps = [step for stage in dockerfile.stages.values() for step in stage.steps]
    names = {*dockerfile.arguments, *pairs(steps, "ARG"), *pairs(steps, "ENV")}
    assert not [name for name in names if re.search("TOKEN|SECRET|PASSWORD|CREDENTIAL|KEY", name)]


def test_extras_exist(dockerfile: Dockerfile, project: dict[str, Any]) -> None:
    """Of an extra that isn't there pip only warns."""
    runs = [value for stage in dockerfile.stages.values() for value in values(stage.steps, "RUN")]
    extras = {extra for value in runs for group in re.findall(r"\$1\[([\w,-]+)\]", value) for extra in group.split(",")}
    assert extras
    assert extras <= set(project["optional-dependencies"])


@pytest.mark.parametrize(
    ("stage", "base", "extra", "pinned"),
    [
        ("neuronx-venv", "PYTHON_IMAGE", "neuron", {"neuronx-cc", "optimum-neuron", "torch-neuronx"}),
        (
            "neuron-inf1-venv",
            "INF1_PYTHON_IMAGE",
            "neuron-inf1",
            {"neuron-cc", "numpy", "torch-neuron", "transformers"},
        ),
    ],
)
def test_neuron_pins_fit(project: dict[str, Any], stage: str, base: str, extra: str, pinned: set[str]) -> None:
    """The versions in the Neuron images are ones that the project takes, on the Python that the image has."""
    runner = Dockerfile.read("runner")
    pins = pairs(runner.stages[stage].steps, "ARG")
    lines = [*project["dependencies"], *project["optional-dependencies"][extra]]
    wanted = {Requirement(line).name: Requirement(line) for line in lines}
    python = re.findall(r"python:([\d.]+)", runner.arguments[base])[0]
    assert SpecifierSet(project["requires-python"]).contains(python)
    for name in pinned:
        marker = wanted[name].marker
        assert wanted[name].specifier.contains(pins[f"{name.upper().replace('-', '_')}_VERSION"])
        assert marker is None or marker.evaluate({"python_version": python})


def test_images_of_two_pythons_are_alike() -> None:
    """The stages on the older Python can't start from the shared ones, and repeat them."""
    runner = Dockerfile.read("runner")
    usual, older = (
        [step for step in runner.history(name) if step.word in {"ENTRYPOINT", "USER"} or "compileall" in step.value]
        for name in ("cpu", "neuron-inf1")
    )
    assert {(step.word, step.value) for step in older} == {(step.word, step.value) for step in usual} - {("USER", "0")}
    labels = [pairs(runner.history(name), "LABEL") for name in ("cpu", "neuron-inf1")]
    assert labels[0] | {BASE: "${INF1_PYTHON_IMAGE}"} == labels[1]


def test_the_operator_asks_for_images_that_are_built(project: dict[str, Any]) -> None:
    """Each image that the operator takes by default is a stage of the runner's Dockerfile, in this version."""
    settings = Settings()
    stages = {f"inferbench/runner-{name}:{project['version']}" for where, name in INSTALLED if where == "runner"}
    assert {*settings.runner_images.values(), settings.inf1_image} == stages
