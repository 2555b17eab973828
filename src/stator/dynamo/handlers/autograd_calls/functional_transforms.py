"""torch.func in captured code: capture follows the function into a graph of its own; one node applies the transform.

A compiled function under a transform of its caller runs eagerly (frame_compiler.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from stator.dynamo.graph.subgraphs import own_state
from stator.dynamo.handlers.torch_calls.trees import constant_tree, tree_of, value_of
from stator.dynamo.interpreter.calling import calls, made_functions
from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Recipe
from stator.dynamo.values.base import CaptureContext, Reconstructor, Value, cannot_rebuild, unsupported
from stator.dynamo.values.containers.sequences import TupleValue
from stator.dynamo.values.functions import FunctionValue
from stator.dynamo.values.symbolic_numbers import SymbolicNumber
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.graph.subgraphs.custom_autograd import graph_target
from stator.graph.subgraphs.function_transforms import Apply, FunctionTransform, Leaf
from stator.prims.record import TensorMeta

# inner_fake(index of the tensor argument, the argument) -> the fake that stands for it in the function, and the value
# of its `requires_grad` for the function, or None
InnerFake = Callable[[int, TensorValue], tuple[Any, bool | None]]


@dataclass(slots=True)
class _CapturedFunction:
    """A captured function. leaves: the tensors of its arguments. free: other tensors that it reads."""

    graph: fx.GraphModule
    arguments: tuple[Any, Any]
    leaves: list[TensorValue]
    free: Sequence[TensorValue | SymbolicNumber]
    results: Any


def _capture_function(
    context: CaptureContext,
    name: str,
    function: Value,
    args: Sequence[Value],
    kwargs: dict[str, Value],
    inner_fake: Callable[[Any], InnerFake],
    grad_mode: bool,
) -> _CapturedFunction:
    """Capture a call of `function`. inner_fake: given the tree (args, kwargs), makes the tensors inside."""
    if context.later is not None:
        raise unsupported("function-transform", f"a function transform inside {context.later.what}")
    leaves: list[TensorValue] = []
    tree = (
        tuple(tree_of(context, arg, leaves) for arg in args),
        {key: tree_of(context, arg, leaves) for key, arg in kwargs.items()},
    )
    make_inside = inner_fake(tree)
    recorder, what = context.recorder, f"a function under torch.func.{name}"
    inside: list[Value] = []
    with recorder.subgraph() as level, own_state(what, grad_mode=grad_mode or torch.is_grad_enabled()):
        for index, leaf in enumerate(leaves):
            fake, requires_grad = make_inside(index, leaf)
            inside.append(recorder.wrap_tensor(fake, level.placeholder(fake)))
            recorder.requiring[id(fake)] = requires_grad
        given = [value_of(context, arg, inside) for arg in tree[0]]
        named = {key: value_of(context, arg, inside) for key, arg in tree[1].items()}
        recorder.transforms.append(name)
        try:
            result = context.call(function, given, named)
        finally:
            recorder.transforms.pop()
        outputs: list[TensorValue] = []
        results = tree_of(context, result, outputs)
        nodes = [recorder.node_of(output) for output in outputs]
    # the arguments have the first placeholders, because these were made before the function was captured
    graph = level.finish(nodes)
    return _CapturedFunction(graph, tree, leaves, level.lifted, results)


def _apply(
    context: CaptureContext, name: str, followed: _CapturedFunction, apply: Apply, extra: Sequence[Value] = ()
) -> Value:
    """Record the node that applies a transform; return its result as the program sees it."""
    leaves = list(followed.leaves)
    more = tuple(tree_of(context, value, leaves) for value in extra)
    reads = [*range(len(followed.leaves)), *range(len(leaves), len(leaves) + len(followed.free))]
    transformed = FunctionTransform(followed.graph, reads, (*followed.arguments, more), followed.results, apply)
    made = context.record_function(graph_target(transformed, name), [*leaves, *followed.free], {})
    return value_of(context, transformed.structure, list(context.iterate(made)))


# ---- tensors inside of the function ----


def _requiring_grad(context: CaptureContext, argnums: Any = (), shows: bool = True) -> Callable[[Any], InnerFake]:
    """Like outside, but floating tensors of the arguments at `argnums` (all if None) require grad. shows: whether
    `requires_grad` tells the function, which is not so in forward mode."""

    def make(tree: Any) -> InnerFake:
        chosen = _differentiated(tree[0], argnums)

        def inside(index: int, leaf: TensorValue) -> tuple[Any, bool | None]:
            meta: TensorMeta = leaf.fake.meta  # type: ignore[attr-defined]
            able = index in chosen and (meta.dtype.is_floating_point or meta.dtype.is_complex)
            made = context.recorder.mode.make(TensorMeta(meta.shape, meta.stride, meta.dtype, meta.device))
            return made.requires_grad_(able or leaf.fake.requires_grad), able and shows

        return inside

    return make


def _differentiated(args: tuple[Any, ...], argnums: Any) -> frozenset[int]:
    """The indices of the tensors in the arguments at these positions."""
    numbers = range(len(args)) if argnums is None else argnums if isinstance(argnums, tuple) else (argnums,)
    if not all(isinstance(number, int) and -len(args) <= number < len(args) for number in numbers):
        raise unsupported("function-transform", f"argnums={argnums} of {len(args)} arguments")
    found = [leaf for number in numbers for leaf in pytree.tree_leaves(args[number])]
    return frozenset([leaf.index for leaf in found if isinstance(leaf, Leaf)])


def _without_batch_dim(context: CaptureContext, in_dims: Any) -> Callable[[Any], InnerFake]:
    """Tensors inside of vmap lack the mapped dimension."""

    def make(tree: Any) -> InnerFake:
        flat, spec = pytree.tree_flatten(tree[0])
        broadcast = pytree._broadcast_to_and_flatten(in_dims, spec)
        if broadcast is None:
            raise unsupported("function-transform", "torch.func.vmap with in_dims that do not fit the arguments")
        dims = {leaf.index: dim for leaf, dim in zip(flat, broadcast, strict=True) if isinstance(leaf, Leaf)}

        def inside(index: int, leaf: TensorValue) -> tuple[Any, bool | None]:
            dim = dims.get(index)
            meta: TensorMeta = leaf.fake.meta  # type: ignore[attr-defined]
            shape, stride = list(meta.shape), list(meta.stride)
            if dim is not None:
                if not shape or not -len(shape) <= dim < len(shape):
                    raise unsupported("function-transform", f"torch.func.vmap over dimension {dim} of a tensor")
                del shape[dim], stride[dim]
            made = context.recorder.mode.make(TensorMeta(tuple(shape), tuple(stride), meta.dtype, meta.device))
            shown = context.recorder.requires_grad(leaf) if dim is None else False
            return made.requires_grad_(leaf.fake.requires_grad), shown

        return inside

    return make


# ---- transforms that give a function ----


def _option(context: CaptureContext, transformed: TransformedValue, name: str, default: Any) -> Any:
    value = transformed.options.get(name)
    return default if value is None else constant_tree(context, value, f"{name} of {transformed.transform.__name__}")


def _options(context: CaptureContext, transformed: TransformedValue) -> dict[str, Any]:
    return {name: _option(context, transformed, name, None) for name in transformed.options}


def _call_differentiated(
    context: CaptureContext, transformed: TransformedValue, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    options, transform = _options(context, transformed), transformed.transform

    def apply(inner: Any, args: Any, kwargs: Any, extra: Any) -> Any:
        return transform(inner, **options)(*args, **kwargs)

    name = transform.__name__
    inner_fake = _requiring_grad(context, options.get("argnums", 0), shows=transform is not torch.func.jacfwd)
    followed = _capture_function(context, name, transformed.function, args, kwargs, inner_fake, grad_mode=True)
    return _apply(context, name, followed, apply)


def _call_mapped(
    context: CaptureContext, transformed: TransformedValue, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    options = _options(context, transformed)
    in_dims = options.get("in_dims", 0)

    def apply(inner: Any, args: Any, kwargs: Any, extra: Any) -> Any:
        return torch.func.vmap(inner, **options)(*args, **kwargs)

    if isinstance(in_dims, list):
        in_dims = tuple(in_dims)
    inner_fake = _without_batch_dim(context, in_dims)
    followed = _capture_function(context, "vmap", transformed.function, args, kwargs, inner_fake, grad_mode=False)
    return _apply(context, "vmap", followed, apply)


def _makes_function(transform: Any, names: tuple[str, ...], on_call: Any) -> None:
    """Register a transform whose parameters after the function are `names`."""

    def handler(context: CaptureContext, func: Value, *rest: Value, **named: Value) -> Value:
        options = dict(zip(names, rest, strict=False)) | named
        return TransformedValue(transform, func, options, on_call)

    def outside(context: CaptureContext, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Call a function that the transform returned outside of the captured code."""
        cells = dict(zip(function.code.co_freevars, function.cells(context), strict=True))
        options = {
            name: context.realized(cells[name].content)  # type: ignore[arg-type]
            for name in inspect.signature(transform).parameters
            if name in cells
        }
        return on_call(context, TransformedValue(transform, options.pop("func"), options, on_call), args, kwargs)

    calls(transform)(handler)
    for code in transform.__code__.co_consts:
        if isinstance(code, CodeType) and code.co_name.startswith("wrap") and "func" in code.co_freevars:
            made_functions[id(code)] = outside


