"""What sees torch functions: objects with `__torch_function__`, and modes (`torch.overrides.TorchFunctionMode`).

Capture follows torch's own TransformGetItemToIndex, known by name: code that makes attention masks with vmap enters it
so that tensors stay tensors when they are indices. Programs' own modes end the graph.
"""

from __future__ import annotations

import torch
from torch.utils import _pytree as pytree

from stator.dynamo.host.naming import class_name, module_of, qualified_name
from stator.dynamo.host.torch_overrides import DISABLED
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.ir.reconstruct_ir import Effect, call_effect
from stator.dynamo.values.base import CaptureContext, NotConstant, Raised, Reconstructor, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import ListValue
from stator.dynamo.values.objects import MISSING
from stator.dynamo.values.symbolic_numbers import SymbolicNumber
from stator.dynamo.values.tensors.arrays import ArrayValue
from stator.dynamo.values.tensors.tensor import TensorValue, item_readers
from stator.dynamo.values.tensors.tensor_subclasses import TensorSubclassValue, override_of
from stator.graph.subgraphs.function_transforms import Leaf

from .trees import Opaque, tree_of

_INDEXING = ("torch._dynamo._trace_wrapped_higher_order_op", "TransformGetItemToIndex")


@calls(torch._C._push_on_torch_function_stack)
def _push(context: CaptureContext, mode: Value) -> None:
    """The captured code runs under the mode from here on. The emitted code enters a mode that is still entered at the
    end of the graph."""
    cls = mode.python_type(context)
    if (module_of(cls), qualified_name(cls)) != _INDEXING:
        raise unsupported("call-builtin", f"entering {class_name(cls)}, a mode that sees torch functions")
    context.recorder.function_modes.append(mode)


@calls(torch._C._pop_torch_function_stack)
def _pop(context: CaptureContext) -> Value:
    if not context.recorder.function_modes:
        raise unsupported("call-builtin", "leaving a mode that sees torch functions, entered before the graph")
    return context.recorder.function_modes.pop()


@calls(torch._C._len_torch_function_stack)
def _depth(context: CaptureContext) -> Value:
    followed = len(context.recorder.function_modes) + len(context.devices)
    return ConstantValue(torch._C._len_torch_function_stack() + followed)


@calls(torch._C._is_torch_function_mode_enabled)
def _any_mode(context: CaptureContext) -> Value:
    followed = bool(context.recorder.function_modes or context.devices) and torch._C._is_torch_function_enabled()
    return ConstantValue(torch._C._is_torch_function_mode_enabled() or followed)


@calls(torch._C._has_torch_function_unary, torch._C._has_torch_function_variadic)
def _has_override(context: CaptureContext, *values: Value) -> Value:
    """Whether one of the objects overrides torch functions. Modes do not count: a mode's handler leaves the mode before
    it calls torch's functions, which ask this."""
    enabled = torch._C._is_torch_function_enabled()
    return ConstantValue(enabled and any(_overrides(context, value) for value in values))


@calls(torch.overrides.has_torch_function)
def _has_override_among(context: CaptureContext, values: Value) -> Value:
    return _has_override(context, *context.iterate(values))


def _overrides(context: CaptureContext, value: Value) -> bool:
    kind = value.python_type(context)
    if kind is torch.Tensor or kind in _BASIC:
        return False
    if isinstance(value, TensorValue | ArrayValue | TensorSubclassValue):
        return override_of(context, value) is not MISSING
    try:
        return context.get_attr(value, "__torch_function__").real() is not DISABLED
    except Raised:  # of any class, as in torch
        return False
    except NotConstant:
        return True


# types that torch never asks for an override
_BASIC = frozenset(
    (bool, bytes, complex, dict, float, frozenset, int, list, set, str, tuple, type(None), type(Ellipsis))
)


def entered(reconstructor: Reconstructor) -> list[Effect]:
    """The effects that enter the modes that the captured code leaves entered."""
    modes = reconstructor.context.recorder.function_modes
    if modes and reconstructor.context.devices:
        raise unsupported(
            "call-builtin", f"{_INDEXING[1]} beside a block of torch.device, in an order that is not kept"
        )
    return [call_effect(torch._C._push_on_torch_function_stack, reconstructor.recipe(mode)) for mode in modes]


def _read_item(context: CaptureContext, tensor: TensorValue, key: Value) -> Value | None:
    """`tensor[key]` under the mode: an index operator if the key consists of tensors and ints."""
    if not context.recorder.function_modes or not torch._C._is_torch_function_enabled():
        return None
    found: list[TensorValue] = []
    leaves = pytree.tree_leaves(tree_of(context, key, found))
    if any(isinstance(leaf, Opaque) and isinstance(leaf.value, SymbolicNumber) for leaf in leaves):
        raise unsupported("call-builtin", f"an index that is a changing number under {_INDEXING[1]}")
    if not all(isinstance(leaf, (Leaf, int)) for leaf in leaves):
        return None
    named: dict[str, Value] = {"dtype": ConstantValue(torch.int64), "device": ConstantValue(tensor.fake.device)}
    indices: list[Value] = [
        found[leaf.index]
        if isinstance(leaf, Leaf)
        else context.record_function(torch.tensor, [ConstantValue(int(leaf))], named)
        for leaf in leaves
    ]
    return context.record_function(torch.ops.aten.index.Tensor, [tensor, ListValue(indices)], {})


item_readers.append(_read_item)
