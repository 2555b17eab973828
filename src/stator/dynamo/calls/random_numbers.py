"""Python's `random` in captured code: floats are drawn ahead of the graph, once in each call and in the program's
order, so that the generator's state goes on as in eager. Everything else of `random` breaks the graph and runs as it
is."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from ..mutations import MutationLog
from ..recipe import CallRecipe, Constant, Load
from ..values.base import Value, unsupported
from ..values.objects import ObjectValue, c_methods
from ..values.read_numbers import ReadNumberValue

if TYPE_CHECKING:
    from ..tracer import Tracer


@c_methods.register(random.Random.random)
def _random(tracer: Tracer, generator: Value) -> Value:
    recorder = tracer.recorder
    if not isinstance(generator, ObjectValue) or generator.source is None:
        raise unsupported("call-builtin", "a random number of a generator that was made in the captured code")
    once = recorder.graph is recorder.root and recorder.region is None and tracer.later is None
    if not once or recorder.transforms or type(tracer.mutations) is not MutationLog:
        raise unsupported("call-builtin", "a random number where the code runs later, or more than once")
    draw = CallRecipe(Constant(random.Random.random), [Load(generator.source)])
    tracer.draws.append(draw)
    drawn = ReadNumberValue(recorder.drawn_placeholder("random", draw), draw)
    tracer.numbers[draw] = drawn  # so that arithmetic looks for it
    return drawn
