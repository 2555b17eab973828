"""Inlining: binding arguments to parameters as Python does, and running the callee's frame symbolically."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from .frame import Frame
from .program import program_of
from .values.base import Value, unsupported
from .values.constants import ConstantValue
from .values.containers import TupleValue
from .values.functions import FunctionValue
from .values.generators import GeneratorValue
from .values.mappings import DictValue

if TYPE_CHECKING:
    from .tracer import Tracer

DEPTH_LIMIT = 120
_VARARGS, _VARKEYWORDS = inspect.CO_VARARGS, inspect.CO_VARKEYWORDS


def inline(tracer: Tracer, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call a Python function by stepping through its code."""
    if len(tracer.frames) > DEPTH_LIMIT:
        raise unsupported("inline-depth", f"more than {DEPTH_LIMIT} nested calls at {function.qualname}")
    program = program_of(function.code)
    names = bind(tracer, function, args, kwargs)
    frame = Frame(tracer, program, function.scope, names, function.cells(tracer), function.qualname)
    frame.enters_module, tracer.entering_module = tracer.entering_module, False
    if program.is_generator:
        if function.code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            raise unsupported("async", f"the coroutine {function.qualname}")
        made = GeneratorValue(frame)
        tracer.generators.append(made)
        return made
    frame.run()
    assert frame.result is not None
    return frame.result


def bind(tracer: Tracer, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> dict[str, Value]:
    """Parameter name -> value. Arguments that do not fit are the captured program's TypeError."""
    code = function.code
    names, count, keyword_count = code.co_varnames, code.co_argcount, code.co_kwonlyargcount
    bound: dict[str, Value] = dict(zip(names[:count], args, strict=False))
    extra_keywords: dict[str, Value] = {}
    if kwargs:
        by_keyword = names[code.co_posonlyargcount : count + keyword_count]
        for name, value in kwargs.items():
            if name in by_keyword:
                if name in bound:
                    raise tracer.raised(TypeError, f"{function.name}() got multiple values for argument '{name}'")
                bound[name] = value
            elif code.co_flags & _VARKEYWORDS:
                extra_keywords[name] = value
            else:
                raise tracer.raised(TypeError, f"{function.name}() got an unexpected keyword argument '{name}'")
    if len(args) < count:
        _fill_defaults(tracer, function, bound)
    if keyword_count:
        _fill_keyword_defaults(tracer, function, bound)
    at = count + keyword_count
    if code.co_flags & _VARARGS:
        bound[names[at]] = TupleValue(args[count:])
        at += 1
    elif len(args) > count:
        raise tracer.raised(
            TypeError, f"{function.name}() takes {count} positional arguments but {len(args)} were given"
        )
    if code.co_flags & _VARKEYWORDS:
        made = DictValue({})
        for name, value in extra_keywords.items():
            made.put(tracer, ConstantValue(name), value)
        bound[names[at]] = made
    return bound


def _fill_defaults(tracer: Tracer, function: FunctionValue, bound: dict[str, Value]) -> None:
    code = function.code
    names, count = code.co_varnames, code.co_argcount
    missing = [at for at in range(count) if names[at] not in bound]
    if not missing:
        return
    defaults = function.default_values(tracer)
    first = count - len(defaults)
    for at in missing:
        if at < first:
            raise tracer.raised(TypeError, f"{function.name}() missing required argument: '{names[at]}'")
        bound[names[at]] = defaults[at - first]


def _fill_keyword_defaults(tracer: Tracer, function: FunctionValue, bound: dict[str, Value]) -> None:
    code = function.code
    for name in code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]:
        if name not in bound:
            default = function.keyword_defaults(tracer).get(name)
            if default is None:
                raise tracer.raised(TypeError, f"{function.name}() missing required keyword-only argument: '{name}'")
            bound[name] = default
