"""print, logging and warnings in captured code: no reason to end the graph where all that is said is known, or is
a number that is known when the graph has run."""

from __future__ import annotations

import builtins
import logging
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stator.dynamo.graph.messages import Message, error_filters, log_at, warn_at
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import ConstantSource, ReadSource
from stator.dynamo.host.naming import module_of
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.ir.prepared_code import prepare_code
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Load, Recipe
from stator.dynamo.values.base import NotConstant, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.exceptions import ExceptionValue
from stator.dynamo.values.symbolic_numbers import is_open

if TYPE_CHECKING:
    from stator.dynamo.guards.source import Source
    from stator.dynamo.values.base import CaptureContext


def _say(
    context: CaptureContext, function: Any, arguments: list[Any], keywords: dict[str, Any] | None = None
) -> ConstantValue:
    _refuse_redirected(context)
    outermost = context.frames[0]
    position = outermost.program.instructions[outermost.now].position
    context.mutations.message(Message(function, arguments, keywords or {}, position))
    return ConstantValue(None)


def _refuse_redirected(context: CaptureContext) -> None:
    """What is said at the end of the graph goes where it would have gone at once, and reads so: unless the captured
    code has changed the streams, loggers, or how tensors are printed, by then, perhaps for a while."""
    streams = context.scope_of(vars(sys)).written.keys() & _STREAMS
    changed = (getattr(value, "obj", None) for _, value, _ in context.mutations.entries.values())
    if streams or any(isinstance(one, _SHAPE_MESSAGES) for one in changed):
        raise unsupported("call-builtin", "a message behind a change of where messages go")


_STREAMS = frozenset({"stdout", "stderr"})
_SHAPE_MESSAGES = (logging.Filterer, logging.Manager, type(torch._tensor_str.PRINT_OPTS))


def _settled(context: CaptureContext, value: Value, what: str) -> Value | Recipe:
    """Something that reads at the end of the graph as it reads now."""
    if is_open(value):
        return value
    try:
        return ConstantRecipe(value.constant())
    except NotConstant:
        raise unsupported("call-builtin", f"{what} of {value.describe(context)}") from None


# ---- print ----


