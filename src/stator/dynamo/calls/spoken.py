"""print, logging and warnings in captured code: no reason to end the graph where all that is said is known, or will be
when the graph has run: numbers of tensors, alone or in f-strings, and tensors without a history by themselves."""

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

from ..calling import calls
from ..guard import GuardKind
from ..messages import Message, error_filters, log_at, warn_at
from ..naming import module_of
from ..program import program_of
from ..recipe import Constant, Load, Recipe
from ..source import ConstantSource, ReadSource
from ..values.base import NotConstant, Value, unsupported
from ..values.constants import ConstantValue
from ..values.exceptions import ExceptionValue
from ..values.numbers import is_changing
from ..values.pending_text import PendingTextValue
from ..values.read_numbers import ReadNumberValue
from ..values.tensors import TensorValue
from ..values.unknown_numbers import UnknownNumberValue
from .warning_blocks import caught

if TYPE_CHECKING:
    from ..source import Source
    from ..tracer import Tracer


def _say(tracer: Tracer, function: Any, arguments: list[Any], keywords: dict[str, Any] | None = None) -> ConstantValue:
    _refuse_redirected(tracer)
    outermost = tracer.frames[0]
    position = outermost.program.instructions[outermost.now].position
    tracer.mutations.message(Message(function, arguments, keywords or {}, position))
    return ConstantValue(None)


def _refuse_redirected(tracer: Tracer) -> None:
    """What is said at the end of the graph goes where it would have gone at once, and reads so: unless the captured
    code has changed the streams, loggers, or how tensors are printed, by then, perhaps for a while."""
    streams = tracer.scope_of(vars(sys)).written.keys() & _STREAMS
    changed = (getattr(value, "obj", None) for _, value, _ in tracer.mutations.entries.values())
    if streams or any(isinstance(one, _SHAPE_MESSAGES) for one in changed):
        raise unsupported("call-builtin", "a message behind a change of where messages go")


_STREAMS = frozenset({"stdout", "stderr"})
_SHAPE_MESSAGES = (logging.Filterer, logging.Manager, type(torch._tensor_str.PRINT_OPTS))


def _settled(tracer: Tracer, value: Value, what: str) -> Value | Recipe:
    """Something that reads at the end of the graph as it reads now."""
    if is_changing(value) or (isinstance(value, PendingTextValue) and value.parts is not None):
        return value
    if type(value) is UnknownNumberValue or (type(value) is ReadNumberValue and value.can_leave(tracer)):
        return value
    try:
        return Constant(value.constant())
    except NotConstant:
        raise unsupported("call-builtin", f"{what} of {value.describe(tracer)}") from None


def _printed(tracer: Tracer, value: Value) -> Value | Recipe:
    """The same for what is shown at once: whoever gets a logged tensor itself may look at it again, later."""
    if isinstance(value, TensorValue) and _is_shown_by_contents(tracer, value):
        return tracer.record_method("clone", [value], {})
    return _settled(tracer, value, "printing")


def _is_shown_by_contents(tracer: Tracer, tensor: TensorValue) -> bool:
    """Whether a copy of a tensor reads as the tensor itself: which a history, of which the last operator is named, and
    a class of its own would not."""
    plain = tensor.cls is torch.Tensor and tensor.attributes is None and not tensor.fake.requires_grad
    own = all(
        tracer.class_lookup(torch.Tensor, name) is getattr(owner, name)
        for owner, name in ((torch.Tensor, "__repr__"), (torch.Tensor, "__format__"), (object, "__str__"))
    )
    return plain and own and tracer.in_the_call and not tracer.recorder.transforms


# ---- print ----


