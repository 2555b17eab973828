"""`stator.flops(model, *inputs)`: floating-point operations of a call, as an expression in the sizes of its inputs.

The formulas are those of `torch.utils.flop_counter`, which is imported on demand. Never here: running programs.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch.nn.functional as F
from torch._ops import OpOverload

from stator.shapes.conditions import text_of
from stator.shapes.expr import as_expr
from stator.shapes.sym_node import to_expression

from .fused_attention import ALLOCATIONS, choose_as_eager
from .recurrent_flops import FORMULAS
from .symbolic.gradients import ForwardOrigins, run_backward
from .symbolic.pieces import Pieces, conditions_of, evaluated
from .symbolic.places import current_module
from .symbolic.program import Program, Run, SymbolicMode
from .symbolic.solver import to_sympy

# Kernels that multiply matrices inside, but for which torch's table may have no formula. So do recurrent layers.
_ATTENTION = "scaled_dot_product"
_KERNELS = (F.affine_grid,)  # single kernels in eager, of which torch's counter sees no part


@dataclass(slots=True)
class _Counts:
    """Operations of one run, by operator and by module, and calls of kernels without a formula."""

    by_operator: dict[str, Any] = field(default_factory=dict)
    by_module: dict[str, Any] = field(default_factory=dict)
    uncounted: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> Any:
        return sum(self.by_operator.values(), start=as_expr(0))


@dataclass(frozen=True, slots=True)
class FlopCount:
    """Floating-point operations of a call (a multiplication and an addition count as two). Prints as a table.

    The expressions hold where `conditions` do; `at` runs the program again for other sizes.
    """

    _pieces: Pieces

    @property
    def _first(self) -> Run:
        return self._pieces.first()

    @property
    def total(self) -> Any:
        """The count as an expression in the named sizes."""
        return self._first.observed.total

    @property
    def by_operator(self) -> dict[str, Any]:
        """The count of each operator that has any."""
        return dict(self._first.observed.by_operator)

    @property
    def by_module(self) -> dict[str, Any]:
        """The count inside of each module, by its name, submodules included; "" is the whole program."""
        return dict(self._first.observed.by_module)

    @property
    def uncounted(self) -> dict[str, int]:
        """Calls of kernels that multiply matrices and have no formula in torch's table, such as flash attention on CPUs
        and oneDNN's LSTM."""
        return dict(self._first.observed.uncounted)

    @property
    def conditions(self) -> list[str]:
        """The answers to questions about sizes for which the expressions hold."""
        return [text_of(condition) for condition, _ in conditions_of(self._first)]

    def at(self, **sizes: int) -> int:
        """The count at these sizes, 0 and 1 among them. Truths of data (data_1, ...) are false unless given.

        Raises UsageError for a missing name, and ProgramError if the program fails at these sizes.
        """
        run = self._pieces.at(sizes)
        return evaluated(run.observed.total, run, sizes)

    def sympy(self) -> Any:
        """The count as a sympy expression."""
        return to_sympy(self.total)

    def __str__(self) -> str:
        lines = [f"{self.total} floating-point operations"]
        if self.conditions:
            lines[0] += f", if {' and '.join(self.conditions)}"
        lines += [f"  {name}: {count}" for name, count in self.by_operator.items()]
        lines += [f"  {name}: no formula, {count} calls not counted" for name, count in self.uncounted.items()]
        modules = [(name, count) for name, count in self.by_module.items() if name]
        if modules:
            lines.append("modules")
            lines += [f"  {name}: {count}" for name, count in modules]
        return "\n".join(lines)


def flops(
    model: Callable[..., Any],
    *inputs: Any,
    dims: Mapping[Any, Any] | None = None,
    backward: bool = False,
    **named: Any,
) -> FlopCount:
    """Count the floating-point operations of one call, without data and without compiling.

    model, inputs, dims, named: as for `stator.check`. backward: count the gradients of all results with respect to all
    parameters (and inputs that require grad), too. Counts are those of `torch.utils.flop_counter.FlopCounterMode`:
    matrix products, convolutions and attention.

    Raises ProgramError if no sizes are found for which the program runs, and UsageError for unfit names.
    """
    program = Program(model, inputs, named, dims)
    registry = importlib.import_module("torch.utils.flop_counter").flop_registry

    def observe(mode: SymbolicMode, program: Program) -> Any:
        return _Counting(mode, program, registry, backward)

    found = FlopCount(Pieces(program, observe, gradients=backward))
    found._pieces.first()
    return found


class _Counting:
    """Runs the program once and counts its operators. A backward operator belongs to the module of its forward."""

    def __init__(self, mode: SymbolicMode, program: Program, registry: Mapping[Any, Any], backward: bool) -> None:
        self.mode, self.program, self.registry, self.backward = mode, program, registry, backward
        self.counts = _Counts()
        self.modules = ForwardOrigins(self._module, "")

    def __call__(self, args: Any, kwargs: Any) -> tuple[_Counts, Any]:
        self.mode.observe = self.count
        choose_as_eager(self.program.modules)
        try:
            result = self.program.target(*args, **kwargs)
            if self.backward:
                run_backward(self.mode, self.program, (args, kwargs), result)
        finally:
            self.mode.observe = None
        return self.counts, result

    def count(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        module = self.modules.of_this_operator()
        name = str(func.overloadpacket)
        found = self._operations(func, args, kwargs, result)
        if found is None or self.mode.calling in _KERNELS:
            if _ATTENTION in name or func in ALLOCATIONS or func.overloadpacket in FORMULAS:
                self.counts.uncounted[name] += 1
            return
        count = to_expression(found)
        self._add(self.counts.by_operator, name, count)
        parts = module.split(".") if module else []
        for end in range(len(parts) + 1):
            self._add(self.counts.by_module, ".".join(parts[:end]), count)

    def _operations(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """The operations of one operator; None without a formula."""
        own = FORMULAS.get(func.overloadpacket)
        if own is not None:
            return own(*args, **kwargs)
        formula = self.registry.get(func.overloadpacket)
        return None if formula is None else formula(*args, **kwargs, out_val=result)

    def _module(self) -> str:
        module = current_module()
        return "" if module is None else self.program.modules.get(module, "")

    @staticmethod
    def _add(table: dict[str, Any], key: str, count: Any) -> None:
        table[key] = table.get(key, as_expr(0)) + count