@calls(builtins.print)
def _print(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
    if not set(kwargs) <= {"sep", "end", "flush"}:
        raise unsupported("call-builtin", "print to a file", "call it outside of the compiled function")
    for name, value in kwargs.items():
        if name in ("sep", "end") and not (context.is_none(value) or value.python_type(context) is str):
            raise unsupported("call-builtin", f"print() with {name} that is no text")
    said = [_settled(context, arg, "printing") for arg in args]
    return _say(context, print, said, {name: _settled(context, arg, "printing") for name, arg in kwargs.items()})


@calls(torch.Tensor.__format__, torch.Tensor.__repr__)
def _text_of_tensor(context: CaptureContext, tensor: Value, *args: Value, **kwargs: Value) -> Value:
    """Followed, it would show the stand-in that capture works with."""
    raise unsupported("format", f"{tensor.describe(context)} in a string", "format it outside of the compiled function")


# ---- logging ----

_LEVELS = {
    logging.Logger.debug: logging.DEBUG,
    logging.Logger.info: logging.INFO,
    logging.Logger.warning: logging.WARNING,
    logging.Logger.error: logging.ERROR,
    logging.Logger.critical: logging.CRITICAL,
}


def _register_level(method: Any, level: int) -> None:
    @calls(method)
    def handler(context: CaptureContext, logger: Value, message: Value, *args: Value, **kwargs: Value) -> Value:
        return _log(context, logger, level, [message, *args], kwargs)


for _method, _level in _LEVELS.items():
    _register_level(_method, _level)


@calls(logging.Logger.log)
def _log_level(
    context: CaptureContext, logger: Value, level: Value, message: Value, *args: Value, **kwargs: Value
) -> Value:
    return _log(context, logger, context.constant_of(level, "a level of logging"), [message, *args], kwargs)


def _log(context: CaptureContext, logger: Value, level: int, said: list[Value], kwargs: dict[str, Value]) -> Value:
    real = context.real_of(logger, "a logger")
    _refuse_redirected(context)
    if not real.isEnabledFor(level):
        if logger.source is not None:
            enabled = ReadSource(type(real).isEnabledFor, (logger.source, ConstantSource(repr(level), level)))
            context.guard(enabled, GuardKind.EQUALS, False)
        return ConstantValue(None)
    if any(map(_is_of_program, _heard_by(real))):
        raise unsupported("call-builtin", "logging to a handler, or past a filter, of the program's own")
    plain = type(real)._log is logging.Logger._log and type(real).findCaller is logging.Logger.findCaller
    level_of_stack, places = _depth(context, kwargs.pop("stacklevel", None)), _places(context)
    if not plain or any(context.truth(value) for value in kwargs.values()):
        raise unsupported("call-builtin", "logging with more than a message and its arguments")
    if level_of_stack > len(places):
        raise unsupported("call-builtin", "logging in the name of a caller of the compiled function")
    place = places[level_of_stack - 1]
    constants = [ConstantRecipe(part) for part in (level, place.filename, place.line, place.function)]
    return _say(context, log_at, [logger, *constants, *(_settled(context, value, "logging") for value in said)])


def _heard_by(logger: logging.Logger) -> Iterator[Any]:
    """What takes part in a message: handlers and filters of the logger and those above it."""
    yield logging.getLogRecordFactory()
    yield from logger.filters
    above: logging.Logger | None = logger
    while above is not None:
        for handler in above.handlers:
            yield handler
            yield from handler.filters
        above = above.parent if above.propagate else None


def _is_of_program(part: Any) -> bool:
    """Whether the program itself says what is done with a message: it may notice when that happens. Libraries write."""
    kind: Any = part if isinstance(part, type | FunctionType) else type(part)
    file = getattr(sys.modules.get(module_of(kind)), "__file__", None)
    return file is None or not file.startswith(_installed())


@cache
def _installed() -> tuple[str, ...]:
    """Where libraries lie: those of this interpreter, of the user, and of environments that are stacked on it."""
    paths = sysconfig.get_paths()
    known = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(known | {path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")})


# ---- warnings ----


@calls(warnings.warn)
def _warn(
    context: CaptureContext,
    message: Value,
    category: Value | None = None,
    stacklevel: Value | None = None,
    source: Value | None = None,
    **kwargs: Value,
) -> Value:
    if kwargs or (source is not None and not context.is_none(source)):
        raise unsupported("call-builtin", "warnings.warn with more than a message, a category and a level")
    level, places = _depth(context, stacklevel), _places(context)
    if error_filters():
        raise unsupported("call-builtin", "a warning, while filters make exceptions of some")
    context.guard(ReadSource(error_filters), GuardKind.EQUALS, ())
    if isinstance(message, ExceptionValue):
        text: Value | Recipe = message
        kind: Any = message.cls
    else:
        text = _settled(context, message, "a warning")
        kind = UserWarning if category is None or context.is_none(category) else context.real_of(category, "a category")
    if level > len(places):  # one of the compiled function's callers, who are there when it is said
        return _say(context, warnings.warn, [text, ConstantRecipe(kind), ConstantRecipe(level - len(places) + 1)])
    place = places[level - 1]
    constants = [ConstantRecipe(part) for part in (kind, place.filename, place.line)]
    return _say(context, warn_at, [text, *constants, Load(place.namespace)])


# ---- whose line it is ----


@dataclass(frozen=True, slots=True)
class _Place:
    """A line that is about to be left for a call, and the globals of its function."""

    filename: str
    line: int
    function: str
    namespace: Source


def _depth(context: CaptureContext, stacklevel: Value | None) -> int:
    return 1 if stacklevel is None else max(1, context.constant_of(stacklevel, "a level of the stack"))


def _places(context: CaptureContext) -> list[_Place]:
    """Of the frames that there would be, innermost first. Capture goes straight into a module's forward."""
    places: list[_Place] = []
    for frame in reversed(context.frames):
        code = frame.program.code
        line = frame.program.instructions[frame.now].position.line or code.co_firstlineno
        places.append(_Place(code.co_filename, line, code.co_name, frame.globals.source))
        places += _into_forward()[2 - frame.module_frames :]
    return places


@cache
def _into_forward() -> list[_Place]:
    """What calls the forward of a module without hooks."""
    scope = ConstantSource("torch.nn.modules.module.__dict__", vars(nn.modules.module))
    found = []
    for function, callee in ((nn.Module._call_impl, "forward_call"), (nn.Module._wrapped_call_impl, "_call_impl")):
        code = function.__code__
        loads = [one for one in prepare_code(code).instructions if one.argval == callee and "LOAD" in one.opname]
        load = loads[0] if callee == "forward_call" else loads[-1]
        found.append(_Place(code.co_filename, load.line or code.co_firstlineno, code.co_name, scope))
    return found
