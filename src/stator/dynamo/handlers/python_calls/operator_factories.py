"""`operator.attrgetter`, `itemgetter` and `methodcaller`, where captured code makes one."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stator.dynamo.handlers.polyfills import operator_module
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.values.base import Value
from stator.dynamo.values.partials import MadeCallable

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext


@calls(operator.attrgetter)
def _attrgetter(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
    return _made(context, operator.attrgetter, operator_module.attrgetter, args, kwargs)


@calls(operator.itemgetter)
def _itemgetter(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
    return _made(context, operator.itemgetter, operator_module.itemgetter, args, kwargs)


@calls(operator.methodcaller)
def _methodcaller(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
    return _made(context, operator.methodcaller, operator_module.methodcaller, args, kwargs)


def _made(
    context: CaptureContext, kind: type, maker: Callable[..., Any], args: tuple[Value, ...], kwargs: dict[str, Value]
) -> Value:
    if kwargs and kind is not operator.methodcaller:
        raise context.raised(TypeError, f"{kind.__name__}() takes no keyword arguments")
    if not args and kind is operator.methodcaller:
        raise context.raised(TypeError, "methodcaller needs at least one argument, the method name")
    closure = context.call(context.known(maker), list(args), kwargs)
    return MadeCallable(kind, list(args), kwargs, closure)
