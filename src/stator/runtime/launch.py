"""Addresses to callables: kernels called on tensors, and cached views of parameters. Facts about lists of tensors.

The C extension implements both. Without it no program is loaded (`native`), and tensors are asked for the facts.
Nothing here allocates memory.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import ref

import torch

from .tensor_impl import calibrate

try:
    from . import _launch  # type: ignore[attr-defined]
except ImportError:  # installed without a C compiler
    _launch = None

UNCHECKED_VERSION = -1

Size = tuple[int, ...]

if _launch is not None:
    _offsets = calibrate()
    _launch.install(
        None if _offsets is None else _offsets.as_tuple(),
        torch.Tensor,
        torch.Tensor.data_ptr,
        torch.as_strided,
        torch.Tensor.storage_offset,
        torch.Tensor.untyped_storage,
        torch.get_num_threads,
    )


def native() -> bool:
    """Whether the C extension was built; if not, no `make_` function works."""
    return _launch is not None


def make_kernel(
    address: int, count: int, name: str, *, small: bool = False, sizes: tuple[int, ...] = ()
) -> Callable[..., None]:
    """Return a callable that runs the kernel at `address` on `count` tensors (ABI in kernel_abi.md).

    small: keep the interpreter lock, because the kernel is very short. sizes: the kernel's size arguments. The callable
        raises IndexError if the kernel met an index out of range, TypeError for wrong arguments, RuntimeError for a
        tensor without memory. Raises OverflowError for a size of more than 64 bits.
    """
    return _launch.Kernel(address, count, name, small, sizes)


def make_sized_call(
    known: Mapping[tuple[int, ...], Callable[..., Any]], places: tuple[tuple[int, int], ...], boxed: bool
) -> Callable[..., Any]:
    """Return a callable that reads sizes from its arguments, and calls `known[sizes]` with the arguments.

    places: for each size the position of an argument and a dimension; dimension -1 of an int is the int itself.
    boxed: arguments come in one list; also an attribute of the callable.
    """
    return _launch.SizedCall(known, places, boxed)


def make_allocation(
    make: Callable[[Size, Size], torch.Tensor],
    size: Size,
    stride: Size,
    prepare: Callable[[Size, Size], torch.Tensor | None],
) -> Callable[[], torch.Tensor]:
    """Return a callable that makes fresh tensors: by `make` at first, later like the template from `prepare`, unless
    that is None."""
    return _launch.Allocation(make, size, stride, prepare, torch._C._VariableFunctions.empty_like)


def make_static_view(
    size: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a callable that makes this view of a tensor, relative to the tensor's start; cached until its storage
    changes."""
    return _launch.StaticView(size, stride, offset)


