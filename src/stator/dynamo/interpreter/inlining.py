"""Inlining: binding arguments to parameters as Python does, and running the callee's frame symbolically."""

from __future__ import annotations

import inspect

from stator.base.errors import Unsupported
from stator.dynamo.ir.prepared_code import RENAME, TWO_OF_A_NAME, has_two_of_a_name, prepare_code
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.containers.sequences import TupleValue
from stator.dynamo.values.functions import FunctionValue

from .frame import Frame
from .generators import GeneratorValue

DEPTH_LIMIT = 120
_VARARGS, _VARKEYWORDS = inspect.CO_VARARGS, inspect.CO_VARKEYWORDS


def inline(
    context: CaptureContext,
    function: FunctionValue,
    args: list[Value],
    kwargs: dict[str, Value],
    *,
    called: bool = False,
) -> Value:
    """Call a Python function by stepping through its code.

    called: the caller's call instruction only pushes the function's result."""
    if len(context.frames) > DEPTH_LIMIT:
        raise unsupported("inline-depth", f"more than {DEPTH_LIMIT} nested calls at {function.qualname}")
    if has_two_of_a_name(function.code):
        raise unsupported("call", f"{function.qualname}, {TWO_OF_A_NAME}", RENAME)
    context.count_call()
    program = prepare_code(function.code)
    names = bind(context, function, args, kwargs)
    frame = Frame(context, program, function.scope, names, function.cells(context), function.qualname)
    frame.module_frames, context.entering_module = context.entering_module, 0
    frame.called = called and not program.is_generator
    if program.is_generator:
        if function.code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            raise unsupported("async", f"the coroutine {function.qualname}")
        made = GeneratorValue(frame)
        context.generators.append(made)
        return made
    frame.run()
    assert frame.result is not None
    return frame.result


def bind(
    context: CaptureContext, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]
) -> dict[str, Value]:
    """Parameter name -> value. Raises Unsupported for arguments that do not fit."""
    code = function.code
    names, count, keyword_count = code.co_varnames, code.co_argcount, code.co_kwonlyargcount
    bound: dict[str, Value] = dict(zip(names[:count], args, strict=False))
    extra_keywords: dict[str, Value] = {}
    if kwargs:
        by_keyword = names[code.co_posonlyargcount : count + keyword_count]
        for name, value in kwargs.items():
            if name in by_keyword:
                if name in bound:
                    raise _mismatch(function)
                bound[name] = value
            elif code.co_flags & _VARKEYWORDS:
                extra_keywords[name] = value
            else:
                raise _mismatch(function)
    if len(args) < count and not _fill_defaults(context, function, bound):
        raise _mismatch(function)
    if keyword_count and not _fill_keyword_defaults(context, function, bound):
        raise _mismatch(function)
    at = count + keyword_count
    if code.co_flags & _VARARGS:
        bound[names[at]] = TupleValue(args[count:])
        at += 1
    elif len(args) > count:
        raise _mismatch(function)
    if code.co_flags & _VARKEYWORDS:
        made = DictValue({})
        for name, value in extra_keywords.items():
            made.put(context, ConstantValue(name), value)
        bound[names[at]] = made
    return bound


def _fill_defaults(context: CaptureContext, function: FunctionValue, bound: dict[str, Value]) -> bool:
    """Bind missing positional parameters to their defaults. False: a parameter has no default."""
    code = function.code
    names, count = code.co_varnames, code.co_argcount
    missing = [at for at in range(count) if names[at] not in bound]
    if not missing:
        return True
    defaults = function.default_values(context)
    first = count - len(defaults)
    if missing[0] < first:
        return False
    for at in missing:
        bound[names[at]] = defaults[at - first]
    return True


def _fill_keyword_defaults(context: CaptureContext, function: FunctionValue, bound: dict[str, Value]) -> bool:
    code = function.code
    for name in code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]:
        if name not in bound:
            default = function.keyword_defaults(context).get(name)
            if default is None:
                return False
            bound[name] = default
    return True


def _mismatch(function: FunctionValue) -> Unsupported:
    """Arguments that do not fit are the program's TypeError, which the native call raises."""
    return unsupported("exception", f"arguments that do not fit the parameters of {function.qualname}")
