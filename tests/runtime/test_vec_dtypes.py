"""csrc/vec.h on every dtype: vector lanes against scalars and torch, on each instruction set of this machine."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch
from vec_library import TARGETS, build_library

from stator.inductor.codegen.cpp.types import KIND, MEMORY
from stator.inductor.loops.float8 import is_float8

DTYPES = [dtype for dtype in MEMORY if not is_float8(dtype)]  # kernels see bytes of 8-bit floats
REGISTERS = [torch.int32, torch.int64, torch.float32, torch.float64]
UNARY = ["abs", "sign", "relu", "neg", "logical_not"]
BINARY = ["maximum", "minimum", "mod", "fmod", "floor_div", "trunc_div", "lt", "ge", "eq"]
ROUNDING = ["sqrt", "floor", "ceil", "trunc", "round"]
FLOATING = ["fmax", "fmin", "copysign"]
REDUCTIONS = ["sum", "prod", "max", "min"]
TAIL = 5  # elements behind the whole vectors


def _functions() -> Iterator[tuple[str, str, str, list[str], str]]:
    """(name, C type of operands, C type of results, operands, expression), the expression for vectors and scalars."""
    for source in DTYPES:
        for target in DTYPES:
            name = f"convert_{str(source)[6:]}_{str(target)[6:]}"
            convert = "" if KIND[source] == KIND[target] else f"convert_{KIND[target]}"
            yield name, MEMORY[source], MEMORY[target], ["x"], f"{convert}(x)"
    for dtype in REGISTERS:
        floating = dtype.is_floating_point
        for operation in [*UNARY, *(ROUNDING if floating else [])]:
            result = "bool" if operation == "logical_not" else MEMORY[dtype]
            yield f"{operation}_{str(dtype)[6:]}", MEMORY[dtype], result, ["x"], f"op_{operation}(x)"
        for operation in [*BINARY, *(FLOATING if floating else [])]:
            result = "bool" if operation in ("lt", "ge", "eq") else MEMORY[dtype]
            yield f"{operation}_{str(dtype)[6:]}", MEMORY[dtype], result, ["x", "z"], f"op_{operation}(x, z)"


def _source() -> str:
    lines = ['#include "vec.h"']
    for name, operand, result, operands, expression in _functions():
        parameters = f"const {operand} *xs, const {operand} *zs, {result} *y, int64_t n"
        for load, store, step in (("load", "store", "LANES"), ("load_one", "store_one", "1")):
            prefix = "v_" if step == "LANES" else "s_"
            body = " ".join(f"auto {o} = {load}({o}s + i);" for o in operands)
            tail = " ".join(f"auto {o} = load({o}s + i, left);" for o in operands)
            lines.append(f'extern "C" void {prefix}{name}({parameters}) {{ int64_t i = 0;')
            lines.append(f"for (; i + {step} <= n; i += {step}) {{ {body} {store}(y + i, {expression}); }}")
            if step == "LANES":
                lines.append(f"if (int left = (int)(n - i)) {{ {tail} store(y + i, {expression}, left); }}")
            lines.append("}")
    for dtype in REGISTERS:
        scalar = MEMORY[dtype]
        for kind in REDUCTIONS:
            lines.append(f'extern "C" void {kind}_{str(dtype)[6:]}(const {scalar} *x, {scalar} *y)')
            lines.append(f"{{ *y = reduce_{kind}(load(x)); }}")
    lines.append('extern "C" int lanes() { return LANES; }')
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module", params=list(TARGETS))
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build_library(_source(), request.param, tmp_path_factory.mktemp("vec"))


def _values(dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Random values, the edges of the dtype, and a remainder that fills no vector."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.rand(1600 + TAIL, generator=generator) > 0.5
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        wide = torch.randint(limits.min, limits.max, (800,), generator=generator, dtype=dtype)
        near = torch.randint(max(limits.min, -9), 9, (800,), generator=generator).to(dtype)
        edges = torch.tensor([limits.min, limits.max, 0, 1, 7], dtype=dtype)
        mixed = torch.cat([wide, near])[torch.randperm(1600, generator=generator)]
        return torch.cat([edges.repeat(8), mixed, edges])
    normal = torch.randn(1500, generator=generator, dtype=torch.float64)
    scaled = normal * 10 ** (torch.randn(1500, generator=generator, dtype=torch.float64) * 6)
    edges = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 0.5, -2.5, 2.0**31, -(2.0**63), 3e300])
    edges = torch.cat([edges, torch.tensor([1e-310, 1e-45, 3.0, -1.0, 2.0**23 + 1, 2.0**52 + 1])]).double()
    mixed = torch.cat([scaled, normal.round(), edges.repeat(20)])
    return torch.cat([mixed[torch.randperm(len(mixed), generator=generator)], edges[:TAIL]]).to(dtype)


def _call(function: ctypes._CFuncPtr, x: torch.Tensor, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, z, y)]
    function(*pointers, ctypes.c_int64(len(x)))
    return y


def _same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if not a.is_floating_point():
        return a == b
    return ((a == b) & (a.signbit() == b.signbit())) | (a.isnan() & b.isnan())


@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_conversions(library: ctypes.CDLL, source: torch.dtype) -> None:
    x = _values(source, 0)
    wrong = []
    for target in DTYPES:
        name = f"convert_{str(source)[6:]}_{str(target)[6:]}"
        lanes = _call(getattr(library, f"v_{name}"), x, x, torch.empty(len(x), dtype=target))
        ones = _call(getattr(library, f"s_{name}"), x, x, torch.empty(len(x), dtype=target))
        defined = torch.ones(len(x), dtype=torch.bool)
        if source.is_floating_point and not target.is_floating_point and target is not torch.bool:
            limits = torch.iinfo(target)
            defined = (x.double() > max(limits.min - 1.0, -(2.0**63))) & (x.double() < min(limits.max, 2.0**63))
        if not bool(_same(lanes, ones).all() and _same(lanes, x.to(target))[defined].all()):
            wrong.append(name)
    assert not wrong


@pytest.mark.parametrize("dtype", REGISTERS, ids=str)
def test_a_lane_equals_the_scalar(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    x, z = _values(dtype, 1), _values(dtype, 2)
    wrong = []
    for operation in [*UNARY, *BINARY, *([*ROUNDING, *FLOATING] if dtype.is_floating_point else [])]:
        result = torch.bool if operation in ("lt", "ge", "eq", "logical_not") else dtype
        name = f"{operation}_{str(dtype)[6:]}"
        lanes, ones = (
            _call(getattr(library, prefix + name), x, z, torch.empty(len(x), dtype=result)) for prefix in ("v_", "s_")
        )
        if not _same(lanes, ones).all():
            at = int((~_same(lanes, ones)).nonzero()[0])
            wrong.append(f"{operation}({x[at]}, {z[at]}): {lanes[at]} instead of {ones[at]}")
    assert not wrong


@pytest.mark.parametrize("dtype", REGISTERS, ids=str)
def test_horizontal_reductions(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    lanes = library.lanes()
    x = torch.randperm(lanes, generator=torch.Generator().manual_seed(0)).to(dtype) - 3
    for kind in REDUCTIONS:
        y = torch.empty(1, dtype=dtype)
        getattr(library, f"{kind}_{str(dtype)[6:]}")(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()))
        assert y.item() == getattr(x, kind)().item(), kind
