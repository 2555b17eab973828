"""Python's `random` in captured code: numbers are drawn ahead of the graph, once in each call and in the program's
order, so that the generator's state goes on as in eager. Where something is decided from them there is one graph for
each way, if these are few, under a guard that looks at what a copy of the generator gives. A generator that was seeded
by a constant gives constants. Everything else breaks the graph and runs as it is.
"""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import Source
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.interpreter.mutations import MutationLog
from stator.dynamo.interpreter.rng_prediction import MOST_WAYS, Drawn
from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, GetItem, Load, Recipe
from stator.dynamo.values.base import NotConstant, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import ListValue, TupleValue
from stator.dynamo.values.containers.slices import RangeValue, SliceValue
from stator.dynamo.values.objects import ObjectValue, c_methods
from stator.dynamo.values.symbolic_numbers import FromRandom, SymbolicNumber

if TYPE_CHECKING:
    from stator.dynamo.interpreter.capture_context import CaptureContext
    from stator.dynamo.interpreter.reconstruction import Reconstructor


class MadeGenerator(ObjectValue):
    """A `random.Random` that captured code made of a constant: `shadow` draws the numbers that it would."""

    __slots__ = ("shadow",)

    def __init__(self, shadow: random.Random) -> None:
        super().__init__(random.Random)
        self.shadow = shadow

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        made = CallRecipe(ConstantRecipe(_restored), [ConstantRecipe(self.shadow.getstate())])
        reconstructor.remember(self, made)
        reconstructor.fill(self, made)
        return made


class DrawnState(Value):
    """What `getstate` gives where only the run knows it."""

    __slots__ = ("origin",)

    def __init__(self, origin: Recipe) -> None:
        self.source = None
        self.origin = origin

    def python_type(self, context: CaptureContext) -> type:
        return tuple

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return self.origin


def _restored(state: Any) -> random.Random:
    made = random.Random(0)
    made.setstate(state)
    return made


@calls(random.Random)
def _make(context: CaptureContext, seed: Value | None = None) -> Value:
    if seed is None or context.is_none(seed):
        raise unsupported("call-builtin", "a generator that the system seeds")
    return MadeGenerator(context.run_real(random.Random, (context.constant_of(seed, "a seed"),)))


def _shadow(context: CaptureContext, generator: Value) -> random.Random | None:
    """What stands for the generator where its state is known."""
    if isinstance(generator, MadeGenerator):
        return generator.shadow
    return context.random.shadows.get(generator.source)  # type: ignore[arg-type]


def draw_ahead(context: CaptureContext, function: Any, generator: Value, arguments: list[Recipe]) -> CallRecipe:
    """What `function(generator, *arguments)` gives when the graph is about to run."""
    recorder = context.recorder
    if not isinstance(generator, ObjectValue) or generator.source is None:
        raise unsupported("call-builtin", "a random number of a generator that was made in the captured code")
    once = context.in_the_call and recorder.region is None
    if not once or recorder.transforms or type(context.mutations) is not MutationLog:
        raise unsupported("call-builtin", "a random number where the code runs later, or more than once")
    draw = CallRecipe(ConstantRecipe(function), [Load(generator.source), *arguments])
    context.draws.append(draw)
    _note(context, generator.source)
    plain = all(isinstance(one, ConstantRecipe) for one in arguments) and type(generator.obj) is random.Random
    drawn = Drawn(function, tuple(one.value for one in arguments)) if plain else None  # type: ignore[attr-defined]
    context.random.add(draw, generator.source, drawn)
    return draw


def _note(context: CaptureContext, source: Source) -> None:
    """The generator is drawn from, or set. It is none of the others under another name: its state may be known, and
    draws from it are counted."""
    if source not in context.generators_drawn:
        for other in context.generators_drawn:
            context.guard(source, GuardKind.DISTINCT, other)
    context.generators_drawn[source] = Load(source)