@calls(builtins.print)
def _print(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
    if not set(kwargs) <= {"sep", "end", "flush"}:
        raise unsupported("call-builtin", "print to a file", "call it outside of the compiled function")
    for name, value in kwargs.items():
        if name in ("sep", "end") and not (tracer.is_none(value) or value.python_type(tracer) is str):
            raise unsupported("call-builtin", f"print() with {name} that is no text")
    said = [_printed(tracer, arg) for arg in args]
    return _say(tracer, print, said, {name: _settled(tracer, arg, "printing") for name, arg in kwargs.items()})


@calls(torch.Tensor.__format__, torch.Tensor.__repr__)
def _text_of_tensor(tracer: Tracer, tensor: Value, *args: Value, **kwargs: Value) -> Value:
    """Followed, it would show the stand-in that capture works with."""
    raise unsupported("format", f"{tensor.describe(tracer)} in a string", "format it outside of the compiled function")


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
    def handler(tracer: Tracer, logger: Value, message: Value, *args: Value, **kwargs: Value) -> Value:
        return _log(tracer, logger, level, [message, *args], kwargs)


for _method, _level in _LEVELS.items():
    _register_level(_method, _level)


@calls(logging.Logger.log)
def _log_level(tracer: Tracer, logger: Value, level: Value, message: Value, *args: Value, **kwargs: Value) -> Value:
    return _log(tracer, logger, tracer.constant_of(level, "a level of logging"), [message, *args], kwargs)


def _log(tracer: Tracer, logger: Value, level: int, said: list[Value], kwargs: dict[str, Value]) -> Value:
    real = tracer.real_of(logger, "a logger")
    _refuse_redirected(tracer)
    if not real.isEnabledFor(level):
        if logger.source is not None:
            enabled = ReadSource(type(real).isEnabledFor, (logger.source, ConstantSource(repr(level), level)))
            tracer.guard(enabled, GuardKind.EQUALS, False)
        return ConstantValue(None)
    if any(map(_is_of_program, _heard_by(real))):
        raise unsupported("call-builtin", "logging to a handler, or past a filter, of the program's own")
    plain = type(real)._log is logging.Logger._log and type(real).findCaller is logging.Logger.findCaller
    level_of_stack, places = _depth(tracer, kwargs.pop("stacklevel", None)), _places(tracer)
    if not plain or any(tracer.truth(value) for value in kwargs.values()):
        raise unsupported("call-builtin", "logging with more than a message and its arguments")
    if level_of_stack > len(places):
        raise unsupported("call-builtin", "logging in the name of a caller of the compiled function")
    place = places[level_of_stack - 1]
    constants = [Constant(part) for part in (level, place.filename, place.line, place.function)]
    return _say(tracer, log_at, [logger, *constants, *(_settled(tracer, value, "logging") for value in said)])


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
    tracer: Tracer,
    message: Value,
    category: Value | None = None,
    stacklevel: Value | None = None,
    source: Value | None = None,
    **kwargs: Value,
) -> Value:
    if kwargs or (source is not None and not tracer.is_none(source)):
        raise unsupported("call-builtin", "warnings.warn with more than a message, a category and a level")
    level, places = _depth(tracer, stacklevel), _places(tracer)
    if tracer.warning_blocks:
        known = isinstance(message, ExceptionValue) or category is None or tracer.is_none(category)
        of = UserWarning if known else tracer.real_of(category, "a category")  # type: ignore[arg-type]
        of = message.cls if isinstance(message, ExceptionValue) else of
        line = (places[level - 1].filename, places[level - 1].line) if level <= len(places) else None
        if caught(tracer, message, of, line):
            return ConstantValue(None)
    if error_filters():
        raise unsupported("call-builtin", "a warning, while filters make exceptions of some")
    tracer.guard(ReadSource(error_filters), GuardKind.EQUALS, ())
    if isinstance(message, ExceptionValue):
        text: Value | Recipe = message
        kind: Any = message.cls
    else:
        text = _settled(tracer, message, "a warning")
        kind = UserWarning if category is None or tracer.is_none(category) else tracer.real_of(category, "a category")
    if level > len(places):  # one of the compiled function's callers, who are there when it is said
        return _say(tracer, warnings.warn, [text, Constant(kind), Constant(level - len(places) + 1)])
    place = places[level - 1]
    constants = [Constant(part) for part in (kind, place.filename, place.line)]
    return _say(tracer, warn_at, [text, *constants, Load(place.namespace)])


# ---- whose line it is ----


@dataclass(frozen=True, slots=True)
class _Place:
    """A line that is about to be left for a call, and the globals of its function."""

    filename: str
    line: int
    function: str
    namespace: Source


def _depth(tracer: Tracer, stacklevel: Value | None) -> int:
    return 1 if stacklevel is None else max(1, tracer.constant_of(stacklevel, "a level of the stack"))


def _places(tracer: Tracer) -> list[_Place]:
    """Of the frames that there would be, innermost first. Capture goes straight into a module's forward."""
    places: list[_Place] = []
    for frame in reversed(tracer.frames):
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
        loads = [one for one in program_of(code).instructions if one.argval == callee and "LOAD" in one.opname]
        load = loads[0] if callee == "forward_call" else loads[-1]
        found.append(_Place(code.co_filename, load.line or code.co_firstlineno, code.co_name, scope))
    return found
