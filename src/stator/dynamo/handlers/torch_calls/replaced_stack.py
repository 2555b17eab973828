"""Functions of torch's own compiler that programs call. They are known by name, because stator never imports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stator.dynamo.interpreter.calling import named_handlers
from stator.dynamo.values.base import Value
from stator.dynamo.values.constants import ConstantValue

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext


@named_handlers.register(
    # Module.__init__ calls it once torch.compile was used
    ("torch._dynamo.mutation_guard", "GenerationTracker.tag"),
    # advice on sizes and addresses, without an effect on results
    ("torch._dynamo.decorators", "mark_dynamic"),
    ("torch._dynamo.decorators", "maybe_mark_dynamic"),
    ("torch._dynamo.decorators", "mark_static"),
    ("torch._dynamo.decorators", "mark_static_address"),
    ("torch._dynamo.decorators", "mark_unbacked"),
    ("torch._dynamo.decorators", "override_optimization_hint"),
    # stator records no CUDA graphs, which would overwrite results of an earlier step
    ("torch.compiler", "cudagraph_mark_step_begin"),
)
def _advice(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
    return ConstantValue(None)
