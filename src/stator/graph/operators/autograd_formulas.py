"""Autograd formulas that read data although the gradient's shape does not depend on it, or that differ for tensor
subclasses such as fake tensors. Each gets eager's result from operators of known shapes, keyed by operator and autograd
node.

`schema.py` says which operators read data in general.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stator.graph.fake.fake_mode import FakeMode, FakeTensor, formulas, specials
from stator.prims.layout import Sizes
from stator.prims.operators.ctc_loss import ctc_loss, ctc_loss_backward
from stator.prims.operators.data_gradients import prod_gradient, sum_of_slices, sum_where, sum_where_to
from stator.prims.operators.fused_recurrence import lstm_layer

aten = torch.ops.aten
INDEX_FILL = "IndexFillBackward1"  # index_fill whose value is a tensor
MASKED_FILL = "MaskedFillBackward1"


def input_shape(node: Any, position: int) -> Sizes | None:
    """Return the shape of an input of an autograd node; None if the input has no gradient."""
    source, number = node.next_functions[position]
    return None if source is None else tuple(source._input_metadata[number].shape)


@formulas.register(
    (aten.index.Tensor, "IndexPutBackward0"),
    (aten.index.Tensor, "IndexPutImplBackward0"),
    (aten.index.Tensor, "UnsafeIndexPutBackward0"),
)
def _gradient_of_written_values(mode: FakeMode, node: Any, args: tuple[Any, ...]) -> Any:
    """Compute the gradient of v in x[mask] = v: g[mask], summed to the shape of v.

    If v has one element (or row, ...) for each True of the mask, the forward has checked the count. If v is broadcast,
    a sum over g[mask] is a sum over g with zeros where the mask is False.
    """
    gradient, indices = args[0], args[1]
    shape = input_shape(node, 1)
    given = [at for at, index in enumerate(indices) if index is not None]
    if shape is None or len(given) != 1:
        return NotImplemented
    lead, mask = given[0], indices[given[0]]
    rank, sizes = mask.dim(), tuple(gradient.shape)
    rest = len(sizes) - lead - rank
    at = len(shape) - rest - 1  # the dimension of v that counts the written elements
    with mode:
        mask = aten.ne.Scalar(mask, 0)
        if at >= 0 and shape[at] != 1:
            places = aten.nonzero_static.default(mask, size=shape[at])
            columns = [aten.select.int(places, 1, column) for column in range(rank)]
            return aten.index.Tensor(gradient, [*[None] * lead, *columns])
        if torch.is_grad_enabled():  # a second differentiation would need the shape of g[mask] itself
            return NotImplemented
        return sum_where_to(gradient, mask, lead, shape)


@formulas.register((aten._unique.default, INDEX_FILL))
def _filled_places(mode: FakeMode, node: Any, args: tuple[Any, ...]) -> Any:
    """Compute the gradient of v in x.index_fill(dim, index, v): the sum of the slices that `index` names, each once."""
    if torch.is_grad_enabled():
        return NotImplemented
    with mode:
        return aten.alias.default(args[0]), aten.zeros_like.default(args[0])


@specials.register(aten.index_select.default)
def _filled_slices(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Inside the formula of index_fill, return the sum of the slices; the formula then sums this result."""
    node = torch._C._current_autograd_node()
    if node is None or node.name() != INDEX_FILL:
        return NotImplemented
    return mode.dispatch(sum_of_slices, args, {})


