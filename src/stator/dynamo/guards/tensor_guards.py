"""Guards on tensors and on torch's state: their payload for the C guard tree, and the text of their failures. They are
registered with guard_tree.py. Nothing here reads a tensor during a call; csrc/guard_tensors.c does."""

from __future__ import annotations

import copy
import ctypes
import dataclasses
import functools
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stator.dynamo.host.native_status import native as _native
from stator.dynamo.host.torch_overrides import plain_requires_grad, plain_tensor
from stator.graph.fake.wrapper_subclasses import is_value
from stator.prims.layout import is_dense
from stator.runtime import tensor_impl
from stator.shapes.environment import LARGEST_SIZE

from .global_state import install_probes, is_ordinary, read_global_state
from .guard import ExtentOf, FreeSize, GlobalState, Guard, GuardKind, TensorContent, TensorGuard
from .guard_tree import GuardTreeBuilder, ObjectName, brief, checkers, describers, register_plain_type

_TORCH_S = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)

_OF_TYPES = (torch.qscheme, torch.finfo, torch.iinfo)
for _type in (
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
    torch._C._SDPBackend,
    *_OF_TYPES,
):
    register_plain_type(_type)


def tensor_guard(tensor: torch.Tensor) -> TensorGuard:
    """A guard on all metadata of `tensor` as it is now."""
    kind = type(tensor)
    tensor = tensor if kind in _TORCH_S or _has_dispatch(kind) else plain_tensor(tensor)
    return TensorGuard(
        python_type=kind,
        dtype=tensor.dtype,
        device=tensor.device,
        shape=tuple(tensor.shape),
        stride=tensor.stride(),
        requires_grad=tensor.requires_grad,
        dispatch_keys=torch._C._dispatch_keys(tensor).raw_repr(),
    )


@functools.cache
def _install_layout() -> bool:
    layout = tensor_impl.calibrate()
    if layout is None or _native is None:
        return False
    _native.set_tensor_layout(layout.as_tuple(), plain_requires_grad)
    return True


@functools.cache
def _type_codes(dtype: torch.dtype, device: torch.device) -> tuple[int, int, int, int]:
    """(dtype code, device code, dispatch keys of an ordinary dense tensor, and of a tensor made in inference mode)."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch._C._InferenceMode(False):
        dtype_code, device_code, keyset = _native.tensor_codes(torch.empty(0, dtype=dtype, device=device))
        with torch.inference_mode():
            inference_keyset = _native.tensor_codes(torch.empty(0, dtype=dtype, device=device))[2]
    return dtype_code, device_code, keyset, inference_keyset


def _has_dispatch(cls: type) -> bool:
    """Whether tensors of this class may override their metadata, so that a guard calls their getters."""
    return getattr(cls, "__torch_dispatch__", None) is not torch.Tensor.__torch_dispatch__


def _codes(guard: TensorGuard) -> tuple[int, int, int, int] | None:
    if _has_dispatch(guard.python_type) or not _install_layout():
        return None
    dtype_code, device_code, keyset, inference_keyset = _type_codes(guard.dtype, guard.device)
    if guard.dispatch_keys is not None:
        keyset = inference_keyset = guard.dispatch_keys
    return dtype_code, device_code, keyset, inference_keyset


@checkers.register(GuardKind.TENSOR)
def _check_tensor(builder: GuardTreeBuilder, guard: Guard) -> None:
    expected: TensorGuard = guard.expected
    codes = _codes(expected)
    if codes is None:
        builder.check(guard, _native.CHECK_TYPE, expected.python_type)
        builder.check(guard, _native.CHECK_PREDICATE, _has_metadata(expected))
        return
    sizes, strides = (tuple(map(_native_number, numbers)) for numbers in (expected.shape, expected.stride))
    metadata = (sizes, strides, expected.requires_grad)
    is_subclass = expected.python_type not in _TORCH_S
    builder.check(guard, _native.CHECK_TENSOR, (expected.python_type, (*metadata, *codes, is_subclass)))


def _native_number(number: int | FreeSize | ExtentOf | None) -> int:
    """A size or stride as csrc/guard_tensors.c takes it."""
    if number is None:
        return -1
    if isinstance(number, FreeSize):
        return -2
    return -2 - number.dim if isinstance(number, ExtentOf) else number


def may_read_sizes(kind: type) -> bool:
    """Whether guards can read the sizes of tensors of this class, so that the sizes may be symbols."""
    return not _has_dispatch(kind) and _install_layout()


def _has_metadata(expected: TensorGuard) -> Callable[[torch.Tensor], bool]:
    """A predicate that reads a tensor's metadata by its getters."""
    shape, stride = expected.shape, expected.stride
    plain = expected.dtype, expected.device, expected.requires_grad
    keys = torch._C.DispatchKeySet.from_raw_repr(expected.dispatch_keys or 0)
    lazy = keys.has(torch._C.DispatchKey.Conjugate), keys.has(torch._C.DispatchKey.Negative)

    def has_metadata(tensor: torch.Tensor) -> bool:
        tensor = tensor if type(tensor) in _TORCH_S or _has_dispatch(type(tensor)) else plain_tensor(tensor)
        with torch._C.DisableTorchFunctionSubclass():
            if (tensor.dtype, tensor.device, tensor.requires_grad) != plain:
                return False
            if not (_agrees(shape, tuple(tensor.shape)) and _agrees(stride, tensor.stride())):
                return False
            return (tensor.is_conj(), tensor.is_neg()) == lazy

    return has_metadata


