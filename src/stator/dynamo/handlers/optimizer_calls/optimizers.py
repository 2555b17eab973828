"""Calls of torch.optim around its arithmetic: profiler labels, requests for breaks, fused updates, gradient scaling.

Capture inlines the arithmetic itself like any other Python.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.autograd.profiler import record_function
from torch.optim import LBFGS, Optimizer
from torch.optim.optimizer import _default_to_fused_or_foreach

from stator.dynamo.graph.number_reads import may_be_read, read_number
from stator.dynamo.handlers.polyfills.torch_optim import module_zero_grad, optimizer_zero_grad
from stator.dynamo.handlers.python_calls.breaking_calls import break_requested
from stator.dynamo.host.hook import always_compile
from stator.dynamo.interpreter.calling import calls, named_handlers, tensor_methods
from stator.dynamo.interpreter.library_overrides import LibraryOverride, Operands
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.objects import ObjectValue
from stator.dynamo.values.optimizer_code import in_optimizers
from stator.dynamo.values.symbolic_numbers import is_open
from stator.dynamo.values.tensors.tensor import TensorValue, truths
from stator.graph.fake.wrapper_subclasses import is_wrapper

from .optimizer_numbers import counts_as_numbers

# The wrapper of every `step`; so steps that torch's own code calls (GradScaler does) are compiled.
always_compile(Optimizer.profile_hook_step(lambda: None).__code__)
# LBFGS.step decides by data and runs eagerly; these parts of it compute on all parameters at once.
for _part in ("_gather_flat_grad", "_add_grad", "_clone_param", "_set_param"):
    if hasattr(LBFGS, _part):
        always_compile(getattr(LBFGS, _part).__code__)


@calls(record_function.__enter__)
def _enter_label(context: CaptureContext, label: Value) -> Value:
    """Compiled code has no profiler labels. If the graph breaks inside of the block, the block's end must not end a
    label that never began."""
    label.set_attr(context, "run_callbacks_on_exit", ConstantValue(False))
    return label


@calls(record_function.__exit__)
def _exit_label(context: CaptureContext, label: Value, kind: Value, error: Value, traceback: Value) -> None:
    return None


@calls(Optimizer.zero_grad)
def _zero_grad(context: CaptureContext, optimizer: Value, *args: Value, **kwargs: Value) -> Value:
    """torch disables the method for its own compiler; capture follows the function behind the wrapper."""
    if _drops_gradients(context, args, kwargs):
        return context.call(context.known(optimizer_zero_grad), [optimizer], {})
    return context.call(context.known(Optimizer.zero_grad.__wrapped__), [optimizer, *args], kwargs)  # type: ignore[attr-defined]


@calls(torch.nn.Module.zero_grad)
def _zero_grad_of_module(context: CaptureContext, module: Value, *args: Value, **kwargs: Value) -> Value:
    if _drops_gradients(context, args, kwargs):
        return context.call(context.known(module_zero_grad), [module], {})
    original: Any = context.known(torch.nn.Module.zero_grad)
    return context.inline(original, [module, *args], kwargs)


def _drops_gradients(context: CaptureContext, args: tuple[Value, ...], kwargs: dict[str, Value]) -> bool:
    given = [*args, *kwargs.values()]
    return not given or (len(given) == 1 and {*kwargs} <= {"set_to_none"} and context.truth(given[0]))


@named_handlers.register(("torch._dynamo.decorators", "graph_break"))
def _graph_break(context: CaptureContext, msg: Value | None = None) -> Value:
    """Optimizers request a break so that torch's own compiler sees their grad mode, which stator captures."""
    if in_optimizers(context):
        return ConstantValue(None)
    raise break_requested(context, msg)


