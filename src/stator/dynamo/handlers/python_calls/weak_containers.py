"""Containers whose items go by themselves: weakref.WeakValueDictionary, WeakKeyDictionary, WeakSet. Another thread or a
collection may take items away between a guard and what was captured, where eager Python asks and changes in one go. So
what changes one, or goes through it, is done natively; looking one key up is followed like any other code.
"""

from __future__ import annotations

import weakref
from types import FunctionType
from typing import TYPE_CHECKING, NoReturn

from stator.dynamo.host.hook import skip_frame
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.values.base import Value, unsupported

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext

_FOLLOWED = frozenset({"__getitem__", "__contains__", "__len__", "get"})


def _functions(cls: type) -> list[FunctionType]:
    found = [value for value in vars(cls).values() if type(value) is FunctionType]
    return [function for function in dict.fromkeys(found) if function.__name__ not in _FOLLOWED]


def _keep_native(cls: type, function: FunctionType) -> None:
    skip_frame(function.__code__)

    @calls(function)
    def refuse(context: CaptureContext, *args: Value, **kwargs: Value) -> NoReturn:
        raise unsupported("weak-container", f"{cls.__name__}.{function.__name__}, whose items others may let go of")


for _cls in (weakref.WeakValueDictionary, weakref.WeakKeyDictionary, weakref.WeakSet):
    for _function in _functions(_cls):
        _keep_native(_cls, _function)
