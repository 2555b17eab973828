"""Sources -> instructions: a function per class of source. Each pushes the content of the source."""

from __future__ import annotations

import builtins
import sys
from types import ModuleType
from typing import Any

from stator.base.errors import CompileError
from stator.dynamo.guards.size_guards import size, stride
from stator.dynamo.guards.source import (
    AttrSource,
    BuiltinSource,
    CallSource,
    CellSource,
    ClosureSource,
    ConstantSource,
    FunctionSource,
    GlobalSource,
    InstanceDictSource,
    ItemSource,
    LocalSource,
    ModuleGlobalSource,
    ReadSource,
    SizeSource,
    StrideSource,
    TypeSource,
)
from stator.dynamo.host.naming import with_fresh_tuples
from stator.dynamo.ir.resume import resumption_of

from . import support
from .writer import Writer, sources

_EXACT = (list, tuple, dict)
_NAMESPACE = AttrSource(FunctionSource(), "__globals__")  # all functions with this code share it


@sources.register(LocalSource)
def _local(writer: Writer, source: LocalSource) -> None:
    if source.name in writer.made_cells:
        writer.builder.load_content(source.name)
    else:
        writer.builder.load_bound(source.name)


@sources.register(CellSource)
def _cell(writer: Writer, source: CellSource) -> None:
    writer.builder.load_content(source.name)


@sources.register(FunctionSource)
def _function(writer: Writer, source: FunctionSource) -> None:
    function = writer.captured.function
    if resumption_of(function.__code__) is not None:  # each call runs with a function that has its own cells
        raise CompileError("dynamo", "resume code that reads its own function object")
    writer.builder.const(function)


@sources.register(GlobalSource)
def _global(writer: Writer, source: GlobalSource) -> None:
    writer.builder.load_global(source.name)


@sources.register(ModuleGlobalSource)
def _module_global(writer: Writer, source: ModuleGlobalSource) -> None:
    writer.builder.const(sys.modules[source.module].__dict__)
    writer.builder.const(source.name)
    writer.builder.item()


@sources.register(BuiltinSource)
def _builtin(writer: Writer, source: BuiltinSource) -> None:
    writer.builder.const(builtins.__dict__)
    writer.builder.const(source.name)
    writer.builder.item()


@sources.register(ConstantSource)
def _constant(writer: Writer, source: ConstantSource) -> None:
    writer.builder.const(source.value)


@sources.register(AttrSource)
def _attr(writer: Writer, source: AttrSource) -> None:
    if source == _NAMESPACE:
        writer.builder.const(writer.captured.function.__globals__)
        return
    writer.load_source(source.base)
    writer.builder.attr(source.name)


@sources.register(InstanceDictSource)
def _instance_dict(writer: Writer, source: InstanceDictSource) -> None:
    if _reads_dict_plainly(writer.types.get(source.base)):
        writer.load_source(source.base)
        writer.builder.attr("__dict__")
    else:
        writer.builder.const_callee(support.instance_dict)
        writer.load_source(source.base)
        writer.builder.call(1)


def _reads_dict_plainly(kind: Any) -> bool:
    """Whether `x.__dict__` runs no user code for an instance of exactly this class."""
    if not isinstance(kind, type) or kind.__getattribute__ not in _PLAIN_READERS:
        return False
    return not any("__dict__" in base.__dict__ and _overrides_dict(base) for base in kind.__mro__)


_PLAIN_READERS = (object.__getattribute__, ModuleType.__getattribute__)


def _overrides_dict(base: type) -> bool:
    return type(base.__dict__["__dict__"]).__name__ not in ("getset_descriptor", "member_descriptor")


@sources.register(ItemSource)
def _item(writer: Writer, source: ItemSource) -> None:
    exact = isinstance(source.base, InstanceDictSource) or writer.types.get(source.base) in _EXACT
    if not exact:
        writer.builder.const_callee(support.read_item)
    writer.load_source(source.base)
    writer.builder.const(with_fresh_tuples(source.key))
    if exact:
        writer.builder.item()
    else:
        writer.builder.call(2)


@sources.register(SizeSource, StrideSource)
def _size(writer: Writer, source: SizeSource | StrideSource) -> None:
    writer.builder.const_callee(size if isinstance(source, SizeSource) else stride)
    writer.load_source(source.base)
    writer.builder.const(source.dim)
    writer.builder.call(2)


@sources.register(TypeSource)
def _type(writer: Writer, source: TypeSource) -> None:
    writer.builder.const_callee(type)
    writer.load_source(source.base)
    writer.builder.call(1)


@sources.register(ClosureSource)
def _closure(writer: Writer, source: ClosureSource) -> None:
    writer.load_source(source.base)
    writer.builder.attr("__closure__")
    writer.builder.const(source.index)
    writer.builder.item()
    writer.builder.attr("cell_contents")


@sources.register(CallSource, ReadSource)
def _call(writer: Writer, source: CallSource) -> None:
    writer.builder.const_callee(source.function)
    for argument in source.args:
        writer.load_source(argument)
    writer.builder.call(len(source.args))
