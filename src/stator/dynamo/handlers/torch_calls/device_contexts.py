"""`with torch.device(...)`: the device of factories that get no device argument. Capture does not enter the block's
mode; if the graph ends inside of the block, the emitted code enters it."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _device

from stator.dynamo.interpreter.calling import calls
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Effect, call_effect
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.constants import ConstantValue


@calls(torch.device.__enter__)
def _enter(context: CaptureContext, device: Value) -> Value:
    context.devices.append(context.constant_of(device, "a device"))
    return device


@calls(torch.device.__exit__)
def _exit(context: CaptureContext, device: Value, *error: Value) -> None:
    if not context.devices:
        raise unsupported("call-builtin", "leaving a block of torch.device that was entered before a graph break")
    context.devices.pop()


@calls(torch.get_default_device)
def _get_default_device(context: CaptureContext) -> Value:
    if not context.devices:
        return ConstantValue(torch.get_default_device())  # part of the state that is guarded
    device = context.devices[-1]
    if device.index is not None or device.type in ("cpu", "meta"):
        return ConstantValue(device)
    raise unsupported("call-builtin", f"asking for the index of the default device {device}")


def on_device(context: CaptureContext, function: Any, kwargs: dict[str, Value]) -> dict[str, Value]:
    """The keyword arguments of a torch function, with the device of the block around the call."""
    if not context.devices:
        return kwargs
    given = kwargs.get("device")
    if function not in _device._device_constructors() or not (given is None or context.is_none(given)):
        return kwargs
    return {**kwargs, "device": ConstantValue(context.devices[-1])}


def entered(devices: list[torch.device]) -> list[Effect]:
    """The effects that enter the blocks."""
    return [call_effect(torch.device.__enter__, ConstantRecipe(device)) for device in devices]
