"""Features of autograd that random programs mix: steps of a forward, each with numbers that choose operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

Tensor = torch.Tensor
Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Scenario:
    seed: int
    inside: tuple[tuple[str, Numbers], ...]
    shown: tuple[float, ...]
    around: tuple[tuple[str, Numbers], ...]

    def __str__(self) -> str:
        inside = ", ".join(f"{name}{tuple(round(n, 2) for n in numbers)}" for name, numbers in self.inside)
        around = ", ".join(f"{name}{tuple(round(n, 2) for n in numbers)}" for name, numbers in self.around)
        return f"seed {self.seed}\n  inside: {inside}\n  shown: {self.shown}\n  around: {around}"


class Store(nn.Module):
    """The parameters and buffers of a program."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.weight = nn.Parameter(torch.randn(3, 3, generator=generator, dtype=torch.float64) * 0.5)
        self.bias = nn.Parameter(torch.randn(2, 3, generator=generator, dtype=torch.float64) * 0.5)
        self.unused = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.register_buffer("running", torch.zeros(2, 3, dtype=torch.float64))
        self.norm = nn.BatchNorm1d(3, dtype=torch.float64)
        self.scenario: Scenario | None = None
        self.calls = 0

    def forward(self, *inputs: Tensor) -> Any:
        values = list(inputs)
        scenario = self.scenario
        assert scenario is not None
        for name, numbers in scenario.inside:
            made = INSIDE[name](self, values, numbers)
            if made is not None:
                values.extend(made)
        shown = [values[int(number * len(values))] for number in scenario.shown]
        if scenario.seed % 5 == 0:
            return {"first": shown[0], "rest": (shown[1:], None, 3, "text")}
        return shown if len(shown) > 1 or scenario.seed % 2 else shown[0]


Inside = Callable[[Store, list[Any], Numbers], "Sequence[Any] | None"]
INSIDE: dict[str, Inside] = {}


def inside(function: Inside) -> Inside:
    INSIDE[function.__name__] = function
    return function


def pick(values: Sequence[Any], number: float) -> Any:
    return values[min(int(number * len(values)), len(values) - 1)]


def full(values: Sequence[Any], number: float) -> Tensor:
    """A value of the shape and dtype that most have."""
    return pick([one for one in values if one.shape == (2, 3)], number)


@inside
def multiply(store: Store, values: list[Any], n: Numbers) -> Any:
    return [full(values, n[0]) * full(values, n[1]) * 0.7]


@inside
def add(store: Store, values: list[Any], n: Numbers) -> Any:
    return [full(values, n[0]) + full(values, n[1])]


@inside
def unary(store: Store, values: list[Any], n: Numbers) -> Any:
    operator = pick([torch.sin, torch.tanh, torch.sigmoid, torch.cos, torch.atan, F.gelu, torch.erf], n[1])
    return [operator(full(values, n[0]))]


@inside
def linear(store: Store, values: list[Any], n: Numbers) -> Any:
    return [full(values, n[0]) @ store.weight + store.bias]


@inside
def reduce(store: Store, values: list[Any], n: Numbers) -> Any:
    operator = pick([torch.softmax, torch.cumsum, torch.logsumexp, torch.amax, torch.var], n[1])
    made = operator(full(values, n[0]), 1)
    return [made if made.dim() == 2 else made.unsqueeze(1).expand(2, 3) * 1]


@inside
def layer_norm(store: Store, values: list[Any], n: Numbers) -> Any:
    return [F.layer_norm(full(values, n[0]), (3,), store.weight[0], store.bias[0])]


@inside
def batch_norm(store: Store, values: list[Any], n: Numbers) -> Any:
    return [store.norm(full(values, n[0]))]


@inside
def view(store: Store, values: list[Any], n: Numbers) -> Any:
    value = full(values, n[0])
    return [pick([value[0], value.t(), value[:, 1:], value.view(2, 3), value.reshape(-1), value[None]], n[1])]


@inside
def use_view(store: Store, values: list[Any], n: Numbers) -> Any:
    value = pick(values, n[0])
    return [value.sum() * full(values, n[1])]


