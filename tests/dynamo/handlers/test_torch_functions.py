"""Functions of torch that capture knows by name do in one graph as they do in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from differential import check
from torch import nn

import stator


def vectors() -> torch.Tensor:
    return torch.linspace(-1, 2, 12).sin().reshape(4, 3).requires_grad_()


class Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor, self.activation = factor, nn.ReLU()
        self.register_buffer("count", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(x) * self.factor


def triplets(x: torch.Tensor, **options: Any) -> torch.Tensor:
    return F.triplet_margin_with_distance_loss(x, x + 1, x.cos(), **options)


def dtypes_of_autocast(x: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.float16):
        inside = torch.get_autocast_dtype("cpu")
    return x.to(torch.get_autocast_dtype("cuda")), inside, torch.get_autocast_dtype("cpu")


def saved_tensors_without_hooks(x: torch.Tensor) -> Any:
    asked = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        return x.sin() * 2, asked()


def a_module_that_leaves(x: torch.Tensor) -> Any:
    made = nn.Sequential(Scale(3.0), nn.Tanh()).eval()
    described = [(name, type(one), one.training) for name, one in made.named_modules()]
    return made(x), made[0](x), described, [made], list(made.state_dict().items())


LOSS = nn.TripletMarginWithDistanceLoss(distance_function=nn.PairwiseDistance(), margin=2.0)
PROGRAMS = {
    "triplets by a module": lambda x: triplets(x, distance_function=nn.PairwiseDistance(), swap=True),
    "triplets by a function": lambda x: triplets(x, distance_function=lambda u, v: (u - v).abs().sum(-1)),
    "triplets in a module": lambda x: LOSS(x, x.detach() + 1, x.cos()),
    "descriptors": lambda x: (x * torch.Tensor.shape.__get__(x)[0], torch.Tensor.T.__get__(x)),
    "dtypes of autocast": dtypes_of_autocast,
    "saved tensors without hooks": saved_tensors_without_hooks,
    "a module that leaves": a_module_that_leaves,
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name: str, backend: str) -> None:
    check(PROGRAMS[name], make=lambda: (vectors(),), backend=backend, fullgraph=True, gradients=True)


def test_strides_past_a_part_of_the_memory() -> None:
    """Capture knows the elements of small integer tensors, but not those beside them."""
    program = lambda x: [one.as_strided((3,), (2,), 1) for one in (x, x[1:3], x.clone(), (x + 1)[1:])]  # noqa: E731
    check(program, make=lambda: (torch.arange(12)[2:6],), fullgraph=True)


def test_a_module_that_left_goes_on_as_in_eager() -> None:
    x = vectors().detach()
    (made,) = stator.compile(a_module_that_leaves, backend="eager", fullgraph=True)(x)[3]
    (expected,) = a_module_that_leaves(x)[3]
    assert torch.equal(made(x), expected(x)) and repr(made) == repr(expected)
    assert [name for name, _ in made.named_buffers()] == ["0.count"]


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
            stator.graph_break()
            with torch.autograd.graph.save_on_cpu():
                return y * x

    check(run, vectors(), gradients=True)
