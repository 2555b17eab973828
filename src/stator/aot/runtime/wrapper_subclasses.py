"""Rewrites graphs of wrapper subclasses as graphs of their inner tensors.

The new graph takes the inner tensors of inputs, makes the subclasses from them, and takes its results apart again. A
trace then runs each class's `__torch_dispatch__`, so that only operators on inner tensors are recorded. Around the
compiled graph, autograd functions do the reverse for inputs, results and their gradients.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from stator.base.errors import Unsupported
from stator.graph.fake.fake_tensor import FakeTensor
from stator.graph.fake.wrapper_subclasses import WrapperGradient, WrapperLayout, fakes_in, is_wrapper, like_gradient
from stator.graph.ir.aten_graph import PlainGraphModule
from stator.graph.ir.size_bindings import is_symbolic
from stator.graph.ir.traced import InputItself
from stator.graph.subgraphs.custom_autograd import graph_target
from stator.runtime.memory.ownership import has_other_owners

from .autograd_reachability import reachable_places


def with_inner_tensors(
    gm: fx.GraphModule, example_inputs: Sequence[Any], compile_plain: Callable[[fx.GraphModule, Sequence[Any]], Any]
) -> Callable[..., Any]:
    """Compile a graph by `compile_plain`, which gets only plain tensors for the wrapper subclasses among inputs and
    results."""
    layouts = [WrapperLayout.of(value) if is_wrapper(value) else None for value in example_inputs]
    if not any(layouts) and not any(is_wrapper(node.meta.get("example_value")) for node in gm.graph.nodes):
        return compile_plain(gm, example_inputs)
    _refuse_symbols(gm)
    carried: dict[int, _Carriers] = {}
    while True:
        converters = [
            _Converter(layout, at, carried.get(at)) if layout is not None or at in carried else None
            for at, layout in enumerate(layouts)
        ]
        inputs = _Inputs.of(converters, example_inputs)
        results = _results_of(gm, inputs)
        flat = inputs.flatten(example_inputs)
        try:
            inner = compile_plain(_over_inner_tensors(gm, inputs, results), flat)
        except WrapperGradient as error:  # of a plain input
            at = inputs.owner_of(example_inputs, error.index)
            if at is None or at in carried:
                raise
            carried[at] = _Carriers.of(error.gradient)
        except _UnlikeGradient as error:
            if error.position in carried:
                raise
            carried[error.position] = _Carriers.of(error.gradient)
        else:
            return lambda *args: results.build(inner(*inputs.flatten(args)), args)


def _refuse_symbols(gm: fx.GraphModule) -> None:
    """Raise Unsupported if a wrapper subclass of a graph has symbolic sizes. Plain tensors beside it may have some."""
    for node in gm.graph.nodes:
        wrappers = [one for one in pytree.tree_leaves(node.meta.get("example_value")) if is_wrapper(one)]
        if is_symbolic([fake.meta for fake in fakes_in(wrappers)]):
            raise Unsupported("dynamic-shape", "tensors made of tensors have fixed sizes")


class _UnlikeGradient(Unsupported):
    """The gradient of an input is made of other tensors than the input."""

    def __init__(self, position: int, gradient: torch.Tensor) -> None:
        name = type(gradient).__qualname__
        super().__init__("tensor-subclass", f"the gradient of an input is a {name}, made of other tensors than it")
        self.position, self.gradient = position, gradient


@dataclass(frozen=True, slots=True)
class _Carriers:
    """Tensors without data that the graph takes beside an input. Their gradients are the parts of the gradient of the
    input, where these differ from the input's own parts.

    layout: of the gradient; None for a plain tensor. facts: shape, dtype and device of each part.
    """

    layout: WrapperLayout | None
    facts: tuple[tuple[torch.Size, torch.dtype, torch.device], ...]

    @staticmethod
    def of(gradient: torch.Tensor) -> _Carriers:
        layout = WrapperLayout.of(gradient) if is_wrapper(gradient) else None
        parts = [gradient] if layout is None else layout.leaves(gradient)
        if not all(map(_is_differentiable, parts)):
            raise _refused(f"a gradient is a {type(gradient).__qualname__}, which is made of integers, too")
        return _Carriers(layout, tuple([(one.shape, one.dtype, one.device) for one in parts]))

    def make(self) -> list[torch.Tensor]:
        return [torch.empty(shape, dtype=dtype, device=device) for shape, dtype, device in self.facts]


class _Converter:
    """Converts a tensor to its parts, and parts to a tensor, where autograd follows the tensor outside of the compiled
    graph, and the parts inside.

    layout: of the tensor; None for a plain tensor. gradient: the layout of its gradient, which a trace fills in.
    carriers: see `_Carriers`; None where the parts carry their own gradients.
    """

    def __init__(
        self, layout: WrapperLayout | None, position: int | None = None, carriers: _Carriers | None = None
    ) -> None:
        self.layout, self.position, self.carriers = layout, position, carriers
        self.gradient = layout if carriers is None else carriers.layout
        self.is_traced = False

    @property
    def count(self) -> int:
        """The number of parts, carriers included."""
        return (1 if self.layout is None else self.layout.count) + len(self.carriers.facts if self.carriers else ())

    def leaves(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return [tensor] if self.layout is None else self.layout.leaves(tensor)

    def flatten(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        """The parts of a tensor. Its gradient is made from theirs."""
        if tensor.requires_grad and torch.is_grad_enabled():
            return _Flatten.apply(self, tensor)  # type: ignore[no-any-return]
        parts = [one.detach() if one.requires_grad else one for one in self.leaves(tensor)]
        return parts if self.carriers is None else [*parts, *self.carriers.make()]

    def build(self, *parts: torch.Tensor) -> torch.Tensor:
        """The tensor made of these parts. The gradients of the parts are taken from its gradient."""
        if torch.is_grad_enabled() and any(part.requires_grad for part in parts):
            return _Build.apply(self, *parts)  # type: ignore[no-any-return]
        return self.joined(parts)

    def joined(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """`build` without gradients."""
        own = [part.detach() if part.requires_grad else part for part in parts]
        return own[0] if self.layout is None else self.layout.build(iter(own))


class _Flatten(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, converter: _Converter, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = converter.leaves(tensor)
        carriers = converter.carriers
        fixed = _without_gradients(parts) if carriers is None else dict(enumerate(parts))
        # numbers without gradients stay themselves: a class may tell tensors of lengths apart by identity
        parts = [part if at in fixed and not part.requires_grad else part.detach() for at, part in enumerate(parts)]
        ctx.converter, ctx.fixed = converter, fixed
        ctx.mark_non_differentiable(*[parts[at] for at in fixed])
        return *parts, *(() if carriers is None else carriers.make())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        converter: _Converter = ctx.converter
        fixed = ctx.fixed if converter.carriers is None else {}
        if converter.carriers is not None:
            gradients = gradients[-len(converter.carriers.facts) :]
        gradients = tuple(map(_plain, gradients))
        for one in filter(is_wrapper, gradients):  # a plain result was given a gradient that is no plain tensor
            raise _unlike_compiled("that is a plain tensor", one)
        if converter.gradient is None:
            return None, fixed.get(0, gradients[0])
        parts = [fixed[at] if at in fixed else _owned(one) for at, one in enumerate(gradients)]
        return None, _Converter(converter.gradient).build(*parts)


def _owned(part: torch.Tensor) -> torch.Tensor:
    """A part of a gradient in memory of its own. Autograd adds later gradients to the first gradient of a leaf in place
    if nothing else holds the first one. Autograd sees who holds the gradient, but not who holds its parts."""
    shared = not isinstance(part, FakeTensor) and part.layout is torch.strided and has_other_owners(part)
    return part.clone() if shared else part


class _Build(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, converter: _Converter, *parts: torch.Tensor) -> torch.Tensor:
        ctx.converter = converter
        ctx.shapes = [part.shape if part.requires_grad else None for part in parts]
        ctx.fixed = {at: part for at, part in enumerate(parts) if not part.requires_grad}
        return converter.joined(parts)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        converter: _Converter = ctx.converter
        if converter.position is not None and not converter.is_traced:
            _take_gradient_layout(converter, gradient, ctx.shapes, ctx.fixed)
        layout = converter.gradient
        given = [gradient] if layout is None else _Converter(layout).flatten(_with_layout(gradient, layout))
        if converter.carriers is None and not all(_is_same(given[at], own) for at, own in ctx.fixed.items()):
            raise _unlike_compiled("with the numbers of the result beside its values", gradient)
        found = [None] * (len(ctx.shapes) - len(given)) + list(given)
        pairs = zip(found, ctx.shapes, strict=True)
        # others than the gradient may hold its parts, which aliases show to `_owned`
        return None, *[None if one is None or shape is None else one.view_as(one) for one, shape in pairs]


def _take_gradient_layout(
    converter: _Converter, gradient: torch.Tensor, shapes: list[Any], fixed: dict[int, torch.Tensor]
) -> None:
    """Learn, while tracing, how the gradient of an input is made."""
    layout = WrapperLayout.of(gradient) if is_wrapper(gradient) else None
    parts = [gradient] if layout is None else layout.leaves(gradient)
    carriers = shapes if converter.carriers is None else shapes[-len(converter.carriers.facts) :]
    if len(parts) != len(carriers) or any(
        shape is not None and part.shape != shape for part, shape in zip(parts, carriers, strict=True)
    ):
        assert converter.position is not None
        raise _UnlikeGradient(converter.position, gradient)
    if converter.carriers is None and not all(_is_same(parts[at], own) for at, own in fixed.items()):
        raise _refused(f"the gradient of a {type(gradient).__qualname__} has other numbers beside its values")
    converter.gradient, converter.is_traced = layout, True


def _without_gradients(parts: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """The parts that hold no values to differentiate, by position: numbers of other dtypes, and empty tensors."""
    live = any(_is_differentiable(part) and part.numel() for part in parts)
    return {at: part for at, part in enumerate(parts) if not _is_differentiable(part) or (live and not part.numel())}


def _is_same(one: torch.Tensor, own: torch.Tensor) -> bool:
    """Whether two parts without gradients are equal. Fake tensors are equal only in the same memory."""
    if one is own or one.shape != own.shape or not one.numel():
        return one.shape == own.shape
    if isinstance(one, FakeTensor) and isinstance(own, FakeTensor):
        return (
            one.fake_storage is own.fake_storage and one.meta.offset == own.meta.offset and one.stride() == own.stride()
        )
    return torch.equal(one, own)


def _with_layout(gradient: torch.Tensor, layout: WrapperLayout) -> torch.Tensor:
    """A gradient with this layout; its class converts it where its own layout differs."""
    if _has_layout(gradient, layout):
        return gradient
    gradient = _with_plain_parts(gradient, layout)
    convert = getattr(gradient, "__coerce_same_metadata_as_tangent__", None)
    other_class = () if type(gradient) is layout.cls else (layout.cls,)
    made = gradient if convert is None else convert(layout.context, *other_class)
    if _has_layout(made, layout):
        return made  # type: ignore[no-any-return]
    raise _unlike_compiled(f"of class {layout.cls.__qualname__} with the context {layout.context!r}", gradient)


def _with_plain_parts(gradient: torch.Tensor, layout: WrapperLayout) -> torch.Tensor:
    """A gradient with plain tensors where the layout has some, converted by the classes of its parts."""
    own = WrapperLayout.of(gradient) if is_wrapper(gradient) else None
    if own is None or own.names != layout.names or own.inner == layout.inner or gradient.requires_grad:
        return gradient
    parts = [getattr(gradient, name) for name in own.names]
    return own.of_parts([one if inner else _plain(one) for one, inner in zip(parts, layout.inner, strict=True)])


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The one tensor that a wrapper subclass holds, if it holds nothing else and its class converts it: the result of a
    collective is waited for."""
    convert = getattr(tensor, "__coerce_same_metadata_as_tangent__", None) if is_wrapper(tensor) else None
    if convert is None:
        return tensor
    layout = WrapperLayout.of(tensor)
    made = convert(None, torch.Tensor) if layout.count == 1 and layout.context is None and not layout.values else None
    return tensor if made is None else made


