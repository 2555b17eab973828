"""Seeds and states of torch's random number generators in captured code, and tensors drawn from a generator of the
program's. What comes before the graph draws anything is done ahead of it, in the program's order, as Python's random
numbers are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from stator.dynamo.graph.mutations import MutationLog
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import ConstantSource
from stator.dynamo.interpreter.calling import calls, torch_answer
from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Load, Recipe
from stator.dynamo.values.base import Value, unsupported
from stator.dynamo.values.constants import ConstantValue, SourcedConstant
from stator.dynamo.values.containers.sequences import ListValue
from stator.dynamo.values.objects import ObjectValue, c_methods

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext, Reconstructor

_DEFAULT = torch.default_generator


class DrawnObject(Value):
    """What such a call gives: a state, a generator. Good for nothing else than for these calls."""

    __slots__ = ("cls", "origin")

    def __init__(self, origin: Recipe, cls: type) -> None:
        self.source = None
        self.origin = origin
        self.cls = cls

    def python_type(self, context: CaptureContext) -> type:
        return self.cls

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        if self.cls is torch.Generator and name in _METHODS:
            return TorchGeneratorMethod(self, name)
        return super().get_attr(context, name)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return self.origin


class TorchGeneratorMethod(Value):
    """A method of a generator that was made in the captured code."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: DrawnObject, name: str) -> None:
        self.source = None
        self.owner = owner
        self.name = name

    def python_type(self, context: CaptureContext) -> type:
        return type(_DEFAULT.seed)

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if kwargs:
            raise unsupported("call-builtin", f"Generator.{self.name} with arguments by keyword")
        return _METHODS[self.name](context, self.owner, *args)


def _ahead(context: CaptureContext, function: Any, arguments: list[Recipe]) -> CallRecipe:
    """The call, made before the graph runs."""
    recorder = context.recorder
    once = context.in_the_call and recorder.region is None and not recorder.transforms
    if not once or type(context.mutations) is not MutationLog:
        raise unsupported("call-builtin", "a generator's state where the code runs later, or more than once")
    call = CallRecipe(ConstantRecipe(function), arguments)
    if recorder.mode.footprint.drawn_on:
        raise unsupported("call-builtin", "the state of torch's generator behind numbers that were drawn from it")
    context.draws.append(call)
    return call


_SOURCE = ConstantSource("torch.default_generator", _DEFAULT)


def _default(context: CaptureContext) -> None:
    """Where the graph fails the default generator is put back."""
    context.generators_drawn[_SOURCE] = ConstantRecipe(_DEFAULT)


def _seed(context: CaptureContext, seed: Value) -> Recipe:
    if isinstance(seed, SourcedConstant) and type(seed.peek()) is int and not seed.guarded:
        context.guards.presence(seed)
        return Load(seed.source)  # type: ignore[arg-type]
    return ConstantRecipe(context.constant_of(seed, "a seed"))


@calls(torch.random.manual_seed)
def _manual_seed(context: CaptureContext, seed: Value) -> Value:
    _default(context)
    call = _ahead(context, torch.manual_seed, [_seed(context, seed)])
    return DrawnObject(call, torch.Generator)


@calls(torch.get_rng_state)
def _get_rng_state(context: CaptureContext) -> Value:
    _default(context)
    return DrawnObject(_ahead(context, torch.get_rng_state, []), torch.Tensor)


@calls(torch.set_rng_state)
def _set_rng_state(context: CaptureContext, state: Value) -> Value:
    _default(context)
    if not isinstance(state, DrawnObject):
        raise unsupported("call-builtin", "torch.set_rng_state of a tensor")
    _ahead(context, torch.set_rng_state, [state.origin])
    return ConstantValue(None)


@calls(torch.accelerator.current_accelerator)
def _current_accelerator(context: CaptureContext, check_available: Value | None = None) -> Value:
    arguments = () if check_available is None else (context.constant_of(check_available, "an argument"),)
    return ConstantValue(torch.accelerator.current_accelerator(*arguments))


