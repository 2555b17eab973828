"""Custom autograd.Functions: which calls of `apply` capture follows. It follows forward and backward into two graphs,
which one node applies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.modules._functions import BackwardHookFunction

from stator.base.errors import Unsupported
from stator.dynamo.graph.subgraphs import Subgraph, deferred, own_state, reachable
from stator.dynamo.host.compile_directives import Treatment, mark_of
from stator.dynamo.host.naming import class_name
from stator.dynamo.interpreter.calling import calls, in_graph, makers
from stator.dynamo.ir.reconstruct_ir import Recipe
from stator.dynamo.values.base import CaptureContext, Raised, Reconstructor, Value, cannot_rebuild, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import ListValue, TupleValue
from stator.dynamo.values.functions import FunctionValue
from stator.dynamo.values.objects import MISSING, ObjectValue
from stator.dynamo.values.symbolic_numbers import SymbolicNumber
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.graph.fake.fake_mode import FakeMode
from stator.graph.fake.fake_tensor import FakeTensor
from stator.graph.fake.wrapper_subclasses import WrapperLayout, is_wrapper, like_gradient
from stator.graph.subgraphs.custom_autograd import (
    CustomFunction,
    GradientKind,
    SlotKind,
    SubgraphBackward,
    ValueSlot,
    graph_target,
    kind_of_gradient,
)
from stator.prims.record import TensorMeta

_Function = torch.autograd.Function
_MOST_KINDS = 8  # combinations of gradients for which a backward is captured
_MOST_DERIVATIVES = 4  # functions in backwards of functions in backwards


@dataclass(slots=True)
class CapturedForward:
    """A captured forward. outputs: the tensors among its results."""

    result: Value
    outputs: list[TensorValue]
    level: Subgraph


@dataclass(slots=True)
class CapturedBackward:
    """A backward captured for one grad mode and certain kinds of gradients, see `SubgraphBackward`. lifted: the values
    that it reads beside the gradients."""

    kinds: tuple[WrapperLayout | GradientKind, ...]
    graph: fx.GraphModule
    lifted: list[TensorValue | SymbolicNumber]
    results: tuple[int | None, ...]
    asks_grad_mode: bool


class FunctionCapture:
    """One call of `apply`."""

    def __init__(self, context: CaptureContext, cls: Value, kind: type[_Function], args: list[Value]) -> None:
        self.context = context
        self.cls = cls
        self.kind = kind
        self.autograd_context = AutogradContextValue()
        self.graphs: list[fx.Graph] = []  # finished graphs, whose tensors a backward may read
        self.has_setup = kind.setup_context is not _Function.setup_context
        self.args = self._with_defaults(args)
        self.tensors = [arg for arg in self.args if isinstance(arg, TensorValue)]
        needs = [ConstantValue(isinstance(arg, TensorValue) and self._may_require_grad(arg)) for arg in self.args]
        self.autograd_context.set_own(context, "needs_input_grad", TupleValue(list(needs)))

    def _with_defaults(self, args: list[Value]) -> list[Value]:
        """With `setup_context`, torch fills in the defaults of forward's parameters."""
        if not self.has_setup:
            return args
        forward = self.context.get_attr(self.cls, "forward")
        if not isinstance(forward, FunctionValue):
            raise unsupported("custom-function", f"forward of {class_name(self.kind)} is not a function")
        defaults = forward.default_values(self.context)
        missing = forward.code.co_argcount - len(args)
        if not 0 <= missing <= len(defaults):
            return args  # the call itself raises the error
        return [*args, *map(self.context.realized, defaults[len(defaults) - missing :])]

    def is_differentiable(self) -> bool:
        """Whether a backward may be asked for."""
        return torch.is_grad_enabled() and any(map(self._may_require_grad, self.tensors))

    def _may_require_grad(self, arg: TensorValue) -> bool:
        """Whether an argument may require grad. In a backward that is differentiated itself, what the forward saved
        and the gradients may."""
        later, differentiable = self.context.later, arg.fake.is_floating_point() or arg.fake.is_complex()
        return arg.fake.requires_grad or (differentiable and later is not None and bool(later.differentiates))

    # ---- forward ----

    def _call_forward(self) -> Value:
        context = self.context
        forward = context.get_attr(self.cls, "forward")
        if not self.has_setup:
            return context.call(forward, [self.autograd_context, *self.args], {})
        result = context.call(forward, list(self.args), {})
        setup = context.get_attr(self.cls, "setup_context")
        context.call(setup, [self.autograd_context, TupleValue(list(self.args)), result], {})
        self._refuse_kept_arguments(result)
        return result

    def _refuse_kept_arguments(self, result: Value) -> None:
        """Raise Unsupported where torch raises: a `setup_context` saves an argument that forward returns and that is
        not marked as dirty, so that the result is another tensor."""
        context, autograd_context = self.context, self.autograd_context
        dirty = autograd_context.listed(context, "dirty_tensors")
        saved = [*autograd_context.listed(context, "to_save"), *autograd_context.listed(context, "saved_for_forward")]
        for item in result.items if isinstance(result, TupleValue) else [result]:
            one = context.realized(item)
            as_is = any(one is arg for arg in self.tensors) and not any(one is other for other in dirty)
            if as_is and any(one is context.realized(other) for other in saved):
                raise unsupported("custom-function", f"{class_name(self.kind)} saves an argument that it returns")

    def forward_only(self) -> Value:
        """Nothing requires grad, so the forward is an ordinary function."""
        context = self.context
        switch = context.known(torch._C._set_grad_enabled)
        enabled = torch.is_grad_enabled()
        if enabled:
            context.call(switch, [ConstantValue(False)], {})
        result = self._call_forward()
        if enabled:
            context.call(switch, [ConstantValue(True)], {})
        dirty = self.autograd_context.listed(context, "dirty_tensors")
        items = result.items if isinstance(result, TupleValue) else [result]
        given = [self._as_returned(context.realized(item), dirty) for item in items]
        return TupleValue(given) if isinstance(result, TupleValue) else given[0]

    def _as_returned(self, item: Value, dirty: list[Value]) -> Value:
        """An argument that forward returns becomes a view of itself, unless forward wrote to it."""
        if any(item is arg for arg in self.tensors) and not any(item is one for one in dirty):
            return self.context.record_method("view_as", [item, item], {})
        return item

    def differentiated(self) -> Value:
        """Record one node that applies forward and backward as graphs."""
        context = self.context
        if self.kind.vjp is not _Function.vjp:
            raise unsupported("custom-function", f"{class_name(self.kind)} defines vjp")
        forward = self._forward_part()
        outputs, level = forward.outputs, forward.level
        self.graphs.append(level.graph)
        parts = self._backward_parts(forward)
        slots = SlotAssignment(self.tensors, outputs, level)
        backwards = {
            key: tuple(
                SubgraphBackward(one.graph, tuple(map(slots.place, one.lifted)), one.results, one.kinds)
                for one in found
            )
            for key, found in parts.items()
        }
        saved = [item for item in self.autograd_context.listed(context, "to_save") if not context.is_none(item)]
        saved_places = dict.fromkeys(slots.place(self._tensor(item, "save_for_backward")) for item in saved)
        nodes = [level_node(level, value, context) for value in (*outputs, *slots.kept)]
        function = CustomFunction(
            name=class_name(self.kind),
            argument_count=len(self.tensors),
            forward=level.finish(nodes),
            reads=tuple(map(slots.place, level.lifted)),
            output_count=len(outputs),
            backwards=backwards,
            saved=tuple(saved_places),
            dirty=tuple(
                dict.fromkeys(self._argument(item) for item in self.autograd_context.listed(context, "dirty_tensors"))
            ),
            not_differentiable=self._positions(outputs, self.autograd_context.listed(context, "non_differentiable")),
            once=self._is_once(),
            materializes=self.autograd_context.materializes_gradients(context),
        )
        target = graph_target(function, f"apply_{class_name(self.kind)}")
        made = context.record_function(target, [*self.tensors, *slots.free], {})
        return self._results(forward.result, list(context.iterate(made)))

    def _forward_part(self) -> CapturedForward:
        context = self.context
        what = f"the forward of {class_name(self.kind)}"
        with context.recorder.subgraph(takes_wrappers=True) as level, own_state(what, grad_mode=False):
            result = self._call_forward()
            items = result.items if isinstance(result, TupleValue) else [result]
            items = [context.realized(item) for item in items]
            outputs = [item for item in items if isinstance(item, TensorValue)]
            inside = [item for item in items if not isinstance(item, TensorValue)]
            if any(isinstance(one, TensorValue) for one in reachable(tuple(inside)).values()):
                raise unsupported("custom-function", f"{what} returns tensors inside other objects")
            for output in outputs:
                level_node(level, output, context)
        return CapturedForward(result, outputs, level)

    def _results(self, result: Value, made: list[Value]) -> Value:
        remaining = iter(made)
        items = map(self.context.realized, result.items if isinstance(result, TupleValue) else [result])
        given = [next(remaining) if isinstance(item, TensorValue) else item for item in items]
        return TupleValue(given) if isinstance(result, TupleValue) else given[0]

    # ---- backward ----

    def _backward_parts(self, forward: CapturedForward) -> dict[bool, list[CapturedBackward]]:
        """The backward by grad mode, for each kind of gradients; captured twice if its code asks for the mode."""
        context, autograd_context = self.context, self.autograd_context
        saved = autograd_context.listed(context, "to_save")
        autograd_context.set_own(context, "saved_tensors", TupleValue(list(saved)))
        autograd_context.set_own(context, "saved_variables", TupleValue(list(saved)))
        parts = self._backwards_of_kinds(forward, grad_mode=False)
        asks = any(part.asks_grad_mode for part in parts)
        return {False: parts, True: self._backwards_of_kinds(forward, grad_mode=True) if asks else parts}

    def _backwards_of_kinds(self, forward: CapturedForward, grad_mode: bool) -> list[CapturedBackward]:
        """The gradient of a wrapper subclass is of its class or a plain tensor, as later operators decide. A backward
        that cannot be captured for some kinds is captured for the others."""
        absent = [] if self.autograd_context.materializes_gradients(self.context) else [None]
        kinds = list(itertools.product(*[[*_gradients_like(output.fake), *absent] for output in forward.outputs]))
        if len(kinds) > _MOST_KINDS:
            raise unsupported("custom-function", f"gradients of {len(kinds)} kinds for {class_name(self.kind)}")
        found: list[CapturedBackward] = []
        for at, examples in enumerate(kinds):
            mode = self.context.recorder.mode
            fakes = [None if one is None else _fake_like(mode, one) for one in examples]
            try:
                found.append(self._backward_part(forward, grad_mode, fakes))
            except Unsupported:
                plain = all(type(one) is FakeTensor for one in (*fakes, *[one.fake for one in forward.outputs]))
                if plain or (at == len(kinds) - 1 and not found):
                    raise
        return found

    def _backward_part(
        self, forward: CapturedForward, grad_mode: bool, fakes: Sequence[torch.Tensor | None]
    ) -> CapturedBackward:
        context, autograd_context = self.context, self.autograd_context
        what = f"the backward of {class_name(self.kind)}"
        attributes = dict(autograd_context.attributes or {})
        rest = tuple(value for value in attributes.values() if isinstance(value, Value))
        outer = context.later.differentiates if context.later is not None else ()
        try:
            with (
                context.recorder.subgraph(*self.graphs, takes_wrappers=True) as level,
                # a backward usually runs outside of the autocast region of its forward
                own_state(what, grad_mode=grad_mode, autocast=False),
                deferred(context, what, *rest, *self.args) as later,
            ):
                later.differentiates = (*outer, self.kind) if grad_mode else ()
                gradients = self._gradients(forward, level, fakes)
                result = self._call_backward(gradients)
                nodes, results = self._gradient_nodes(result, level)
                self._refuse_writes(level, what)
        finally:
            autograd_context.attributes = attributes
        kinds = tuple(map(kind_of_gradient, fakes))
        return CapturedBackward(kinds, level.finish(nodes), level.lifted, results, later.asks_grad_mode)

    def _gradients(
        self, forward: CapturedForward, level: Subgraph, fakes: Sequence[torch.Tensor | None]
    ) -> list[Value]:
        """The arguments of backward after ctx, one for each of forward's results."""
        wrap = self.context.recorder.wrap_tensor
        given = iter([ConstantValue(None) if one is None else wrap(one, level.placeholder(one)) for one in fakes])
        items = forward.result.items if isinstance(forward.result, TupleValue) else [forward.result]
        tensors = [isinstance(item, TensorValue) for item in map(self.context.realized, items)]
        return [next(given) if tensor else ConstantValue(None) for tensor in tensors]

    def _call_backward(self, gradients: list[Value]) -> Value:
        backward = self.context.get_attr(self.cls, "backward")
        if self._is_once():
            backward = self.context.get_attr(backward, "__wrapped__")
        return self.context.call(backward, [self.autograd_context, *gradients], {})

    def _is_once(self) -> bool:
        return getattr(self.kind.backward, "__code__", None) is _ONCE_CODE

    def _gradient_nodes(self, result: Value, level: Subgraph) -> tuple[list[fx.Node | None], tuple[int | None, ...]]:
        context = self.context
        if isinstance(result, (TupleValue, ListValue)):
            items = [context.realized(item) for item in result.items]
        else:
            items = [result]
        extra = items[len(self.args) :]
        if len(items) < len(self.args) or not all(map(context.is_none, extra)):
            raise unsupported(
                "custom-function", f"the backward of {class_name(self.kind)} gives {len(items)} gradients"
            )
        nodes: list[fx.Node | None] = []
        results: list[int | None] = []
        for arg, item in zip(self.args, items, strict=False):
            if isinstance(item, TensorValue) and isinstance(arg, TensorValue):
                results.append(len(nodes))
                nodes.append(level_node(level, item, context))
            elif not context.is_none(item):
                raise unsupported(
                    "custom-function", f"the backward of {class_name(self.kind)} gives {item.describe(context)}"
                )
            elif isinstance(arg, TensorValue):
                results.append(None)
        return nodes, tuple(results)

    def _refuse_writes(self, level: Subgraph, what: str) -> None:
        """Raise Unsupported for writes to tensors other than the gradients."""
        for value in level.written():
            raise unsupported("deferred-effect", f"{what} writes to {value.describe(self.context)}")

    # ---- facts ----

    def _tensor(self, item: Value, method: str) -> TensorValue:
        if not isinstance(item, TensorValue):
            raise unsupported("custom-function", f"{method} of {item.describe(self.context)}")
        return item

    def _argument(self, item: Value) -> int:
        for index, arg in enumerate(self.tensors):
            if arg is item:
                return index
        raise unsupported("custom-function", f"mark_dirty of {item.describe(self.context)}, which is no argument")

    def _positions(self, outputs: list[TensorValue], items: list[Value]) -> tuple[int, ...]:
        return tuple(at for at, output in enumerate(outputs) if any(output is item for item in items))