def whole_ahead(context: CaptureContext, draw: Recipe) -> Value:
    """A whole number: an input, of which the graph makes one that only the run can tell."""
    number = SymbolicNumber(FromRandom(CallRecipe(ConstantRecipe(float), [draw])))
    whole = context.record_method("to", [context.recorder.numbers.tensor(number), ConstantValue(torch.int64)], {})
    return context.call_tensor_method(whole, "item", [], {})  # type: ignore[arg-type]


def float_ahead(context: CaptureContext, function: Any, generator: Value, arguments: list[Any]) -> Value:
    shadow = _shadow(context, generator)
    if shadow is not None:
        return ConstantValue(context.run_real(function, (shadow, *arguments)))
    return SymbolicNumber(FromRandom(draw_ahead(context, function, generator, list(map(ConstantRecipe, arguments)))))


@c_methods.register(random.Random.random)
def _random(context: CaptureContext, generator: Value) -> Value:
    return float_ahead(context, random.Random.random, generator, [])


@c_methods.register(random.Random.getrandbits)
def _getrandbits(context: CaptureContext, generator: Value, count: Value) -> Value:
    return _drawn_whole(context, random.Random.getrandbits, generator, [context.constant_of(count, "a number of bits")])


_EXACT = 2**53  # whole numbers up to here are floats


def _drawn_whole(context: CaptureContext, function: Any, generator: Value, arguments: list[Any]) -> Value:
    shadow = _shadow(context, generator)
    if shadow is not None:
        return ConstantValue(context.run_real(function, (shadow, *arguments)))
    context.run_real(function, (random.Random(0), *arguments))  # raises where the program's does
    bits = function is random.Random.getrandbits
    largest = 2 ** arguments[0] if bits else max(abs(one) for one in arguments)
    if largest > _EXACT or (bits and not arguments[0]):
        raise unsupported("call-builtin", "random whole numbers of that many bits")
    return whole_ahead(context, draw_ahead(context, function, generator, list(map(ConstantRecipe, arguments))))


# ---- methods written in Python, which are called as one where the generator's class is random.Random ----


