"""Stride arithmetic agrees with what eager tensors report and with the layouts its operators choose."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stator.prims import layout
from stator.prims.shape_rules.views import view_strides
from stator.shapes.environment import Environment
from stator.shapes.sym_node import to_expression, to_sym_int

SETTINGS = settings(max_examples=300, deadline=None, derandomize=True)
sizes = st.lists(st.sampled_from((0, 1, 1, 2, 3, 4)), min_size=0, max_size=5)


@st.composite
def tensors(draw: st.DrawFn, shape: tuple[int, ...] | None = None) -> torch.Tensor:
    """A tensor whose dimensions lie in memory in any order, with gaps, and expanded ones among them."""
    shape = tuple(draw(sizes)) if shape is None else shape
    rank = len(shape)
    order = draw(st.permutations(range(rank)))
    gaps = [draw(st.sampled_from((1, 1, 1, 2))) for _ in range(rank)]
    expanded = [draw(st.sampled_from((False, False, False, True))) for _ in range(rank)]
    strides = [0] * rank
    running = 1
    for dim in order:
        running *= gaps[dim]
        strides[dim] = 0 if expanded[dim] else running
        running *= max(shape[dim], 1)
    return torch.empty(max(running, 1)).as_strided(shape, strides)


@st.composite
def broadcastable(draw: st.DrawFn, count: int) -> list[torch.Tensor]:
    shape = tuple(draw(sizes))
    operands = []
    for _ in range(count):
        kept = shape[draw(st.integers(0, len(shape))) :]
        own = tuple(1 if draw(st.sampled_from((False, False, False, True))) else size for size in kept)
        operands.append(draw(tensors(own)))
    return operands


def described(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(tensor.shape), tensor.stride()


@SETTINGS
@given(tensors())
def test_contiguity_flags(tensor: torch.Tensor) -> None:
    assert layout.is_contiguous(*described(tensor)) == tensor.is_contiguous()
    if tensor.dim() == 4:
        assert layout.is_channels_last(*described(tensor)) == tensor.is_contiguous(memory_format=torch.channels_last)
    if tensor.dim() == 5:
        expected = tensor.is_contiguous(memory_format=torch.channels_last_3d)
        assert layout.is_channels_last(*described(tensor)) == expected
    dense = torch.ops.aten.is_non_overlapping_and_dense.default(tensor)
    assert layout.is_dense(*described(tensor)) == dense


@SETTINGS
@given(tensors())
def test_a_clone_has_the_preserved_strides(tensor: torch.Tensor) -> None:
    assert layout.preserved_strides(*described(tensor)) == tensor.clone().stride()


def test_the_order_of_strides_is_a_fact_where_sizes_do_not_tell_it() -> None:
    environment = Environment()
    rows, columns, step = (
        to_sym_int(environment, environment.size(name, hint)) for name, hint in {"r": 2, "c": 5, "t": 15}.items()
    )
    for strides in ((columns, 1), (1, rows), (columns * step, step)):
        layout.dense_strides((rows, columns), strides)
    assert not environment.facts
    assert to_expression(layout.dense_strides((rows, columns), (step, 1))[0]) is to_expression(columns)
    assert [str(fact) for fact in environment.facts] == ["t - 2 >= 0"]


def test_layouts_of_symbolic_sizes_are_computed_once_until_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    computed, original = [], layout._row_major
    monkeypatch.setattr(layout, "_row_major", lambda shape: (computed.append(shape), original(shape))[1])
    environment = Environment()
    rows, columns = (to_sym_int(environment, environment.size(name, hint)) for name, hint in {"r": 2, "c": 5}.items())
    for shape in ((rows, 3, columns), [rows, 3, columns], (rows, 4, columns), (rows, 3, columns)):
        outer, inner, last = layout.contiguous_strides(shape)
        whole = to_expression(columns)
        assert (to_expression(outer), to_expression(inner), last) == (whole * shape[1], whole, 1)
    assert len(computed) == 2
    assert columns == 5
    assert layout.contiguous_strides((rows, 3, columns)) == (15, 5, 1)
    assert len(computed) == 3


@SETTINGS
@given(tensors())
def test_suggested_strides_equal_those_of_an_operator_that_suggests_a_format(tensor: torch.Tensor) -> None:
    if tensor.dim() != 4 or 0 in tensor.shape:
        return
    result = torch.nn.functional.interpolate(tensor, size=(3, 5))
    assert layout.suggested_strides(*described(tensor), tuple(result.shape)) == result.stride()


@pytest.mark.parametrize("operator", [torch.sin, torch.add, torch.addcmul])
def test_strides_of_elementwise_operators(operator: Callable[..., torch.Tensor]) -> None:
    @SETTINGS
    @given(broadcastable(1 + [torch.sin, torch.add, torch.addcmul].index(operator)))
    def check(operands: list[torch.Tensor]) -> None:
        result = operator(*operands)
        assert layout.elementwise_strides(tuple(result.shape), [described(x) for x in operands]) == result.stride()

    check()


@SETTINGS
@given(tensors(), st.data())
def test_view_strides(tensor: torch.Tensor, data: st.DataObject) -> None:
    """Some factorisation of the number of elements, with ones strewn in."""
    remaining = tensor.numel()
    new: list[int] = []
    while remaining > 1:
        factor = data.draw(st.sampled_from([d for d in range(2, remaining + 1) if remaining % d == 0]))
        new.append(factor)
        remaining //= factor
    new += [0] if remaining == 0 else [1] * data.draw(st.integers(0, 2))
    new = data.draw(st.permutations(new))
    try:
        expected = tensor.view(new).stride()
    except RuntimeError:
        expected = None
    assert view_strides(*described(tensor), tuple(new)) == expected


def test_broadcasting_refuses_what_eager_refuses() -> None:
    for first, second in itertools.product(itertools.product((1, 2, 3), repeat=2), repeat=2):
        try:
            expected = tuple(torch.broadcast_shapes(first, second))
        except RuntimeError:
            with pytest.raises(RuntimeError, match="must match the size of tensor b"):
                layout.broadcast_shapes(first, second)
        else:
            assert layout.broadcast_shapes(first, second) == expected


def test_dimensions_are_wrapped_and_bounded() -> None:
    assert layout.wrap_dim(-1, 3) == 2
    assert layout.wrap_dim(-1, 0) == 0
    with pytest.raises(IndexError, match=r"expected to be in range of \[-2, 1\], but got 2"):
        layout.wrap_dim(2, 2)
    with pytest.raises(RuntimeError, match="dim 1 appears multiple times"):
        layout.wrap_dims((1, -1), 2)


@pytest.mark.parametrize(
    ("shape", "strides", "overlaps"),
    [
        ((5, 6, 4), (24, 4, 1), False),
        ((5, 6, 4), (1, 5, 30), False),
        ((5, 6, 4), (5, 1, 30), True),  # six steps of one reach into the next step of five
        ((5, 6), (7, 1), False),
        ((5, 6), (0, 1), True),
        ((1, 6), (0, 1), False),
        ((0, 6), (0, 0), False),
        ((), (), False),
    ],
)
def test_layouts_that_overlap_themselves(shape: tuple[int, ...], strides: tuple[int, ...], overlaps: bool) -> None:
    assert layout.may_overlap(shape, strides) == overlaps
