"""How users name the sizes of a program's inputs, and the fake tensors made of these names for one run.

Never here: running the program.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from stator.base.errors import UsageError
from stator.graph.fake.fake_mode import FakeMode
from stator.prims.devices import as_device
from stator.prims.layout import contiguous_strides
from stator.prims.record import TensorMeta
from stator.shapes.environment import Environment
from stator.shapes.sym_node import to_sym_int

# No machine holds more elements along one dimension; a bound spares questions about the largest integers.
LARGEST_SIZE = 2**40
SMALLEST_SIZE = 2
# Primes, so that no example is a multiple, a half or a neighbour of another, and none is a usual width of a layer.
EXAMPLES = (37, 43, 53, 61, 71, 83, 97, 107, 131, 149, 167, 181, 197, 211, 227)


@dataclass(frozen=True, slots=True)
class Dim:
    """A named size, or a named int argument of a program.

    low, high: the inclusive range. Names stand for numbers of at least 2, because 0 and 1 behave unlike other sizes.
    example: a value to begin with, if the program needs a particular kind of number. Raises UsageError for an empty
    range, an example outside of the range, or a name that is no identifier.
    """

    name: str
    low: int = SMALLEST_SIZE
    high: int = LARGEST_SIZE
    example: int | None = None

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise UsageError(f"the name of a dimension has to be an identifier, not {self.name!r}")
        if self.high < max(self.low, SMALLEST_SIZE):
            raise UsageError(f"{self.name} has no value of at least 2 from {self.low} to {self.high}")
        if self.example is not None and not max(self.low, SMALLEST_SIZE) <= self.example <= self.high:
            raise UsageError(f"the example {self.example} of {self.name} is below 2 or outside of its range")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A contiguous input tensor without data. Each size is a number, a name or a `Dim`; equal names are equal sizes.

    device: that of the model's first parameter, or the CPU, if none is given.
    """

    shape: Sequence[int | str | Dim]
    dtype: torch.dtype = torch.float32
    device: str | torch.device | None = None
    requires_grad: bool = False


@dataclass(frozen=True, slots=True)
class _NamedExample:
    """A real tensor whose dimensions have names; only its metadata is used."""

    tensor: torch.Tensor
    names: tuple[int | Dim, ...]


class Inputs:
    """The arguments of a program, with specs in place of tensors; `dims` are their named dimensions by name.

    Raises UsageError for a name with two ranges or examples, or for names that do not fit a tensor.
    """

    def __init__(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        dims: Mapping[str | int, Any] | None,
        device: torch.device,
    ) -> None:
        self.device = device
        self.dims: dict[str, Dim] = {}
        if dims:
            args, kwargs = _with_names(target, args, kwargs, dims)
        leaves, self._structure = pytree.tree_flatten((args, kwargs))
        self._leaves = [self._read(leaf) for leaf in leaves]

    def _read(self, leaf: Any) -> Any:
        if isinstance(leaf, Dim):
            return self._dim(leaf)
        if isinstance(leaf, TensorSpec):
            shape = tuple(self._dim(size) for size in leaf.shape)
            return TensorSpec(shape, leaf.dtype, leaf.device or self.device, leaf.requires_grad)
        if isinstance(leaf, _NamedExample):
            for size in leaf.names:
                self._dim(size)
        return leaf

    def _dim(self, size: Any) -> Any:
        if isinstance(size, int):
            return size
        dim = size if isinstance(size, Dim) else Dim(size)
        known = self.dims.setdefault(dim.name, dim)
        if known == Dim(dim.name):
            self.dims[dim.name] = dim
        elif dim not in (known, Dim(dim.name)):
            raise UsageError(f"{dim.name} is given as {known} and as {dim}")
        return dim

    def examples(self) -> dict[str, int]:
        """Distinct values for all names: given ones, and primes."""
        found = {name: dim.example for name, dim in self.dims.items() if dim.example is not None}
        for name, dim in self.dims.items():
            if name not in found:
                fitting = [n for n in EXAMPLES if dim.low <= n <= dim.high and n not in found.values()]
                low = max(dim.low, SMALLEST_SIZE)
                found[name] = fitting[0] if fitting else low if dim.high < 2 * low else low + (dim.high - low) // 2
        return found

    def make(
        self, mode: FakeMode, environment: Environment, values: Mapping[str, int], fixed: bool = False
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments for one run, whose symbols have these example values. fixed: plain numbers in place of symbols."""
        symbols: dict[str, Any] = {}
        for name, dim in self.dims.items():
            value = values[name]
            if fixed or value < SMALLEST_SIZE:
                symbols[name] = value
            else:
                symbol = environment.symbol(name, value, max(dim.low, SMALLEST_SIZE), max(dim.high, value))
                symbols[name] = to_sym_int(environment, symbol)

        def size(of: Any) -> Any:
            return of if isinstance(of, int) else symbols[of.name if isinstance(of, Dim) else of]

        def argument(leaf: Any) -> Any:
            if isinstance(leaf, Dim):
                return symbols[leaf.name]
            if isinstance(leaf, TensorSpec):
                shape = tuple(map(size, leaf.shape))
                meta = TensorMeta(shape, contiguous_strides(shape), leaf.dtype, as_device(leaf.device))
                return mode.make(meta, requires_grad=leaf.requires_grad)
            if isinstance(leaf, _NamedExample):
                tensor, shape = leaf.tensor, tuple(map(size, leaf.names))
                meta = TensorMeta(shape, contiguous_strides(shape), tensor.dtype, tensor.device)
                return mode.make(meta, requires_grad=tensor.requires_grad)
            return mode.from_real(leaf) if isinstance(leaf, torch.Tensor) else leaf

        args, kwargs = pytree.tree_unflatten([argument(leaf) for leaf in self._leaves], self._structure)
        return args, kwargs


def _with_names(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], dims: Mapping[str | int, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Name the dimensions of example tensors, and ints, by position or by parameter."""
    positional, named = list(args), dict(kwargs)
    forward = target.forward if isinstance(target, torch.nn.Module) else target
    try:
        parameters = list(inspect.signature(forward).parameters)
    except (TypeError, ValueError):  # builtins have no signature
        parameters = []
    for key, names in dims.items():
        if key in named:
            named[str(key)] = _named(key, named[str(key)], names)
            continue
        at = key if isinstance(key, int) else parameters.index(key) if key in parameters else len(positional)
        if not 0 <= at < len(positional):
            raise UsageError(f"dims names {key!r}, which is not among the given arguments")
        positional[at] = _named(key, positional[at], names)
    return tuple(positional), named


def _named(key: Any, value: Any, names: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return names if isinstance(names, Dim) else Dim(names, example=value)
    if not isinstance(value, torch.Tensor):
        raise UsageError(f"dims names dimensions of {key!r}, which is a {type(value).__name__}, no tensor or int")
    if isinstance(names, Mapping):
        names = [names.get(dim) for dim in range(value.dim())]
    if len(names) != value.dim():
        raise UsageError(f"dims has {len(names)} names for {key!r}, a tensor of {value.dim()} dimensions")
    if value.layout is not torch.strided or not value.is_contiguous():
        raise UsageError(f"dims names dimensions of {key!r}, which is not contiguous")
    return _NamedExample(value, tuple(_example(name, size) for name, size in zip(names, value.shape, strict=True)))


def _example(name: Any, size: int) -> int | Dim:
    """A named size of an example tensor. A size of 0 or 1 stays an example only of the name."""
    if name is None or isinstance(name, int):
        return size
    if isinstance(name, Dim):
        return name
    return Dim(name, example=size) if size >= SMALLEST_SIZE else Dim(name)
