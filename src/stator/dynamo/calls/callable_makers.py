"""`operator.attrgetter`, `itemgetter` and `methodcaller`, where captured code makes one."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..calling import calls
from ..polyfills import operator_module
from ..values.base import Value
from ..values.partials import MadeCallable

if TYPE_CHECKING:
    from ..tracer import Tracer


@calls(operator.attrgetter)
def _attrgetter(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
    return _made(tracer, operator.attrgetter, operator_module.attrgetter, args, kwargs)


@calls(operator.itemgetter)
def _itemgetter(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
    return _made(tracer, operator.itemgetter, operator_module.itemgetter, args, kwargs)


@calls(operator.methodcaller)
def _methodcaller(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
    return _made(tracer, operator.methodcaller, operator_module.methodcaller, args, kwargs)


def _made(
    tracer: Tracer, kind: type, maker: Callable[..., Any], args: tuple[Value, ...], kwargs: dict[str, Value]
) -> Value:
    if kwargs and kind is not operator.methodcaller:
        raise tracer.raised(TypeError, f"{kind.__name__}() takes no keyword arguments")
    if not args and kind is operator.methodcaller:
        raise tracer.raised(TypeError, "methodcaller needs at least one argument, the method name")
    closure = tracer.call(tracer.known(maker), list(args), kwargs)
    return MadeCallable(kind, list(args), kwargs, closure)
