"""Exception groups that captured code makes and takes apart, by itself or with `except*`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stator.dynamo.interpreter.calling import makers
from stator.dynamo.ir.reconstruct_ir import Recipe

from .base import Value, cannot_rebuild, unsupported
from .classes import ClassValue
from .constants import ConstantValue
from .containers.sequences import ListValue, TupleValue
from .exceptions import ExceptionValue
from .functions import BuiltinMethodValue

if TYPE_CHECKING:
    from stator.dynamo.interpreter.capture_context import CaptureContext
    from stator.dynamo.interpreter.reconstruction import Reconstructor

Condition = Callable[[ExceptionValue], bool]


class GroupValue(ExceptionValue):
    """`parts`: the exceptions in it. `taken_from`: the group of which it is a part, with the traceback of that, unless
    it was `raised_anew` since: an `except*` statement tells by the traceback what passes from what its clauses raise.
    """

    __slots__ = ("made_at", "parts", "raised_anew", "taken_from")

    def __init__(self, cls: type, message: Value, given: Value, parts: list[ExceptionValue]) -> None:
        super().__init__(cls, [message, given])
        self.parts = parts
        self.taken_from: ExceptionValue | None = None
        self.raised_anew = False
        self.made_at: int | None = None

    def set_attr(self, context: CaptureContext, name: str, value: Value) -> None:
        if name in ("__notes__", "__traceback__", "__cause__", "__context__", "args"):
            raise unsupported("attribute-write", f"writing {name} of an exception group")
        super().set_attr(context, name, value)

    def grow_traceback(self) -> None:
        self.raised_anew = True

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        if name == "exceptions":
            return TupleValue(list(self.parts))
        if name == "message":
            return self.args[0]
        if name in _METHODS:
            return BuiltinMethodValue(self, name)
        return super().get_attr(context, name)

    def builtin_method(self, context: CaptureContext, name: str) -> Callable[..., Value] | None:
        return _METHODS.get(name) or super().builtin_method(context, name)

    def plain_text(self, context: CaptureContext, convert: Callable[[Any], str]) -> str:
        if convert is not str:
            raise unsupported("format", "the repr of an exception group")
        message, count = context.constant_of(self.args[0], "a message"), len(self.parts)
        return f"{message} ({count} sub-exception{'s' if count > 1 else ''})"

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        given = self.args[1]
        changed = not isinstance(given, (ListValue, TupleValue)) or [*given.items] != [*self.parts]
        if changed or given.source is not None:
            raise cannot_rebuild("an exception group made of a list that was changed since", self.made_at)
        return super().recipe(reconstructor)

    def derived(self, parts: list[ExceptionValue]) -> GroupValue:
        """A group of some of the exceptions, with the message, traceback and context of this one."""
        kind = ExceptionGroup if all(issubclass(one.cls, Exception) for one in parts) else BaseExceptionGroup
        made = GroupValue(kind, self.args[0], ListValue(list(parts)), parts)
        made.place, made.caught_at = self.place, self.caught_at
        made.cause = self.cause or ConstantValue(None)  # set in any case, and with it that the context is not shown
        made.context = self.context
        made.taken_from, made.raised_anew = self.taken_from or self, self.raised_anew and self.taken_from is not None
        return made


def is_group(cls: type) -> bool:
    return cls in (ExceptionGroup, BaseExceptionGroup)


@makers.register(BaseExceptionGroup)
def _make(context: CaptureContext, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not is_group(kind) or kwargs or len(args) != 2:
        raise unsupported("new-object", "an exception group of the program's class, or of other arguments")
    message, given = args
    if not isinstance(given, (ListValue, TupleValue)) or message.python_type(context) is not str:
        raise unsupported("new-object", "an exception group of something else than a text and a list")
    parts = [context.realized(one) for one in given.items]
    if not parts or not all(isinstance(one, ExceptionValue) and one.source is None for one in parts):
        raise unsupported("new-object", "an exception group of what was there before, or is no exception")
    plain = all(issubclass(one.cls, Exception) for one in parts)  # type: ignore[attr-defined]
    if kind is ExceptionGroup and not plain:
        raise context.raised(TypeError, "Cannot nest BaseExceptions in an ExceptionGroup")
    made = GroupValue(ExceptionGroup if plain else BaseExceptionGroup, message, given, parts)  # type: ignore[arg-type]
    made.made_at = context.end_step()
    return made


def split(error: ExceptionValue, fits: Condition) -> tuple[ExceptionValue | None, ExceptionValue | None]:
    """What fits of an exception, and what is left of it."""
    if fits(error):
        return error, None
    if not isinstance(error, GroupValue):
        return None, error
    halves = [split(one, fits) for one in error.parts]
    found, rest = ([half[at] for half in halves if half[at] is not None] for at in (0, 1))
    return error.derived(found) if found else None, error.derived(rest) if rest else None  # type: ignore[arg-type]


def fitting(context: CaptureContext, wanted: Value) -> Condition:
    """By class, or by classes in a tuple."""
    options = list(context.iterate(wanted)) if isinstance(wanted, TupleValue) else [wanted]
    if not all(isinstance(one, ClassValue) and issubclass(one.cls, BaseException) for one in options):
        raise unsupported("exception-group", "taking a group apart by something else than classes of exceptions")
    classes = [one.cls for one in options]  # type: ignore[attr-defined]
    return lambda error: any(cls in error.cls.__mro__ for cls in classes)


def _condition(context: CaptureContext, wanted: Value) -> Condition:
    if isinstance(wanted, (ClassValue, TupleValue)):
        return fitting(context, wanted)
    return lambda error: context.truth(context.call(wanted, [error], {}))


def _or_none(value: Value | None) -> Value:
    return ConstantValue(None) if value is None else value


def _split(context: CaptureContext, owner: GroupValue, wanted: Value) -> Value:
    return TupleValue([_or_none(half) for half in split(owner, _condition(context, wanted))])


def _subgroup(context: CaptureContext, owner: GroupValue, wanted: Value) -> Value:
    return _or_none(split(owner, _condition(context, wanted))[0])


def _derive(context: CaptureContext, owner: GroupValue, parts: Value) -> Value:
    return _make(context, BaseExceptionGroup, [owner.args[0], parts], {})


_METHODS: dict[str, Callable[..., Value]] = {"split": _split, "subgroup": _subgroup, "derive": _derive}


# ---- except* ----


def matched(context: CaptureContext, error: Value, wanted: Value) -> tuple[Value, Value]:
    """What is left of the exception for the clauses that follow, and what this one handles."""
    if not isinstance(error, ExceptionValue):
        return error, ConstantValue(None)  # nothing is left
    if error.source is not None or (issubclass(error.cls, BaseExceptionGroup) and not isinstance(error, GroupValue)):
        raise unsupported("exception-group", "except* of an exception that was there before")
    fits = fitting(context, wanted)
    options = list(context.iterate(wanted)) if isinstance(wanted, TupleValue) else [wanted]
    if any(issubclass(one.real(), BaseExceptionGroup) for one in options):
        text = "catching ExceptionGroup with except* is not allowed. Use except instead."
        raise context.raised(TypeError, text)
    if fits(error) and not isinstance(error, GroupValue):
        kind = ExceptionGroup if issubclass(error.cls, Exception) else BaseExceptionGroup
        wrapped = GroupValue(kind, ConstantValue(""), TupleValue([error]), [error])
        wrapped.caught_at, wrapped.context = error.caught_at, error.context
        return ConstantValue(None), wrapped
    found, rest = split(error, fits)
    return _or_none(rest), _or_none(found)


def raised_again(context: CaptureContext, original: Value, raised: Value) -> Value:
    """What leaves the statement: exceptions of its clauses, and what none of them handled, as one part of it."""
    assert isinstance(raised, ListValue) and isinstance(original, ExceptionValue)
    errors = [one for one in map(context.realized, raised.items) if isinstance(one, ExceptionValue)]
    if not errors:
        return ConstantValue(None)
    if issubclass(original.cls, BaseExceptionGroup) and not isinstance(original, GroupValue):
        raise unsupported("exception-group", "except* of an exception that was there before")
    if not isinstance(original, GroupValue):
        return errors[0]
    again = [one for one in errors if one is original or _passes(one, original)]
    new = [one for one in errors if not any(one is other for other in again)]
    if again:
        leaves = {id(leaf) for one in again for leaf in _leaves(one)}
        kept = split(original, lambda one: not isinstance(one, GroupValue) and id(one) in leaves)[0]
        if not new:
            return _or_none(kept)
        new.append(kept)  # type: ignore[arg-type]
    if len(new) == 1:
        return new[0]
    kind = ExceptionGroup if all(issubclass(one.cls, Exception) for one in new) else BaseExceptionGroup
    return GroupValue(kind, ConstantValue(""), ListValue(list(new)), list(new))


def _passes(error: ExceptionValue, original: GroupValue) -> bool:
    return isinstance(error, GroupValue) and error.taken_from is _root(original) and not error.raised_anew


def _root(group: GroupValue) -> ExceptionValue:
    return group.taken_from or group


def _leaves(error: ExceptionValue) -> list[ExceptionValue]:
    return [leaf for one in error.parts for leaf in _leaves(one)] if isinstance(error, GroupValue) else [error]


__all__ = ["GroupValue", "matched", "raised_again"]
