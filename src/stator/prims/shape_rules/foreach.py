"""Shape rules of operators on lists of tensors that write to them, or take their numbers from a one-dimensional tensor.
All others are traced as the operators on single tensors that their kernels call."""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.record import record, shape_rule

aten = torch.ops.aten


@shape_rule(aten._foreach_addcdiv.Tensor, aten._foreach_addcmul.Tensor, tags=("foreach",))
def _addc(self: Any, tensor1: Any, tensor2: Any, scalars: Any) -> Any:
    single = record(aten.addcmul.default).shape
    assert single is not None
    return [single(*each) for each in zip(self, tensor1, tensor2, strict=True)]


def _written(self: Any, *_args: Any, **_options: Any) -> None:
    """A trace meets what does not fit, where it writes to the tensors one by one."""
    return None


for _name in torch._C._dispatch_get_all_op_names():
    _packet, _, _overload = _name.removeprefix("aten::").partition(".")
    if _packet.startswith("_foreach_") and _packet.endswith("_"):
        shape_rule(getattr(getattr(aten, _packet), _overload or "default"), tags=("foreach",))(_written)
