"""Lowerings that call a library kernel on purpose (matrix products, attention, collectives), or a compiled subgraph.

Arguments that strides can express are passed as views of existing memory, without a copy.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from stator.graph.subgraphs.subgraph_ops import SubgraphKey, run, run_random
from stator.inductor.buffers import Extern, View
from stator.inductor.devices import traits_of
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.fallback import call_library, is_read, library_results
from stator.inductor.lower.registry import lowerings, lowers, view_targets
from stator.inductor.lower.tensor import Stored, Tensor
from stator.inductor.sizes import product
from stator.prims.layout import contiguous_strides, same_strides
from stator.prims.onednn import HALF_WIDTH
from stator.prims.record import TensorMeta
from stator.runtime import attention_masks
from stator.runtime.half_floats import are_products_quicker, is_float32_quicker

from .aligned_products import aligned_product
from .matrices import blas_matrix
from .onednn import is_transposed, product_in_tiles, quicker_product
from .pointwise import cast, elementwise
from .quantized_products import quantized_product
from .reductions import reduce

aten = torch.ops.aten


def _product(builder: LoweringBuilder, target: Any, args: Sequence[Any], **kwargs: Any) -> Tensor:
    """Call an out= overload into a fresh contiguous buffer."""
    return builder.extern(target, args, kwargs, [builder.meta], style="out")[0]  # type: ignore[return-value]


def multiply(builder: LoweringBuilder, a: Tensor, b: Tensor) -> Tensor:
    """The product of two matrices, contiguous, by the faster library."""
    second = blas_matrix(builder, b)
    meta = TensorMeta((a.shape[0], b.shape[1]), (b.shape[1], 1), a.dtype, a.device)
    found = None if is_transposed(a) else quicker_product(builder, a, second, b.shape[1], None, meta)
    if found is not None:
        return found  # type: ignore[no-any-return]
    return builder.extern(aten.mm.out, [blas_matrix(builder, a), second], {}, [meta], style="out")[0]  # type: ignore


def multiply_and_add(builder: LoweringBuilder, a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """`a @ b + bias` of half floats, rounded once, contiguous."""
    meta = TensorMeta((a.shape[0], b.shape[1]), (b.shape[1], 1), a.dtype, a.device)
    target, added = (aten.mm.out, []) if bias is None else (aten.addmm.out, [builder.argument(bias)])
    args = [*added, blas_matrix(builder, a), blas_matrix(builder, b)]
    return builder.extern(target, args, {}, [meta], style="out")[0]  # type: ignore[return-value]


def _widened(builder: LoweringBuilder, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """`a @ b + bias` of half floats as a product of float32, rounded once; None where eager's library is quicker."""
    inner, columns = b.shape
    dtypes = {one.dtype for one in (a, b, bias) if one is not None}
    halves = traits_of(a.device).tiles and len(dtypes) == 1 and a.dtype in HALF_WIDTH
    if not halves or not isinstance(inner, int) or not isinstance(columns, int):
        return None
    planned = b.planned()
    by_rows = planned is None or planned[0][0] != 1
    if not is_float32_quicker(builder.sizes.hint(a.shape[0]), inner, columns, a.dtype, by_rows):
        return None
    first, second = cast(builder, a, torch.float32), cast(builder, b, torch.float32)
    found = quantized_product(builder, first, second) or multiply(builder, first, second)
    if bias is not None:
        found = elementwise(builder, lambda ops, x, y: ops.add(x, y), [found, cast(builder, bias, torch.float32)])
    return cast(builder, found, a.dtype)


@lowers(aten.mm.default)
def _mm(builder: LoweringBuilder, a: Tensor, b: Tensor) -> Any:
    widened = _widened(builder, a, b)
    if widened is not None:
        return widened
    return aligned_product(builder, a, b) or quantized_product(builder, a, b) or multiply(builder, a, b)


@lowers(aten.bmm.default)
def _bmm(builder: LoweringBuilder, a: Tensor, b: Tensor) -> Any:
    return _product(builder, aten.bmm.out, [blas_matrix(builder, a), blas_matrix(builder, b)])


