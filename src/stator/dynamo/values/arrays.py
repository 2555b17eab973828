"""Arrays of NumPy, and the numbers read from them: tensors of the graph under NumPy's rules.

What functions of NumPy do with them lives in calls/numpy_functions.py and is found here through registries.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from stator.base.errors import Unsupported
from stator.base.registry import Registry

from ..guard import GuardKind
from ..numpy_boundary import ARRAY, NUMPY_OF, errors_are_no_exceptions, to_array, to_number
from ..plain import is_number
from ..recipe import CallRecipe, Constant, GetAttr, Load, Recipe
from ..source import CallSource, ConstantSource, Source
from .base import Value, unsupported
from .constants import ConstantValue
from .numbers import NumberValue, changing_number, is_changing
from .sequences import ListValue, TupleValue
from .slices import SliceValue
from .tensors import TensorValue, has_fixed_sizes

if TYPE_CHECKING:
    from ..exits import ExitBuilder
    from ..tracer import Tracer

# Methods of arrays: `handler(tracer, array, *args, **kwargs)`.
array_methods: Registry[str, Callable[..., Value]] = Registry("array method")
# How a value is written to a part of an array: `write(tracer, array, part, value)`; set by calls/numpy_functions.py.
writers: list[Callable[[Any, ArrayValue, TensorValue, Value], None]] = []

# Makes NumPy itself compute, when the graph runs: `native(tracer, name, args, kwargs)`; set by calls/numpy_native.py.
natives: list[Callable[[Any, str, list[Value], dict[str, Value]], Value]] = []


class ArrayValue(Value):
    """An array, or (`scalar`) one of NumPy's numbers that only the running graph knows. `tensor` shares its memory."""

    __slots__ = ("obj", "scalar", "tensor")

    def __init__(
        self, tensor: TensorValue, source: Source | None = None, obj: Any = None, scalar: bool = False
    ) -> None:
        self.source = source
        self.tensor = tensor
        self.obj = obj
        self.scalar = scalar

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.fake.shape)

    @property
    def dtype(self) -> Any:
        return NUMPY_OF[self.tensor.fake.dtype]

    def python_type(self, tracer: Tracer) -> type:
        return self.dtype.type if self.scalar else ARRAY

    def real(self) -> Any:
        if self.obj is None:
            return super().real()
        return self.obj

    def describe(self, tracer: Tracer) -> str:
        what = f"a number of type {self.dtype}" if self.scalar else f"an array of shape {self.shape}"
        return what + (f" ({self.source})" if self.source else "")

    def key(self, tracer: Tracer) -> Any:
        if self.scalar or self.obj is None:
            return super().key(tracer)
        raise tracer.raised(TypeError, "unhashable type: 'numpy.ndarray'")

    def truth(self, tracer: Tracer) -> bool:
        raise unsupported(
            "data-dependent-jump",
            f"a branch on the data of {self.describe(tracer)}",
            "use numpy.where, or move the decision out of the compiled function",
        )

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name in _FACTS:
            return _FACTS[name](tracer, self)
        if name == "T" and not self.scalar:
            return array_methods["transpose"](tracer, self)
        if name in ("real", "imag") and self.dtype.kind == "c" and not self.scalar:
            return made(tracer, tracer.record_function(getattr(torch, name), [self.tensor], {}))
        if name == "__class__":
            return tracer.known(self.python_type(tracer))
        if name in array_methods:
            return ArrayMethodValue(self, name)
        raise unsupported("attribute", f"attribute {name!r} of {self.describe(tracer)}")

    def length(self, tracer: Tracer) -> int:
        if not self.shape:
            raise unsupported("len", f"len() of {self.describe(tracer)}")
        return self.shape[0]

    def iterate(self, tracer: Tracer) -> Iterator[Value]:
        return (self.get_item(tracer, ConstantValue(at)) for at in range(self.length(tracer)))

    # -- parts --
    def get_item(self, tracer: Tracer, key: Value) -> Value:
        number = self._element_at_entry(tracer, key)
        if number is not None:
            return number
        if _selects_elements(key):
            if _holds_truths(key):
                raise unsupported(
                    "data-dependent-value", f"the elements of {self.describe(tracer)} where a mask is true"
                )
            return natives[0](tracer, "getitem", [self, key], {})
        part, is_element, is_copy = self._part(tracer, key)
        if is_element and not is_copy:
            part = tracer.record_method("clone", [part], {})  # a number does not change with the array
        return made(tracer, part, scalar=is_element)

    def set_item(self, tracer: Tracer, key: Value, value: Value) -> None:
        if self.scalar:
            raise unsupported("subscript", f"item assignment on {self.describe(tracer)}")
        if not _selects_elements(key):
            part, _, is_copy = self._part(tracer, key)
            if not is_copy:
                try:
                    return writers[0](tracer, self, part, value)  # type: ignore[arg-type]
                except Unsupported:
                    if not isinstance(value, ArrayValue):
                        raise
        self.hold(tracer, natives[0](tracer, "after setitem", [self, key, value], {}))

    def hold(self, tracer: Tracer, after: Value) -> None:
        """Write all elements of an array that lies as this one does."""
        assert isinstance(after, ArrayValue) and after.shape == self.shape and after.dtype == self.dtype
        tracer.record_method("copy_", [self.tensor, after.tensor], {})

    def _part(self, tracer: Tracer, key: Value) -> tuple[Value, bool, bool]:
        """The tensor of what `[key]` selects; whether that is a single element; whether it is a copy."""
        parts = [tracer.realized(item) for item in key.items] if isinstance(key, TupleValue) else [key]
        if len(parts) == 1 and isinstance(parts[0], ArrayValue):
            return self._selected(tracer, parts[0]), False, True
        checked = [_index(tracer, part, self) for part in parts]
        whole = [part for part in checked if type(part) is int]
        if len(whole) == len(checked) == len(self.shape) and self.scalar:
            raise unsupported("subscript", f"subscript of {self.describe(tracer)}")
        exact = [ConstantValue(at) if type(at) is int else part for at, part in zip(checked, parts, strict=True)]
        part = tracer.record_method("__getitem__", [self.tensor, tracer.row(exact)], {})
        assert isinstance(part, TensorValue)
        return part, len(whole) == len(checked) == len(self.shape), False

    def _selected(self, tracer: Tracer, index: ArrayValue) -> Value:
        if index.dtype.kind != "i" or index.scalar or self.scalar:
            raise unsupported("subscript", f"subscript of {self.describe(tracer)} by {index.describe(tracer)}")
        whole = tracer.record_method("long", [index.tensor], {})
        return tracer.record_method("__getitem__", [self.tensor, whole], {})

    def _element_at_entry(self, tracer: Tracer, key: Value) -> Value | None:
        """A single element of an array that nothing was written to so far: a Python-side number, read in each call."""
        if (
            self.obj is None
            or self.source is None
            or tracer.recorder.writes
            or tracer.later
            or not isinstance(key, ConstantValue)
        ):
            return None
        if len(self.shape) != 1 or self.dtype.kind not in "if" or key.python_type(tracer) is not int:
            return None
        changing = isinstance(key, NumberValue) and is_changing(key)
        at = key.example if changing else key.constant()  # type: ignore[attr-defined]
        if not -self.shape[0] <= at < self.shape[0]:
            return None
        place = key.source if changing else ConstantSource(repr(at), at)
        source = CallSource(operator.getitem, (self.source, place))  # type: ignore[arg-type]
        tracer.array_elements.add(source)
        first = changing_number(tracer, self.obj[at], source)
        return NumberValue(first.example, source, tracer, unsteady=first.unsteady)  # each read makes another number

    # -- leaving the frame --
    def recipe(self, exits: ExitBuilder) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        return CallRecipe(Constant(to_number if self.scalar else to_array), [exits.recipe(self.tensor)])


