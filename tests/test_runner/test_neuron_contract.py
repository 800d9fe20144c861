"""The real optimum-neuron does what the Neuron back end asks of it, in an environment of its own.

It needs an older transformers and PyTorch than ours, so they are installed once, beside ours, into the user's cache.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from test_runner.environments import environment, run_check, tried_checks, written_checks

pytestmark = pytest.mark.slow

REQUIREMENTS = (
    "optimum-neuron==0.4.5",
    "transformers==4.57.6",
    "torch==2.8.*",
    "pydantic>=2.12",
    "pillow>=11",
    "pytest>=9",  # which the builders of plans import
)

PROGRAM = Path(__file__).with_name("neuron_contract.py")


@pytest.fixture(scope="module")
def interpreter() -> str:
    """A Python 3.11 that has optimum-neuron; making it takes some minutes and 6 GB, once."""
    return environment("neuron", "3.11", REQUIREMENTS)


@pytest.mark.parametrize(
    "check",
    [
        pytest.param("signatures", id="every class, function and keyword is there"),
        pytest.param("round_trip", id="a model is exported, saved, loaded, called and found again"),
        pytest.param("tasks", id="each task and architecture passes the gate through its class"),
        pytest.param("copies", id="a second copy works on a core of its own"),
        pytest.param("ahead", id="what was compiled without a device is found with one"),
        pytest.param("unknown", id="what it does not know is traced directly"),
    ],
)
def test_the_real_library_does_what_is_asked_of_it(interpreter: str, check: str) -> None:
    """Only the compiler and the device are doubles; the words of the check say what is tried."""
    run_check(interpreter, PROGRAM, check)


def test_every_check_is_run() -> None:
    """A check that nobody runs proves nothing."""
    assert written_checks(PROGRAM) == tried_checks(test_the_real_library_does_what_is_asked_of_it)
