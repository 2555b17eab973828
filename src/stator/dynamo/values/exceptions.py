"""Exception objects raised and caught inside the captured code."""

from __future__ import annotations

import types
from collections.abc import Callable
from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any

from stator.dynamo.guards.source import AttrSource, Source
from stator.dynamo.host.naming import class_name
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Load, Recipe, call_recipe

from .base import NotConstant, Value, cannot_rebuild, unsupported
from .constants import ConstantValue
from .containers.sequences import TupleValue
from .objects import C_METHODS, MISSING, lookup_in_class

if TYPE_CHECKING:
    from stator.base.errors import UserPlace
    from stator.dynamo.values.base import CaptureContext, Reconstructor


class ExceptionValue(Value):
    """An exception of class `cls` made from `args`. User attributes are kept in `attributes`."""

    __slots__ = ("_args", "attributes", "caught_at", "cause", "cls", "context", "obj", "place")

    def __init__(
        self,
        cls: type,
        args: list[Value] | Callable[[], list[Value]],
        source: Source | None = None,
        obj: BaseException | None = None,
    ) -> None:
        """`args`, or what gives them when they are first looked at."""
        self.obj = obj
        self.source = source
        self.cls = cls
        self._args = args
        self.attributes: dict[str, Value] = {}
        self.cause: Value | None = None
        self.place: UserPlace | None = None
        self.caught_at: int | None = None  # the outermost frame's step at which it was first raised or let through
        self.context: Value | None = None

    @property
    def args(self) -> list[Value]:
        if callable(self._args):
            self._args = self._args()
        return self._args

    @args.setter
    def args(self, args: list[Value]) -> None:
        self._args = args

    def python_type(self, context: CaptureContext) -> type:
        return self.cls

    def real(self) -> Any:
        return super().real() if self.obj is None else self.obj

    def special(self, context: CaptureContext, name: str) -> Value | None:
        """The bound special method if the class defines it in Python, else None."""
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
        if name in _SET_BY_RAISE and self.source is not None:
            return context.wrap(getattr(self.obj, name), AttrSource(self.source, name))
        if name == "args":
            return TupleValue(list(self.args))
        if name == "value" and issubclass(self.cls, StopIteration):
            return self.args[0] if self.args else ConstantValue(None)
        if name == "__traceback__":
            return ConstantValue(None) if self.caught_at is None else TracebackValue(self)
        if name == "__cause__":
            return self.cause or ConstantValue(None)
        if name == "__context__":
            if self.context is None and self.caught_at is not None:
                context.rely_on_nothing_handled()
            return self.context or ConstantValue(None)
        if name == "__suppress_context__":
            return ConstantValue(self.cause is not None)
        if name == "__class__":
            return context.known(self.cls)
        if name == "with_traceback":
            return WithTraceback(self)
        if self.obj is not None and self.source is not None and name in vars(self.obj):
            return context.wrap(vars(self.obj)[name], AttrSource(self.source, name))
        raw = context.class_lookup(self.cls, name)
        if isinstance(raw, (types.MemberDescriptorType, types.GetSetDescriptorType)):
            raise unsupported("attribute", f"{name} of {self.describe(context)}")
        if raw is MISSING:
            asked = self.special(context, "__getattr__")
            if asked is not None:
                return asked.call(context, [ConstantValue(name)], {})
            raise context.raised(AttributeError, f"'{class_name(self.cls)}' object has no attribute '{name}'")
        return context.bind(self, self.cls, name, raw)

    def builtin_method(self, context: CaptureContext, name: str) -> Callable[..., Value] | None:
        return _METHODS.get(name)

    def set_attr(self, context: CaptureContext, name: str, value: Value) -> None:
        if self.source is not None:
            super().set_attr(context, name, value)
        if self.special(context, "__setattr__") is not None:
            raise unsupported("attribute-write", f"{name} of {self.describe(context)}, whose class defines __setattr__")
        links = {"__cause__": ExceptionValue, "__context__": ExceptionValue, "__traceback__": TracebackValue}
        if name in links and not isinstance(value, links[name]) and not context.is_none(value):
            raise unsupported("attribute-write", f"writing {name} of {self.describe(context)} with something else")
        if name == "__cause__":
            self.cause = value
        elif name == "__context__":
            self.context = value
        elif isinstance(context.class_lookup(self.cls, name), (property, *_OF_C)) and name not in _PLAIN:
            raise unsupported("attribute-write", f"writing the property {name} of {self.describe(context)}")
        elif name != "__traceback__":  # what was raised never leaves the graph, so nobody sees its traceback
            self.attributes[name] = value

    def raised_while(self, handled: list[Value]) -> None:
        """It is raised while these are being handled, innermost last: Python links it to the last."""
        if not handled or handled[-1] is self:
            return
        context = handled[-1]
        at: Value | None = context
        seen: set[int] = set()
        while isinstance(at, ExceptionValue) and id(at) not in seen:  # the program may have made a circle itself
            seen.add(id(at))
            if at.context is self:
                at.context = None  # no circles through this one
            at = at.context
        self.context = context

    def message(self, context: CaptureContext) -> str:
        """The text in what the compiler says about this exception; never runs the program's own code."""
        try:
            return str(self._plain_twin())
        except NotConstant:
            return ", ".join(arg.describe(context) for arg in self.args)

    def text(self, context: CaptureContext, convert: Callable[[Any], str] = str) -> str:
        """What `str(exception)` gives, or repr() or ascii(): through the class's own methods."""
        name = "__str__" if convert is str else "__repr__"
        method = context.class_lookup(self.cls, name)
        if not isinstance(method, types.WrapperDescriptorType):
            if convert is ascii:
                raise unsupported("format", f"ascii() of {self.describe(context)}")
            bound = context.bind(self, self.cls, name, method)
            return context.constant_of(bound.call(context, [], {}), "text")
        return self.plain_text(context, convert)

    def plain_text(self, context: CaptureContext, convert: Callable[[Any], str]) -> str:
        """The same by the methods of the built-in class."""
        try:
            text = convert(self._plain_twin())
        except NotConstant:
            raise unsupported("format", f"the text of {self.describe(context)}, made of more than constants") from None
        return text if convert is str else class_name(self.cls) + text[text.index("(") :]

    def _plain_twin(self) -> BaseException:
        """An exception of the built-in class below, which has the same text. Raises NotConstant."""
        base = next(base for base in self.cls.__mro__ if not base.__flags__ & _HEAP_TYPE)
        if self.source is not None and base.__str__ not in _OF_ARGS:
            raise NotConstant  # its text is made of attributes, which may have been written since
        written = self.attributes.get("args")
        if written is not None and (not isinstance(written, TupleValue) or base.__str__ not in _OF_ARGS):
            raise NotConstant
        args = [arg.constant() for arg in (self.args if written is None else written.items)]
        if any(type(arg).__flags__ & _HEAP_TYPE for arg in args):
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
        if isinstance(lookup_in_class(self.cls, "__init__"), FunctionType):
            made = call_recipe(BaseException.__new__, ConstantRecipe(self.cls), *args)
        else:
            made = call_recipe(self.cls, *args)
        reconstructor.remember(self, made)
        for name, value in self.attributes.items():
            reconstructor.set_attr(made, name, value)
        for name, link in (("__context__", self.context), ("__cause__", self.cause)):
            if link is not None:
                reconstructor.set_attr(made, name, link)
        return made


