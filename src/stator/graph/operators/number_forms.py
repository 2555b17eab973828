"""Forms of functions of torch whose C++ needs the values of their numbers: by operators that take a number as an input
of the graph. Forms run on fake tensors where a number changes between calls; captured graphs hold torch's functions.

`is_between` asks capture, which relies on the answer. A form that returns NotImplemented leaves the call to torch, and
capture makes a constant of each number that torch asks for.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from types import MethodDescriptorType, WrapperDescriptorType
from typing import Any

import torch
from torch._ops import OpOverload

from stator.base.registry import Registry
from stator.graph.fake.fake_mode import FakeTensor, flat_tensors
from stator.graph.fake.number_stand_ins import holds_numbers, is_number
from stator.graph.fake.wrapper_subclasses import is_wrapper
from stator.prims.record import TensorMeta

Form = Callable[..., Any]
# Keyed by the name of a function or method, called with its arguments.
forms: Registry[str, Form] = Registry("function of changing numbers")


def of_numbers(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result of a call by a form that takes its numbers as they are; NotImplemented if torch is to run it."""
    given = (tuple(args), tuple(kwargs.values()))
    if not holds_numbers(given):
        return NotImplemented
    form = forms.get(_name(target))
    if form is None or any(map(_is_apart, flat_tensors(given, torch.Tensor))):
        return NotImplemented
    try:
        inspect.signature(form).bind(*args, **kwargs)
    except TypeError:  # another signature of the function, `out`, or an error that torch raises
        return NotImplemented
    return form(*args, **kwargs)


def _is_apart(tensor: torch.Tensor) -> bool:
    """Whether torch's own function is needed: autocast knows functions by name, and so do classes of tensors."""
    return torch.is_autocast_enabled(tensor.device.type) or is_wrapper(tensor)


def _name(target: Any) -> str:
    if isinstance(target, str):
        return target
    own = type(target) in (MethodDescriptorType, WrapperDescriptorType, type(len))
    return target.__name__ if own else ""


def takes(names: str, in_place: str = "") -> Callable[[Form], Form]:
    """Register a form under names; and under `in_place` a form that writes its result to the first argument."""

    def decorate(form: Form) -> Form:
        @functools.wraps(form)
        def writing(self: Any, *args: Any, **kwargs: Any) -> Any:
            before = self.clone() if has_gradient(self) else self  # for the gradient
            result = form(before, *args, **kwargs)
            return result if result is NotImplemented else self.copy_(result)

        forms.register(*names.split())(form)
        forms.register(*in_place.split())(writing)
        return form

    return decorate


def is_between(number: Any, low: float, high: float) -> bool:
    """Whether a number lies between two others. Capture relies on the answer."""
    return _is_comparable(number) and bool(low < number) and bool(number < high)


def _is_comparable(number: Any) -> bool:
    return number.node.has_hint() if is_number(number) else type(number) in (int, float)


def is_real_number(number: Any) -> bool:
    """Whether a number is no complex one and no truth."""
    return is_number(number) or type(number) in (int, float)


def is_nonzero(number: Any) -> bool:
    return _is_comparable(number) and bool(number != 0)


def is_positive(number: Any) -> bool:
    return _is_comparable(number) and bool(number > 0)


def number_tensor(number: Any, like: Any) -> torch.Tensor:
    """The number as a zero-dim tensor on the CPU; in a capture, a fake that only tells types."""
    if not is_number(number):
        return torch.tensor(number, dtype=torch.float64 if type(number) is float else torch.int64)
    if number.node.tensor is not None:
        return number.node.tensor  # type: ignore[no-any-return]
    dtype = torch.int64 if number.node.kind is int else torch.float64
    return like.fake_mode.make(TensorMeta((), (), dtype, torch.device("cpu")))  # type: ignore[no-any-return]


def root(number: Any) -> Any:
    return torch.SymFloat(number.node.sqrt()) if is_number(number) else math.sqrt(number)


def below_autograd(target: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Run an operator whose floats C++ would ask for."""
    fake = next(one for one in args if isinstance(one, FakeTensor))
    return fake.fake_mode.dispatch(target, args, kwargs)


def has_gradient(*values: Any) -> bool:
    return torch.is_grad_enabled() and any(one.requires_grad for one in flat_tensors(values))


def is_real(*tensors: Any) -> bool:
    return all(one.is_floating_point() for one in tensors)


def is_half(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.float16, torch.bfloat16)


def is_empty(tensor: torch.Tensor) -> bool:
    return 0 in tuple(tensor.shape)
