"""Prints scans over the inner loops: a carry holds what the iterations up to now give."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stator.inductor.codegen.kernel import Kernel

from .phases import Phase
from .types import COMBINE, KIND, NARROW, SCALAR, VECTOR, identity
from .values import EmitterContext

_SHORT = 16


def scans(kernel: Kernel, phase: Phase) -> list[int]:
    """The scans that a run over the inner loops computes."""
    return [at for at in phase.values if kernel.values[at].name == "scan" and at not in phase.fetches]


def declare_carries(printer: EmitterContext, phases: Sequence[Phase]) -> None:
    for position in sorted({position for phase in phases for position in scans(printer.kernel, phase)}):
        declare_carry(printer, position)


def declare_carry(printer: EmitterContext, position: int, array: str = "") -> None:
    registers = VECTOR if printer.is_vector(position) else SCALAR
    printer.line(f"{registers[KIND[printer.kernel.values[position].dtype]]} carry{position}{array};")


def begin_scan(printer: EmitterContext, position: int) -> None:
    value = printer.kernel.values[position]
    neutral = identity(value.args[0], value.dtype)
    neutral = f"splat({neutral})" if printer.is_vector(position) else neutral
    printer.line(f"{_carry(printer, position)} = {neutral};")


def scanned(printer: EmitterContext, position: int) -> str:
    """The scan of one iteration, as an expression that moves the carry on."""
    value, carry = printer.kernel.values[position], _carry(printer, position)
    kind, source = value.args
    operand = printer.operand(source.position, printer.is_vector(position))
    if printer.lanes_reduced():
        text = f"scan_{kind}({carry}, {of_valid_lanes(printer, operand, kind, value.dtype)})"
    else:
        text = f"{carry} = {COMBINE[kind]}({carry}, {operand})"
    return f"{NARROW[value.dtype]}({text})" if value.dtype in NARROW else text


def of_valid_lanes(printer: EmitterContext, operand: str, kind: str, dtype: torch.dtype) -> str:
    """The operand of a reduction or scan along the lanes: neutral in lanes without an iteration."""
    if printer.lanes == "LANES":
        return operand
    return f"select(first_lanes({printer.lanes}), {operand}, splat({identity(kind, dtype)}))"


def short_scan(kernel: Kernel, loop: int) -> int:
    """The iterations of a scan that takes less time unrolled, else 0."""
    size = kernel.sizes[loop]
    is_short = loop >= kernel.outer and isinstance(size, int) and size <= _SHORT
    return int(size) if is_short and kernel.scans else 0


def _carry(printer: EmitterContext, position: int) -> str:
    """One for each vector of a block of columns."""
    if printer.lane_symbol is None or not printer.scans_columns or not printer.is_vector(position):
        return f"carry{position}"
    name = printer.lane_symbol.name
    return f"carry{position}[({name} - {name}_begin) / LANES]"
