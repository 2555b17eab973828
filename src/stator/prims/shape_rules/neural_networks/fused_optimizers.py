"""Shape rules of fused optimizer steps and of gradient scaling, which write to (lists of) tensors."""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.record import shape_rule
from stator.prims.shape_rules.operands import overloads, unchanged_argument

FUSED = """
    _fused_adam_ _fused_adam_.tensor_lr _fused_adamw_ _fused_adamw_.tensor_lr _fused_sgd_ _fused_sgd_.tensor_lr
    _fused_adagrad_ _fused_adagrad_.tensor_lr
"""


@shape_rule(*overloads(FUSED), tags=("foreach",))
def _step(self: Any, grads: Any, *_lists: Any, **_options: Any) -> None:
    for parameter, gradient in zip(self, grads, strict=True):
        if tuple(parameter.shape) != tuple(gradient.shape):
            raise RuntimeError(
                f"a fused step of a parameter of shape {list(parameter.shape)} with a gradient of shape "
                f"{list(gradient.shape)}"
            )


@shape_rule(torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default, tags=("foreach",))
def _unscale(self: Any, found_inf: Any, inv_scale: Any) -> None:
    for name, tensor in (("found_inf", found_inf), ("inv_scale", inv_scale)):
        if tensor.dtype is not torch.float32:
            raise RuntimeError(f"{name} must be a float tensor.")


@shape_rule(torch.ops.aten._amp_update_scale_.default, tags=("inplace",))
def _update_scale(self: Any, *_args: Any) -> Any:
    return unchanged_argument(self)
