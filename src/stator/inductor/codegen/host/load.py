"""Turns printed host text into a callable. Executes the text and nothing else; never prints or plans."""

from __future__ import annotations

import linecache
import re
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import torch

from stator.base.locks import fork_safe_lock
from stator.inductor.program.steps import HostSource, KernelSource
from stator.runtime.build import build_kernels
from stator.runtime.host import Binder, Kernel, Kernels
from stator.runtime.toolchain import digest

_lock = fork_safe_lock()
_shown: Counter[str] = Counter()  # by file name: programs that are alive, whose lines tracebacks show
_KERNEL = re.compile(r'^extern "C" void (\w+)\(.*?(?=^extern "C"|\Z)', re.MULTILINE | re.DOTALL)


def load(source: HostSource, kernels: Kernels, code: CodeType | None = None) -> Callable[..., tuple[Any, ...]]:
    """The callable of a printed program. `kernels`: its built kernels by symbol and device. `code`: the result of
    `compile_text`, if it is known.

    The callable takes the program's inputs and returns a tuple. Several threads may call it at once.
    """
    return execute(source.text, Binder(kernels, source.constants, source.objects), code)


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


def compile_text(text: str) -> CodeType:
    """The bytecode of a printed host text. It names its file by the text, so that other processes may run it."""
    return compile(text, _filename(text), "exec")


def execute(text: str, binder: Binder, code: CodeType | None = None) -> Callable[..., tuple[Any, ...]]:
    """Run a printed host text and bind it. Tracebacks show the lines of the text."""
    filename = _filename(text)
    namespace: dict[str, Any] = {"__name__": "stator_host_program"}
    exec(code or compile_text(text), namespace)
    call = namespace["bind"](binder)
    with _lock:
        _shown[filename] += 1
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    weakref.finalize(call, _forget, filename)
    return call


def _filename(text: str) -> str:
    return f"<stator host program {digest(text)[:16]}>"


def _forget(filename: str) -> None:
    with _lock:
        _shown[filename] -= 1
        if not _shown[filename]:
            del _shown[filename]
            linecache.cache.pop(filename, None)