def _selects_elements(key: Value) -> bool:
    """Whether a subscript selects elements one by one: by truths, or by several arrays or lists of positions."""
    if isinstance(key, ListValue):
        return True
    if isinstance(key, ArrayValue):
        return key.dtype.kind == "b"
    return isinstance(key, TupleValue) and any(isinstance(part, (ArrayValue, ListValue)) for part in key.items)


def _holds_truths(key: Value) -> bool:
    parts = key.items if isinstance(key, (TupleValue, ListValue)) else [key]
    return any(isinstance(part, ArrayValue) and part.dtype.kind == "b" for part in parts)


def _index(tracer: Tracer, part: Value, array: ArrayValue) -> Any:
    """One part of a basic index, checked: int, slice, None or Ellipsis."""
    if isinstance(part, SliceValue):
        bounds = [tracer.constant_of(at, "a bound of a slice") for at in (part.start, part.stop, part.step)]
        if all(bound is None or type(bound) is int for bound in bounds) and (bounds[2] is None or bounds[2] > 0):
            return slice(*bounds)
    elif isinstance(part, ConstantValue):
        constant = part.constant()
        if constant is None or constant is ... or type(constant) is int:
            return constant
        if is_number(constant) and not isinstance(constant, float):
            return operator.index(constant)
    raise unsupported("subscript", f"subscript of {array.describe(tracer)} by {part.describe(tracer)}")


