"""Whether there is an NVIDIA device, from files alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferbench_runner.backends import open_backend
from inferbench_runner.backends.presence import require_nvidia
from inferbench_runner.contract import FailureReason
from inferbench_runner.errors import DeviceNotFoundError, RunnerError
from test_runner.builders import host, plan, tree

DRIVER = {"proc/driver/nvidia/version": "NVRM version: 580.65.06"}
CARD = {"dev/nvidia0": ""}


@pytest.mark.parametrize(
    ("files", "environment", "words"),
    [
        pytest.param({}, {}, ["no NVIDIA driver", "instanceTypes", "CPU"], id="a CPU node"),
        pytest.param({"dev/nvidiactl": ""}, {}, ["no NVIDIA driver"], id="a control device is no card"),
        pytest.param(DRIVER, {}, ["given no device", "nvidia.com/gpu", "runtimeClassName"], id="nothing was requested"),
        pytest.param(DRIVER | CARD, {"CUDA_VISIBLE_DEVICES": ""}, ["CUDA_VISIBLE_DEVICES hides"], id="hidden"),
        pytest.param(DRIVER | CARD, {"CUDA_VISIBLE_DEVICES": "-1"}, ["runner.env"], id="hidden by a number"),
    ],
)
def test_what_is_missing_is_named(
    tmp_path: Path, files: dict[str, str], environment: dict[str, str], words: list[str]
) -> None:
    """Each way of having no device has a sentence of its own, with what to do."""
    with pytest.raises(DeviceNotFoundError) as caught:
        require_nvidia(environment, tree(tmp_path, files))
    assert str(caught.value).startswith("device.kind: ")
    assert not [word for word in words if word not in str(caught.value)], str(caught.value)


@pytest.mark.parametrize(
    ("files", "environment"),
    [
        pytest.param(DRIVER | CARD, {}, id="a card"),
        pytest.param(CARD, {}, id="a sandbox hides the driver's files"),
        pytest.param(DRIVER | {"dev/nvidia7": ""}, {"CUDA_VISIBLE_DEVICES": "0"}, id="the eighth card"),
        pytest.param({"dev/dxg": ""}, {}, id="Windows' subsystem for Linux"),
        pytest.param({"dev/nvhost-gpu": ""}, {}, id="an embedded device"),
    ],
)
def test_a_device_is_seen(tmp_path: Path, files: dict[str, str], environment: dict[str, str]) -> None:
    """Whatever can be a device is left to CUDA to judge."""
    require_nvidia(environment, tree(tmp_path, files))


@pytest.mark.parametrize(
    ("fields", "reason", "word"),
    [
        ({"device": {"kind": "NVIDIA", "execution": "Trace"}}, FailureReason.EXECUTION_UNSUPPORTED, "CUDAGraphs"),
        ({"device": {"kind": "CPU", "execution": "CUDAGraphs"}}, FailureReason.EXECUTION_UNSUPPORTED, "Compile"),
        ({"device": {"kind": "Neuron"}}, FailureReason.DEVICE_NOT_FOUND, "Neuron"),
    ],
)
def test_what_no_device_of_the_kind_has_is_refused_first(
    fields: dict[str, object], reason: FailureReason, word: str
) -> None:
    """A plan that can't be carried out anywhere fails for what it asks, whatever this machine has."""
    with pytest.raises(RunnerError, match=word) as caught:
        open_backend(plan(**fields), host())
    assert caught.value.reason is reason
