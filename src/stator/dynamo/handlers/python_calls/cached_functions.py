"""Functions under functools.lru_cache in captured code. Where the program could tell what the cache holds from what the
function would make anew, the call breaks the graph and runs as it is.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections import Counter
from types import FunctionType
from typing import TYPE_CHECKING, Any

from stator.dynamo.graph.messages import Message
from stator.dynamo.graph.subgraphs import outside_unchanged, reachable
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import AttrSource, CallSource, ConstantSource, Source
from stator.dynamo.interpreter.wrapping import is_constant_object, wraps
from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Load, Recipe
from stator.dynamo.values.base import NotConstant, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.containers.sequences import ListValue
from stator.dynamo.values.containers.sets import SetValue
from stator.dynamo.values.functions import BuiltinValue
from stator.dynamo.values.objects import ObjectValue
from stator.dynamo.values.tensors.tensor import TensorValue

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext

_LASTING = (ListValue, SetValue, DictValue, ObjectValue, TensorValue)  # what may be changed, or told from another


@wraps(functools._lru_cache_wrapper)
def _wrap_cached(context: CaptureContext, obj: Any, source: Source | None) -> Value:
    inner = getattr(obj, "__wrapped__", None)  # functools sets it when the wrapper is made; a program may set another
    if source is None:
        source = ConstantSource(getattr(inner, "__qualname__", "a cached function"), obj)
    context.guard(source, GuardKind.IS, obj)  # another has a cache of its own, if the same code
    if not isinstance(inner, FunctionType) or not any(part is inner for part in gc.get_referents(obj)):
        return BuiltinValue(obj, source)
    return CachedFunctionValue(obj, context.wrap(inner, AttrSource(source, "__wrapped__")), source)


class CachedFunctionValue(Value):
    """A function under functools.lru_cache. On constants it is really called, in the capture and in each call of the
    compiled code; what the cache holds for them is part of the capture, and relied on. What it holds for objects that
    were there before is taken as well. Otherwise the function itself is followed: then it may change nothing, and what
    it gives may neither be changed nor leave the captured code, for it would be another object in each call."""

    __slots__ = ("cached", "function")

    def __init__(self, cached: Any, function: Value, source: Source) -> None:
        self.source = source
        self.cached = cached
        self.function = function

    def python_type(self, context: CaptureContext) -> type:
        return type(self.cached)

    def real(self) -> Any:
        return self.cached

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self.cached.cache_parameters()["maxsize"] == 0:
            return self.function.call(context, args, kwargs)
        try:
            objects = [_real(arg) for arg in args]
            named = {name: _real(arg) for name, arg in kwargs.items()}
            hash((tuple(objects), tuple(named.values())))
        except (NotConstant, TypeError):
            return self._follow(context, args, kwargs)
        key = _key(tuple(objects), named)
        known = context.cached_calls.get((id(self.cached), key))
        if known is None:
            known = self._look_up(context, args, kwargs, objects, named)
            if known is None:
                return self._follow(context, args, kwargs)
            context.cached_calls[id(self.cached), key] = known
        if key in _paid.get(self.cached, ()):
            context.recorder.unlike_eager = True  # the program's own code would call it once more
        count = CallRecipe(
            ConstantRecipe(_count_call),
            [ConstantRecipe(self.cached), *map(_recipe, args)],
            {name: _recipe(value) for name, value in kwargs.items()},
        )
        context.counted_calls.append(count)
        return known

    def _look_up(
        self,
        context: CaptureContext,
        args: list[Value],
        kwargs: dict[str, Value],
        objects: list[Any],
        named: dict[str, Any],
    ) -> Value | None:
        """What the cache holds for these arguments, after a call of the function if need be; None where there is no
        entry and it may not be called now: for objects, whose state it might read."""
        entry = _Entry(self.cached, objects, named)
        result = entry.result(self.cached, *objects, *named.values())
        if result is _NOTHING:
            if any(map(_is_object, (*args, *kwargs.values()))):
                context.guard(self._read(entry, args, kwargs), GuardKind.IS, _NOTHING)
                return None
            if context.mutations.entries or context.recorder.mode.writes_outside():
                context.guard(self._read(entry, args, kwargs), GuardKind.IS, _NOTHING)
                raise unsupported(
                    "functools", f"{self.cached.__qualname__}, whose cache is empty, behind a change it might read"
                )
            if self._would_lose(context, entry):
                raise unsupported("functools", f"{self.cached.__qualname__}, whose cache is full")
            context.run_real(self.cached, tuple(objects), named)
            _pay(self.cached, _key(tuple(objects), named), 1)
            result = entry.result(self.cached, *objects, *named.values())
            if result is _NOTHING:
                raise unsupported("functools", f"{self.cached.__qualname__}, whose cache lost an entry at once")
        context.guard(self._read(entry, args, kwargs), GuardKind.IS, result)
        if is_constant_object(result):
            return ConstantValue(result)
        return context.wrap(result, AttrSource(ConstantSource(self.cached.__qualname__, _Held(result)), "held"))

    def _would_lose(self, context: CaptureContext, entry: _Entry) -> bool:
        """Whether one more entry may take the place of one that is relied on."""
        relied_on = sum(cached == id(self.cached) for cached, _ in context.cached_calls)
        size = self.cached.cache_info().currsize
        return entry.bounded and relied_on > 0 and size >= self.cached.cache_parameters()["maxsize"]

    def _read(self, entry: _Entry, args: list[Value], kwargs: dict[str, Value]) -> Source:
        given = [
            arg.source if _is_object(arg) else ConstantSource("a constant", arg.constant())
            for arg in (*args, *kwargs.values())
        ]
        return CallSource(entry.result, (self.source, *given))  # type: ignore[arg-type]

    def _follow(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        what = f"{self.cached.__qualname__}, whose results are cached,"
        made_at = context.end_step()
        messages: list[Message] = []
        with outside_unchanged(context, what, *args, *kwargs.values(), messages=messages):
            result = self.function.call(context, args, kwargs)
        if messages:
            self._say(context, result, args, kwargs)
        for value in reachable((result,)).values():
            if isinstance(value, _LASTING) and value.source is None:
                context.mutations.freeze(value, what, made_at)
        return result

    def _say(self, context: CaptureContext, result: Value, args: list[Value], kwargs: dict[str, Value]) -> None:
        """The cache decides, in each call, whether it is said again (`warning_once` of loggers)."""
        if not context.is_none(result):
            raise unsupported("call-builtin", f"{self.cached.__qualname__}, which prints, logs or warns, and is cached")
        outermost = context.frames[0]
        position = outermost.program.instructions[outermost.now].position
        context.mutations.message(Message(self.cached, list(args), dict(kwargs), position))

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        if name.startswith("cache_"):
            raise unsupported("functools", f"{name} of a cached function")
        return self.function if name == "__wrapped__" else self.function.get_attr(context, name)


_NOTHING = object()  # a cache has no entry


class _Held:
    """An object that a cache gave, by a name: what is in it is relied on as for all that the program holds."""

    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


class _Entry:
    """Finds what the cache holds for a call, without counting that as one. The cache visits its entries, oldest first,
    for the garbage collector: key, result, and the type of the entry, if it has a largest size; else its dictionary."""

    def __init__(self, cached: Any, args: list[Any], named: dict[str, Any]) -> None:
        self.name = cached.__qualname__
        parameters = cached.cache_parameters()
        self.bounded, self.typed = parameters["maxsize"] is not None, parameters["typed"]
        self.names = list(named)
        self.count = len(args)

    def result(self, cached: Any, *given: Any) -> Any:
        """`given`: positional arguments, then named ones, in the order of the call."""
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
        """As the C implementation of functools makes keys."""
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
        return f"what {self.name} holds"


def _same(one: Any, other: Any) -> bool:
    """As far as the cache tells them apart; of what is no constant, whether it is the same object."""
    if one is other:
        return True
    if type(one) is tuple and type(other) is tuple:
        return len(one) == len(other) and all(map(_same, one, other))
    return is_constant_object(one) and is_constant_object(other) and bool(one == other)


def _is_object(arg: Value) -> bool:
    """An object that was there before and is told from others by what it is."""
    if not isinstance(arg, ObjectValue) or arg.source is None:
        return False
    cls = type(arg.obj)
    return cls.__eq__ is object.__eq__ and cls.__hash__ is object.__hash__


def _real(arg: Value) -> Any:
    """Raises NotConstant for other objects, and what the captured code made."""
    return arg.obj if _is_object(arg) else arg.constant()  # type: ignore[attr-defined]


def _recipe(arg: Value) -> Recipe:
    return Load(arg.source) if _is_object(arg) else ConstantRecipe(arg.constant())  # type: ignore[arg-type]


def _key(args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    return args, tuple(named.items()), tuple(map(type, args)), tuple(map(type, named.values()))


# calls that captures made, of which the compiled code makes so many fewer
_paid: weakref.WeakKeyDictionary[Any, Counter[Any]] = weakref.WeakKeyDictionary()


def _pay(cached: Any, key: tuple[Any, ...], calls: int) -> None:
    _paid.setdefault(cached, Counter())[key] += calls


def _count_call(cached: Any, /, *args: Any, **kwargs: Any) -> None:
    """In each call of compiled code: that the cache counts and holds what it does in eager."""
    paid = _paid.get(cached)
    if paid:
        key = _key(args, kwargs)
        if key in paid:
            paid[key] -= 1
            if not paid[key]:
                del paid[key]
            return
    cached(*args, **kwargs)