@inside
def parts(store: Store, values: list[Any], n: Numbers) -> Any:
    first, second = pick([torch.unbind, partial(torch.split, split_size_or_sections=1), torch.chunk], n[1])(
        full(values, n[0]), *([2] if n[1] >= 2 / 3 else [])
    )
    return [first, second * 2]


@inside
def two_results(store: Store, values: list[Any], n: Numbers) -> Any:
    value = full(values, n[0])
    which = int(n[1] * 3)
    if which == 0:
        deviation, mean = torch.std_mean(value, 1, keepdim=True)
        return [deviation * value, mean * full(values, n[2])]
    if which == 1:
        largest, at = value.max(1, keepdim=True)
        return [largest.expand(2, 3) * 1, at]
    ordered, at = value.sort(1)
    return [ordered, at.expand(2, 3)]


@inside
def write_fresh(store: Store, values: list[Any], n: Numbers) -> Any:
    value = full(values, n[0]).clone()
    other = full(values, n[1])
    return [pick([lambda: value.mul_(other), lambda: value.add_(other), lambda: value.tanh_(),
                  lambda: value.copy_(other), lambda: value.mul_(2)], n[2])()]  # fmt: skip


@inside
def write_part(store: Store, values: list[Any], n: Numbers) -> Any:
    value = full(values, n[0]).clone()
    if n[2] < 0.5:
        value[0] = full(values, n[1])[1]
    else:
        value[:, 1:].mul_(full(values, n[1])[:, 1:])
    return [value]


@inside
def write_some(store: Store, values: list[Any], n: Numbers) -> Any:
    """Writes to an input, a view or a computed value."""
    value = pick(values, n[0])
    if n[1] < 0.4:
        value.mul_(1.5)
    elif n[1] < 0.7:
        value.add_(full(values, n[2]).sum().to(value.dtype))
    else:
        value[0] = 0.5 if value.is_floating_point() else 1
    return None


@inside
def write_without_grad(store: Store, values: list[Any], n: Numbers) -> Any:
    with torch.no_grad():
        pick([store.running, store.bias, pick(values, n[0])], n[1]).mul_(1.25)
    return None


@inside
def count(store: Store, values: list[Any], n: Numbers) -> Any:
    with torch.no_grad():
        store.running.add_(full(values, n[0]).detach())
    return [store.running * full(values, n[1])]


@inside
def detached(store: Store, values: list[Any], n: Numbers) -> Any:
    value = full(values, n[0]).detach()
    return [value, value * full(values, n[1])]


@inside
def without_grad(store: Store, values: list[Any], n: Numbers) -> Any:
    with torch.no_grad():
        value = full(values, n[0]) * 2
        with torch.set_grad_enabled(n[2] < 0.5):
            other = full(values, n[1]).sin()
    return [value, other * value]


@inside
def new_leaf(store: Store, values: list[Any], n: Numbers) -> Any:
    value = full(values, n[0]).detach().clone().requires_grad_()
    return [value, value * full(values, n[1])] if n[2] < 0.5 else [value * 2]


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        ctx.save_for_backward(x, y)
        sign = x.sign()
        ctx.mark_non_differentiable(sign)
        return x * y, sign

    @staticmethod
    def backward(ctx: Any, tangent: Tensor, _: Any) -> Any:
        x, y = ctx.saved_tensors
        return tangent * y * 2, (tangent * x if ctx.needs_input_grad[1] else None)


class OnlyFirst(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return x.sin(), y.cos() + x

    @staticmethod
    def backward(ctx: Any, first: Any, second: Any) -> Any:
        return (None if first is None else first * 3), (None if second is None else second * 2)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, tangent: Tensor) -> Any:
        return tangent * 2


@inside
def custom(store: Store, values: list[Any], n: Numbers) -> Any:
    return list(Scaled.apply(full(values, n[0]), full(values, n[1])))


@inside
def custom_with_none(store: Store, values: list[Any], n: Numbers) -> Any:
    return list(OnlyFirst.apply(full(values, n[0]), full(values, n[1])))


