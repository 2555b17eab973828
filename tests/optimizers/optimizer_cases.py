"""Configurations of torch.optim's optimizers, and how one is stepped, compiled or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import stator

Case = tuple[str, dict[str, Any]]

SINGLE: list[Case] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "maximize": True}),
    ("Adam", {"lr": 0.01}),
    ("Adam", {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1, "maximize": True}),
    ("AdamW", {"lr": 0.01}),
    ("AdamW", {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}),
    ("Adamax", {"lr": 0.01, "weight_decay": 0.1}),
    ("NAdam", {"lr": 0.01}),
    ("NAdam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {"lr": 0.01, "weight_decay": 0.1}),
    ("RMSprop", {"lr": 0.01}),
    ("RMSprop", {"lr": 0.01, "centered": True, "momentum": 0.9, "weight_decay": 0.1}),
    ("Rprop", {"lr": 0.01}),
    ("Adagrad", {"lr": 0.01, "lr_decay": 0.1, "weight_decay": 0.1}),
    ("Adadelta", {"lr": 0.1, "weight_decay": 0.1}),
    ("ASGD", {"lr": 0.01, "weight_decay": 0.1}),
]
OTHERS: list[Case] = [
    ("Adam", {"fused": True, "weight_decay": 0.1}),
    ("AdamW", {"fused": True, "amsgrad": True, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "fused": True, "momentum": 0.9, "nesterov": True}),
    ("Adagrad", {"fused": True, "lr_decay": 0.1}),
    ("Muon", {}),
    ("Adafactor", {"weight_decay": 0.1}),
    ("Adafactor", {"foreach": True}),
    ("Adam", {"lr": torch.tensor(0.01)}),
    ("SGD", {"lr": torch.tensor(0.01), "momentum": 0.9}),
]
CASES: list[Case] = [
    *[(name, {**options, "foreach": foreach}) for name, options in SINGLE for foreach in (None, False, True)],
    *[(name, options) for name, options in OTHERS if hasattr(torch.optim, name)],
]


def text(case: Case) -> str:
    name, options = case
    return "-".join([name, *(f"{key}={value}" for key, value in options.items())])


def parameters(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((4, 3), (2, 5), (3, 3))
    drawn = [torch.randn(shape, generator=generator, device="cpu") for shape in shapes]
    return [torch.nn.Parameter(tensor.to(torch.get_default_device(), dtype)) for tensor in drawn]


def give_gradients(given: list[torch.nn.Parameter], turn: int) -> None:
    generator = torch.Generator().manual_seed(turn)
    for parameter in given:
        parameter.grad = torch.randn(parameter.shape, generator=generator, device="cpu").to(parameter)


def stepped(
    case: Case,
    compiled: Callable[[Callable[[], Any]], Callable[[], Any]],
    turns: int = 10,
    dtype: torch.dtype = torch.float32,
    between: Callable[[torch.optim.Optimizer, int], None] = lambda optimizer, turn: None,
) -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer]:
    """Parameters in two groups, after so many steps by the function that `compiled` makes of one step."""
    name, options = case
    owned = parameters(dtype)
    groups = [{"params": owned[:1]}, {"params": owned[1:], "weight_decay": 0.05}]
    optimizer = getattr(torch.optim, name)(groups, **options)

    def step() -> None:
        optimizer.step()

    run = compiled(step)
    for turn in range(turns):
        give_gradients(owned, turn)
        run()
        between(optimizer, turn)
    return owned, optimizer


def whole(backend: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    return lambda function: stator.compile(function, backend=backend, fullgraph=True)


def as_it_is(function: Callable[[], Any]) -> Callable[[], Any]:
    return function
