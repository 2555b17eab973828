"""Checks the rules of a loop body. Raises VerificationError; never repairs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NoReturn

import torch

from stator.base.errors import VerificationError
from stator.shapes.expr import Symbol

from .body import IndexRef, LoopBody, Op, Ref
from .printer import print_body
from .vocabulary import ELEMENTWISE, NORMAL_DTYPES, REDUCTIONS, SCANS, STORE_MODES, VOCABULARY, reduction_dtype

_HALVES = (torch.float16, torch.bfloat16)


def verify_body(
    body: LoopBody, dtype_of: Callable[[str], torch.dtype], sizes: Collection[Symbol] = ()
) -> None:  # fmt: skip
    """Check the names, arities, references, dtypes and index symbols of a body. `dtype_of` gives a buffer's dtype,
    `sizes` are the symbols of sizes."""
    if len(body.vars) != len(body.ranges) or len(body.reduction_vars) != len(body.reduction_ranges):
        _fail(body, None, "variables and ranges differ in number")
    symbols = {*body.vars, *body.reduction_vars, *sizes}
    for position, op in enumerate(body.ops):
        info = VOCABULARY.get(op.name)
        if info is None:
            _fail(body, position, f"{op.name!r} is not in the vocabulary")
        if len(op.args) != info.arity and op.name != "store":
            _fail(body, position, f"takes {info.arity} arguments, has {len(op.args)}")
        for arg in op.args:
            if isinstance(arg, Ref) and not 0 <= arg.position < position:
                _fail(body, position, f"refers to %{arg.position}, which is not earlier")
            if isinstance(arg, Ref) and body.ops[arg.position].name == "store":
                _fail(body, position, "uses the result of a store")
            if isinstance(arg, IndexRef):
                unknown = body.indices[arg.position].symbols - symbols
                if unknown:
                    _fail(body, position, f"index uses unknown symbols {sorted(map(str, unknown))}")
        if op.name == "indirect":
            symbols.add(Symbol(f"indirect{position}"))
        if op.name in ("reduce", "scan", "welford") and not body.reduction_vars:
            _fail(body, position, "reduces without reduction loops")
        _verify_dtypes(body, position, op, dtype_of)
    if not any(op.name == "store" for op in body.ops):
        _fail(body, None, "stores nothing")


def _verify_dtypes(body: LoopBody, position: int, op: Op, dtype_of: Callable[[str], torch.dtype]) -> None:
    operands = [body.ops[arg.position].dtype for arg in op.args if isinstance(arg, Ref)]
    if op.name in ELEMENTWISE:
        _verify_elementwise(body, position, op, operands)
    elif op.name == "load":
        if op.dtype is not dtype_of(op.args[0]):  # type: ignore[arg-type]
            _fail(body, position, f"{op.args[0]} holds {dtype_of(op.args[0])}")  # type: ignore[arg-type]
        if op.args[2] is not None and operands[0] is not torch.bool:
            _fail(body, position, "the mask is not bool")
    elif op.name == "store":
        if operands[0] is not dtype_of(op.args[0]):  # type: ignore[arg-type]
            _fail(body, position, f"stores {operands[0]} to {op.args[0]} of {dtype_of(op.args[0])}")  # type: ignore
        if op.args[3] not in STORE_MODES:
            _fail(body, position, f"unknown mode {op.args[3]!r}")
    elif op.name == "reduce":
        if op.args[0] not in REDUCTIONS:
            _fail(body, position, f"unknown reduction {op.args[0]!r}")
        if op.dtype is not reduction_dtype(op.args[0], operands[0]):  # type: ignore[arg-type]
            _fail(body, position, "wrong dtype of a reduction")
    elif op.name == "scan":
        if op.args[0] not in SCANS or op.dtype is not operands[0]:
            _fail(body, position, f"no scan {op.args[0]!r} gives {op.dtype} from {operands[0]}")
    elif op.name == "total" and (body.ops[op.args[0].position].name != "step" or op.dtype is not operands[1]):  # type: ignore[union-attr]
        _fail(body, position, f"a total of {op.dtype} from {operands}")
    elif op.name == "random" and operands != [torch.int64, torch.int64]:
        _fail(body, position, f"a seed and a stream of {operands}")
    elif op.name == "normal" and op.dtype is not NORMAL_DTYPES.get(operands[0]):  # type: ignore[arg-type]
        _fail(body, position, f"{op.dtype} from bits of {operands[0]}")
    elif op.name == "indirect" and operands[0] not in (torch.int64, torch.int32):
        _fail(body, position, f"an index of {operands[0]}")


def _verify_elementwise(body: LoopBody, position: int, op: Op, operands: list[torch.dtype | None]) -> None:
    info = VOCABULARY[op.name]
    if op.name == "where":
        if operands[0] is not torch.bool:
            _fail(body, position, "the condition is not bool")
        operands = operands[1:]
    if len(set(operands)) != 1:
        _fail(body, position, f"operands of different dtypes: {operands}")
    dtype = operands[0]
    if op.dtype is not (torch.bool if info.result == "bool" else dtype):
        _fail(body, position, f"result {op.dtype} from operands {dtype}")
    if dtype in _HALVES and op.name != "where":
        _fail(body, position, f"arithmetic in {dtype}")
    floating = dtype.is_floating_point  # type: ignore[union-attr]
    if (info.domain == "float" and not floating) or (info.domain == "int" and floating):
        _fail(body, position, f"operands must be {info.domain}, not {dtype}")
    if info.domain == "number" and dtype is torch.bool:
        _fail(body, position, "operands must not be bool")


def _fail(body: LoopBody, position: int | None, reason: str) -> NoReturn:
    where = "" if position is None else f" at %{position} ({body.ops[position].name})"
    raise VerificationError(f"loop body{where}: {reason}\n{print_body(body)}")
