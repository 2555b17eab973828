"""Replaces random operators of a functional ATen graph with functions of a seed, drawn once in each call of the graph.

This rewrites a whole joint or inference graph before anything is recomputed, merged or moved: afterwards only the seed
is random. prims/operators/random.py defines the numbers of the `stator::` operators, inductor their kernels. Operators
that are not replaced draw from torch's generator when they run, in program order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from stator.aot.runtime.eager import keep_all
from stator.base import counters
from stator.base.registry import Registry
from stator.graph.fake.fake_mode import FakeTensor, flat_tensors
from stator.graph.fake.number_stand_ins import held, is_number, symbolic
from stator.graph.functionalization.functionalize import FunctionalTracer
from stator.graph.ir.cleanup import remove_dead
from stator.prims.layout import broadcast_shapes, is_dense, same_strides
from stator.prims.operators import random
from stator.prims.record import TensorMeta
from stator.prims.shape_rules.operands import overloads
from stator.prims.type_promotion import computation_dtype

aten = torch.ops.aten

# (draw, *arguments of the operator, tensors as fakes) -> its results, computed by ATen and `stator::` operators; or
# NotImplemented for rare dtypes and for arguments that eager refuses, which stay with torch.
Replacement = Callable[..., Any]
replacements: Registry[OpOverload, Replacement] = Registry("replacement of a random operator")
REAL = frozenset(random.NORMAL_DTYPES)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def functionalize_random(gm: fx.GraphModule) -> fx.GraphModule:
    """Replace the random operators that have a rule, in place; returns `gm`.

    Every node needs meta["val"]; new nodes inherit the other meta of the nodes they replace. One seed per device is
    drawn first, and the n-th operator gets stream n: equal graphs get equal streams.
    """
    found = [node for node in gm.graph.nodes if node.op == "call_function" and node.target in replacements]
    if not found:
        return gm
    draw = Draw(gm.graph)
    with ExitStack() as stack:
        stack.enter_context(torch._C._InferenceMode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch._C._AutoDispatchBelowAutograd())
        stack.enter_context(draw.tracer.facts_located())
        stack.enter_context(draw.tracer)
        for node in found:
            draw.replace(node)
    if draw.stream:
        counters.count("random_operators", draw.stream)
        remove_dead(gm.graph)
        draw.remove_unused_seeds()
        gm.recompile()
    return gm


class Draw:
    """Rewrites the nodes of one graph. `meta`: the layout of the (first) result of the operator being replaced."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.tracer = FunctionalTracer(keep_all)
        self.tracer.graph = graph
        self.seeds: dict[torch.device, FakeTensor] = {}
        self.stream = 0
        self.meta: TensorMeta = None  # type: ignore[assignment]

    # ---- one node --------------------------------------------------------------------------------------------------

    def replace(self, node: fx.Node) -> None:
        value = node.meta["val"]
        metas = (value,) if isinstance(value, TensorMeta) else tuple(value)
        self.meta, before, stream = metas[0], node.prev, self.stream
        self.tracer.place = node.meta.get("place")
        args, kwargs = _with_numbers(node.target, *fx.map_arg((node.args, dict(node.kwargs)), self._fake))
        with self.graph.inserting_before(node):
            result = replacements[node.target](self, *args, **kwargs)  # type: ignore[index]
            if result is NotImplemented:
                assert self.stream == stream, f"the replacement of {node.target} gave up too late"
                return
            parts = [self.tracer.laid_out(part, meta) for part, meta in zip(_as_tuple(result), metas, strict=True)]
        self._inherit(before, node)
        if isinstance(value, TensorMeta):
            self._substitute(node, parts[0], value)
            return
        for user in list(node.users):  # each user takes one of several results
            which: Any = user.args[1]
            self._substitute(user, parts[which], metas[which])
        self.graph.erase_node(node)

    def _fake(self, node: fx.Node) -> FakeTensor:
        meta = node.meta["val"]
        return self.tracer.bind(self.tracer.make(TensorMeta(meta.shape, meta.stride, meta.dtype, meta.device)), node)

    def _substitute(self, node: fx.Node, new: FakeTensor, meta: TensorMeta) -> None:
        made = new.meta
        assert made.shape == meta.shape and made.dtype is meta.dtype, (node, made, meta)
        assert same_strides(made.shape, made.stride, meta.stride), (node, made, meta)
        new.node.meta["val"] = meta  # with the strides of dimensions of size one
        node.replace_all_uses_with(new.node, propagate_meta=False)
        self.graph.erase_node(node)

    def _inherit(self, before: fx.Node, node: fx.Node) -> None:
        """Give new nodes the meta of the replaced node, and names derived from the replaced node's name."""
        inherited = {name: value for name, value in node.meta.items() if name != "val"}
        seeds = [seed.node for seed in self.seeds.values()]
        made = before.next
        while made is not node:
            if made not in seeds:
                made.meta.update(inherited)
                made._rename(f"{node.name}_by_{made.name.rstrip('0123456789').rstrip('_')}")
            made = made.next

    # ---- what replacements are made of -----------------------------------------------------------------------------

    def seed(self, device: torch.device) -> FakeTensor:
        """The seed of this call of the graph, drawn before all other operators."""
        found = self.seeds.get(device)
        if found is None:
            first = next(node for node in self.graph.nodes if node.op != "placeholder")
            with self.graph.inserting_before(first):
                found = self.seeds[device] = random.seed(device)
        return found

    def remove_unused_seeds(self) -> None:
        """No result depends on such numbers, as where a layer is dropped with probability zero. A seed of the CPU would
        keep a program of another device from being recorded."""
        for seed in self.seeds.values():
            if not seed.node.users:
                self.graph.erase_node(seed.node)

    def _next(self) -> int:
        self.stream += 1
        return self.stream - 1

    def _placed(self, make: Callable[[Sequence[Any]], Any], meta: TensorMeta) -> Any:
        """A result with the strides of `meta`: numbers are assigned in memory order."""
        shape, strides = meta.shape, meta.stride
        order = list(range(len(shape)))
        if is_dense(shape, strides):
            order.sort(key=lambda dim: (-strides[dim], -shape[dim]))
        made = make([shape[dim] for dim in order])
        if order == sorted(order):
            return made
        return aten.permute.default(made, [order.index(dim) for dim in range(len(order))])

    def uniform(self, meta: TensorMeta, dtype: torch.dtype, open: bool = False) -> Any:
        """Numbers in [0, 1), or (0, 1) if `open`, with the shape and strides of `meta`."""
        seed, stream = self.seed(meta.device), self._next()
        return self._placed(lambda size: random.uniform(seed, stream, size, dtype, open), meta)

    def normal(self, meta: TensorMeta, dtype: torch.dtype) -> Any:
        seed, stream = self.seed(meta.device), self._next()
        return self._placed(lambda size: random.normal(seed, stream, size, dtype), meta)

    def bernoulli(self, meta: TensorMeta, p: Any) -> Any:
        """Booleans with the shape and strides of `meta`."""
        if is_number(p):
            return aten.lt.Scalar(self.uniform(meta, torch.float32), p)
        seed, stream = self.seed(meta.device), self._next()
        return self._placed(lambda size: random.bernoulli(seed, stream, size, p), meta)

    def integers(self, meta: TensorMeta, low: int, high: int) -> Any:
        seed, stream = self.seed(meta.device), self._next()
        return self._placed(lambda size: random.integers(seed, stream, size, low, high), meta)

    def require(self, condition: Any, message: str) -> None:
        """Raise eager's RuntimeError, when the graph runs, unless all elements are True."""
        aten._assert_async.msg(aten.all.default(condition), message)


