"""Library calls for operators without a lowering, or without one for these arguments: exact, never fused, counted."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from stator.base.counters import count
from stator.base.errors import CompileError
from stator.graph.ir.memory import addresses_storage
from stator.prims.layout import contiguous_strides, same_strides
from stator.prims.record import TensorMeta

from .builder import LoweringBuilder
from .tensor import Tensor


def call_library(builder: LoweringBuilder, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call the node's own target on arguments with eager's strides. Counted by name."""
    if addresses_storage(node.target):
        raise CompileError("inductor", f"{node.target} addresses a storage, but a buffer may be a part of a storage")
    target = _without_aliasing(node.target)
    count(f"inductor_fallback:{node.target}")
    given = _arguments(builder, list(node.args), list(args))
    named = dict(zip(kwargs, _arguments(builder, list(node.kwargs.values()), list(kwargs.values())), strict=True))
    meta = node.meta["val"]
    if isinstance(meta, tuple) and "binds" not in node.meta:
        meta = tuple([part if is_read(node, at) else None for at, part in enumerate(meta)])
    if target is node.target or not isinstance(meta, TensorMeta) or meta.dtype.is_complex:
        return library_results(builder, target, given, named, meta)
    return _laid_out(builder, library_results(builder, target, given, named, _of_copy(meta)), meta)


def _of_copy(view: TensorMeta) -> TensorMeta:
    """The layout of the result of a copying variant, for an operator whose result is this view."""
    return TensorMeta(view.shape, contiguous_strides(view.shape), view.dtype, view.device)


def _laid_out(builder: LoweringBuilder, found: Tensor, view: TensorMeta) -> Tensor:
    strides = builder.sizes.preserved_strides(view.shape, view.stride)
    return found if same_strides(view.shape, strides, found.strides) else builder.copy(found, strides)


def library_results(
    builder: LoweringBuilder, target: Any, args: Sequence[Any], kwargs: dict[str, Any], meta: Any
) -> Any:
    """Emit a call with results as in `meta`: one tensor, or a tuple or list with tensors in it."""
    if isinstance(meta, TensorMeta):
        return builder.extern(target, args, kwargs, [meta])[0]
    if any(place.dim is None for _, place in builder.bound_by(target)):  # ints, which later nodes know by symbols
        builder.extern(target, args, kwargs, [])
        return meta
    if isinstance(meta, tuple | list):
        if any(isinstance(part, tuple | list) for part in meta):
            raise CompileError("inductor", f"{target} returns a list of tensors among several results")
        metas = [part if isinstance(part, TensorMeta) else None for part in meta]
        outputs = builder.extern(target, args, kwargs, metas)
        return [output if isinstance(part, TensorMeta) else part for output, part in zip(outputs, meta, strict=True)]
    if meta is None:  # called for its effect, such as a check that raises
        return builder.effect(target, args, kwargs)
    raise CompileError("inductor", f"{target} returns {meta!r}, a value that is known only when the program runs")


def _arguments(builder: LoweringBuilder, nodes: list[Any], values: list[Any]) -> list[Any]:
    result: list[Any] = []
    for node, value in zip(nodes, values, strict=True):
        if isinstance(value, Tensor):
            result.append(builder.argument(value, node.meta["val"].stride))
        elif isinstance(value, list) and isinstance(node, tuple | list):
            result.append(_arguments(builder, list(node), value))
        else:
            result.append(value)
    return result


def is_read(node: fx.Node, at: int) -> bool:
    """True if a node reads the result at this position, or reads all results together."""
    return any(user.target is not operator.getitem or user.args[1] == at for user in node.users)


def gives_view(target: Any) -> bool:
    """True if the result shares memory with an argument."""
    return any(part.alias_info is not None for part in target._schema.returns)


def _without_aliasing(target: Any) -> Any:
    """The overload itself, or its copying variant if its result would share memory with an argument."""
    schema = target._schema
    if not gives_view(target):
        return target
    if any(argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments):
        raise CompileError("inductor", f"{target} mutates its argument, but lowering needs a functional graph")
    name = schema.name.removeprefix("aten::")
    twin = getattr(torch.ops.aten, f"{name}_copy", None)
    overload = getattr(twin, target._overloadname, None) if twin is not None else None
    if overload is None:
        raise CompileError("inductor", f"{target} returns a view, and has neither a lowering nor a copying variant")
    return overload
