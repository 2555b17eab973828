"""Rewrites attention that is written by hand to the fused kernels that ATen chooses for scaled_dot_product_attention.

This rewrites a whole joint or inference graph, so that a backward is rewritten together with its forward.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from stator.aot.runtime.eager import keep_all
from stator.base import counters
from stator.graph.functionalization.functionalize import FunctionalTracer
from stator.graph.ir.cleanup import clean_up, same_layout
from stator.graph.ir.memory import fixed_memory
from stator.graph.ir.schema import has_effects
from stator.prims.layout import always_equal
from stator.prims.operators.attention_gradients import attention_gradients
from stator.prims.record import TensorMeta, record
from stator.runtime.half_floats import is_operator_quicker

from .attention_gradients import GradientRule
from .attention_pattern import (
    FLOATS,
    KEPT,
    TURNED,
    Attention,
    Gradients,
    find_attention,
    meta_of,
    order_of,
    softmaxes,
    step_factor,
)

aten = torch.ops.aten


def fuse_attention(gm: fx.GraphModule, gpu: GpuRules) -> fx.GraphModule:
    """Replace attention by fused kernels, in place, where these are at least as exact and faster; returns `gm`.

    gpu: says where they are faster on GPUs, for which the compiler behind this may have kernels of its own.
    Every node needs meta["val"]; placeholders that require grad have meta["requires_grad"]. Equal forwards are
    rewritten equally, and get equal names, whichever gradients the graph computes.
    """
    found = [one for softmax in softmaxes(gm.graph) if (one := find_attention(softmax)) is not None]
    if not found:
        return gm
    rewriter = _Rewriter(gm.graph, gpu)
    fused = sum([rewriter.fuse(one) for one in found])
    if fused:
        counters.count("fused_attention", fused)
        clean_up(gm.graph, copies_of_inputs=bool(rewriter.differentiated))  # attention layers share a bias
        gm.recompile()
    return gm


# On CPUs, fused kernels are faster than products of float32 and a softmax from so many queries and keys on
_LEAST_ROWS = 768

# Whether ATen's kernels are the fastest on a GPU, for (batch of heads, queries, keys, width of a key, of a value); the
# last arguments: scores are not only scaled; gradients may flow through the attention
LibraryRule = Callable[[torch.device, torch.dtype, tuple[int, int, int, int, int], bool, bool], bool]


@dataclass(frozen=True, slots=True)
class GpuRules:
    """What is the fastest on a GPU: ATen's kernels; a kernel of our own for gradients."""

    library: LibraryRule
    gradients: GradientRule


def _pays(found: Attention, sides: Sequence[TensorMeta], tracked: bool, gpu: GpuRules) -> bool:
    """Whether the operator is faster than products, by measurements (docs/kernels.md, docs/gpu.md), and of half floats
    on CPUs by timing. Legality is decided elsewhere. tracked: whether gradients may flow through the attention."""
    queries, keys, values = sides
    dtype, device, biases = queries.dtype, queries.device, found.scores.biases
    batch, rows, width = queries.shape
    if device.type == "cuda":
        return gpu.library(device, dtype, (batch, rows, keys.shape[2], width, values.shape[2]), bool(biases), tracked)
    scores = batch * rows * keys.shape[2]
    reads_much = any(4 * math.prod(bias.node.meta["val"].shape) > scores for bias in biases)
    if device.type != "cpu" or (tracked and dtype is not torch.float32):
        return False
    if dtype is not torch.float32:
        return is_operator_quicker(batch, rows, keys.shape[2], width, dtype, reads_much)
    return not reads_much and min(rows, keys.shape[2]) >= _LEAST_ROWS


