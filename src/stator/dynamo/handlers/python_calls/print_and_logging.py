"""print, logging and warnings in captured code. The message is given when the graph has run, so its arguments are
constants or numbers of the graph. Other messages break the graph."""

from __future__ import annotations

import builtins
import logging
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from stator.dynamo.graph.mutations import Message, error_filters, log_at, warn_at
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import ConstantSource, ReadSource, Source
from stator.dynamo.host.naming import module_of
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.interpreter.nested_break import calls_of_a_module, namespace_of_modules
from stator.dynamo.ir.prepared_code import PreparedCode, prepare_code
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Load, Recipe
from stator.dynamo.values.base import CaptureContext, NotConstant, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.exceptions import ExceptionValue
from stator.dynamo.values.symbolic_numbers import is_open


def _record_message(
    context: CaptureContext, function: Any, arguments: list[Any], keywords: dict[str, Any] | None = None
) -> ConstantValue:
    _refuse_redirected(context)
    outermost = context.frames[0]
    position = outermost.program.instructions[outermost.now].position
    context.mutations.message(Message(function, arguments, keywords or {}, position))
    return ConstantValue(None)


def _refuse_redirected(context: CaptureContext) -> None:
    """Breaks behind changes of streams, loggers or print options, which would not hold any more behind the graph."""
    streams = context.scope_of(vars(sys)).written.keys() & _STREAMS
    changed = (getattr(value, "obj", None) for _, value, _ in context.mutations.entries.values())
    if streams or any(isinstance(one, _SHAPE_MESSAGES) for one in changed):
        raise unsupported("call-builtin", "a message behind a change of where messages go")


_STREAMS = frozenset({"stdout", "stderr"})
_SHAPE_MESSAGES = (logging.Filterer, logging.Manager, type(torch._tensor_str.PRINT_OPTS))


def _argument(context: CaptureContext, value: Value, what: str) -> Value | Recipe:
    """A part of a message whose text does not change until the end of the graph."""
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
            raise unsupported("call-builtin", f"print() with {name} that is no string")
    arguments = [_argument(context, arg, "printing") for arg in args]
    options = {name: _argument(context, arg, "printing") for name, arg in kwargs.items()}
    return _record_message(context, print, arguments, options)


@calls(torch.Tensor.__format__, torch.Tensor.__repr__)
def _text_of_tensor(context: CaptureContext, tensor: Value, *args: Value, **kwargs: Value) -> Value:
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
    if any(map(_is_of_program, _listeners(real))):
        raise unsupported("call-builtin", "logging to a handler or filter that the program wrote")
    plain = type(real)._log is logging.Logger._log and type(real).findCaller is logging.Logger.findCaller
    level_of_stack = _depth(context, kwargs.pop("stacklevel", None))
    if not plain or any(context.truth(value) for value in kwargs.values()):
        raise unsupported("call-builtin", "logging with more than a message and its arguments")
    place = _place(context, level_of_stack)
    if place is None:
        raise unsupported("call-builtin", "logging in the name of a caller of the compiled function")
    constants = [ConstantRecipe(part) for part in (level, place.filename, place.line, place.function)]
    parts = [_argument(context, value, "logging") for value in said]
    return _record_message(context, log_at, [logger, *constants, *parts])


def _listeners(logger: logging.Logger) -> Iterator[Any]:
    """Handlers and filters of the logger and of the loggers above it."""
    yield logging.getLogRecordFactory()
    yield from logger.filters
    above: logging.Logger | None = logger
    while above is not None:
        for handler in above.handlers:
            yield handler
            yield from handler.filters
        above = above.parent if above.propagate else None


def _is_of_program(listener: Any) -> bool:
    """Whether the program wrote a listener, which may notice when a message comes. Libraries' listeners write text."""
    kind: Any = listener if isinstance(listener, type | FunctionType) else type(listener)
    module = module_of(kind)
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    installed = {"site-packages", "dist-packages"} & {*Path(file).parts}
    return module.partition(".")[0] not in sys.stdlib_module_names and not installed


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
    level = _depth(context, stacklevel)
    place = _place(context, level)
    if error_filters():
        raise unsupported("call-builtin", "a warning while filters turn some warnings into exceptions")
    context.guard(ReadSource(error_filters), GuardKind.EQUALS, ())
    if isinstance(message, ExceptionValue):
        text: Value | Recipe = message
        kind: Any = message.cls
    else:
        text = _argument(context, message, "a warning")
        kind = UserWarning if category is None or context.is_none(category) else context.real_of(category, "a category")
    if place is None:
        level_above = level - sum(1 + frame.module_frames for frame in context.frames) + 1
        return _record_message(context, warnings.warn, [text, ConstantRecipe(kind), ConstantRecipe(level_above)])
    constants = [ConstantRecipe(part) for part in (kind, place.filename, place.line)]
    return _record_message(context, warn_at, [text, *constants, Load(place.namespace)])


# ---- the line that a message belongs to ----


@dataclass(frozen=True, slots=True)
class _Place:
    """The line of a frame and the globals of its function."""

    filename: str
    line: int
    function: str
    namespace: Source


def _depth(context: CaptureContext, stacklevel: Value | None) -> int:
    return 1 if stacklevel is None else max(1, context.constant_of(stacklevel, "a level of the stack"))


def _place(context: CaptureContext, level: int) -> _Place | None:
    """Where the frame stands that is `level - 1` calls above the innermost; None for callers of the compiled function.
    Frames of torch's module call, which capture skips, count."""
    for frame in context.frames[::-1]:
        skipped = calls_of_a_module()[: frame.module_frames]
        if level == 1:
            return _Place(*_line(frame.program, frame.now), frame.globals.source)
        level -= 1 + len(skipped)
        if level <= 0:
            code, index = skipped[-level - len(skipped)]
            return _Place(*_line(prepare_code(code), index), context.scope_of(namespace_of_modules()).source)
    return None


def _line(program: PreparedCode, index: int) -> tuple[str, int, str]:
    """The file, line and function of an instruction."""
    code = program.code
    return code.co_filename, program.instructions[index].line or code.co_firstlineno, code.co_name
