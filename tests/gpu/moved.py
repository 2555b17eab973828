"""Tests and programs of other folders with their tensors on the device."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch
from tests.gpu.device import DEVICE

TESTS = Path(__file__).parents[1]


def module_of(path: str) -> ModuleType:
    """A module of another folder of tests, by the name that pytest gives it."""
    place = TESTS / path
    if str(place.parent) not in sys.path:
        sys.path.append(str(place.parent))
    return importlib.import_module(place.stem)


@contextlib.contextmanager
def on_device(module: ModuleType) -> Iterator[None]:
    """Tensors and modules that are globals of the module, and those that are made meanwhile, are on the device."""
    before = {name: value for name, value in vars(module).items() if isinstance(value, torch.Tensor | torch.nn.Module)}
    for name, value in before.items():
        copy = value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value
        setattr(module, name, copy.to(DEVICE))
    try:
        with torch.device(DEVICE):
            yield
    finally:
        vars(module).update(before)
