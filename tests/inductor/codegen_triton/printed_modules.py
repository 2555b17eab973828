"""Printed modules as modules of Python, for tests that give their kernels to Triton in this process."""

from __future__ import annotations

import linecache
from types import ModuleType


def load_module(source: str, symbol: str) -> ModuleType:
    """Run a printed module. Triton reads the source of its kernels from linecache."""
    name = f"<{symbol}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    module = ModuleType(symbol)
    exec(compile(source, name, "exec"), vars(module))
    return module
