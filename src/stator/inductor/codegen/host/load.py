"""Turns printed host text into a callable. Executes the text and nothing else; never prints or plans."""

from __future__ import annotations

import itertools
import linecache
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from stator.inductor.program.steps import HostSource, KernelSource
from stator.runtime.build import build_kernels
from stator.runtime.host import Binder, Kernel, Kernels

_numbers = itertools.count()
_KERNEL = re.compile(r'^extern "C" void (\w+)\(.*?(?=^extern "C"|\Z)', re.MULTILINE | re.DOTALL)


def load(source: HostSource, kernels: Kernels) -> Callable[..., tuple[Any, ...]]:
    """The callable of a printed program. `kernels`: its built kernels by symbol and device.

    The callable takes the program's inputs and returns a tuple. Several threads may call it at once.
    """
    return execute(source.text, Binder(kernels, source.constants, source.objects))


def load_dumped(
    folder: str | Path,
    constants: Mapping[str, torch.Tensor] | None = None,
    objects: Mapping[str, Any] | None = None,
) -> Callable[..., tuple[Any, ...]]:
    """The callable of a dumped compilation, from `60_code.py` and `60_code.cpp`, which may have been edited.

    constants, objects: the values for `rt.constant` and `rt.object` in the text; most texts need none.
    """
    text = (Path(folder) / "60_code.py").read_text()
    kernels = [
        KernelSource(match[1], match[1], match[0], "cpp")
        for match in _KERNEL.finditer((Path(folder) / "60_code.cpp").read_text())
    ]
    return execute(text, Binder(build_cpu_kernels(kernels), constants or {}, objects or {}))


def build_cpu_kernels(kernels: Sequence[KernelSource], threads: int = 0) -> dict[tuple[str, str], Kernel]:
    """C++ kernels, built, by symbol and device. threads: the number of threads that they are built for, 0 for any."""
    return {(symbol, "cpu"): address for symbol, address in build_kernels(kernels, threads).items()}


def execute(text: str, binder: Binder) -> Callable[..., tuple[Any, ...]]:
    """Run a printed host text and bind it. Tracebacks show the lines of the text."""
    filename = f"<stator host program {next(_numbers)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"__name__": "stator_host_program"}
    exec(compile(text, filename, "exec"), namespace)
    call = namespace["bind"](binder)
    weakref.finalize(call, linecache.cache.pop, filename, None)
    return call
