"""What torch does with tensor subclasses: its plain view of an instance, and the names it calls functions by. Capture
asks torch, and knows no lists of names."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

DISABLED: Any = torch._C._disabled_torch_function_impl  # `__torch_function__` of a class without an override
_C: Any = torch._C


def function_state() -> int:
    """Which overrides torch calls: 0 all, 1 those of modes, 2 none."""
    return int(_C._get_torch_function_state())


def set_function_state(state: int) -> None:
    _C._set_torch_function_state(_C._TorchFunctionState(state))


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its class. Graphs take it instead of the program's tensor, so that no operator of theirs runs
    `__torch_function__`."""
    return of_class(tensor, torch.Tensor)


def of_class(tensor: torch.Tensor, cls: type) -> Any:
    """A tensor of class `cls` on the memory of `tensor`. Gradients flow through it, whatever the grad mode is."""
    if torch.is_grad_enabled() or not plain_requires_grad(tensor):
        return DISABLED(torch.Tensor.as_subclass, (), (tensor, cls))
    with torch._C._InferenceMode(False), torch.enable_grad():
        return DISABLED(torch.Tensor.as_subclass, (), (tensor, cls))


def plain_attribute(tensor: torch.Tensor, name: str) -> Any:
    """An attribute of the tensor itself, read without `__torch_function__`."""
    with torch._C.DisableTorchFunctionSubclass():
        return getattr(tensor, name)


def plain_requires_grad(tensor: torch.Tensor) -> bool:
    return DISABLED(_REQUIRES_GRAD, (), (tensor,))  # type: ignore[no-any-return]


_REQUIRES_GRAD = torch._C.TensorBase.requires_grad.__get__  # type: ignore[attr-defined]


class _Probe(torch.Tensor):
    """Returns the function that torch hands to `__torch_function__`."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func


@functools.cache
def public_function(descriptor: Any) -> Any:
    """The function that `__torch_function__` receives for a method in C: torch.Tensor.add for `__add__`."""
    name = descriptor.__name__
    if not (name.startswith("__") and hasattr(descriptor, "__objclass__")):
        return descriptor
    probe = torch.empty(0).as_subclass(_Probe)
    for args in ((probe, probe), (probe,)):
        try:
            found = descriptor(*args)
        except TypeError:  # another number of arguments
            continue
        if callable(found):
            return found
    return descriptor


_NAMESPACES = (
    torch,
    torch._C._nn,
    torch._C._VariableFunctions,
    torch.special,
    torch.linalg,
    torch.fft,
    torch._C._special,  # type: ignore[attr-defined]
    torch._C._linalg,  # type: ignore[attr-defined]
    torch._C._fft,  # type: ignore[attr-defined]
)


def _torch_builtins() -> frozenset[Any]:
    found = set()
    for namespace in _NAMESPACES:
        for name in dir(namespace):
            function = getattr(namespace, name, None)
            if isinstance(function, types.BuiltinFunctionType):
                found.add(function)
    return frozenset(found)


TORCH_BUILTINS = _torch_builtins()  # torch functions written in C
