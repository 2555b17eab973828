"""`stator.memory(model, *inputs)`: the peak of memory of one eager call, as an expression in the sizes of its inputs.

Follows the lifetimes of fake storages, which are those of eager's. Never here: memory of compiled code.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from stator.base.errors import UserPlace
from stator.graph.fake.fake_tensor import FakeStorage, FakeTensor, flat_tensors
from stator.prims.operators.recurrent_layer import recurrent_layer
from stator.shapes.conditions import compare, text_of
from stator.shapes.environment import Environment
from stator.shapes.expr import as_expr
from stator.shapes.extrema import Max

from .eager_storage import layout_bytes, storage_bytes
from .fused_attention import ALLOCATIONS, choose_as_eager
from .symbolic.gradients import ForwardOrigins, run_backward
from .symbolic.pieces import Pieces, conditions_of, evaluated
from .symbolic.places import current_module, current_place
from .symbolic.program import Program, SymbolicMode
from .symbolic.solver import to_sympy

aten = torch.ops.aten
_LIFTS = (aten.lift_fresh.default, aten.lift.default, aten.lift_fresh_copy.default)
_MOST_NAMED = 8  # tensors in a report


@dataclass(frozen=True, slots=True, eq=False)
class Allocation:
    """Memory that an operator allocated: its bytes, the operator, the program's line and the module's name. In a
    backward, the last two are those of the forward operator."""

    bytes: Any
    operator: str
    place: UserPlace | None
    module: str

    def __str__(self) -> str:
        return (
            f"{self.operator}"
            + (f" in {self.module}" if self.module else "")
            + (f", {self.place}" if self.place else "")
        )


_Peak = tuple[Any, tuple[Allocation, ...]]


@dataclass(slots=True)
class _Usage:
    """The memory of one run. peaks: pairs of bytes and what is alive, at steps that may be the highest."""

    inputs: Any = 0
    parameters: int = 0
    buffers: int = 0
    peaks: list[_Peak] = field(default_factory=list)
    whole_layers: dict[str, None] = field(
        default_factory=dict
    )  # recurrent layers that are one operator, unlike in eager

    @property
    def peak(self) -> Any:
        return Max.of(*(total for total, _ in self.peaks)) if self.peaks else as_expr(0)


@dataclass(frozen=True, slots=True)
class MemoryAtSizes:
    """Bytes at given sizes. alive: what the program has allocated at its peak, with its bytes, largest first."""

    peak: int
    inputs: int
    parameters: int
    buffers: int
    alive: tuple[tuple[int, Allocation], ...]

    @property
    def total(self) -> int:
        return self.peak + self.inputs + self.parameters + self.buffers

    def __str__(self) -> str:
        lines = [
            f"{self.total / 1e6:.2f} MB: inputs {self.inputs / 1e6:.2f}, parameters {self.parameters / 1e6:.2f}, "
            f"buffers {self.buffers / 1e6:.2f}, allocated at the peak {self.peak / 1e6:.2f}"
        ]
        lines += [f"  {size / 1e6:.2f} MB by {one}" for size, one in self.alive[:_MOST_NAMED]]
        if len(self.alive) > _MOST_NAMED:
            rest = sum(size for size, _ in self.alive[_MOST_NAMED:])
            lines.append(f"  {rest / 1e6:.2f} MB in {len(self.alive) - _MOST_NAMED} others")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory of one eager call, in bytes. Prints as a report.

    The expressions hold where `conditions` do; `at` runs the program again for other sizes.
    """

    _pieces: Pieces
    _of_eager_layers: Pieces

    @property
    def _usage(self) -> _Usage:
        return self._pieces.first().observed  # type: ignore[no-any-return]

    @property
    def peak(self) -> Any:
        """The most that tensors made by the call take at once, its results included. Of recurrent layers, their
        arguments and results count alone; `at` knows the rest."""
        return self._usage.peak

    @property
    def inputs(self) -> Any:
        """The memory of the input tensors."""
        return self._usage.inputs

    @property
    def parameters(self) -> int:
        """The memory of the parameters of the modules, and of other tensors that require grad."""
        return self._usage.parameters

    @property
    def buffers(self) -> int:
        """The memory of the modules' buffers, and of other tensors from before the call."""
        return self._usage.buffers

    @property
    def total(self) -> Any:
        """Inputs, parameters, buffers and peak together."""
        return as_expr(self.inputs) + self.parameters + self.buffers + self.peak

    @property
    def conditions(self) -> list[str]:
        """The answers to questions about sizes for which the expressions hold."""
        return [text_of(condition) for condition, _ in conditions_of(self._pieces.first())]

    def at(self, **sizes: int) -> MemoryAtSizes:
        """The memory at these sizes, 0 and 1 among them. Follows the steps of recurrent layers, and asks oneDNN
        what it saves for a backward, by a call at these sizes. Truths of data (data_1, ...) are false unless given.

        Raises UsageError for a missing name, and ProgramError if the program fails at these sizes.
        """
        run = self._pieces.at(sizes)
        if run.observed.whole_layers:
            run = self._of_eager_layers.at(sizes)
        usage: _Usage = run.observed
        inputs = evaluated(usage.inputs, run, sizes)
        peaks = [(evaluated(total, run, sizes), alive) for total, alive in usage.peaks]
        peak, alive = max(peaks, key=lambda pair: pair[0], default=(0, ()))
        named = [(evaluated(one.bytes, run, sizes), one) for one in alive]
        named.sort(key=lambda pair: -pair[0])
        return MemoryAtSizes(peak, inputs, usage.parameters, usage.buffers, tuple(named))

    def sympy(self) -> Any:
        """The peak as a sympy expression."""
        return to_sympy(self.peak)

    def __str__(self) -> str:
        where = f", if {' and '.join(self.conditions)}" if self.conditions else ""
        lines = [
            f"bytes{where}",
            f"  inputs: {self.inputs}",
            f"  parameters: {self.parameters}",
            f"  buffers: {self.buffers}",
            f"  allocated at the peak: {self.peak}",
        ]
        lines += [f"  counted by at() alone: memory inside of {layer}" for layer in self._usage.whole_layers]
        return "\n".join(lines)


