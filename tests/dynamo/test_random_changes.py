"""Random histories of a model: it follows whatever changes between calls that a capture may have relied on.

Two equal worlds live the same history, one of them compiled. After each change both are called, and everything that can
be seen is compared: results, buffers, what hooks wrote down, gradients.
"""

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import stator

HISTORIES = int(os.environ.get("STATOR_TEST_EXAMPLES", "40"))
LENGTH = 14
OPTIONS = {"recompile_limit": 100}  # beyond it, eager would compare with eager


class Doubled(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * 2


class Block(nn.Module):
    gain = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(()))
        self.options: dict[str, Any] = {"act": "relu", "times": 1}
        self.scales = [1.0, 2]
        self.calls = 0
        self.mode: str | None = None

    def activate(self, x: torch.Tensor) -> torch.Tensor:
        return getattr(torch, self.options["act"])(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen += 1
        x = self.linear(x) * self.gain
        for scale in self.scales:
            x = x * scale
        for _ in range(self.options["times"]):
            x = self.activate(x)
        if self.training:
            x = x + 1
        if self.mode is not None and self.mode.startswith("a"):
            x = x - len(self.mode)
        return x


class Model(nn.Module):
    def __init__(self, environment: dict[str, Any], log: list[Any]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm = nn.BatchNorm1d(3)
        self.environment, self.log = environment, log
        self.extra: nn.Module | None = None

    def forward(self, x: torch.Tensor, shift: float = 0.5) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        if self.extra is not None:
            x = self.extra(x)
        if torch.is_grad_enabled():
            x = x + self.environment["bias"]
        if torch.get_default_dtype() is torch.float64:
            x = x + torch.ones(()).to(x.dtype)
        if torch.is_autocast_enabled("cpu"):
            x = x - 1
        if torch.are_deterministic_algorithms_enabled():
            x = x * 1.5
        return self.norm(x) + shift


class World:
    def __init__(self, seed: int, compiled: bool) -> None:
        torch.manual_seed(seed)
        self.log: list[Any] = []
        self.environment = {"bias": 1.0}
        self.model = Model(self.environment, self.log)
        self.call: Any = stator.compile(self.model, backend="eager", options=OPTIONS) if compiled else self.model
        self.handles: list[Any] = []
        self.grad, self.autocast, self.dtype, self.deterministic, self.threads = True, False, torch.float32, False, 1
        self.shape, self.kwargs = (4, 3), {}


Change = Callable[[World, random.Random], None]
CHANGES: list[Change] = []


def change(function: Change) -> Change:
    CHANGES.append(function)
    return function


def block_of(world: World, random: random.Random) -> Any:
    return random.choice(list(world.model.blocks))


@change
def an_attribute(world: World, random: random.Random) -> None:
    block_of(world, random).mode = random.choice([None, "a", "abc", "b"])


@change
def an_option(world: World, random: random.Random) -> None:
    block_of(world, random).options[random.choice(["act", "act", "other"])] = random.choice(["relu", "sin", "tanh"])


@change
def a_count(world: World, random: random.Random) -> None:
    block_of(world, random).options["times"] = random.randint(0, 2)


@change
def a_list(world: World, random: random.Random) -> None:
    scales = block_of(world, random).scales
    random.choice([lambda: scales.append(random.choice([1, 2.0])), lambda: scales.clear(), scales.reverse])()


@change
def a_list_of_its_own(world: World, random: random.Random) -> None:
    shared = [random.choice([0.5, 3])]
    for block in world.model.blocks:
        block.scales = shared


@change
def training(world: World, random: random.Random) -> None:
    random.choice([world.model, block_of(world, random)]).train(random.random() < 0.5)


@change
def grad_mode(world: World, random: random.Random) -> None:
    world.grad = not world.grad


@change
def autocast(world: World, random: random.Random) -> None:
    world.autocast = not world.autocast


@change
def default_dtype(world: World, random: random.Random) -> None:
    world.dtype = random.choice([torch.float32, torch.float64])


@change
def determinism(world: World, random: random.Random) -> None:
    world.deterministic = not world.deterministic


@change
def environment(world: World, random: random.Random) -> None:
    world.environment["bias"] = random.choice([1.0, 2.0, 3, 0.25])


@change
def forward_hook(world: World, random: random.Random) -> None:
    def hook(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        world.log.append(("forward", tuple(output.shape)))
        return output + 1

    world.handles.append(block_of(world, random).linear.register_forward_hook(hook))


@change
def forward_pre_hook(world: World, random: random.Random) -> None:
    factor = random.choice([1, 2])

    def hook(module: nn.Module, args: Any) -> Any:
        world.log.append("before")
        return (args[0] * factor,)

    world.handles.append(block_of(world, random).register_forward_pre_hook(hook, prepend=random.random() < 0.5))


@change
def backward_hook(world: World, random: random.Random) -> None:
    def hook(module: nn.Module, given: Any, made: Any) -> Any:
        world.log.append(("backward", tuple(made[0].shape)))
        return tuple(None if gradient is None else gradient * 2 for gradient in given)

    world.handles.append(block_of(world, random).register_full_backward_hook(hook))


@change
def parameter_hook(world: World, random: random.Random) -> None:
    bias = block_of(world, random).linear.bias
    if bias is not None and bias.requires_grad:
        world.handles.append(bias.register_hook(lambda gradient: gradient * 3))


@change
def without_a_hook(world: World, random: random.Random) -> None:
    if world.handles:
        world.handles.pop(random.randrange(len(world.handles))).remove()


@change
def a_submodule(world: World, random: random.Random) -> None:
    torch.manual_seed(random.randint(0, 9))
    block_of(world, random).linear = random.choice([nn.Linear(3, 3), nn.Linear(3, 3, bias=False), nn.Linear(3, 3)])


@change
def another_block(world: World, random: random.Random) -> None:
    torch.manual_seed(random.randint(0, 9))
    if len(world.model.blocks) < 4 and random.random() < 0.6:
        world.model.blocks.append(Block())
    elif len(world.model.blocks) > 1:
        del world.model.blocks[0]


@change
def an_extra_module(world: World, random: random.Random) -> None:
    world.model.extra = random.choice([None, nn.Sigmoid(), nn.Sequential(nn.Tanh())])


@change
def a_parametrization(world: World, random: random.Random) -> None:
    linear = block_of(world, random).linear
    if parametrize.is_parametrized(linear, "weight"):
        parametrize.remove_parametrizations(linear, "weight", leave_parametrized=False)
    else:
        parametrize.register_parametrization(linear, "weight", Doubled())


@change
def parameter_data(world: World, random: random.Random) -> None:
    for parameter in block_of(world, random).linear.parameters():
        parameter.data = parameter.data * random.choice([1.0, 0.5])


@change
def requires_grad(world: World, random: random.Random) -> None:
    block_of(world, random).linear.requires_grad_(random.random() < 0.5)


@change
def a_buffer(world: World, random: random.Random) -> None:
    block_of(world, random).seen = torch.tensor(random.choice([0.0, 5.0]))


@change
def a_method_of_the_instance(world: World, random: random.Random) -> None:
    block = block_of(world, random)
    if "activate" in vars(block):
        del block.activate
    else:
        block.activate = lambda x: x - 4


@change
def forward_of_the_instance(world: World, random: random.Random) -> None:
    block = block_of(world, random)
    if "forward" in vars(block):
        del block.forward
    else:
        block.forward = lambda x: block.linear(x) + 7


@change
def the_class_of_an_instance(world: World, random: random.Random) -> None:
    class Other(Block):
        gain = random.choice([1.0, 4.0])

        def activate(self, x: torch.Tensor) -> torch.Tensor:
            return x.cos()

    block = block_of(world, random)
    block.__class__ = Block if type(block) is not Block else Other


@change
def the_arguments(world: World, random: random.Random) -> None:
    world.shape = (random.choice([2, 4, 5]), 3)
    world.kwargs = random.choice([{}, {"shift": 2.0}, {"shift": 3}])


@change
def defaults_of_the_function(world: World, random: random.Random) -> None:
    Model.forward.__defaults__ = (random.choice([0.5, 0.75]),)


@change
def an_attribute_of_the_class(world: World, random: random.Random) -> None:
    Block.gain = random.choice([1.0, 3.0])


@change
def nothing(world: World, random: random.Random) -> None:
    pass


def observe(world: World, seed: int) -> list[Any]:
    """Call the model, take gradients if there are any, and give everything that can be seen afterwards."""
    x = torch.randn(*world.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    world.model.zero_grad()
    try:
        with torch.set_grad_enabled(world.grad), torch.autocast("cpu", enabled=world.autocast):
            result: Any = world.call(x, **world.kwargs)
        if result.requires_grad:
            result.square().sum().backward()
        result = result.detach()
    except Exception as error:
        result = (type(error).__name__, str(error))
    model = world.model
    gradients = [(name, parameter.grad) for name, parameter in model.named_parameters()]
    seen = [(block.calls, block.seen) for block in model.blocks]
    return [result, gradients, seen, list(model.buffers()), list(world.log)]


def live(compiled: bool, seed: int) -> list[list[Any]]:
    choices, world, found = random.Random(seed), World(seed, compiled), []
    try:
        for turn in range(LENGTH):
            name = "first" if turn == 0 else choices.choice(CHANGES)
            if callable(name):
                name(world, random.Random(choices.random()))
            torch.set_default_dtype(world.dtype)
            torch.use_deterministic_algorithms(world.deterministic)
            found.append([str(name), *observe(world, turn), *observe(world, turn + 100)])
    finally:
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        Model.forward.__defaults__ = (0.5,)
        Block.gain = 1.0
    return found


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and one.dtype == other.dtype
            and torch.allclose(one, other, rtol=1e-5, atol=1e-5, equal_nan=True)
        )
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@pytest.mark.filterwarnings("error:stator")
@pytest.mark.parametrize("part", range(4))
def test_a_compiled_model_follows_what_changes_between_calls(part: int) -> None:
    for seed in range(part, HISTORIES, 4):
        for turn, (expected, found) in enumerate(zip(live(False, seed), live(True, seed), strict=True)):
            assert same(found, expected), f"history {seed}, turn {turn}: {expected[0]}\n{found}\n{expected}"
