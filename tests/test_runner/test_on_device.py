"""The stand-in for a device's tensors keeps the device's rules: what it lets pass, a GPU would, and what not, not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="install the torch extra to test its tensors")

import torch

from test_runner.on_device import OnDevice, move, to_device, to_host

HOST = torch.arange(4.0)
DEVICE = to_device(torch.arange(4.0))


@pytest.mark.parametrize(
    "mix",
    [
        lambda: DEVICE + HOST,
        lambda: HOST + DEVICE,
        lambda: torch.stack((HOST, DEVICE)),
        lambda: torch.equal(DEVICE, HOST),
        lambda: torch.where(HOST > 1, DEVICE, DEVICE),
        lambda: torch.nn.functional.embedding(DEVICE.long(), torch.zeros(4, 2)),
        lambda: torch.nn.Linear(4, 2)(DEVICE),
        lambda: DEVICE.add_(HOST),
    ],
)
def test_tensors_of_two_places_do_not_mix(mix: Callable[[], object]) -> None:
    """In whatever order, and in whatever function."""
    with pytest.raises(RuntimeError, match="two devices, cuda:0 and cpu"):
        mix()


def test_what_is_computed_from_the_devices_tensors_is_on_the_device() -> None:
    """Also with a single value of the host's."""
    for found in (DEVICE * 2, DEVICE * torch.tensor(2.0), torch.cat((DEVICE, DEVICE)), DEVICE[1:], DEVICE.detach()):
        assert isinstance(found, OnDevice)
        assert found.device.type == "cuda"


@pytest.mark.parametrize("brought", [lambda: DEVICE.to("cpu"), lambda: DEVICE.to("cpu", torch.float16), DEVICE.cpu])
def test_a_copy_to_the_host_is_on_the_host(brought: Callable[[], torch.Tensor]) -> None:
    """And mixes with the host's."""
    found = brought()
    assert not isinstance(found, OnDevice)
    assert found.device.type == "cpu"
    assert torch.equal(found.float(), HOST)


def test_copies_go_both_ways() -> None:
    """Each into a tensor that is there."""
    host, device = torch.zeros(4), to_device(torch.zeros(4))
    host.copy_(DEVICE)
    device.copy_(HOST)
    assert torch.equal(host, HOST)
    assert torch.equal(to_host(device), HOST)


def test_a_model_on_the_device_refuses_inputs_on_the_host() -> None:
    """Its weights say where they are; what it gives is there too."""

    class Doubling(torch.nn.Module):
        offset: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((4,), 2.0))
            self.register_buffer("offset", torch.ones(4))

        def forward(self, values: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logits": values * self.weight + self.offset}

    model, log = Doubling(), list[str]()
    move(model, log)
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"cuda"}
    output = model(values=DEVICE)["logits"]
    assert isinstance(output, OnDevice)
    assert output.requires_grad
    assert to_host(output).tolist() == [1.0, 3.0, 5.0, 7.0]
    with pytest.raises(RuntimeError, match="two devices"):
        model(values=HOST)
    assert log == ["forward", "forward"]
