"""Functions under functools.lru_cache in captured code. The call breaks the graph where the program could tell a cached
result from one that the function makes anew.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any

from stator.dynamo.graph.mutations import Message
from stator.dynamo.graph.subgraphs import outside_unchanged, reachable
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import AttrSource, CallSource, ConstantSource, Source
from stator.dynamo.interpreter.wrapping import is_constant_object, wraps
from stator.dynamo.values.base import CaptureContext, NotConstant, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.containers.sequences import ListValue, TupleValue
from stator.dynamo.values.containers.sets import SetValue
from stator.dynamo.values.functions import BuiltinValue
from stator.dynamo.values.objects import ObjectValue
from stator.dynamo.values.symbolic_numbers import SymbolicNumber, is_open
from stator.dynamo.values.tensors.tensor import TensorValue

_WITH_IDENTITY = (ListValue, SetValue, DictValue, ObjectValue, TensorValue)


@wraps(functools._lru_cache_wrapper)
def _wrap_cached(context: CaptureContext, obj: Any, source: Source | None) -> Value:
    inner = getattr(obj, "__wrapped__", None)  # a program may have set another
    if source is None:
        source = ConstantSource(getattr(inner, "__qualname__", "a cached function"), obj)
    context.guard(source, GuardKind.IS, obj)  # each wrapper has its own cache
    if type(inner) is not FunctionType or not any(part is inner for part in gc.get_referents(obj)):
        return BuiltinValue(obj, source)
    return CachedFunctionValue(obj, context.wrap(inner, AttrSource(source, "__wrapped__")), source)


class CachedFunctionValue(Value):
    """A function under functools.lru_cache. Guards hold the entries of the cache that captured code relies on.

    Constants and objects without an entry: capture calls the function. Other arguments without an entry: capture
    follows the function, which then may change nothing. The captured code may neither change its result nor hand it
    on, because each call of the compiled code makes another object. Compiled code counts no hits in `cache_info()`.

    Numbers that change from call to call end the graph: each has an entry, which may differ from what the function
    would make now.
    """

    __slots__ = ("cached", "function")

    def __init__(self, cached: Any, function: Value, source: Source) -> None:
        self.source: Source = source
        self.cached = cached
        self.function = function

    def python_type(self, context: CaptureContext) -> type:
        return type(self.cached)

    def real(self) -> Any:
        return self.cached

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        given = [*args, *kwargs.values()]
        if context.loops.end_graphs_for(_open_numbers(given)):
            what = f"{self.cached.__qualname__}, whose results are cached by numbers that change from call to call"
            raise unsupported("functools", what, "call it outside, or without the cache")
        try:
            objects = [_real(arg) for arg in given]
            hash(tuple(objects))
        except (NotConstant, TypeError):
            return self._follow(context, args, kwargs)
        entry = _Entry(self.cached, list(kwargs), len(args))
        sources = [arg.source if _is_object(arg) else ConstantSource("a constant", arg.constant()) for arg in given]
        held = CallSource(entry.result, (self.source, *sources))  # type: ignore[arg-type]
        result = entry.result(self.cached, *objects)
        if result is _NOTHING:
            full = entry.bounded and self.cached.cache_info().currsize >= self.cached.cache_parameters()["maxsize"]
            if full or context.mutations.entries or context.recorder.mode.writes_outside():
                context.guard(held, GuardKind.IS, _NOTHING)
                if context.recorder.fullgraph or any(map(_is_object, given)):
                    return self._follow(context, args, kwargs)
                why = "whose cache is full" if full else "which has no entry yet, behind a change that it may read"
                raise unsupported("functools", f"{self.cached.__qualname__}, {why}")
            context.run_real(
                self.cached, tuple(objects[: len(args)]), dict(zip(kwargs, objects[len(args) :], strict=True))
            )
            result = entry.result(self.cached, *objects)
        context.guard(held, GuardKind.IS, result)
        return ConstantValue(result) if is_constant_object(result) else context.wrap(result, held)

    def _follow(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        what = f"{self.cached.__qualname__}, whose results are cached,"
        made_at = context.end_step()
        messages: list[Message] = []
        with outside_unchanged(context, what, *args, *kwargs.values(), messages=messages):
            result = self.function.call(context, args, kwargs)
        if messages:
            self._repeat_messages(context, result, args, kwargs)
        for value in reachable((result,)).values():
            if isinstance(value, _WITH_IDENTITY) and value.source is None:
                context.mutations.freeze(value, what, made_at)
        return result

    def _repeat_messages(
        self, context: CaptureContext, result: Value, args: list[Value], kwargs: dict[str, Value]
    ) -> None:
        """Calls the function behind the graph: the cache decides about the messages (`warning_once` of loggers)."""
        if not context.is_none(result):
            raise unsupported("call-builtin", f"{self.cached.__qualname__}, which prints, logs or warns, and is cached")
        outermost = context.frames[0]
        position = outermost.program.instructions[outermost.now].position
        context.mutations.message(Message(self.cached, list(args), dict(kwargs), position))

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        if name.startswith("cache_"):
            raise unsupported("functools", f"{name} of a cached function")
        return self.function if name == "__wrapped__" else self.function.get_attr(context, name)


_NOTHING = object()  # stands for a missing entry


class _Entry:
    """Finds a cache's entry for a call without counting a hit: the C implementation of functools shows its entries to
    the garbage collector, oldest first. A bounded cache shows key, result and type of each; others show a dictionary.
    """

    def __init__(self, cached: Any, names: list[str], count: int) -> None:
        parameters = cached.cache_parameters()
        self.bounded, self.typed = parameters["maxsize"] is not None, parameters["typed"]
        self.names = names
        self.count = count

    def result(self, cached: Any, *given: Any) -> Any:
        """The cached result for `count` positional arguments and the named arguments, in the call's order."""
        if cached is None:
            return _NOTHING
        size = cached.cache_info().currsize  # other threads may change it
        held = gc.get_referents(cached)
        if self.bounded:
            for at in range(1, min(1 + 3 * size, len(held) - 2), 3):
                if self._is_key(held[at], given):
                    return held[at + 1]
            return _NOTHING
        entries = next(part for part in held if type(part) is dict)
        return next((result for key, result in list(entries.items()) if self._is_key(key, given)), _NOTHING)

    def _is_key(self, key: Any, given: tuple[Any, ...]) -> bool:
        """Makes keys as the C implementation of functools does."""
        if len(given) == 1 and not self.names and not self.typed and type(given[0]) in (int, str):
            return type(key) is type(given[0]) and bool(key == given[0])
        if type(key) is not tuple:
            return False
        named = [part for pair in zip(self.names, given[self.count :], strict=True) for part in pair]
        parts = [*given[: self.count], *([None, *named] if named else ()), *(map(type, given) if self.typed else ())]
        mark = self.count if named else -1
        return len(key) == len(parts) and all(
            at == mark or _same(mine, its) for at, (mine, its) in enumerate(zip(key, parts, strict=True))
        )

    def __repr__(self) -> str:
        return "the cached result"


def _same(one: Any, other: Any) -> bool:
    """Whether two arguments are one to the cache. Objects that are no constants are compared by identity."""
    if one is other:
        return True
    if type(one) is tuple and type(other) is tuple:
        return len(one) == len(other) and all(map(_same, one, other))
    return is_constant_object(one) and is_constant_object(other) and bool(one == other)


def _is_object(arg: Value) -> bool:
    """Whether an argument existed before the call and is compared by identity."""
    if not isinstance(arg, ObjectValue) or arg.source is None:
        return False
    cls = type(arg.obj)
    return cls.__eq__ is object.__eq__ and cls.__hash__ is object.__hash__


def _open_numbers(given: Iterable[Value]) -> Iterator[SymbolicNumber]:
    """The numbers among arguments, and in tuples of these, that are no constants."""
    for arg in given:
        if isinstance(arg, TupleValue):
            yield from _open_numbers(arg.items)
        elif is_open(arg):
            yield arg


def _real(arg: Value) -> Any:
    """Raises NotConstant for objects that captured code made, and for those with an `__eq__` of their own."""
    return arg.obj if _is_object(arg) else arg.constant()  # type: ignore[attr-defined]
