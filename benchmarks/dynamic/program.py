"""What a program of varying sizes is: how to build it, its inputs for a size, the sizes, and how it is compiled.

Programs register themselves by `@program(...)` on the function that builds the model. Nothing is measured here.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Size = tuple[int, ...]
Inputs = dict[str, Any]
Compile = Callable[[Any], Any]
Call = Callable[[Inputs], Any]

_FILES = ("generation", "language", "vision", "detection", "graph_networks", "sequences", "routing")


def forward(model: nn.Module, compile_: Compile) -> Call:
    """The usual program: the compiled model is called with the inputs."""
    compiled = compile_(model)
    return lambda inputs: compiled(**inputs)


@dataclass(frozen=True, slots=True)
class Program:
    """One program.

    inputs: makes the inputs of one size; the generator is seeded by the size.
    sizes: what a benchmark runs over, in this order; `few` is what a test runs over.
    modes: of "inference" and "training"; in training the model returns a loss, or a tensor whose mean square is one.
    attach: compiles parts of a model and returns the call that runs the program.
    alone: whether code for one size alone can be compared: not where one call meets many sizes, as generation does.
    compilations: the most that one mode may compile over `few`, in all frames together: for the first sizes, and for
        each call in which further dimensions differ.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[..., Inputs]
    sizes: tuple[Size, ...]
    few: tuple[Size, ...]
    modes: tuple[str, ...]
    attach: Callable[[nn.Module, Compile], Call]
    alone: bool
    compilations: int
    unit: Callable[[Size], int]

    def model(self, mode: str) -> nn.Module:
        """A new model with the same weights each time."""
        torch.manual_seed(0)
        return self.build().train(mode == "training")

    def arguments(self, size: Size) -> Inputs:
        torch.manual_seed(zlib.crc32(repr(size).encode()))
        return self.inputs(*size)

    def step(self, mode: str, model: nn.Module, compile_: Compile) -> Call:
        """One call in inference; in training forward, loss and backward, which gives the loss and all gradients."""
        call = self.attach(model, compile_)
        return call if mode == "inference" else _training_step(model, call)


PROGRAMS: dict[str, Program] = {}


def program(
    *,
    inputs: Callable[..., Inputs],
    sizes: tuple[Size, ...],
    few: tuple[Size, ...] | None = None,
    modes: tuple[str, ...] = ("inference", "training"),
    attach: Callable[[nn.Module, Compile], Call] = forward,
    alone: bool = True,
    compilations: int = 3,
    unit: Callable[[Size], int] = lambda size: 1,
) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    """Registers the decorated builder under its own name."""

    def register(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        name = build.__name__
        assert name not in PROGRAMS, name
        few_ = few or sizes[:4]
        PROGRAMS[name] = Program(name, build, inputs, sizes, few_, modes, attach, alone, compilations, unit)
        return build

    return register


def programs() -> dict[str, Program]:
    """All programs that this machine has the libraries for, by name."""
    for name in _FILES:
        importlib.import_module(f"benchmarks.dynamic.programs.{name}")
    return PROGRAMS


def _training_step(model: nn.Module, call: Call) -> Call:
    parameters = [one for one in model.parameters() if one.requires_grad]

    def step(inputs: Inputs) -> Any:
        for parameter in parameters:
            parameter.grad = None
        result = call(inputs)
        loss = getattr(result, "loss", result)
        if loss.dim():
            loss = loss.square().mean()
        loss.backward()
        return [loss.detach(), *(parameter.grad for parameter in parameters if parameter.grad is not None)]

    return step
