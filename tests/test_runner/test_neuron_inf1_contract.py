"""The runner does its work with what the image for Inf1 has: an older Python, PyTorch and transformers.

The versions are those of the image, and the runner comes as the wheel that the image installs. What only AWS's package
index has, the compiler and the library for the device, is a double.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from inferbench_runner.contract import REPORT_MARK, TERMINATION_PATH_VARIABLE, CompactReport, FullReport
from test_runner.builders import cell
from test_runner.environments import environment, run_check, tried_checks, uv, written_checks

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

DOCKERFILE = (ROOT / "runner" / "Dockerfile").read_text(encoding="utf-8")

PYTHON = re.findall(r"^ARG INF1_PYTHON_IMAGE=\S+/python:([\d.]+)-", DOCKERFILE, re.MULTILINE)[0]

PINS = dict(re.findall(r"^ARG (\w+)_VERSION=(\S+)$", DOCKERFILE.partition("AS neuron-inf1-venv")[2], re.MULTILINE))

REQUIREMENTS = (
    *(f"{name.lower()}=={PINS[name]}" for name in ("TORCH", "TRANSFORMERS", "NUMPY", "PROTOBUF")),
    "pydantic>=2.12",
    "pyyaml>=6",
    "pillow>=11",
    "typing-extensions>=4.14",
    "pytest>=9",  # which the builders of plans import
)

PROGRAM = Path(__file__).with_name("neuron_inf1_contract.py")

MEASUREMENT = {"processes": 1, "minSeconds": 0, "maxSeconds": 2, "targetHalfWidthPercent": 100}


@pytest.fixture(scope="module")
def interpreter() -> str:
    """A Python that has what the image has; making it takes some minutes and 5 GB, once."""
    return environment("neuron-inf1", PYTHON, REQUIREMENTS)


@pytest.fixture(scope="module")
def site(interpreter: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runner, built as a wheel and installed for that Python."""
    folder = tmp_path_factory.mktemp("inf1")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True)
    (wheel,) = folder.glob("*.whl")
    target = folder / "site"
    assert not uv("pip", "install", "--python", interpreter, "--no-deps", "--target", str(target), str(wheel))
    return target


@pytest.fixture(scope="module")
def models(interpreter: str, site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny models, written by the library that will read them."""
    folder = tmp_path_factory.mktemp("models")
    run_check(interpreter, PROGRAM, "write", str(folder), path=[site, ROOT / "tests"])
    return folder


@pytest.mark.parametrize(("name", "length"), [("bert", 8), ("vit", None)])
def test_a_published_model_is_measured_on_the_processor(
    interpreter: str, site: Path, models: Path, tmp_path: Path, name: str, length: int | None
) -> None:
    """By the real command, from files to a report that the operator takes."""
    plan, message = tmp_path / "plan.json", tmp_path / "message"
    shape = {"cell": cell(0), "sequenceLength": length, "batchSize": 1}
    wanted = {"model": {"id": str(models / name)}, "device": {"kind": "CPU"}, "shapes": [shape]}
    plan.write_text(json.dumps(wanted | {"measurement": MEASUREMENT}), encoding="utf-8")
    message.touch()
    done = subprocess.run(
        [interpreter, "-m", "inferbench_runner", "--plan", str(plan)],
        capture_output=True,
        text=True,
        env={"HOME": str(tmp_path), "PYTHONPATH": str(site), TERMINATION_PATH_VARIABLE: str(message)},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report = CompactReport.model_validate_json(message.read_bytes())
    assert [one.cell for one in report.measured] == [cell(0)], report.failed
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(REPORT_MARK)]
    full = FullReport.model_validate_json(line.removeprefix(REPORT_MARK))
    assert full.cells[0].end_to_end is not None
    facts = full.provenance
    assert facts["python"].startswith(f"{PYTHON}.")
    assert facts["torch"].partition("+")[0] == PINS["TORCH"]
    assert {facts["transformers"], facts["numpy"]} == {PINS["TRANSFORMERS"], PINS["NUMPY"]}
    assert facts["cpuCapability"] != "unknown"


@pytest.mark.parametrize(
    "check",
    [
        pytest.param("modules", id="every module can be imported"),
        pytest.param("plans", id="plans for the device end in reports"),
        pytest.param("copies", id="a second copy works on a core of its own"),
        pytest.param("ahead", id="what was compiled without a device is found with one"),
        pytest.param("failures", id="a compiler that gives up is a failure"),
        pytest.param("refusals", id="what these devices can't do is refused"),
    ],
)
def test_the_device_is_driven_through_its_own_library(interpreter: str, site: Path, check: str) -> None:
    """Only the library, its compiler and the device are doubles; the words of the check say what is tried."""
    run_check(interpreter, PROGRAM, check, path=[site, ROOT / "tests"])


def test_every_check_is_run() -> None:
    """A check that nobody runs proves nothing."""
    assert written_checks(PROGRAM) == tried_checks(test_the_device_is_driven_through_its_own_library)
