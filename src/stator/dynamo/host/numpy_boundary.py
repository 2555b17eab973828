"""Where arrays of NumPy meet tensors: which arrays are followed, the tensor that shares an array's memory, and the
array or number that a tensor of the graph becomes again. No values and no graph here; NumPy is taken as torch found it.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

numpy: Any = sys.modules.get("numpy")  # torch has imported it, where there is one


def _is_followed_version() -> bool:
    """NumPy 2: what a result's dtype is depends on dtypes alone, never on the values of numbers."""
    return numpy is not None and int(numpy.__version__.split(".")[0]) >= 2


FOLLOWED = _is_followed_version()
_NAMES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64")
TORCH_OF: dict[Any, torch.dtype] = {numpy.dtype(name): getattr(torch, name) for name in _NAMES} if FOLLOWED else {}
# Of these the graph holds arrays, too, but torch computes nothing by NumPy's rules: NumPy itself does.
_ONLY_HELD = ("float16", "uint16", "uint32", "uint64", "complex64", "complex128")
HELD: dict[Any, torch.dtype] = {
    **TORCH_OF,
    **({numpy.dtype(name): getattr(torch, name) for name in _ONLY_HELD} if FOLLOWED else {}),
}
NUMPY_OF: dict[torch.dtype, Any] = {dtype: of_numpy for of_numpy, dtype in HELD.items()}
ARRAY: Any = numpy.ndarray if FOLLOWED else types.SimpleNamespace
BOOL: Any = numpy.bool_ if FOLLOWED else bool
TRUTH: Any = None if numpy is None else numpy.bool_  # the type of what comparing numbers gives, in every version


def is_followed(array: Any) -> bool:
    """Whether capture follows this array: a plain one with elements, which torch can share the memory of."""
    return type(array) is ARRAY and array.dtype in HELD and shared_tensor(array) is not None


def shared_tensor(array: Any) -> torch.Tensor | None:
    """The tensor on the memory of an array; None where it is read-only, or torch takes no such dtype or strides. Part
    of every guard on an array."""
    if type(array) is not ARRAY or not array.size or not array.flags.behaved:
        return None
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):
        return None


def to_array(tensor: torch.Tensor) -> Any:
    """The array on the memory of a tensor of the graph, which needs no gradient."""
    return tensor.detach().numpy() if tensor.requires_grad else tensor.numpy()


def to_number(tensor: torch.Tensor) -> Any:
    """The number, of NumPy's type, in a tensor of no dimensions."""
    return tensor.detach().numpy()[()]


def errors_are_no_exceptions() -> bool:
    """Whether divisions by zero and the like go on in NumPy, at most with a warning."""
    return all(mode in ("ignore", "warn") for mode in numpy.geterr().values())
