"""functools.singledispatch in captured code: which function is chosen for a class is asked, and relied on."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource, ConstantSource
from stator.dynamo.host.naming import full_name
from stator.dynamo.interpreter.calling import made_functions
from stator.dynamo.values.base import Value, unsupported
from stator.dynamo.values.functions import FunctionValue

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext


def _dispatch(context: CaptureContext, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`generic.dispatch(cls)`, whose cache holds weak references."""
    if len(args) != 1 or kwargs or function.fn is None:
        raise unsupported("functools", "dispatch() of a generic function with other arguments than a class")
    _check_cache(function.fn)
    cls = context.real_of(args[0], "a class")
    chosen: Any = context.run_real(function.fn, (cls,))
    source = CallSource(_chosen, (function.source or ConstantSource("dispatch", function.fn), _constant(cls)))
    context.guard(source, GuardKind.IS, chosen)
    return context.wrap(chosen, source)


def _check_cache(dispatch: Any) -> None:
    """Asking fills the cache, which is nobody's business unless it is a dictionary of the program's own."""
    names = dispatch.__code__.co_freevars
    cache = dispatch.__closure__[names.index("dispatch_cache")].cell_contents
    if type(cache) is not weakref.WeakKeyDictionary:
        raise unsupported("functools", "a generic function that keeps what it chose in a dictionary of another class")


def _chosen(dispatch: Any, cls: Any) -> Any:
    return dispatch(cls)


def _constant(cls: type) -> ConstantSource:
    return ConstantSource(full_name(cls), cls)


made_functions[id(functools.singledispatch(lambda _: None).dispatch.__code__)] = _dispatch
