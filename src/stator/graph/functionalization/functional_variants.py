"""Functional twins for operators that have none: custom operators of libraries that write to their arguments.

A twin takes the operator's arguments, runs the operator on copies of the written ones, and returns these copies after
the operator's own results. One twin exists per overload, in the namespace `stator_twin`.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

_library = torch.library.Library("stator_twin", "DEF")
_made: dict[OpOverload, OpOverload | None] = {}
_ALIAS = re.compile(r"\([a-z]\w*!?(?: -> \*)?\)")
_WRITTEN = ("Tensor", "List[Tensor]", "Optional[Tensor]", "Optional[List[Tensor]]")


def synthesized_twin(target: OpOverload) -> OpOverload | None:
    """Return the twin of an overload whose results are fresh tensors or written arguments; None for other overloads."""
    if target not in _made:
        _made[target] = _make(target)
    return _made[target]


def fresh_results(target: OpOverload) -> int:
    """Count the results of an overload that are not written arguments. The twin returns these first."""
    return sum(result.alias_info is None for result in target._schema.returns)


def _make(target: OpOverload) -> OpOverload | None:
    schema = target._schema
    written = [
        position
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    fresh = [str(result.type) for result in schema.returns if result.alias_info is None]
    if not written or any(str(schema.arguments[at].type) not in _WRITTEN for at in written) or {*fresh} - {"Tensor"}:
        return None
    if any(argument.alias_info is not None and not argument.alias_info.is_write for argument in schema.arguments):
        return None  # results may be views
    name = f"{re.sub(r'[^0-9a-zA-Z]', '_', f'{schema.name}_{schema.overload_name}')}_{len(_made)}"
    arguments = _ALIAS.sub("", str(schema).partition("(")[2].rpartition(" -> ")[0])
    _library.define(f"{name}({arguments} -> Tensor[]")

    def run(*args: Any, **kwargs: Any) -> Any:
        given, named = list(args), dict(kwargs)
        copies: list[torch.Tensor] = []
        for position in written:
            where: Any = given if position < len(given) else named
            key: Any = position if position < len(given) else schema.arguments[position].name
            if where is given or key in named:
                where[key] = pytree.tree_map_only(torch.Tensor, torch.clone, where[key])
                copies += [copy for copy in pytree.tree_leaves(where[key]) if copy is not None]
        result = target(*given, **named)
        results = result if isinstance(result, tuple | list) else (result,)
        found = [one for one, about in zip(results, schema.returns, strict=False) if about.alias_info is None]
        return [*found, *copies]

    _library.impl(name, run, "CompositeExplicitAutograd")
    return getattr(torch.ops.stator_twin, name).default
