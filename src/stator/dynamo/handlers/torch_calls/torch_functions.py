"""Calls of torch functions: graph nodes, facts about state, and functions known by name."""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from stator.dynamo.cache.dynamic_sources import memory_offset
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource, ConstantSource, ReadSource
from stator.dynamo.host.torch_overrides import TORCH_BUILTINS
from stator.dynamo.interpreter.calling import (
    calls,
    fold,
    handlers,
    leaves,
    named_handlers,
    run_folded,
    tensor_methods,
    torch_answer,
)
from stator.dynamo.ir.torch_state import TorchState
from stator.dynamo.values.base import CaptureContext, Lazy, Value, unsupported
from stator.dynamo.values.constants import ConstantValue, SourcedConstant
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.containers.sequences import SequenceValue, TupleValue
from stator.dynamo.values.modules import ModuleValue
from stator.dynamo.values.objects import ObjectValue
from stator.dynamo.values.symbolic_numbers import SymbolicNumber
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.dynamo.values.tensors.tensor_subclasses import TensorSubclassValue
from stator.graph.fake.wrapper_subclasses import storages_of
from stator.graph.ir.size_bindings import is_symbolic
from stator.prims.layout import always_true, broadcast_shapes
from stator.shapes.sym_node import to_expression

from .device_contexts import on_device

# Functions that make tensors from numbers.
FACTORIES = frozenset(
    {
        "zeros",
        "ones",
        "empty",
        "full",
        "arange",
        "range",
        "rand",
        "randn",
        "randint",
        "randperm",
        "eye",
        "linspace",
        "logspace",
        "tensor",
        "as_tensor",
        "asarray",
        "scalar_tensor",
        "tril_indices",
        "triu_indices",
        "hann_window",
        "hamming_window",
        "bartlett_window",
        "blackman_window",
        "kaiser_window",
        "empty_strided",
        "empty_permuted",
        "normal",
        "complex",
        "polar",
        "fft_fftfreq",
        "fft_rfftfreq",
    }
)
# Arithmetic that returns a tensor even for two numbers.
_ARITHMETIC = frozenset({"add", "sub", "mul", "div", "divide", "floor_divide", "true_divide"})
_NOT_LEAVES = frozenset({"has_torch_function", "handle_torch_function", "boolean_dispatch", "assert_int_or_pair"})


def _python_functions(namespace: Any, modules: tuple[str, ...]) -> set[Any]:
    return {
        function
        for name, function in vars(namespace).items()
        if type(function) is types.FunctionType
        and function.__module__ in modules
        and not name.startswith("_")
        and name not in _NOT_LEAVES
    }


leaves |= _python_functions(F, ("torch.nn.functional", "torch._jit_internal"))
leaves |= _python_functions(torch.functional, ("torch.functional",))
leaves |= {function for function in vars(torch.Tensor).values() if type(function) is types.FunctionType}
# these call a function of the program, or modules, or take an object with options
leaves -= {torch.functional.broadcast_shapes, F.triplet_margin_with_distance_loss}
leaves.discard(getattr(F, "linear_cross_entropy", None))  # torch 2.11 has none

fold(
    torch.promote_types,
    torch.can_cast,
    torch.result_type,
    torch.get_default_dtype,
    torch.device,
    torch.finfo,
    torch.iinfo,
    torch.accelerator.current_accelerator,
    torch.cuda.is_available,
    torch.cuda.device_count,
    torch.xpu.is_available,
    torch.backends.mps.is_available,
    torch.distributed.is_available,
    torch.is_autocast_enabled,
    torch.is_autocast_cpu_enabled,
    torch.is_autocast_cache_enabled,
    torch.are_deterministic_algorithms_enabled,
    torch._C._get_deterministic_algorithms,
    torch.is_inference_mode_enabled,
    torch.get_num_threads,
    torch._C._get_privateuse1_backend_name,
    torch.amp.is_autocast_available,
    torch._C._len_torch_dispatch_stack,
)


def holds_tensor(value: Value) -> bool:
    if type(value) is Lazy:
        return _is_or_holds_tensor(value.obj) if value.value is None else holds_tensor(value.value)
    if isinstance(value, TensorValue):
        return True
    if isinstance(value, SequenceValue):
        return any(holds_tensor(item) for item in value.items)
    if isinstance(value, DictValue) and value.whole:
        return any(holds_tensor(item) for item in value.entries.values())
    return False


