"""The text that identifies a functional graph: two graphs with one text are equal in all that compiling them reads.

For keys of caches on disk. It knows no addresses and no process; what has no such text raises NoIdentity.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from stator.prims.record import TensorMeta
from stator.shapes.conditions import Comparison, Conjunction, Disjunction
from stator.shapes.environment import Environment
from stator.shapes.expr import Expr
from stator.shapes.floats import FloatExpr
from stator.shapes.sym_node import to_expression

from .schema import op_info
from .size_bindings import SYMBOLIC, ResultPlace, SizeBinding, environment_of

# What compiling a functional graph never reads: where nodes came from, and notes of earlier stages and for later ones
_UNREAD = frozenset(("place", "origin", "backward", "checkpoint", "requires_grad", "again", "peak"))
# Namespaces whose operators are fixed by the versions of torch and stator
_BUILT_IN = frozenset(("aten", "prims", "stator", "mkldnn", "mkl", "onednn"))
MOST_BYTES = 1 << 26  # of a constant


class NoIdentity(Exception):
    """A part of a graph is known to this process alone, or too large."""


def graph_identity(gm: fx.GraphModule) -> str:
    """The text of a functional graph, with what is known about its sizes. Raises NoIdentity."""
    parts = [_items(gm.meta)]
    for node in gm.graph.nodes:
        if node.meta.get("foreign"):
            raise NoIdentity("the program may change a tensor that the graph reads")
        target = node.target if node.op != "get_attr" else _attribute(gm, str(node.target))
        parts.append(f"{node.op} {node.name} {text(target)} {text(node.args)} {text(node.kwargs)} {_items(node.meta)}")
    environment = environment_of(gm.graph)
    if environment is not None:
        parts.append(environment_identity(environment))
    return "\n".join(parts)


def environment_identity(environment: Environment) -> str:
    """The text of all that answers to questions about sizes depend on."""
    parts = environment.hints, environment.ranges, environment.replacements, environment.assumes
    return text((*parts, [fact.condition for fact in environment.facts]))


def _attribute(gm: fx.GraphModule, name: str) -> Any:
    value: Any = gm
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _items(meta: dict[str, Any]) -> str:
    return ", ".join([f"{name}: {text(value)}" for name, value in sorted(meta.items()) if name not in _UNREAD])


def text(value: Any) -> str:
    writer = _WRITERS.get(type(value))
    if writer is None:
        if value is operator.getitem:
            return "getitem"
        writer = next((found for kind, found in _FAMILIES if isinstance(value, kind)), None)
        if writer is None:
            raise NoIdentity(f"{type(value).__qualname__} has no text that other processes understand")
        _WRITERS[type(value)] = writer
    return writer(value)


def _sequence(value: Any) -> str:
    return f"({', '.join([text(item) for item in value])})"


def _list(value: Any) -> str:
    return f"[{', '.join([text(item) for item in value])}]"


def _dict(value: Any) -> str:
    return f"{{{', '.join([f'{text(key)}: {text(item)}' for key, item in value.items()])}}}"


def _operator(target: OpOverload) -> str:
    if target.namespace in _BUILT_IN:
        return f"{target}"
    info = op_info(target)  # a library of the program may define it in another way tomorrow
    return f"{target} {target._schema} {sorted(map(str, target.tags))} {sorted(info.record.tags)} {info.composite}"


def _meta(meta: TensorMeta) -> str:
    return f"meta{_sequence((meta.shape, meta.stride, meta.dtype, meta.device, meta.offset, meta.view_of))}"


def _tensor(value: torch.Tensor) -> str:
    """A constant by its contents."""
    if not is_plain(value) or value.nbytes > MOST_BYTES:
        raise NoIdentity("a tensor is not an array of numbers, or is too large")
    contents = hashlib.sha256(contents_of(value)).hexdigest()
    return f"tensor{_sequence((value.shape, value.stride(), value.dtype, value.device))} {contents}"


def is_plain(value: torch.Tensor) -> bool:
    """Whether sizes, strides, dtype, device and contents are all there is to a tensor."""
    plain = type(value) is torch.Tensor and value.layout is torch.strided and not value.requires_grad
    return plain and not (value.is_conj() or value.is_neg() or value.is_quantized)


def contents_of(value: torch.Tensor) -> bytes:
    """The elements of a plain tensor, in the order of its indices."""
    with torch._C._InferenceMode(False), torch.no_grad(), torch._C._DisableTorchDispatch():
        elements = value.detach().cpu().contiguous().reshape(-1)
        return elements.view(torch.uint8).numpy().tobytes() if elements.numel() else b""


def _symbolic(value: Any) -> str:
    expression = to_expression(value)
    if expression is value:
        raise NoIdentity("a symbolic number of another kind")
    return f"{type(value).__name__}<{expression}>"


def writes(kind: type) -> Callable[[Callable[[Any], str]], Callable[[Any], str]]:
    """Register a function that writes the text of values of one type."""

    def register(writer: Callable[[Any], str]) -> Callable[[Any], str]:
        _WRITERS[kind] = writer
        return writer

    return register


_EXPRESSIONS = (Expr, FloatExpr, Comparison, Conjunction, Disjunction)
_NAMED = (torch.dtype, torch.layout, torch.memory_format, torch.device)
_WRITERS: dict[type, Callable[[Any], str]] = {
    fx.Node: lambda node: f"%{node.name}",
    TensorMeta: _meta,
    OpOverload: _operator,
    torch.Tensor: _tensor,
    **dict.fromkeys((int, bool, float, complex, str, type(None), type(...), SizeBinding, ResultPlace, range), repr),
    **dict.fromkeys(_NAMED, str),
    **dict.fromkeys(SYMBOLIC, _symbolic),
    slice: lambda value: f"slice{_sequence((value.start, value.stop, value.step))}",
    frozenset: lambda value: f"frozenset{sorted(map(text, value))}",
    set: lambda value: f"set{sorted(map(text, value))}",
}
_FAMILIES: tuple[tuple[type | tuple[type, ...], Callable[[Any], str]], ...] = (
    (tuple, _sequence),
    (list, _list),
    (dict, _dict),
    (_EXPRESSIONS, lambda value: f"{type(value).__name__}<{value}>"),
)