@calls(
    *{
        vars(Optimizer)[name]
        for name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")
        if name in vars(Optimizer)
    }
)
def _step_begins(context: CaptureContext, optimizer: Value) -> None:
    """Every step calls this first. Without the `capturable` option optimizers read step counts from tensors, so until
    the end of the step the option reads as true. Factors computed from counts in tensors then have double precision,
    like factors computed from Python numbers."""
    operands: Operands | None = counts_as_numbers
    instead: list[tuple[DictValue, Any, Value]] = []
    for group in context.iterate(context.get_attr(optimizer, "param_groups")):
        differentiable = group.find(context, "differentiable") if isinstance(group, DictValue) else None
        if differentiable is not None and context.truth(differentiable):
            operands = None  # eager computes on tensors, too
        if isinstance(group, DictValue) and group.find(context, "capturable") is not None:
            instead.append((group, "capturable", ConstantValue(True)))
    context.overlays.append(LibraryOverride(context.frames[-1], instead, operands))


# ---- gradient scaling ----


@calls(GradScaler.scale)
def _scale(context: CaptureContext, scaler: Value, outputs: Value) -> Value:
    """Make the scaler's state before capture reads it, so that one version, which finds the state, serves all calls."""
    first = outputs if isinstance(outputs, TensorValue) else None
    if first is not None and context.later is None and isinstance(scaler, ObjectValue) and scaler.obj is not None:
        real, looked_at = scaler.obj, scaler.attributes or {}
        if real._enabled and real._scale is None and not {"_scale", "_growth_tracker", "_init_scale"} & set(looked_at):
            real._lazy_init_scale_growth_tracker(first.fake.device)
    return context.inline(context.known(GradScaler.scale), [scaler, outputs], {})  # type: ignore[arg-type]


@calls(_default_to_fused_or_foreach)
def _default_form(
    context: CaptureContext, params: Value, differentiable: Value, *args: Value, **kwargs: Value
) -> Value:
    """By default choose the form with operators on lists, which is captured several times as fast and gives equal
    kernels. Not for Nesterov's momentum, where this form overwrites the gradients, and not for tensors that are made
    of other tensors, whose class may not know operators on lists."""
    original = context.known(_default_to_fused_or_foreach)
    fused, foreach = context.iterate(context.inline(original, [params, differentiable, *args], kwargs))  # type: ignore[arg-type]
    nesterov = context.frames[-1].locals.get("nesterov", ConstantValue(False))
    plain = all(isinstance(one, TensorValue) and not is_wrapper(one.fake) for one in context.iterate(params))
    if plain and not context.truth(fused) and not context.truth(differentiable) and not context.truth(nesterov):
        foreach = ConstantValue(True)
    return context.tuple_of([fused, foreach])


@tensor_methods.register("item")
def _item(context: CaptureContext, tensor: TensorValue) -> Value:
    """Optimizers may compute with floats read from tensors even where a graph cannot read other numbers."""
    known = context.recorder.known_number(tensor.fake)
    if known is not None:
        return ConstantValue(known)
    if tensor.fake.dtype is torch.bool and tensor.fake.numel() == 1:
        for find in truths:
            if (found := find(context, tensor, False)) is not None:
                return ConstantValue(found)
    whole_graph = in_optimizers(context) and tensor.fake.dtype.is_floating_point
    if not (whole_graph or may_be_read(context, tensor)) or tensor.fake.numel() != 1:
        many = type(tensor.fake.numel()) is int and tensor.fake.numel() != 1
        raise unsupported(
            "torch-error" if many else "data-dependent-value",
            f"Tensor.item() on {tensor.describe(context)}",
            "keep the value in a tensor, or call it outside of the compiled function",
        )
    return read_number(context.recorder, tensor)


# ---- fused updates ----


def _with_learning_rate_in_tensor(function: Any) -> None:
    """Fused updates take the learning rate as a constant or as a tensor."""

    def handler(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
        rate = kwargs.get("lr")
        if rate is not None and is_open(rate):
            kwargs["lr"] = context.record_function(torch.scalar_tensor, [rate], {"dtype": ConstantValue(torch.float64)})
        return context.record_function(function, list(args), kwargs)

    calls(function)(handler)


for _name in ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"):
    _with_learning_rate_in_tensor(getattr(torch, _name))
