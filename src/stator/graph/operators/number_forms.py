"""Forms of functions of torch whose C++ needs the values of their numbers: by operators that take a number as an input
of the graph. Forms run on fake tensors where a number changes between calls; captured graphs hold torch's functions.

An operator that has a decomposition, or a rule on numbers, runs by it above autograd, whose formulas then ask for no
number. Other functions have a form of their own. A comparison of a number is a fact of the capture. A form that returns
NotImplemented, or needs a value, leaves the call to torch, and capture makes a constant of each number that torch asks
for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import MethodDescriptorType, WrapperDescriptorType
from typing import Any

import torch
from torch._ops import OpOverload

from stator.base.registry import Registry
from stator.graph.fake.fake_mode import FakeTensor, flat_tensors
from stator.graph.fake.number_stand_ins import (
    DataDependent,
    Number,
    holds_numbers,
    is_number,
    replace_numbers,
    rules,
    takes_unknown_numbers,
)
from stator.graph.fake.wrapper_subclasses import is_wrapper
from stator.prims.record import TensorMeta, record

aten = torch.ops.aten
Form = Callable[..., Any]
# Keyed by the name of a function or method, called with its arguments.
forms: Registry[str, Form] = Registry("function of changing numbers")


def of_numbers(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result of a call that takes its numbers as they are; NotImplemented if torch is to run it."""
    given = (tuple(args), tuple(kwargs.values()))
    if not holds_numbers(given):
        return NotImplemented
    form = forms.get(_name_of(target))
    tensors = flat_tensors(given, torch.Tensor)
    if form is None or any(map(_is_apart, tensors)):
        return NotImplemented
    mode = next((one.fake_mode for one in tensors if isinstance(one, FakeTensor)), None)
    args, kwargs = (replace_numbers(one, lambda number: _in_a_tensor(number, mode)) for one in (tuple(args), kwargs))
    try:
        inspect.signature(form).bind(*args, **kwargs)
    except TypeError:  # another signature, or an error that torch raises
        return NotImplemented
    try:
        return form(*args, **kwargs)
    except DataDependent:  # a number has to be known
        return NotImplemented


def _in_a_tensor(number: Number, mode: Any) -> Any:
    """A number of a capture gets a tensor, as it has in traced graphs."""
    tensor = number.tensor
    if tensor is None and mode is not None:
        dtype = torch.int64 if number.kind is int else torch.float64
        tensor = mode.make(TensorMeta((), (), dtype, torch.device("cpu")))
    return Number(number.environment, number.value, number.kind, tensor).argument


def _is_apart(tensor: torch.Tensor) -> bool:
    """Whether torch's own function is needed: autocast knows functions by name, and so do classes of tensors."""
    return torch.is_autocast_enabled(tensor.device.type) or is_wrapper(tensor)


def _name_of(target: Any) -> str:
    if isinstance(target, str):
        return target
    own = type(target) in (MethodDescriptorType, WrapperDescriptorType, type(len))
    return target.__name__ if own else ""


def takes(names: str, in_place: str = "") -> Callable[[Form], Form]:
    """Register a form under names; and under `in_place` a form that writes its result to the first argument."""

    def decorate(form: Form) -> Form:
        def writing(self: Any, *args: Any, **kwargs: Any) -> Any:
            before = self.clone() if has_gradient(self) else self  # for the gradient
            result = form(before, *args, **kwargs)
            return result if result is NotImplemented else self.copy_(result)

        forms.register(*names.split())(form)
        forms.register(*in_place.split())(writing)
        return form

    return decorate


def _by_operator(name: str) -> None:
    """Register the functions of an operator, by its rule on numbers or its decomposition."""
    packet = getattr(aten, name)
    overloads = [getattr(packet, overload) for overload in packet.overloads() if "out" not in overload]

    @takes(f"{name} special_{name}", f"{name}_ i{name}")
    def form(*args: Any, **kwargs: Any) -> Any:
        if "input" in kwargs:
            kwargs["self"] = kwargs.pop("input")
        for target in overloads:
            rule = rules.get(target) or record(target).decompose
            if rule is not None and _fits(target, args, kwargs):
                return rule(*args, **kwargs) if _needs_rule(target, args, kwargs) else NotImplemented
        return NotImplemented


def _named(target: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    return dict(zip((one.name for one in target._schema.arguments), args, strict=False)) | kwargs


def _fits(target: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a call is one of this overload."""
    given, arguments = _named(target, args, kwargs), target._schema.arguments
    positional = sum(not one.kwarg_only for one in arguments)
    if len(args) > positional or not given.keys() <= {one.name for one in arguments}:
        return False
    if any(one.name not in given and not one.has_default_value() for one in arguments):
        return False
    named = {one.name: str(one.type) for one in arguments}
    return all(
        value is None or isinstance(value, torch.Tensor) is ("Tensor" in named[at]) for at, value in given.items()
    )


def _needs_rule(target: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether torch would ask for the value of a number, and the rule does not."""
    tensors = flat_tensors((args, kwargs))
    if not is_real(*tensors):
        return False
    numbers = {name: it for name, it in _named(target, args, kwargs).items() if is_number(it)}
    if target in _PRODUCTS:  # those of half floats would be float32's, and a factor of zero drops its gradient
        return not any(map(is_half, tensors)) and all(it != 0 for it in numbers.values())
    if target not in rules:
        return True
    of_gradient = has_gradient(*tensors) and numbers.keys() != {"other"}
    return of_gradient and takes_unknown_numbers(target, tuple(args), kwargs)


_PRODUCTS = frozenset(getattr(aten, name).default for name in ("addmm", "addmv", "addr", "baddbmm", "addbmm"))
for _operator in ("addmm", "addmv", "addr", "baddbmm", "addbmm", "add", "sub", "pow", "lerp"):
    _by_operator(_operator)
for _operator in ("logit", "nan_to_num", "smooth_l1_loss", "huber_loss", "quantile", "nanquantile"):
    _by_operator(_operator)


def is_positive(number: Any) -> bool:
    return _is_known(number) and bool(number > 0)


def is_between(number: Any, low: float, high: float) -> bool:
    """Whether a number lies between two others."""
    return _is_known(number) and bool(low < number) and bool(number < high)


def _is_known(number: Any) -> bool:
    return number.node.has_hint() if is_number(number) else type(number) in (int, float)


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
