"""Devices as programs name them, and as tensors on them report them."""

from __future__ import annotations

from typing import Any

import torch

CPU = torch.device("cpu")


def as_device(device: Any) -> torch.device:
    """Return the device of a factory's result with its index, as the tensor reports it; None means the CPU."""
    if device is None:
        return CPU
    device = torch.device(device)
    if device.type == "cpu":
        return CPU
    return device if device.index is not None or device.type == "meta" else torch.device(device.type, _current(device))


def _current(device: torch.device) -> int:
    """Return the current index of a device that is given without one."""
    if torch.accelerator.is_available() and torch.accelerator.current_accelerator().type == device.type:  # type: ignore[union-attr]
        return torch.accelerator.current_device_index()
    return 0
