"""Fake tensors: shape, strides, dtype, device and aliasing of a tensor without data, plus its value if known.

Operators on them run in the mode (`fake_mode.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch._ops import OpOverload, OpOverloadPacket

from stator.base.errors import Unsupported
from stator.prims.record import TensorMeta
from stator.shapes.sym_node import rely_on_elements, storage_bytes

from .number_stand_ins import DataDependent

aten = torch.ops.aten
_wrapper = torch.Tensor._make_wrapper_subclass

_CHOOSES_AN_OVERLOAD = OpOverloadPacket.__call__.__code__


@dataclass(slots=True)
class TrackedMemory:
    """The known elements `flat` of a storage at `version`. Elements where `unset` is true are unknown."""

    flat: torch.Tensor
    unset: torch.Tensor
    version: int
    known_from: frozenset[Any] = field(default_factory=frozenset)

    def value(self, meta: TensorMeta) -> torch.Tensor | None:
        """Return the value of a tensor in this memory; None if some of its elements are unknown."""
        if not _is_plain(meta, self.flat):
            return None
        place = (meta.shape, meta.stride, meta.offset)
        return None if self.unset.as_strided(*place).any() else self.flat.as_strided(*place).clone()

    def write(self, meta: TensorMeta, value: Any, known_from: frozenset[Any]) -> bool:
        """Overwrite the elements of a tensor in this memory; return False if the write cannot be tracked."""
        if not _is_plain(meta, self.flat):
            return False
        place = (meta.shape, meta.stride, meta.offset)
        part = self.flat.as_strided(*place)
        if isinstance(value, torch.Tensor):
            part.copy_(value)
        else:
            part.fill_(value)
        self.unset.as_strided(*place).fill_(False)
        self.known_from |= known_from
        return True


def _is_plain(meta: TensorMeta, flat: torch.Tensor) -> bool:
    return meta.dtype is flat.dtype and all(type(n) is int for n in (*meta.shape, *meta.stride, meta.offset))


class FakeTensorMode(Protocol):
    """The mode of a fake tensor, as the tensor calls it (implemented by fake_mode.FakeMode)."""

    over: bool

    def dispatch(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def make(self, meta: TensorMeta, *, requires_grad: bool = False) -> FakeTensor: ...
    def rely_on(self, known_from: frozenset[Any]) -> bool: ...
    def set_data(self, tensor: FakeTensor, new: Any) -> None: ...
    def unknown_size(self) -> Any: ...
    def counted(self, mask: FakeTensor) -> Any: ...
    def listed(self, fake: FakeTensor) -> Any: ...


class FakeStorage:
    """The memory that fake tensors share. `version` counts writes; `meta` is the layout of the storage's owner.

    node: the tracer's graph value of the current contents. tracked: known contents of small memory. unannounced: the
        number of writes that do not bump autograd's version counter.
    """

    __slots__ = ("__weakref__", "meta", "node", "tracked", "unannounced", "version")

    def __init__(self, meta: TensorMeta) -> None:
        self.meta = meta
        self.version = 0
        self.unannounced = 0
        self.node: Any = None
        self.tracked: TrackedMemory | None = None


class FakeTensor(torch.Tensor):
    """A tensor without data. Autograd and Python see its shape, strides, dtype, device and requires_grad. Attributes:
    `fake_mode`, `meta` (TensorMeta), `fake_storage` (FakeStorage), `constant` (its value, or None)."""

    fake_mode: FakeTensorMode
    meta: TensorMeta
    fake_storage: FakeStorage
    constant: torch.Tensor | None
    constant_version: int
    # These three belong to functionalize.FunctionalTracer.
    node: Any = None
    seen: int = 0
    steps: tuple[Any, ...] = ()
    is_input: bool = False
    detached: bool = False  # made by `detach()`, or a view of such a tensor
    is_data: bool = False  # made by `.data`, or a view of such a tensor: has its own version counter
    # The real tensor behind a constant.
    real_value: torch.Tensor | None = None
    # The origins of the known value, if it may differ in the next call: see FakeMode.rely_on.
    known_from: frozenset[Any] = frozenset()
    # The number in a tensor without dimensions, if it follows from sizes: see scalar_expressions.
    scalar: Any = None
    # The storage and version that hold fresh uniform random numbers: see rng_comparisons.
    drawn: tuple[FakeStorage, int] | None = None

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(
        cls, mode: FakeTensorMode, meta: TensorMeta, storage: FakeStorage | None = None, requires_grad: bool = False
    ) -> FakeTensor:
        rely_on_elements(meta.shape)
        tensor = _wrapper(
            cls,
            meta.shape,
            strides=meta.stride,
            storage_offset=meta.offset,
            dtype=meta.dtype,
            device=meta.device,
            requires_grad=requires_grad,
            storage_size=storage_bytes(meta.shape, meta.stride, meta.offset, meta.dtype.itemsize),
        )
        tensor.fake_mode = mode
        tensor.meta = meta
        tensor.fake_storage = FakeStorage(meta) if storage is None else storage
        tensor.constant = None
        return tensor

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Return a text for readers of graphs; refuse while capturing, because the program would see no numbers in it.

        str(), format(), f-strings and logging all come here. Torch's overload resolution comes here too, after an
        overload rejected this tensor.
        """
        if not self.fake_mode.over and sys._getframe(1).f_code is not _CHOOSES_AN_OVERLOAD:
            raise Unsupported(
                "format", "the text of a tensor, asked for while capturing", hint="format it outside of the graph"
            )
        grad = ", requires_grad=True" if self.requires_grad else ""
        return f"FakeTensor({tuple(self.shape)}, {self.dtype}, {self.device}{grad})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Dispatch to the mode of the first fake tensor among the arguments. Called when no mode is on, and for
        wrapper subclasses."""
        if any(kind is not FakeTensor and hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented
        found: list[FakeTensor] = []
        collect((args, kwargs), found)
        return found[0].fake_mode.dispatch(func, args, kwargs or {})

    def known_value(self) -> torch.Tensor | None:
        """Return the value if it is known and still current; then the mode relies on its origins."""
        value = self.tracked_value()
        if value is not None and self.known_from and not self.fake_mode.rely_on(self.known_from):
            return None
        return value

    def tracked_value(self) -> torch.Tensor | None:
        """Like `known_value`, but rely on nothing yet. For computing further known values."""
        constant, storage = self.constant, self.fake_storage
        if constant is not None and self.constant_version == storage.version:
            return constant
        memory = storage.tracked
        if memory is not None and memory.version == storage.version and not self.is_neg():
            with torch._C._InferenceMode(False):
                self.hold(memory.value(self.meta), memory.known_from)
            return self.constant if self.constant is not constant else None
        return None

    def hold(self, value: torch.Tensor | None, known_from: frozenset[Any] = frozenset()) -> None:
        """Set the value, valid until the next write. A `value` that is None or of another shape or dtype is ignored."""
        if value is not None and (value.shape, value.dtype) == (self.shape, self.dtype):
            self.constant, self.constant_version = value, self.fake_storage.version
            self.known_from = known_from

    def tolist(self) -> Any:
        value = self.known_value()
        return self.fake_mode.listed(self) if value is None else value.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise DataDependent("tensor-data", "Tensor.numpy() needs the data of a tensor that is being traced")

    def __array__(self, dtype: Any = None) -> Any:
        raise DataDependent(
            "tensor-data", "converting to a NumPy array needs the data of a tensor that is being traced"
        )

    def data_ptr(self) -> int:
        raise DataDependent("tensor-data", "Tensor.data_ptr() asks for the address of a tensor that is being traced")

    def __deepcopy__(self, memo: dict[int, Any]) -> FakeTensor:
        copy = self.fake_mode.make(self.meta, requires_grad=self.requires_grad)
        memo[id(self)] = copy
        return copy

    def with_lazy_bits_of(self, base: torch.Tensor, func: OpOverload | None = None) -> FakeTensor:
        """Copy the conjugate and negative bits of `base`, flipped by `func`; return this tensor, a view of `base`."""
        conjugated, negated = base.is_conj(), base.is_neg()
        if conjugated != (func is aten._conj.default):
            torch._C._set_conj(self, True)
        if negated != (func is aten._neg_view.default):
            torch._C._set_neg(self, True)
        return self

    @property
    def nbytes(self) -> Any:  # type: ignore[override]
        """torch's own fails for symbolic sizes."""
        return self.numel() * self.element_size()

    @property
    def data(self) -> FakeTensor:  # type: ignore[override]
        found: FakeTensor = torch.Tensor.data.__get__(self)  # type: ignore[attr-defined]
        found.is_data = True
        return found

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        self.fake_mode.set_data(self, new)


def collect(value: Any, into: list[FakeTensor]) -> None:
    if isinstance(value, FakeTensor):
        into.append(value)
    elif isinstance(value, (tuple, list)):
        for item in value:
            collect(item, into)
    elif isinstance(value, dict):
        for item in value.values():
            collect(item, into)


def tensor_position(args: Sequence[Any], where: int) -> int:
    """Count the tensors before argument `where` among the flattened arguments."""
    return sum(len(flat_tensors(value)) for value in args[:where])


def flat_tensors(value: Any, kind: type = FakeTensor) -> list[Any]:
    """Return the tensors in nested tuples and lists, in order."""
    if isinstance(value, kind):
        return [value]
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in flat_tensors(item, kind)]
    return []
