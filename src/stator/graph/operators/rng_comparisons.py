"""Comparisons of uniform random numbers with bounds outside of [0, 1): their outcome is known without drawing.

So a layer that is dropped with probability zero does not break the graph. Importing this file registers handlers with
the mode of capture; a tracer sees only the decision.
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
    made = mode._wrap(info, mode.infer(info, args, kwargs, []), [])
    if made.dtype.is_floating_point and made.device.type == "cpu":  # values on other devices are not tracked
        made.drawn = (made.fake_storage, made.fake_storage.version)
    return made


def outcome(operator: str, number: float) -> bool | None:
    """Return the outcome of comparing any x in [0, 1) with the number; None if it depends on x."""
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
        found = outcome(operator, torch.tensor(args[1], dtype=tensor.dtype).item())  # in eager's dtype
        if found is None:
            return NotImplemented
        info = op_info(target)
        result = mode._wrap(info, mode.infer(info, args, kwargs, [tensor]), [tensor])
        if result.numel() == 1:
            result.hold(torch.full(tuple(result.shape), found))
        return result


for _operator in ("lt", "le", "gt", "ge"):
    _register(_operator)
