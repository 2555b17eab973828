"""Random numbers of NumPy in captured code: floats, and arrays of known sizes, are drawn ahead of the graph, once in
each call and in the program's order, so that generators go on as in eager. Everything else breaks the graph."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from stator.base.signals import is_of_a_signal
from stator.dynamo.handlers.python_calls.random_numbers import draw_ahead, float_ahead, whole_ahead
from stator.dynamo.host.naming import class_name, module_of
from stator.dynamo.host.numpy_boundary import ARRAY, FOLLOWED, HELD, numpy
from stator.dynamo.values.base import Value, unsupported
from stator.dynamo.values.classes import ClassValue
from stator.dynamo.values.containers.sequences import SequenceValue
from stator.dynamo.values.objects import functions_in_c
from stator.dynamo.values.tensors.arrays import made

if TYPE_CHECKING:
    from stator.dynamo.interpreter.capture_context import CaptureContext

# NumPy loads numpy.random when it is first asked for, so its classes are known by name.
_STATE, _GENERATOR = ("numpy.random", "RandomState"), ("numpy.random._generator", "Generator")
_EXACT = 2**53  # whole numbers up to here are floats
_BOUNDED = ("randint", "integers", "choice", "binomial")  # give whole numbers no larger than their arguments
_FLOATS = {"rand": 0, "random": 0, "random_sample": 0, "uniform": 2, "normal": 2, "randn": 0}
_OF_BOTH = """
    random uniform normal standard_normal choice permutation exponential standard_exponential laplace logistic lognormal
    gumbel rayleigh beta gamma standard_gamma chisquare binomial poisson geometric triangular dirichlet multinomial
"""


def _register_numpy(cls: tuple[str, str], name: str, most: int | None = None) -> None:
    """A method of a class of NumPy's generators; `most`: it gives one float for up to so many numbers as arguments."""
    module, qualname = cls

    def handler(context: CaptureContext, generator: Value, *args: Value, **kwargs: Value) -> Value:
        arguments = [_argument(context, arg, name) for arg in args]
        named = {key: _argument(context, arg, name) for key, arg in kwargs.items()}
        kind = generator.python_type(context)
        if (module_of(kind).removesuffix(".mtrand"), class_name(kind)) != cls:
            raise unsupported("call-builtin", f"numpy.random.{name} of a generator of the program's own")
        plain = all(type(number) in (int, float) and 0 <= number < math.inf for number in arguments)
        if most is not None and len(arguments) <= most and not named and plain:
            return float_ahead(context, getattr(kind, name), generator, arguments)
        return _drawn_array(context, kind, name, generator, arguments, named)

    functions_in_c.register((module, f"{qualname}.{name}"))(handler)


def _argument(context: CaptureContext, value: Value, name: str) -> Any:
    value = context.realized(value)
    if isinstance(value, SequenceValue) and value.python_type(context) in (list, tuple):
        return tuple(_argument(context, item, name) for item in value.items)
    if isinstance(value, ClassValue):
        return value.cls
    return context.constant_of(value, f"an argument of numpy.random.{name}")


def _drawn_array(
    context: CaptureContext, kind: Any, name: str, generator: Value, arguments: list[Any], named: dict[str, Any]
) -> Value:
    """The array, or number, that a method gives when the graph is about to run. What it looks like is tried on another
    generator."""
    refused = unsupported("call-builtin", f"these arguments of numpy.random.{name}")
    other = kind(0) if class_name(kind) == _STATE[1] else numpy.random.default_rng(0)
    try:
        trial = getattr(kind, name)(other, *arguments, **named)
    except Exception as error:
        if is_of_a_signal(error):
            raise
        raise refused from None
    if type(trial) is float:
        return float_ahead(context, partial(_drawn, getattr(kind, name), tuple(arguments), named), generator, [])
    if type(trial) is int and name in _BOUNDED and all(map(_is_exact, (*arguments, *named.values()))):
        draw = draw_ahead(context, partial(_drawn, getattr(kind, name), tuple(arguments), named), generator, [])
        return whole_ahead(context, draw)
    known = type(trial) is ARRAY or isinstance(trial, numpy.generic)
    if not known or trial.dtype not in HELD or not trial.size:
        raise refused
    method = partial(_as_tensor, getattr(kind, name), tuple(arguments), named)
    draw = draw_ahead(context, method, generator, [])
    drawn = context.recorder.drawn_tensor("random", draw, _shared(trial))
    operator = context.record_method("detach", [drawn], {})  # so that there is a graph, if nothing else is computed
    return made(context, operator, scalar=type(trial) is not ARRAY)


def _is_exact(argument: Any) -> bool:
    """Whether it bounds no whole number that a float cannot hold."""
    if isinstance(argument, (int, float, numpy.number)):
        return bool(abs(argument) <= _EXACT)
    return argument is None or isinstance(argument, (type, str, numpy.dtype))


def _drawn(method: Any, arguments: tuple[Any, ...], named: dict[str, Any], generator: Any) -> Any:
    return method(generator, *arguments, **named)


def _as_tensor(*drawn: Any) -> torch.Tensor:
    return _shared(_drawn(*drawn))


def _shared(drawn: Any) -> torch.Tensor:
    return torch.from_numpy(numpy.array(drawn) if isinstance(drawn, numpy.generic) else drawn)


if FOLLOWED:
    for _name in {*_FLOATS, *_OF_BOTH.split(), "randint"}:
        _register_numpy(_STATE, _name, _FLOATS.get(_name))
    for _name in (*_OF_BOTH.split(), "integers"):
        _register_numpy(_GENERATOR, _name, _FLOATS.get(_name))
