"""Plain data as text and bytes: `json` and `struct`, of constants known while capturing. Their own code is not
followed, and what they would ask the program about (its classes, `default`, hooks) ends the graph."""

from __future__ import annotations

import json
import json.decoder
import json.encoder
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stator.base.signals import raised_by_signal_handler
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource
from stator.dynamo.interpreter.calling import calls, fold
from stator.dynamo.values.base import NotConstant, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.containers.sequences import ListValue, TupleValue

if TYPE_CHECKING:
    from stator.dynamo.interpreter.capture_context import CaptureContext

fold(struct.pack, struct.unpack, struct.calcsize)

_ATOMS = (str, int, float, bool, type(None))
_DEEPEST = 50
_MOST, _LONGEST = 256, 4096  # how many constants are relied on one by one, and how long a text may be
_OPTIONS = frozenset({"skipkeys", "ensure_ascii", "check_circular", "allow_nan", "indent", "separators", "sort_keys"})


@calls(json.dumps)
def _dumps(context: CaptureContext, obj: Value, **options: Value) -> Value:
    if not _OPTIONS.issuperset(options):
        raise unsupported("call-builtin", "json.dumps with a class or a function of the program")
    data = _data(context, obj)
    known = {name: _data(context, value) for name, value in options.items()}
    return ConstantValue(_run(context, encodes_as_ever, json.dumps, data, known))


@calls(json.loads)
def _loads(context: CaptureContext, s: Value, **options: Value) -> Value:
    if options:
        raise unsupported("call-builtin", "json.loads with options")
    text = _data(context, s)
    if type(text) is str and len(text) > _LONGEST:
        raise unsupported("call-builtin", "json.loads of a long text")
    return _value(context, _run(context, decodes_as_ever, json.loads, text, {}))


def _run(
    context: CaptureContext, as_ever: Callable[[], bool], function: Any, data: Any, options: dict[str, Any]
) -> Any:
    if not as_ever():
        raise unsupported("call-builtin", f"json.{function.__name__}, parts of which the program has replaced")
    context.guard(CallSource(as_ever), GuardKind.EQUALS, True)
    try:
        return function(data, **options)
    except Exception as error:  # it is raised again, by the real call, with what it carries
        if raised_by_signal_handler(error):
            raise
        raise unsupported("call-builtin", f"json.{function.__name__}, which raises {type(error).__name__}") from error


def _data(context: CaptureContext, value: Value, depth: int = 0, seen: list[Any] | None = None) -> Any:
    """The real data that a value stands for. Raises Unsupported where that is no plain data, much, or holds itself."""
    value = context.realized(value)
    seen = [] if seen is None else seen
    if depth < _DEEPEST and len(seen) < _MOST:
        if isinstance(value, ListValue) and value.cls is list:
            return [_data(context, item, depth + 1, seen) for item in value.items]
        if isinstance(value, TupleValue) and value.cls is tuple:
            return tuple([_data(context, item, depth + 1, seen) for item in value.items])
        if isinstance(value, DictValue) and value.cls is dict:
            pairs = value.items(context)
            return {_data(context, key, depth + 1, seen): _data(context, item, depth + 1, seen) for key, item in pairs}
        try:
            seen.append(value.constant())
        except NotConstant:
            seen.append(value)
        if type(seen[-1]) in _ATOMS:
            return seen[-1]
    raise unsupported("call-builtin", f"json with {value.describe(context)} in it, or very much")


def _value(context: CaptureContext, data: Any, depth: int = 0) -> Value:
    if depth > _DEEPEST:
        raise unsupported("call-builtin", "json.loads of deeply nested data")
    if type(data) is list:
        return ListValue([_value(context, item, depth + 1) for item in data])
    if type(data) is not dict:
        return ConstantValue(data)
    made = DictValue({})
    for key, item in data.items():
        made.put(context, ConstantValue(key), _value(context, item, depth + 1))
    return made


# ---- what programs replace for all of a process ----


def _parts_of(*owners: tuple[Any, tuple[str, ...]]) -> tuple[tuple[Any, str, Any], ...]:
    return tuple((owner, name, vars(owner)[name]) for owner, names in owners for name in names)


_ENCODING = _parts_of(
    (json, ("JSONEncoder", "_default_encoder")),
    (json.JSONEncoder, ("__init__", "encode", "iterencode", "item_separator", "key_separator")),
    (json.encoder, ("c_make_encoder", "encode_basestring", "encode_basestring_ascii", "_make_iterencode")),
)
_DECODING = _parts_of(
    (json, ("JSONDecoder", "_default_decoder")),
    (json.JSONDecoder, ("decode", "raw_decode")),
)
_ENCODER, _DECODER = dict(vars(json._default_encoder)), dict(vars(json._default_decoder))  # type: ignore[attr-defined]


def encodes_as_ever() -> bool:
    """Guard: the parts of `json.dumps` are those that were there when this was imported."""
    settled = vars(json._default_encoder) == _ENCODER  # type: ignore[attr-defined]
    return settled and all(vars(owner).get(name) is part for owner, name, part in _ENCODING)


def decodes_as_ever() -> bool:
    """Guard: the parts of `json.loads` are those that were there when this was imported."""
    settled = vars(json._default_decoder) == _DECODER  # type: ignore[attr-defined]
    return settled and all(vars(owner).get(name) is part for owner, name, part in _DECODING)
