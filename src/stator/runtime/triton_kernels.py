"""Printed Triton modules to callables. The printed module imports Triton, so Triton is loaded only with a kernel."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from .build import KernelText
from .kernel_cache import default_root
from .toolchain import digest

_MOST_SIZES = 1024
# Multiplications and additions round as in eager's operators and in C++ kernels; checks of indices are compiled, which
# Triton takes for debugging; integers wrap around
COMPILER_OPTIONS = {"enable_fp_fusion": False, "debug": True, "sanitize_overflow": False}


def load_kernels(sources: Sequence[KernelText]) -> dict[str, Callable[..., None]]:
    """Return the launchers of the kernels by symbol. Equal kernels of a process are one module, compiled once."""
    folder = default_root() / "triton"
    if sources:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {kernel.symbol: _launcher(kernel.symbol, kernel.source, folder) for kernel in sources}


@functools.cache
def _launcher(symbol: str, source: str, folder: Path) -> Callable[..., None]:
    return make_kernel(load_module(source, folder), symbol)


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
    """Return a callable that launches the kernel on tensors, reads then writes, and its sizes, on the current stream of
    the tensors' device."""
    function: Any = getattr(module, symbol)
    blocks, warps = module.BLOCKS, module.WARPS
    grid_and_index = functools.lru_cache(_MOST_SIZES)(module.launch)
    tensors = sum(kind.startswith("*") for kind in module.SIGNATURE.values())

    def launch(*arguments: Any) -> None:
        grid, index = grid_and_index(*arguments[tensors:])
        if grid[0]:
            function[grid](*arguments, **blocks, INDEX=index, num_warps=warps, **COMPILER_OPTIONS)

    return launch
