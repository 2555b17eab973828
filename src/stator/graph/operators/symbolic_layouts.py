"""Replacements, on fake tensors, for torch's composites of `reshape`, and for products, on symbolic sizes.

For a size that may be 1, torch's C++ answers as for large sizes whether a tensor can be viewed, and relies on nothing.
Here, a result is a copy if it is one for large sizes, and the mode may ask later whether it shares memory; that is a
fact. Captured graphs hold the original functions.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F

from stator.graph.fake.fake_mode import FakeTensor
from stator.graph.ir.size_bindings import symbols_of
from stator.prims.layout import (
    always_equal,
    broadcast_shapes,
    is_channels_last,
    is_contiguous,
    is_unknown,
    several_sizes,
    surely,
)
from stator.prims.shape_rules.views import infer_size, view_strides
from stator.shapes.environment import assume_several, prefer_general
from stator.shapes.expr import as_expr
from stator.shapes.sym_node import SymbolicNode, to_expression

from .data_dependent_functions import stand_ins
from .nested_attention import padded_attention, takes_padded


def reshape(input: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    """A view, or a copy where there is no view with that shape, as eager's reshape."""
    if not _is_symbolic(input, shape):
        return torch.reshape(input, shape)  # type: ignore[arg-type]
    own, strides = tuple(input.shape), input.stride()
    size = infer_size(shape, own)
    if view_strides(own, strides, size, several=input.fake_mode.asks_later()) is not None:  # type: ignore[attr-defined]
        return input.view(size)
    made = torch.ops.aten._unsafe_view.default(input.clone(memory_format=torch.contiguous_format), size)
    is_view, alike = lambda: view_strides(own, strides, size) is not None, _is_row_major_as_view(own, strides, size)
    input.fake_mode.note_copy(input, made, is_view, alike)  # type: ignore[attr-defined]
    return made  # type: ignore[no-any-return]


def _is_row_major_as_view(shape: Sequence[Any], strides: Sequence[Any], new_shape: Sequence[Any]) -> bool:
    """Whether the elements of a view with a new shape, where there is one because sizes are 1, lie as in a copy; no
    where this is not known."""
    layout = [[as_expr(to_expression(size)) for size in sizes] for sizes in (shape, strides, new_shape)]
    symbols = sorted(symbols_of((shape, strides, new_shape)), key=str)
    if len(symbols) > _MOST_SYMBOLS:
        return False
    # large sizes differ, so that none is the stride of another by chance
    for values in itertools.product(*[(1, _SEVERAL * place) for place in range(1, len(symbols) + 1)]):
        known = dict(zip(symbols, values, strict=True))
        own, steps, size = (tuple(one.evaluate(known) for one in sizes) for sizes in layout)
        if min(own) <= 0 or math.prod(own) != math.prod(size):
            return False  # such as of sizes that are multiples of another number
        found = view_strides(own, steps, size)
        if found is not None and not is_contiguous(size, found):
            return False
    return True


_MOST_SYMBOLS = 4
_SEVERAL = 840  # a multiple of most numbers of heads and groups


def _is_symbolic(input: Any, shape: Sequence[Any] = ()) -> bool:
    """Whether symbols with examples decide about a view."""
    if not isinstance(input, FakeTensor):
        return False
    sizes = [size for size in (*input.shape, *input.stride(), *shape) if type(size) is not int]
    return bool(sizes) and all(
        type(size) is torch.SymInt and type(size.node) is SymbolicNode and size.node.has_hint() for size in sizes
    )


def _is_dense(operand: Any) -> bool:
    """Whether this is a fake tensor, or a tensor of the program that is no other class."""
    return isinstance(operand, FakeTensor) or (
        type(operand) in (torch.Tensor, torch.nn.Parameter) and operand.layout is torch.strided
    )


@stand_ins.register(torch.reshape, "reshape")
def _reshape(input: torch.Tensor, *shape: Any, **named: Any) -> torch.Tensor:
    sizes = named["shape"] if named else shape[0] if shape and isinstance(shape[0], (tuple, list)) else shape
    return reshape(input, sizes)


