"""Calls of custom autograd.Functions, and what is particular to those under function transforms: `setup_context`, `jvp`
and the function's own `vmap` become graphs of their own, as transforms use them apart from the forward.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.nn.modules._functions import BackwardHookFunction
from torch.utils import _pytree as pytree

from stator.dynamo.graph.subgraphs import Subgraph, deferred, outside_unchanged, own_state, version_of
from stator.dynamo.handlers.torch_calls.trees import constant_tree
from stator.dynamo.host.naming import class_name
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.values.base import Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import TupleValue
from stator.dynamo.values.symbolic_numbers import SymbolicNumber
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.graph.printer import inner_graphs
from stator.graph.subgraphs.custom_autograd import SubgraphBackward, graph_target
from stator.graph.subgraphs.custom_under_transforms import (
    MissingVmapRule,
    SetupContext,
    SubgraphJvp,
    SubgraphVmap,
    TransformableFunction,
    TransformRule,
)
from stator.prims.record import TensorMeta

from .autograd_function import FollowedForward, FollowedPart, FunctionCapture, Placing, level_node

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext

_Function = torch.autograd.Function
_OTHER_PROTOCOLS = ("boxed_grads_call", "clear_saved_tensors_on_access")
_MOST_NEEDS = 3  # each choice of arguments that need a gradient is a backward of its own
_MOST_TANGENTS = 4  # each pattern of missing ones is followed by itself


@calls(_Function.apply.__func__)  # type: ignore[attr-defined]
def _apply(context: CaptureContext, cls: Value, *args: Value, **kwargs: Value) -> Value:
    kind = context.real_of(cls, "a subclass of torch.autograd.Function")
    if kwargs:
        raise unsupported("custom-function", f"{class_name(kind)}.apply with keyword arguments")
    if kind is BackwardHookFunction:
        raise unsupported(
            "custom-function", "a backward hook of a module, which looks for a node of autograd by its name"
        )
    for name in _OTHER_PROTOCOLS:
        if getattr(kind, name, False):
            raise unsupported("custom-function", f"{class_name(kind)} sets {name}")
    if context.recorder.transforms:
        return _TransformableCapture(context, cls, kind, list(args)).applied()
    capture = FunctionCapture(context, cls, kind, list(args))
    return capture.differentiated() if capture.is_differentiable() else capture.forward_only()


class _TransformableCapture(FunctionCapture):
    """One call of `apply` under a function transform."""

    def __init__(self, context: CaptureContext, cls: Value, kind: type[_Function], args: list[Value]) -> None:
        super().__init__(context, cls, kind, args)
        if not self.has_setup:
            raise unsupported(
                "custom-function",
                f"{class_name(kind)}.apply under a function transform, without setup_context",
                "torch.func needs a forward without ctx, and a setup_context",
            )
        self.rule = self._rule()

    def _rule(self) -> TransformRule:
        own = self.kind.vmap is not _Function.vmap
        if own and self.kind.generate_vmap_rule:
            raise unsupported("custom-function", f"{class_name(self.kind)} has a vmap and generates one")
        return (
            TransformRule.OWN
            if own
            else TransformRule.GENERATED
            if self.kind.generate_vmap_rule
            else TransformRule.NONE
        )

    def applied(self) -> Value:
        context = self.context
        forward = self._forward_part()
        self._refuse_writes(forward.level, f"the forward of {class_name(self.kind)}, under a transform,")
        setup = self._setup_part(forward)
        if self.autograd_context.listed(context, "dirty_tensors"):
            raise unsupported("custom-function", f"{class_name(self.kind)} writes to an argument, under a transform")
        if self.autograd_context.asks_needs:
            raise unsupported("custom-function", f"setup_context of {class_name(self.kind)} asks for needs_input_grad")
        self.graphs += [forward.level.graph, setup.graph]
        differentiable = self.is_differentiable()
        parts = self._parts_by_needs(forward) if differentiable else {}
        asks_needs = self.autograd_context.asks_needs
        pushed = self._jvp_parts(forward) if differentiable and self.kind.jvp is not _Function.jvp else {}
        if self.autograd_context.asks_needs is not asks_needs:
            raise unsupported("custom-function", f"the jvp of {class_name(self.kind)} asks for needs_input_grad")
        placing = Placing(self.tensors, forward.outputs, setup)
        backwards = {
            key: SubgraphBackward(part.graph, tuple(map(placing.place, part.lifted)), part.results, part.layouts)
            for key, part in parts.items()
        }
        jvps = {
            key: SubgraphJvp(graph, tuple(map(placing.place, level.lifted)), results)
            for key, (graph, level, results) in pushed.items()
        }
        reads = tuple(map(placing.place, forward.level.lifted))
        both: list[SubgraphBackward | SubgraphJvp] = [*backwards.values(), *jvps.values()]
        setup_reads = tuple(map(placing.place, setup.lifted))
        function = TransformableFunction(
            name=class_name(self.kind),
            argument_count=len(self.tensors),
            forward=forward.level.finish([level_node(forward.level, one, context) for one in forward.outputs]),
            reads=reads,
            output_count=len(forward.outputs),
            setup=SetupContext(setup.finish([level_node(setup, one, context) for one in placing.kept]), setup_reads),
            backwards=backwards,
            jvps=jvps,
            saved=tuple(dict.fromkeys(place for part in both for place in part.reads)),
            not_differentiable=self._positions(
                forward.outputs, self.autograd_context.listed(context, "non_differentiable")
            ),
            materialize=self.autograd_context.flag(context, "materialize_grads", True),
            once=self._is_once(),
            asks_needs=asks_needs,
            rule=self.rule,
        )
        self._check_rules_are_found(function)
        context.recorder.rules[id(function)] = self._follow_rule
        target = graph_target(function, f"apply_{class_name(self.kind)}")
        made = context.record_function(target, [*self.tensors, *placing.free], {})
        return self._results(forward.result, list(context.iterate(made)))

    def _follow_forward(self) -> Value:
        return self.context.call(self.context.get_attr(self.cls, "forward"), list(self.args), {})

    def _setup_part(self, forward: FollowedForward) -> Subgraph:
        context = self.context
        what = f"the setup_context of {class_name(self.kind)}"
        with context.recorder.subgraph(forward.level.graph) as level, own_state(what, grad_mode=False):
            setup = context.get_attr(self.cls, "setup_context")
            context.call(setup, [self.autograd_context, TupleValue(list(self.args)), forward.result], {})
        self._refuse_kept_arguments(forward.result)
        self._refuse_writes(level, what)
        return level

    def _parts_by_needs(self, forward: FollowedForward) -> dict[tuple[bool, ...], FollowedPart]:
        """The backward; where it asks which arguments need a gradient, for each choice of those that may."""
        autograd_context = self.autograd_context
        parts = self._backward_parts(forward)
        if not autograd_context.asks_needs:
            return parts
        able = [arg.fake.requires_grad for arg in self.tensors]
        if sum(able) > _MOST_NEEDS:
            raise unsupported("custom-function", f"{class_name(self.kind)} asks about many arguments under a transform")
        found: dict[tuple[bool, ...], FollowedPart] = {}
        for needs in itertools.product(*[(True, False) if one else (False,) for one in able]):
            told = iter(needs)
            asked = [ConstantValue(isinstance(arg, TensorValue) and next(told)) for arg in self.args]
            autograd_context.set_own(self.context, "needs_input_grad", TupleValue(list(asked)))
            found |= {(*key, *needs): part for key, part in self._backward_parts(forward).items()}
        return found

    # ---- forward mode ----

    def _jvp_parts(self, forward: FollowedForward) -> dict[tuple[bool, ...], Any]:
        """`jvp`, followed for each choice of arguments that have tangents: with `materialize_grads`, those that can."""
        context, autograd_context = self.context, self.autograd_context
        saved = autograd_context.listed(context, "saved_for_forward")
        autograd_context.set_own(context, "saved_tensors", TupleValue(list(saved)))
        able = [_differentiable(arg) for arg in self.tensors]
        patterns = [tuple(able)]
        if not autograd_context.flag(context, "materialize_grads", True):
            if sum(able) > _MOST_TANGENTS:
                raise unsupported("custom-function", f"{class_name(self.kind)} has many arguments and a jvp")
            choices = [(True, False) if one else (False,) for one in able]
            patterns = [pattern for pattern in itertools.product(*choices) if any(pattern)]
        return {pattern: self._jvp_part(forward, pattern) for pattern in patterns}

    def _jvp_part(self, forward: FollowedForward, pattern: tuple[bool, ...]) -> Any:
        context, recorder, autograd_context = self.context, self.context.recorder, self.autograd_context
        what = f"the jvp of {class_name(self.kind)}"
        attributes = dict(autograd_context.attributes or {})
        rest = tuple(value for value in attributes.values() if isinstance(value, Value))
        try:
            with (
                recorder.subgraph(*self.graphs) as level,
                own_state(what, grad_mode=True),
                deferred(context, what, *rest, *self.args),
            ):
                tangents = self._tangents(level, pattern)
                result = context.call(context.get_attr(self.cls, "jvp"), [autograd_context, *tangents], {})
                items = [context.realized(item) for item in self._items(result)]
                nodes: list[fx.Node] = []
                results: list[int | None] = []
                outputs = [context.realized(item) for item in self._items(forward.result)]
                if len(items) != len(outputs):
                    raise unsupported("custom-function", f"{what} gives {len(items)} tangents")
                for output, item in zip(outputs, items, strict=True):
                    if not isinstance(output, TensorValue):
                        continue
                    if not isinstance(item, TensorValue) and not context.is_none(item):
                        raise unsupported("custom-function", f"{what} gives {item.describe(context)}")
                    results.append(None if not isinstance(item, TensorValue) else len(nodes))
                    nodes += [level_node(level, item, context)] if isinstance(item, TensorValue) else []
                self._refuse_writes(level, what)
        finally:
            autograd_context.attributes = attributes
        return level.finish(nodes), level, tuple(results)

    def _items(self, result: Value) -> list[Any]:
        return list(result.items) if isinstance(result, TupleValue) else [result]

    def _tangents(self, level: Subgraph, pattern: tuple[bool, ...]) -> list[Value]:
        present = iter(pattern)
        tangents: list[Value] = []
        for arg in self.args:
            if isinstance(arg, TensorValue) and next(present):
                tangents.append(self._stand_in(level, arg, arg.fake))
            else:
                tangents.append(ConstantValue(None))
        return tangents

    def _stand_in(self, level: Subgraph, arg: TensorValue, like: Any, requires_grad: bool = False) -> TensorValue:
        recorder = self.context.recorder
        shape = tuple(like.shape)
        fake = recorder.mode.make(TensorMeta(shape, tuple(like.stride()), like.dtype, like.device))
        return recorder.wrap_tensor(fake.requires_grad_(requires_grad), level.placeholder(fake))

    # ---- vmap ----

    def _follow_rule(self, missing: MissingVmapRule) -> SubgraphVmap:
        """The function's own `vmap`, for arguments like these; what it reads of numbers are constants."""
        while True:
            found, lifted = self._follow_rule_once(missing)
            if not lifted:
                return found
            for one in lifted:
                if isinstance(one, TensorValue):
                    raise unsupported(
                        "custom-function", f"the vmap of {class_name(self.kind)} uses tensors that it is not given"
                    )
                one.constant()

    def _follow_rule_once(self, missing: MissingVmapRule) -> tuple[SubgraphVmap, list[TensorValue | SymbolicNumber]]:
        context, recorder = self.context, self.context.recorder
        what = f"the vmap of {class_name(self.kind)}"
        given = iter(zip(self.tensors, missing.in_dims, missing.like, strict=True))
        args: list[Value] = []
        dims: list[Any] = []
        stand_ins: list[TensorValue] = []
        recorder.transforms.append("a rule of vmap")
        try:
            with (
                recorder.subgraph() as level,
                own_state(what, grad_mode=torch.is_grad_enabled()),
                outside_unchanged(context, what, *self.args),
            ):
                for arg in self.args:
                    if not isinstance(arg, TensorValue):
                        args.append(arg)
                        dims.append(None)
                        continue
                    _, dim, like = next(given)
                    stand_ins.append(self._stand_in(level, arg, like, arg.fake.requires_grad))
                    args.append(stand_ins[-1])
                    dims.append(dim)
                info = TupleValue([ConstantValue(one) for one in missing.info], cls=type(missing.info))
                places = TupleValue([ConstantValue(dim) for dim in dims])
                result = context.call(context.get_attr(self.cls, "vmap"), [info, places, *args], {})
                outputs, out_dims = self._mapped_results(result)
                nodes = [level_node(level, output, context) for output in outputs]
        finally:
            recorder.transforms.pop()
        if any(version_of(one) for one in stand_ins):
            raise unsupported("custom-function", f"{what} writes to its arguments")
        if len(outputs) != missing.function.output_count:
            raise unsupported("custom-function", f"{what} gives {len(outputs)} tensors")
        return SubgraphVmap(level.finish(nodes), out_dims), level.lifted

    def _mapped_results(self, result: Value) -> tuple[list[TensorValue], tuple[int | None, ...]]:
        if not isinstance(result, TupleValue) or len(result.items) != 2:
            raise unsupported("custom-function", f"the vmap of {class_name(self.kind)} gives no pair")
        made, where = map(self.context.realized, result.items)
        items = [self.context.realized(item) for item in self._items(made)]
        outputs = [item for item in items if isinstance(item, TensorValue)]
        tree = constant_tree(self.context, where, "out_dims")
        _, spec = pytree.tree_flatten(tuple(items) if isinstance(made, TupleValue) else 0)
        dims = pytree._broadcast_to_and_flatten(tree, spec)
        if dims is None or len(outputs) != len(items):
            raise unsupported("custom-function", f"the vmap of {class_name(self.kind)} gives more than tensors")
        return outputs, tuple(dims)

    def _check_rules_are_found(self, function: TransformableFunction) -> None:
        """A generated rule maps over the backward too, where nobody would follow rules that are asked for."""
        if function.rule is not TransformRule.GENERATED:
            return
        both: list[SubgraphBackward | SubgraphJvp] = [*function.backwards.values(), *function.jvps.values()]
        for part in both:
            if any(_has_own_rule(node) for node in part.graph.graph.nodes):
                raise unsupported(
                    "custom-function", f"the backward of {function.name} calls a function with a vmap of its own"
                )


def _has_own_rule(node: fx.Node) -> bool:
    part = getattr(node.target, "graph_callable", None)
    if isinstance(part, TransformableFunction) and part.rule is TransformRule.OWN:
        return True
    return any(_has_own_rule(one) for graph in inner_graphs(node).values() for one in graph.graph.nodes)


def _differentiable(value: TensorValue) -> bool:
    return value.fake.is_floating_point() or value.fake.is_complex()
