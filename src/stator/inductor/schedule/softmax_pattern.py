"""Finds the softmax that a group of loops computes, and the loops that compute its scores. Fuses nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from stator.inductor.buffers import Loops
from stator.inductor.loops.body import IndexRef, LoopBody, Op, Ref

from .accesses import summarize
from .groups import SCORES, Group

Tree = tuple[Any, ...]  # (operation, arguments); the index of a load as an expression


@dataclass(frozen=True, slots=True)
class Softmax:
    """weights: the buffer that holds them. scores: loops that store SCORES, in terms of the group's."""

    weights: str
    scores: tuple[Loops, ...]
    hidden_rows_are_zero: bool


def softmax_of(group: Group) -> Softmax | None:
    """The softmax that a group computes along its inner loops, if it computes nothing else for others to read."""
    if not group.inner_ranges or len(group.writes) != 1:
        return None
    trees = _Trees(group)
    weights = trees.stored[group.writes[0]]
    while weights[0] == "to_dtype":
        weights = weights[1]
    hidden = None
    if weights[0] == "where" and weights[2][:2] == ("constant", 0.0):
        hidden, weights = weights[1], weights[3]
    power = _numerator(weights)
    if power is None or power[0] != "exp" or power[1][0] != "sub":
        return None
    _, score, largest = power[1]
    if largest != ("reduce", "max", score):
        return None
    if hidden is not None and hidden != ("reduce", "all", ("eq", score, ("constant", -math.inf, torch.float32))):
        return None
    scores = trees.loops_of_score(power, group.writes[0])
    return None if scores is None else Softmax(group.writes[0], scores, hidden is not None)


def _numerator(weights: Tree) -> Tree | None:
    """The power in power / sum(power)."""
    if weights[0] == "mul" and weights[2] == ("reciprocal", ("reduce", "sum", weights[1])):
        return weights[1]  # type: ignore[no-any-return]
    if weights[0] == "div" and weights[2] == ("reduce", "sum", weights[1]):
        return weights[1]  # type: ignore[no-any-return]
    return None


class _Trees:
    """The values of a group's members as trees, through the buffers inside of the group."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.stored: dict[str, Tree] = {}
        self.values: list[list[Tree]] = []  # by member and operation
        for member in group.members:
            body = member.body
            values: list[Tree] = []
            for op in body.ops:
                values.append(self._tree(op, body, values))
                if op.name == "store":
                    self.stored[op.args[0]] = values[op.args[2].position]  # type: ignore[index, union-attr]
            self.values.append(values)

    def _tree(self, op: Op, body: LoopBody, values: list[Tree]) -> Tree:
        if op.name == "load" and op.args[0] in self.stored and op.args[2] is None:
            return self.stored[op.args[0]]  # type: ignore[index]
        if op.name in ("load", "indirect"):
            places = (id(body), len(values)) if op.name == "indirect" else ()
            return (op.name, *places, *[self._argument(arg, body, values) for arg in op.args])
        return (op.name, *[self._argument(arg, body, values) for arg in op.args])

    def _argument(self, arg: Any, body: LoopBody, values: list[Tree]) -> Any:
        if isinstance(arg, Ref):
            return values[arg.position]
        return body.indices[arg.position] if isinstance(arg, IndexRef) else arg

    def loops_of_score(self, power: Tree, weights: str) -> tuple[Loops, ...] | None:
        """The members that compute the score, the last of them up to it; it stores SCORES at the weights' index."""
        place = next(
            member.body.indices[op.args[1].position]  # type: ignore[union-attr]
            for member in self.group.members
            for op in member.body.ops
            if op.name == "store" and op.args[0] == weights
        )
        for member, values in zip(self.group.members, self.values, strict=True):
            body = member.body
            for op, value in zip(body.ops, values, strict=True):
                if op.name == "exp" and value == power:
                    score = body.ops[op.args[0].position].args[0]  # type: ignore[union-attr]
                    index = IndexRef(len(body.indices))
                    kept = (*body.ops[: score.position + 1], Op("store", (SCORES, index, score, None, None), None))  # type: ignore[union-attr]
                    last = Loops((SCORES,), replace(body, indices=(*body.indices, place), ops=kept), member.origins)
                    return self._with_needed(last)
        return None

    def _with_needed(self, last: Loops) -> tuple[Loops, ...] | None:
        """The loops, and the members that write what they load, in order; None if a reduction is among these."""
        found, needed = [last], set(summarize(last).reads)
        for member in reversed(self.group.members):
            if needed.isdisjoint(member.outputs):
                continue
            if member.body.reduction_vars:
                return None
            found.insert(0, member)
            needed |= summarize(member).reads
        return tuple(found)
