"""Arrays of NumPy, and the numbers read from them: tensors of the graph under NumPy's rules.

handlers/numpy_calls/ registers the functions and methods of NumPy.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch

from stator.base.registry import Registry
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource, Source
from stator.dynamo.host.numpy_boundary import (
    ARRAY,
    NUMPY_OF,
    errors_are_no_exceptions,
    is_numpy_number,
    to_array,
    to_number,
)
from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Load, Recipe
from stator.dynamo.values.base import CaptureContext, Handler, Reconstructor, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import TupleValue
from stator.dynamo.values.containers.slices import SliceValue
from stator.dynamo.values.functions import BuiltinMethodValue

from .tensor import TensorValue

# Methods of arrays: `handler(context, array, *args, **kwargs)`.
array_methods: Registry[str, Handler] = Registry("array method")
# `write(context, array, part, value, mask)` writes a value to a part of an array, or where a mask of its shape holds;
# handlers/numpy_calls/ registers it.
writers: list[Callable[[Any, ArrayValue, TensorValue, Value, TensorValue | None], None]] = []


class ArrayValue(Value):
    """An array, or (`scalar`) a number of NumPy that only the running graph knows. `memory` is the tensor on its
    memory. Of an input, whose sizes may be symbols, there is `context`: NumPy's rules need constants."""

    __slots__ = ("context", "memory", "obj", "scalar")

    def __init__(
        self,
        memory: TensorValue,
        source: Source | None = None,
        obj: Any = None,
        scalar: bool = False,
        context: CaptureContext | None = None,
    ) -> None:
        self.source = source
        self.memory = memory
        self.obj = obj
        self.scalar = scalar
        self.context = context

    @property
    def tensor(self) -> TensorValue:
        """The tensor on the array's memory, with constants for sizes. Raises Retry for symbols."""
        if self.context is not None:
            self.context.recorder.numbers.need_constants("a NumPy array", self.memory.fake)
            self.context = None
        return self.memory

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.fake.shape)

    @property
    def dtype(self) -> Any:
        return NUMPY_OF[self.memory.fake.dtype]

    def python_type(self, context: CaptureContext) -> type:
        return self.dtype.type if self.scalar else ARRAY

    def real(self) -> Any:
        if self.obj is None:
            return super().real()
        return self.obj

    def describe(self, context: CaptureContext) -> str:
        what = f"a number of type {self.dtype}" if self.scalar else f"an array of shape {tuple(self.memory.fake.shape)}"
        return what + (f" ({self.source})" if self.source else "")

    def key(self, context: CaptureContext) -> Any:
        if self.scalar or self.obj is None:
            return super().key(context)
        raise context.raised(TypeError, "unhashable type: 'numpy.ndarray'")

    def truth(self, context: CaptureContext) -> bool:
        raise unsupported(
            "data-dependent-jump",
            f"a branch on the data of {self.describe(context)}",
            "use numpy.where, or move the decision out of the compiled function",
        )

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        if name in _FACTS:
            return _FACTS[name](context, self)
        if name == "T" and not self.scalar:
            return context.call_handler(array_methods["transpose"], [self], {})
        if name in ("real", "imag") and not self.scalar:
            if self.dtype.kind == "c":
                return array_of_tensor(context, context.record_function(getattr(torch, name), [self.tensor], {}))
            if name == "real":
                return self
            return array_of_tensor(context, context.record_function(torch.zeros_like, [self.tensor], {}))
        if name == "__class__":
            return context.known(self.python_type(context))
        if name in array_methods:
            return BuiltinMethodValue(self, name)
        raise unsupported("attribute", f"attribute {name!r} of {self.describe(context)}")

    def builtin_method(self, context: CaptureContext, name: str) -> Handler:
        return array_methods[name]

    def length(self, context: CaptureContext) -> int:
        if not self.shape:
            raise unsupported("len", f"len() of {self.describe(context)}")
        return self.shape[0]

    def iterate(self, context: CaptureContext) -> Iterator[Value]:
        return (self.get_item(context, ConstantValue(at)) for at in range(self.length(context)))

    # -- parts --
    def get_item(self, context: CaptureContext, key: Value) -> Value:
        part, is_element, is_copy = self._part(context, key)
        if is_element and not is_copy:
            part = context.record_method("clone", [part], {})  # a number does not change with the array
        return array_of_tensor(context, part, scalar=is_element)

    def set_item(self, context: CaptureContext, key: Value, value: Value) -> None:
        if self.scalar:
            raise unsupported("subscript", f"item assignment on {self.describe(context)}")
        if isinstance(key, ArrayValue) and key.dtype.kind == "b" and key.shape == self.shape:
            return writers[0](context, self, self.tensor, value, key.tensor)
        part, _, is_copy = self._part(context, key)
        if is_copy:
            raise unsupported("subscript", f"item assignment on {self.describe(context)} by {key.describe(context)}")
        return writers[0](context, self, part, value, None)  # type: ignore[arg-type]

    def _part(self, context: CaptureContext, key: Value) -> tuple[Value, bool, bool]:
        """The tensor that `[key]` selects; whether it is a single element; whether it is a copy."""
        parts = [context.realized(item) for item in key.items] if isinstance(key, TupleValue) else [key]
        if len(parts) == 1 and isinstance(parts[0], ArrayValue):
            return self._selected(context, parts[0]), False, True
        checked = [_index(context, part, self) for part in parts]
        whole = [part for part in checked if type(part) is int]
        if len(whole) == len(checked) == len(self.shape) and self.scalar:
            raise unsupported("subscript", f"subscript of {self.describe(context)}")
        exact = [ConstantValue(at) if type(at) is int else part for at, part in zip(checked, parts, strict=True)]
        part = context.record_method("__getitem__", [self.tensor, context.tuple_of(exact)], {})
        assert isinstance(part, TensorValue)
        return part, len(whole) == len(checked) == len(self.shape), False

    def _selected(self, context: CaptureContext, index: ArrayValue) -> Value:
        if index.dtype.kind != "i" or index.scalar or self.scalar:
            raise unsupported("subscript", f"subscript of {self.describe(context)} by {index.describe(context)}")
        whole = context.record_method("long", [index.tensor], {})
        return context.record_method("__getitem__", [self.tensor, whole], {})

    # -- leaving the frame --
    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        return CallRecipe(ConstantRecipe(to_number if self.scalar else to_array), [reconstructor.recipe(self.tensor)])


