"""Merges the members of a group into one SSA: the values that the kernel computes, in any language, before any decision
on loops.

A load of a value that an earlier member stored becomes that value, equal values are computed once, and Welford becomes
two sums. Every value knows the loops it varies with and its phase. Nothing is printed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from stator.base.errors import CompileError
from stator.inductor.buffers import Buffer
from stator.inductor.loops.body import IndexRef, LoopBody, Ref
from stator.inductor.schedule.groups import Group
from stator.inductor.sizes import SizeKnowledge, Sizes, product
from stator.shapes.expr import Expr, ExprLike, Symbol, as_expr
from stator.shapes.simplify import add_loop

from .index_printer import IndexPrinter


@dataclass(slots=True)
class KernelValue:
    """`args` as in loops/body.py, with index expressions in place of index references. `loops`: a bit for each loop
    that the value varies with. `phase`: the number of reductions over the inner loops that must be complete before it.
    """

    name: str
    args: tuple[Any, ...]
    dtype: torch.dtype
    loops: int
    phase: int


@dataclass(slots=True)
class Store:
    """`at`: the number of values that come before the store in program order."""

    buffer: str
    index: Expr
    value: int
    mode: str | None
    mask: int | None
    loops: int
    phase: int
    at: int


@dataclass(frozen=True, slots=True)
class Pivot:
    """Positions of what a mean and its deviations become: the sum of a row, and that sum over the number of elements,
    from which deviations are measured. users: for each value between, all values that may read it."""

    total: int
    mean: int
    users: dict[int, set[int]]


@dataclass(slots=True)
class Kernel:
    """`loops[:outer]` are shared by all members; `loops[outer:]` are the inner loops, run once per phase. `typical`:
    the loops' sizes in the example, for all decisions about speed. `indices`: prints indices and sizes. `rows_each`: as
    of `Group`. `pivots`: one for each mean with squared deviations."""

    loops: tuple[Symbol, ...]
    sizes: Sizes
    outer: int
    typical: tuple[int, ...]
    knowledge: SizeKnowledge
    ranges: dict[Symbol, Any]
    indices: IndexPrinter
    values: list[KernelValue] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    rows_each: int = 0
    indirect: dict[Symbol, int] = field(default_factory=dict)
    pivots: list[Pivot] = field(default_factory=list)

    @property
    def inner_bits(self) -> int:
        return ((1 << len(self.loops)) - 1) & ~((1 << self.outer) - 1)

    @property
    def scans(self) -> list[int]:
        """Values that need those of earlier iterations of the inner loops."""
        return [position for position, value in enumerate(self.values) if value.name == "scan"]

    @property
    def ordered(self) -> bool:
        """True if results depend on the order of the inner loops."""
        return any(v.name == "scan" or (v.name == "reduce" and v.args[0].startswith("arg")) for v in self.values)

    @property
    def phases(self) -> int:
        """The number of runs over the inner loops."""
        inner = self.inner_bits
        last = [s.phase for s in self.stores if s.loops & inner]
        last += [self.values[v.args[1].position].phase for v in self.values if v.name == "reduce"]
        return max(last) + 1 if last else 0

    def text(self, size: ExprLike) -> str:
        """A size as an operand."""
        return self.indices.size(size)

    def size(self, loop: int) -> str:
        return self.text(self.sizes[loop])

    def bound(self, loop: int) -> str:
        """The size of a loop whose text does not depend on it."""
        return self.indices.bound(self.sizes[loop])

    def fills_lanes(self, loop: int) -> bool:
        """True if the loop runs through whole vectors alone, of any number of lanes."""
        return self.knowledge.divides(16, self.sizes[loop])

    def step(self, index: Expr, loop: int) -> int | None:
        """The distance in memory between iterations of a loop, in the example; None when it varies."""
        found = index.coefficient(self.loops[loop])
        return None if found is None else self.knowledge.hint(found)

    def keeps_apart(self, index: Expr, loop: int) -> bool:
        """True if no two iterations of the loop reach one element."""
        step = index.coefficient(self.loops[loop])
        low, high = index.substitute({self.loops[loop]: 0}).bounds(self.ranges)
        return isinstance(step, int) and high - low < abs(step)

    def loops_of(self, index: Expr) -> int:
        bits = 0
        for at, symbol in enumerate(self.loops):
            if symbol in index.symbols:
                bits |= 1 << at
        for symbol, position in self.indirect.items():
            if symbol in index.symbols:
                bits |= self.values[position].loops
        return bits

    def operands(self, args: tuple[Any, ...]) -> list[int]:
        """Positions of the values that arguments refer to, also from inside index expressions."""
        found = []
        for arg in args:
            if isinstance(arg, Ref):
                found.append(arg.position)
            elif isinstance(arg, Expr) and self.indirect:
                found += [self.indirect[symbol] for symbol in arg.symbols if symbol in self.indirect]
        return found

    def store_operands(self, store: Store) -> list[int]:
        return [*self.operands((store.index, Ref(store.value))), *([] if store.mask is None else [store.mask])]

    def live_values(self) -> list[int]:
        """Positions of the values that stores depend on."""
        seen: set[int] = set()
        pending = [position for store in self.stores for position in self.store_operands(store)]
        while pending:
            position = pending.pop()
            if position not in seen:
                seen.add(position)
                pending += self.operands(self.values[position].args)
        return sorted(seen)

    def stepped_values(self) -> set[int]:
        """Positions of the values of loops inside of iterations: those that vary with a step."""
        found: set[int] = set()
        for position, value in enumerate(self.values):
            varies = value.name != "total" and not found.isdisjoint(self.operands(value.args))
            if varies or value.name == "step":
                found.add(position)
        return found

    def closure(self, roots: Iterable[int]) -> list[int]:
        """All values that the roots depend on. Stops at reductions, which are complete before."""
        seen: set[int] = set()
        pending = list(roots)
        while pending:
            position = pending.pop()
            if position not in seen and self.values[position].name != "reduce":
                seen.add(position)
                pending += self.operands(self.values[position].args)
        return sorted(seen)


def narrowed_by_stores(kernel: Kernel, buffers: Mapping[str, Buffer]) -> set[int]:
    """The values that are only stored, in their own dtype: a store rounds or wraps as NARROW does."""
    read = {position for value in kernel.values for position in kernel.operands(value.args)}
    stored: set[int] = set()
    for store in kernel.stores:
        read.update(position for position in kernel.store_operands(store) if position != store.value)
        same = buffers[store.buffer].layout.dtype is kernel.values[store.value].dtype
        (stored if same and store.mode is None else read).add(store.value)
    return stored - read


def merge(
    group: Group,
    buffers: Mapping[str, Buffer],
    knowledge: SizeKnowledge,
    printer: type[IndexPrinter],
    reciprocals: bool = False,
) -> Kernel:
    """Merge the members' bodies, in order. reciprocals: the elements of a softmax are multiplied by the reciprocal of
    their sum. Raises CompileError for contents that a schedule must not have."""
    first = next((m.body for m in group.members if m.body.reduction_vars or len(m.body.vars) > len(group.ranges)), None)
    body = first or group.members[0].body
    shared = len(group.ranges)
    loops = (*body.vars, *body.reduction_vars)
    sizes = (*body.ranges, *body.reduction_ranges)
    ranges = knowledge.ranges(loops, sizes)
    kernel = Kernel(loops, sizes, shared, knowledge.hints(sizes), knowledge, ranges, printer(ranges))
    kernel.rows_each = group.rows_each
    merger = _Merger(kernel, group.internal, reciprocals)
    for member in group.members:
        merger.add(member.body)
    return kernel


class _Merger:
    def __init__(self, kernel: Kernel, internal: frozenset[str], reciprocals: bool) -> None:
        self.kernel, self.reciprocals = kernel, reciprocals
        self.internal = internal
        self.numbers: dict[object, int] = {}
        self.stored: dict[tuple[str, Expr], int] = {}
        self.written: set[str] = set()

    def add(self, body: LoopBody) -> None:
        kernel = self.kernel
        positions: list[int] = []  # maps the body's operations to the kernel's values (a welford to its mean)
        parts: dict[int, tuple[int, int, int]] = {}
        renamed: dict[Symbol, Expr] = {}
        for at, op in enumerate(body.ops):
            dtype: Any = op.dtype
            args: list[Any] = []
            for arg in op.args:
                if isinstance(arg, Ref):
                    args.append(Ref(positions[arg.position]))
                elif isinstance(arg, IndexRef):
                    index = body.indices[arg.position]
                    args.append(index.substitute(renamed) if renamed else index)
                else:
                    args.append(arg)
            if op.name == "store":
                self._store(*args)
                positions.append(-1)
            elif op.name == "welford":
                parts[at] = self._welford(args[0], dtype)
                positions.append(parts[at][0])
            elif op.name == "get":
                source: Any = op.args[0]
                which: Any = op.args[1]
                positions.append(parts[source.position][which])
            elif op.name == "load":
                positions.append(self._load(tuple(args), dtype))
            else:
                position = self.value(op.name, tuple(args), dtype)
                if op.name == "indirect":
                    symbol = Symbol(f"indirect{position}")
                    renamed[Symbol(f"indirect{at}")] = symbol
                    kernel.indirect[symbol] = position
                    add_loop(kernel.ranges, symbol, args[1])
                positions.append(position)

    def value(self, name: str, args: tuple[Any, ...], dtype: torch.dtype) -> int:
        # repr distinguishes 0.0 from -0.0 and 1 from True, and makes NaN equal to itself
        key = (name, tuple([arg if isinstance(arg, Ref | Expr) else repr(arg) for arg in args]), dtype)
        found = self.numbers.get(key)
        if found is None and name == "reduce" and args[0] == "sum":
            found = self._sum_of_one(args[1].position, dtype)
        if found is None and name == "div" and self.reciprocals and self._is_softmax(*args):
            one = Ref(self.value("constant", (1.0, dtype), dtype))
            found = self.value("mul", (args[0], Ref(self.value("div", (one, args[1]), dtype))), dtype)
        if found is not None:
            return found
        kernel = self.kernel
        loops, phase = 0, 0
        for arg in args:
            if isinstance(arg, Expr):
                loops |= kernel.loops_of(arg)
        for position in kernel.operands(args):
            loops |= kernel.values[position].loops
            phase = max(phase, kernel.values[position].phase)
        if name == "reduce":
            loops &= ~kernel.inner_bits
            phase += 1
        elif name == "scan":
            loops |= kernel.inner_bits
        self.numbers[key] = len(kernel.values)
        kernel.values.append(KernelValue(name, args, dtype, loops, phase))
        return len(kernel.values) - 1

    def _is_softmax(self, power: Ref, total: Ref) -> bool:
        """True if the divisor lies between 1 and the number of elements, so that its reciprocal is a normal number:
        the sum of exp(x - max(x)), by which these are divided."""
        exp, summed = (self.kernel.values[ref.position] for ref in (power, total))
        if exp.name != "exp" or summed.name != "reduce" or summed.args != ("sum", power):
            return False
        away = self.kernel.values[exp.args[0].position]
        if away.name != "sub" or away.dtype not in (torch.float32, torch.float64):
            return False
        largest = self.kernel.values[away.args[1].position]
        return largest.name == "reduce" and largest.args == ("max", away.args[0])

    def _sum_of_one(self, summand: int, dtype: torch.dtype) -> int | None:
        """The sum over a loop of which at most one iteration, whose number is known before, gives something else than
        0: the value of that iteration. The gradient of a cross entropy has such sums."""
        kernel, casts = self.kernel, []
        value = kernel.values[summand]
        if value.dtype is not dtype or len(kernel.loops) != kernel.outer + 1:
            return None
        while value.name == "to_dtype":
            casts.append(value.dtype)
            value = kernel.values[value.args[0].position]
        if value.name != "where":
            return None
        condition, chosen, other = (kernel.values[ref.position] for ref in value.args)
        number = self._chosen_iteration(condition)
        if number is None or chosen.loops & kernel.inner_bits or other.name != "constant" or other.args[0] != 0:
            return None
        count = kernel.sizes[-1]
        kind = "index_value" if isinstance(count, Expr) else "constant"
        limits = [(kind, count), ("constant", 0)]
        behind, first = (Ref(self.value(name, (limit, torch.int64), torch.int64)) for name, limit in limits)
        inside = [self.value("lt", (number, behind), torch.bool), self.value("ge", (number, first), torch.bool)]
        valid = self.value("bitwise_and", tuple(map(Ref, inside)), torch.bool)
        found = self.value("where", (Ref(valid), *value.args[1:]), value.dtype)
        for cast in reversed(casts):
            found = self.value("to_dtype", (Ref(found), cast), cast)
        return found

    def _chosen_iteration(self, condition: KernelValue) -> Ref | None:
        """The number of the iteration of the innermost loop for which the condition holds."""
        loop = self.kernel.loops[-1]
        if condition.name != "eq":
            return None
        for this, number in (condition.args, condition.args[::-1]):
            place, wanted = (self.kernel.values[ref.position] for ref in (this, number))
            is_place = place.name == "index_value" and as_expr(place.args[0]) == as_expr(loop)
            if is_place and wanted.dtype is torch.int64 and not wanted.loops & self.kernel.inner_bits:
                return number  # type: ignore[no-any-return]
        return None

    def _load(self, args: tuple[Any, ...], dtype: torch.dtype) -> int:
        buffer, index, mask, other = args
        if buffer not in self.written:
            return self.value("load", args, dtype)
        found = self.stored.get((buffer, index))
        if found is None:
            raise CompileError("inductor", f"a fused kernel reads {buffer}[{index}], which it writes in another order")
        if mask is None:
            return found
        neutral = self.value("constant", (other, dtype), dtype)
        return self.value("where", (mask, Ref(found), Ref(neutral)), dtype)

    def _store(self, buffer: str, index: Expr, value: Ref, mode: str | None = None, mask: Ref | None = None) -> None:
        kernel = self.kernel
        if mode is None and mask is None:
            self.stored[buffer, index] = value.position
        self.written.add(buffer)
        if buffer in self.internal:
            return
        source = kernel.values[value.position]
        loops, phase = source.loops | kernel.loops_of(index), source.phase
        for position in kernel.operands((index, *((mask,) if mask else ()))):
            loops |= kernel.values[position].loops
            phase = max(phase, kernel.values[position].phase)
        masked = None if mask is None else mask.position
        kernel.stores.append(Store(buffer, index, value.position, mode, masked, loops, phase, len(kernel.values)))

    def _welford(self, value: Ref, dtype: torch.dtype) -> tuple[int, int, int]:
        """The mean, then squared deviations from the mean. Two passes over a row in cache are faster than one pass with
        a division in each step, and more exact. The deviations' sum corrects both (Chan, Golub and LeVeque, 1983)."""
        kernel = self.kernel
        number = product(kernel.sizes[kernel.outer :])
        if isinstance(number, Expr):
            count = self.value("index_value", (number, dtype), dtype)
        else:
            count = self.value("constant", (float(number), dtype), dtype)
        total = self.value("reduce", ("sum", value), dtype)
        mean = self.value("div", (Ref(total), Ref(count)), dtype)
        deviation = self.value("sub", (value, Ref(mean)), dtype)
        square = self.value("mul", (Ref(deviation), Ref(deviation)), dtype)
        rest = self.value("reduce", ("sum", Ref(deviation)), dtype)
        squares = self.value("reduce", ("sum", Ref(square)), dtype)
        share = self.value("div", (Ref(rest), Ref(count)), dtype)
        opposite = self.value("neg", (Ref(rest),), dtype)
        corrected = self.value("add", (Ref(mean), Ref(share)), dtype)
        users = {total: {mean}, mean: {deviation, corrected}, deviation: {square, rest}, square: {squares}}
        kernel.pivots.append(Pivot(total, mean, users))
        squares = self.value("fma", (Ref(opposite), Ref(share), Ref(squares)), dtype)
        return corrected, self.value("abs", (Ref(squares),), dtype), count