class _Rewriter:
    """Rewrites the nodes of one graph."""

    def __init__(self, graph: fx.Graph, gpu: GpuRules) -> None:
        self.graph, self.gpu = graph, gpu
        self.tracer = FunctionalTracer(keep_all)
        self.tracer.graph = graph
        self.fixed = fixed_memory(graph)
        self.differentiated = _descendants_of_differentiated(graph)

    def fuse(self, found: Attention) -> bool:
        """Replace one attention; False if it stays as it is."""
        if found.safe:
            return self._fuse_widened(found)
        if found.gradients is not None and self._differentiate_operands(found):
            return True
        if found.gradients is not None and found.gradients.scores is not None:
            return False  # ATen's kernels show no gradient of scores
        plan = self._operands(found)
        if plan is None:
            return False
        before = found.result.prev
        tracked = found.result in self.differentiated
        with self.graph.inserting_before(found.result):
            made = self._attend(found, *plan, tracked)
        if made is None:
            self._erase(before, found.result)
            return False
        attended, differentiated = made
        with self.graph.inserting_before(found.result):
            result = self._with_lost_nan(self.tracer.current(attended))
        self._inherit(before, found.result)
        if found.gradients is not None:
            self._differentiate(found, attended, differentiated)
        self._replace(found.result, result)
        return True

    # ---- operands ---------------------------------------------------------------------------------------------------

    def _operands(self, found: Attention) -> tuple[fx.Node, tuple[fx.Node, bool], fx.Node] | None:
        """Queries, transposed keys and values as the program has them before it makes batches of matrices of them."""
        scores, weighted = found.scores, found.result.args[1]
        metas = [meta_of(one) for one in (scores.queries, scores.keys, weighted)]
        if any(meta is None or meta.dtype not in FLOATS for meta in metas):
            return None
        queries, keys, values = metas
        assert queries is not None and keys is not None and values is not None
        numbers = (*queries.shape, *keys.shape, *values.shape)
        if any(type(number) is not int or number == 0 for number in numbers) or values.shape[2] != queries.shape[2]:
            return None
        tracked = found.result in self.differentiated
        if not _pays(found, (queries, keys, values), tracked, self.gpu):
            return None
        if any(bias.rank > 4 or not self._is_usable(bias.node, queries, tracked) for bias in found.scores.biases):
            return None
        sizes = _sizes(found)
        shapes = (*sizes, *queries.shape[1:]), (*sizes, *values.shape[1:])
        return _source(scores.queries, shapes[0]), _rows(scores.keys, sizes), _source(weighted, shapes[1])

    def _is_usable(self, bias: fx.Node, queries: TensorMeta, tracked: bool) -> bool:
        """Kernels compute no gradient of a bias, and want its dtype equal. A backward computes weights from the
        logarithm of their sum, which is lost beside a large bias: a row that hides all keys would count too much."""
        meta = meta_of(bias)
        if meta is None or meta.dtype is not queries.dtype or bias in self.differentiated:
            return False
        return not tracked or _shows_each_row(bias)

    # ---- recording --------------------------------------------------------------------------------------------------

    def _fake(self, node: Any) -> Any:
        meta = node.meta["val"]
        return self.tracer.bind(self.tracer.make(TensorMeta(meta.shape, meta.stride, meta.dtype, meta.device)), node)

    def _recording(self, tracked: bool) -> ExitStack:
        stack = ExitStack()
        stack.enter_context(torch._C._InferenceMode(False))
        stack.enter_context(torch.set_grad_enabled(tracked))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if not tracked:
            stack.enter_context(torch._C._AutoDispatchBelowAutograd())
        stack.enter_context(self.tracer)
        return stack

    def _attend(
        self, found: Attention, queries: fx.Node, keys: tuple[fx.Node, bool], values: fx.Node, tracked: bool
    ) -> tuple[Any, tuple[Any, ...]] | None:
        """Record the attention: its result, and queries, keys and values as autograd knows them. None if ATen would
        not choose a fused kernel."""
        sizes, before = _sizes(found), found.result.prev
        count, width = found.result.args[1].meta["val"].shape[-2:]  # type: ignore[union-attr]
        with self._recording(tracked=False):
            query = _reshaped(self._fake(queries), (*sizes, found.result.meta["val"].shape[1], width))
            query = aten.add.Tensor(query, aten.mul.Tensor(query, 0.0))  # a row with an infinity attends to NaN
            if keys[1]:
                key = _reshaped(self._fake(keys[0]), (*sizes, width, count)).transpose(-1, -2)
            else:
                key = _reshaped(self._fake(keys[0]), (*sizes, count, width))
            value = _reshaped(self._fake(values), (*sizes, count, width))
            operands = tuple([_rows_contiguous(one) for one in (query, key, value)])
            bias = self._bias(found, sizes)
        if tracked:
            operands = tuple([self._fake(self.tracer.current(one)).requires_grad_(True) for one in operands])
        with self._recording(tracked):
            attended: Any = F.scaled_dot_product_attention(
                operands[0], operands[1], operands[2], bias, scale=found.scores.factor
            )
        return (attended, operands) if self._is_one_kernel(before, found.result) else None

    def _is_one_kernel(self, before: fx.Node, behind: fx.Node) -> bool:
        """Whether ATen chose a fused kernel for what is recorded between two nodes."""
        node, kernels = behind.prev, 0
        while node is not before:
            kernels += isinstance(node.target, torch._ops.OpOverload) and "attention" in record(node.target).tags
            node = node.prev
        return kernels == 1

    def _erase(self, before: fx.Node, behind: fx.Node) -> None:
        """Remove what is recorded between two nodes."""
        node = behind.prev
        while node is not before:
            node, unused = node.prev, node
            self.graph.erase_node(unused)

    def _with_lost_nan(self, attended: fx.Node) -> fx.Node:
        """For half floats, kernels of CPUs give zeros in a row with a score of infinity, where softmax gives NaN. The
        logarithm of the row's sum is infinite there."""
        kernel = attended.args[0]
        if not isinstance(kernel, fx.Node) or kernel.target is not _KERNEL_OF_CPUS or _is_single(attended):
            return attended
        logarithms = self.graph.call_function(operator.getitem, (kernel, 1))
        logarithms.meta["val"] = kernel.meta["val"][1]
        with self._recording(tracked=False):
            result = self._fake(attended)
            lost = aten.mul.Tensor(self._fake(logarithms), 0.0).unsqueeze(-1).to(result.dtype)
            return self.tracer.current(aten.add.Tensor(result, lost))

    def _bias(self, found: Attention, sizes: tuple[int, int]) -> Any:
        """The sum of the biases, of four dimensions. Fused kernels give zeros where a row of scores has only minus
        infinities, softmax gives NaN: such rows of the bias become NaN."""
        total = self._sum_of_biases(found, sizes)
        if total is None:
            return None
        hidden = aten.eq.Scalar(aten.amax.default(total, [-1], True), -torch.inf)
        return _rows_contiguous(aten.where.ScalarSelf(hidden, torch.nan, total))

    def _sum_of_biases(self, found: Attention, sizes: tuple[int, int]) -> Any:
        total: Any = None
        for bias in found.scores.biases:
            one = _four_dimensions(self._fake(bias.node), bias.rank, sizes)
            one = one if bias.factor == 1 else aten.mul.Tensor(one, bias.factor)
            total = one if total is None else aten.add.Tensor(total, one)
        return total

    def _differentiate(self, found: Attention, attended: Any, operands: Sequence[Any]) -> None:
        gradients = found.gradients
        assert gradients is not None
        first = self._first_of_backward(gradients)
        before = first.prev
        shape = tuple(attended.shape)
        with self.graph.inserting_before(first):
            with self._recording(tracked=True):
                tangent = _reshaped(self._fake(_source(gradients.tangent, shape)), shape)
                of_query, of_key, of_value = torch.autograd.grad([attended], list(operands), [tangent])
            with self._recording(tracked=False):
                made: tuple[Any, ...] = of_query, of_key.transpose(-1, -2), of_value
        nodes = [self.tracer.current(one) for one in made]
        self._inherit(before, first)
        self._replace_gradients(gradients, nodes, None)

    def _differentiate_operands(self, found: Attention) -> bool:
        """Let a kernel of our own compute the gradients, from the operands alone. The forward stays as it is."""
        metas = [meta_of(one) for one in (found.scores.queries, found.scores.keys, found.result.args[1])]
        if any(meta is None or any(type(size) is not int for size in meta.shape) for meta in metas):
            return False
        (batch, rows, depth), (_, _, count), (_, _, width) = [meta.shape for meta in metas]  # type: ignore[union-attr]
        dtype, device = metas[0].dtype, metas[0].device  # type: ignore[union-attr]
        biases = [meta_of(bias.node) for bias in found.scores.biases]
        if not self.gpu.gradients(device, dtype, (batch, rows, count, depth, width)):
            return False
        if not biases and found.gradients is not None and found.gradients.scores is not None:
            return False
        if any(bias.rank > 4 for bias in found.scores.biases) or any(
            meta is None or not meta.dtype.is_floating_point for meta in biases
        ):
            return False
        sizes = _sizes(found)
        shapes = (*sizes, rows, depth), (*sizes, count, width)
        sides = _source(found.scores.queries, shapes[0]), _rows(found.scores.keys, sizes), found.result.args[1]
        return self._record_gradients(found, sides[0], sides[1], _source(sides[2], shapes[1]), shapes)

    # ---- ATen's composite attention, which multiplies half floats as float32 -----------------------------------------

    def _fuse_widened(self, found: Attention) -> bool:
        """Let a fused kernel read half floats as they are, where the layout of the bias alone kept ATen from one. With
        gradients only where a kernel of our own computes these: ATen's lose rows under large biases."""
        plan, tracked, gradients = self._half_sides(found), found.result in self.differentiated, found.gradients
        if plan is None:
            return False
        nodes, factors, (batch, heads, rows, depth, count, width) = plan
        meta, sizes = nodes[0].meta["val"], (batch, heads)
        numbers = batch * heads, rows, count, depth, width
        pays = self.gpu.gradients(meta.device, meta.dtype, numbers) if tracked else meta.device.type == "cuda"
        if not pays:
            return False
        factor, before = factors[0] * factors[1], found.result.prev
        with self.graph.inserting_before(found.result), self._recording(tracked=False):
            query, key, value = sides = [_rows_contiguous(self._fake(one)) for one in nodes]
            bias = self._sum_of_biases(found, sizes).to(meta.dtype).contiguous().expand(*sizes, rows, count)
            attended: Any = F.scaled_dot_product_attention(query, key, value, bias, scale=factor)
            result = self.tracer.current(attended.float())
        if not self._is_one_kernel(before, found.result):  # the program disabled the others
            self._erase(before, found.result)
            return False
        self._inherit(before, found.result)
        if gradients is not None:
            first = self._first_of_backward(gradients)
            before = first.prev
            with self.graph.inserting_before(first), self._recording(tracked=False):
                tangent = _reshaped(self._fake(gradients.tangent), (*sizes, rows, width)).to(meta.dtype)
                made = attention_gradients(
                    tangent, *sides, bias, gradients.scores is not None, False, factor, True, True
                )
                of_queries, of_keys = made[0].float() / factors[0], made[1].float().transpose(-1, -2) / factors[1]
                of_sides = [self.tracer.current(one) for one in (of_queries, of_keys, made[2].float())]
                of_scores = self._of_scores(gradients, made[3])
            self._inherit(before, first)
            self._replace_gradients(gradients, of_sides, of_scores)
        self._replace(found.result, result)
        return True

    def _half_sides(self, found: Attention) -> tuple[Sequence[fx.Node], Sequence[float], tuple[int, ...]] | None:
        """Queries, keys and values as half floats, the numbers that they are multiplied with, and (batch, heads, rows,
        depth, count, width)."""
        scores, sides = found.scores, [_narrow(one) for one in found.sides]
        metas = [meta_of(bias.node) for bias in scores.biases if bias.rank == 4 and bias.factor == 1]
        apart = [meta for meta in metas if meta is not None and meta.dtype in FLOATS and meta.stride[-1] != 1]
        if None in sides or not len(apart) == len(scores.biases) == scores.factor == 1:
            return None
        nodes, factors, turned = zip(*sides, strict=True)  # type: ignore[arg-type]
        shapes = [tuple(one.meta["val"].shape) for one in nodes]
        (*start, rows, depth), (*_, count, width) = shapes[0], shapes[2]
        alike = len({(one.meta["val"].dtype, one.meta["val"].device) for one in nodes}) == 1
        known = all(type(size) is int and size > 0 for shape in shapes for size in shape)
        if not (alike and known) or shapes[1:] != [(*start, count, depth), (*start, count, width)]:
            return None
        plain = turned == (False, True, False) and factors[2] == 1 and apart[0].shape[-1] == count
        return (nodes, factors, (*start, rows, depth, count, width)) if plain else None

    def _record_gradients(
        self, found: Attention, queries: fx.Node, keys: tuple[fx.Node, bool], values: fx.Node, shapes: Sequence[Any]
    ) -> bool:
        gradients = found.gradients
        assert gradients is not None
        sizes = _sizes(found)
        (rows, depth), (count, width) = [shape[2:] for shape in shapes]
        first = self._first_of_backward(gradients)
        before, shape = first.prev, (*sizes, rows, width)
        with self.graph.inserting_before(first), self._recording(tracked=False):
            query, value = _reshaped(self._fake(queries), shapes[0]), _reshaped(self._fake(values), shapes[1])
            key = self._fake(keys[0])
            key = _reshaped(key, (*sizes, depth, count)).transpose(-1, -2) if keys[1] else key
            key = _reshaped(key, (*sizes, count, depth))
            bias = self._sum_of_biases(found, sizes)
            bias = None if bias is None else bias.expand(*sizes, rows, count)
            sides = [_rows_contiguous(one) for one in (query, key, value)]
            tangent = _reshaped(self._fake(_source(gradients.tangent, shape)), shape)
            of_bias, factor = gradients.scores is not None, float(found.scores.factor)
            made = attention_gradients(tangent, *sides, bias, of_bias, False, factor, True, False)
            nodes = [self.tracer.current(one) for one in (made[0], made[1].transpose(-1, -2), made[2])]
            of_scores = self._of_scores(gradients, made[3])
        self._inherit(before, first)
        self._replace_gradients(gradients, nodes, of_scores)
        return True

    def _first_of_backward(self, gradients: Gradients) -> fx.Node:
        """The first node of the backward that reads the tangent."""
        readers = [*gradients.tangent.users]
        return next(node for node in self.graph.nodes if node in readers and node.meta.get("backward"))

    def _of_scores(self, gradients: Gradients, made: Any) -> fx.Node | None:
        if gradients.scores is None:
            return None
        meta = gradients.scores.meta["val"]
        return self.tracer.current(made.to(meta.dtype).reshape(meta.shape))

    def _replace_gradients(self, gradients: Gradients, nodes: Sequence[fx.Node], of_scores: fx.Node | None) -> None:
        for old, new in zip((gradients.queries, gradients.keys, gradients.values), nodes, strict=True):
            if old is not None:
                self._replace(old, new)
        if gradients.scores is not None and of_scores is not None:
            self._substitute(gradients.scores, of_scores)

    def _inherit(self, before: fx.Node, node: fx.Node) -> None:
        """Give new nodes the meta of `node`, and names derived from its name."""
        inherited = {name: value for name, value in node.meta.items() if name != "val"}
        made = before.next
        while made is not node:
            made.meta.update(inherited)
            made._rename(f"{node.name}_by_{made.name.rstrip('0123456789').rstrip('_')}")
            made = made.next

    # ---- results ----------------------------------------------------------------------------------------------------

    def _replace(self, old: fx.Node, new: fx.Node) -> None:
        """Let the readers of a batch of matrices read `new`, which has four dimensions and may have another layout."""
        if old in self.fixed:  # the program's result may be written to, while a backward still needs the kernel's
            with self.graph.inserting_before(old), self._recording(tracked=False):
                new = self.tracer.current(self._fake(new).clone())
        self._replace_shown(old, new)
        if old.users:
            with self.graph.inserting_before(old), self._recording(tracked=False):
                matrices = self.tracer.current(self._fake(new).reshape(old.meta["val"].shape))
            self._substitute(old, matrices)
        else:
            self.graph.erase_node(old)

    def _replace_shown(self, old: fx.Node, new: fx.Node) -> None:
        """Let `new` be read where `old` is shown in its shape."""
        for user in list(old.users):
            if order_of(user) is not KEPT:
                continue
            if user.meta["val"].shape == new.meta["val"].shape:
                self._substitute(user, new)
            else:
                self._replace_shown(user, new)
                if not user.users:
                    self.graph.erase_node(user)

    def _substitute(self, old: fx.Node, new: fx.Node) -> None:
        """Let the readers of `old` read `new`, which has an equal shape: in another layout, where a copy of it ends."""
        meta = old.meta["val"]
        if not same_layout(new.meta["val"], meta):
            self._skip_copies(old, new)
            with self.graph.inserting_before(old), self._recording(tracked=False):
                new = self.tracer.current(self.tracer.laid_out(self._fake(new), meta)) if old.users else new
        old.replace_all_uses_with(new, propagate_meta=False)
        self.graph.erase_node(old)

    def _skip_copies(self, old: fx.Node, new: fx.Node) -> None:
        """Where readers of `old` copy it to the layout that `new` has, behind permutations, let them read `new`."""
        for user in list(old.users):
            if user.target is aten.clone.default and user not in self.fixed:
                if same_layout(new.meta["val"], user.meta["val"]):
                    user.replace_all_uses_with(new, propagate_meta=False)
                    self.graph.erase_node(user)
            elif user.target in (aten.transpose.int, aten.permute.default):
                with self.graph.inserting_before(user), self._recording(tracked=False):
                    permuted = self.tracer.current(user.target(self._fake(new), *user.args[1:]))
                self._skip_copies(user, permuted)
                if not user.users:
                    self.graph.erase_node(user)


