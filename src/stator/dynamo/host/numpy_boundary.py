"""The boundary between NumPy and tensors: which arrays capture follows, the tensor that shares an array's memory, and
the way back; and NumPy's numbers as torch takes them. No values and no graph here. NumPy is the module that torch
imported."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from stator.dynamo.host.naming import class_name, module_of

numpy: Any = sys.modules.get("numpy")  # imported by torch, if installed


def _is_followed_version() -> bool:
    """Whether this is NumPy 2, where a result's dtype depends on dtypes alone, never on the values of numbers."""
    return numpy is not None and int(numpy.__version__.split(".")[0]) >= 2


FOLLOWED = _is_followed_version()
_NAMES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64")
TORCH_OF: dict[Any, torch.dtype] = {numpy.dtype(name): getattr(torch, name) for name in _NAMES} if FOLLOWED else {}
# dtypes that graphs may hold but not compute with: NumPy itself computes, because torch's rules differ.
_ONLY_HELD = ("float16", "uint16", "uint32", "uint64", "complex64", "complex128")
HELD: dict[Any, torch.dtype] = {
    **TORCH_OF,
    **({numpy.dtype(name): getattr(torch, name) for name in _ONLY_HELD} if FOLLOWED else {}),
}
NUMPY_OF: dict[torch.dtype, Any] = {dtype: of_numpy for of_numpy, dtype in HELD.items()}
ARRAY: Any = numpy.ndarray if FOLLOWED else types.SimpleNamespace
BOOL: Any = numpy.bool_ if FOLLOWED else bool
TRUTH: Any = None if numpy is None else numpy.bool_  # the type of comparison results, in every version


def is_followed(array: Any) -> bool:
    """Whether capture follows this array: a plain array with elements whose memory a tensor can share."""
    return type(array) is ARRAY and array.dtype in HELD and shared_tensor(array) is not None


def shared_tensor(array: Any) -> torch.Tensor | None:
    """The tensor on the memory of an array; None if the array is read-only, or torch lacks its dtype or strides.
    Guards on arrays call this."""
    if type(array) is not ARRAY or not array.size or not array.flags.behaved:
        return None
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):
        return None


def to_array(tensor: torch.Tensor) -> Any:
    """The array on the memory of a graph's tensor without gradient."""
    return tensor.detach().numpy() if tensor.requires_grad else tensor.numpy()


def to_number(tensor: torch.Tensor) -> Any:
    """The NumPy number in a tensor without dimensions."""
    return tensor.detach().numpy()[()]


def errors_are_no_exceptions() -> bool:
    """Whether NumPy continues after divisions by zero and the like, at most with a warning."""
    return all(mode in ("ignore", "warn") for mode in numpy.geterr().values())


_FLOATS = ("float16", "float32", "float64")
_INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def _converters() -> dict[type, Callable[[Any], Any]]:
    if numpy is None:
        return {}
    floats = {getattr(numpy, name): float for name in _FLOATS}
    return {**floats, **{getattr(numpy, name): int for name in _INTS}}


_CONVERTERS = _converters()


def numpy_numbers() -> tuple[type, ...]:
    """The types of NumPy's numbers."""
    return tuple(_CONVERTERS)


def plain_converter(kind: type) -> Callable[[Any], Any] | None:
    """The function that converts a number of this type to an int or float; None unless the type is NumPy's."""
    return _CONVERTERS.get(kind)


def is_numpy_number(obj: Any) -> bool:
    """Whether the object is a number of NumPy."""
    return type(obj) in _CONVERTERS


def is_numpy_bool(obj: Any) -> bool:
    """Whether the object is a boolean of NumPy."""
    return module_of(type(obj)) == "numpy" and class_name(type(obj)) in ("bool", "bool_")


def is_pure_function(function: Any) -> bool:
    """Whether this is a universal function written in C, such as numpy.sqrt. Those made from Python code by
    numpy.frompyfunc, which may do anything, take and return only objects."""
    if module_of(type(function)) != "numpy" or class_name(type(function)) != "ufunc":
        return False
    return any("O" not in kinds for kinds in function.types)
