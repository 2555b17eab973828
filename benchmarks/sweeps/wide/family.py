"""What a family of the wide suite consists of: a model with inputs, or a loop in Python around several networks.

Builders register themselves by `@family(library)`. A builder imports its library, which only this suite needs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

Inputs = Callable[[], dict[str, Any]]
Compile = Callable[[Any], Any]
Step = Callable[..., Any]  # (networks, optimizers, **inputs) -> the numbers that are compared

BOTH, INFERENCE, TRAINING = ("speed", "speed_train"), ("speed",), ("speed_train",)


@dataclass(frozen=True, slots=True)
class Family:
    """The builder of one family, the library that its model comes from, and the columns that it can be measured in."""

    library: str
    build: Callable[[], Built | Loop]
    columns: tuple[str, ...]


FAMILIES: dict[str, Family] = {}


def family(library: str, columns: tuple[str, ...] = BOTH) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Registers a builder under its own name; "plain" stands for programs written by hand."""

    def register(build: Callable[[], Any]) -> Callable[[], Any]:
        FAMILIES[build.__name__] = Family(library, build, columns)
        return build

    return register


@dataclass(slots=True)
class Built:
    """One model in eval mode, and inputs of the same shapes with other values for each seed."""

    model: torch.nn.Module
    make: Inputs
    library: str = ""

    def inputs(self, seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        return self.make()

    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())


@dataclass(slots=True)
class Loop:
    """A step of training or sampling in plain Python around networks. Users compile the networks, or the whole step."""

    networks: dict[str, torch.nn.Module]
    optimize: Callable[[SimpleNamespace], list[torch.optim.Optimizer]]
    step: Step
    make: Inputs
    whole: bool = False  # compile the step, which contains the networks
    library: str = ""
    model: Program = field(init=False)

    def __post_init__(self) -> None:
        self.model = self.compiled(lambda function: function)

    def inputs(self, seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        return self.make()

    def parameters(self) -> int:
        return sum(parameter.numel() for network in self.networks.values() for parameter in network.parameters())

    def compiled(self, compile_: Compile) -> Program:
        """The program on networks of its own, which begin with equal weights."""
        return Program(self, copy.deepcopy(self.networks), compile_)


class Program:
    """A loop's networks, their optimizers and its step, each compiled as the loop asks."""

    def __init__(self, loop: Loop, networks: dict[str, torch.nn.Module], compile_: Compile) -> None:
        self.module = torch.nn.ModuleDict(networks)
        self.begin = copy.deepcopy(self.module.state_dict())
        used = networks if loop.whole else {name: compile_(network) for name, network in networks.items()}
        self.networks = SimpleNamespace(**used)
        self.step = compile_(loop.step) if loop.whole else loop.step
        self.optimize = loop.optimize
        self.optimizers = self.optimize(self.networks)

    def reset(self) -> None:
        """The weights, buffers and optimizers as they were at first."""
        self.module.load_state_dict(self.begin)
        self.module.zero_grad(set_to_none=True)
        for optimizer in self.optimizers:
            optimizer.state.clear()

    def __call__(self, **inputs: Any) -> Any:
        return self.step(self.networks, self.optimizers, **inputs)
