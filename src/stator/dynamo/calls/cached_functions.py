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

from ..guard import GuardKind
from ..messages import Message
from ..recipe import CallRecipe, Constant
from ..source import AttrSource, CallSource, ConstantSource, Source
from ..subgraphs import outside_unchanged, reachable
from ..values.base import NotConstant, Value, unsupported
from ..values.constants import ConstantValue
from ..values.functions import BuiltinValue
from ..values.mappings import DictValue
from ..values.objects import ObjectValue
from ..values.sequences import ListValue
from ..values.sets import SetValue
from ..values.tensors import TensorValue
from ..wrapping import wraps

if TYPE_CHECKING:
    from ..tracer import Tracer

_LASTING = (ListValue, SetValue, DictValue, ObjectValue, TensorValue)  # what may be changed, or told from another


@wraps(functools._lru_cache_wrapper)
def _wrap_cached(tracer: Tracer, obj: Any, source: Source | None) -> Value:
    inner = getattr(obj, "__wrapped__", None)  # functools sets it when the wrapper is made; a program may set another
    if source is None:
        source = ConstantSource(getattr(inner, "__qualname__", "a cached function"), obj)
    tracer.guard(source, GuardKind.IS, obj)  # another has a cache of its own, if the same code
    if not isinstance(inner, FunctionType) or not any(part is inner for part in gc.get_referents(obj)):
        return BuiltinValue(obj, source)
    return CachedFunctionValue(obj, tracer.wrap(inner, AttrSource(source, "__wrapped__")), source)


class CachedFunctionValue(Value):
    """A function under functools.lru_cache. On constants it is really called, in the capture and in each call of the
    compiled code; a constant that it gives is part of the capture. Otherwise the function itself is followed: then it
    may change nothing, and what it gives may neither be changed nor leave the captured code, for it would be another
    object in each call."""

    __slots__ = ("cached", "function")

    def __init__(self, cached: Any, function: Value, source: Source) -> None:
        self.source = source
        self.cached = cached
        self.function = function

    def python_type(self, tracer: Tracer) -> type:
        return type(self.cached)

    def real(self) -> Any:
        return self.cached

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        try:
            constants = tuple(arg.constant() for arg in args)
            named = {name: arg.constant() for name, arg in kwargs.items()}
            hash((constants, tuple(named.values())))
        except (NotConstant, TypeError):
            return self._follow(tracer, args, kwargs)
        if self.cached.cache_parameters()["maxsize"] == 0:
            return self.function.call(tracer, args, kwargs)
        key = (id(self.cached), *_key(constants, named))
        known = tracer.cached_calls.get(key)
        if known is None:
            result = tracer.run_real(self.cached, constants, named)
            _pay(self.cached, _key(constants, named), 1)
            constant = tracer.is_constant_object(result)
            known = ConstantValue(result) if constant else self._follow(tracer, args, kwargs)
            tracer.cached_calls[key] = known
            tracer.guard(CallSource(_Kept(self.cached), (self.source,)), GuardKind.EQUALS, True)  # type: ignore[arg-type]
        count = CallRecipe(
            Constant(_count_call),
            [Constant(self.cached), *map(Constant, constants)],
            {name: Constant(value) for name, value in named.items()},
        )
        tracer.counted_calls.append(count)
        return known

    def _follow(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        what = f"{self.cached.__qualname__}, whose results are cached,"
        made_at = tracer.end_step()
        messages: list[Message] = []
        with outside_unchanged(tracer, what, *args, *kwargs.values(), messages=messages):
            result = self.function.call(tracer, args, kwargs)
        if messages:
            self._say(tracer, result, args, kwargs)
        for value in reachable((result,)).values():
            if isinstance(value, _LASTING) and value.source is None:
                tracer.mutations.freeze(value, what, made_at)
        return result

    def _say(self, tracer: Tracer, result: Value, args: list[Value], kwargs: dict[str, Value]) -> None:
        """The cache decides, in each call, whether it is said again (`warning_once` of loggers)."""
        if not tracer.is_none(result):
            raise unsupported("call-builtin", f"{self.cached.__qualname__}, which prints, logs or warns, and is cached")
        outermost = tracer.frames[0]
        position = outermost.program.instructions[outermost.now].position
        tracer.mutations.message(Message(self.cached, list(args), dict(kwargs), position))

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name.startswith("cache_"):
            raise unsupported("functools", f"{name} of a cached function")
        return self.function if name == "__wrapped__" else self.function.get_attr(tracer, name)


class _Kept:
    """Whether a cache has not been cleared since: then it may give something else for what it gave."""

    def __init__(self, cached: Any) -> None:
        self.misses = cached.cache_info().misses

    def __call__(self, cached: Any) -> bool:
        return cached is not None and cached.cache_info().misses >= self.misses

    def __repr__(self) -> str:
        return "has kept what it held"


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
