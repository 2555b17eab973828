"""torch.amp.GradScaler's operations on gradients and on its scale, by elementwise operators. Importing this file
registers them with the tracer."""

from __future__ import annotations

from typing import Any

import torch

from stator.graph.fake.fake_mode import FakeTensor
from stator.graph.functionalization.functionalize import FunctionalTracer, mutations
from stator.graph.ir.schema import SchemaFacts
from stator.prims.decompositions.decomposition_decorator import cast
from stator.prims.type_promotion import computation_dtype

aten = torch.ops.aten


@mutations.register(aten._amp_foreach_non_finite_check_and_unscale_.default)
def _unscale(tracer: FunctionalTracer, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Multiply every gradient by `inv_scale`, and set `found_inf` to 1 when one holds an infinity or NaN."""
    gradients, found_inf, inv_scale = args
    with tracer:
        found = cast(found_inf, torch.float32)
        for gradient in gradients:
            # x * 0 is 0 for finite x and NaN otherwise
            nothing = aten.mul.Tensor(gradient, 0)
            bad = aten._to_copy.default(aten.any.default(aten.ne.Tensor(nothing, nothing)), dtype=torch.float32)
            found = aten.maximum.default(found, bad)
            wide = computation_dtype(gradient.meta.dtype)
            tracer.store(gradient, aten.mul.Tensor(cast(gradient, wide), cast(inv_scale, wide)))
        tracer.store(found_inf, aten.reshape.default(found, list(found_inf.shape)))


@mutations.register(aten._amp_update_scale_.default)
def _update_scale(
    tracer: FunctionalTracer, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> FakeTensor:
    """Shrink the scale after infinities; grow it, if it stays finite, after `interval` steps without infinities."""
    scale, growth_tracker, found_inf, growth, backoff, interval = args
    with tracer:
        found = aten.gt.Scalar(found_inf, 0)
        steps = aten.add.Tensor(growth_tracker, 1)
        grown = aten.mul.Tensor(scale, growth)
        due = aten.eq.Scalar(steps, interval)
        finite = aten.lt.Scalar(aten.abs.default(grown), float("inf"))
        kept = aten.where.self(aten.logical_and.default(due, finite), grown, scale)
        new_scale = aten.where.self(found, aten.mul.Tensor(scale, backoff), kept)
        over = aten.logical_or.default(found, due)
        tracer.store(scale, new_scale)
        tracer.store(growth_tracker, aten.where.self(over, aten.zeros_like.default(steps), steps))
    return scale
