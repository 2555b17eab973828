"""Triton's compiler for tests: machine code of printed kernels, which needs no GPU."""

from __future__ import annotations

from pathlib import Path

import triton
from triton import language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from stator.inductor.program.steps import KernelSource
from stator.runtime.triton_kernels import load_module


def check_compiles(source: KernelSource, folder: Path, capability: int, index: tl.dtype = tl.int32) -> None:
    """Compile down to a cubin for a compute capability, with this type of indices."""
    module = load_module(source.source, folder)
    sizes = {"i32": "i64"} if index is tl.int64 else {}
    signature = {name: sizes.get(kind, kind) for name, kind in module.SIGNATURE.items()}
    made = triton.compile(
        ASTSource(getattr(module, source.symbol), signature, {**module.BLOCKS, "INDEX": index}),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": module.WARPS},
    )
    ptx = made.asm["ptx"]
    if f".entry {source.symbol}" not in ptx or f"sm_{capability}" not in ptx or not made.asm["cubin"]:
        raise AssertionError(f"unexpected PTX:\n{ptx[:500]}")
