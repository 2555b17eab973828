"""Triton's compiler for tests: printed kernels to its IR, and to machine code, which needs no GPU."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import triton
from triton import language as tl
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

from stator.inductor.program.steps import KernelSource
from stator.runtime.triton_kernels import COMPILER_OPTIONS, load_module


def _source(module: ModuleType, symbol: str, index: tl.dtype) -> ASTSource:
    sizes = {"i32": "i64"} if index is tl.int64 else {}
    signature = {name: sizes.get(kind, kind) for name, kind in module.SIGNATURE.items()}
    return ASTSource(getattr(module, symbol), signature, {**module.BLOCKS, "INDEX": index})


def check_frontend(source: KernelSource, folder: Path, index: tl.dtype = tl.int32) -> None:
    """Compile to Triton's IR, which finds wrong types and shapes."""
    module = load_module(source.source, folder)
    target = GPUTarget("cuda", 90, 32)
    backend, context = make_backend(target), ir.context()
    options = backend.parse_options({"num_warps": module.WARPS, **COMPILER_OPTIONS})
    ir.load_dialects(context)
    backend.load_dialects(context)
    made = _source(module, source.symbol, index)
    made.make_ir(target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context)


def check_compiles(source: KernelSource, folder: Path, capability: int, index: tl.dtype = tl.int32) -> None:
    """Compile to a cubin for a compute capability, with this type of indices."""
    module = load_module(source.source, folder)
    made = triton.compile(
        _source(module, source.symbol, index),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": module.WARPS, **COMPILER_OPTIONS},
    )
    ptx = made.asm["ptx"]
    if "device_assert" in source.source and "__assertfail" not in ptx:
        raise AssertionError("the kernel does not check its indices")
    if f".entry {source.symbol}" not in ptx or f"sm_{capability}" not in ptx or not made.asm["cubin"]:
        raise AssertionError(f"unexpected PTX:\n{ptx[:500]}")