@stand_ins.register("reshape_as")
def _reshape_as(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return reshape(input, other.shape)


@stand_ins.register(torch.ravel, "ravel")
def _ravel(input: torch.Tensor) -> torch.Tensor:
    return reshape(input, (-1,)) if _is_symbolic(input) else torch.ravel(input)


@stand_ins.register(torch.flatten, "flatten")
def _flatten(input: torch.Tensor, start_dim: Any = 0, end_dim: Any = -1, **named: Any) -> torch.Tensor:
    rank = input.dim()
    dims = [dim + rank if isinstance(dim, int) and dim < 0 else dim for dim in (start_dim, end_dim)]
    plain = not named and all(type(dim) is int and 0 <= dim < rank for dim in dims)
    if not plain or dims[0] >= dims[1] or not _is_symbolic(input):
        return torch.flatten(input, start_dim, end_dim, **named)
    shape, (start, end) = input.shape, dims
    return reshape(input, (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]))


@stand_ins.register("contiguous")
def _contiguous(input: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    if not _is_symbolic(input) or memory_format is torch.preserve_format:
        return input.contiguous(memory_format=memory_format)
    lies_so = is_contiguous if memory_format is torch.contiguous_format else is_channels_last
    shape, strides = tuple(input.shape), input.stride()
    with several_sizes(shape) if input.fake_mode.asks_later() else nullcontext():  # type: ignore[attr-defined]
        if lies_so(shape, strides):
            return input
    made = input.clone(memory_format=memory_format)
    input.fake_mode.note_copy(input, made, lambda: lies_so(shape, strides), True)  # type: ignore[attr-defined]
    return made


@stand_ins.register(torch.matmul, "matmul", operator.matmul)
def _matmul(input: torch.Tensor, other: torch.Tensor, *, out: Any = None) -> torch.Tensor:
    """Multiply batches of symbolic sizes, which torch before 2.13 makes constants of. As in torch: `mm` or `mv` if the
    second operand is a matrix or vector, else `bmm` over the broadcast batches."""
    operands = (input, other)
    if out is not None:
        return torch.matmul(input, other, out=out)
    if any(not _is_dense(one) or not one.dim() for one in operands) or input.dtype is not other.dtype:
        return torch.matmul(input, other)
    sizes = (*input.shape, *other.shape)
    if input.dim() < 2 or max(input.dim(), other.dim()) < 3 or all(type(size) is int for size in sizes):
        return torch.matmul(input, other)
    rows, inner, columns = input.shape[-2], input.shape[-1], other.shape[-1]
    if other.dim() == 1:
        return reshape(input, (math.prod(input.shape[:-1]), inner)).mv(other).view(input.shape[:-1])
    if other.dim() == 2:
        folded = reshape(input, (math.prod(input.shape[:-1]), inner)).mm(other)
        return folded.view(*input.shape[:-1], columns)
    batch = tuple(broadcast_shapes(input.shape[:-2], other.shape[:-2]))
    count = math.prod(batch)
    left = reshape(input.expand(*batch, rows, inner), (count, rows, inner))
    right = reshape(other.expand(*batch, other.shape[-2], columns), (count, other.shape[-2], columns))
    return left.bmm(right).view(*batch, rows, columns)


@stand_ins.register(F.linear)
def _linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Apply a linear layer to rows of symbolic sizes, by one `addmm` over all rows."""
    given = (input, weight) if bias is None else (input, weight, bias)
    if any(not _is_dense(one) or one.dtype is not input.dtype for one in given):
        return F.linear(input, weight, bias)
    if input.dim() < 3 or weight.dim() != 2 or all(type(size) is int for size in input.shape):
        return F.linear(input, weight, bias)
    rows = reshape(input, (math.prod(input.shape[:-1]), input.shape[-1]))
    made = rows.mm(weight.t()) if bias is None else torch.addmm(bias, rows, weight.t())
    return made.view(*input.shape[:-1], weight.shape[0])


def _broadcast_size(size: Any, target: Any) -> Any:
    """1 for a size that broadcasts to the target, as far as it is known."""
    if type(size) is int or is_unknown(size) or is_unknown(target) or size == target:
        return size
    return 1 if size == 1 else size


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    """torch's function, but products of ours where torch's C++ would multiply. Queries and keys take a square root
    of the scale each, and its sign goes to the queries."""
    if enable_gqa or (is_causal and mask is not None) or not _is_multiplied(query, key, value, mask, dropout_p):
        return F.scaled_dot_product_attention(
            query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    root = (query.shape[-1] ** -0.5 if scale is None else abs(scale)) ** 0.5
    scores = _matmul(query * (-root if scale is not None and scale < 0 else root), key.transpose(-2, -1) * root)
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if mask is not None:
        scores = scores + (torch.where(mask, 0.0, -math.inf).to(scores.dtype) if mask.dtype is torch.bool else mask)
    weights = torch.ops.aten._safe_softmax.default(scores, -1)
    return _matmul(torch.dropout(weights, dropout_p, True) if dropout_p > 0 else weights, value)


def _is_multiplied(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, dropout_p: float) -> bool:
    """Whether eager multiplies matrices of symbolic sizes, as its kernel on CPUs takes no such operands, and asks in
    C++ for sizes, of one row among them. Not of half floats, which it multiplies as float32."""
    given = [query, key, value] if mask is None else [query, key, value, mask]
    shares_heads = query.dim() == key.dim() == 4 and not always_equal(query.shape[1], key.shape[1])
    if not all(isinstance(one, FakeTensor) and one.device.type == "cpu" for one in given):
        return False
    if query.dtype not in (torch.float32, torch.float64) or query.dim() < 3 or not any(map(_is_symbolic, given)):
        return False
    if any(one.dtype is not query.dtype and one.dtype is not torch.bool for one in given[1:]):
        return False
    if mask is not None and (mask.requires_grad or mask.dim() == 3):
        return True
    if shares_heads or dropout_p > 0 or query.dim() != 4:
        return True
    return any(one.stride(-1) != 1 for one in given[:3]) or query.shape[-1] != value.shape[-1]


def _loss(function: Callable[..., torch.Tensor], broadcasts: bool) -> None:
    """Register a loss, or a norm. Its C++ may copy its arguments, which nobody else sees. One that broadcasts asks if
    sizes are 1 also where they are equal."""

    def run(input: torch.Tensor, *args: Any, **named: Any) -> torch.Tensor:
        target = args[0] if args else named.get("target")
        equal = isinstance(target, torch.Tensor) and input.shape == target.shape
        asks = broadcasts and equal and _is_symbolic(input)
        several = assume_several([to_expression(size) for size in input.shape]) if asks else nullcontext()
        with prefer_general() if equal or not broadcasts else nullcontext(), several:
            return function(input, *args, **named)

    stand_ins.register(function)(run)


for _of_rows in (F.cross_entropy, F.nll_loss, F.instance_norm):
    _loss(_of_rows, broadcasts=False)
for _of_numbers in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss):
    _loss(_of_numbers, broadcasts=True)


@stand_ins.register(F.group_norm)
def _group_norm(
    input: torch.Tensor, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> torch.Tensor:
    """Let C++ copy an input as it does for large sizes. Nobody else sees the copy. torch's function raises for a single
    element in a group."""
    fits = _is_symbolic(input) and input.dim() > 2 and num_groups > 0
    if not fits or input.shape[0] * input.shape[1] // num_groups * math.prod(input.shape[2:]) == 1:
        return F.group_norm(input, num_groups, weight, bias, eps)
    with assume_several([to_expression(size) for size in input.shape]):
        return torch.group_norm(input, num_groups, weight, bias, eps, torch.backends.cudnn.enabled)


@stand_ins.register(F.scaled_dot_product_attention)
def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Pad nested tensors on CPUs. Expand a mask for one batch or head to all: torch's C++ asks whether these sizes of
    the mask are 1 before it compares them with the query's, and would rely on the number of batches. It asks so of the
    expanded mask, too, in older versions. It does not ask
    whether a symbolic number of the mask's rows or columns is 1, and would compute with other operators."""
    if query.is_nested and takes_padded(query, key, value, attn_mask, dropout_p, is_causal):
        return padded_attention(query, key, value, scale)
    symbolic = isinstance(attn_mask, FakeTensor) and (_is_symbolic(query) or _is_symbolic(attn_mask))
    if symbolic and query.dim() == 4 and attn_mask.dim() in (2, 4):
        own = list(attn_mask.shape)
        wanted = [
            target if always_equal(size, 1) or surely(size == target) or surely(size == 1) else size
            for size, target in zip(own[:-2], query.shape[:2], strict=False)
        ]
        wanted += map(_broadcast_size, own[-2:], (query.shape[2], key.shape[2]))
        if not always_equal(wanted, own) or any(
            type(one) is not type(size) for one, size in zip(wanted, own, strict=True)
        ):
            attn_mask = attn_mask.expand(*wanted)
        if attn_mask.dim() == 4 and all(map(surely, map(operator.eq, wanted[:2], query.shape[:2]))):
            # A mask of as many batches and heads as the query is right for one of them, too. One row or column of a
            # mask, for all queries or keys, is compared with their number first.
            lengths = query.shape[2], key.shape[2]
            several = [
                *wanted[:2],
                *(size for size, one in zip(lengths, wanted[2:], strict=True) if always_equal(one, 1)),
            ]
            with assume_several(list(map(to_expression, several))):
                return _attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    return _attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
