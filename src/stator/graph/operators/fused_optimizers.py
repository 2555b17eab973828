"""Fused optimizer steps and operations of torch.amp.GradScaler by elementwise operators. Importing this file registers
them with the tracer.

The formulas of the steps are those of torch's own fused kernels for the CPU
(aten/src/ATen/native/cpu/Fused*Kernel.cpp), which compute half-width parameters in float32 and the factors that depend
on the step in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from stator.graph.fake.fake_mode import FakeTensor
from stator.graph.functionalization.functionalize import FunctionalTracer, mutations
from stator.graph.ir.schema import SchemaFacts
from stator.prims.decompositions.decomposition_decorator import cast
from stator.prims.shape_rules.operands import overloads
from stator.prims.type_promotion import computation_dtype

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class _Step:
    """One parameter's step. Values are read in the computation dtype `wide` and written in the parameter's dtype."""

    tracer: FunctionalTracer
    wide: torch.dtype
    skip: FakeTensor | None  # true if gradients held infinities, so that the step writes nothing

    def read(self, tensor: FakeTensor) -> Any:
        return cast(tensor, self.wide)

    def factor(self, value: Any) -> Any:
        """Convert a zero-dim tensor to the computation dtype; return a Python number unchanged."""
        return cast(value, self.wide) if isinstance(value, torch.Tensor) else value

    def write(self, target: FakeTensor, value: Any) -> None:
        value = cast(value, target.meta.dtype)
        if self.skip is not None:
            value = aten.where.self(self.skip, target, value)
        self.tracer.store(target, value)
        if not target.is_data:  # fused operators do not bump autograd's versions
            target.fake_storage.unannounced += 1

    def gradient(self, parameter: Any, gradient: FakeTensor, options: dict[str, Any]) -> Any:
        """Return the gradient, unscaled (the unscaled value is written back), and negated if `maximize` is set."""
        value = self.read(gradient)
        if options.get("grad_scale") is not None:
            value = aten.div.Tensor(value, self.factor(options["grad_scale"]))
            self.write(gradient, value)
        return aten.neg.default(value) if options["maximize"] else value


def _steps(tracer: FunctionalTracer, args: tuple[Any, ...], options: dict[str, Any]) -> list[tuple[_Step, list[Any]]]:
    """Return, for each parameter, its step and its element of every list (None for an empty list)."""
    found = options.get("found_inf")
    skip = None if found is None else aten.eq.Scalar(found, 1)
    return [
        (
            _Step(tracer, computation_dtype(parameter.meta.dtype), skip),
            [tensors[at] if len(tensors) else None for tensors in args],
        )
        for at, parameter in enumerate(args[0])
    ]


@mutations.register(*overloads("_fused_adam_ _fused_adam_.tensor_lr _fused_adamw_ _fused_adamw_.tensor_lr"))
def _adam(tracer: FunctionalTracer, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    decoupled = info.name == "_fused_adamw_"
    lr, beta1, beta2, decay = (kwargs[name] for name in ("lr", "beta1", "beta2", "weight_decay"))
    with tracer:
        for step, (parameter, grad, average, square, largest, count) in _steps(tracer, args, kwargs):
            value = step.read(parameter)
            gradient = step.gradient(value, grad, kwargs)
            if decay != 0 and decoupled:
                value = aten.sub.Tensor(value, aten.mul.Tensor(value, step.factor(lr * decay)))
            elif decay != 0:
                gradient = aten.add.Tensor(gradient, aten.mul.Tensor(value, decay))
            count = cast(count, torch.float64)
            first = aten.rsub.Scalar(aten.pow.Scalar(beta1, count), 1)
            second = aten.sqrt.default(aten.rsub.Scalar(aten.pow.Scalar(beta2, count), 1))
            mean = aten.lerp.Scalar(step.read(average), gradient, 1 - beta1)
            scaled = aten.mul.Tensor(aten.mul.Tensor(gradient, 1 - beta2), gradient)
            variance = aten.add.Tensor(aten.mul.Tensor(step.read(square), beta2), scaled)
            step.write(average, mean)
            step.write(square, variance)
            if kwargs["amsgrad"]:
                variance = aten.maximum.default(step.read(largest), variance)
                step.write(largest, variance)
            deviation = aten.div.Tensor(aten.sqrt.default(variance), step.factor(second))
            denominator = aten.add.Tensor(deviation, kwargs["eps"])
            size = step.factor(aten.div.Tensor(lr, first) if isinstance(lr, torch.Tensor) else _over(lr, first))
            change = aten.div.Tensor(aten.mul.Tensor(mean, size), denominator)
            step.write(parameter, aten.sub.Tensor(value, change))


def _over(number: float, tensor: Any) -> Any:
    return aten.mul.Tensor(aten.reciprocal.default(tensor), number)


@mutations.register(*overloads("_fused_sgd_ _fused_sgd_.tensor_lr"))
def _sgd(tracer: FunctionalTracer, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    momentum, decay = kwargs["momentum"], kwargs["weight_decay"]
    with tracer:
        for step, (parameter, grad, buffer) in _steps(tracer, args, kwargs):
            value = step.read(parameter)
            gradient = step.gradient(value, grad, kwargs)
            if decay != 0:
                gradient = aten.add.Tensor(gradient, aten.mul.Tensor(value, decay))
            if momentum != 0:
                average = gradient
                if not kwargs["is_first_step"]:
                    kept = aten.mul.Tensor(step.read(buffer), momentum)
                    average = aten.add.Tensor(kept, aten.mul.Tensor(gradient, 1 - kwargs["dampening"]))
                step.write(buffer, average)
                if kwargs["nesterov"]:
                    gradient = aten.add.Tensor(gradient, aten.mul.Tensor(average, momentum))
                else:
                    gradient = average
            change = aten.mul.Tensor(gradient, step.factor(kwargs["lr"]))
            step.write(parameter, aten.sub.Tensor(value, change))


@mutations.register(*overloads("_fused_adagrad_ _fused_adagrad_.tensor_lr"))
def _adagrad(tracer: FunctionalTracer, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    lr, decay = kwargs["lr"], kwargs["weight_decay"]
    with tracer:
        for step, (parameter, grad, total, count) in _steps(tracer, args, kwargs):
            value = step.read(parameter)
            gradient = step.gradient(value, grad, kwargs)
            if decay != 0:
                gradient = aten.add.Tensor(gradient, aten.mul.Tensor(value, decay))
            summed = aten.add.Tensor(step.read(total), aten.mul.Tensor(gradient, gradient))
            step.write(total, summed)
            past = aten.mul.Tensor(aten.sub.Tensor(cast(count, torch.float64), 1), kwargs["lr_decay"])
            slower = aten.add.Tensor(past, 1)
            size = step.factor(aten.div.Tensor(lr, slower) if isinstance(lr, torch.Tensor) else _over(lr, slower))
            denominator = aten.add.Tensor(aten.sqrt.default(summed), kwargs["eps"])
            change = aten.div.Tensor(aten.mul.Tensor(gradient, size), denominator)
            step.write(parameter, aten.sub.Tensor(value, change))


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