class MadeAlike:
    """Guard predicate: a tensor that is made of other tensors has these parts and an equal context. values: the parts
    that are no tensors, by name."""

    def __init__(self, names: tuple[str, ...], values: dict[str, Any], context: Any) -> None:
        self.names, self.values = names, values
        self.context = context if is_value(context) else copy.deepcopy(context)

    def __call__(self, tensor: Any) -> bool:
        names, context = tensor.__tensor_flatten__()
        if tuple(names) != self.names or any(getattr(tensor, name) != own for name, own in self.values.items()):
            return False
        compare = getattr(type(tensor), "__metadata_guard__", operator.eq)
        return bool(compare(self.context, context))

    def __repr__(self) -> str:
        return f"is made of {', '.join(self.names)} with the context {self.context!r}"


@checkers.register(GuardKind.GLOBAL_STATE)
def _check_state(builder: GuardTreeBuilder, guard: Guard) -> None:
    expected: GlobalState = guard.expected
    now = read_global_state()
    # the snapshot reads the present state, which is the expected one only if nothing has changed since the capture
    fast = install_probes() and now == expected
    payload: object = _same_state(expected)
    if fast:
        payload = None if is_ordinary(now) else (payload,)
    builder.tree.add_check(0, _native.CHECK_STATE, payload, builder.ordinal)


def _same_state(expected: GlobalState) -> Callable[[object], bool]:
    def state_is_the_same(_: object) -> bool:
        return read_global_state() == expected

    return state_is_the_same


@checkers.register(GuardKind.CONTENT)
def _check_content(builder: GuardTreeBuilder, guard: Guard) -> None:
    expected: TensorContent = guard.expected
    if _install_layout():
        builder.check(guard, _native.CHECK_CONTENT, (expected.version, expected.address, expected.sample))
    else:
        builder.check(guard, _native.CHECK_PREDICATE, lambda tensor: content_of(tensor) == expected)


