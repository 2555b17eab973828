"""`with torch.device(...)`: which device factories of tensors take where they are given none. Followed without entering
the mode while capturing; where the graph ends inside of the block, the program enters it then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _device

from ..calling import calls
from ..recipe import CallRecipe, Constant, Effect, Evaluate
from ..values.base import Value, unsupported
from ..values.constants import ConstantValue

if TYPE_CHECKING:
    from ..tracer import Tracer


@calls(torch.device.__enter__)
def _enter(tracer: Tracer, device: Value) -> Value:
    tracer.devices.append(tracer.constant_of(device, "a device"))
    return device


@calls(torch.device.__exit__)
def _exit(tracer: Tracer, device: Value, *error: Value) -> Value:
    if not tracer.devices:
        raise unsupported("call-builtin", "leaving a block of torch.device that was entered before a graph break")
    tracer.devices.pop()
    return ConstantValue(None)


@calls(torch.get_default_device)
def _get_default_device(tracer: Tracer) -> Value:
    if not tracer.devices:
        return ConstantValue(torch.get_default_device())  # part of the state that is guarded
    device = tracer.devices[-1]
    if device.index is not None or device.type in ("cpu", "meta"):
        return ConstantValue(device)
    raise unsupported("call-builtin", f"asking for the index of the default device {device}")


def on_device(tracer: Tracer, function: Any, kwargs: dict[str, Value]) -> dict[str, Value]:
    """The keyword arguments of a torch function, with the device of the block that it is called in."""
    if not tracer.devices:
        return kwargs
    given = kwargs.get("device")
    if function not in _device._device_constructors() or not (given is None or tracer.is_none(given)):
        return kwargs
    return {**kwargs, "device": ConstantValue(tracer.devices[-1])}


def entered(devices: list[torch.device]) -> list[Effect]:
    """What enters the blocks, at run time."""
    return [Evaluate(CallRecipe(Constant(torch.device.__enter__), [Constant(device)])) for device in devices]
