"""`with warnings.catch_warnings()` in captured code: which filters it sets is followed, and so is what becomes of the
warnings that Python code gives inside. When the graph has run the real filters are only told that they changed. Where
the graph would have to end inside of such a block it ends before it, and so it does where somebody hears warnings and
operators are called, which may give some."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stator.dynamo.interpreter.calling import calls
from stator.dynamo.interpreter.messages import Message
from stator.dynamo.values.base import Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import ListValue
from stator.dynamo.values.exceptions import ExceptionValue
from stator.dynamo.values.functions import FunctionValue
from stator.dynamo.values.objects import ObjectValue

if TYPE_CHECKING:
    from stator.dynamo.interpreter.capture_context import CaptureContext

_BLOCKS = warnings.catch_warnings
_ACTIONS = frozenset({"default", "error", "ignore", "always", "module", "once"})


@dataclass(frozen=True, slots=True)
class Rule:
    """A filter; a message that matches its text and class goes by its action."""

    action: str
    category: type
    message: re.Pattern[str] | None = None

    def fits(self, text: str, category: type) -> bool:
        return (self.message is None or self.message.match(text) is not None) and issubclass(category, self.category)


@dataclass(slots=True)
class Block:
    """`rules`: the newest first. `log`: the list that it records in, if it does. `before`: how many operators the graph
    had then."""

    owner: ObjectValue
    log: ListValue | None
    before: int
    rules: list[Rule] = field(default_factory=list)

    @property
    def is_heard(self) -> bool:
        """Whether a warning inside is more than dropped."""
        return self.log is not None or any(rule.action != "ignore" for rule in self.rules)


def _changed(context: CaptureContext) -> None:
    """Each change makes modules forget which warnings they have given."""
    outermost = context.frames[0]
    position = outermost.program.instructions[outermost.now].position
    context.mutations.message(Message(warnings._filters_mutated, [], {}, position))  # type: ignore[attr-defined]


@calls(_BLOCKS.__enter__)
def _enter(context: CaptureContext, owner: Value) -> Value:
    if not isinstance(owner, ObjectValue) or owner.cls is not _BLOCKS or owner.source is not None:
        raise unsupported("call-builtin", "entering catch_warnings that was there before, or of another class")
    if not context.in_the_call or context.recorder.transforms:
        raise unsupported("deferred-effect", "filters of warnings where the code runs later, or more than once")
    if context.truth(context.get_attr(owner, "_entered")):
        shown = context.constant_of(context.call(context.known(repr), [owner], {}), "its text")
        raise context.raised(RuntimeError, f"Cannot enter {shown} twice")
    plain = context.same(context.get_attr(owner, "_module"), context.known(warnings))
    if not plain or not context.is_none(context.get_attr(owner, "_filter")):
        raise unsupported("call-builtin", "catch_warnings of another module, or with an action")
    owner.set_own(context, "_entered", ConstantValue(True))
    log = ListValue([]) if context.truth(context.get_attr(owner, "_record")) else None
    context.warning_blocks.append(Block(owner, log, context.recorder.op_count))
    context.mutations.freeze(owner, "a block of warnings.catch_warnings", context.end_step())
    _changed(context)
    return ConstantValue(None) if log is None else log


@calls(_BLOCKS.__exit__)
def _exit(context: CaptureContext, owner: Value, *details: Value) -> Value:
    if not context.warning_blocks or context.warning_blocks[-1].owner is not owner:
        raise unsupported("call-builtin", "leaving catch_warnings out of order")
    block = context.warning_blocks[-1]
    if block.is_heard and context.recorder.op_count != block.before:
        raise unsupported("call-builtin", "operators on tensors where warnings are caught: they may give some")
    context.warning_blocks.pop()
    context.mutations.frozen.pop(id(owner), None)
    _changed(context)
    return ConstantValue(None)


def _as_it_is(context: CaptureContext, function: Any, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
    followed = context.known(function)
    assert isinstance(followed, FunctionValue)
    return context.inline(followed, list(args), kwargs)


@calls(warnings.simplefilter)
def _simplefilter(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
    if not context.warning_blocks:
        return _as_it_is(context, warnings.simplefilter, args, kwargs)
    return _add(context, _bound(context, ("action", "category", "lineno", "append"), args, kwargs))


@calls(warnings.filterwarnings)
def _filterwarnings(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
    if not context.warning_blocks:
        return _as_it_is(context, warnings.filterwarnings, args, kwargs)
    return _add(context, _bound(context, ("action", "message", "category", "module", "lineno", "append"), args, kwargs))


@calls(warnings.resetwarnings)
def _resetwarnings(context: CaptureContext) -> Value:
    return _as_it_is(context, warnings.resetwarnings, (), {})


def _bound(
    context: CaptureContext, names: tuple[str, ...], args: tuple[Value, ...], kwargs: dict[str, Value]
) -> dict[str, Any]:
    given = dict(zip(names, args, strict=False)) | kwargs
    if len(args) > len(names) or not given.keys() <= set(names) or "action" not in given:
        raise unsupported("call-builtin", "arguments of a filter of warnings")
    return {name: context.real_of(value, "a part of a filter of warnings") for name, value in given.items()}


def _add(context: CaptureContext, given: dict[str, Any]) -> Value:
    category, message = given.get("category", Warning), given.get("message", "")
    plain = given["action"] in _ACTIONS and isinstance(category, type) and issubclass(category, Warning)
    if not plain or type(message) is not str or given.get("module") or given.get("lineno") or given.get("append"):
        raise unsupported("call-builtin", "a filter of warnings by module or line, or behind others")
    pattern = re.compile(message, re.IGNORECASE) if message else None
    context.warning_blocks[-1].rules.insert(0, Rule(given["action"], category, pattern))
    _changed(context)
    return ConstantValue(None)


def caught(context: CaptureContext, message: Value, category: type, place: tuple[str, int] | None) -> bool:
    """Whether the blocks around decide what becomes of a warning: it is done then. `place`: its file and line."""
    text = message if isinstance(message, ConstantValue) else None
    if isinstance(message, ExceptionValue) and len(message.args) == 1:
        text = message.args[0]  # type: ignore[assignment]
    if not isinstance(text, ConstantValue) or type(text.value) is not str:
        raise unsupported("call-builtin", "a warning of something that is known later, where warnings are caught")
    rules = (rule for block in reversed(context.warning_blocks) for rule in block.rules)
    rule = next((rule for rule in rules if rule.fits(text.value, category)), None)
    log = next((block.log for block in reversed(context.warning_blocks) if block.log is not None), None)
    if rule is None:
        if log is not None:
            raise unsupported("call-builtin", "a warning that may be recorded or not")
        return False
    if rule.action == "ignore":
        return True
    if rule.action == "error":
        error = context.raised_with(category, [text])
        if isinstance(message, ExceptionValue):
            error.value = message
        raise error
    if rule.action != "always" or log is None or place is None:
        raise unsupported("call-builtin", "a warning that is shown from inside of catch_warnings")
    instance = message if isinstance(message, ExceptionValue) else context.call(context.known(category), [text], {})
    none = ConstantValue(None)
    parts = [instance, context.known(category), *map(ConstantValue, place), none, none, none]
    log.items.append(context.call(context.known(warnings.WarningMessage), parts, {}))
    return True
