"""Python's `random` in captured code: numbers of `random`, `uniform`, `randint` and `randrange` are drawn ahead of the
graph, once in each call and in the program's order, so that the generator's state goes on as in eager. So are the
floats of `numpy.random.random` and `numpy.random.uniform`, by which speech models skip layers. Other methods break the
graph, and so does a decision by a number.
"""

from __future__ import annotations

import random
from types import FunctionType
from typing import Any

import torch

from stator.dynamo.graph.mutations import MutationLog
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.host.naming import class_name
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Load
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.objects import ObjectValue, c_methods, cython_functions


def _draw_ahead(context: CaptureContext, function: Any, generator: Value, arguments: list[Any]) -> CallRecipe:
    """Calls `function(generator, *arguments)` ahead of the graph."""
    recorder = context.recorder
    if not isinstance(generator, ObjectValue) or generator.source is None:
        raise unsupported("call-builtin", "a random number of a generator that captured code made")
    once = context.in_the_call and recorder.region is None
    if not once or recorder.transforms or type(context.mutations) is not MutationLog:
        raise unsupported("call-builtin", "a random number where the code runs later, or more than once")
    draw = CallRecipe(ConstantRecipe(function), [Load(generator.source), *map(ConstantRecipe, arguments)])
    context.draws.append(draw)
    if generator.source not in context.generators_drawn:
        for other in context.generators_drawn:  # guards count the draws of each generator
            context.guard(generator.source, GuardKind.DISTINCT, other)
    context.generators_drawn[generator.source] = Load(generator.source)
    return draw


@c_methods.register(random.Random.random)
def _random(context: CaptureContext, generator: Value) -> Value:
    draw = _draw_ahead(context, random.Random.random, generator, [])
    return context.recorder.numbers.computed_ahead(draw, 0.0, 1.0 - 2.0**-53)


_EXACT = 2**53  # floats represent whole numbers up to this one


def _register_whole(function: Any) -> None:
    @calls(function)
    def handler(context: CaptureContext, generator: Value, *args: Value) -> Value:
        arguments = [context.constant_of(arg, "an argument of random") for arg in args]
        plain = generator.python_type(context) is random.Random
        if not plain or not all(type(one) is int and abs(one) <= _EXACT for one in arguments):
            raise unsupported("call-builtin", f"random.{function.__name__} of something else than small whole numbers")
        context.run_real(function, (random.Random(0), *arguments))  # raises the errors of wrong arguments
        drawn = CallRecipe(ConstantRecipe(float), [_draw_ahead(context, function, generator, arguments)])
        number = context.recorder.numbers.tensor(context.recorder.numbers.computed_ahead(drawn))
        whole = context.record_method("to", [number, ConstantValue(torch.int64)], {})
        return context.call_tensor_method(whole, "item", [], {})  # type: ignore[arg-type]


def _register_numpy(name: str) -> None:
    # NumPy loads numpy.random when a program first uses it, so its class is known by name.
    @cython_functions.register(("numpy.random", f"RandomState.{name}"))
    def handler(context: CaptureContext, generator: Value, *args: Value) -> Value:
        arguments = [context.constant_of(arg, "an argument of numpy.random") for arg in args]
        kind: Any = generator.python_type(context)
        if not all(type(one) in (int, float) for one in arguments) or class_name(kind) != "RandomState":
            raise unsupported("call-builtin", f"numpy.random.{name} of something else than numbers")
        if type(getattr(kind(0), name)(*arguments)) is not float:
            raise unsupported("call-builtin", f"an array of numpy.random.{name}")
        return context.recorder.numbers.computed_ahead(_draw_ahead(context, getattr(kind, name), generator, arguments))


def _register_break(function: Any) -> None:
    @calls(function)
    def handler(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
        raise unsupported("call-builtin", f"random.{function.__name__}")


_register_numpy("random")
_register_numpy("uniform")
_register_break(random.Random)
_WHOLE = {random.Random.randint, random.Random.randrange}

for _function in {one for one in vars(random.Random).values() if type(one) is FunctionType}:
    if _function in _WHOLE:
        _register_whole(_function)
    elif _function is not random.Random.uniform:  # capture follows its Python code
        _register_break(_function)
