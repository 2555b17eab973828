"""Comparisons of uniform random numbers with bounds that no such number crosses: known without drawing.

`torch.rand` gives numbers in [0, 1), so that a layer dropped with probability zero is never dropped. Registers handlers
with the mode that capture runs on; a tracer has the decision already.
"""

from __future__ import annotations

from typing import Any

import torch

from stator.graph.fake.fake_mode import FakeMode, specials
from stator.graph.functionalization.functionalize import FunctionalTracer
from stator.graph.ir.schema import op_info

aten = torch.ops.aten


@specials.register(aten.rand.default)
def _rand(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(mode, FunctionalTracer):
        return NotImplemented
    info = op_info(aten.rand.default)
    made = mode._wrap(info, mode.infer(info, args, kwargs, []), [], args)
    if made.dtype.is_floating_point and made.device.type == "cpu":  # values of tensors elsewhere are not followed
        made.drawn = (made.fake_storage, made.fake_storage.version)
    return made


def outcome(operator: str, number: float) -> bool | None:
    """What comparing any x in [0, 1) with the number gives; None when that depends on x."""
    less = operator in ("lt", "le")
    if number < 0 or (number == 0 and operator in ("lt", "ge")):
        return not less
    return less if number >= 1 else None


def _register(operator: str) -> None:
    target = getattr(aten, operator).Scalar

    @specials.register(target)
    def compare(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        if tensor.drawn is None or tensor.drawn != (tensor.fake_storage, tensor.fake_storage.version):
            return NotImplemented
        found = outcome(operator, torch.tensor(args[1], dtype=tensor.dtype).item())  # as eager compares it
        if found is None:
            return NotImplemented
        info = op_info(target)
        result = mode._wrap(info, mode.infer(info, args, kwargs, [tensor]), [tensor], args)
        if result.numel() == 1:
            result.hold(torch.full(tuple(result.shape), found))
        return result


for _operator in ("lt", "le", "gt", "ge"):
    _register(_operator)