class SlotAssignment:
    """Finds the slots of the values that a backward reads; collects those that the forward has to keep for it."""

    def __init__(self, arguments: list[TensorValue], outputs: list[TensorValue], level: Subgraph) -> None:
        self.level = level
        self.kept: list[TensorValue] = []
        self.free: list[TensorValue | SymbolicNumber] = []
        self._places: dict[int, ValueSlot] = {}
        for index, output in enumerate(outputs):
            self._places.setdefault(id(output), (SlotKind.OUTPUT, index))
        for index, argument in enumerate(arguments):  # a returned argument counts as an argument
            if self._places.get(id(argument), (SlotKind.OUTPUT, 0))[0] is SlotKind.OUTPUT:
                self._places[id(argument)] = (SlotKind.ARGUMENT, index)

    def place(self, value: TensorValue | SymbolicNumber) -> ValueSlot:
        found = self._places.get(id(value))
        if found is None:
            if isinstance(value, TensorValue) and value.node is not None and value.node.graph is self.level.graph:
                found = (SlotKind.KEPT, len(self.kept))
                self.kept.append(value)
            else:
                found = (SlotKind.FREE, len(self.free))
                self.free.append(value)
            self._places[id(value)] = found
        return found


def _gradients_like(output: torch.Tensor) -> Iterator[TensorMeta | torch.Tensor]:
    """What the gradient of an output may be like: a plain tensor, or a wrapper subclass."""
    if type(output) is FakeTensor:
        yield output.meta
        return
    like = like_gradient(output)
    if is_wrapper(like):
        yield like
    yield TensorMeta(tuple(output.shape), output.stride(), output.dtype, output.device)


