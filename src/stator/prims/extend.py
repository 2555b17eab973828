"""User extensions of the operator set: operators, shape rules, decompositions and lowerings, checked on registration.

stator's own registrations use `record.py` and `inductor/lower/registry.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch._ops import OpOverload, OpOverloadPacket

from stator.base.errors import UsageError

from .decompositions.decomposition_decorator import conforming
from .query import lookup, lowerings_of
from .record import Decomposition, OpRecord, ShapeRule
from .rule_checks import checked_decomposition, checked_shape_rule, place_of

is_used = False  # whether the program has told the compiler rules of its own

F = TypeVar("F", bound=Callable[..., Any])
Named = str | OpOverload | OpOverloadPacket


def operator(
    schema: str,
    *,
    shape: ShapeRule | None = None,
    decompose: Decomposition | None = None,
    tags: Sequence[str] = (),
) -> Callable[[Callable[..., Any]], OpOverload]:
    """Decorator: make an operator from an eager implementation; returns its overload.

    schema: name and signature in torch's notation, "mylib::softabs(Tensor x, float sharpness) -> Tensor". No argument
        may be written to and no result may alias one.
    shape, decompose, tags: as for `shape_rule` and `decomposition`, which may also be applied later.

    The implementation runs below autograd, on all devices; `torch.library.register_autograd` gives it a gradient.
    Raises UsageError for a malformed schema, one that writes or aliases, and a taken name.
    """
    parsed, named = _parsed(schema), _tags(tags)
    name = parsed.name + (f".{parsed.overload_name}" if parsed.overload_name else "")

    def define(implementation: Callable[..., Any]) -> OpOverload:
        _check_signature(implementation, parsed, "the implementation", name)
        if name in torch._C._dispatch_get_all_op_names():
            raise UsageError(f"there is an operator {name} already")
        torch.library.define(name, schema[schema.index("(") :])
        torch.library.impl(name, "CompositeExplicitAutograd", implementation)
        entry = lookup(name)
        entry.tags |= named
        if shape is not None:
            shape_rule(entry.target)(shape)
        if decompose is not None:
            decomposition(entry.target)(decompose)
        return entry.target

    return define


def shape_rule(operator: Named, *, tags: Sequence[str] = (), replace: bool = False) -> Callable[[F], F]:
    """Decorator: the layouts of an operator's results, as `stator.prims.TensorMeta` in place of tensors.

    The rule is called with the operator's arguments; of tensors it may use `.shape`, `.stride()`, `.dtype`, `.device`
    and `.storage_offset()`. Sizes may be symbolic: calculate and compare, never call `int()`. The rule returns
    NotImplemented for cases that it does not cover. tags: added to the record.

    replace: replace the existing rule. Raises UsageError for an unknown operator, for a rule that cannot take the
        operator's arguments, and for a second rule without `replace`.
    """
    entry = lookup(operator)

    def decorate(rule: F) -> F:
        _check_new(entry, entry.shape, "shape rule", replace)
        _check_signature(rule, entry.target._schema, "the shape rule", entry.name)
        entry.shape = checked_shape_rule(entry.target, rule)
        entry.tags |= _tags(tags)
        return rule

    return decorate


def decomposition(operator: Named, *, wide: bool = True, replace: bool = False) -> Callable[[F], F]:
    """Decorator: an implementation of an operator by simpler ones, called with tensors under the tracer.

    It returns NotImplemented for cases that it leaves to the library. If the operator has a shape rule, results are
    cast and laid out by that rule, and (`wide`) float16 and bfloat16 arguments arrive as float32. Backends that lower
    the operator itself do not use the decomposition. A primitive with a new decomposition stops being a primitive.

    replace, errors: as for `shape_rule`.
    """
    entry = lookup(operator)

    def decorate(rule: F) -> F:
        _check_new(entry, entry.decompose, "decomposition", replace)
        _check_signature(rule, entry.target._schema, "the decomposition", entry.name)
        entry.decompose = conforming(entry.target, checked_decomposition(entry.target, rule), wide)
        entry.tags -= {"prim"}
        return rule

    return decorate


def lowering(operator: Named, *, backend: str = "inductor", replace: bool = False) -> Callable[[F], F]:
    """Decorator: a backend's code generation for an operator: `rule(builder, *arguments)`.

    For backend "inductor", tensors arrive as `stator.inductor.lower.Tensor`, and `stator.inductor.lower.elementwise`
    and its siblings build results; NotImplemented leaves a case to the library. The operator is then no longer
    decomposed for that backend.

    replace, errors: as for `shape_rule`; also UsageError for a backend without lowerings.
    """
    entry = lookup(operator)
    table = lowerings_of(backend)

    def decorate(rule: F) -> F:
        _check_new(entry, table.get(entry.target), f"lowering for {backend}", replace)
        _check_signature(rule, entry.target._schema, "the lowering", entry.name, before=("builder",))
        if entry.target in table:
            table.remove(entry.target)
        table.add(entry.target, rule)
        return rule

    return decorate


def _tags(tags: Sequence[str]) -> frozenset[str]:
    if isinstance(tags, str):
        raise UsageError(f"tags are a sequence of strings: write tags=({tags!r},)")
    return frozenset(tags)


def _parsed(schema: str) -> Any:
    if not isinstance(schema, str):
        raise UsageError(f"an operator is made by its schema, 'mylib::name(Tensor x) -> Tensor', not by {schema!r}")
    try:
        parsed = torch._C.parse_schema(schema)
    except RuntimeError as error:
        raise UsageError(f"{schema!r} is not an operator schema: {str(error).strip().splitlines()[0]}") from error
    if "::" not in parsed.name:
        raise UsageError(f"{schema!r} names no namespace; write 'mylib::{parsed.name}(...)'")
    if any(part.alias_info is not None for part in (*parsed.arguments, *parsed.returns)):
        raise UsageError(
            f"{schema!r} writes to an argument or returns an alias of one; operators here are functional. Return the "
            "new value instead"
        )
    return parsed


def _check_new(entry: OpRecord, known: Any, what: str, replace: bool) -> None:
    global is_used
    if known is not None and not replace:
        raise UsageError(
            f"{entry.name} has a {what} already ({place_of(known)}); pass replace=True to put another in its place"
        )
    is_used = True


def _check_signature(rule: Any, schema: Any, what: str, name: str, before: tuple[str, ...] = ()) -> None:
    """Refuse a function that cannot be called with all arguments of the schema, or with the required ones only."""
    if not callable(rule):
        raise UsageError(f"{what} of {name} must be a function, not {rule!r}")
    try:
        signature = inspect.signature(rule)
    except ValueError:  # some built-in functions have no signature
        return
    for given in (schema.arguments, [part for part in schema.arguments if not part.has_default_value()]):
        positional = [part.name for part in given if not part.kwarg_only]
        keywords = {part.name: None for part in given if part.kwarg_only}
        try:
            signature.bind(*before, *positional, **keywords)
        except TypeError as error:
            expected = ", ".join([*before, *positional, *(f"{keyword}=" for keyword in keywords)])
            raise UsageError(
                f"{what} of {name} has the signature {signature}, but is called with ({expected}): {error}"
            ) from error