def replaces(names: str) -> Callable[[Replacement], Replacement]:
    """Decorator: register a replacement for ATen overloads, as far as this version of torch has them."""
    return replacements.register(*overloads(names))


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value if value.dtype is dtype else aten._to_copy.default(value, dtype=dtype)


def _with_numbers(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Make the tensors in the place of floats numbers again. Capture has asked whether eager takes them."""
    arguments = {argument.name: str(argument.type) for argument in target._schema.arguments}
    kinds = list(arguments.values())

    def number(value: Any, kind: str) -> Any:
        return symbolic(value) if kind == "float" and isinstance(value, FakeTensor) else value

    return (
        tuple(number(value, kind) for value, kind in zip(args, kinds, strict=False)),
        {name: number(value, arguments[name]) for name, value in kwargs.items()},
    )


def _is(number: Any, value: float) -> bool:
    return not is_number(number) and number == value


def _lies(low: float, number: Any, high: float) -> bool:
    """Whether a number is between others, which it does not equal."""
    return is_number(number) or low < number < high


def _scaled(value: Any, factor: Any, shift: Any) -> Any:
    if not _is(factor, 1):
        value = aten.mul.Tensor(value, factor)
    return value if _is(shift, 0) else aten.add.Tensor(value, shift)


# ---- uniform and normal ---------------------------------------------------------------------------------------------


@replaces("rand rand_like")
def _rand(draw: Draw, _source: Any, **_options: Any) -> Any:
    return draw.uniform(draw.meta, draw.meta.dtype) if draw.meta.dtype in REAL else NotImplemented


@replaces("randn randn_like")
def _randn(draw: Draw, _source: Any, **_options: Any) -> Any:
    return draw.normal(draw.meta, draw.meta.dtype) if draw.meta.dtype in REAL else NotImplemented


@replaces("uniform")
def _uniform(draw: Draw, self: Any, low: float = 0.0, high: float = 1.0, **options: Any) -> Any:
    low = options.get("from", low)
    meta = draw.meta
    width = high - low
    if meta.dtype not in REAL or not (_is(width, 0) or _lies(0, width, math.inf)):
        return NotImplemented
    if _is(low, 0) and _is(high, 1):
        return draw.uniform(meta, meta.dtype)
    return _cast(_scaled(draw.uniform(meta, computation_dtype(meta.dtype)), width, low), meta.dtype)


def _normal(draw: Draw, mean: Any, std: Any) -> Any:
    meta = draw.meta
    if meta.dtype not in REAL or not (is_number(std) or std >= 0):
        return NotImplemented
    if _is(mean, 0) and _is(std, 1):
        return draw.normal(meta, meta.dtype)
    return _cast(_scaled(draw.normal(meta, computation_dtype(meta.dtype)), std, mean), meta.dtype)


@replaces("normal_functional")
def _normal_functional(draw: Draw, self: Any, mean: float = 0.0, std: float = 1.0, **_options: Any) -> Any:
    return _normal(draw, mean, std)


@replaces("normal.float_float")
def _normal_numbers(draw: Draw, mean: float, std: float, size: Any, **_options: Any) -> Any:
    return _normal(draw, mean, std)


@replaces("normal.Tensor_float normal.float_Tensor normal.Tensor_Tensor")
def _normal_tensors(draw: Draw, mean: Any, std: Any = 1, **_options: Any) -> Any:
    meta = draw.meta
    checked = isinstance(std, FakeTensor)
    if any(value.dtype not in REAL for value in (meta, *flat_tensors((mean, std)))) or not (
        checked or is_number(std) or std >= 0
    ):
        return NotImplemented
    if checked:
        draw.require(aten.ge.Scalar(std, 0), "normal expects all elements of std >= 0.0")
    working = computation_dtype(meta.dtype)
    value = aten.mul.Tensor(draw.normal(meta, working), std)
    return _cast(aten.add.Tensor(value, mean), meta.dtype)


@replaces("log_normal")
def _log_normal(draw: Draw, self: Any, mean: float = 1.0, std: float = 2.0, **_options: Any) -> Any:
    meta = draw.meta
    if meta.dtype not in REAL or not (is_number(std) or std > 0):
        return NotImplemented
    value = _scaled(draw.normal(meta, computation_dtype(meta.dtype)), std, mean)
    return _cast(aten.exp.default(value), meta.dtype)


# ---- by the inverse of the distribution -----------------------------------------------------------------------------


@replaces("exponential")
def _exponential(draw: Draw, self: Any, rate: float = 1.0, **options: Any) -> Any:
    rate, meta = options.get("lambd", rate), draw.meta
    if meta.dtype not in REAL or not _lies(0, rate, math.inf):
        return NotImplemented
    value = aten.neg.default(aten.log.default(draw.uniform(meta, computation_dtype(meta.dtype), open=True)))
    return _cast(value if _is(rate, 1) else aten.div.Tensor(value, rate), meta.dtype)


@replaces("cauchy")
def _cauchy(draw: Draw, self: Any, median: float = 0.0, sigma: float = 1.0, **_options: Any) -> Any:
    meta = draw.meta
    if meta.dtype not in REAL or not (is_number(sigma) or sigma > 0):
        return NotImplemented
    angle = _scaled(draw.uniform(meta, computation_dtype(meta.dtype), open=True), math.pi, -math.pi / 2)
    return _cast(_scaled(aten.tan.default(angle), sigma, median), meta.dtype)


@replaces("geometric")
def _geometric(draw: Draw, self: Any, p: float, **_options: Any) -> Any:
    meta = draw.meta
    if (meta.dtype not in REAL and meta.dtype not in _INTEGERS) or not _lies(0, p, 1):
        return NotImplemented
    working = computation_dtype(meta.dtype) if meta.dtype in REAL else torch.float64
    value = aten.log.default(draw.uniform(meta, working, open=True))
    return _cast(aten.ceil.default(aten.div.Tensor(value, _log1p(-p))), meta.dtype)


def _log1p(number: Any) -> Any:
    return _cast(aten.log1p.default(held(number.node)), torch.float64) if is_number(number) else math.log1p(number)


# ---- integers -------------------------------------------------------------------------------------------------------


def _integers(draw: Draw, low: int, high: int | None) -> Any:
    """Integers from low to high - 1, if the dtype holds these exactly."""
    meta = draw.meta
    limits = _exact_limits(meta.dtype)
    if high is None or limits is None or not low < high or low < limits[0] or high - 1 > limits[1]:
        return NotImplemented
    if high - low > random.LARGEST_RANGE:
        return NotImplemented
    return _cast(draw.integers(meta, low, high), meta.dtype)


def _exact_limits(dtype: torch.dtype) -> tuple[int, int] | None:
    if dtype in REAL:
        largest = 1 << random.UNIFORM_BITS[dtype]
        return -largest, largest
    if dtype is torch.bool:
        return 0, 1
    if dtype in _INTEGERS:
        limits = torch.iinfo(dtype)
        return limits.min, limits.max
    return None


# By operator: from its own arguments the lowest integer, and the one behind the highest.
_BOUNDS: dict[str, Callable[..., tuple[Any, Any]]] = {
    "randint": lambda high, size: (0, high),
    "randint.low": lambda low, high, size: (low, high),
    "randint_like random.to": lambda self, high: (0, high),
    "randint_like.low_dtype random.from": lambda self, low, high: (low, high),
}


def _register_integers(names: str, bounds: Callable[..., tuple[Any, Any]]) -> None:
    @replaces(names)
    def replacement(draw: Draw, *args: Any, **_options: Any) -> Any:
        return _integers(draw, *bounds(*args))


for _names, _bounds in _BOUNDS.items():
    _register_integers(_names, _bounds)


@replaces("random")
def _random(draw: Draw, self: Any, **_options: Any) -> Any:
    limits = _exact_limits(draw.meta.dtype)
    return NotImplemented if limits is None else _integers(draw, 0, limits[1] + 1)


# ---- coins ----------------------------------------------------------------------------------------------------------


@replaces("bernoulli.p")
def _bernoulli(draw: Draw, self: Any, p: float, **_options: Any) -> Any:
    if not (is_number(p) or 0 <= p <= 1):
        return NotImplemented
    return _cast(draw.bernoulli(draw.meta, p), draw.meta.dtype)


@replaces("bernoulli")
def _bernoulli_of(draw: Draw, self: Any, **_options: Any) -> Any:
    return _bernoulli_tensor(draw, self, self)


@replaces("bernoulli.Tensor")
def _bernoulli_tensor(draw: Draw, self: Any, p: Any, **_options: Any) -> Any:
    if p.dtype not in REAL or broadcast_shapes(tuple(p.shape), tuple(self.shape)) != tuple(self.shape):
        return NotImplemented
    allowed = aten.logical_and.default(aten.ge.Scalar(p, 0), aten.le.Scalar(p, 1))
    draw.require(allowed, "Expected p_in >= 0 && p_in <= 1 to be true, but got false.")
    working = computation_dtype(p.dtype)
    drawn = draw.uniform(draw.meta, working)
    return _cast(aten.lt.Tensor(drawn, _cast(p, working)), draw.meta.dtype)


@replaces("native_dropout")
def _native_dropout(draw: Draw, input: Any, p: float, train: bool | None) -> Any:
    if train is False or not (is_number(p) or 0 <= p <= 1):
        return NotImplemented
    mask = draw.bernoulli(draw.meta, 1 - p)
    return _scaled(aten.mul.Tensor(input, mask), 0.0 if _is(p, 1) else 1 / (1 - p), 0), mask


@replaces("rrelu_with_noise_functional")
def _rrelu(
    draw: Draw, self: Any, noise: Any, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, *_: Any
) -> Any:
    """Negative elements are multiplied by a random slope; the noise holds the slopes, and 1 elsewhere."""
    meta = draw.meta
    if not training or meta.dtype not in REAL or not lower <= upper:
        return NotImplemented
    slope = _cast(_scaled(draw.uniform(meta, computation_dtype(meta.dtype)), upper - lower, lower), meta.dtype)
    drawn = aten.where.ScalarOther(aten.le.Scalar(self, 0), slope, 1.0)
    return aten.mul.Tensor(self, drawn), drawn