@inside
def custom_in_place(store: Store, values: list[Any], n: Numbers) -> Any:
    return [Doubled.apply(full(values, n[0]) * 1)]


@inside
def checkpointed(store: Store, values: list[Any], n: Numbers) -> Any:
    def part(x: Tensor, y: Tensor) -> Tensor:
        hidden = (x @ store.weight).tanh()
        return (Scaled.apply(hidden, y)[0] if n[2] >= 0.7 else hidden * y).sin()

    # eager leaves out second derivatives past a reentrant checkpoint, without an error
    assert store.scenario is not None
    once = not any(name.startswith(("second", "hessian", "freed_graph")) for name, _ in store.scenario.around)
    return [checkpoint(part, full(values, n[0]), full(values, n[1]), use_reentrant=n[2] < 0.3 and once)]


@inside
def complex_numbers(store: Store, values: list[Any], n: Numbers) -> Any:
    number = torch.complex(full(values, n[0]), full(values, n[1]))
    number = pick([number.exp, number.conj, lambda: number * number, lambda: number.sin().conj()], n[2])()
    return [number.real, torch.view_as_real(number.resolve_conj()).sum(-1)]


@inside
def hooked(store: Store, values: list[Any], n: Numbers) -> Any:
    value = full(values, n[0]) * full(values, n[1])
    if value.requires_grad:
        value.register_hook(pick([lambda g: g.sin() + 0.1, lambda g: g * 2, lambda g: None], n[2]))
    return [value.tanh()] if n[1] < 0.5 else [value, value * 2]


@inside
def gradient_inside(store: Store, values: list[Any], n: Numbers) -> Any:
    value = full(values, n[0])
    if not value.requires_grad or not torch.is_grad_enabled():
        return None
    (found,) = torch.autograd.grad((value * value.sin()).sum(), value, create_graph=n[1] < 0.7)
    return [found * full(values, n[2])]


@inside
def transformed(store: Store, values: list[Any], n: Numbers) -> Any:
    value, other = full(values, n[0]), full(values, n[1])
    which = int(n[2] * 4)
    if which == 0:
        return [torch.func.grad(lambda x: (x.sin() * other).sum())(value)]
    if which == 1:
        return [torch.func.vmap(lambda x, y: x * y.sum())(value, other)]
    if which == 2:
        return [torch.func.jvp(lambda x: x.sin() * x, (value,), (other,))[1]]
    result, pull = torch.func.vjp(lambda x: x.tanh() * other, value)
    return [result, pull(other)[0]]


@inside
def indexed(store: Store, values: list[Any], n: Numbers) -> Any:
    value = full(values, n[0])
    rows = torch.tensor([1, 0])
    which = int(n[2] * 4)
    if which == 0:
        return [value[rows] * 2]
    if which == 1:
        return [torch.where(value > 0, value, full(values, n[1]))]
    if which == 2:
        return [F.embedding(rows, value)]
    return [value.gather(1, torch.tensor([[0, 0, 2], [1, 2, 2]]))]


@inside
def convolution(store: Store, values: list[Any], n: Numbers) -> Any:
    image = full(values, n[0])[None, :, :, None].expand(1, 2, 3, 2).contiguous(memory_format=torch.channels_last)
    made = F.conv2d(image, store.weight[:2, :2, None, None])
    return [made[0, :, :, 0], made]


@inside
def half(store: Store, values: list[Any], n: Numbers) -> Any:
    """Exact: sums of small powers of two."""
    with torch.autocast("cpu", torch.bfloat16):
        made = (full(values, n[0]).round().float() @ torch.eye(3)).double()
    return [made * full(values, n[1])]


@inside
def dropped(store: Store, values: list[Any], n: Numbers) -> Any:
    return [F.dropout(full(values, n[0]), 0.5) * full(values, n[1])]


@inside
def constant(store: Store, values: list[Any], n: Numbers) -> Any:
    return [torch.ones(2, 3, dtype=torch.float64), torch.full((2, 3), n[0], dtype=torch.float64)]


PLAIN_INSIDE = tuple(INSIDE)  # other files may add features