def _is_or_holds_tensor(obj: Any) -> bool:
    """`holds_tensor` for a real object."""
    return isinstance(obj, torch.Tensor) or (type(obj) in (list, tuple) and any(map(_is_or_holds_tensor, obj)))


def _answer(context: CaptureContext, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """Record a call of an operator or of a torch function written in C as one node."""
    if isinstance(fn, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        if _has_other_effects(fn):
            raise unsupported(
                "torch-result",
                f"{fn}, an operator that gives no tensor and changes none",
                "call it outside of the compiled function, or let it return a tensor",
            )
        return context.record_function(fn, args, kwargs)
    if not isinstance(fn, types.BuiltinFunctionType) or fn not in TORCH_BUILTINS:
        return None
    kwargs = on_device(context, fn, kwargs)
    if fn.__name__ in _OF_LENGTHS:
        _note_lengths(context, args)
    if fn.__name__ in FACTORIES or any(map(holds_tensor, args)) or any(map(holds_tensor, kwargs.values())):
        return context.record_function(fn, args, kwargs)
    if fn.__name__ in _ARITHMETIC and len(args) == 2 and all(_is_number(context, arg) for arg in args):
        kind = args[0].python_type(context)
        dtype = torch.get_default_dtype() if kind is float else {int: torch.int64, bool: torch.bool}[kind]
        first = context.record_function(torch.scalar_tensor, args[:1], {"dtype": ConstantValue(dtype)})
        return context.record_function(fn, [first, args[1]], kwargs)
    return None


_OF_LENGTHS = frozenset({"arange", "empty", "ones", "rand", "randn", "zeros"})  # all their ints are sizes


def _note_lengths(context: CaptureContext, args: Sequence[Value]) -> None:
    """Note the ints of the program that are sizes of a new tensor."""
    for arg in args:
        if type(arg) is SourcedConstant and type(arg.peek()) is int and arg.peek() > 1:
            context.recorder.numbers.inputs.lengths.add(arg.source)
        elif isinstance(arg, SequenceValue):
            _note_lengths(context, arg.items)


@functools.lru_cache(maxsize=1024)
def _has_other_effects(fn: Any) -> bool:
    """Whether an operator of a library neither returns a tensor nor changes one, so that programs call it for another
    effect. A graph would drop it as dead."""
    overloads = [getattr(fn, name) for name in fn.overloads()] if isinstance(fn, torch._ops.OpOverloadPacket) else [fn]
    return any(
        overload.namespace not in _KNOWN
        and not overload._schema.is_mutable
        and not any("Tensor" in str(result.type) for result in overload._schema.returns)
        for overload in overloads
    )


_KNOWN = ("aten", "prim", "prims", "profiler", "stator", "stator_parts")  # namespaces of torch and stator


def _is_number(context: CaptureContext, value: Value) -> bool:
    return isinstance(value, (ConstantValue, SymbolicNumber)) and value.python_type(context) in (int, float, bool)


def _scripted(context: CaptureContext, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """Call the Python function that a TorchScript function was made from; torch keeps it beside the compiled one."""
    original = getattr(fn, "_torchdynamo_inline", None) if type(fn) is torch.jit.ScriptFunction else None
    return None if original is None else context.call(context.known(original), args, kwargs)


torch_answer.extend((_answer, _scripted))


# ---- queries of the surroundings ----


def _never(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
    return ConstantValue(False)


def _nothing(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
    return ConstantValue(None)


calls(
    torch.compiler.is_exporting,
    torch.jit.is_scripting,
    torch.jit.is_tracing,
    torch._C._is_tracing,
    torch.cuda.is_current_stream_capturing,
    torch.xpu.is_current_stream_capturing,
    torch.fx._symbolic_trace.is_fx_tracing,
)(_never)
named_handlers.register(("torch.onnx", "is_in_onnx_export"))(_never)  # not imported here: 25 modules
calls(torch._C._log_api_usage_once, torch._C._get_tracing_state)(_nothing)
named_handlers.register(  # by name, because stator never imports torch's own compiler
    # Module.__init__ calls it once torch.compile was used
    ("torch._dynamo.mutation_guard", "GenerationTracker.tag"),
    # advice on sizes and addresses, without an effect on results
    ("torch._dynamo.decorators", "mark_dynamic"),
    ("torch._dynamo.decorators", "maybe_mark_dynamic"),
    ("torch._dynamo.decorators", "mark_static_address"),
    ("torch._dynamo.decorators", "mark_unbacked"),
    *(("stator.control", name) for name in ("mark_dynamic", "maybe_mark_dynamic", "mark_unbacked")),
    ("torch._dynamo.decorators", "override_optimization_hint"),
    # stator records no CUDA graphs, which would overwrite results of an earlier step
    ("torch.compiler", "cudagraph_mark_step_begin"),
)(_nothing)


@named_handlers.register(("torch._dynamo.decorators", "mark_static"), ("stator.control", "mark_static"))
def _mark_static(context: CaptureContext, t: Value, dim: Value | None = None) -> None:
    """Rely on sizes of a tensor in captured code."""
    if isinstance(t, TensorValue):
        given = None if dim is None else context.constant_of(dim, "a dimension")
        dims = range(t.fake.dim()) if given is None else (given,) if isinstance(given, int) else given
        for at in dims:
            size: Any = context.run_real(operator.getitem, (tuple(t.fake.shape), at))
            if type(size) is not int and size.node.has_hint():
                int(size)  # records a fact


# ---- facts ----


def _read_in_each_call(function: Callable[[], bool]) -> None:
    """A detail of the setting for deterministic algorithms, which no version has a guard on unless the program reads
    it. (All have a guard on the setting itself.)"""
    calls(function)(lambda context: context.wrap(function(), ReadSource(function)))


_read_in_each_call(torch._C._get_deterministic_algorithms_warn_only)
_read_in_each_call(torch._C._get_deterministic_fill_uninitialized_memory)


def _resolving(name: str, is_lazy: Callable[[torch.Tensor], bool]) -> None:
    """A tensor that is not lazily conjugated or negated is its own result."""

    def handler(context: CaptureContext, tensor: TensorValue) -> Value:
        if not is_lazy(tensor.fake):
            return tensor
        return context.recorder.record("call_method", name, torch.Tensor.clone, [tensor], {})

    tensor_methods.register(name)(handler)
    calls(getattr(torch, name))(handler)


_resolving("resolve_conj", torch.is_conj)
_resolving("resolve_neg", torch.is_neg)


@calls(F.scaled_dot_product_attention)
def _attention(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
    """A causal mask hides nothing of a single key. So `is_causal=rows > 1` is True for any number of rows that
    is the number of keys, too."""
    causal, key = kwargs.get("is_causal"), args[1] if len(args) > 1 else kwargs.get("key")
    if type(causal) is SymbolicNumber and causal.kind is bool and isinstance(key, TensorValue):
        shape = key.fake.shape
        if len(shape) > 1 and always_true(causal.number | (shape[-2] <= 1)):
            kwargs["is_causal"] = ConstantValue(True)
    return context.record_function(F.scaled_dot_product_attention, list(args), kwargs)


@calls(torch.functional.broadcast_shapes)
def _broadcast_shapes(context: CaptureContext, *shapes: Value) -> Value:
    sizes: list[Any] = [_sizes(context, shape) for shape in shapes]
    if not is_symbolic(sizes) or None in sizes:
        return run_folded(context, torch.functional.broadcast_shapes, list(shapes), {})
    try:
        shape = functools.reduce(broadcast_shapes, sizes)
    except RuntimeError:  # the program's, which torch's function words
        return run_folded(context, torch.functional.broadcast_shapes, list(shapes), {})
    return TupleValue([context.recorder.numbers.value(to_expression(size)) for size in shape], cls=torch.Size)


def _sizes(context: CaptureContext, shape: Value) -> tuple[Any, ...] | None:
    """The ints and symbols in a shape, or in a single size; None if there is anything else."""
    items = list(context.iterate(shape)) if isinstance(shape, SequenceValue) else [shape]
    numbers = [context.recorder.numbers.size_of(item) for item in items]
    return tuple(numbers) if all(type(number) in (int, torch.SymInt) for number in numbers) else None


@tensor_methods.register("size")
def _size_of(context: CaptureContext, owner: TensorValue, *args: Value, **kwargs: Value) -> Value:
    if not owner.fake.is_nested:
        return context.record_method("size", [owner, *args], kwargs)
    shape = owner.get_attr(context, "shape")
    dims = [*args, *kwargs.values()]
    return shape.get_item(context, dims[0]) if dims else shape


@tensor_methods.register("new")
def _new(context: CaptureContext, tensor: Value, *args: Value, **kwargs: Value) -> Value:
    """A torch.Size argument means a shape, but a tuple, which a graph would contain, means elements."""
    if len(args) == 1 and isinstance(args[0], TupleValue) and args[0].cls is torch.Size:
        args = tuple(context.iterate(args[0]))
        if not args:
            raise unsupported("torch-argument", "Tensor.new() of an empty torch.Size", "use new_empty")
    return context.record_method("new", [tensor, *args], kwargs)


@tensor_methods.register("storage_offset")
def _storage_offset(context: CaptureContext, tensor: TensorValue) -> Value:
    """Known for memory that the captured code made. An input's is a number of the input, and a view of one input counts
    from there, unless captured code gave the input another layout."""
    memory, given = storages_of(tensor.fake), context.recorder.by_fake.values()
    inputs = [one for one in given if one.obj is not None and not set(memory).isdisjoint(storages_of(one.fake))]
    offset = tensor.fake.storage_offset()
    if not inputs:
        return context.wrap_result(offset, "the result of Tensor.storage_offset")
    first = tensor if tensor.obj is not None else inputs[0]
    at_entry = first.obj.storage_offset()  # type: ignore[union-attr]
    moved = first.node_before is not None or first.fake.storage_offset() != at_entry
    if moved or (first is not tensor and len(inputs) > 1):
        raise unsupported("tensor-method", f"Tensor.storage_offset() on {tensor.describe(context)}")
    own = context.wrap(at_entry, CallSource(memory_offset, (first.source,)))  # type: ignore[arg-type]
    if isinstance(own, SourcedConstant):  # the offset of the entry, even if captured code moves the tensor later
        own = ConstantValue(own.value)
    if first is tensor:
        return own
    beyond = context.wrap_result(offset - at_entry, "an offset in a tensor")
    return context.call(context.known(operator.add), [own, beyond], {})


# ---- global state ----


@calls(torch.is_grad_enabled)
def _is_grad_enabled(context: CaptureContext) -> Value:
    if context.later is not None:
        context.later.asks_grad_mode = True
    return ConstantValue(torch.is_grad_enabled())


def set_state(context: CaptureContext, function: Any, *args: Value) -> Value:
    """Set a mode for the rest of the capture; the capture restores the entry's modes at its end."""
    real = tuple(context.constant_of(arg, f"argument of {function.__name__}") for arg in args)
    before = TorchState.now()
    context.run_real(function, real)
    if TorchState.now() != before:
        context.recorder.state_call(function, real)
    return ConstantValue(None)


def _changes_state(function: Any, read: Any = None) -> None:
    def handler(context: CaptureContext, *args: Value) -> Value:
        context.recorder.backend_flags_set.add(read)
        return set_state(context, function, *args)

    calls(function)(handler)


for _setter in (
    torch._C._set_grad_enabled,
    torch.set_autocast_enabled,
    torch.set_autocast_cache_enabled,
):
    _changes_state(_setter)
_changes_state(torch.set_autocast_dtype, torch.get_autocast_dtype)


@calls(torch.get_autocast_dtype)
def _autocast_dtype(context: CaptureContext, device_type: Value) -> Value:
    """All versions have a guard on the dtype of each device under autocast. A guard holds any other dtype, unless the
    captured code chose it."""
    name = context.constant_of(device_type, "the type of a device")
    found = context.run_real(torch.get_autocast_dtype, (name,))
    if torch.get_autocast_dtype not in context.recorder.backend_flags_set and not torch.is_autocast_enabled(name):
        source = CallSource(torch.get_autocast_dtype, (ConstantSource(repr(name), name),))
        context.guard(source, GuardKind.EQUALS, found)
    return ConstantValue(found)


_hooks: Any = torch._C._autograd
_HOOKS_DISABLED = _hooks._saved_tensors_hooks_get_disabled_error_message


@calls(_HOOKS_DISABLED)
def _hooks_disabled(context: CaptureContext) -> Value:
    found = _HOOKS_DISABLED()
    if _HOOKS_DISABLED not in context.recorder.backend_flags_set:
        context.guard(CallSource(_HOOKS_DISABLED), GuardKind.EQUALS, found)
    return ConstantValue(found)


@calls(_hooks._saved_tensors_hooks_disable, _hooks._saved_tensors_hooks_enable)
def _disable_hooks(context: CaptureContext, message: Value | None = None) -> None:
    """No operator depends on it, so that the graph has no node for it."""
    context.recorder.backend_flags_set.add(_HOOKS_DISABLED)
    if message is None:
        context.run_real(_hooks._saved_tensors_hooks_enable, ())
    else:
        context.run_real(_hooks._saved_tensors_hooks_disable, (context.constant_of(message, "a message"),))


def _deprecated_query(function: Any, current: Any, device: str) -> None:
    def handler(context: CaptureContext) -> Value:
        context.run_real(function, ())  # warns once, as eager does by default
        return context.call(context.known(current), [ConstantValue(device)], {})

    calls(function)(handler)


for _device, _suffix in (("cuda", "gpu"), *((name, name) for name in ("cpu", "ipu", "xla"))):
    _deprecated_query(getattr(torch, f"get_autocast_{_suffix}_dtype"), torch.get_autocast_dtype, _device)
for _device in ("ipu", "xla"):
    _deprecated_query(getattr(torch, f"is_autocast_{_device}_enabled"), torch.is_autocast_enabled, _device)


def _autocast_nesting(change: Callable[[], int]) -> None:
    """The nesting only decides when autocast clears its cache of casts. Zero clears it at the end of each region, so
    that it holds no weights of an earlier step, even if the graph itself runs under autocast. The code before or behind
    a break may enter or leave the region natively, so that what is captured changes the real nesting, too."""

    def handler(context: CaptureContext) -> Value:
        context.run_real(change, ())
        return ConstantValue(0)

    calls(change)(handler)


_autocast_nesting(torch.autocast_increment_nesting)
_autocast_nesting(torch.autocast_decrement_nesting)


@calls(torch.clear_autocast_cache)
def _clear_autocast_cache(context: CaptureContext) -> None:
    context.recorder.state_call(torch.clear_autocast_cache, ())


# ---- modules ----


@calls(nn.Module.__call__)
def _module_call(context: CaptureContext, module: Value, *args: Value, **kwargs: Value) -> Value:
    if not isinstance(module, ModuleValue):
        raise unsupported("call", f"nn.Module.__call__ of {module.describe(context)}")
    return module.call_module(context, list(args), kwargs)


@calls(nn.Module.__getattr__)
def _module_getattr(context: CaptureContext, module: Value, name: Value) -> Value:
    if not isinstance(module, ModuleValue):
        raise unsupported("attribute", f"nn.Module.__getattr__ of {module.describe(context)}")
    return module.module_getattr(context, context.constant_of(name, "an attribute's name"))


@calls(nn.Module.__setattr__)
def _module_setattr(context: CaptureContext, module: Value, name: Value, value: Value) -> None:
    attribute = context.constant_of(name, "an attribute's name")
    if isinstance(module, ModuleValue):
        module.module_setattr(context, attribute, value)
    elif isinstance(module, ObjectValue):
        module.generic_set_attr(context, attribute, value)


@calls(torch._C._nn._parse_to)
def _parse_to(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
    """The parsed arguments of `Module.to`, which uses only dtype and device of a tensor."""

    def plain(value: Value) -> Any:
        if isinstance(value, TensorValue):
            return torch.empty(0, dtype=value.fake.dtype, device=value.fake.device)
        return context.constant_of(value, "an argument of Module.to")

    named = {name: plain(value) for name, value in kwargs.items()}
    return context.wrap_result(context.run_real(torch._C._nn._parse_to, tuple(map(plain, args)), named), "Module.to")


handlers.add_all(
    {
        torch.is_tensor: lambda context, value: ConstantValue(isinstance(value, (TensorValue, TensorSubclassValue))),
        torch.Size: lambda context, items=None: TupleValue(
            list(context.iterate(items)) if items is not None else [], cls=torch.Size
        ),
    }
)