def make_layout_check(
    template: torch.Tensor, repair: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a callable that returns its tensor if it has the layout, dtype and device of `template`, else `repair` of
    it."""
    return _launch.LayoutCheck(template, repair)


def make_step_call(
    apply: Callable[..., Any],
    step: object,
    run: Callable[..., Sequence[Any]],
    value_count: int,
    results: list[int],
    saved: tuple[int, ...],
    placed: bool,
    states: Callable[[], Any] | None,
    distinct: Callable[[tuple[Any, ...]], tuple[Any, ...]],
    constants: tuple[int, ...] = (),
    written: tuple[int, ...] = (),
    general: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Return a callable of primals that calls apply(itself, *primals) of an autograd function whose forward is
    `step_forward`.

    That calls run(*primals) -> at least `value_count` tensors, the values, and keeps in autograd's context what
    aot/autograd/step_function.py describes. results: positions of the values that the caller receives. saved: places of
    primals that the backward reads, and inverted (~) positions of results. placed: whether the backward asks for the
    memory of primals. states: called ahead of a run, gives the states of random generators. distinct: makes values
    distinct if one occurs twice. constants: positions of values that cannot be differentiated. written: places of
    primals that `run` writes to, whose old contents no gradient depends on; general: called instead if one of them
    requires grad.
    """
    return _launch.StepCall(  # type: ignore[no-any-return]
        *(apply, step, run, value_count, results, saved, placed, states, distinct, constants, written, general),
        partial(torch._C._autograd._top_saved_tensors_default_hooks, True),
    )


def dispatch_keys(tensor: torch.Tensor) -> int:
    """Return the dispatch keys of a tensor as a number."""
    return torch._C._dispatch_keys(tensor).raw_repr()


def layouts(tensors: Sequence[torch.Tensor]) -> Any:
    """Return an object that is equal for tensors of equal strides and dispatch keys."""
    return [(tensor.stride(), dispatch_keys(tensor)) for tensor in tensors]


def places(tensors: Sequence[torch.Tensor]) -> bytes:
    """Return the storage of each tensor, as the address of its C++ object, and its offset there: pairs of int64."""
    pairs = [(tensor.untyped_storage()._cdata, tensor.storage_offset()) for tensor in tensors]
    return array("q", itertools.chain.from_iterable(pairs)).tobytes()


def addresses(tensors: Sequence[torch.Tensor]) -> bytes:
    """Return the address of the first element of each tensor: int64 numbers."""
    return array("q", [tensor.data_ptr() for tensor in tensors]).tobytes()


def lie_at(tensors: Sequence[torch.Tensor], known: bytes) -> bool:
    """Return whether the tensors lie at the places that `places` returned."""
    return places(tensors) == known


def memory(tensors: Sequence[torch.Tensor]) -> tuple[bytes, list[torch.UntypedStorage]]:
    """Return the places of tensors, and their storages: while these live, no other storage has their addresses."""
    return places(tensors), [tensor.untyped_storage() for tensor in tensors]


def versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return the version of each tensor, UNCHECKED_VERSION for tensors made in inference mode, which have none."""
    return [UNCHECKED_VERSION if tensor.is_inference() else tensor._version for tensor in tensors]


def references(values: Sequence[Any], positions: Sequence[int]) -> list[tuple[int, ref[torch.Tensor], int]]:
    """Return the position, a weak reference and the version of the tensors at some positions."""
    return [(at, ref(values[at]), values[at]._version) for at in positions]


def are_distinct(values: Sequence[Any]) -> bool:
    """Return whether no object but None occurs twice."""
    ids = [id(value) for value in values if value is not None]
    return len(set(ids)) == len(ids)


def spans_are_disjoint(tensors: Sequence[torch.Tensor], sizes: bytes, written: bytes, order: bytearray) -> bool:
    """Return whether no written tensor shares a byte with another, where tensors span so many bytes each (int64).

    order: their places (int64) by rising addresses in an earlier call, or in any order; brought up to date.
    """
    starts, spans = [tensor.data_ptr() for tensor in tensors], memoryview(sizes).cast("q")
    places = memoryview(order).cast("q")
    end = end_of_written = 0
    for index, at in enumerate(sorted(places, key=starts.__getitem__)):
        places[index] = at
        start, size = starts[at], spans[at]
        if not size:
            continue
        if start < (end if written[at] else end_of_written):
            return False
        end = max(end, start + size)
        if written[at]:
            end_of_written = max(end_of_written, start + size)
    return True


def uses(tensors: list[torch.Tensor], storages: list[torch.UntypedStorage]) -> bytes:
    """Return the reference counts of tensors and of the storages at equal places in the other list, and what describes
    the tensors. Needs the C extension and a calibrated layout."""
    raise NotImplementedError


def uses_are(tensors: list[torch.Tensor], storages: list[torch.UntypedStorage], known: bytes) -> bool:
    """Return whether `uses` would return this again."""
    raise NotImplementedError


def with_aliases(items: list[Any], positions: list[int], tensors: list[torch.Tensor]) -> list[Any]:
    """Return a copy of a list that has, at each position, another tensor of the memory of one of the tensors. Needs a
    context below autograd."""
    made = items.copy()
    for at, tensor in zip(positions, tensors, strict=True):
        made[at] = tensor.detach()
    return made


# forward of an autograd function around a step, see `make_step_call`; None where only Python can do its work
step_forward: Callable[..., Any] | None = None

if _launch is not None and _offsets is not None:  # many times as fast
    step_forward = _launch.step_forward
    dispatch_keys, layouts, places = _launch.dispatch_keys, _launch.layouts, _launch.places
    lie_at, memory, versions = _launch.lie_at, _launch.memory, _launch.versions
    addresses, references, are_distinct = _launch.addresses, _launch.references, _launch.are_distinct
    spans_are_disjoint = _launch.spans_are_disjoint
    uses, uses_are, with_aliases = _launch.uses, _launch.uses_are, _launch.with_aliases
