"""Exceptions that captured code makes, raises and catches. Their causes, contexts and tracebacks are not modelled."""

from __future__ import annotations

import types
from collections.abc import Callable
from types import FunctionType, TracebackType
from typing import Any

from stator.base.errors import UserPlace
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import AttrSource, InstanceDictSource, Source
from stator.dynamo.host.naming import class_name, is_python_class
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Load, Recipe, call_recipe

from .base import CaptureContext, Handler, NotConstant, Reconstructor, Value, cannot_rebuild, unsupported
from .constants import ConstantValue
from .containers.sequences import TupleValue
from .objects import C_METHODS, MISSING, lookup_in_class


class ExceptionValue(Value):
    """An exception of class `cls` with `args`. `attributes` holds what the program has set."""

    __slots__ = ("_args", "attributes", "caught_at", "cls", "obj", "place")

    def __init__(
        self,
        cls: type,
        args: list[Value] | Callable[[], list[Value]],
        source: Source | None = None,
        obj: BaseException | None = None,
    ) -> None:
        """`args` may be a function that makes the arguments at their first use."""
        self.obj = obj
        self.source = source
        self.cls = cls
        self._args = args
        self.attributes: dict[str, Value] = {}
        self.place: UserPlace | None = None
        self.caught_at: int | None = None  # the step of the outermost frame that raised it first

    @property
    def args(self) -> list[Value]:
        if callable(self._args):
            self._args = self._args()
        return self._args

    @args.setter
    def args(self, args: list[Value]) -> None:
        self._args = args

    def real(self) -> Any:
        return super().real() if self.obj is None else self.obj

    def special(self, context: CaptureContext, name: str) -> Value | None:
        """The bound special method if the class defines it in Python, or None."""
        found = context.class_lookup(self.cls, name)
        if found is MISSING or found is getattr(BaseException, name, MISSING):
            return None
        if found is None or isinstance(found, C_METHODS):
            raise unsupported("special-method", f"{name} of {self.describe(context)}")
        return context.bind(self, self.cls, name, found)

    def truth(self, context: CaptureContext) -> bool:
        return context.override_truth(self, True)

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        if self.special(context, "__getattribute__") is not None:
            raise unsupported("attribute", f"{name} of {self.describe(context)}, whose class defines __getattribute__")
        if name in self.attributes:
            return self.attributes[name]
        if name == "args":
            return TupleValue(list(self.args))
        if name == "__traceback__" or (name == "value" and context.class_lookup(self.cls, name) is _VALUE):
            return self._field(context, name)
        if name == "__class__":
            return context.known(self.cls)
        if self.obj is not None and self.source is not None:
            if name in vars(self.obj):
                return context.wrap(vars(self.obj)[name], AttrSource(self.source, name))
            context.guard(InstanceDictSource(self.source), GuardKind.NOT_IN, name)
        raw = context.class_lookup(self.cls, name)
        if isinstance(raw, _OF_C):
            raise unsupported("attribute", f"{name} of {self.describe(context)}")
        if raw is MISSING:
            if self.special(context, "__getattr__") is not None:
                raise unsupported("attribute", f"{name} of {self.describe(context)}, whose class has a __getattr__")
            raise context.raised(AttributeError, f"'{class_name(self.cls)}' object has no attribute '{name}'")
        return context.bind(self, self.cls, name, raw)

    def _field(self, context: CaptureContext, name: str) -> Value:
        """A field of the C object. Programs may write fields of existing exceptions, `value` among them."""
        if self.source is not None:
            return context.wrap(getattr(self.obj, name), AttrSource(self.source, name))
        if name == "value":
            return self.args[0] if self.args else ConstantValue(None)
        return ConstantValue(None) if self.caught_at is None else TracebackValue(self)

    def builtin_method(self, context: CaptureContext, name: str) -> Handler | None:
        return _init if name == "__init__" else None

    def set_attr(self, context: CaptureContext, name: str, value: Value) -> None:
        if self.source is not None:
            super().set_attr(context, name, value)
        if self.special(context, "__setattr__") is not None:
            raise unsupported("attribute-write", f"{name} of {self.describe(context)}, whose class defines __setattr__")
        if name == "__traceback__" and isinstance(value, TracebackValue) and value.error is self:
            return  # as contextlib does; the exception never leaves the graph
        if isinstance(context.class_lookup(self.cls, name), (property, *_OF_C)):
            raise unsupported("attribute-write", f"writing {name} of {self.describe(context)}")
        self.attributes[name] = value

    def message(self, context: CaptureContext) -> str:
        """The text for messages of the compiler; runs no code of the program."""
        try:
            return str(self._plain_twin())
        except NotConstant:
            return ", ".join(arg.describe(context) for arg in self.args)

    def text(self, context: CaptureContext, convert: Callable[[Any], str] = str) -> str:
        """`str(exception)`, repr() or ascii(), where the class inherits the method of a built-in class."""
        method = context.class_lookup(self.cls, "__str__" if convert is str else "__repr__")
        if not isinstance(method, types.WrapperDescriptorType):
            raise unsupported("format", f"the text of {self.describe(context)}, whose class has its own method")
        try:
            text = convert(self._plain_twin())
        except NotConstant:
            raise unsupported("format", f"the text of {self.describe(context)}, made of more than constants") from None
        return text if convert is str else class_name(self.cls) + text[text.index("(") :]

    def _plain_twin(self) -> BaseException:
        """An exception of the built-in base class, whose text is equal. Raises NotConstant."""
        base = next(base for base in self.cls.__mro__ if not is_python_class(base))
        if self.source is not None and base.__str__ not in _OF_ARGS:
            raise NotConstant  # its text shows attributes, which the program may have written
        args = [arg.constant() for arg in self.args]
        if any(is_python_class(type(arg)) for arg in args):
            raise NotConstant
        try:
            return base(*args)
        except TypeError:
            raise NotConstant from None

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        if self.caught_at is not None:
            raise cannot_rebuild("an exception that was raised, with its traceback and context", self.caught_at)
        args = [reconstructor.recipe(arg) for arg in self.args]
        if type(lookup_in_class(self.cls, "__init__")) is FunctionType:
            made = call_recipe(BaseException.__new__, ConstantRecipe(self.cls), *args)
        else:
            made = call_recipe(self.cls, *args)
        reconstructor.remember(self, made)
        for name, value in self.attributes.items():
            reconstructor.set_attr(made, name, value)
        return made


def _init(context: CaptureContext, self: ExceptionValue, *args: Value, **kwargs: Value) -> Value:
    if self.source is not None:
        raise unsupported("attribute-write", f"calling __init__ of {self.describe(context)} again")
    self.args = list(args)
    for name, value in kwargs.items():
        self.attributes[name] = value
    return ConstantValue(None)


_OF_ARGS = (BaseException.__str__, KeyError.__str__)  # the text is made of the arguments
_VALUE = StopIteration.__dict__["value"]
_OF_C = (types.MemberDescriptorType, types.GetSetDescriptorType)


class TracebackValue(Value):
    """The traceback of a raised exception. Capture passes it on but cannot read it."""

    __slots__ = ("error",)
    cls = TracebackType

    def __init__(self, error: Any) -> None:
        self.source = None
        self.error = error

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        raise cannot_rebuild("a traceback", self.error.caught_at)
