"""`bisect` and `heapq` by the Python code that the standard library has behind its functions in C. It compares items,
which may be the program's objects, and guards hold the outcome of each comparison instead of the numbers compared.
Schedulers of torch.optim search their milestones for the epoch, which changes from call to call.
"""

from __future__ import annotations

import bisect
import builtins
import heapq
from types import FunctionType, ModuleType
from typing import Any

from stator.dynamo.interpreter.calling import polyfill


def _refuse_import(name: str, *_: Any) -> ModuleType:
    raise ImportError(name)


def _python_functions(module: Any) -> dict[str, Any]:
    """The functions of a module before it imports those in C over them."""
    names: dict[str, Any] = {"__builtins__": {**vars(builtins), "__import__": _refuse_import}}
    exec(module.__loader__.get_code(module.__name__), names)
    functions: dict[str, Any] = {"__name__": module.__name__}
    for name, one in names.items():
        if isinstance(one, FunctionType):
            functions[name] = FunctionType(one.__code__, functions, name, one.__defaults__)
            functions[name].__kwdefaults__ = one.__kwdefaults__
    return functions


_BISECT, _HEAPQ = _python_functions(bisect), _python_functions(heapq)
for _name in ("bisect_right", "bisect_left", "insort_right", "insort_left"):
    polyfill(getattr(bisect, _name))(_BISECT[_name])
for _name in ("heappush", "heappushpop", "heapify", "nsmallest"):
    polyfill(getattr(heapq, _name))(_HEAPQ[_name])
_heappop, _heapreplace = _HEAPQ["heappop"], _HEAPQ["heapreplace"]


@polyfill(heapq.heappop)
def heappop(heap: list[Any], /) -> Any:
    if not heap:
        raise IndexError("index out of range")
    return _heappop(heap)


@polyfill(heapq.heapreplace)
def heapreplace(heap: list[Any], item: Any, /) -> Any:
    if not heap:
        raise IndexError("index out of range")
    return _heapreplace(heap, item)
