"""torch.cond and the operators of torch._higher_order_ops, whose meaning in eager torch is that of a compiler of its
own: what is decided by Python's values is followed; on tensors they run as in eager, between two graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..calling import calls, named_handlers
from ..values.base import Value, unsupported
from ..values.constants import ConstantValue
from ..values.tensors import TensorValue

if TYPE_CHECKING:
    from ..tracer import Tracer


@calls(torch.cond)
def _cond(tracer: Tracer, pred: Value, true_fn: Value, false_fn: Value, operands: Value | None = None) -> Value:
    if isinstance(pred, ConstantValue) and pred.python_type(tracer) in (bool, int, float):
        branch = true_fn if tracer.truth(pred) else false_fn
        return tracer.call(branch, [] if operands is None else list(tracer.iterate(operands)), {})
    what = "the data of a tensor" if isinstance(pred, TensorValue) else pred.describe(tracer)
    raise unsupported(
        "data-dependent-jump",
        f"torch.cond on {what}, which runs as in eager",
        "use torch.where if both branches are cheap, or decide outside of the compiled function",
    )


def _runs_alone(module: str, name: str) -> None:
    def handler(tracer: Tracer, *args: Value, **kwargs: Any) -> Value:
        raise unsupported(
            "data-dependent-jump" if name == "while_loop" else "function-transform",
            f"{module}.{name}, which runs as in eager",
            "write the loop in Python if its number of turns is known",
        )

    named_handlers.register((module, name))(handler)


for _name in ("while_loop", "scan", "map", "associative_scan"):
    _runs_alone(f"torch._higher_order_ops.{_name}", _name)