def _method(name: str) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Decorator: `handler(tracer, generator, *args, **kwargs)`; instances of subclasses are followed instead."""
    function = getattr(random.Random, name)

    def decorate(handler: Callable[..., Value]) -> Callable[..., Value]:
        def known_class(context: CaptureContext, generator: Value, *args: Value, **kwargs: Value) -> Value:
            if generator.python_type(context) is random.Random:
                return context.call_handler(handler, [generator, *args], kwargs)
            return context.inline(context.known(function), [generator, *args], kwargs)  # type: ignore[arg-type]

        calls(function)(known_class)
        return handler

    return decorate


def _numbers(context: CaptureContext, args: tuple[Value, ...], kwargs: dict[str, Value], name: str) -> list[Any]:
    if kwargs:
        raise unsupported("call-builtin", f"random.{name} with arguments by keyword")
    return [context.constant_of(arg, f"an argument of random.{name}") for arg in args]


def _register_float(name: str) -> None:
    function = getattr(random.Random, name)

    @_method(name)
    def handler(context: CaptureContext, generator: Value, *args: Value, **kwargs: Value) -> Value:
        arguments = _numbers(context, args, kwargs, name)
        if _shadow(context, generator) is None:
            example = context.run_real(function, (random.Random(0), *arguments))  # raises where the program's does
            if type(example) is not float:
                raise unsupported("call-builtin", f"random.{name} that gives no float")
        return float_ahead(context, function, generator, arguments)


for _name in ("gauss", "normalvariate", "lognormvariate", "expovariate", "triangular", "betavariate", "gammavariate"):
    _register_float(_name)
for _name in ("vonmisesvariate", "paretovariate", "weibullvariate"):
    _register_float(_name)


def _register_whole(name: str) -> None:
    function = getattr(random.Random, name)

    @_method(name)
    def handler(context: CaptureContext, generator: Value, *args: Value, **kwargs: Value) -> Value:
        arguments = _numbers(context, args, kwargs, name)
        if not all(type(one) is int for one in arguments):
            raise unsupported("call-builtin", f"random.{name} of something else than whole numbers")
        return _drawn_whole(context, function, generator, arguments)


_register_whole("randint")
_register_whole("randrange")


# ---- of items ----


def _index(generator: random.Random, count: int) -> int:
    return generator._randbelow(count)  # type: ignore[attr-defined,no-any-return]


def _order(generator: random.Random, count: int) -> tuple[int, ...]:
    order = list(range(count))
    generator.shuffle(order)
    return tuple(order)


def _sampled(generator: random.Random, count: int, taken: int) -> tuple[int, ...]:
    return tuple(generator.sample(range(count), taken))


def _decided(context: CaptureContext, function: Any, generator: Value, arguments: list[int], ways: int) -> Any:
    """Indices that the generator decides on, if there are few ways; None if there are many."""
    shadow = _shadow(context, generator)
    if shadow is not None:
        return function(shadow, *arguments)
    if context.random.ways * ways > MOST_WAYS:
        return None
    draw = draw_ahead(context, function, generator, list(map(ConstantRecipe, arguments)))
    found = context.random.decided(context, draw, generator, ways)
    if found is None:
        raise unsupported("call-builtin", "a decision by a random number behind another state of the generator")
    return found


def _plain_numbers(items: list[Value]) -> list[Any] | None:
    """Of constants that are all floats, or all small whole numbers."""
    try:
        found = [item.constant() for item in items if isinstance(item, ConstantValue)]
    except NotConstant:
        return None
    if len(found) != len(items) or not found:
        return None
    if all(type(one) is float and math.isfinite(one) for one in found):
        return found
    return found if all(type(one) is int and abs(one) < _EXACT for one in found) else None


def _number(context: CaptureContext, draw: Recipe, kind: type) -> Value:
    return SymbolicNumber(FromRandom(draw)) if kind is float else whole_ahead(context, draw)


def _items(context: CaptureContext, value: Value, name: str) -> list[Value]:
    if isinstance(value, ConstantValue) and type(value.value) is str:
        return [ConstantValue(one) for one in value.value]
    if not isinstance(value, (ListValue, TupleValue, RangeValue)):
        raise unsupported("call-builtin", f"random.{name} of {value.describe(context)}")
    if isinstance(value, (ListValue, TupleValue)) and value.cls not in (list, tuple):
        raise unsupported("call-builtin", f"random.{name} of {value.describe(context)}")
    return list(context.iterate(value))


@_method("choice")
def _choice(context: CaptureContext, generator: Value, seq: Value) -> Value:
    items = _items(context, seq, "choice")
    if not items:
        raise context.raised(IndexError, _message(random.Random.choice, ()))
    index = _decided(context, _index, generator, [len(items)], len(items)) if _plain_numbers(items) is None else None
    shadow = _shadow(context, generator)
    if shadow is not None and index is None:
        index = _index(shadow, len(items))
    if index is not None:
        return items[index]
    numbers = _plain_numbers(items)
    if numbers is None:
        raise unsupported("call-builtin", "random.choice of many objects")
    return _number(
        context,
        draw_ahead(context, random.Random.choice, generator, [ConstantRecipe(tuple(numbers))]),
        type(numbers[0]),
    )


def _message(function: Any, seq: Any) -> str:
    try:
        function(random.Random(0), seq)
    except IndexError as error:
        return str(error)
    raise AssertionError("an empty sequence was chosen from")


def _rearranged(
    context: CaptureContext,
    generator: Value,
    items: list[Value],
    function: Any,
    arguments: list[int],
    ways: int,
    name: str,
) -> list[Value]:
    """The items at the indices that `function` draws: numbers stay unknown, other objects are decided on."""
    numbers = _plain_numbers(items)
    if numbers is None or _shadow(context, generator) is not None:
        order = _decided(context, function, generator, arguments, ways)
        if order is None:
            raise unsupported("call-builtin", f"random.{name} of many objects")
        return [items[at] for at in order]
    order_drawn = draw_ahead(context, function, generator, list(map(ConstantRecipe, arguments)))
    count = arguments[-1]
    table = ConstantRecipe(tuple(numbers))
    chosen = [
        CallRecipe(ConstantRecipe(operator.getitem), [table, GetItem(order_drawn, ConstantRecipe(at))])
        for at in range(count)
    ]
    return [_number(context, one, type(numbers[0])) for one in chosen]


@_method("shuffle")
def _shuffle(context: CaptureContext, generator: Value, x: Value) -> Value:
    if not isinstance(x, ListValue):
        raise unsupported("call-builtin", f"random.shuffle of {x.describe(context)}")
    items = _items(context, x, "shuffle")
    ways = math.factorial(len(items)) if len(items) < 5 else 1000
    arranged = _rearranged(context, generator, items, _order, [len(items)], ways, "shuffle") if items else []
    none = ConstantValue(None)
    x.set_item(context, SliceValue(none, none, none), ListValue(arranged))
    return none


@_method("sample")
def _sample(context: CaptureContext, generator: Value, population: Value, k: Value) -> Value:
    items = _items(context, population, "sample")
    taken = context.constant_of(k, "the number of samples")
    if type(taken) is not int or not 0 <= taken <= len(items):
        context.run_real(random.Random(0).sample, (range(len(items)), taken))  # which raises
    if not taken:
        return ListValue([])
    ways = math.perm(len(items), taken) if len(items) < 20 else 1000
    return ListValue(_rearranged(context, generator, items, _sampled, [len(items), taken], ways, "sample"))


# ---- the state ----


@_method("seed")
def _seed(context: CaptureContext, generator: Value, a: Value | None = None, version: Value | None = None) -> Value:
    if a is None or context.is_none(a):
        raise unsupported("call-builtin", "random.seed() by the system")
    given = [context.constant_of(one, "a seed") for one in (a, version) if one is not None]
    shadow = random.Random(0)
    context.run_real(random.Random.seed, (shadow, *given))
    _know(context, generator, shadow)
    return ConstantValue(None)


def _know(context: CaptureContext, generator: Value, shadow: random.Random) -> None:
    """The state of the generator is known from here on; it is brought to it when the graph has run."""
    if isinstance(generator, MadeGenerator):
        generator.shadow = shadow
        return
    if not isinstance(generator, ObjectValue) or generator.source is None or not context.in_the_call:
        raise unsupported("call-builtin", "the state of a generator that cannot be reached")
    if context.recorder.transforms or context.recorder.region is not None:
        raise unsupported("call-builtin", "the state of a generator where code runs later, or more than once")
    context.random.shadows[generator.source] = shadow
    _note(context, generator.source)


@_method("getstate")
def _getstate(context: CaptureContext, generator: Value) -> Value:
    shadow = _shadow(context, generator)
    if shadow is not None:
        return context.known(shadow.getstate())
    return DrawnState(draw_ahead(context, random.Random.getstate, generator, []))


@_method("setstate")
def _setstate(context: CaptureContext, generator: Value, state: Value) -> Value:
    if isinstance(state, DrawnState):
        if _shadow(context, generator) is not None:
            raise unsupported("call-builtin", "random.setstate behind random.seed")
        draw_ahead(context, random.Random.setstate, generator, [state.origin])
        return ConstantValue(None)
    if not isinstance(state, TupleValue) or state.source is not None:
        raise unsupported("call-builtin", "random.setstate of a state from outside")
    shadow = random.Random(0)
    context.run_real(random.Random.setstate, (shadow, context.constant_of(state, "a state")))
    _know(context, generator, shadow)
    return ConstantValue(None)
