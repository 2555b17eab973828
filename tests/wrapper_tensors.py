"""Tensor classes that are made of other tensors, for tests of what compiles them."""

from __future__ import annotations

from typing import Any

import torch
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing


def pair(*shape: int, seed: int = 0, grad: bool = False) -> TwoTensor:
    generator = torch.Generator().manual_seed(seed)
    made = TwoTensor(torch.randn(*shape, generator=generator), torch.randn(*shape, generator=generator))
    return made.requires_grad_(grad)


def values(*shape: int, seed: int = 0, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_(grad)


def nested(*lengths: int, grad: bool = False) -> torch.Tensor:
    parts = [values(length, 4, seed=at) for at, length in enumerate(lengths)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged).requires_grad_(grad)


class Labelled(torch.Tensor):
    """A tensor around one other, with a label that its results keep, and by which products are multiplied."""

    data_: torch.Tensor
    label: int

    @staticmethod
    def __new__(cls, data: torch.Tensor, label: int) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, data.shape, strides=data.stride(), dtype=data.dtype, requires_grad=data.requires_grad
        )

    def __init__(self, data: torch.Tensor, label: int) -> None:
        self.inner, self.label = data, label

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Labelled({self.label})"

    def labelled(self, by: int) -> torch.Tensor:
        return self * (self.label + by)

    def __tensor_flatten__(self) -> Any:
        return ["inner"], {"label": self.label}

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Labelled:
        return Labelled(inner["inner"], context["label"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        label = next(one.label for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, Labelled))
        given, named = pytree.tree_map_only(Labelled, lambda one: one.inner, (args, kwargs or {}))
        made = func(*given, **named)
        factor = label if func is torch.ops.aten.mul.Tensor else 1
        made = pytree.tree_map_only(torch.Tensor, lambda one: Labelled(one * factor, label), made)
        return return_and_correct_aliasing(func, args, kwargs or {}, made)


class Quantized(torch.Tensor):
    """int8 numbers with a scale for each row; operators run on the floats that these stand for."""

    @staticmethod
    def __new__(cls, numbers: torch.Tensor, scale: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=scale.dtype, requires_grad=False)

    def __init__(self, numbers: torch.Tensor, scale: torch.Tensor) -> None:
        self.numbers, self.scale = numbers, scale

    def __repr__(self) -> str:  # type: ignore[override]
        return "Quantized()"

    @staticmethod
    def of(weight: torch.Tensor, cls: Any = None) -> Quantized:
        scale = weight.abs().amax(1, keepdim=True) / 127
        return (cls or Quantized)((weight / scale).round().to(torch.int8), scale)

    def __tensor_flatten__(self) -> Any:
        return ["numbers", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Quantized:
        return Quantized(inner["numbers"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].numbers, args[0].scale)
        floats = lambda one: one.numbers.to(one.scale.dtype) * one.scale  # noqa: E731
        given, named = pytree.tree_map_only(Quantized, floats, (args, kwargs or {}))
        return func(*given, **named)


class Overriding(Quantized):
    """`Quantized` with its own answers to some torch functions, as torchao's tensors have."""

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Overriding:
        return Overriding(inner["numbers"], inner["scale"])

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear:
            bias = args[2] if len(args) > 2 else 0
            return args[0] @ args[1].numbers.to(args[0].dtype).t() * args[1].scale.flatten() + bias
        if func is torch.nn.functional.softmax:
            return args[0].scale.softmax(*args[1:])
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))