def _init(context: CaptureContext, self: ExceptionValue, *args: Value, **kwargs: Value) -> Value:
    if self.source is not None:
        raise unsupported("attribute-write", f"calling __init__ of {self.describe(context)} again")
    self.args = list(args)
    for name, value in kwargs.items():
        self.attributes[name] = value
    return ConstantValue(None)


def _str(context: CaptureContext, self: ExceptionValue) -> Value:
    return ConstantValue(self.plain_text(context, str))


def _repr(context: CaptureContext, self: ExceptionValue) -> Value:
    return ConstantValue(self.plain_text(context, repr))


_METHODS: dict[str, Callable[..., Value]] = {"__init__": _init, "__str__": _str, "__repr__": _repr}
_HEAP_TYPE = 1 << 9
_OF_ARGS = (BaseException.__str__, KeyError.__str__)  # the text is made of the arguments
_OF_C = (types.MemberDescriptorType, types.GetSetDescriptorType)
_PLAIN = frozenset(("__traceback__", "args", "value", "name", "obj"))  # written like any other attribute


_SET_BY_RAISE = ("__traceback__", "__cause__", "__context__", "__suppress_context__")


class TracebackValue(Value):
    """The traceback of an exception that was raised: it can be handed around, but not looked into."""

    __slots__ = ("error",)

    def __init__(self, error: Any) -> None:
        self.source = None
        self.error = error

    def python_type(self, context: CaptureContext) -> type:
        return TracebackType

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        raise cannot_rebuild("a traceback", self.error.caught_at)


class WithTraceback(Value):
    """`exception.with_traceback`; tracebacks are not modelled."""

    __slots__ = ("error",)

    def __init__(self, error: Any) -> None:
        self.source = None
        self.error = error

    def python_type(self, context: CaptureContext) -> type:
        return types.BuiltinMethodType

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self.error.caught_at is None and not (len(args) == 1 and context.is_none(args[0])):
            raise unsupported("raise", "giving an exception a traceback")
        return self.error
