"""Aliasing between buffers, and the buffers that a step reads and writes. Memory is planned in plan.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stator.inductor.buffers import Buffer, Extern, Layout, View
from stator.inductor.schedule.groups import Combination, Group
from stator.inductor.sizes import SizeKnowledge
from stator.prims.layout import extent


def layout_bytes(layout: Layout) -> Any:
    """Bytes from the start of the memory to the end of the last element, the layout's offset included: an int, or an
    expression over sizes."""
    reach = extent(layout.size, layout.stride)
    return 0 if reach == 0 else (layout.offset + reach) * layout.dtype.itemsize


def typical_bytes(layout: Layout, sizes: SizeKnowledge) -> int:
    """`layout_bytes` in the example."""
    return sizes.hint(layout_bytes(layout))


def buffers_in(value: Any, buffers: Mapping[str, Buffer]) -> Iterator[str]:
    """The names of buffers in a tree of arguments or outputs, including the bases of Views."""
    if isinstance(value, str):
        if value in buffers:
            yield value
    elif isinstance(value, View):
        yield value.base
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from buffers_in(item, buffers)
    elif isinstance(value, dict):
        for item in value.values():
            yield from buffers_in(item, buffers)


def reads_of(step: Group | Combination | Extern, buffers: Mapping[str, Buffer]) -> tuple[str, ...]:
    if isinstance(step, Group | Combination):
        return step.reads
    return tuple(dict.fromkeys((*buffers_in((step.args, step.kwargs), buffers), *step.keeps)))


def writes_of(step: Group | Combination | Extern) -> tuple[str, ...]:
    """The buffers that the step fills or changes."""
    if isinstance(step, Group | Combination):
        return step.writes
    return tuple(dict.fromkeys((*(name for name in step.outputs if name is not None), *step.mutates)))


def is_check(extern: Extern) -> bool:
    """True if the call has no result, so that it can only raise."""
    return extern.style == "mutates" and not extern.mutates


# These return views, or an argument itself, although their schemas do not say so
_UNDECLARED_VIEWS = frozenset(("aten::_unsafe_view", "aten::_reshape_alias", "_c10d_functional::wait_tensor"))


def may_alias_arguments(extern: Extern) -> bool:
    """True if results of this call may be views of its arguments, by the operator's schema. A plain function has no
    schema, so its results may always be views."""
    if extern.style != "returns":
        return False
    schema = getattr(extern.target, "_schema", None)
    if schema is None:
        return True
    return schema.name in _UNDECLARED_VIEWS or any(returned.alias_info is not None for returned in schema.returns)


class AliasAnalysis:
    """Maps each buffer to the buffers whose memory it may share (to itself when it has memory of its own)."""

    def __init__(self, buffers: Mapping[str, Buffer], steps: tuple[Group | Combination | Extern, ...]) -> None:
        self._roots: dict[str, frozenset[str]] = {}
        for name, buffer in buffers.items():
            if buffer.kind == "computed" and isinstance(buffer.value, str):
                self._roots[name] = frozenset((buffer.value,))
        for step in steps:
            if isinstance(step, Extern) and may_alias_arguments(step):
                shared = frozenset(root for read in reads_of(step, buffers) for root in self.roots(read))
                for output in step.outputs:
                    if output is not None:
                        self._roots[output] = frozenset((output,)) | shared

    def roots(self, name: str) -> frozenset[str]:
        return self._roots.get(name) or frozenset((name,))

    def is_own(self, name: str) -> bool:
        """True if the buffer shares its memory with no other buffer."""
        return name not in self._roots
