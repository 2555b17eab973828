"""Finds called functions that compute with NumPy alone. If such a function breaks, it runs as it is: no tensor is at
hand in it, and each piece of it between two breaks would cost a version, with guards, for a few kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CellType, CodeType, FunctionType, ModuleType, NoneType
from typing import Any

from stator.base.errors import Unsupported
from stator.dynamo.host.break_kinds import PROGRAM_ERRORS
from stator.dynamo.host.naming import module_of
from stator.dynamo.ir.prepared_code import global_names
from stator.dynamo.values.base import Value, unsupported
from stator.dynamo.values.containers.sequences import SequenceValue
from stator.dynamo.values.functions import FunctionValue

from .frame import Frame

_PLAIN = frozenset({int, float, complex, bool, str, NoneType, range, slice})
_ITERATORS: tuple[type, ...] = (type(iter([])), type(iter(())), type(iter(range(0))), zip, enumerate)
_EMPTY = CellType()
_DEPTH = 6  # of containers and functions inside of one another


def outside_numpy(frames: Sequence[Frame], error: Unsupported) -> tuple[Sequence[Frame], Unsupported | None]:
    """The frames around the first call of a function that computes with NumPy alone, and the reason for a break at the
    call instead of the error; all frames without such a call."""
    for at, frame in enumerate(frames if error.kind not in (*PROGRAM_ERRORS, "debugger") else ()):
        if at and _computes_with_numpy(frame):
            what = f"{frame.name} computes with NumPy alone and breaks ({error.kind}: {error.reason})"
            return frames[:at], unsupported("numpy-function", what)
    return frames, None


def _computes_with_numpy(frame: Frame) -> bool:
    """Whether a function names NumPy, and reaches no tensor by its arguments, its variables in cells, or globals."""
    found = list(_named(frame.program.code, frame.globals.names))
    if not frame.called or not any(type(one) is ModuleType and _is_numpy(one.__name__) for one in found):
        return False
    held = [*frame.arguments.values(), *(cell.content for cell in frame.cells.values())]
    return _reach_no_tensor(frame, (*held, *found), _DEPTH)


def _reach_no_tensor(frame: Frame, held: Iterable[Any], depth: int) -> bool:
    """Whether these values and objects are numbers, text, arrays, and functions and containers of nothing else."""
    return depth > 0 and all(_reaches_no_tensor(frame, one, depth - 1) for one in held)


def _reaches_no_tensor(frame: Frame, held: Any, depth: int) -> bool:
    if isinstance(held, SequenceValue):
        return _reach_no_tensor(frame, held.items, depth)
    real = getattr(held, "fn" if isinstance(held, FunctionValue) else "obj", None) if isinstance(held, Value) else held
    held = held if real is None else real
    if type(held) in _ITERATORS:
        held = held.__reduce__()[1]
    if type(held) in (list, tuple):
        return _reach_no_tensor(frame, held, depth)
    if type(held) is FunctionType:
        contents = [cell.cell_contents for cell in held.__closure__ or () if cell != _EMPTY]
        return _reach_no_tensor(frame, (*contents, *_named(held.__code__, held.__globals__)), depth)
    if type(held) is ModuleType:
        return _is_numpy(held.__name__)
    kind = held.python_type(frame.context) if isinstance(held, Value) else type(held)
    return kind in _PLAIN or _is_numpy(module_of(kind))


def _is_numpy(module: str) -> bool:
    return module.partition(".")[0] == "numpy"


def _named(code: CodeType, names: Mapping[str, Any]) -> Iterator[Any]:
    """The globals that the code, or a function inside of it, names."""
    return (names[name] for name in global_names(code) if name in names)
