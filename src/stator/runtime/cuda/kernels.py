"""Printed Triton modules to launchers of their kernels: variants, loaded functions, grids."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from stator.base.errors import CompileError
from stator.base.locks import fork_safe_lock
from stator.runtime.build import KernelText

from .driver import device_code, open_driver
from .machine_code import MachineCode, Variant, compile_variants, start_compiling

_MOST_SIZES = 1024
_INDEX_TYPES = SimpleNamespace(int32="int32", int64="int64")

Function = tuple[int, int, int]  # address, threads of a program, bytes of dynamic shared memory

_lock = fork_safe_lock()
# By machine code and device. Functions stay loaded as long as the process lives, because graphs may launch them.
_functions: dict[tuple[Variant, int], Function] = {}


class TritonKernel:
    """A kernel on one device, for tensors at any address and of any size that it was printed for."""

    def __init__(self, source: KernelText, device: torch.device, capability: int) -> None:
        self.symbol, self.source, self.device, self.capability = source.symbol, source.source, device, capability
        self.tensors, self.sizes, launch = read_module(source.source)
        self.launch = functools.lru_cache(_MOST_SIZES)(launch)
        # Of the two types, the wider one runs only where the sizes of a call need it.
        self.narrow = "int32" if "int32" in launch.__code__.co_names else "int64"

    def variant(self, index: str, aligned: bool) -> Variant:
        return Variant(self.symbol, self.source, index, aligned, self.capability)

    def bind(self, count: int, sizes: tuple[int, ...] = ()) -> Callable[..., None]:
        """Return a callable that launches the kernel on `count` tensors, reads then writes, with these sizes, on the
        current stream of its device.

        It raises TypeError for wrong arguments, RuntimeError for tensors elsewhere or a failed launch, and CompileError
        if it needs a variant that does not compile. Raises OverflowError for a grid that no GPU takes.
        """
        if count != self.tensors or len(sizes) != self.sizes:
            raise CompileError("runtime", f"kernel {self.symbol} takes {self.tensors} tensors and {self.sizes} sizes")
        grid, index = self.launch(*sizes)
        if index == "int32" and any(not -(2**31) <= size < 2**31 for size in sizes):
            raise CompileError("runtime", f"kernel {self.symbol} was bound to 32-bit indices with sizes {sizes}")
        load = functools.partial(self.load, index)
        place = self.device.index or 0, device_code(self.device)
        return open_driver().Kernel(self.symbol, count, *place, (*grid, 1, 1)[:3], sizes, load)

    def load(self, index: str, aligned: bool) -> Function:
        """Return the function of a variant, compiled and loaded at first need."""
        variant = self.variant(index, bool(aligned))
        place = variant, self.device.index or 0
        with _lock:
            if place not in _functions:
                _functions[place] = _load(compile_variants([variant])[variant], place[1])
            return _functions[place]


def _load(code: MachineCode, device: int) -> Function:
    return open_driver().load_function(code.cubin, code.symbol, code.shared, device), code.threads, code.shared


@functools.lru_cache(_MOST_SIZES)
def read_module(text: str) -> tuple[int, int, Callable[..., Any]]:
    """Return the numbers of tensors and of sizes, and the function `launch` of a printed module, without Triton.

    The part from SIGNATURE on needs no more of Triton than the names of two types. Raises CompileError for parameters
    other than tensors, then sizes.
    """
    module: dict[str, Any] = {"tl": _INDEX_TYPES}
    tail = text[text.rindex("\nSIGNATURE = ") :]
    exec(compile(tail, "<launch of a kernel>", "exec"), module)
    kinds = [kind for kind in module["SIGNATURE"].values() if kind != "constexpr"]
    tensors = sum(kind.startswith("*") for kind in kinds)
    if not all(kind.startswith("*") for kind in kinds[:tensors]) or set(kinds[tensors:]) - {"i32"}:
        raise CompileError("runtime", f"a kernel takes other than tensors, then sizes: {kinds}")
    launch = module["launch"]
    assert isinstance(launch, types.FunctionType)
    return tensors, len(kinds) - tensors, launch


def start_kernel(source: KernelText, device: torch.device) -> None:
    """Let a kernel compile, which `load_kernels` will be asked for. Returns at once. Raises CompileError if no process
    can be started that compiles it."""
    kernel = TritonKernel(source, *_place(device, None))
    start_compiling(kernel.variant(kernel.narrow, aligned=True))


def load_kernels(
    sources: Sequence[KernelText], device: torch.device, capability: int | None = None
) -> dict[str, TritonKernel]:
    """Return the kernels by symbol, compiled for aligned tensors, with 32-bit indices where that is possible.

    device: a CUDA device, the current one without an index. capability: its compute capability, by default asked of
        torch. Raises CompileError for a kernel that does not compile, MissingToolchain without the C extension.
    """
    if not sources:
        return {}
    place = _place(device, capability)
    open_driver()
    kernels = {source.symbol: TritonKernel(source, *place) for source in sources}
    compile_variants(kernel.variant(kernel.narrow, aligned=True) for kernel in kernels.values())
    for kernel in kernels.values():
        kernel.load(kernel.narrow, aligned=True)
    return kernels


def _place(device: torch.device, capability: int | None) -> tuple[torch.device, int]:
    """The device with its index, and its compute capability."""
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    if capability is None:
        major, minor = torch.cuda.get_device_capability(device)
        capability = 10 * major + minor
    return device, capability
