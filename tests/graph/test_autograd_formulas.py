"""Gradients whose formulas look at data, or take another way for fake tensors: through both graphs, against eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from stator import aot, pipeline
from stator.base.config import Options
from stator.base.errors import Unsupported
from stator.inductor.lower import can_lower

KERNELS = partial(pipeline.compile_graph, options=Options(verify=True))
TRAINED: dict[str, Callable[..., Callable[..., torch.Tensor]]] = {
    "by operators": partial(aot.compile_training, compile_graph=aot.run_eagerly, keep=aot.keep_all),
    "as kernels": partial(aot.compile_training, compile_graph=KERNELS, keep=can_lower),
}
trained = pytest.mark.parametrize("train", TRAINED.values(), ids=TRAINED)


def check(
    train: Callable[..., Callable[..., torch.Tensor]],
    function: Callable[..., torch.Tensor],
    *tensors: torch.Tensor,
    tangent: torch.Tensor | None = None,
) -> None:
    """Result and gradients, with their strides, are eager's, on other data than it was traced with too."""
    run = train(function, tensors)
    for given in (tensors, [_again(tensor) for tensor in tensors]):
        ours, theirs = (_differentiated(one, given, tangent) for one in (run, function))
        for left, right in zip(ours, theirs, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-6)
            assert left.stride() == right.stride()


def _differentiated(
    function: Callable[..., torch.Tensor], tensors: Sequence[torch.Tensor], tangent: torch.Tensor | None
) -> list[torch.Tensor]:
    result = function(*tensors)
    leaves = [tensor for tensor in tensors if tensor.requires_grad]
    torch.manual_seed(1)
    return [result, *torch.autograd.grad(result, leaves, torch.randn_like(result) if tangent is None else tangent)]


def _again(tensor: torch.Tensor) -> torch.Tensor:
    """Other values in the same layout; masks with as many True, indices in the same range."""
    if not tensor.is_floating_point():
        return tensor.flatten().flip(0).reshape(tensor.shape)
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(torch.randn(tensor.shape))
    return copy.requires_grad_(tensor.requires_grad)


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True)


MASK = torch.tensor([True, False, True, True, False])
WIDE_MASK = torch.tensor([[True, False, True], [False, False, True], [True, True, False], [False] * 3, [True] * 3])


@trained
@pytest.mark.parametrize("shape", [(3, 4), (1, 4), (4,), (1,), ()], ids=str)
@pytest.mark.parametrize("accumulate", [False, True])
def test_values_written_by_a_mask(train: Callable, shape: tuple[int, ...], accumulate: bool) -> None:
    torch.manual_seed(0)
    check(train, lambda x, m, v: x.index_put((m,), v, accumulate), leaf(5, 4), MASK, leaf(*shape))


@trained
def test_values_written_by_a_mask_of_two_dimensions(train: Callable) -> None:
    torch.manual_seed(0)
    count = int(WIDE_MASK.sum())
    for values in (leaf(count, 2), leaf(1, 2), leaf(2)):
        check(train, lambda x, m, v: x.index_put((m,), v), leaf(5, 3, 2), WIDE_MASK, values)


@trained
def test_values_written_by_a_mask_behind_other_dimensions(train: Callable) -> None:
    torch.manual_seed(0)

    def write(x: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        x = x * 2
        x[:, mask] = values
        return x

    for values in (leaf(2, 3, 4), leaf(2, 1, 4), leaf(4)):
        check(train, write, leaf(2, 5, 4), MASK, values)


@trained
def test_what_a_mask_leaves_out_does_not_reach_a_broadcast_value(train: Callable) -> None:
    """Not even where the gradient there is infinite or not a number."""
    torch.manual_seed(0)
    tangent = torch.tensor([1.0, torch.inf, 2.0, 3.0, torch.nan])

    def write(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return x.index_put((MASK.clone(),), value)

    run = train(write, [leaf(5), leaf()])
    x, value = leaf(5), leaf()
    assert torch.autograd.grad(run(x, value), value, tangent)[0] == 6.0


@trained
def test_a_value_that_fills_slices_that_are_named_twice(train: Callable) -> None:
    torch.manual_seed(0)
    index = torch.tensor([3, 0, 3])
    check(train, lambda x, i, v: x.index_fill(0, i, v), leaf(5, 4), index, leaf())
    check(train, lambda x, i, v: x.index_fill(-1, i, v), leaf(5, 4), index, leaf())
    check(train, lambda x, i, v: x.index_fill(0, i, v), leaf(), torch.tensor([0, 0]), leaf())


@pytest.mark.each_pair
@trained
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("concatenated", [False, True])
def test_ctc_loss_of_lengths_in_tensors(train: Callable, reduction: str, concatenated: bool) -> None:
    torch.manual_seed(0)
    steps, batch, classes, longest = 12, 3, 6, 5
    lengths = torch.tensor([4, 2, 4])  # shorter than the longest that is possible
    targets = torch.randint(1, classes, (10,) if concatenated else (batch, longest))

    def loss(x: torch.Tensor, steps: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return F.ctc_loss(x.log_softmax(-1), targets, steps, lengths, reduction=reduction, zero_infinity=True)

    check(train, loss, leaf(steps, batch, classes), torch.tensor([12, 10, 11]), lengths)


@trained
@pytest.mark.parametrize("name", ["max", "min", "median", "nanmedian"])
def test_extremes_share_their_gradient(train: Callable, name: str) -> None:
    torch.manual_seed(0)
    x = torch.tensor([[1.0, 3.0, 3.0], [1.0, 2.0, 3.0]]).t().requires_grad_()
    check(train, getattr(torch, name), x)


@trained
def test_an_infinite_gradient_reaches_the_largest_element_alone(train: Callable) -> None:
    x = torch.tensor([1.0, 3.0, 2.0], requires_grad=True)
    run = train(torch.max, [x])
    (gradient,) = torch.autograd.grad(run(x), x, torch.tensor(torch.inf))
    assert gradient.tolist() == [0.0, torch.inf, 0.0]


@trained
def test_repeats_with_a_known_sum(train: Callable) -> None:
    torch.manual_seed(0)
    repeats = torch.tensor([2, 0, 1, 3])
    check(train, lambda x, r: x.repeat_interleave(r, 0, output_size=6), leaf(4, 3), repeats)


@trained
def test_masks_whose_values_are_known(train: Callable) -> None:
    torch.manual_seed(0)

    def upper(x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(4, 4, dtype=torch.bool)
        mask *= torch.arange(4)[:, None] <= torch.arange(4)
        return torch.cat([x[mask], torch.masked_select(x, mask)])

    check(train, upper, leaf(4, 4))
    check(train, lambda x: torch.combinations(x, 3), leaf(6))


def test_a_written_row_differentiated_twice_is_refused_where_its_shape_is_not_known() -> None:
    """The gradient of a broadcast value, differentiated again: refused, and not a graph of wrong shapes."""

    def gradient(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        result = x.index_put((MASK.clone(),), value)
        (made,) = torch.autograd.grad(result.pow(3).sum(), value, create_graph=True)
        return made

    with torch.enable_grad(), pytest.raises(Unsupported, match="data"):
        aot.compile_training(gradient, [leaf(5), leaf()], aot.run_eagerly, keep=aot.keep_all)
    known = partial(aot.compile_training, compile_graph=aot.run_eagerly, keep=aot.keep_all)
    check(known, gradient, leaf(5), leaf(3))
