"""Wrapper subclasses: tensors made of inner tensors, whose class runs operators by its own `__torch_dispatch__`.

A class takes its tensors apart by `__tensor_flatten__` and makes them again by `__tensor_unflatten__`. Inner tensors
may be wrapper subclasses themselves. Beside tensors, a class may list other objects: a distributed tensor lists its
mesh.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch._ops import OpOverload

from stator.base.errors import Unsupported

from .fake_tensor import FakeStorage, FakeTensor, flat_tensors


def is_wrapper_class(cls: type) -> bool:
    """Whether tensors of this class can be taken apart and made again."""
    return hasattr(cls, "__tensor_flatten__") and hasattr(cls, "__tensor_unflatten__")


def is_wrapper(value: Any) -> bool:
    """Whether a value is a wrapper subclass."""
    return isinstance(value, torch.Tensor) and is_wrapper_class(type(value))


def has_own_functions(cls: type) -> bool:
    """Whether a wrapper class defines `__torch_function__`. Torch's default only gives results the class, which results
    of a wrapper class have anyway."""
    found = next(vars(base)["__torch_function__"] for base in cls.__mro__ if "__torch_function__" in vars(base))
    return is_wrapper_class(cls) and found not in _NO_FUNCTIONS


_NO_FUNCTIONS = (torch._C._disabled_torch_function_impl, vars(torch.Tensor)["__torch_function__"])


def is_made_of_tensors(tensor: torch.Tensor) -> bool:
    """Whether each part of a wrapper subclass is a plain tensor, a wrapper subclass made of tensors, or an object that
    is compared as a value, because it has a hash."""
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    return all(map(_is_known_part, [getattr(tensor, name) for name in names]))


def _is_known_part(part: Any) -> bool:
    if is_wrapper(part):
        return is_made_of_tensors(part)
    return type(part) in (torch.Tensor, torch.nn.Parameter) if isinstance(part, torch.Tensor) else is_value(part)


def is_value(obj: Any) -> bool:
    """Whether an object has a hash, so that, by Python's rules, what it equals never changes."""
    try:
        hash(obj)
    except TypeError:
        return False
    return True


def _may_equal(one: Any, other: Any) -> bool:
    """Whether two sizes are equal. Sizes of nested tensors stand for tensors, which are parts and differ in each
    call."""
    return one == other if type(one) is int and type(other) is int else type(one) is type(other)


@lru_cache(maxsize=64)
def _takes_layout(unflatten: Callable[..., Any]) -> bool:
    """Whether `__tensor_unflatten__` takes size and strides; as torch 2.0 documented it, it takes neither."""
    try:
        inspect.signature(unflatten).bind(None, None, None, None)
    except TypeError:
        return False
    return True


