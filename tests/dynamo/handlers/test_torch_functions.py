"""Functions of torch that capture knows by name do in one graph as they do in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from differential import Program, check, corpus
from torch import nn
from torch._higher_order_ops.wrap import wrap

import stator

PROGRAMS, program = corpus()


def vectors() -> torch.Tensor:
    return torch.linspace(-1, 2, 12).sin().reshape(4, 3).requires_grad_()


# ---- functions that call functions and modules of the program ----


class Distances(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.loss = nn.TripletMarginWithDistanceLoss(distance_function=nn.PairwiseDistance(), margin=2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.loss(x, x.detach() + 1, x.cos())


@program(vectors)
def triplets_by_a_module(x: torch.Tensor) -> Any:
    return F.triplet_margin_with_distance_loss(x, x + 1, x.cos(), distance_function=nn.PairwiseDistance(), swap=True)


@program(vectors)
def triplets_by_a_function(x: torch.Tensor) -> Any:
    distance = lambda one, other: (one - other).abs().sum(-1)  # noqa: E731
    return F.triplet_margin_with_distance_loss(x, x + 1, x.cos(), distance_function=distance, reduction="sum")


@program(Distances, vectors)
def triplets_in_a_module(module: nn.Module, x: torch.Tensor) -> Any:
    return module(x)


# ---- classes, descriptors, state ----


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * 5


@program(vectors)
def an_instance_of_a_function(x: torch.Tensor) -> Any:
    return Scaled().apply(x) + 1


@program(vectors)
def descriptors(x: torch.Tensor) -> Any:
    return x * torch.Tensor.shape.__get__(x)[0], torch.Tensor.dtype.__get__(x), torch.Tensor.T.__get__(x)


@program(vectors)
def the_operator_wrap(x: torch.Tensor) -> Any:
    return wrap(lambda one, other: one.sin() * other, x, x + 1)


@program(vectors)
def dtypes_of_autocast(x: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.float16):
        inside = torch.get_autocast_cpu_dtype()
    return x.to(torch.get_autocast_gpu_dtype()), inside, torch.get_autocast_dtype("cpu")


@program(vectors)
def saved_tensors_without_hooks(x: torch.Tensor) -> Any:
    asked = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        return x.sin() * 2, asked()


# ---- modules made in the program ----


class Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor, self.activation = factor, nn.ReLU()
        self.register_buffer("count", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(x) * self.factor


@program(vectors)
def a_module_that_leaves(x: torch.Tensor) -> Any:
    made = nn.Sequential(Scale(3.0), nn.Tanh()).eval()
    y, again = made(x), made[0](x)
    described = [(name, type(one), one.training) for name, one in made.named_modules()]
    return y, again, described, [made], list(made.state_dict().items())


# ---- strides past a part of the memory ----


@program(lambda: torch.arange(12)[2:6])
def beyond_a_slice(x: torch.Tensor) -> Any:
    inside = x[1:3]
    return [one.as_strided((3,), (2,), 1) for one in (x, inside, x.clone(), (x + 1)[1:])]


# ---- text of functions ----


@program(vectors)
def the_text_of_a_function(x: torch.Tensor) -> Any:
    return x + len(str(vectors)), f"{vectors}", repr(F.relu)


def test_a_module_that_left_goes_on_as_in_eager() -> None:
    x = vectors().detach()
    (made,) = stator.compile(a_module_that_leaves, backend="eager", fullgraph=True)(x)[3]
    (expected,) = a_module_that_leaves(x)[3]
    assert torch.equal(made(x), expected(x)) and repr(made) == repr(expected)
    assert [name for name, _ in made.named_buffers()] == ["0.count"] and made.to(torch.float64)[
        0
    ].count.dtype.itemsize == 8


def test_the_text_of_a_renamed_function() -> None:
    def named() -> None: ...

    compiled = stator.compile(lambda x: (x + 1, str(named)), backend="eager", fullgraph=True)
    for name in ("named", "renamed"):
        named.__qualname__ = name
        assert compiled(torch.ones(2))[1] == str(named)


def test_another_dtype_of_autocast() -> None:
    compiled = stator.compile(lambda x: x.to(torch.get_autocast_dtype("cpu")), backend="eager", fullgraph=True)
    before = torch.get_autocast_dtype("cpu")
    try:
        for dtype in (torch.float16, torch.bfloat16):
            torch.set_autocast_dtype("cpu", dtype)
            assert compiled(torch.ones(2)).dtype is dtype
    finally:
        torch.set_autocast_dtype("cpu", before)


def test_saved_tensors_hooks_behind_a_break() -> None:
    def run(x: torch.Tensor) -> Any:
        with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
            y = x.sin()
            print(end="")
            stator.graph_break()
            with torch.autograd.graph.save_on_cpu():
                return y * x

    check(run, vectors(), gradients=True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("case", PROGRAMS)
def test_one_graph(case: Program, backend: str) -> None:
    check(case, backend=backend, fullgraph=True, gradients=True)