def made(tracer: Tracer, tensor: Value, scalar: bool = False) -> ArrayValue:
    """The array (or number) of a tensor that the graph made under NumPy's rules."""
    assert isinstance(tensor, TensorValue)
    fake = tensor.fake
    if not has_fixed_sizes(fake):
        raise unsupported("data-dependent-value", f"an array of shape {tuple(fake.shape)}")
    if fake.dtype not in NUMPY_OF or fake.requires_grad or fake.device.type != "cpu" or not fake.numel():
        raise unsupported("torch-result", f"an array of dtype {fake.dtype} and shape {tuple(fake.shape)}")
    rely_on_error_modes(tracer)
    return ArrayValue(tensor, scalar=scalar)


def rely_on_error_modes(tracer: Tracer) -> None:
    """Divisions by zero and the like raise nothing: relied on once for a capture."""
    if not errors_are_no_exceptions():
        raise unsupported("call-builtin", "NumPy, while numpy.seterr asks for more than warnings")
    if not tracer.relies_on_error_modes:
        tracer.relies_on_error_modes = True
        tracer.guard(CallSource(errors_are_no_exceptions), GuardKind.EQUALS, True)


_FACTS: dict[str, Callable[[Any, ArrayValue], Value]] = {
    "shape": lambda tracer, array: tracer.known(array.shape),
    "ndim": lambda tracer, array: ConstantValue(len(array.shape)),
    "size": lambda tracer, array: ConstantValue(array.tensor.fake.numel()),
    "itemsize": lambda tracer, array: ConstantValue(array.dtype.itemsize),
    "nbytes": lambda tracer, array: ConstantValue(array.dtype.itemsize * array.tensor.fake.numel()),
    "dtype": lambda tracer, array: tracer.known(array.dtype),
}


class ArrayMethodValue(Value):
    """A bound method of an array."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: ArrayValue, name: str) -> None:
        self.source = None
        self.owner = owner
        self.name = name

    def python_type(self, tracer: Tracer) -> type:
        return type([].append)

    def describe(self, tracer: Tracer) -> str:
        return f"the method ndarray.{self.name}"

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return tracer.call_handler(array_methods[self.name], [self.owner, *args], kwargs)

    def recipe(self, exits: ExitBuilder) -> Recipe:
        return GetAttr(exits.recipe(self.owner), self.name)
