"""Python functions (real ones and those made in the frame), bound methods, functions written in C, and compiled
functions, of which capture follows the original."""

from __future__ import annotations

import operator
import typing
from types import (
    BuiltinMethodType,
    CodeType,
    FunctionType,
    GenericAlias,
    MethodType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import Any

from stator.dynamo.cache.entry import original
from stator.dynamo.codegen import support
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import (
    AttrSource,
    ClosureSource,
    ConstantSource,
    InstanceDictSource,
    ItemSource,
    Source,
)
from stator.dynamo.host.naming import class_name, is_python_class
from stator.dynamo.ir.reconstruct_ir import (
    CallRecipe,
    ConstantRecipe,
    GetAttr,
    Load,
    NewTuple,
    Recipe,
    call_effect,
    call_recipe,
)

from .base import CaptureContext, Lazy, Raised, Reconstructor, RunningFrame, Value, unsupported
from .constants import ConstantValue
from .containers.sequences import TupleValue
from .objects import lookup_in_class, meet_attributes
from .scopes import CellValue, GlobalScope, is_empty


def _fixed_default(context: CaptureContext, value: Any, source: Source) -> Value:
    """A default value under the guard that fixes the whole tuple of defaults."""
    if not context.is_constant_object(value):
        return Lazy(value, source)
    if type(value) is tuple:
        return TupleValue([context.known(item) for item in value], ConstantSource(str(source), value), tuple, value)
    return Lazy(value, ConstantSource(str(source), value)) if type(value) is frozenset else ConstantValue(value)


class FunctionValue(Value):
    """A Python function. `fn` is the real function; None for a function made in the frame.

    `fixed`: the function is a constant, or a guard holds its identity, not its code alone.
    """

    __slots__ = (
        "attributes",
        "closure",
        "code",
        "defaults",
        "fixed",
        "fn",
        "kwdefaults",
        "name",
        "qualname",
        "scope",
    )
    cls = FunctionType

    def __init__(
        self, fn: FunctionType | None, source: Source | None, code: CodeType, scope: GlobalScope, fixed: bool = True
    ) -> None:
        self.source = source
        self.fn = fn
        self.code = code
        self.scope = scope
        self.fixed = fixed
        self.name = fn.__name__ if fn is not None else code.co_name
        self.qualname = fn.__qualname__ if fn is not None else code.co_qualname
        self.defaults: list[Value] | None = None
        self.kwdefaults: dict[str, Value] | None = None
        self.closure: tuple[CellValue, ...] | None = None
        self.attributes: dict[str, Value] = {}
        if fn is None:
            self.defaults, self.kwdefaults, self.closure = [], {}, ()

    @classmethod
    def made(cls, frame: RunningFrame, code: CodeType) -> FunctionValue:
        return cls(None, None, code, frame.globals)

    def set_part(self, context: CaptureContext, part: str, value: Value) -> None:
        if part == "closure":
            self.closure = tuple(value.items)  # type: ignore[attr-defined]
        elif part == "defaults":
            self.defaults = list(context.iterate(value))
        elif part == "kwdefaults":
            self.kwdefaults = {key.constant(): item for key, item in context.mapping_items(value)}
        else:  # annotations: a tuple of alternating names and values
            self.attributes["__annotations__"] = context.dict_of(list(context.iterate(value)))

    # -- parts of a real function, read when first needed --
    def default_values(self, context: CaptureContext) -> list[Value]:
        if self.defaults is None:
            self.defaults = self._read_defaults(context, "__defaults__", enumerate(self.fn.__defaults__ or ()))  # type: ignore[union-attr]
        return self.defaults

    def keyword_defaults(self, context: CaptureContext) -> dict[str, Value]:
        if self.kwdefaults is None:
            real = self.fn.__kwdefaults__ or {}  # type: ignore[union-attr]
            values = self._read_defaults(context, "__kwdefaults__", real.items())
            self.kwdefaults = dict(zip(real, values, strict=True))
        return self.kwdefaults

    def _read_defaults(self, context: CaptureContext, attribute: str, entries: Any) -> list[Value]:
        entries = list(entries)
        if not entries:
            return []
        if self.source is None:
            return [context.known(value) for _, value in entries]
        whole = AttrSource(self.source, attribute)
        if self.fixed and attribute == "__defaults__":
            context.guard(whole, GuardKind.IS, self.fn.__defaults__)  # type: ignore[union-attr]
            return [_fixed_default(context, value, ItemSource(whole, key)) for key, value in entries]
        if attribute == "__defaults__":
            context.guard(whole, GuardKind.LENGTH, len(entries))
        return [Lazy(value, ItemSource(whole, key)) for key, value in entries]

    def cells(self, context: CaptureContext) -> tuple[CellValue, ...]:
        if self.closure is None:
            self.closure = tuple(
                self._read_cell(context, index, cell)
                for index, cell in enumerate(self.fn.__closure__ or ())  # type: ignore[union-attr]
            )
        return self.closure

    def _read_cell(self, context: CaptureContext, index: int, cell: Any) -> CellValue:
        known = context.real_cells.get(id(cell))
        source = None if self.source is None else ItemSource(AttrSource(self.source, "__closure__"), index)
        if known is not None:
            if source is not None and not (self.fixed and known.fixed) and source != known.source:
                context.guard(source, GuardKind.SAME, known.place(context))
            return known
        try:
            content: Value | None = context.lazy(
                cell.cell_contents, None if self.source is None else ClosureSource(self.source, index)
            )
        except ValueError:
            content = None
            if source is not None:
                context.guard(source, GuardKind.PREDICATE, is_empty)
        made = context.real_cells[id(cell)] = CellValue(content, source, cell, fixed=self.fixed)
        return made

    # -- protocol --
    def real(self) -> Any:
        if self.fn is None:
            return super().real()
        return self.fn

    def key(self, context: CaptureContext) -> Any:
        if self.fn is not None:
            return self.fn
        return super().key(context)

    def describe(self, context: CaptureContext) -> str:
        return f"the function {self.qualname}"

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return context.call_function(self, args, kwargs)

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        found = self.attributes.get(name)
        if found is not None:
            return found
        if name == "__code__":
            return ConstantValue(self.code)
        if name == "__call__":
            return self
        if name == "__dict__":
            return context.function_dict(self)
        if name == "__get__":
            return FunctionGetter(self)
        if name == "__class__":
            return context.known(FunctionType)
        if self.fn is None:
            return self._made_attr(context, name)
        if self.source is not None and not hasattr(FunctionType, name):
            meet_attributes(context, self.fn.__dict__)
            if name not in self.fn.__dict__:
                context.guard(InstanceDictSource(self.source), GuardKind.NOT_IN, name)
        real = context.run_real(getattr, (self.fn, name))
        if self.source is None:
            return context.known(real)
        return context.wrap(real, AttrSource(self.source, name))

    def _made_attr(self, context: CaptureContext, name: str) -> Value:
        if name == "__name__":
            return ConstantValue(self.name)
        if name == "__qualname__":
            return ConstantValue(self.qualname)
        if name == "__module__":
            return ConstantValue(self.scope.names.get("__name__"))
        if name == "__doc__":
            consts = self.code.co_consts
            return ConstantValue(consts[0] if consts and isinstance(consts[0], str) else None)
        none = ConstantValue(None)
        if name == "__annotations__":
            return self.attributes.setdefault(name, context.dict_of([]))
        if name == "__type_params__" and hasattr(FunctionType, name):  # CPython 3.12
            return context.tuple_of([])
        if name == "__defaults__":
            return context.tuple_of(self.defaults) if self.defaults else none
        if name == "__kwdefaults__" and not self.kwdefaults:
            return none
        if name == "__closure__":
            return context.tuple_of(list(self.closure)) if self.closure else none
        if hasattr(FunctionType, name):
            raise unsupported("attribute", f"{name} of {self.describe(context)}")
        raise context.raised(AttributeError, f"'function' object has no attribute '{name}'")

    def set_attr(self, context: CaptureContext, name: str, value: Value) -> None:
        if self.fn is not None:
            raise unsupported("attribute-write", f"writing attribute {name!r} of {self.describe(context)}")
        if name == "__name__":
            self.name = context.constant_of(value, "a function's name")
        elif name == "__qualname__":
            self.qualname = context.constant_of(value, "a function's name")
        elif name == "__defaults__":
            self.defaults = [] if context.is_none(value) else list(context.iterate(value))
        elif name in ("__doc__", "__module__", "__annotations__") or not hasattr(FunctionType, name):
            self.attributes[name] = value
        elif name == "__type_params__":  # CPython 3.12; functools.wraps writes it
            if not issubclass(value.python_type(context), tuple):
                raise context.raised(TypeError, "__type_params__ must be set to a tuple")
            self.attributes[name] = value
        else:
            raise unsupported("attribute-write", f"writing {name} of {self.describe(context)}")

    def del_attr(self, context: CaptureContext, name: str) -> None:
        if self.fn is not None or hasattr(FunctionType, name):
            raise unsupported("attribute-write", f"deleting attribute {name!r} of {self.describe(context)}")
        if self.attributes.pop(name, None) is None:
            raise context.raised(AttributeError, f"'function' object has no attribute '{name}'")

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.fn is not None:
            return Load(self.source) if self.source is not None else ConstantRecipe(self.fn)
        none = ConstantRecipe(None)
        made = call_recipe(
            support.new_function,
            ConstantRecipe(self.code),
            Load(self.scope.source),
            ConstantRecipe(self.name),
            ConstantRecipe(self.qualname),
            NewTuple([reconstructor.recipe(item) for item in self.defaults]) if self.defaults else none,
            reconstructor.string_dict(self.kwdefaults) if self.kwdefaults else none,
        )
        reconstructor.remember(self, made)
        made.args.extend(reconstructor.recipe(cell) for cell in self.closure or ())
        plain = True  # while all attributes so far are constants: their order is kept
        for name, value in self.attributes.items():
            plain &= type(value) is ConstantValue
            if plain or name == "__isabstractmethod__":
                reconstructor.marks.append(
                    call_effect(setattr, made, ConstantRecipe(name), reconstructor.recipe(value))
                )
            else:
                reconstructor.set_attr(made, name, value)
        return made


_METHODS_BIND = hasattr(MethodType, "__get__")  # since CPython 3.13; before, a method's `__get__` is its function's


class FunctionGetter(Value):
    """`function.__get__`, by which learning rate schedulers call an optimizer's step. That of a method returns the
    method."""

    __slots__ = ("function",)
    cls = MethodWrapperType

    def __init__(self, function: Value) -> None:
        self.source = None
        self.function = function

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        stays = isinstance(self.function, BoundMethodValue) or context.is_none(args[0])
        return self.function if stays else BoundMethodValue(self.function, args[0])


class BoundMethodValue(Value):
    """A Python function (or another callable) bound to an object."""

    __slots__ = ("function", "owner")
    cls = MethodType

    def __init__(self, function: Value, owner: Value, source: Source | None = None) -> None:
        self.source = source
        self.function = function
        self.owner = owner

    def real(self) -> Any:
        return MethodType(self.function.real(), self.owner.real())

    def describe(self, context: CaptureContext) -> str:
        return f"a method: {self.function.describe(context)}"

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        context.enters_through(self, self.function)
        return self.function.call(context, [self.owner, *args], kwargs)

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        if name == "__self__":
            return self.owner
        if name == "__func__":
            return self.function
        if name == "__call__":
            return self
        if name == "__get__" and _METHODS_BIND:
            return FunctionGetter(self)
        return self.function.get_attr(context, name)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        return CallRecipe(
            ConstantRecipe(MethodType), [reconstructor.recipe(self.function), reconstructor.recipe(self.owner)]
        )


class BuiltinMethodValue(Value):
    """A method of a class in C, bound to a value. `descriptor` is the method that super() found, if super() did."""

    __slots__ = ("descriptor", "name", "owner")

    def __init__(self, owner: Any, name: str, descriptor: Any = None) -> None:
        self.source = None
        self.descriptor = descriptor
        self.owner = owner
        self.name = name

    def python_type(self, context: CaptureContext) -> type:
        made_by = lookup_in_class(self.owner.python_type(context), self.name)
        return MethodWrapperType if isinstance(made_by, WrapperDescriptorType) else BuiltinMethodType

    def describe(self, context: CaptureContext) -> str:
        return f"the method {class_name(self.owner.python_type(context))}.{self.name}"

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        handler = self.owner.builtin_method(context, self.name)
        if handler is None:
            raise unsupported("call-builtin", f"calling {self.describe(context)}")
        return context.call_handler(handler, [self.owner, *args], kwargs)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        if self.descriptor is not None:
            return CallRecipe(ConstantRecipe(self.descriptor.__get__), [reconstructor.recipe(self.owner)])
        return GetAttr(reconstructor.recipe(self.owner), self.name)


_GENERIC: Any = typing._GenericAlias  # type: ignore[attr-defined]


class BuiltinValue(Value):
    """A callable that is not a Python function: a C function, a method descriptor, an operator overload."""

    __slots__ = ("fn",)

    def __init__(self, fn: Any, source: Source | None = None) -> None:
        self.source = source
        self.fn = fn

    def python_type(self, context: CaptureContext) -> type:
        return type(self.fn)

    def real(self) -> Any:
        return self.fn

    def constant(self) -> Any:
        return self.fn

    def key(self, context: CaptureContext) -> Any:
        context.run_real(hash, (self.fn,))  # `Annotated[int, {}]` has none
        return self.fn

    def describe(self, context: CaptureContext) -> str:
        module = getattr(self.fn, "__module__", None)
        name = getattr(self.fn, "__qualname__", None) or getattr(self.fn, "__name__", None) or repr(self.fn)
        return f"the built-in function {module + '.' if module else ''}{name}"

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if type(self.fn) is GenericAlias and self.fn.__origin__ in (dict, list, set, tuple):  # dict[str, Any]()
            return context.call(context.known(self.fn.__origin__), args, kwargs)
        if type(self.fn) is _GENERIC and is_python_class(self.fn.__origin__):  # a Generic class of the program
            made = context.call(context.known(self.fn.__origin__), args, kwargs)
            try:
                made.set_attr(context, "__orig_class__", self)
            except Raised as raised:  # as typing does, for objects that take no attribute
                if not issubclass(raised.value.python_type(context), AttributeError):
                    raise
            return made
        return context.call_builtin(self, args, kwargs)

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        real = context.run_real(getattr, (self.fn, name))
        return context.known(real)

    def get_item(self, context: CaptureContext, key: Value) -> Value:
        """Type expressions such as `List[Tensor]`."""
        if not context.is_immutable(self.fn):
            return super().get_item(context, key)
        return context.known(context.run_real(operator.getitem, (self.fn, context.real_of(key, "a type argument"))))

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return ConstantRecipe(self.fn)


class CompiledFunctionValue(Value):
    """The entry that `stator.compile(function)` returned. Its call is a call of the function."""

    __slots__ = ("entry",)

    def __init__(self, entry: Any, source: Source | None) -> None:
        self.source = source
        self.entry = entry

    def function(self, context: CaptureContext) -> Value:
        source = None if self.source is None else AttrSource(self.source, "_function")
        return context.wrap(original(self.entry), source)

    def python_type(self, context: CaptureContext) -> type:
        return type(self.entry)

    def real(self) -> Any:
        return self.entry

    def key(self, context: CaptureContext) -> Any:
        return self.entry

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        function = self.function(context)
        context.enters_through(self, function)
        return function.call(context, args, kwargs)

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        return self.function(context).get_attr(context, name)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return ConstantRecipe(self.entry) if self.source is None else Load(self.source)