@specials.register(aten.native_group_norm_backward.default)
def _group_norm_backward(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Always compute the input's gradient for channels-last memory, and drop it if it is not wanted: ATen's kernel
    writes to it without checking that it exists, which crashes the process."""
    x, mask = args[1], args[-1]
    if kwargs or mask[0] or x.is_contiguous():
        return NotImplemented
    with mode:
        return (None, *aten.native_group_norm_backward.default(*args[:-1], [True, *mask[1:]])[1:])


@specials.register(aten._ctc_loss.Tensor)
def _ctc_loss(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run our own operator: the values that ATen's operator saves for the backward have a data-dependent size."""
    lengths = (*args, *(kwargs.get("blank", 0), kwargs.get("zero_infinity", False))[len(args) - 4 :])
    return mode.dispatch(ctc_loss, lengths, {})


@specials.register(aten._ctc_loss_backward.Tensor)
def _ctc_loss_backward(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return mode.dispatch(ctc_loss_backward, (*args[:8], args[8] if len(args) > 8 else False), {})


@specials.register(aten.mkldnn_rnn_layer.default)
def _recurrent_layer(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run our own operator: below autograd, where graphs run, ATen's operator saves nothing for its backward."""
    return mode.dispatch(lstm_layer, args, {}) if torch.is_grad_enabled() else NotImplemented


# ---- formulas that differ for tensor subclasses, which fake tensors are


@specials.register(aten.where.self)
def _gradient_of_a_fill(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute the gradient of v in x.masked_fill(mask, v) as eager does: the sum of g[mask], which the formula sums
    again. For subclasses the formula sums g with zeros elsewhere."""
    node = torch._C._current_autograd_node()
    if node is None or node.name() != MASKED_FILL or torch.is_grad_enabled():
        return NotImplemented
    return mode.dispatch(sum_where, (args[1], args[0]), {})


@specials.register(aten.mul.Tensor)
def _products_of_formulas(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    node = torch._C._current_autograd_node()
    formula = None if node is None else _PRODUCTS.get(node.name())
    return NotImplemented if formula is None else formula(mode, node, args)


def _shared_by_extremes(mode: FakeMode, node: Any, args: tuple[Any, ...]) -> Any:
    """Share the gradient of a maximum among equal elements as eager does: contiguous, and zero elsewhere even for an
    infinite gradient. For subclasses and on accelerators the formula is mask * gradient, laid out as the mask."""
    if args[0].dtype is not torch.bool:
        return NotImplemented
    mask, share = args
    if mask.device.type != "cpu":
        return NotImplemented
    with mode:
        zeros = aten.zeros.default(list(mask.shape), dtype=share.dtype, device=share.device)
        return aten.masked_fill.Tensor(zeros, mask, share)


def _of_a_product(mode: FakeMode, node: Any, args: tuple[Any, ...]) -> Any:
    """Compute the gradient of a product as eager does: the product divided by each factor, if no factor is zero. For
    subclasses the formula multiplies the factors before and after each factor with the gradient; this is its last
    multiplication."""
    gradient = args[0]
    factors, product = node._saved_self, node._saved_result
    whole = node.name() == "ProdBackward0"
    dim = 0 if whole else _signed(node._saved_dim) % factors.dim()
    shape = () if whole else (*factors.shape[:dim], 1, *factors.shape[dim + 1 :])
    if torch.is_grad_enabled() or tuple(gradient.shape) != shape:  # factors before times factors after
        return NotImplemented
    with mode:
        if not whole and not node._saved_keepdim:
            product = aten.unsqueeze.default(product, dim)
        return prod_gradient(gradient, factors, product, dim, whole)


def _signed(number: int) -> int:
    """Restore the sign of a saved integer, which autograd shows as unsigned."""
    return number - 2**64 if number >= 2**63 else number


_PRODUCTS: dict[str, Callable[[FakeMode, Any, tuple[Any, ...]], Any]] = {
    **dict.fromkeys(("MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0"), _shared_by_extremes),
    **dict.fromkeys(("ProdBackward0", "ProdBackward1"), _of_a_product),
}


# The saved reflectors and factors of each autograd node.
REFLECTORS = {
    "LinalgHouseholderProductBackward0": ("_saved_input", "_saved_tau"),
    "OrmqrBackward0": ("_saved_self", "_saved_input2"),
}


@specials.register(aten.cat.default)
def _columns_of_reflectors(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Give the gradients of Householder reflectors and their factors the strides of `zeros_like`; for subclasses the
    formula concatenates columns."""
    node = torch._C._current_autograd_node()
    saved = None if node is None else REFLECTORS.get(node.name())
    if saved is None:
        return NotImplemented
    parts, dim = args[0], (args[1] if len(args) > 1 else kwargs.get("dim", 0))
    for name in saved:
        like = getattr(node, name)
        if len(parts) > 1 and _joined_shape(parts, dim) == tuple(like.shape):
            with mode:
                *most, last = parts
                first = aten.cat.default(most, dim) if len(most) > 1 else most[0]
                made = aten.slice_scatter.default(aten.zeros_like.default(like), first, dim, 0, first.shape[dim])
                return aten.slice_scatter.default(made, last, dim, first.shape[dim], like.shape[dim])
    return NotImplemented


def _joined_shape(parts: Sequence[FakeTensor], dim: int) -> Sizes:
    shape = list(parts[0].shape)
    shape[dim] = sum([part.shape[dim] for part in parts[1:]], shape[dim])
    return tuple(shape)
