"""What an operator's schema says about mutation, aliasing, randomness and composition, worked out once per overload.

Facts only: nothing here runs an operator or knows about fake tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from stator.prims.record import OpRecord, record

aten = torch.ops.aten


@dataclass(slots=True)
class SchemaFacts:
    """Facts about one overload.

    name: of the operator, without namespace and overload.
    mutates: what is written: positions of positional arguments (int) and names of keyword-only ones (str).
    returns: for each return the position or name of the argument it aliases, or None for a fresh tensor.
    is_view: some return aliases an argument that is not written.
    inplace_view: changes the shape or strides of its argument in place.
    composite: written in C++ with other ATen operators; it need not exist below autograd.
    dynamic_shape, data_dependent: the result's shape, or a Python value, depends on data.
    random: draws from the random number generator, in some calls at least: see `draws`.
    makes_device: has a `device` argument.
    """

    target: OpOverload
    name: str
    record: OpRecord
    mutates: tuple[int | str, ...]
    returns: tuple[int | str | None, ...]
    is_view: bool
    inplace_view: bool
    composite: bool
    dynamic_shape: bool
    data_dependent: bool
    random: bool
    makes_device: bool


# Results whose shape depends on data, which torch before 2.13 does not say.
UNTAGGED = frozenset((aten._unique.default,))

_infos: dict[OpOverload, SchemaFacts] = {}
# Seeded with the pair whose names do not follow the rule.
_functional: dict[OpOverload, OpOverload | None] = {aten.normal_.default: aten.normal_functional.default}


def op_info(target: OpOverload) -> SchemaFacts:
    """The facts about an overload."""
    info = _infos.get(target)
    if info is None:
        info = _infos[target] = _inspect(target)
    return info


def _inspect(target: OpOverload) -> SchemaFacts:
    schema = target._schema
    mutates: list[int | str] = []
    alias_of: dict[str, int | str] = {}
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is None:
            continue
        where = argument.name if argument.kwarg_only else position
        for label in argument.alias_info.before_set:
            alias_of[label] = where
        if "*" in argument.alias_info.after_set:  # a list is returned whose elements alias it
            alias_of["*"] = where
        if argument.alias_info.is_write:
            mutates.append(where)
    returns: list[int | str | None] = []
    for result in schema.returns:
        labels = (result.alias_info.before_set or ("*",)) if result.alias_info is not None else ()
        returns.append(next((alias_of[label] for label in labels if label in alias_of), None))
    tags = target.tags
    return SchemaFacts(
        target=target,
        name=schema.name.rpartition("::")[2],
        record=record(target),
        mutates=tuple(mutates),
        returns=tuple(returns),
        is_view=any(source is not None and source not in mutates for source in returns),
        inplace_view=torch.Tag.inplace_view in tags,
        composite=_has_kernel(target, "CompositeImplicitAutograd"),
        dynamic_shape=(torch.Tag.dynamic_output_shape in tags or target in UNTAGGED) and record(target).shape is None,
        data_dependent=torch.Tag.data_dependent_output in tags,
        random=torch.Tag.nondeterministic_seeded in tags,
        makes_device=any(argument.name == "device" for argument in schema.arguments),
    )


def draws(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call with these arguments draws from a random number generator.

    Such a call may not be repeated, merged with another, left away, or moved before or behind others of its kind.
    """
    if not isinstance(target, OpOverload) or not op_info(target).random:
        return False
    for position, argument in enumerate(target._schema.arguments):
        if argument.name in _SWITCHES:
            given = args[position] if position < len(args) else kwargs.get(argument.name, argument.default_value)
            if given is not None and not given:
                return False
    return True


# Arguments of random operators that make them deterministic when they are false or zero. The `p` of a dropout is not
# among them: eager draws numbers for 0 too.
_SWITCHES = frozenset(("dropout_p", "train", "training"))


def _has_kernel(target: OpOverload, key: str) -> bool:
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), key)
    except RuntimeError:  # TorchScript-only operators are not in the dispatcher
        return False


def functional_twin(target: OpOverload) -> OpOverload | None:
    """The overload that computes what `target` writes and returns it instead, with the same arguments; or None.

    For `add_.Tensor` it is `add.Tensor`; for `add.out` it is `add.Tensor` too (the `out` arguments are left away).
    """
    if target not in _functional:
        _functional[target] = _find_twin(target)
    return _functional[target]


def _find_twin(target: OpOverload) -> OpOverload | None:
    namespace, _, name = target._schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None)
    if packet is None:
        return None
    wanted = _signature(target)
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        if not candidate._schema.is_mutable and _signature(candidate) == wanted:
            return candidate
    return None


def _signature(target: OpOverload) -> list[tuple[str, str]]:
    return [
        (argument.name, str(argument.type))
        for argument in target._schema.arguments
        if not (argument.kwarg_only and argument.alias_info is not None and argument.alias_info.is_write)
    ]


def arguments_of_twin(target: OpOverload, twin: OpOverload, args: tuple[Any, ...], given: Any) -> tuple[Any, ...]:
    """The positional arguments for a functional twin: those of `target`, with its defaults where the twin has none.

    given: the names passed by keyword.
    """
    own = target._schema.arguments
    missing = []
    for position in range(len(args), len(own)):
        parameter = own[position]
        needed = position < len(twin._schema.arguments) and not twin._schema.arguments[position].has_default_value()
        if parameter.kwarg_only or parameter.name in given or not (needed and parameter.has_default_value()):
            break
        missing.append(parameter.default_value)
    return (*args, *missing)


def argument(info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any], where: int | str) -> Any:
    """The value of an argument named by position or, for a keyword-only one, by name."""
    if isinstance(where, str):
        return kwargs.get(where)
    if where < len(args):
        return args[where]
    return kwargs.get(info.target._schema.arguments[where].name)
