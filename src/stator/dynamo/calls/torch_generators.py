"""Seeds and states of torch's random number generators in captured code, and tensors drawn from a generator of the
program's. What comes before the graph draws anything is done ahead of it, in the program's order, as Python's random
numbers are; a state that is set behind that is set when the graph has run, if nothing else is drawn there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..calling import calls, torch_answer
from ..guard import GuardKind
from ..mutations import MutationLog
from ..recipe import CallRecipe, Constant, Evaluate, Load, Recipe
from ..source import ConstantSource
from ..values.base import Value, unsupported
from ..values.constants import ConstantValue, SourcedConstant
from ..values.objects import ObjectValue, c_methods
from ..values.sequences import ListValue

if TYPE_CHECKING:
    from ..exits import ExitBuilder
    from ..tracer import Tracer

_DEFAULT = torch.default_generator


class DrawnObject(Value):
    """What such a call gives: a state, a generator. Good for nothing else than for these calls."""

    __slots__ = ("cls", "origin")

    def __init__(self, origin: Recipe, cls: type) -> None:
        self.source = None
        self.origin = origin
        self.cls = cls

    def python_type(self, tracer: Tracer) -> type:
        return self.cls

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if self.cls is torch.Generator and name in _METHODS:
            return GeneratorMethod(self, name)
        return super().get_attr(tracer, name)

    def recipe(self, exits: ExitBuilder) -> Recipe:
        return self.origin


class GeneratorMethod(Value):
    """A method of a generator that was made in the captured code."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: DrawnObject, name: str) -> None:
        self.source = None
        self.owner = owner
        self.name = name

    def python_type(self, tracer: Tracer) -> type:
        return type(_DEFAULT.seed)

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if kwargs:
            raise unsupported("call-builtin", f"Generator.{self.name} with arguments by keyword")
        return _METHODS[self.name](tracer, self.owner, *args)


def _ahead(tracer: Tracer, function: Any, arguments: list[Recipe], *, may_follow: bool = False) -> CallRecipe:
    """The call, made before the graph runs; `may_follow`: or, if that has drawn numbers by then, behind it."""
    recorder = tracer.recorder
    once = tracer.in_the_call and recorder.region is None and not recorder.transforms
    if not once or type(tracer.mutations) is not MutationLog:
        raise unsupported("call-builtin", "a generator's state where the code runs later, or more than once")
    call = CallRecipe(Constant(function), arguments)
    footprint = recorder.mode.footprint
    if not footprint.drawn_on and footprint.closed_at is None:
        tracer.draws.append(call)
    elif may_follow:
        footprint.closed_at = tracer.end_step() if footprint.closed_at is None else footprint.closed_at
        tracer.trailing.append(Evaluate(call))
    else:
        raise unsupported("call-builtin", "the state of torch's generator behind numbers that were drawn from it")
    return call


_SOURCE = ConstantSource("torch.default_generator", _DEFAULT)


def _default(tracer: Tracer) -> None:
    """Where the graph fails the default generator is put back."""
    tracer.generators_drawn[_SOURCE] = Constant(_DEFAULT)


def _seed(tracer: Tracer, seed: Value) -> Recipe:
    if isinstance(seed, SourcedConstant) and type(seed.peek()) is int and not seed.guarded:
        tracer.guards.presence(seed)
        return Load(seed.source)  # type: ignore[arg-type]
    return Constant(tracer.constant_of(seed, "a seed"))


@calls(torch.random.manual_seed)
def _manual_seed(tracer: Tracer, seed: Value) -> Value:
    _default(tracer)
    call = _ahead(tracer, torch.manual_seed, [_seed(tracer, seed)], may_follow=True)
    return DrawnObject(call, torch.Generator)


@calls(torch.get_rng_state)
def _get_rng_state(tracer: Tracer) -> Value:
    _default(tracer)
    return DrawnObject(_ahead(tracer, torch.get_rng_state, []), torch.Tensor)


@calls(torch.set_rng_state)
def _set_rng_state(tracer: Tracer, state: Value) -> Value:
    _default(tracer)
    if not isinstance(state, DrawnObject):
        raise unsupported("call-builtin", "torch.set_rng_state of a tensor")
    _ahead(tracer, torch.set_rng_state, [state.origin], may_follow=True)
    return ConstantValue(None)


