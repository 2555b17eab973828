"""Triton's compiler for tests: printed kernels to its IR, and to machine code, which needs no GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import triton
from printed_modules import load_module
from triton import language as tl
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

from stator.base.errors import CompileError
from stator.inductor.program.steps import KernelSource
from stator.runtime.cuda import COMPILER_OPTIONS
from stator.runtime.cuda.machine_code import Variant, compile_variants


def check_frontend(source: KernelSource, index: tl.dtype = tl.int32) -> None:
    """Compile to Triton's IR, which finds wrong types and shapes."""
    module = load_module(source.source, source.symbol)
    target = GPUTarget("cuda", 90, 32)
    backend, context = make_backend(target), ir.context()
    options = backend.parse_options({"num_warps": module.WARPS, **COMPILER_OPTIONS})
    ir.load_dialects(context)
    backend.load_dialects(context)
    sizes = {"i32": "i64"} if index is tl.int64 else {}
    signature = {name: sizes.get(kind, kind) for name, kind in module.SIGNATURE.items()}
    made = ASTSource(getattr(module, source.symbol), signature, {**module.BLOCKS, "INDEX": index})
    made.make_ir(target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context)


def ptx_of(source: KernelSource, capability: int) -> str:
    """The PTX of a kernel for tensors at multiples of 16 bytes, as allocators give them."""
    module = load_module(source.source, source.symbol)
    pointers = [at for at, kind in enumerate(module.SIGNATURE.values()) if kind.startswith("*")]
    aligned = {(at,): [["tt.divisibility", 16]] for at in pointers}
    blocks = {**module.BLOCKS, "INDEX": tl.int32}
    made = ASTSource(getattr(module, source.symbol), module.SIGNATURE, blocks, aligned)
    options = {"num_warps": module.WARPS, **COMPILER_OPTIONS}
    return triton.compile(made, target=GPUTarget("cuda", capability, 32), options=options).asm["ptx"]


def failures(sources: Sequence[KernelSource], variants: Sequence[tuple[int, str, bool]]) -> Iterator[str]:
    """Compile to machine code for each (compute capability, type of indices, alignment); give what went wrong."""

    def wanted(source: KernelSource) -> list[Variant]:
        return [Variant(source.symbol, source.source, index, aligned, at) for at, index, aligned in variants]

    with contextlib.suppress(CompileError):
        compile_variants(one for source in sources for one in wanted(source))  # all in parallel
    for source in sources:
        try:
            compiled = compile_variants(wanted(source))
        except CompileError as error:
            yield f"{source.name}: {error}\n{source.source}"
            continue
        if "device_assert" in source.source and any(b"__assertfail" not in code.cubin for code in compiled.values()):
            yield f"{source.name} does not check its indices:\n{source.source}"
