"""Branches on facts about the data of inputs, such as `if mask.all():`. Capture follows the branch of this call, and a
guard computes the fact again in each call. Applies to small integer and boolean tensors, such as ids and masks, and to
comparisons in short vectors of floats, such as points in time and coefficients, whose facts rarely change. Where facts
do change, the graph ends at the branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from stator.dynamo.guards.data_guards import DataFact, DataGuardStep, DataRef
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource
from stator.dynamo.values.base import CaptureContext
from stator.dynamo.values.symbolic_numbers import example_of_number
from stator.dynamo.values.tensors.tensor import TensorValue, truths
from stator.graph.fake.wrapper_subclasses import is_wrapper, version_of

_MOST_STEPS, _MOST_INPUTS = 16, 3
# elements of each tensor in the computation, so that the guard stays cheap
_LARGEST = 1 << 14
_MOST_FLOATS = 16  # of a vector; other tensors of floats are data, whose facts change
_OFTEN = 4  # changes of a fact after which the graph ends there

_NAMES = """
    all any eq ne lt le gt ge and or xor invert not neg add sub mul getitem isnan isinf isfinite isclose
    logical_not logical_and logical_or logical_xor
    bitwise_not bitwise_and bitwise_or bitwise_xor sum amax amin max min count_nonzero to bool int long float double
    view reshape flatten unsqueeze squeeze expand transpose permute contiguous clone detach diff cumsum masked_fill isin
    pad ones zeros full ones_like zeros_like full_like unbind select flip
"""
_PURE = frozenset(_NAMES.split())
# of floats, which are points in time, coefficients or ranges where programs compare them as they are
_NAMES_FOR_FLOATS = """
    getitem select unbind min max amin amax flip neg to float double view reshape flatten unsqueeze squeeze contiguous
    clone detach
"""
_PURE_ON_FLOATS = frozenset(_NAMES_FOR_FLOATS.split())
_CONSTANTS = (int, float, bool, str, type(None), type(...), torch.dtype, torch.device, torch.memory_format)


def truth_of_inputs(context: CaptureContext, value: TensorValue, at_branch: bool) -> bool | None:
    """The truth of a one-element tensor in this call, if it follows from constants, or from inputs, under a guard.
    Truths about floats are decided `at_branch` only: elsewhere the graph keeps them."""
    recorder = context.recorder
    if context.later is not None:
        return None
    part = _Part(context, at_branch)
    try:
        part.add(recorder.node_of(value))
    except _NotOfInputs:
        return None
    if not part.steps:
        return None
    fact = DataFact(part.steps)
    if not part.inputs:  # masks that the program makes from constants
        with torch.no_grad():
            return fact()
    source = CallSource(fact, tuple([one.source for one in part.inputs]))  # type: ignore[misc]
    if context.changing.get(source, 0) >= _OFTEN:
        return None
    with torch.no_grad():
        found = fact(*[one.obj for one in part.inputs])
    if found is None or recorder.mode.rely_on_contents(part.inputs):
        return found
    for one in part.inputs:
        recorder.mode.rely_on_no_other_writer(one)
    context.guard(source, GuardKind.EQUALS, found)
    return found


truths.append(truth_of_inputs)


class _NotOfInputs(Exception):
    """Private to this module."""


class _Part:
    """The part of a graph that computes one node, as steps."""

    def __init__(self, context: CaptureContext, takes_floats: bool) -> None:
        self.takes_floats = takes_floats
        self.given = {one.node: one for one in context.recorder.input_values}
        self.outer = {inner: node for level in context.recorder.open for inner, node in level.outer_nodes()}
        self.inputs: list[TensorValue] = []
        self.steps: list[DataGuardStep] = []
        self._order: list[fx.Node] = []

    def add(self, node: fx.Node) -> None:
        """Raises _NotOfInputs."""
        self._visit(node)
        leaves = [one for one in self._order if one.op == "placeholder"]
        self.inputs = [self.given[one] for one in leaves]
        operators = [one for one in self._order if one.op != "placeholder"]
        if any(one.fake.dtype.is_floating_point for one in self.inputs):
            self._check_floats(operators)
        self._numbers = {one: number for number, one in enumerate((*leaves, *operators))}
        self.steps = [self._step(one) for one in operators]

    def _visit(self, node: fx.Node) -> None:
        node = self._outermost(node)
        if node in self._order:
            return
        if not all(map(_is_small, _fakes(node))):
            raise _NotOfInputs
        if node.op == "placeholder":
            self._check_input(self.given.get(node))
        elif node.op not in ("call_function", "call_method") or _name(node) not in _PURE:
            raise _NotOfInputs
        for one in node.all_input_nodes:
            self._visit(one)
        self._order.append(node)
        if len(self._order) > _MOST_STEPS:
            raise _NotOfInputs

    def _check_floats(self, operators: list[fx.Node]) -> None:
        made = [one for one in operators if any(fake.is_floating_point() for fake in _fakes(one))]
        if not self.takes_floats or not _PURE_ON_FLOATS.issuperset(map(_name, made)):
            raise _NotOfInputs

    def _outermost(self, node: fx.Node) -> fx.Node:
        """The node outside of all subgraphs that a placeholder of a subgraph stands for."""
        while node in self.outer:
            node = self.outer[node]
        return node

    def _check_input(self, value: TensorValue | None) -> None:
        if value is None or value.cls is not torch.Tensor or value.source is None or value.obj is None:
            raise _NotOfInputs
        leaves = sum(one.op == "placeholder" for one in self._order)
        dtype, layout = value.fake.dtype, value.obj.layout
        if dtype.is_complex or layout is not torch.strided or leaves >= _MOST_INPUTS:
            raise _NotOfInputs
        if dtype.is_floating_point and (value.obj.dim() != 1 or value.obj.numel() > _MOST_FLOATS):
            raise _NotOfInputs

    def _step(self, node: fx.Node) -> DataGuardStep:
        method = node.op == "call_method"
        function: Any = getattr(torch.Tensor, str(node.target)) if method else node.target
        kwargs = {name: self._argument(value) for name, value in node.kwargs.items()}
        return DataGuardStep(function, _name(node), tuple(self._argument(value) for value in node.args), kwargs)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return DataRef(self._numbers[self._outermost(value)])
        if isinstance(value, (tuple, list)):
            kind = list if isinstance(value, list) else tuple
            return kind(self._argument(item) for item in value)
        if type(value) is slice:
            return slice(*[self._argument(item) for item in (value.start, value.stop, value.step)])
        if type(value) not in _CONSTANTS:
            raise _NotOfInputs
        return value


def _fakes(node: fx.Node) -> Sequence[Any]:
    """The result of a node, or the parts of a result that `unbind` and the like divide."""
    fake = node.meta.get("example_value")
    return fake if type(fake) in (tuple, list) else (fake,)  # type: ignore[return-value]


def _is_small(fake: object) -> bool:
    """Whether this is a plain tensor of few elements to which the graph has not written."""
    if not isinstance(fake, torch.Tensor) or is_wrapper(fake):
        return False
    count = example_of_number(fake.numel())
    return count is not None and count <= _LARGEST and not version_of(fake)


def _name(node: fx.Node) -> str:
    """The operation's name: `and` for operator.and_ and Tensor.__and__. In-place methods keep their underscore."""
    target = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if name.startswith("__"):
        return name.strip("_")
    return name.rstrip("_") if getattr(target, "__module__", "") == "_operator" else name
