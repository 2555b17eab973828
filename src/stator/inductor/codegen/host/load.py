"""Printed host text to a callable. The text is all that is executed; nothing here prints or plans."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Mapping
from typing import Any

import torch

from stator.inductor.program.steps import Program
from stator.runtime.host import Binder

from .printer import HostSource

_numbers = itertools.count()


def load(source: HostSource, program: Program, addresses: Mapping[str, int]) -> Callable[..., tuple[Any, ...]]:
    """The callable of a printed program. `addresses`: of its kernels, by symbol.

    Called with the program's inputs it returns a tuple; it may be called from several threads at once.
    """
    constants = {
        name: buffer.value
        for name, buffer in program.buffers.items()
        if buffer.kind == "constant" and isinstance(buffer.value, torch.Tensor)
    }
    return execute(source.text, Binder(addresses, constants, source.objects))


def execute(text: str, binder: Binder) -> Callable[..., tuple[Any, ...]]:
    """Run a printed host text and bind it. Tracebacks show its lines."""
    filename = f"<stator host program {next(_numbers)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"__name__": "stator_host_program"}
    exec(compile(text, filename, "exec"), namespace)
    return namespace["bind"](binder)
