"""Functions of torch that capture knows by name do in one graph as they do in eager."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from differential import check
from torch import nn
from torch._higher_order_ops.wrap import wrap

import stator


def vectors() -> torch.Tensor:
    return torch.linspace(-1, 2, 12).sin().reshape(4, 3).requires_grad_()


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * 5


@stator.allow_in_graph
class Opaque(Scaled):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if sys._getframe() else x  # capture cannot follow this


@torch.compiler.allow_in_graph
def without_a_result(x: torch.Tensor, *, rows: int = 4) -> None:
    assert x.shape[0] == rows and sys._getframe()


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
        inside = torch.get_autocast_cpu_dtype()
    return (
        x.to(torch.get_autocast_gpu_dtype()),
        inside,
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_xla_enabled(),
    )


def saved_tensors_without_hooks(x: torch.Tensor) -> Any:
    asked = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        return x.sin() * 2, asked()


def a_module_that_leaves(x: torch.Tensor) -> Any:
    made = nn.Sequential(Scale(3.0), nn.Tanh()).eval()
    described = [(name, type(one), one.training) for name, one in made.named_modules()]
    return made(x), made[0](x), described, [made], list(made.state_dict().items())


LOSS = nn.TripletMarginWithDistanceLoss(distance_function=nn.PairwiseDistance(), margin=2.0)
STORAGE = torch.ones(2)._typed_storage()  # type: ignore[attr-defined]
PROGRAMS = {
    "triplets by a module": lambda x: triplets(x, distance_function=nn.PairwiseDistance(), swap=True),
    "triplets by a function": lambda x: triplets(x, distance_function=lambda u, v: (u - v).abs().sum(-1)),
    "triplets in a module": lambda x: LOSS(x, x.detach() + 1, x.cos()),
    "an instance of a function": lambda x: Scaled().apply(x) + 1,
    "a function allowed in graphs": lambda x: Opaque.apply(x.sin()) + 1,
    "an instance of a function allowed in graphs": lambda x: Opaque().apply(x.sin()) + 1,
    "a call without a result": lambda x: (without_a_result(x), without_a_result(x, rows=4), x + 1),
    "the operator wrap": lambda x: wrap(lambda one, other: one.sin() * other, x, x + 1),
    "the text of a function": lambda x: (x + len(str(vectors)), f"{vectors}", repr(F.relu)),
    "the version of torch": lambda x: (x + (torch.__version__ >= "2.0"), torch.__version__.split(".")[0]),
    "subclasses": lambda x: (x + len(Scaled.__subclasses__()), Scaled.__subclasses__()),
    "a legacy storage": lambda x: (x, isinstance(STORAGE, torch.FloatStorage), isinstance(STORAGE, torch.IntStorage)),
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


def test_the_text_of_a_renamed_function() -> None:
    def named() -> None: ...

    compiled = stator.compile(lambda x: (x + 1, str(named)), backend="eager", fullgraph=True)
    for name in ("named", "renamed"):
        named.__qualname__ = name
        assert compiled(torch.ones(2))[1] == str(named)


def test_a_further_subclass() -> None:
    compiled = stator.compile(lambda x: x + len(Scale.__subclasses__()), backend="eager", fullgraph=True)
    assert compiled(torch.zeros(1)) == 0
    further = type("Further", (Scale,), {})
    assert compiled(torch.zeros(1)) == 1 and further in Scale.__subclasses__()


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


def test_a_remainder_of_two_numbers_is_refused() -> None:
    check(lambda x: torch.remainder(2, 3) * x, vectors())


@pytest.mark.skipif(not hasattr(nn, "LinearCrossEntropyOptions"), reason="this version of torch has none")
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_loss_with_an_object_of_options(reduction: str) -> None:
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=2, allow_retain_graph=True)
    loss = nn.LinearCrossEntropyLoss(3, 5, reduction=reduction, options=options)
    check(loss, vectors(), torch.tensor([0, 4, 2, 1]), gradients=True, fullgraph=True)