@dataclass(frozen=True, slots=True, eq=False)
class WrapperLayout:
    """How a wrapper subclass is made of its inner tensors.

    names: the attributes that hold the inner tensors. inner: their layouts; None for plain tensors. values: the parts
    that are no tensors, by name. context: the second result of `__tensor_flatten__`.
    """

    cls: type
    names: tuple[str, ...]
    inner: tuple[WrapperLayout | None, ...]
    values: dict[str, Any]
    context: Any
    size: tuple[Any, ...]
    stride: tuple[Any, ...]

    @staticmethod
    def of(tensor: torch.Tensor) -> WrapperLayout:
        names, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        parts = {name: getattr(tensor, name) for name in names}
        values = {name: part for name, part in parts.items() if not isinstance(part, torch.Tensor)}
        names = tuple([name for name in names if name not in values])
        inner = tuple([WrapperLayout.of(parts[name]) if is_wrapper(parts[name]) else None for name in names])
        return WrapperLayout(type(tensor), names, inner, values, context, tensor.size(), tensor.stride())

    @property
    def count(self) -> int:
        """The number of plain tensors."""
        return sum(1 if one is None else one.count for one in self.inner)

    def leaves(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The plain tensors that the tensor is made of, in order."""
        found: list[torch.Tensor] = []
        for name, layout in zip(self.names, self.inner, strict=True):
            part = getattr(tensor, name)
            found += [part] if layout is None else layout.leaves(part)
        return found

    def build(self, leaves: Iterator[torch.Tensor]) -> torch.Tensor:
        """A tensor made of plain tensors."""
        return self.of_parts([next(leaves) if layout is None else layout.build(leaves) for layout in self.inner])

    def of_parts(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """A tensor made of its inner tensors."""
        inner = {**dict(zip(self.names, parts, strict=True)), **self.values}
        unflatten = self.cls.__tensor_unflatten__  # type: ignore[attr-defined]
        layout = (self.size, self.stride) if _takes_layout(unflatten) else ()
        return unflatten(inner, self.context, *layout)  # type: ignore[no-any-return]

    def fits(self, other: WrapperLayout) -> bool:
        """Whether tensors of the other layout are made of like parts, with an equal context."""
        return (
            self.cls is other.cls
            and self.names == other.names
            and self.values == other.values
            and bool(self.context == other.context)
            and len(self.size) == len(other.size)
            and all(map(_may_equal, self.size, other.size))
            and all(
                one is two if one is None or two is None else one.fits(two)
                for one, two in zip(self.inner, other.inner, strict=True)
            )
        )


def like_gradient(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that is made like the gradient of a wrapper subclass, which no later operator has decided yet: like the
    tensor itself, unless its class knows better."""
    with torch.no_grad():
        return getattr(tensor, "__coerce_tangent_metadata__", tensor.detach)()  # type: ignore[no-any-return]


class WrapperGradient(Unsupported):
    """The gradient of a plain tensor is a wrapper subclass. index: of the tensor among the primals."""

    def __init__(self, index: int, gradient: torch.Tensor) -> None:
        super().__init__("tensor-subclass", f"the gradient of a tensor is a {type(gradient).__qualname__}")
        self.index, self.gradient = index, gradient


def refuse_moved_generators(func: OpOverload, args: Sequence[Any]) -> None:
    """Raise Unsupported for a random operator of a distributed tensor on a GPU: its class moves the generator of the
    device while the operator runs, so that each process draws other numbers."""
    for tensor in flat_tensors(args, torch.Tensor):
        distributed = any(base.__module__ == "torch.distributed.tensor" for base in type(tensor).__mro__)
        if distributed and tensor.device.type != "cpu":
            raise Unsupported("tensor-subclass", f"{func} on a distributed tensor, which moves its generator")


def fakes_in(value: Any) -> list[FakeTensor]:
    """The fake tensors that a tensor, or nested tuples and lists of tensors, are made of."""
    found: list[FakeTensor] = []
    for tensor in flat_tensors(value, torch.Tensor):
        if is_wrapper(tensor):
            found += [leaf for leaf in WrapperLayout.of(tensor).leaves(tensor) if isinstance(leaf, FakeTensor)]
        elif isinstance(tensor, FakeTensor):
            found.append(tensor)
    return found


def storages_of(tensor: torch.Tensor) -> list[FakeStorage]:
    """The memory of a fake tensor, or of a wrapper subclass around fake tensors."""
    if type(tensor) is FakeTensor:
        return [tensor.fake_storage]
    return [fake.fake_storage for fake in fakes_in(tensor)]


def version_of(tensor: torch.Tensor) -> int:
    """A number that grows with each write to the tensor's memory."""
    if type(tensor) is FakeTensor:
        return tensor.fake_storage.version
    return sum(storage.version for storage in storages_of(tensor))


class _AttachHistory(torch.autograd.Function):
    """Makes a tensor a non-leaf that requires grad."""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, holder: list[torch.Tensor]) -> torch.Tensor:
        return holder[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise AssertionError("the history of a fake input leads to no tensor")


def with_gradient_of(fake: torch.Tensor, real: torch.Tensor, source: FakeTensor) -> torch.Tensor:
    """The fake of a wrapper subclass, which requires grad as the real tensor does. source: any fake that requires
    grad."""
    if not real.requires_grad or real.is_leaf:
        fake.requires_grad_(real.requires_grad)
    else:
        with torch.enable_grad():
            fake = _AttachHistory.apply(source, [fake])
    if isinstance(real, torch.nn.Parameter):
        fake._is_param = True  # type: ignore[attr-defined]
    return fake