def _has_layout(gradient: Any, layout: WrapperLayout) -> bool:
    """Whether a gradient has this layout, apart from its history: a class may note whether it requires grad."""
    if not is_wrapper(gradient):
        return False
    if layout.fits(WrapperLayout.of(gradient)):
        return True
    other = gradient.detach() if gradient.requires_grad else gradient.detach().requires_grad_()
    return layout.fits(WrapperLayout.of(other))


def _unlike_compiled(expected: str, gradient: torch.Tensor) -> RuntimeError:
    return RuntimeError(
        f"stator: a compiled backward expects a gradient {expected}, and received a {type(gradient).__qualname__}. "
        "Give backward() a gradient like the result, or run this part eagerly (stator.disable)"
    )


def _refused(why: str) -> Unsupported:
    return Unsupported("tensor-subclass", why)


def _is_differentiable(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


# -- inputs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The conversion of each input; None for those that stay."""

    converters: Sequence[_Converter | None]
    repeated: dict[int, int]  # position of a part -> that of an earlier part, which is the same tensor in every call

    @staticmethod
    def of(converters: Sequence[_Converter | None], examples: Sequence[Any]) -> _Inputs:
        """Nested tensors of equal lengths share the tensor of these lengths, which guards hold."""
        first: dict[int, int] = {}
        repeated: dict[int, int] = {}
        begin = 0
        for value, converter in zip(examples, converters, strict=True):
            if converter is not None and converter.layout is not None and value.is_nested:
                for at, part in enumerate(converter.leaves(value), begin):
                    if not _is_differentiable(part) and first.setdefault(id(part), at) != at:
                        repeated[at] = first[id(part)]
            begin += 1 if converter is None else converter.count
        return _Inputs(converters, repeated)

    def flatten(self, args: Sequence[Any]) -> list[Any]:
        """What the graph takes."""
        parts = self.parts(args)
        return [part for at, part in enumerate(parts) if at not in self.repeated] if self.repeated else parts

    def parts(self, args: Sequence[Any]) -> list[Any]:
        """The inputs with inner tensors in place of subclasses. A tensor given twice gives each inner tensor twice."""
        flat: list[Any] = []
        known: dict[int, Sequence[torch.Tensor]] = {}
        for value, converter in zip(args, self.converters, strict=True):
            if converter is None:
                flat.append(value)
                continue
            if id(value) not in known:
                known[id(value)] = converter.flatten(value)
            flat += known[id(value)]
        return flat

    def owner_of(self, args: Sequence[Any], index: int) -> int | None:
        """The input that stays and is the graph's tensor with this index among its tensors."""
        parts = enumerate(self.parts(args))
        tensors = [at for at, value in parts if at not in self.repeated and isinstance(value, torch.Tensor)]
        if index >= len(tensors):
            return None
        begin = 0
        for position, converter in enumerate(self.converters):
            if begin == tensors[index]:
                return position if converter is None else None
            begin += 1 if converter is None else converter.count
        return None


# -- results ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ViewOfInput:
    """A result that is, for autograd, a view of an input subclass. fake: a view of the input's fake."""

    index: int
    fake: Any


@dataclass(frozen=True, slots=True)
class _ViewOfResult:
    """A result that is, for autograd, a view of an earlier result. fake: a view of that result's fake."""

    position: int
    fake: Any


@dataclass(frozen=True, slots=True)
class _MadeInside:
    """A result that the graph made of its parts, and of which autograd knows no history: the parts have their own.

    parts: how the call makes each part; None for plain tensors.
    """

    layout: WrapperLayout
    requires_grad: bool
    parts: tuple[_Converter | _MadeInside | None, ...]

    @property
    def count(self) -> int:
        return self.layout.count

    def leaves(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensor and its inner tensors, as far as they were made inside and require grad."""
        found = [tensor] if self.requires_grad else []
        for name, part in zip(self.layout.names, self.parts, strict=True):
            found += part.leaves(getattr(tensor, name)) if isinstance(part, _MadeInside) else []
        return found

    def flatten(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        flat: list[torch.Tensor] = []
        for name, part in zip(self.layout.names, self.parts, strict=True):
            value = getattr(tensor, name)
            flat += [value] if part is None else part.flatten(value)
        return flat

    def build(self, *flat: torch.Tensor) -> torch.Tensor:
        remaining = iter(flat)
        inner = [
            next(remaining) if part is None else part.build(*[next(remaining) for _ in range(part.count)])
            for part in self.parts
        ]
        with torch.no_grad():
            made = self.layout.of_parts(inner)
        return made if made.requires_grad is self.requires_grad else made.requires_grad_(self.requires_grad)


_Part = _Converter | _MadeInside | InputItself | _ViewOfInput | _ViewOfResult | None


class _Results:
    """Runs at the end of the graph on its results, and makes the results of the call. parts: one for each result; None
    for those that stay."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self.parts = list(parts)  # a trace fills in how the results are made
        self.count = sum(map(_flat_count, parts))  # of the flat results
        self.written: dict[int, int] = {}  # by input, how many writes autograd is told of

    def flatten(
        self, results: Sequence[Any], entered: dict[int, torch.Tensor], given: dict[int, Any], plain: Sequence[Any]
    ) -> Any:
        """The flat results. entered: the subclasses of the inputs. given: their inner tensors, as the graph got
        them. plain: the other inputs."""
        for index, tensor in entered.items():
            self._check_input(index, tensor, given[index])
        flat: list[Any] = []
        for at, (result, part) in enumerate(zip(results, self.parts, strict=True)):
            if part is None:
                flat.append(result)
            elif isinstance(part, InputItself):
                if result is not entered[part.index]:
                    raise _refused("a traced result is no longer the input that it was in the captured graph")
            elif isinstance(part, (_Converter, _MadeInside)):
                if not is_wrapper(result):
                    raise _refused("a traced result has another class than in the captured graph")
                self.parts[at] = converter = _converter_of_result(result)
                flat += converter.flatten(result)
        if len(flat) != self.count:
            raise _refused("a traced result has another class than in the captured graph")
        pairs = zip(results, self.parts, strict=True)
        made = [leaf for result, part in pairs if isinstance(part, _MadeInside) for leaf in part.leaves(result)]
        _refuse_histories(made, [*flat, *plain])
        return tuple(flat)

    def _check_input(self, index: int, tensor: torch.Tensor, given: Any) -> None:
        if given is None:
            return
        layout, leaves, history = given
        if tensor._version:
            if tensor.grad_fn is not history:
                raise _refused(f"the graph writes to a {type(tensor).__qualname__} that autograd follows")
            self.written[index] = tensor._version
        now = WrapperLayout.of(tensor)
        same = now.fits(layout) and (tensor.is_nested or tuple(now.stride) == tuple(layout.stride))
        if not same or any(one is not other for one, other in zip(now.leaves(tensor), leaves, strict=True)):
            raise _refused(f"the graph replaces inner tensors of a {type(tensor).__qualname__}")

    def build(self, flat: Sequence[Any], args: Sequence[Any]) -> tuple[Any, ...]:
        """The results of a call from the flat results of the compiled graph."""
        remaining = iter(flat)
        made: list[Any] = []
        for part in self.parts:
            if part is None:
                made.append(next(remaining))
            elif isinstance(part, InputItself):
                made.append(args[part.index])
            elif isinstance(part, (_Converter, _MadeInside)):
                made.append(part.build(*[next(remaining) for _ in range(part.count)]))
            else:
                base = args[part.index] if isinstance(part, _ViewOfInput) else made[part.position]
                made.append(_view_again(part.fake, base))
        for index, count in self.written.items():
            if not args[index].is_inference():
                torch.autograd.graph.increment_version([args[index]] * count)
        return tuple(made)


def _view_again(view: Any, base: torch.Tensor) -> Any:
    """A view of `base` by the operators that made `view`. The size of a nested tensor that stands for its lengths is
    that of `base`."""
    if not base.is_nested:
        return view._view_func_unsafe(base)
    (lengths,) = [size for size in base.shape if type(size) is not int]
    return view._view_func_unsafe(base, lambda size: size if type(size) is int else lengths)


def _refuse_histories(leaves: Sequence[torch.Tensor], values: Sequence[Any]) -> None:
    """Raise Unsupported if gradients flow from a value to a leaf that the graph makes and returns. No call can add
    them to the leaf, because the leaf is made after the compiled graph has run."""
    starts = [one.grad_fn for one in values if isinstance(one, torch.Tensor) and one.grad_fn is not None]
    ids = {id(leaf) for leaf in leaves}
    if ids and any(reachable_places(starts, lambda node: id(getattr(node, "variable", None)) in ids).values()):
        raise _refused("gradients flow to a tensor that the graph makes of other tensors and returns")


def _flat_count(part: _Part) -> int:
    if isinstance(part, (_Converter, _MadeInside)):
        return part.count
    return int(part is None)


def _converter_of_result(result: torch.Tensor) -> _Converter | _MadeInside:
    layout = WrapperLayout.of(result)
    if result.is_leaf:
        parts = [getattr(result, name) for name in layout.names]
        inner = [_converter_of_result(part) if is_wrapper(part) else None for part in parts]
        return _MadeInside(layout, result.requires_grad, tuple(inner))
    converter = _Converter(layout)
    converter.gradient = WrapperLayout.of(like_gradient(result))
    return converter


def _results_of(gm: fx.GraphModule, inputs: _Inputs) -> _Results:
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    entered = {
        id(node.meta.get("example_value")): index
        for index, node in enumerate(placeholders)
        if inputs.converters[index] is not None
    }
    positions: dict[int, int] = {}
    parts: list[_Part] = []
    for position, example in enumerate(_examples_of_results(gm)):
        base = example._base if is_wrapper(example) and example._is_view() else None
        if id(example) in entered:
            parts.append(InputItself(entered[id(example)]))
        elif not is_wrapper(example):
            parts.append(None)
        elif id(base) in entered:
            parts.append(_ViewOfInput(entered[id(base)], example))
        elif id(base) in positions:
            parts.append(_ViewOfResult(positions[id(base)], example))
        else:
            parts.append(_Converter(WrapperLayout.of(example)))
            positions.setdefault(id(example), position)
    return _Results(parts)


def _examples_of_results(gm: fx.GraphModule) -> list[Any]:
    (results,) = gm.graph.output_node().args
    nodes = results if isinstance(results, (tuple, list)) else ()
    return [node.meta.get("example_value") if isinstance(node, fx.Node) else None for node in nodes]


# -- the graph of the inner tensors -----------------------------------------------------------------------------------


def _over_inner_tensors(gm: fx.GraphModule, inputs: _Inputs, results: _Results) -> fx.GraphModule:
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    leaves: dict[int, list[fx.Node]] = {}
    taken: list[fx.Node] = []  # by position among the parts
    for index, (node, converter) in enumerate(zip(placeholders, inputs.converters, strict=True)):
        if converter is None:
            copied[node] = graph.node_copy(node)
            taken.append(copied[node])
            continue
        begin = len(taken)
        for at in range(converter.count):
            earlier = inputs.repeated.get(begin + at)
            taken.append(graph.placeholder(f"{node.name}_{at}") if earlier is None else taken[earlier])
        leaves[index] = taken[begin:]
    for index, nodes in leaves.items():
        target = graph_target(inputs.converters[index].build, "make_subclass")  # type: ignore[union-attr]
        copied[placeholders[index]] = graph.call_function(target, tuple(nodes))
    entered = [copied[placeholders[index]] for index in leaves]
    layouts = graph_target(lambda *tensors: [_inner(tensor) for tensor in tensors], "inner_tensors")
    before = graph.call_function(layouts, tuple(entered)) if entered else ()
    returned = graph.graph_copy(gm.graph, copied)

    others = [copied[node] for at, node in enumerate(placeholders) if at not in leaves]

    def finish(values: Sequence[Any], tensors: Sequence[torch.Tensor], before: Sequence[Any], plain: Any) -> Any:
        entered, given = (dict(zip(leaves, found, strict=True)) for found in (tensors, before))
        return results.flatten(values, entered, given, plain)

    flat = graph.call_function(graph_target(finish, "flatten_results"), (returned, entered, before, others))
    graph.output(tuple([graph.call_function(operator.getitem, (flat, at)) for at in range(results.count)]))
    made = PlainGraphModule(gm, graph)
    made.meta.update(gm.meta, wraps=True)
    return made


def _inner(tensor: torch.Tensor) -> tuple[WrapperLayout, list[torch.Tensor], Any] | None:
    """How a tensor is made, its parts and its history, before the graph uses it."""
    if not is_wrapper(tensor):
        return None
    layout = WrapperLayout.of(tensor)
    return layout, layout.leaves(tensor), tensor.grad_fn
