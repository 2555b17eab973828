"""Autograd formulas that read data although the gradient's shape does not depend on it, or that differ for tensor
subclasses such as fake tensors. Each gets eager's result from operators of known shapes, keyed by operator and autograd
node.

`schema.py` says which operators read data in general.
"""

from __future__ import annotations

from typing import Any

import torch

from stator.graph.fake.fake_mode import FakeMode, formulas, specials
from stator.prims.decompositions.searching import positions
from stator.prims.layout import Sizes
from stator.prims.operators.ctc_loss import ctc_loss, ctc_loss_backward

aten = torch.ops.aten


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
        if mask.device != gradient.device:
            mask = mask.to(gradient.device)
        if at >= 0 and shape[at] != 1:
            places = positions(aten.reshape.default(mask, [-1]), shape[at])
            joined = aten.reshape.default(gradient, [*sizes[:lead], mask.numel(), *sizes[lead + rank :]])
            return aten.index.Tensor(joined, [*[None] * lead, places])
        if torch.is_grad_enabled():  # a second differentiation would need the shape of g[mask] itself
            return NotImplemented
        mask = aten.reshape.default(mask, [*mask.shape, *[1] * rest])
        kept = aten.where.ScalarOther(mask, gradient, 0)
        return kept.reshape([*sizes[:lead], -1, *sizes[lead + rank :]]).sum_to_size(shape)


INDEX_FILL = "IndexFillBackward1"  # index_fill whose value is a tensor


@formulas.register((aten._unique.default, INDEX_FILL))
def _filled_places(mode: FakeMode, node: Any, args: tuple[Any, ...]) -> Any:
    """Let the gradient of v in x.index_fill(dim, index, v) take the slices that `index` names, also repeatedly."""
    if torch.is_grad_enabled():
        return NotImplemented
    with mode:
        return aten.alias.default(args[0]), aten.zeros_like.default(args[0])


@specials.register(aten.index_select.default)
def _filled_slices(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Inside the formula of index_fill, put zeros into the other slices; the formula then sums this result."""
    node = torch._C._current_autograd_node()
    if node is None or node.name() != INDEX_FILL:
        return NotImplemented
    gradient, dim, index = args
    with mode:
        gradient = gradient if gradient.dim() else gradient.reshape(1)
        hit = gradient.new_zeros(gradient.shape[dim], dtype=torch.bool).index_fill(0, index, True)
        return torch.where(hit.reshape([-1, *[1] * (-1 - dim if dim < 0 else gradient.dim() - dim - 1)]), gradient, 0)


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


# ---- formulas that differ for tensor subclasses, which fake tensors are


EXTREMES = frozenset(("MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0"))


@specials.register(aten.mul.Tensor)
def _shared_by_extremes(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Share the gradient of a maximum among equal elements as eager does: contiguous, and zero elsewhere even for an
    infinite gradient. For subclasses and on accelerators the formula is mask * gradient, laid out as the mask."""
    node = torch._C._current_autograd_node()
    if node is None or node.name() not in EXTREMES or args[0].dtype is not torch.bool or args[0].device.type != "cpu":
        return NotImplemented
    mask, share = args
    with mode:
        zeros = aten.zeros.default(list(mask.shape), dtype=share.dtype, device=share.device)
        return aten.masked_fill.Tensor(zeros, mask, share)
