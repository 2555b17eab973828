"""Result layouts of operators without a shape rule, from meta kernels and `torch.library.register_fake`.

`fake_mode.py` holds everything else about operators on fake tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._library import fake_impl
from torch._library.simple_registry import singleton as registrations
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from stator.base import counters
from stator.base.errors import StatorError, Unsupported
from stator.base.signals import raised_by_signal_handler
from stator.graph.ir.schema import SchemaFacts, argument, op_info
from stator.prims.devices import as_device
from stator.prims.layout import holds
from stator.prims.record import TensorMeta

from .fake_tensor import FakeTensor, FakeTensorMode, flat_tensors, tensor_position
from .writes import check_size

aten = torch.ops.aten
META = torch.device("meta")
# The default minimum of the deprecated `create_unbacked_symint`; it is no promise of the operator's author.
_DEFAULT_MIN = 2

_empty_strided = torch._C._VariableFunctions.empty_strided


class FakeImplContext:
    """The result of `torch.library.get_ctx()` inside of a registered fake implementation."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> Any:
        """Return a data-dependent size between `min` and `max`, which the graph checks when it runs. Raises
        DataDependent where graphs cannot have such sizes."""
        size = self._mode.unknown_size()
        if not holds(size >= min) or (max is not None and not holds(size <= max)):
            raise ValueError(f"no size is at least {min} and at most {max}")
        return size

    def create_unbacked_symint(self, *, min: int = _DEFAULT_MIN, max: int | None = None) -> Any:
        return self.new_dynamic_size(min=0 if min == _DEFAULT_MIN else min, max=max)


class _WithoutData(TorchDispatchMode):
    """Makes new tensors of a registered fake implementation on the meta device, where sizes may be symbols."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if op_info(func).makes_device and (given.get("device") is not None or not flat_tensors(args, torch.Tensor)):
            given = {**given, "device": META}
        return func(*args, **given)


def infer_by_meta_kernel(
    mode: FakeTensorMode, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device
) -> Any:
    """Return the operator's results with TensorMetas in place of tensors. Raises Unsupported if no implementation gives
    them."""
    counters.count(f"meta_fallback:{info.target}")
    memo: dict[int, torch.Tensor] = {}
    meta_args = [_to_meta(value, memo) for value in args]
    meta_kwargs = {name: _to_meta(value, memo) for name, value in kwargs.items()}
    if info.makes_device:
        meta_kwargs["device"] = META
    try:
        registered = _registered(info.target)
        if registered is None:
            result = info.target(*meta_args, **meta_kwargs)
        else:
            with fake_impl.set_ctx_getter(lambda: FakeImplContext(mode)), _WithoutData():
                result = registered(*meta_args, **meta_kwargs)
    except NotImplementedError as error:
        if not info.returns:  # only writes to arguments, which keep their shapes
            return None
        raise Unsupported(
            "operator-without-shape-rule",
            f"{info.target} has neither a shape rule nor a meta kernel",
            hint="register one with torch.library.register_fake",
        ) from error
    except StatorError:
        raise
    except Exception as error:
        if registered is not None or not _runs_its_implementation(info.target) or raised_by_signal_handler(error):
            raise
        raise Unsupported(
            "operator-without-shape-rule",
            f"{info.target} has no shape rule, and its implementation fails on tensors without data: "
            f"{type(error).__name__}: {error}",
            hint=f"register a rule by stator.prims.shape_rule({str(info.target)!r}), unless it fails in eager, too",
        ) from error
    for fake in flat_tensors([argument(info, args, kwargs, where) for where in info.mutates]):
        check_size(info, fake, memo[id(fake)])
    _refuse_what_its_kernel_differentiates(info, args, kwargs, result)
    if isinstance(result, (tuple, list)):
        return type(result)(_from_meta(item, info, position, args, device) for position, item in enumerate(result))
    return _from_meta(result, info, 0, args, device)


def _refuse_what_its_kernel_differentiates(info: SchemaFacts, args: Any, kwargs: dict[str, Any], result: Any) -> None:
    """Refuse operators without a registered gradient in grad mode: eager differentiates through the operators inside of
    the kernel, which only running it reveals. (A registered autograd kernel runs the operator without grad mode.)"""
    if info.target.namespace in ("aten", "prims") or not torch.is_grad_enabled():
        return
    if not any(fake.requires_grad for fake in flat_tensors((args, tuple(kwargs.values())))):
        return
    if any(made.is_floating_point() or made.is_complex() for made in flat_tensors(result, torch.Tensor)):
        raise Unsupported("operator-without-gradient", f"{info.target} has no gradient that is known before it runs")


def _registered(func: OpOverload) -> Callable[..., Any] | None:
    """Return the fake implementation of a user's operator, or None."""
    if func.namespace == "aten":
        return None
    kernel: Callable[..., Any] | None = registrations.find(func.name().split(".")[0]).fake_impl.kernel
    return kernel


def _runs_its_implementation(func: OpOverload) -> bool:
    """Whether a meta tensor would run the only implementation of a custom operator."""
    return func.namespace not in ("aten", "prims") and torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), "CompositeExplicitAutograd"
    )


def _to_meta(value: Any, memo: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, FakeTensor):
        stand_in = memo.get(id(value))
        if stand_in is None:
            meta = value.meta
            stand_in = memo[id(value)] = _empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=META)
        return stand_in
    if isinstance(value, (tuple, list)):
        return type(value)(_to_meta(item, memo) for item in value)
    return META if isinstance(value, torch.device) else value


def _from_meta(result: Any, info: SchemaFacts, position: int, args: tuple[Any, ...], device: torch.device) -> Any:
    if isinstance(result, (tuple, list)):  # a list of tensors beside other results
        return type(result)([_from_meta(item, info, position, args, device) for item in result])
    if not isinstance(result, torch.Tensor):
        return result
    if result.layout is not torch.strided:
        raise Unsupported("tensor-layout", f"{info.target} makes a tensor of layout {result.layout}")
    view_of: int | None = None
    offset: Any = 0
    source = info.returns[min(position, len(info.returns) - 1)]
    if isinstance(source, int) and isinstance(args[source], FakeTensor):
        view_of = tensor_position(args, source)
        offset = result.storage_offset()
        if info.target is not aten.as_strided.default:  # meta tensors start at offset 0
            offset = offset + args[source].meta.offset
    return TensorMeta(tuple(result.shape), result.stride(), result.dtype, device, offset, view_of)


def result_device(args: Sequence[Any], kwargs: dict[str, Any], tensors: Sequence[FakeTensor]) -> torch.device:
    """Return the explicit device, or else the device of the first tensor that is not a CPU scalar."""
    explicit = kwargs.get("device")
    if explicit is not None:
        return as_device(explicit)
    found = None
    for tensor in tensors:
        device = tensor.meta.device
        if found is None or (found.type == "cpu" and device.type != "cpu"):
            found = device
    return found if found is not None else as_device(torch.get_default_device())