@lowers(aten.addmm.default)
def _addmm(builder: LoweringBuilder, bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    plain = beta == 1 and alpha == 1
    if plain and bias.shape == (a.shape[0], b.shape[1]) and is_overwritable(builder, bias):
        return builder.add_to(bias, aten.addmm.out, [blas_matrix(builder, a), blas_matrix(builder, b)])
    own = (_widened(builder, a, b, bias) or quantized_product(builder, a, b, bias)) if plain else None
    if own is not None:
        return own
    to_loops = plain and only_feeds_loops(builder.node)
    if plain and not is_transposed(a):
        matrix, columns = blas_matrix(builder, b), b.shape[1]
        if to_loops and not isinstance(a.shape[0], int):  # a library that each call chooses adds no bias for loops
            found = product_in_tiles(builder, a, matrix, columns, bias)
        else:
            found = quicker_product(builder, a, matrix, columns, bias, loops_follow=to_loops)
        if found is not None:
            return found
    aligned = aligned_product(builder, a, b, bias) if plain else None
    if aligned is not None:
        return aligned
    if to_loops:
        # the loops that read the product also add the bias, which saves writing the bias into the result first
        return elementwise(builder, lambda ops, x, y: ops.add(x, y), [multiply(builder, a, b), bias])
    args = [builder.argument(bias), blas_matrix(builder, a), blas_matrix(builder, b)]
    return _product(builder, aten.addmm.out, args, beta=beta, alpha=alpha)


def multiplies_on_gpu(x: Tensor) -> bool:
    """True if a product may stand for a convolution of this dtype: products and convolutions of float32 round by
    settings of their own, and cuBLAS refuses what cuDNN computes where torch asks for deterministic algorithms."""
    return (
        x.device.type == "cuda"
        and x.dtype in (torch.bfloat16, torch.float16)
        and not torch.are_deterministic_algorithms_enabled()
    )


def only_feeds_loops(node: fx.Node) -> bool:
    """True if every consumer, looking through views, is a generated loop, not a library call or the graph's end."""
    if not node.users:
        return False
    return all(
        only_feeds_loops(user)
        if user.target in view_targets
        else user.target in lowerings and user.target not in LIBRARY
        for user in node.users
    )


LIBRARY = frozenset(
    (
        aten.mm.default,
        aten.bmm.default,
        aten.addmm.default,
        aten.baddbmm.default,
        aten.convolution.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    )
)


def is_overwritable(builder: LoweringBuilder, x: Tensor) -> bool:
    """True if `x`, the operator's first argument, is the fresh result of a product or a scatter without another
    reader."""
    node = builder.node.args[0]
    if sum(arg is node for arg in tree_leaves((builder.node.args, builder.node.kwargs))) != 1:
        return False
    while isinstance(node, fx.Node) and node.target in view_targets and len(node.users) == 1:
        node = node.args[0]
    if not isinstance(node, fx.Node) or len(node.users) != 1:
        return False
    if node.target not in LIBRARY and node.target is not aten.index_put.default:
        return False
    if not isinstance(x.source, Stored) or builder.reference(x, x.source) != x.source.buffer:
        return False
    buffer = x.source.buffer
    made_by = next(made for made in reversed(builder.nodes) if buffer in made.outputs)
    return not isinstance(made_by, Extern) or made_by.style == "out"


@lowers(aten.baddbmm.default)
def _baddbmm(builder: LoweringBuilder, bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    args = [builder.argument(bias), blas_matrix(builder, a), blas_matrix(builder, b)]
    return _product(builder, aten.baddbmm.out, args, beta=beta, alpha=alpha)


@lowers(aten._scaled_dot_product_flash_attention_for_cpu.default)
def _flash_attention(
    builder: LoweringBuilder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """Heads may have any stride; only the innermost dimension must be contiguous. The result has the query's layout.
    Little attention is computed by products and loops, which the operator's decomposition is made of."""
    if _suits_products(builder, query, key, attn_mask, dropout):
        return NotImplemented
    args = [_innermost_contiguous(builder, part) for part in (query, key, value)]
    usual, looking = aten._scaled_dot_product_flash_attention_for_cpu, torch.ops.stator.masked_attention
    target, named = _under_mask(builder, attn_mask, usual.default, looking.default)
    result, statistics = builder.meta
    strides = builder.sizes.preserved_strides(result.shape, builder.strides_of(args[0]))
    metas = (replace(result, stride=strides), statistics)
    attended, logsumexp = library_results(
        builder, target, [*args, dropout, is_causal], {**named, "scale": scale}, metas
    )
    attended.deviates = not same_strides(result.shape, strides, result.stride)
    return [attended, logsumexp]


# Bytes of scores that stay in the second-level cache between two products and the softmax. There products and loops
# take 0.6 to 0.9 of the kernel's time, if no operand is copied (AVX-512, float32, 1 to 128 queries, 1 or 2 threads).
_CACHED_SCORES = 1 << 20


def _suits_products(builder: LoweringBuilder, query: Tensor, key: Tensor, mask: Tensor | None, dropout: float) -> bool:
    """True for attention of which nothing reads the logarithms of sums: of float32, of one batch whose scores stay in
    cache (products of several batches would copy heads that lie side by side); of half floats, where products of
    float32 were timed to be quicker."""
    if mask is not None and builder.sizes.hint(mask.numel) >= attention_masks.WORTHWHILE:
        return False  # the kernel may leave it out
    batch, heads, rows, width = query.shape
    keys = key.shape[2]
    if dropout != 0 or key.shape[1] != heads or is_read(builder.node, 1):
        return False
    if not all(isinstance(number, int) for number in (heads, rows, keys)):
        return False
    if query.dtype is torch.float32:
        return bool(batch == 1 and 4 * heads * rows * keys <= _CACHED_SCORES)
    halves = query.dtype in HALF_WIDTH and isinstance(batch, int) and isinstance(width, int)
    return halves and are_products_quicker(batch * heads, rows, keys, width, query.dtype)


@lowers(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def _flash_attention_backward(
    builder: LoweringBuilder,
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attended: Tensor,
    logsumexp: Tensor,
    dropout: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """As above. The gradients are always laid out as (batch, length, heads, channels)."""
    args = [_innermost_contiguous(builder, part) for part in (grad, query, key, value, attended)]
    statistics = builder.argument(logsumexp, builder.node.args[5].meta["val"].stride)
    usual, looking = (
        aten._scaled_dot_product_flash_attention_for_cpu_backward,
        torch.ops.stator.masked_attention_backward,
    )
    target, named = _under_mask(builder, attn_mask, usual.default, looking.default)
    return library_results(
        builder, target, [*args, statistics, dropout, is_causal], {**named, "scale": scale}, builder.meta
    )


def _under_mask(
    builder: LoweringBuilder, mask: Tensor | None, usual: Any, looking: Any
) -> tuple[Any, dict[str, str | View | None]]:
    """The operator to call under a mask, which is added to scores, and its arguments for that. Under a large mask, it
    is one that is told whether the mask has anything but zeros, which is computed once for each mask of a graph."""
    if mask is None or not mask.dtype.is_floating_point:
        return usual, {"attn_mask": None if mask is None else builder.argument(mask)}
    argument = builder.argument(mask)
    if builder.sizes.hint(product(mask.shape)) < attention_masks.WORTHWHILE:
        return usual, {"attn_mask": argument}
    node = builder.node.kwargs["attn_mask"]
    if node not in builder.shared_results:
        every = tuple(range(mask.rank))
        found = reduce(builder, "any", mask, every, torch.bool, working=torch.bool, keepdim=False)
        builder.shared_results[node] = builder.argument(found)
    return looking, {"hides": builder.shared_results[node], "attn_mask": argument}


def _innermost_contiguous(builder: LoweringBuilder, x: Tensor) -> str | View:
    planned = x.planned()
    if planned is not None and planned[0][-1] == 1:
        return builder.argument(x)
    return builder.argument(x, contiguous_strides(x.shape))


@lowers(run, run_random)
def _run(builder: LoweringBuilder, tensors: Sequence[Any], part: SubgraphKey, sizes: Sequence[Any]) -> Any:
    """Subgraphs are traced and compiled for tensors with exactly eager's strides."""
    nodes: Any = builder.node.args[0]
    given = [builder.argument(value, node.meta["val"].stride) for value, node in zip(tensors, nodes, strict=True)]
    return library_results(builder, part.part, [given, list(sizes)], {}, builder.meta)


# ---- collectives: they run beside the program until it waits for their results, and read their operands meanwhile ----

_NAMES = """
    all_gather_into_tensor all_gather_into_tensor_coalesced all_reduce all_reduce_coalesced all_to_all_single broadcast
    reduce_scatter_tensor reduce_scatter_tensor_coalesced
"""
_namespace = torch.ops._c10d_functional
# none where torch is built without distributed programs
_COLLECTIVES = [getattr(_namespace, name).default for name in _NAMES.split() if hasattr(_namespace, name)]
_WAIT = _namespace.wait_tensor.default if _COLLECTIVES else None


def _collective(builder: LoweringBuilder, *args: Any, **kwargs: Any) -> Any:
    """A library call. If the graph does not wait for the result, the call is followed by a wait: when the program has
    ended, other programs use the memory of the operands."""
    node = builder.node
    assert node is not None
    result = call_library(builder, node, args, kwargs)
    if _is_waited_for(node):
        return result
    if isinstance(result, Tensor):
        return _waited(builder, result, node.meta["val"])
    return [
        _waited(builder, one, meta) if isinstance(one, Tensor) else one
        for one, meta in zip(result, node.meta["val"], strict=True)
    ]


def _is_waited_for(node: fx.Node) -> bool:
    if isinstance(node.meta["val"], TensorMeta):
        return any(user.target is _WAIT for user in node.users)
    return bool(node.users) and all(user.target is operator.getitem and _is_waited_for(user) for user in node.users)


def _wait(builder: LoweringBuilder, result: Tensor) -> Tensor:
    return _waited(builder, result, builder.meta)


def _waited(builder: LoweringBuilder, result: Tensor, meta: TensorMeta) -> Tensor:
    """Wait for a result. Until then no other step may use the memory of the operands."""
    given = builder.argument(result, meta.stride)
    waited = builder.extern(_WAIT, [given], {}, [meta])[0]
    name = given.base if isinstance(given, View) else given
    calls = [one for one in builder.nodes if isinstance(one, Extern) and name in one.outputs]
    operands = [
        one.base if isinstance(one, View) else one for call in calls for one in tree_leaves((call.args, call.kwargs))
    ]
    wait = builder.nodes[-1]
    assert isinstance(wait, Extern) and waited is not None
    keeps = dict.fromkeys(one for one in operands if isinstance(one, str) and one in builder.buffers)
    builder.nodes[-1] = replace(wait, keeps=tuple(keeps))
    return waited


if _WAIT is not None:
    lowers(*_COLLECTIVES)(_collective)
    lowers(_WAIT)(_wait)