def _fake_like(mode: FakeMode, example: TensorMeta | torch.Tensor) -> torch.Tensor:
    if isinstance(example, TensorMeta):
        return mode.make(TensorMeta(example.shape, example.stride, example.dtype, example.device))
    layout = WrapperLayout.of(example)
    leaves = [_fake_like(mode, leaf.meta) for leaf in layout.leaves(example)]  # type: ignore[attr-defined]
    return layout.build(iter(leaves))


def level_node(level: Subgraph, value: TensorValue, context: CaptureContext) -> fx.Node:
    """The node of a value in a subgraph, which need not be the open one."""
    if value.node is None:
        context.recorder.node_of(value)
    assert value.node is not None
    return value.node if value.node.graph is level.graph else level.lift(value)


def _a_backward(ctx: Any) -> None: ...


_ONCE_CODE = once_differentiable(_a_backward).__code__  # type: ignore[attr-defined]


_OTHER_PROTOCOLS = ("boxed_grads_call", "clear_saved_tensors_on_access")


@makers.register(torch.autograd.Function)
def _make_function(context: CaptureContext, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`F()`, for the deprecated `F().apply(x)`."""
    return ObjectValue(kind)


@calls(torch.autograd.Function.apply.__func__)  # type: ignore[attr-defined]
def _apply(context: CaptureContext, cls: Value, *args: Value, **kwargs: Value) -> Value:
    kind = context.real_of(cls, "a subclass of torch.autograd.Function")
    if kwargs:
        raise unsupported("custom-function", f"{class_name(kind)}.apply with keyword arguments")
    if kind is BackwardHookFunction:
        raise unsupported(
            "custom-function", "a backward hook of a module, which looks for a node of autograd by its name"
        )
    mark = mark_of(kind)
    if mark is not None and mark.treatment is Treatment.IN_GRAPH:
        return in_graph(context, mark, context.known(_applied(kind)), list(args), kwargs)
    for name in _OTHER_PROTOCOLS:
        if getattr(kind, name, False):
            raise unsupported("custom-function", f"{class_name(kind)} sets {name}")
    if context.recorder.transforms:
        raise unsupported("custom-function", f"{class_name(kind)}.apply under a function transform")
    if (later := context.later) is not None:
        later.asks_grad_mode = True  # decides whether the function's own backward counts
        if kind in later.differentiates or len(later.differentiates) > _MOST_DERIVATIVES:
            raise unsupported("custom-function", f"{class_name(kind)}.apply in {later.what}, which gives it again")
    capture = FunctionCapture(context, cls, kind, list(args))
    return capture.differentiated() if capture.is_differentiable() else capture.forward_only()


def _applied(kind: type[torch.autograd.Function]) -> Any:
    """`kind.apply` as a plain function: fx graphs print a method of torch by its name in torch."""

    def apply(*args: Any) -> Any:
        return kind.apply(*args)

    apply.__name__ = apply.__qualname__ = f"apply_{class_name(kind)}"
    return apply


_OF_NODE = frozenset(name for name in dir(torch._C._FunctionBase) if not hasattr(object, name))


class AutogradContextValue(ObjectValue):
    """Capture follows the methods of torch's FunctionCtx, which store their arguments as attributes."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(FunctionCtx)

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        try:
            return super().get_attr(context, name)
        except Raised:
            if name in _OF_NODE:
                raise unsupported("attribute", f"attribute {name!r} of the context of a custom function") from None
            raise

    def listed(self, context: CaptureContext, name: str) -> list[Value]:
        """The tensors that a method of the context stored under `name`; none if the program did not call it."""
        found = (self.attributes or {}).get(name, MISSING)
        if found is MISSING:
            return []
        if not isinstance(found, TupleValue):
            raise unsupported("custom-function", f"the context's {name!r} was replaced by {found.describe(context)}")
        return [context.realized(item) for item in found.items]

    def materializes_gradients(self, context: CaptureContext) -> bool:
        found = (self.attributes or {}).get("materialize_grads", MISSING)
        return found is MISSING or context.truth(found)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        raise cannot_rebuild("the context of a custom autograd.Function")
