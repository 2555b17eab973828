"""Random small graphs of loop nodes for fusion tests: pointwise, reductions, broadcasts, permuted layouts, views."""

from __future__ import annotations

import random

import torch
from kernel_harness import Graph, contiguous_strides

from stator.inductor.loops.collapse import collapse

F32 = torch.float32


class Generator:
    """Makes one graph from a seed. A tensor is (buffer, shape, strides, offset)."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        torch.manual_seed(seed)
        self.graph = Graph()
        self.tensors: list[tuple[str, tuple[int, ...], tuple[int, ...], int]] = []
        self.shape = tuple(self.rng.choice([1, 2, 3, 5, 16, 17, 20, 33, 48]) for _ in range(self.rng.randint(2, 3)))
        for _ in range(self.rng.randint(1, 3)):
            self.add_input(self.shape)
        for _ in range(self.rng.randint(0, 2)):
            self.add_input(tuple(1 if self.rng.random() < 0.6 else size for size in self.shape))

    def build(self) -> Graph:
        for _ in range(self.rng.randint(2, 8)):
            self.rng.choices(
                [self.pointwise, self.reduction, self.reshaped, self.shifted, self.transposed], [6, 3, 1, 1, 1]
            )[0]()
        made = [name for name in self.graph.buffers if name.startswith("buf")]
        last = set(made[-2:])
        self.graph.outputs = [name for name in made if name in last or self.rng.random() < 0.3]
        self.graph.nodes = [
            type(node)(node.outputs, collapse(node.body)) if self.rng.random() < 0.5 else node
            for node in self.graph.nodes
        ]
        return self.graph

    def add_input(self, shape: tuple[int, ...]) -> None:
        name = self.graph.input(torch.randn(shape))
        self.tensors.append((name, shape, tuple(self.graph.buffers[name].layout.stride), 0))

    def layout(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if self.rng.random() < 0.75:
            return contiguous_strides(shape)
        order = list(range(len(shape)))
        self.rng.shuffle(order)
        strides, step = [0] * len(shape), 1
        for dim in order:
            strides[dim] = step
            step *= shape[dim]
        return tuple(strides)

    def new(self, shape: tuple[int, ...], dtype: torch.dtype = F32) -> tuple[str, tuple[int, ...]]:
        strides = self.layout(shape)
        return self.graph.buffer(shape, dtype, strides), strides

    def read(self, ops, tensor, index):
        """An element as float32, now and then behind a mask or at a computed place."""
        if self.fixed.random() < 0.15:
            index = self.computed(ops, tensor, index)
        at = self.at(tensor, index)
        if self.fixed.random() < 0.15 and index:
            position = ops.index_value(index[-1], torch.int64)
            keep = ops.ge(position, ops.constant(2, torch.int64))
            dtype = self.graph.buffers[tensor[0]].layout.dtype
            return ops.to_dtype(ops.masked(keep, lambda: ops.load(tensor[0], at), 1, dtype), F32)
        return ops.to_dtype(ops.load(tensor[0], at), F32)

    def computed(self, ops, tensor, index):
        """The index with one dimension looked up by the position in another."""
        dim, other = (self.fixed.randrange(len(index)) for _ in range(2))
        size = tensor[1][dim]
        place = ops.minimum(ops.index_value(index[other], torch.int64), ops.constant(size - 1, torch.int64))
        return [ops.indirect(place, size) if at == dim and size > 1 else index[at] for at in range(len(index))]

    @staticmethod
    def stored(ops, value, dtype):
        """A float32 as another dtype, without conversions whose result is unspecified."""
        if dtype is torch.bool:
            return ops.gt(value, ops.constant(0.0, F32))
        if dtype is torch.int32:
            value = ops.where(ops.isnan(value), ops.constant(0.0, F32), value)
            value = ops.minimum(ops.maximum(value, ops.constant(-1000.0, F32)), ops.constant(1000.0, F32))
            value = ops.trunc(ops.mul(value, ops.constant(4.0, F32)))
        return ops.to_dtype(value, dtype)

    def order(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
        dims = sorted(range(len(shape)), key=lambda dim: -strides[dim])
        if self.rng.random() < 0.1:
            self.rng.shuffle(dims)
        return dims

    def compatible(self, shape: tuple[int, ...]) -> list[tuple[str, tuple[int, ...], tuple[int, ...], int]]:
        return [
            t
            for t in self.tensors
            if len(t[1]) == len(shape) and all(a in (1, b) for a, b in zip(t[1], shape, strict=True))
        ]

    @staticmethod
    def at(tensor, index):
        _, shape, strides, offset = tensor
        total = offset
        for position, size, stride in zip(index, shape, strides, strict=True):
            if size != 1:
                total = position * stride + total
        return total

    def combine(self, ops, values):
        result = values[0]
        for value in values[1:]:
            result = ops.elementwise(self.choice_of(["add", "sub", "mul", "maximum", "minimum"]), result, value)
        kind = self.choice_of(["none", "exp", "tanh", "neg", "relu", "scaled", "masked", "sigmoid"])
        if kind in ("tanh", "neg", "sigmoid"):
            return ops.elementwise(kind, result)
        if kind == "exp":
            return ops.exp(ops.minimum(result, ops.constant(2.0, F32)))
        if kind == "relu":
            return ops.maximum(result, ops.constant(0.0, F32))
        if kind == "scaled":
            return ops.mul(result, ops.constant(0.5, F32))
        if kind == "masked":
            return ops.where(ops.gt(result, ops.constant(0.1, F32)), result, ops.constant(-1.0, F32))
        return result

    def choice_of(self, options):
        return options[self.fixed.randrange(len(options))]

    def pointwise(self, source=None, shape=None) -> None:
        shape = shape or (self.shape if self.rng.random() < 0.8 else self.rng.choice(self.tensors)[1])
        usable = self.compatible(shape)
        if not usable:
            return
        operands = [self.rng.choice(usable[-4:]) for _ in range(self.rng.randint(1, 3))]
        dtype = self.rng.choice([F32] * 8 + [torch.bfloat16, torch.float64, torch.int32, torch.bool])
        name, strides = self.new(shape, dtype)
        dims = self.order(shape, strides)
        seed = self.rng.random()

        def body(ops, index, _):
            self.fixed = random.Random(seed)
            at = [0] * len(shape)
            for number, dim in enumerate(dims):
                at[dim] = index[number]
            value = self.stored(ops, self.combine(ops, [self.read(ops, t, at) for t in operands]), dtype)
            ops.store(name, sum((i * s for i, s in zip(at, strides, strict=True)), start=0), value)

        self.graph.node([name], body, [shape[dim] for dim in dims])
        self.tensors.append((name, shape, strides, 0))

    def reduction(self) -> None:
        source = self.rng.choice(self.tensors)
        shape = source[1]
        reduced = [dim for dim in range(len(shape)) if self.rng.random() < 0.5] or [len(shape) - 1]
        kept = [dim for dim in range(len(shape)) if dim not in reduced]
        usable = self.compatible(shape)
        operands = [source, *self.rng.sample(usable, min(len(usable), self.rng.randint(0, 1)))]
        out_shape = tuple(1 if dim in reduced else shape[dim] for dim in range(len(shape)))
        kind = self.rng.choice(["sum", "max", "min", "welford", "sum", "argmax"])
        if kind == "argmax":  # of what is exact only: elsewhere, a last place decides between near ties
            operands = [tensor for tensor in self.tensors if tensor[0] in self.graph.inputs and tensor[1] == shape][:1]
            if not operands:
                return
        name, strides = self.new(out_shape)
        if kind == "argmax":
            name = self.graph.buffer(out_shape, torch.int64, strides)
        second = self.graph.buffer(out_shape, F32, strides) if kind == "welford" else None
        seed = self.rng.random()

        def body(ops, index, inner):
            self.fixed = random.Random(seed)
            at = [0] * len(shape)
            for number, dim in enumerate(kept):
                at[dim] = index[number]
            target = sum((at[dim] * strides[dim] for dim in kept), start=0)
            for number, dim in enumerate(reduced):
                at[dim] = inner[number]
            values = [self.read(ops, t, at) for t in operands]
            value = values[0] if kind == "argmax" else self.combine(ops, values)
            if kind == "welford":
                mean, m2, count = ops.welford(value)
                ops.store(name, target, mean)
                ops.store(second, target, ops.div(m2, count))
            else:
                ops.store(name, target, ops.reduce(kind, value))

        self.graph.node(
            [name, *([second] if second else [])], body, [shape[d] for d in kept], [shape[d] for d in reduced]
        )
        if kind != "argmax":
            self.tensors.append((name, out_shape, strides, 0))
        if second:
            self.tensors.append((second, out_shape, strides, 0))

    def reshaped(self) -> None:
        """A view of contiguous memory with neighbouring dims merged or one split."""
        name, shape, strides, offset = self.rng.choice(self.tensors)
        if strides != contiguous_strides(shape) or offset:
            return
        dim = self.rng.randrange(len(shape))
        factors = [f for f in range(2, shape[dim]) if shape[dim] % f == 0]
        if factors:
            factor = self.rng.choice(factors)
            new = (*shape[:dim], factor, shape[dim] // factor, *shape[dim + 1 :])
        elif dim + 1 < len(shape):
            new = (*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :])
        else:
            return
        self.tensors.append((name, new, contiguous_strides(new), offset))
        self.pointwise(shape=new)

    def shifted(self) -> None:
        """Reads another place than the one that was written."""
        name, shape, strides, offset = self.rng.choice(self.tensors)
        dim = self.rng.randrange(len(shape))
        if shape[dim] < 3:
            return
        new = (*shape[:dim], shape[dim] - 1, *shape[dim + 1 :])
        self.tensors.append((name, new, strides, offset + strides[dim]))
        self.pointwise(shape=new)

    def transposed(self) -> None:
        name, shape, strides, offset = self.rng.choice(self.tensors)
        order = list(range(len(shape)))
        self.rng.shuffle(order)
        new = tuple(shape[dim] for dim in order)
        self.tensors.append((name, new, tuple(strides[dim] for dim in order), offset))
        self.pointwise(shape=new)
