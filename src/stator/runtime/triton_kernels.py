"""Printed Triton modules to callables. The printed module imports Triton, so Triton is loaded only with a kernel."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from .toolchain import digest


def load_module(source: str, folder: Path) -> ModuleType:
    """Import a printed module from a file in `folder`, because Triton reads the source of its kernels from files."""
    name = f"stator_triton_{digest(source)}"
    path = folder / f"{name}.py"
    if not path.exists():
        temporary = path.with_name(f".{name}.{os.getpid()}")
        temporary.write_text(source)
        temporary.replace(path)
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def make_kernel(module: ModuleType, symbol: str) -> Callable[..., None]:
    """Return a callable that launches the kernel on tensors, reads then writes, on the current stream of their
    device."""
    function: Any = getattr(module, symbol)[module.GRID]
    blocks = module.BLOCKS
    warps = module.WARPS

    def launch(*tensors: torch.Tensor) -> None:
        function(*tensors, **blocks, num_warps=warps)

    return launch
