"""map and scan of torch._higher_order_ops as loops in Python. Who calls them has looked at the arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree


def mapped(function: Callable[..., Any], xs: Any, *args: Any) -> Any:
    """What `function(x, *args)` gives for the slices of `xs` along their first dimension, stacked."""
    leaves, spec = pytree.tree_flatten(xs)
    results = []
    for turn in range(leaves[0].shape[0]):
        results.append(function(pytree.tree_unflatten([leaf[turn] for leaf in leaves], spec), *args))
    return _stacked(results)


def scanned(function: Callable[..., Any], init: Any, xs: Any, dim: int, reverse: bool, at: int) -> Any:
    """`carry, y = function(carry, x)` for the slices of `xs` along `dim`: the last carry, and the `y`s, stacked along
    their dimension `at` where they have one."""
    leaves, spec = pytree.tree_flatten(xs)
    length = leaves[0].shape[dim]
    carry, results = init, []
    for turn in reversed(range(length)) if reverse else range(length):
        carry, made = function(carry, pytree.tree_unflatten([leaf.select(dim, turn) for leaf in leaves], spec))
        results.append(made)
    if reverse:
        results.reverse()
    stacked = _stacked(results)
    if at:
        stacked = pytree.tree_map(lambda one: torch.movedim(one, 0, at) if at < one.dim() else one, stacked)
    return carry, stacked


def with_more(function: Callable[..., Any], more: Any) -> Callable[..., Any]:
    """The function with further arguments behind those it is called with."""

    def call(*args: Any) -> Any:
        return function(*args, *more)

    return call


def mapped_flat(function: Callable[..., Any], xs: Any, more: Any) -> Any:
    """The operator behind `map`: `function(*slices of xs, *more)`, stacked."""
    return _stacked([function(*[leaf[turn] for leaf in xs], *more) for turn in range(xs[0].shape[0])])


def scanned_flat(function: Callable[..., Any], init: Any, xs: Any, more: Any) -> Any:
    """The operator behind `scan`: `function(*carry, *slices of xs, *more)` gives the next carry and what is stacked."""
    carry, results = init, []
    for turn in range(xs[0].shape[0]):
        made = function(*carry, *[leaf.select(0, turn) for leaf in xs], *more)
        carry = made[: len(init)]
        results.append(made[len(init) :])
    return (*carry, *[torch.stack(list(parts)) for parts in zip(*results, strict=True)])


def _stacked(results: list[Any]) -> Any:
    flat = [pytree.tree_leaves(result) for result in results]
    spec = pytree.tree_structure(results[0])
    return pytree.tree_unflatten([torch.stack(list(parts)) for parts in zip(*flat, strict=True)], spec)