_makes_function(torch.func.grad, ("argnums", "has_aux"), _call_differentiated)
_makes_function(torch.func.grad_and_value, ("argnums", "has_aux"), _call_differentiated)
_makes_function(torch.func.jacrev, ("argnums",), _call_differentiated)
_makes_function(torch.func.jacfwd, ("argnums", "has_aux"), _call_differentiated)
_makes_function(torch.func.hessian, ("argnums",), _call_differentiated)
_makes_function(torch.func.vmap, ("in_dims", "out_dims", "randomness"), _call_mapped)


# ---- transforms that give results at once ----


@calls(torch.func.jvp)
def _jvp(context: CaptureContext, func: Value, primals: Value, tangents: Value, **named: Value) -> Value:
    options = {key: constant_tree(context, value, key) for key, value in named.items()}

    def apply(inner: Any, args: Any, kwargs: Any, extra: Any) -> Any:
        return torch.func.jvp(inner, args, extra[0], **options)

    followed = _capture_function(
        context,
        "jvp",
        func,
        list(context.iterate(primals)),
        {},
        _requiring_grad(context, None, shows=False),
        grad_mode=False,
    )
    return _apply(context, "jvp", followed, apply, [tangents])


@calls(torch.func.vjp)
def _vjp(context: CaptureContext, func: Value, *primals: Value, has_aux: Value | None = None) -> Value:
    aux = has_aux is not None and context.truth(has_aux)
    footprint = context.recorder.mode.footprint
    drawn = footprint.draws
    followed = _capture_function(context, "vjp", func, primals, {}, _requiring_grad(context, None), grad_mode=True)
    if footprint.draws != drawn:  # the derivative would compute the function again with other numbers
        raise unsupported("function-transform", "random numbers in a function under torch.func.vjp")

    def first(inner: Any, args: Any, kwargs: Any, extra: Any) -> Any:
        made: Any = torch.func.vjp(inner, *args, has_aux=aux)
        return (made[0], made[2]) if aux else made[0]

    def pull_back(context: CaptureContext, cotangents: list[Value]) -> Value:
        def apply(inner: Any, args: Any, kwargs: Any, extra: Any) -> Any:
            return torch.func.vjp(inner, *args, has_aux=aux)[1](*extra)

        return _apply(context, "vjp", followed, apply, cotangents)

    function = PullbackValue(pull_back, context.end_step())
    result = _apply(context, "vjp_result", followed, first)
    if not aux:
        return TupleValue([result, function])
    value, rest = context.iterate(result)
    return TupleValue([value, function, rest])