def content_of(tensor: torch.Tensor) -> TensorContent | None:
    """The present content of a tensor; None for tensors made in inference mode, whose writes nothing counts."""
    if tensor.is_inference():
        return None
    address, length = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    words = (
        {0, length // 2 // 4 * 4, length - 4}
        if address and length >= 4 and is_dense(tensor.shape, tensor.stride())
        else set()
    )
    sample = [
        (offset, int.from_bytes(ctypes.string_at(address + offset, 4), sys.byteorder)) for offset in sorted(words)
    ]
    return TensorContent(tensor._version, address, tuple(sample))


@describers.register(GuardKind.CONTENT)
def _describe_content(guard: Guard, found: object) -> str:
    now = content_of(found) if isinstance(found, torch.Tensor) else None
    if now is not None and now.address == guard.expected.address:
        return f"the program wrote to frozen data (version {guard.expected.version} became {now.version})"
    return "frozen data became other data"


@describers.register(GuardKind.TENSOR)
def _describe_tensor(guard: Guard, found: object) -> str:
    expected: TensorGuard = guard.expected
    if type(found) is not expected.python_type or not isinstance(found, torch.Tensor):
        return f"tensor of type {brief(expected.python_type)} became {brief(type(found))}"
    now = tensor_guard(found)
    changes = [
        f"{field} {_shown(old)} became {_shown(new)}"
        for field in ("dtype", "device", "shape", "stride", "requires_grad")
        if not _agrees(old := _fixed(expected, field, now), new := getattr(now, field))
    ]
    if not changes:
        changes = [f"dispatch keys became {torch._C._dispatch_keys(found)}"]
    return "tensor " + ", ".join(changes)


def _fixed(expected: TensorGuard, field: str, now: TensorGuard) -> Any:
    """A field of the guard, with numbers in place of strides that follow from the sizes of `now`."""
    found = getattr(expected, field)
    if field != "stride" or len(found) != len(now.shape):
        return found
    return tuple(_extent(now, one.dim) if isinstance(one, ExtentOf) else one for one in found)


def _extent(now: TensorGuard, dim: int) -> Any:
    return now.shape[dim] * now.stride[dim]  # type: ignore[operator]


def _agrees(expected: object, found: object) -> bool:
    if isinstance(expected, tuple) and isinstance(found, tuple):
        return len(expected) == len(found) and all(map(_number_agrees, expected, found))
    return expected == found


def _number_agrees(expected: object, found: Any) -> bool:
    return expected is None or (1 <= found <= LARGEST_SIZE if isinstance(expected, FreeSize) else expected == found)


def changed_layout(expected: TensorGuard, tensor: object) -> tuple[list[int], list[int]]:
    """The dimensions whose sizes, and those whose strides, differ from the numbers that the guard relies on. None, if
    anything else differs. A stride that follows from the sizes on both sides does not differ. The size that stands for
    the lengths of a jagged tensor cannot be compared with numbers."""
    if type(tensor) is not expected.python_type or not isinstance(tensor, torch.Tensor):
        return [], []
    now = tensor_guard(tensor)
    mine, other = (dataclasses.replace(one, shape=(), stride=(), dispatch_keys=None) for one in (expected, now))
    if mine != other or len(expected.shape) != len(now.shape):
        return [], []
    if any(type(number) is not int for number in (*now.shape, *now.stride)):
        return [], []
    followed = [
        dim
        for dim, (stride, number) in enumerate(zip(expected.stride, now.stride, strict=True))
        if isinstance(stride, ExtentOf) and number != _extent(now, stride.dim)
    ]
    strides = _differing(expected.stride, now.stride)
    if strides:
        before, after = extents_of(*_example(expected, now)), extents_of(now.shape, now.stride)  # type: ignore[arg-type]
        strides = [dim for dim in strides if before[dim] is None or before[dim] != after[dim]]
    return _differing(expected.shape, now.shape), strides + followed


def _example(expected: TensorGuard, now: TensorGuard) -> tuple[list[int], list[int]]:
    """Sizes and strides that agree with a guard; those of `now` where the guard leaves them free."""
    shape: list[Any] = [own if type(own) is int else new for own, new in zip(expected.shape, now.shape, strict=True)]

    def stride(dim: int) -> Any:
        own = expected.stride[dim]
        if isinstance(own, ExtentOf):
            return shape[own.dim] * stride(own.dim)
        return now.stride[dim] if own is None else own

    return shape, [stride(dim) for dim in range(len(shape))]


def innermost_first(strides: Sequence[int]) -> list[int]:
    return sorted(range(len(strides)), key=lambda dim: (strides[dim], -dim))


def extents_of(shape: Sequence[int], strides: Sequence[int]) -> list[int | None]:
    """For each dimension, the next inner dimension, if the stride is that dimension's size times its stride, as in
    dense layouts of any order."""
    found: list[int | None] = [None] * len(shape)
    inner: int | None = None
    for dim in innermost_first(strides):
        if inner is not None and strides[inner] and strides[dim] == shape[inner] * strides[inner]:
            found[dim] = inner
        if shape[dim] > 1 or inner is None or found[dim] is not None:
            inner = dim
    return found


def _differing(expected: tuple[Any, ...], now: tuple[Any, ...]) -> list[int]:
    return [dim for dim, number in enumerate(expected) if type(number) is int and number != now[dim]]


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join("*" if item is None else str(item) for item in value) + "]"
    return str(value)


@describers.register(GuardKind.GLOBAL_STATE)
def _describe_state(guard: Guard, found: object) -> str:
    now = read_global_state()
    changes = [
        f"{field.name} {getattr(guard.expected, field.name)} became {getattr(now, field.name)}"
        for field in dataclasses.fields(GlobalState)
        if getattr(guard.expected, field.name) != getattr(now, field.name)
    ]
    return "torch's state: " + (", ".join(changes) or "dispatch modes changed")


__all__ = ["ObjectName", "read_global_state", "tensor_guard"]