def _index(context: CaptureContext, part: Value, array: ArrayValue) -> Any:
    """One part of a basic index, checked: int, slice, None or Ellipsis."""
    if isinstance(part, SliceValue):
        bounds = [context.constant_of(at, "a bound of a slice") for at in (part.start, part.stop, part.step)]
        if all(bound is None or type(bound) is int for bound in bounds) and (bounds[2] is None or bounds[2] > 0):
            return slice(*bounds)
    elif part.is_constant():
        constant = part.constant()
        if constant is None or constant is ... or type(constant) is int:
            return constant
        if is_numpy_number(constant) and not isinstance(constant, float):
            return operator.index(constant)
    raise unsupported("subscript", f"subscript of {array.describe(context)} by {part.describe(context)}")


def array_of_tensor(context: CaptureContext, tensor: Value, scalar: bool = False) -> ArrayValue:
    """The array (or number) of a tensor that the graph made under NumPy's rules."""
    assert isinstance(tensor, TensorValue)
    fake = tensor.fake
    if not context.recorder.numbers.has_fixed_sizes("a NumPy array", fake):
        raise unsupported("data-dependent-value", f"an array of shape {tuple(fake.shape)}")
    if fake.dtype not in NUMPY_OF or fake.requires_grad or fake.device.type != "cpu" or not fake.numel():
        raise unsupported("torch-result", f"an array of dtype {fake.dtype} and shape {tuple(fake.shape)}")
    rely_on_error_modes(context)
    return ArrayValue(tensor, scalar=scalar)


def rely_on_error_modes(context: CaptureContext) -> None:
    """Guard, once per capture, that divisions by zero and the like raise nothing."""
    if not errors_are_no_exceptions():
        raise unsupported("call-builtin", "NumPy, while numpy.seterr makes errors of warnings")
    if not context.relies_on_error_modes:
        context.relies_on_error_modes = True
        context.guard(CallSource(errors_are_no_exceptions), GuardKind.EQUALS, True)


_FACTS: dict[str, Callable[[Any, ArrayValue], Value]] = {
    "shape": lambda context, array: context.known(array.shape),
    "ndim": lambda context, array: ConstantValue(len(array.shape)),
    "size": lambda context, array: ConstantValue(array.tensor.fake.numel()),
    "itemsize": lambda context, array: ConstantValue(array.dtype.itemsize),
    "nbytes": lambda context, array: ConstantValue(array.dtype.itemsize * array.tensor.fake.numel()),
    "dtype": lambda context, array: context.known(array.dtype),
    "strides": lambda context, array: context.known(
        tuple(stride * array.dtype.itemsize for stride in array.tensor.fake.stride())
    ),
}
