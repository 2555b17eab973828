"""Shape rules of fused optimizer steps, which write to lists of tensors and return nothing."""

from __future__ import annotations

from typing import Any

from stator.prims.record import shape_rule

from .operands import overloads

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
