"""A slow evaluator of loop bodies with torch tensors, over the whole index grid at once. The reference in tests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from stator.inductor.loops.body import LoopBody, Op
from stator.inductor.loops.float8 import is_float8
from stator.inductor.loops.printer import after_reduction
from stator.inductor.loops.vocabulary import ELEMENTWISE
from stator.prims.operators.random import bits_at
from stator.prims.special.normal_quantile import normal_quantile
from stator.shapes.expr import Symbol


def interpret(body: LoopBody, memory: Mapping[str, torch.Tensor]) -> None:
    """Run a body. `memory` maps each buffer to the 1-D tensor of its elements, from its element 0 on.

    Raises IndexError for an out-of-range indirect index, and for any access outside of `memory`.
    """
    _Grid(body, memory).run()


class _Grid:
    def __init__(self, body: LoopBody, memory: Mapping[str, torch.Tensor]) -> None:
        self.body, self.memory = body, memory
        self.sizes = (*body.ranges, *body.reduction_ranges)
        self.outer = len(body.ranges)
        self.values: list[Any] = []
        self.late = after_reduction(body)
        self.points: dict[Symbol, torch.Tensor] = {}
        for axis, (symbol, size) in enumerate(zip((*body.vars, *body.reduction_vars), self.sizes, strict=True)):
            shape = [1] * len(self.sizes)
            shape[axis] = size
            self.points[symbol] = torch.arange(size).reshape(shape)

    def run(self) -> None:
        for position, op in enumerate(self.body.ops):
            late = position in self.late
            if op.name == "store":
                self._store(op, late)
                self.values.append(None)
                continue
            value = self._load(op, late) if op.name == "load" else self._evaluate(op)
            if op.name == "indirect":
                self.points[Symbol(f"indirect{position}")] = value
            self.values.append(value)

    def _evaluate(self, op: Op) -> Any:
        special = getattr(self, f"_{op.name}", None)
        if special is not None:
            return special(op)
        args = [self.values[arg.position] for arg in op.args]  # type: ignore[union-attr]
        return _FUNCTIONS[op.name](*args)

    def _index_at(self, arg: Any) -> torch.Tensor:
        value = self.body.indices[arg.position].evaluate(self.points)  # type: ignore[arg-type]
        return value if isinstance(value, torch.Tensor) else torch.tensor(value)

    def _load(self, op: Op, late: bool) -> torch.Tensor:
        buffer, index, mask, other = op.args
        memory = self.memory[buffer]  # type: ignore[index]
        grid = self.sizes[: self.outer] if late else self.sizes
        if 0 in grid:  # an empty loop must not read
            return memory.new_empty([*grid, *([1] * (len(self.sizes) - len(grid)))])
        at = self._index_at(index)
        if mask is None:
            at = _checked(at, memory.numel(), buffer)
            return memory.view(torch.uint8)[at].view(memory.dtype) if is_float8(memory.dtype) else memory[at]
        keep = self.values[mask.position]  # type: ignore[union-attr]
        at, keep = torch.broadcast_tensors(at, keep)
        _checked(at[keep], memory.numel(), buffer)
        if memory.numel() == 0:
            return torch.full(at.shape, other, dtype=memory.dtype)  # type: ignore[arg-type]
        read = memory[torch.where(keep, at, 0)]
        return torch.where(keep, read, torch.tensor(other, dtype=memory.dtype))

    def _store(self, op: Op, late: bool) -> None:
        buffer, index, value, mode, mask = op.args
        memory = self.memory[buffer]  # type: ignore[index]
        reducing = len(self.sizes) > self.outer
        sizes = [*self.sizes[: self.outer], *([1] * (len(self.sizes) - self.outer))] if late else self.sizes
        if reducing and not late:
            dependent = any(symbol in self.body.indices[index.position].symbols for symbol in self.body.reduction_vars)  # type: ignore
            sizes = self.sizes if dependent else [*self.sizes[: self.outer], *([1] * (len(self.sizes) - self.outer))]
        at = self._index_at(index).broadcast_to(sizes).reshape(-1)
        stored = self.values[value.position].broadcast_to(sizes).reshape(-1)  # type: ignore[union-attr]
        if mask is not None:
            keep = self.values[mask.position].broadcast_to(sizes).reshape(-1)  # type: ignore[union-attr]
            at, stored = at[keep], stored[keep]
        at = _checked(at, memory.numel(), buffer)
        if stored.dtype is not memory.dtype:
            raise TypeError(f"stores {stored.dtype} to {buffer} of {memory.dtype}")
        if is_float8(memory.dtype):  # torch has no indexing of some 8-bit floats
            memory, stored = memory.view(torch.uint8), stored.view(torch.uint8)
        if mode is None:
            memory[at] = stored
        elif mode == "last":
            order = torch.arange(at.numel())
            last = torch.full((memory.numel(),), -1).scatter_reduce_(0, at, order, "amax")
            wins = last[at] == order
            memory[at[wins]] = stored[wins]
        else:
            reduction = {"add": "sum", "max": "amax", "min": "amin", "mul": "prod"}[mode]  # type: ignore[index]
            memory.scatter_reduce_(0, at, stored, reduction)

    def _reduce(self, op: Op) -> torch.Tensor:
        kind, value = op.args
        flat = self._flat(value)
        return _REDUCTIONS[kind](flat).reshape([*flat.shape[: self.outer], *([1] * len(self.body.reduction_vars))])  # type: ignore

    def _scan(self, op: Op) -> torch.Tensor:
        kind, value = op.args
        return _SCANS[kind](self._flat(value)).reshape(self.sizes)  # type: ignore

    def _step(self, op: Op) -> torch.Tensor:
        """One more axis, in front of those of the loops."""
        return torch.arange(op.args[0]).reshape([-1] + [1] * len(self.sizes))  # type: ignore[call-overload]

    def _total(self, op: Op) -> torch.Tensor:
        value = self.values[op.args[1].position]  # type: ignore[union-attr]
        assert value.dim() == len(self.sizes) + 1
        return value.sum(0)  # type: ignore[no-any-return]

    def _flat(self, value: Any) -> torch.Tensor:
        """The operand with all reduction loops flattened into the last axis."""
        whole = self.values[value.position].broadcast_to(self.sizes)
        return whole.reshape([*self.sizes[: self.outer], math.prod(self.sizes[self.outer :])])

    def _welford(self, op: Op) -> tuple[torch.Tensor, ...]:
        flat = self._flat(op.args[0])
        shape = [*flat.shape[:-1], *([1] * len(self.body.reduction_vars))]
        mean = flat.double().mean(-1, keepdim=True)
        spread = (flat.double() - mean).square().sum(-1)
        count = torch.full(shape, float(flat.shape[-1]), dtype=flat.dtype)
        return mean.reshape(shape).to(flat.dtype), spread.reshape(shape).to(flat.dtype), count

    def _get(self, op: Op) -> torch.Tensor:
        return self.values[op.args[0].position][op.args[1]]  # type: ignore[union-attr]

    def _constant(self, op: Op) -> torch.Tensor:
        return torch.tensor(op.args[0], dtype=op.args[1])  # type: ignore[arg-type]

    def _index_value(self, op: Op) -> torch.Tensor:
        return self._index_at(op.args[0]).to(op.args[1])  # type: ignore[arg-type]

    def _to_dtype(self, op: Op) -> torch.Tensor:
        return self.values[op.args[0].position].to(op.args[1])  # type: ignore[union-attr]

    def _bitcast(self, op: Op) -> torch.Tensor:
        return self.values[op.args[0].position].view(op.args[1])  # type: ignore[union-attr]

    def _random(self, op: Op) -> torch.Tensor:
        seed, stream, draw, index = op.args
        key, number = (self.values[part.position].reshape(-1) for part in (seed, stream))  # type: ignore[union-attr]
        if not key.numel():  # an empty loop has read no seed
            key = number = torch.zeros(1, dtype=torch.int64)
        return bits_at(key[0], int(number[0]), draw, self._index_at(index))  # type: ignore[arg-type]

    def _normal(self, op: Op) -> torch.Tensor:
        return normal_quantile(self.values[op.args[0].position])  # type: ignore[union-attr]

    def _indirect(self, op: Op) -> torch.Tensor:
        value, size, check, wraps = op.args
        at = self.values[value.position].long()  # type: ignore[union-attr]
        least = -size if wraps else 0  # type: ignore[operator]
        if check and at.numel() and (at.min() < least or at.max() >= size):  # type: ignore[operator]
            raise IndexError(f"index out of range for size {size}")
        return torch.where(at < 0, at + size, at) if wraps else at


def _checked(at: torch.Tensor, size: int, buffer: object) -> torch.Tensor:
    if at.numel() and (int(at.min()) < 0 or int(at.max()) >= size):
        raise IndexError(f"access to {buffer} outside its {size} elements: {int(at.min())}..{int(at.max())}")
    return at


def _fused(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """x * y + z. Products of float32 are exact in double precision; products of float64 are rounded here."""
    return (x.double() * y.double() + z.double()).to(x.dtype)


_FUNCTIONS: dict[str, Any] = {
    **{name: getattr(torch, name) for name in ELEMENTWISE if hasattr(torch, name)},
    "fma": _fused,
    "floor_div": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "trunc_div": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "mod": torch.remainder,
    "zeta": torch.special.zeta,
    "hermite_h": torch.special.hermite_polynomial_h,
    "hermite_he": torch.special.hermite_polynomial_he,
    "laguerre_l": torch.special.laguerre_polynomial_l,
    "legendre_p": torch.special.legendre_polynomial_p,
    "lshift": torch.bitwise_left_shift,
    "rshift": torch.bitwise_right_shift,
}

_SCANS: dict[str, Any] = {
    "sum": lambda x: x.cumsum(-1, dtype=x.dtype),
    "prod": lambda x: x.cumprod(-1, dtype=x.dtype),
    "max": lambda x: x.cummax(-1).values,
    "min": lambda x: x.cummin(-1).values,
    "logsumexp": lambda x: x.logcumsumexp(-1),
}

_REDUCTIONS: dict[str, Any] = {
    "sum": lambda x: x.sum(-1, dtype=x.dtype),
    "prod": lambda x: x.prod(-1, dtype=x.dtype),
    "max": lambda x: x.amax(-1),
    "min": lambda x: x.amin(-1),
    "any": lambda x: x.bool().any(-1),
    "all": lambda x: x.bool().all(-1),
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(-1),
}