@calls(torch.get_device_module)
def _get_device_module(context: CaptureContext, device: Value | None = None) -> Value:
    name = None if device is None else context.constant_of(device, "a device")
    return context.known(context.run_real(torch.get_device_module, (name,)))


# ---- generators ----


def _generator(context: CaptureContext, value: Value) -> Recipe:
    if isinstance(value, DrawnObject):
        return value.origin
    if not isinstance(value, ObjectValue) or value.source is None or value.cls is not torch.Generator:
        raise unsupported("call-builtin", "a random number generator that cannot be reached")
    if value.obj is _DEFAULT:
        raise unsupported("call-builtin", "torch's default generator by itself")
    context.guard(value.source, GuardKind.DISTINCT, _SOURCE)
    found = Load(value.source)
    context.generators_drawn[value.source] = found
    return found


@calls(torch.Generator)
def _make(context: CaptureContext, device: Value | None = None) -> Value:
    arguments: list[Recipe] = [] if device is None else [ConstantRecipe(context.constant_of(device, "a device"))]
    return DrawnObject(_drawn_from(context, torch.Generator, arguments), torch.Generator)


def _drawn_from(context: CaptureContext, function: Any, arguments: list[Recipe]) -> CallRecipe:
    """The same for a generator that the graph draws nothing from."""
    recorder = context.recorder
    once = context.in_the_call and recorder.region is None and not recorder.transforms
    if not once or type(context.mutations) is not MutationLog:
        raise unsupported("call-builtin", "a random number where the code runs later, or more than once")
    call = CallRecipe(ConstantRecipe(function), arguments)
    context.draws.append(call)
    return call


def _method_manual_seed(context: CaptureContext, owner: Value, seed: Value) -> Value:
    _drawn_from(context, torch.Generator.manual_seed, [_generator(context, owner), _seed(context, seed)])
    return owner


def _method_get_state(context: CaptureContext, owner: Value) -> Value:
    return DrawnObject(_drawn_from(context, torch.Generator.get_state, [_generator(context, owner)]), torch.Tensor)


def _method_set_state(context: CaptureContext, owner: Value, state: Value) -> Value:
    if not isinstance(state, DrawnObject):
        raise unsupported("call-builtin", "Generator.set_state of a tensor")
    _drawn_from(context, torch.Generator.set_state, [_generator(context, owner), state.origin])
    return owner


_METHODS: dict[str, Any] = {
    "manual_seed": _method_manual_seed,
    "get_state": _method_get_state,
    "set_state": _method_set_state,
}
for _name, _handler in _METHODS.items():
    c_methods.register(getattr(torch.Generator, _name))(_handler)

# tensors of constants and a generator alone: no operand that the graph computes
_FACTORIES = frozenset({torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal})


def _from_a_generator(context: CaptureContext, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    given = kwargs.get("generator")
    if given is None or context.is_none(given) or fn not in _FACTORIES:
        return None
    origin = _generator(context, given)
    named = {name: context.constant_of(arg, "an option") for name, arg in kwargs.items() if name != "generator"}
    if named.get("out") is not None or named.get("requires_grad"):
        raise unsupported("call-builtin", f"torch.{fn.__name__} with out= or requires_grad=")
    plain = [_constant(context, arg) for arg in args]
    device = torch.device(named.get("device") or torch.get_default_device())
    example = context.run_real(fn, tuple(plain), {**named, "generator": torch.Generator(device)})
    call = _drawn_from(context, fn, [ConstantRecipe(one) for one in plain])
    call.kwargs.update({**{name: ConstantRecipe(value) for name, value in named.items()}, "generator": origin})
    context.recorder.op_count += 1  # there is a graph, if only to give it back
    return context.recorder.drawn_tensor(fn.__name__, call, example)


def _constant(context: CaptureContext, value: Value) -> Any:
    if isinstance(value, ListValue):
        return tuple(context.constant_of(item, "a size") for item in context.iterate(value))
    return context.constant_of(value, "an argument of a random operator")


torch_answer.insert(0, _from_a_generator)
