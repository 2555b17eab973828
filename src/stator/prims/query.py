"""Queries of operators: by name, tag and level. `extend.py` changes records."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from stator.base.errors import UsageError
from stator.base.registry import Registry

from .record import OpRecord, record, records

LEVELS = ("aten", "prims")

# The module of a backend's lowerings, loaded on demand because this floor imports nothing above it.
BACKENDS = {"inductor": "stator.inductor.lower"}


def lookup(operator: str | OpOverload | OpOverloadPacket) -> OpRecord:
    """Return the record of an operator: `lookup("aten.add.Tensor")`, or "add.Tensor", "aten::relu", or the overload
    itself.

    An operator unknown to stator has an empty record. Raises UsageError, with the nearest names, for an operator
    unknown to torch.
    """
    return record(overload_of(operator))


def operators(
    *, tag: str | None = None, level: str | None = None, namespace: str | None = None, backend: str | None = None
) -> Iterator[OpRecord]:
    """Return all non-empty records, sorted by name; filtered by tag, level, and lowering by a backend.

    level: "prims", or "aten" for canonical ATen, which includes the prims. Raises UsageError for an unknown level, tag
        or backend.
    """
    if level is not None and level not in LEVELS:
        raise UsageError(f"unknown level {level!r}; known levels: {', '.join(LEVELS)}")
    entries = sorted((records[target] for target in records), key=lambda entry: entry.name)
    known = {name for entry in entries for name in entry.tags}
    if tag is not None and tag not in known:
        raise UsageError(f"unknown tag {tag!r}{_guess(tag, known)}; known tags: {', '.join(sorted(known))}")
    lowered = None if backend is None else lowerings_of(backend)
    return (
        entry
        for entry in entries
        if _says_something(entry)
        and (tag is None or tag in entry.tags)
        and (level is None or entry.level == level or (level == "aten" and entry.level == "prims"))
        and (namespace is None or entry.target.namespace == namespace)
        and (lowered is None or entry.target in lowered)
    )


def is_lowered(operator: str | OpOverload | OpOverloadPacket, backend: str = "inductor") -> bool:
    """Whether a backend generates code for an operator, or chooses a library kernel for it. Other operators are
    decomposed, or fall back to the library."""
    return overload_of(operator) in lowerings_of(backend)


def lowerings_of(backend: str) -> Registry[OpOverload, Callable[..., Any]]:
    """Return the table of a backend's lowerings. Raises UsageError for a backend without lowerings."""
    module = BACKENDS.get(backend)
    if module is None:
        raise UsageError(f"no backend {backend!r} with lowerings; there is: {', '.join(BACKENDS)}")
    return importlib.import_module(module).lowerings


def overload_of(operator: str | OpOverload | OpOverloadPacket) -> OpOverload:
    """Return the overload for a name or for an operator of `torch.ops`; see `lookup`."""
    if isinstance(operator, OpOverload):
        return operator
    if isinstance(operator, OpOverloadPacket):
        return _only_overload(operator)
    opoverload = getattr(operator, "_opoverload", None)  # an operator of torch.library.custom_op
    if isinstance(opoverload, OpOverload):
        return opoverload
    if not isinstance(operator, str):
        raise UsageError(f"an operator is named by a string or an overload of torch.ops, not {operator!r}")
    namespace, name, overload = _parts(operator)
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if packet is None:
        raise UsageError(f"there is no operator {operator!r}{_guess(f'{namespace}.{name}', _names())}")
    if not overload:
        return _only_overload(packet)
    if overload not in packet.overloads():
        raise UsageError(
            f"{namespace}.{name} has no overload {overload!r}{_guess(overload, packet.overloads())}; "
            f"it has: {', '.join(packet.overloads())}"
        )
    return getattr(packet, overload)


def _parts(name: str) -> tuple[str, str, str]:
    """Return namespace, operator and overload; the last is empty if not given."""
    parts = name.removeprefix("torch.ops.").replace("::", ".").split(".")
    if not 1 <= len(parts) <= 3 or not all(part.isidentifier() for part in parts):
        raise UsageError(f"{name!r} is not the name of an operator; write it as 'namespace.operator.overload'")
    if len(parts) == 1 or (len(parts) == 2 and parts[0] != "aten" and _has(torch.ops.aten, parts[0])):
        parts.insert(0, "aten")
    return parts[0], parts[1], parts[2] if len(parts) == 3 else ""


def _has(namespace: Any, name: str) -> bool:
    return getattr(namespace, name, None) is not None


def _only_overload(packet: OpOverloadPacket) -> OpOverload:
    names = [name for name in packet.overloads() if _is_dispatched(getattr(packet, name))]
    if "default" not in names and len(names) != 1:
        raise UsageError(f"{packet} has several overloads, name one: {', '.join(f'{packet}.{one}' for one in names)}")
    return getattr(packet, "default" if "default" in names else names[0])


def _is_dispatched(target: OpOverload) -> bool:
    """False for overloads that exist for TorchScript alone, on numbers and strings."""
    try:
        return torch._C._dispatch_has_kernel(target.name())
    except RuntimeError:
        return False


def _names() -> set[str]:
    return {str(target).rpartition(".")[0] for target in records}


def _guess(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _says_something(entry: OpRecord) -> bool:
    return bool(entry.shape or entry.decompose or entry.tags)