def memory(
    model: Callable[..., Any],
    *inputs: Any,
    dims: Mapping[Any, Any] | None = None,
    backward: bool = False,
    **named: Any,
) -> MemoryUse:
    """The memory of one eager call, without data and without compiling: tensors that are alive, step by step.

    model, inputs, dims, named: as for `stator.check`. backward: run under autograd and take the gradients of all
    results, with gradients of ones, with respect to all parameters and inputs that require grad; without it, the call
    runs under no_grad. Memory inside of kernels is not counted.

    Raises ProgramError if no sizes are found for which the program runs, and UsageError for unfit names.
    """
    program = Program(model, inputs, named, dims)

    def observe(mode: SymbolicMode, program: Program) -> Any:
        return _Following(mode, program, backward)

    def observe_layers(mode: SymbolicMode, program: Program) -> Any:
        mode.eager_layers = True
        return _Following(mode, program, backward)

    found = MemoryUse(
        Pieces(program, observe, gradients=backward), Pieces(program, observe_layers, gradients=backward, fixed=True)
    )
    found._pieces.first()
    return found


class _Following:
    """Runs the program once and follows the memory that its operators allocate."""

    def __init__(self, mode: SymbolicMode, program: Program, backward: bool) -> None:
        self.mode, self.program, self.backward = mode, program, backward
        self.usage = _Usage()
        self.now: Any = as_expr(0)
        self.alive: dict[int, tuple[weakref.ref[FakeStorage], Allocation]] = {}
        self.given: set[int] = set()  # storages of inputs, by identity; the inputs keep them
        self.made: set[int] = set()  # real tensors that the program makes of numbers
        self.rising = False
        self.origins: ForwardOrigins[tuple[UserPlace | None, str]] = ForwardOrigins(self._here, (None, ""))

    def __call__(self, args: Any, kwargs: Any) -> tuple[_Usage, Any]:
        inputs = {id(one.fake_storage): one.fake_storage for one in _fakes((args, kwargs))}
        self.given.update(inputs)
        self.usage.inputs = sum((layout_bytes(one.meta) for one in inputs.values()), start=as_expr(0))
        self.mode.observe, self.mode.inside = self.follow, ALLOCATIONS
        choose_as_eager(self.program.modules)
        try:
            result = self.program.target(*args, **kwargs)
            gradients = run_backward(self.mode, self.program, (args, kwargs), result) if self.backward else ()
        finally:
            self.mode.observe = None
        self._note_peak()
        del gradients
        self.alive.clear()
        self.usage.peaks = _upper_hull(self.mode.environment, self.usage.peaks)
        self._count_tensors_from_before()
        return self.usage, result

    def follow(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        origin = self.origins.of_this_operator()
        if func is recurrent_layer:
            self.usage.whole_layers[str(Allocation(0, f"the {args[0]}", *origin))] = None
        if func in _LIFTS:
            self.made.add(id(args[0]))
        for position, fake in enumerate(flat_tensors(result)):
            storage = fake.fake_storage
            key = id(storage)
            if key in self.alive or key in self.given or self.mode.is_from_before(storage):
                continue
            allocation = Allocation(storage_bytes(func, args, position, fake), str(func.overloadpacket), *origin)
            self.alive[key] = weakref.ref(storage, lambda _, key=key: self._free(key)), allocation  # type: ignore[misc]
            self.now = self.now + allocation.bytes
            self.rising = True

    def _here(self) -> tuple[UserPlace | None, str]:
        module = current_module()
        return current_place(), "" if module is None else self.program.modules.get(module, "")

    def _free(self, key: int) -> None:
        found = self.alive.get(key)
        if found is not None:
            self._note_peak()
            del self.alive[key]
            self.now = self.now - found[1].bytes

    def _note_peak(self) -> None:
        """Called before memory is freed: keep this step unless another one is at least as high for all sizes."""
        if not self.rising:
            return
        self.rising = False
        environment, peaks = self.mode.environment, self.usage.peaks
        if not any(_at_least(environment, total, self.now) for total, _ in peaks):
            kept = [pair for pair in peaks if not _at_least(environment, self.now, pair[0])]
            self.usage.peaks = [*kept, (self.now, tuple(one for _, one in self.alive.values()))]

    def _count_tensors_from_before(self) -> None:
        modules = self.program.modules
        parameters = [one for module in modules for one in module.parameters(recurse=False)]
        buffers = [one for module in modules for one in module.buffers(recurse=False)]
        met = [one for one in self.mode.tensors_met() if id(one) not in self.made]
        trained = {_storage_of(one): one for one in (*parameters, *(one for one in met if one.requires_grad))}
        others = {_storage_of(one): one for one in (*buffers, *met)}
        self.usage.parameters = sum(one.untyped_storage().nbytes() for one in trained.values())
        self.usage.buffers = sum(one.untyped_storage().nbytes() for key, one in others.items() if key not in trained)


def _upper_hull(environment: Environment, peaks: list[_Peak]) -> list[_Peak]:
    """Drop steps that are never above both of their neighbours, in the order of their constant parts. The steps of a
    backward exchange activations for gradients layer by layer, so that often only the ends matter."""
    kept: list[_Peak] = []
    for pair in sorted(peaks, key=lambda pair: as_expr(pair[0]).offset):
        while len(kept) > 1 and _between(environment, kept[-2][0], kept[-1][0], pair[0]):
            kept.pop()
        kept.append(pair)
    return kept


def _between(environment: Environment, low: Any, middle: Any, high: Any) -> bool:
    """Whether a weighted mean of two amounts is at least the amount in the middle for all sizes."""
    above, below = (high - middle).offset, (middle - low).offset
    return above + below > 0 and _at_least(environment, low * above + high * below, middle * (above + below))


def _at_least(environment: Environment, high: Any, low: Any) -> bool:
    return environment.evaluate_static(compare(">=", high, low)) is True


def _storage_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _fakes(value: Any) -> list[FakeTensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, FakeTensor)]