Call = Callable[["CaptureContext", "TransformedValue", list[Value], dict[str, Value]], Value]


class TransformedValue(Value):
    """`transform(function, **options)`, e.g. by torch.func.grad; `on_call` captures its call."""

    __slots__ = ("function", "on_call", "options", "transform")
    cls = type(lambda: None)

    def __init__(self, transform: Any, function: Value, options: dict[str, Value], on_call: Call) -> None:
        self.source = None
        self.transform = transform
        self.function = function
        self.options = options
        self.on_call = on_call

    def describe(self, context: CaptureContext) -> str:
        return f"{self.transform.__name__} of {self.function.describe(context)}"

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.on_call(context, self, args, kwargs)

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        return self.function.get_attr(context, name)  # functools.wraps

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        options = {name: reconstructor.recipe(value) for name, value in self.options.items()}
        return CallRecipe(ConstantRecipe(self.transform), [reconstructor.recipe(self.function)], options)


class PullbackValue(Value):
    """The function of cotangents that torch.func.vjp returns beside the result."""

    __slots__ = ("made_at", "on_call")
    cls = type(lambda: None)

    def __init__(self, on_call: Callable[[CaptureContext, list[Value]], Value], made_at: int) -> None:
        self.source = None
        self.on_call = on_call
        self.made_at = made_at

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.on_call(context, args)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        raise cannot_rebuild("a function that torch.func.vjp made", self.made_at)
