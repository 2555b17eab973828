"""Facts from an operator's schema about mutation, aliasing, randomness and composition, computed once per overload.

Nothing here runs an operator or knows about fake tensors.
"""

from __future__ import annotations

import functools
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

    name: of the operator, without namespace and overload. parameters: the names of its arguments.
    mutates: the written arguments: positions (int), or names (str) of keyword-only ones.
    returns: for each return the position or name of the argument it aliases, or None for a fresh tensor.
    is_view: some return aliases an argument that is not written.
    inplace_view: changes the shape or strides of its argument in place.
    composite: the key of its kernel in C++ that calls other ATen operators, or None. Operators on lists of tensors call
        one for each tensor, and `*_copy` operators call the view.
    dynamic_shape, data_dependent: the result's shape, or a Python value, depends on data.
    random: some calls draw from the random number generator (see `is_random_call`).
    communicates: takes part in communication with other processes, or waits for it.
    makes_device: has a `device` argument.
    """

    target: OpOverload
    name: str
    parameters: tuple[str, ...]
    record: OpRecord
    mutates: tuple[int | str, ...]
    returns: tuple[int | str | None, ...]
    is_view: bool
    inplace_view: bool
    composite: torch._C.DispatchKey | None
    dynamic_shape: bool
    data_dependent: bool
    random: bool
    communicates: bool
    makes_device: bool


# Their kernels read the numbers in a tensor.
NUMBERS_IN_A_TENSOR = frozenset(
    getattr(aten, name).Tensor
    for name in ("_foreach_addcmul", "_foreach_addcdiv", "_foreach_addcmul_", "_foreach_addcdiv_")
)
# Operators with data-dependent result shapes that torch does not tag, or not before 2.13.
UNTAGGED = frozenset((aten._unique.default, aten._pack_padded_sequence.default))

_infos: dict[OpOverload, SchemaFacts] = {}
# Starts with the one pair whose names do not follow the rule.
_functional: dict[OpOverload, OpOverload | None] = {aten.normal_.default: aten.normal_functional.default}


def op_info(target: OpOverload) -> SchemaFacts:
    """Return the facts about an overload."""
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
        if "*" in argument.alias_info.after_set:  # returns a list whose elements alias the argument
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
        parameters=tuple([argument.name for argument in schema.arguments]),
        record=record(target),
        mutates=tuple(mutates),
        returns=tuple(returns),
        is_view=any(source is not None and source not in mutates for source in returns),
        inplace_view=torch.Tag.inplace_view in tags,
        composite=_composite_key(target),
        dynamic_shape=(torch.Tag.dynamic_output_shape in tags or target in UNTAGGED) and record(target).shape is None,
        data_dependent=torch.Tag.data_dependent_output in tags,
        random=torch.Tag.nondeterministic_seeded in tags,
        communicates=target.namespace.startswith(_COMMUNICATING),
        makes_device=any(argument.name == "device" for argument in schema.arguments),
    )


_COMPOSITE_KEYS = "CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"


def _composite_key(target: OpOverload) -> torch._C.DispatchKey | None:
    name = target._schema.name
    of_lists = name.startswith("aten::_foreach_") and target not in NUMBERS_IN_A_TENSOR
    copies_view = name.startswith("aten::") and name.endswith("_copy") and record(target).shape is None
    keys = _COMPOSITE_KEYS if of_lists or copies_view else _COMPOSITE_KEYS[:1]
    return next((getattr(torch._C.DispatchKey, key) for key in keys if _has_kernel(target, key)), None)


def has_effects(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether others than the readers of its results can notice a call with these arguments: it draws random numbers or
    communicates with other processes. Rewrites may not repeat, merge, remove or reorder such calls."""
    if not isinstance(target, OpOverload):
        return False
    info = op_info(target)
    return info.communicates or (info.random and is_random_call(target, args, kwargs))


_COMMUNICATING = ("c10d", "_c10d", "_dtensor", "fsdp", "symm_mem")  # beginnings of namespaces


def is_random_call(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call with these arguments draws from a random number generator."""
    if not isinstance(target, OpOverload) or not op_info(target).random:
        return False
    for position, argument in enumerate(target._schema.arguments):
        if argument.name in _SWITCHES:
            given = args[position] if position < len(args) else kwargs.get(argument.name, argument.default_value)
            if given is not None and not given:
                return False
    return True


# Arguments that make random operators deterministic when false or zero. A dropout's `p` is not among them: eager draws
# numbers for 0 too.
_SWITCHES = frozenset(("dropout_p", "train", "training"))


def _has_kernel(target: OpOverload, key: str) -> bool:
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), key)
    except RuntimeError:  # TorchScript-only operators have no dispatcher entry
        return False


def functional_twin(target: OpOverload) -> OpOverload | None:
    """Return the overload that returns the values `target` writes, for the same arguments; None if there is none. The
    twin of `add_.Tensor` and of `add.out` is `add.Tensor`; `out` arguments are left out."""
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
    """Return the positional arguments for a functional twin: those of `target`, with its defaults where the twin has
    none.

    given: the names passed by keyword.
    """
    missing = []
    for name, default in _defaults_for_twin(target, twin)[len(args) :]:
        if name is None or name in given:
            break
        missing.append(default)
    return (*args, *missing)


@functools.cache
def _defaults_for_twin(target: OpOverload, twin: OpOverload) -> list[tuple[str | None, Any]]:
    """Name and default of each argument that the twin needs to be given and `target` does not; else (None, None)."""
    needed = [not one.has_default_value() for one in twin._schema.arguments]
    own = target._schema.arguments
    left_out = [need and one.has_default_value() and not one.kwarg_only for one, need in zip(own, needed, strict=False)]
    return [(one.name, one.default_value) if out else (None, None) for one, out in zip(own, left_out, strict=False)]


def argument(info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any], where: int | str) -> Any:
    """Return the value of an argument given by position or, for a keyword-only one, by name."""
    if isinstance(where, str):
        return kwargs.get(where)
    if where < len(args):
        return args[where]
    return kwargs.get(info.parameters[where])
