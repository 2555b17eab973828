"""What the symbolic interpreter holds: the protocol every value answers to.

Subclasses live one file per concept beside this one. No value knows bytecode, and none imports the tracer at run time:
the tracer is handed to every method.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stator.base.errors import Unsupported
from stator.dynamo.guards.source import Source
from stator.dynamo.host.naming import class_name
from stator.dynamo.ir.capture_result import CaptureState
from stator.dynamo.ir.reconstruct_ir import Load, Recipe

if TYPE_CHECKING:
    from stator.dynamo.interpreter.capture_context import CaptureContext
    from stator.dynamo.interpreter.reconstruction import Reconstructor


class Raised(Exception):
    """A Python exception raised by the program being captured; `value` is its symbolic exception object."""

    def __init__(self, value: Value) -> None:
        self.value = value
        self.frames: list[Any] | None = None  # in which it was raised, the outermost first
        super().__init__()


class NotConstant(Exception):
    """A value that was asked for its Python constant has none. Private to the interpreter."""


class CannotRebuild(Unsupported):
    """A value cannot be handed to code outside the graph. `made_at`: the step that made it, as Tracer.end_step
    says, so that the graph can end there instead; None when that would not help."""

    made_at: int | None = None


class Value(CaptureState):
    """A Python object of the captured program. `source` says where it was read from, or None if made in the frame."""

    __slots__ = ("source",)

    def __init__(self, source: Source | None = None) -> None:
        self.source = source

    # -- facts --
    def python_type(self, context: CaptureContext) -> type:
        """The class of the object, as `type(x)` would say."""
        raise NotImplementedError(type(self).__name__)

    def real(self) -> Any:
        """The real object behind this value, when it is one that is shared with the running program.

        Raises NotConstant for objects which exist only symbolically.
        """
        raise NotConstant

    def constant(self) -> Any:
        """The immutable Python object this value equals (tuples and the like are built). Raises NotConstant."""
        raise NotConstant

    def is_constant(self) -> bool:
        try:
            self.constant()
        except NotConstant:
            return False
        return True

    def key(self, context: CaptureContext) -> Any:
        """A real hashable that stands for this value as a dictionary key."""
        try:
            return self.constant()
        except NotConstant:
            raise unsupported(
                "unhashable-key", f"{self.describe(context)} as a key of a dictionary or member of a set"
            ) from None

    def describe(self, context: CaptureContext) -> str:
        """A few words for error messages."""
        return f"an object of type {class_name(self.python_type(context))}" + (
            f" ({self.source})" if self.source else ""
        )

    # -- operations; the defaults say that capture cannot follow --
    def truth(self, context: CaptureContext) -> bool:
        return True

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        raise unsupported("attribute", f"attribute {name!r} of {self.describe(context)}")

    def set_attr(self, context: CaptureContext, name: str, value: Value) -> None:
        raise unsupported("attribute-write", f"writing attribute {name!r} of {self.describe(context)}")

    def del_attr(self, context: CaptureContext, name: str) -> None:
        raise unsupported("attribute-write", f"deleting attribute {name!r} of {self.describe(context)}")

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise unsupported("call", f"calling {self.describe(context)}")

    def call_method(self, context: CaptureContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return context.call(self.get_attr(context, name), args, kwargs)

    def get_item(self, context: CaptureContext, key: Value) -> Value:
        raise unsupported("subscript", f"subscript of {self.describe(context)}")

    def set_item(self, context: CaptureContext, key: Value, value: Value) -> None:
        raise unsupported("subscript", f"item assignment on {self.describe(context)}")

    def del_item(self, context: CaptureContext, key: Value) -> None:
        raise unsupported("subscript", f"item deletion on {self.describe(context)}")

    def length(self, context: CaptureContext) -> int:
        raise unsupported("len", f"len() of {self.describe(context)}")

    def contains(self, context: CaptureContext, item: Value) -> bool:
        raise unsupported("contains", f"`in` on {self.describe(context)}")

    def iterate(self, context: CaptureContext) -> Iterator[Value]:
        """The items, one by one; raises Unsupported when iteration cannot be followed."""
        raise unsupported("iteration", f"iterating over {self.describe(context)}")

    def iterator(self, context: CaptureContext) -> Value:
        """The object that `iter(x)` gives."""
        return context.make_iterator(self.iterate(context))

    # -- leaving the frame --
    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        """How to make this object at run time. Called once per value; `exits` remembers the result."""
        if self.source is not None:
            return Load(self.source)
        raise cannot_rebuild(f"{type(self).__name__} cannot be handed to code outside the graph")


class Lazy(Value):
    """An object that was not touched yet: wrapped, and so guarded, only when it is.

    Lazies live in containers, locals and attributes, never on the interpreter's stack.
    """

    __slots__ = ("obj", "value")

    def __init__(self, obj: Any, source: Source) -> None:
        self.source = source
        self.obj = obj
        self.value: Value | None = None

    def realize(self, context: CaptureContext) -> Value:
        if self.value is None:
            self.value = context.wrap(self.obj, self.source)
        return self.value

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return reconstructor.recipe(self.value) if self.value is not None else Load(self.source)  # type: ignore[arg-type]


def cannot_rebuild(reason: str, made_at: int | None = None) -> CannotRebuild:
    error = CannotRebuild("reconstruct", reason)
    error.made_at = made_at
    return error


def unsupported(kind: str, reason: str, hint: str | None = None) -> Unsupported:
    """An error that makes the graph break here; the interpreter adds the place."""
    return Unsupported(kind, reason, hint=hint)