def _descendants_of_differentiated(graph: fx.Graph) -> set[fx.Node]:
    """The nodes through which gradients may flow: what is computed from placeholders that require grad."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.meta.get("requires_grad") or any(used in found for used in node.all_input_nodes):
            found.add(node)
    return found


_KERNEL_OF_CPUS = aten._scaled_dot_product_flash_attention_for_cpu.default


def _is_single(node: fx.Node) -> bool:
    return node.meta["val"].dtype is torch.float32  # type: ignore[no-any-return]


_SMALL_BIAS = 1024.0


def _shows_each_row(bias: fx.Node) -> bool:
    """Whether a bias is computed from no input, and is small for a key of each row."""
    needed = {bias}
    for node in reversed(bias.graph.nodes):
        if node not in needed:
            continue
        known = isinstance(node.target, torch._ops.OpOverload) and "empty" not in str(node.target)
        if not known or has_effects(node.target, node.args, node.kwargs):
            return False
        needed.update(node.all_input_nodes)
    values: dict[fx.Node, Any] = {}
    for node in bias.graph.nodes:
        if node in needed:
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)
    return bool((values[bias].amax(-1).abs() < _SMALL_BIAS).all())


def _sizes(found: Attention) -> tuple[int, int]:
    """(batch, heads)"""
    return found.scores.sizes or (1, found.result.meta["val"].shape[0])


def _source(node: Any, shape: tuple[int, ...]) -> fx.Node:
    """The first value of this shape whose elements `node` shows in equal order, or `node`; copies are skipped."""
    found = node
    while order_of(node) is KEPT or node.target is aten.clone.default:
        node = node.args[0]
        if node.meta["val"].shape == shape:
            found = node
    return found  # type: ignore[no-any-return]


def _rows(keys: Any, sizes: tuple[int, int]) -> tuple[fx.Node, bool]:
    """The keys of a product, and whether they are transposed there."""
    width, count = keys.meta["val"].shape[-2:]
    node = keys
    while order_of(node) is KEPT or node.target is aten.clone.default:
        node = node.args[0]
    if order_of(node) is TURNED and always_equal(
        [size for size in node.meta["val"].shape if not always_equal(size, 1)][-2:], [width, count]
    ):
        return _source(node.args[0], (*sizes, count, width)), False
    return _source(keys, (*sizes, width, count)), True


def _narrow(node: Any) -> tuple[fx.Node, float, bool] | None:
    """The half floats [batch, heads, rows, width] that a batch of matrices shows as float32, the number that they are
    multiplied with, and whether the matrices are transposed. None for others."""
    factor, turned = 1.0, False
    while isinstance(node, fx.Node) and node.meta["val"].dtype is torch.float32:
        step, order = 1.0 if node.target is aten.clone.default else step_factor(node), order_of(node)
        if step is None and order is not TURNED:
            return None
        factor, turned, node = factor * (step or 1.0), turned != (order is TURNED), node.args[0]
    meta = meta_of(node)
    halves = meta is not None and meta.dtype in FLOATS and len(meta.shape) == 4
    return (node, factor, turned) if halves and factor > 0 else None


def _reshaped(tensor: Any, shape: tuple[int, ...]) -> Any:
    return tensor if tuple(tensor.shape) == shape else tensor.reshape(shape)


def _rows_contiguous(tensor: Any) -> Any:
    """Kernels read contiguous rows."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _four_dimensions(bias: Any, rank: int, sizes: tuple[int, int]) -> Any:
    """A bias of scores with `rank` dimensions, as one of scores with dimensions (batch, heads, queries, keys)."""
    while bias.dim() < rank:
        bias = bias.unsqueeze(0)
    if rank == 4:
        return bias
    return bias.unsqueeze(0) if bias.shape[0] == 1 else bias.reshape(*sizes, *bias.shape[1:])
