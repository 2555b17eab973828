"""Torch functions whose own C++ asks for the data of a tensor, above autograd, where no decomposition reaches: what
runs on fake tensors in their place. Captured graphs hold the functions themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stator.base.registry import Registry
from stator.prims.decompositions import quantiles

from .fake import FakeMode, specials

# By what a graph calls: a function, or the name of a method.
stand_ins: Registry[Any, Callable[..., Any]] = Registry("torch function that asks for data")


def _quantile_by(rule: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    def run(
        input: Any,
        q: Any,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        interpolation: str = "linear",
        out: Any = None,
    ) -> Any:
        # autocast knows torch's own function by name
        if out is not None or torch.is_autocast_enabled(input.device.type):
            return original(input, q, dim, keepdim, interpolation=interpolation, out=out)
        return rule(input, q, dim, keepdim, interpolation=interpolation)

    return run


stand_ins.register(torch.quantile, "quantile")(_quantile_by(quantiles.quantile, torch.quantile))
stand_ins.register(torch.nanquantile, "nanquantile")(_quantile_by(quantiles.nanquantile, torch.nanquantile))


@specials.register(torch.ops.aten._assert_async.msg)
def _assertion(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What is asserted about known values holds, or fails, at once."""
    known = args[0].known_value()
    if known is None:
        return NotImplemented
    if not known:
        raise RuntimeError(args[1])
    return None
