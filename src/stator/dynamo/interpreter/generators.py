"""Generator objects: a symbolic frame that is run on demand. A generator never leaves the graph: where the graph would
end while the program holds a generator, it ends before the generator is made."""

from __future__ import annotations

from collections.abc import Iterator
from types import BuiltinFunctionType, GeneratorType, MethodWrapperType
from typing import Any

from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Recipe
from stator.dynamo.values.base import (
    CannotRebuild,
    CaptureContext,
    Raised,
    Reconstructor,
    Value,
    cannot_rebuild,
    unsupported,
)
from stator.dynamo.values.containers.iterators import stopped_inside
from stator.dynamo.values.objects import ObjectValue

from .frame import Frame

STOPPED_GENERATOR = "generator raised StopIteration"  # PEP 479


class GeneratorValue(Value):
    """A generator that the captured code made. It cannot leave the graph: where one would have to, the graph ends
    before the generator is made. An iterator of C code that has not been advanced may leave; `made_by` is the call that
    makes it. `returned` is the generator's result, once it has run to its end."""

    __slots__ = ("cls", "frame", "made_at", "made_by", "returned", "running", "started")

    def __init__(self, frame: Frame) -> None:
        self.source = None
        self.cls: type = GeneratorType  # or the class of an iterator in C, in whose place the generator stands
        self.made_by: tuple[Any, list[Value], dict[str, Value]] | None = None
        self.frame = frame
        self.started = False
        self.running = False
        self.returned: Value | None = None
        self.made_at = frame.context.end_step()
        frame.generator = self

    def resume(self, context: CaptureContext, sent: Value, error: Value | None = None) -> Value | None:
        """Run to the next yield. Returns the yielded value, or None at the end."""
        if self.returned is not None:
            context.ended_by = None
            if error is not None:
                raise Raised(error)
            return None
        if self.running:
            if self.cls is not GeneratorType:
                raise unsupported("generator", "an iterator of C code that is advanced while it runs")
            raise context.raised(ValueError, "generator already executing")
        frame = self.frame
        self.running = True
        depth = len(context.handled)
        try:
            if not self.started:
                if error is None and not context.is_none(sent):
                    raise context.raised(TypeError, "can't send non-None value to a just-started generator")
                self.started = True
                if error is not None:
                    self.returned = context.constant(None)
                    raise Raised(error)
            elif error is not None:
                self._raise_at_yield(error)
            else:
                frame.stack.append(sent)
            yielded = frame.run_generator()
        except Raised as raised:
            if not self.started:
                raise
            self.returned = context.constant(None)
            del context.handled[depth:]
            if issubclass(raised.value.python_type(context), StopIteration):
                if self.cls is not GeneratorType:
                    raise stopped_inside() from None
                raise context.raised(RuntimeError, STOPPED_GENERATOR) from None
            raise
        finally:
            self.running = False
        if yielded is None:
            assert frame.result is not None
            self.returned = frame.result
            context.ended_by = None if context.is_none(self.returned) else context.stop_iteration(self.returned)
        return yielded

    def _raise_at_yield(self, error: Value) -> None:
        """Raise an error where the generator waits."""
        if self._delegate() is not None:
            raise unsupported("generator", "an exception thrown into a generator that waits in `yield from`")
        raised = Raised(error)
        if not self.frame.unwind(self.frame.pc - 1, raised):
            raise raised

    def _delegate(self) -> Value | None:
        """The iterator behind the `yield from` at which the generator waits; None at any other yield."""
        frame = self.frame
        return frame.stack[-1] if frame.program.instructions[frame.pc - 2].opname == "SEND" else None

    def rely_on_no_cleanup(self) -> None:
        """When the program drops a generator that waits inside `try` or `with`, Python runs the cleanup at once.
        Capture does not know when the program drops it, so such a generator must not be left behind."""
        if not self.started or self.returned is not None:
            return
        if self.frame.waits_in_try() or isinstance(self._delegate(), ObjectValue):  # which may have close()
            left = CannotRebuild("generator", "a generator that is left waiting inside `try` or `with`")
            left.made_at = self.made_at  # Python closes a native generator where the program drops it
            raise left

    def next_item(self, context: CaptureContext) -> Value | None:
        return self.resume(context, context.constant(None))

    def iterate(self, context: CaptureContext) -> Iterator[Value]:
        while (item := context.next_item(self)) is not None:
            yield item

    def iterator(self, context: CaptureContext) -> Value:
        return self

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        if name in ("__next__", "__iter__") or (name in _OF_GENERATORS and self.cls is GeneratorType):
            return GeneratorMethod(self, name)
        raise unsupported("attribute", f"attribute {name!r} of a generator")

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.made_by is not None and not self.started:
            function, args, kwargs = self.made_by
            named = {name: reconstructor.recipe(arg) for name, arg in kwargs.items()}
            return CallRecipe(ConstantRecipe(function), [reconstructor.recipe(arg) for arg in args], named)
        raise cannot_rebuild("a generator that the captured code made", self.made_at)


_OF_GENERATORS = frozenset(("send", "throw", "close"))


class GeneratorMethod(Value):
    """A bound method of a generator."""

    __slots__ = ("generator", "name")

    def __init__(self, generator: GeneratorValue, name: str) -> None:
        self.source = None
        self.generator, self.name = generator, name

    def python_type(self, context: CaptureContext) -> type:
        return MethodWrapperType if self.name.startswith("__") else BuiltinFunctionType

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return self.generator.recipe(reconstructor)

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        generator = self.generator
        if self.name == "__iter__":
            return generator
        if self.name == "close":
            raise unsupported("generator", "closing a generator")
        if self.name == "throw":
            error = args[1] if len(args) > 1 and not context.is_none(args[1]) else args[0]
            if not context.is_exception(error):
                raise unsupported("generator", f"throwing {error.describe(context)} into a generator")
            item = generator.resume(context, context.constant(None), error)
        else:
            item = generator.resume(context, args[0] if self.name == "send" else context.constant(None))
        if item is None:
            raise context.stop_iteration(generator.returned)
        return item
