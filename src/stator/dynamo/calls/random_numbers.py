"""Python's `random` in captured code: floats are drawn ahead of the graph, once in each call and in the program's
order, so that the generator's state goes on as in eager. Everything else of `random` breaks the graph and runs as it
is."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

from ..mutations import MutationLog
from ..recipe import CallRecipe, Constant, Load
from ..values.base import Value, unsupported
from ..values.objects import ObjectValue, c_methods, functions_in_c
from ..values.read_numbers import ReadNumberValue

if TYPE_CHECKING:
    from ..tracer import Tracer


def _drawn(tracer: Tracer, function: Any, generator: Value, arguments: list[Any]) -> Value:
    """The float that `function(generator, *arguments)` gives when the graph is about to run."""
    recorder = tracer.recorder
    if not isinstance(generator, ObjectValue) or generator.source is None:
        raise unsupported("call-builtin", "a random number of a generator that was made in the captured code")
    once = tracer.in_the_call and recorder.region is None
    if not once or recorder.transforms or type(tracer.mutations) is not MutationLog:
        raise unsupported("call-builtin", "a random number where the code runs later, or more than once")
    draw = CallRecipe(Constant(function), [Load(generator.source), *map(Constant, arguments)])
    tracer.draws.append(draw)
    tracer.generators_drawn[generator.source] = Load(generator.source)
    drawn = ReadNumberValue(recorder.drawn_placeholder("random", draw), draw)
    tracer.numbers[draw] = drawn  # so that arithmetic looks for it
    return drawn


@c_methods.register(random.Random.random)
def _random(tracer: Tracer, generator: Value) -> Value:
    return _drawn(tracer, random.Random.random, generator, [])


def _register_numpy(name: str, most: int) -> None:
    """A method of numpy.random.RandomState that gives one float, for up to so many numbers as arguments. NumPy loads
    numpy.random when it is first asked for, so it is known by name."""

    def handler(tracer: Tracer, generator: Value, *args: Value) -> Value:
        arguments = [tracer.constant_of(arg, f"an argument of numpy.random.{name}") for arg in args]
        plain = all(type(number) in (int, float) and 0 <= number < math.inf for number in arguments)
        if len(arguments) > most or not plain:
            raise unsupported("call-builtin", f"these arguments of numpy.random.{name}")
        function = getattr(generator.python_type(tracer), name)
        return _drawn(tracer, function, generator, arguments)

    functions_in_c.register(("numpy.random", f"RandomState.{name}"))(handler)


for _name, _most in {"rand": 0, "random": 0, "random_sample": 0, "uniform": 2, "normal": 2, "randn": 0}.items():
    _register_numpy(_name, _most)
