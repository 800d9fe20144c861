"""Tensors that say they are on a CUDA device: the host computes with them, and refuses to mix them with its own.

The rules are CUDA's: an operation takes tensors of one place, but for copies from one to the other and single values of
the host.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import update_wrapper
from typing import Any, Final

import torch

CUDA: Final = torch.device("cuda", 0)

TRANSFERS: Final = (torch.Tensor.to, torch.Tensor.cpu)


class OnDevice(torch.Tensor):
    """A tensor on the device."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401  # by function
        """Carry an operation out, with an outcome on the device."""
        given = dict(kwargs or {})
        if func == torch.Tensor.device.__get__:
            return CUDA
        if func != torch.Tensor.copy_:
            require_device((args, given))
        found = super().__torch_function__(func, types, args, given)  # type: ignore[no-untyped-call]
        return to_host(found) if func in TRANSFERS and _names_the_host(func, args, given) else found


def to_device(tensor: torch.Tensor) -> OnDevice:
    """Return the same tensor, on the device."""
    return tensor.as_subclass(OnDevice)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same tensor, on the host."""
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001  # as PyTorch's manual has it
        return tensor.as_subclass(torch.Tensor)


def require_device(value: object) -> None:
    """Raise PyTorch's own error unless all tensors in it are on the device, or single values."""
    for tensor in _tensors(value):
        if not isinstance(tensor, OnDevice) and tensor.ndim:
            msg = f"Expected all tensors to be on the same device, but found at least two devices, {CUDA} and cpu!"
            raise RuntimeError(msg)


@dataclass
class DeviceForward:
    """The forward pass of a model on the device: it takes the device's tensors, and gives such."""

    run: Callable[..., Any]
    """The same on the host."""
    log: list[str]

    def __call__(self, **inputs: torch.Tensor) -> Any:  # noqa: ANN401  # an output
        """Write it down, and run."""
        self.log.append("forward")
        require_device(inputs)
        output = self.run(**{name: to_host(tensor) for name, tensor in inputs.items()})
        for name, tensor in output.items():
            output[name] = to_device(tensor)
        return output

    def compiled(self) -> DeviceForward:
        """Return it traced and guarded by PyTorch as always; it generates no code, which would take half a minute."""
        return replace(self, run=torch.compile(self._run, dynamic=False, backend="eager"))

    def _run(self, **inputs: torch.Tensor) -> Any:  # noqa: ANN401  # an output
        return self.run(**inputs)


def move(model: torch.nn.Module, log: list[str]) -> None:
    """Let a model's weights be on the device, and write its forward passes down."""
    held = copy.deepcopy(model)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            moved = to_device(parameter.detach())
            setattr(module, name, torch.nn.Parameter(moved, requires_grad=parameter.requires_grad))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, to_device(buffer))
    # Callers look at the names that it takes.
    model.forward = update_wrapper(DeviceForward(held, log), model.forward)


def _names_the_host(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return func == torch.Tensor.cpu or any(str(one) == "cpu" for one in (*args[1:], *kwargs.values()))


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(tuple(value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