@calls(torch.accelerator.current_accelerator)
def _current_accelerator(tracer: Tracer, check_available: Value | None = None) -> Value:
    arguments = () if check_available is None else (tracer.constant_of(check_available, "an argument"),)
    return ConstantValue(torch.accelerator.current_accelerator(*arguments))


@calls(torch.get_device_module)
def _get_device_module(tracer: Tracer, device: Value | None = None) -> Value:
    name = None if device is None else tracer.constant_of(device, "a device")
    return tracer.known(tracer.run_real(torch.get_device_module, (name,)))


# ---- generators ----


def _generator(tracer: Tracer, value: Value) -> Recipe:
    if isinstance(value, DrawnObject):
        return value.origin
    if not isinstance(value, ObjectValue) or value.source is None or value.cls is not torch.Generator:
        raise unsupported("call-builtin", "a random number generator that cannot be reached")
    if value.obj is _DEFAULT:
        raise unsupported("call-builtin", "torch's default generator by itself")
    tracer.guard(value.source, GuardKind.DISTINCT, _SOURCE)
    found = Load(value.source)
    tracer.generators_drawn[value.source] = found
    return found


@calls(torch.Generator)
def _make(tracer: Tracer, device: Value | None = None) -> Value:
    arguments: list[Recipe] = [] if device is None else [Constant(tracer.constant_of(device, "a device"))]
    return DrawnObject(_drawn_from(tracer, torch.Generator, arguments), torch.Generator)


def _drawn_from(tracer: Tracer, function: Any, arguments: list[Recipe]) -> CallRecipe:
    """The same for a generator that the graph draws nothing from."""
    recorder = tracer.recorder
    once = tracer.in_the_call and recorder.region is None and not recorder.transforms
    if not once or type(tracer.mutations) is not MutationLog:
        raise unsupported("call-builtin", "a random number where the code runs later, or more than once")
    call = CallRecipe(Constant(function), arguments)
    tracer.draws.append(call)
    return call


def _method_manual_seed(tracer: Tracer, owner: Value, seed: Value) -> Value:
    _drawn_from(tracer, torch.Generator.manual_seed, [_generator(tracer, owner), _seed(tracer, seed)])
    return owner


def _method_get_state(tracer: Tracer, owner: Value) -> Value:
    return DrawnObject(_drawn_from(tracer, torch.Generator.get_state, [_generator(tracer, owner)]), torch.Tensor)


def _method_set_state(tracer: Tracer, owner: Value, state: Value) -> Value:
    if not isinstance(state, DrawnObject):
        raise unsupported("call-builtin", "Generator.set_state of a tensor")
    _drawn_from(tracer, torch.Generator.set_state, [_generator(tracer, owner), state.origin])
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


def _from_a_generator(tracer: Tracer, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    given = kwargs.get("generator")
    if given is None or tracer.is_none(given) or fn not in _FACTORIES:
        return None
    origin = _generator(tracer, given)
    named = {name: tracer.constant_of(arg, "an option") for name, arg in kwargs.items() if name != "generator"}
    if named.get("out") is not None or named.get("requires_grad"):
        raise unsupported("call-builtin", f"torch.{fn.__name__} with out= or requires_grad=")
    plain = [_constant(tracer, arg) for arg in args]
    device = torch.device(named.get("device") or torch.get_default_device())
    example = tracer.run_real(fn, tuple(plain), {**named, "generator": torch.Generator(device)})
    call = _drawn_from(tracer, fn, [Constant(one) for one in plain])
    call.kwargs.update({**{name: Constant(value) for name, value in named.items()}, "generator": origin})
    tracer.recorder.op_count += 1  # there is a graph, if only to give it back
    return tracer.recorder.drawn_tensor(fn.__name__, call, example)


def _constant(tracer: Tracer, value: Value) -> Any:
    if isinstance(value, ListValue):
        return tuple(tracer.constant_of(item, "a size") for item in tracer.iterate(value))
    return tracer.constant_of(value, "an argument of a random operator")


torch_answer.insert(0, _from_a_generator)
