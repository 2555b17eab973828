"""The base class of symbolic values, and the protocols by which values see the interpreter.

Values know no bytecode and import nothing of the interpreter: each method takes the capture context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from stator.base.errors import Unsupported, UserPlace
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import Source
from stator.dynamo.host.naming import class_dict, class_name, resolution_order
from stator.dynamo.ir.capture_result import CaptureState
from stator.dynamo.ir.reconstruct_ir import Effect, Load, Recipe


class Raised(Exception):
    """A Python exception raised by the program being captured; `value` is its symbolic exception object."""

    def __init__(self, value: Value) -> None:
        self.value = value
        self.frames: list[Any] | None = None  # the frames in which it was raised, outermost first
        super().__init__()


class NotConstant(Exception):
    """The value has no Python constant. The interpreter always catches this exception."""


class CannotRebuild(Unsupported):
    """A value cannot be handed to code outside the graph. `made_at` is the step that made it (see
    `CaptureContext.end_step`), so that the graph can end ahead of it; None where that would not help."""

    made_at: int | None = None


class Value(CaptureState):
    """A Python object of the captured program. `source` is where it was read; None for an object made in the frame."""

    __slots__ = ("source",)
    cls: Any  # the object's type; classes of values with objects of several types have a slot or their own python_type

    def __init__(self, source: Source | None = None) -> None:
        self.source = source

    # -- facts --
    def python_type(self, context: CaptureContext) -> type:
        """`type(x)`."""
        return self.cls  # type: ignore[no-any-return]

    def real(self) -> Any:
        """The real object of the running program. Raises NotConstant for objects that exist only symbolically."""
        raise NotConstant

    def constant(self) -> Any:
        """A Python object equal to this value; containers are built. Raises NotConstant."""
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

    # -- operations; by default they end the graph --
    def truth(self, context: CaptureContext) -> bool:
        return True

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        raise unsupported("attribute", f"attribute {name!r} of {self.describe(context)}")

    def set_attr(self, context: CaptureContext, name: str, value: Value) -> None:
        raise unsupported("attribute-write", f"writing attribute {name!r} of {self.describe(context)}")

    def del_attr(self, context: CaptureContext, name: str) -> None:
        raise unsupported("attribute-write", f"deleting attribute {name!r} of {self.describe(context)}")

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        callable_class = any("__call__" in class_dict(cls) for cls in resolution_order(self.python_type(context)))
        raise unsupported("call" if callable_class else "exception", f"calling {self.describe(context)}")

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
        """The items, one by one."""
        raise unsupported("iteration", f"iterating over {self.describe(context)}")

    def iterator(self, context: CaptureContext) -> Value:
        """`iter(x)`."""
        return context.make_iterator(self.iterate(context))

    # -- leaving the frame --
    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        """How to make this object at run time. The reconstructor calls this once per value and remembers the result."""
        if self.source is not None:
            return Load(self.source)
        raise cannot_rebuild(f"{type(self).__name__} cannot be handed to code outside the graph")


# Answers a call: `handler(context, *args, **kwargs)`. A handler that returns nothing answers None.
Handler = Callable[..., "Value | None"]


class RunningFrame(Protocol):
    """A frame that capture follows: interpreter.frame.Frame."""

    context: Any
    globals: Any
    locals: Any
    now: Any
    program: Any
    stack: list[Any]

    def is_added(self) -> bool: ...


class Reconstructor(Protocol):
    """Turns values into recipes at the end of a graph: interpreter.reconstruction.FrameReconstructor."""

    context: Any
    late: list[Effect]
    marks: list[Effect]
    outputs: list[Any]

    def recipe(self, value: Value) -> Recipe: ...
    def remember(self, value: Value, recipe: Recipe) -> None: ...
    def graph_output(self, value: Any) -> Any: ...
    def set_attr(self, target: Recipe, name: str, value: Value) -> None: ...
    def made_of_class(self, value: Any, made: Recipe) -> Recipe: ...
    def fill(self, value: Any, made: Recipe) -> None: ...
    def dict_items(self, value: Any) -> list[tuple[Recipe, Recipe]]: ...
    def string_dict(self, values: dict[str, Value]) -> Recipe: ...


class CaptureContext(Protocol):
    """The capture of one frame, as values, the graph and handlers see it: interpreter.capture_context.FrameCapture."""

    asked_whether_compiling: Any
    assumptions: Any
    broken: tuple[Any, list[Any]] | None
    changed_dicts: set[int]
    changing: Any
    varying: Any
    classes: Any
    compare: Any
    devices: list[Any]
    direct: Value | None
    draws: list[Recipe]
    ended_by: Raised | None
    entering_module: Any
    expected: set[Source]
    frames: list[Any]
    function: Any
    generators: list[Any]
    generators_drawn: dict[Source, Recipe]
    owned_arguments: dict[str, Value]
    guards: Any
    handled: list[Value]
    instance_dicts: dict[int, bool]
    later: Any
    live_iterators: dict[int, Any]
    mutations: Any
    numbers: dict[Any, Any]
    outer_steps: list[int]
    overlays: list[Any]
    places: dict[tuple[str, int, str], UserPlace]
    real_cells: dict[int, Any]
    recorder: Any
    refused: Any
    relies_on_error_modes: Any
    step: Any
    stop_at: Any
    loops: Any
    unsteady: frozenset[Any]
    wrapped: dict[int, Value]

    def place(self) -> UserPlace: ...
    @property
    def in_the_call(self) -> bool: ...
    def count_turn(self) -> None: ...
    def count_call(self) -> None: ...
    def end_step(self) -> int: ...
    def raised(self, cls: type, message: str) -> Raised: ...
    def raised_with(self, cls: type, args: list[Value]) -> Raised: ...
    def raised_from(self, error: BaseException) -> Raised: ...
    def stop_iteration(self, value: Value | None) -> Raised: ...
    def end_of_items(self) -> Raised: ...
    def run_real(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None = ...
    ) -> Any: ...

    def rely_on_nothing_handled(self) -> None: ...
    def guard(self, source: Source, kind: GuardKind, expected: Any) -> None: ...
    def guard_what_was_found(self) -> None: ...
    def wrap(self, obj: Any, source: Source | None) -> Value: ...
    def wrap_member(self, obj: Any, source: Source, store: str) -> Value: ...
    def unfix_member(self, value: Value | None) -> None: ...
    def lazy(self, obj: Any, source: Source | None) -> Value: ...
    def known(self, obj: Any, source: Source | None = ...) -> Value: ...
    def wrap_result(self, obj: Any, what: str) -> Value: ...
    def constant(self, obj: Any) -> Any: ...
    def code_constant(self, obj: Any) -> Value: ...
    def realized(self, value: Value) -> Value: ...
    def is_constant_object(self, obj: Any) -> bool: ...
    def is_immutable(self, obj: Any) -> bool: ...
    def scope_of(self, names: dict[str, Any], source: Source | None = ..., functions: dict[str, Any] = ...) -> Any: ...
    def class_lookup(self, cls: type, name: str) -> Any: ...
    def warn_now(self, text: str) -> None: ...
    def class_value(self, cls: type, name: str) -> Value: ...
    def class_function(self, cls: type, name: str, function: Any) -> Value: ...
    def bind(self, owner: Value, cls: type, name: str, raw: Any) -> Value: ...
    def bind_class_method(self, target: Value, cls: type, name: str, raw: Any) -> Value: ...
    def bind_to_class(self, cls_value: Any, name: str, raw: Any) -> Value: ...
    def constant_of(self, value: Value, what: str) -> Any: ...
    def realize_items(self, value: Any) -> bool: ...
    def real_of(self, value: Value, what: str) -> Any: ...
    def length_of(self, result: Value) -> int: ...
    def index_of(self, value: Value) -> int: ...
    def is_none(self, value: Value) -> bool: ...
    def is_exception(self, value: Value) -> bool: ...
    def truth(self, value: Value) -> bool: ...
    def override_truth(self, value: Any, plain: bool | None) -> bool: ...
    def same(self, left: Value, right: Value) -> bool: ...
    def identical(self, left: Value, right: Value) -> bool: ...
    def equal(self, left: Value, right: Value) -> bool: ...
    def same_or_equal(self, left: Value, right: Value) -> bool: ...
    def get_attr(self, owner: Value, name: str) -> Value: ...
    def member_attribute(self, owner: Any, name: str) -> Value | None: ...
    def get_item(self, owner: Value, key: Value) -> Value: ...
    def contains(self, container: Value, item: Value) -> bool: ...
    def unary(self, function: Callable[..., Any], value: Value) -> Value: ...
    def binary(self, function: Callable[..., Any], left: Value, right: Value) -> Value: ...
    def iterate(self, value: Value) -> Iterator[Value]: ...
    def listed(self, value: Value) -> Iterator[Value]: ...
    def iterator(self, value: Value) -> Value: ...
    def make_iterator(self, items: Iterator[Value]) -> Any: ...
    def next_item(self, iterator: Value) -> Value | None: ...
    def mapping_items(self, value: Value) -> list[tuple[Value, Value]]: ...
    def pairs(self, value: Value) -> Iterator[tuple[Value, Value]]: ...
    def sorted_items(self, items: list[Value], key: Value | None, reverse: Value | None) -> list[Value]: ...
    def format_value(self, value: Value, conversion: int, spec: str) -> str: ...
    def text_of(self, value: Value, conversion: int) -> Any: ...
    def number_text(self, function: Any, args: list[Value]) -> Value | None: ...
    def instance_dict_view(self, owner: Any) -> Value: ...
    def dict_of(self, flat: list[Value]) -> Any: ...
    def tuple_of(self, items: list[Value]) -> Any: ...
    def function_dict(self, function: Any) -> Any: ...
    def call(self, callee: Value, args: list[Value], kwargs: dict[str, Value]) -> Value: ...
    def call_function(self, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value: ...
    def enters(self, callee: Value) -> None: ...
    def enters_through(self, via: Value, callee: Value) -> None: ...
    def inline(self, function: Any, args: list[Value], kwargs: dict[str, Value], *, called: bool = ...) -> Value: ...
    def call_class(self, cls: Any, args: list[Value], kwargs: dict[str, Value]) -> Value: ...
    def call_builtin(self, callee: Any, args: list[Value], kwargs: dict[str, Value]) -> Value: ...
    def call_handler(self, handler: Handler, args: list[Value], kwargs: dict[str, Value]) -> Value: ...
    def record_function(self, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value: ...
    def record_method(self, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value: ...
    def call_tensor_method(self, owner: Any, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value: ...


class Lazy(Value):
    """A real object that capture has not used yet. The first use wraps the object, which lays its guards.

    Lazies stand in containers, locals and attributes, never on the interpreter's stack.
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
