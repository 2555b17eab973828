"""Objects that a printed host program binds when it loads: kernels, library functions, constants, templates, memory.

All lookups happen here once; the printed `call` only runs. Nothing here plans or prints.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from stator.base import logs
from stator.base.errors import MissingToolchain, VerificationError
from stator.prims.operators.checks import numbers_in, require
from stator.prims.operators.recurrent_layer import run_layer, run_layer_backward

from . import launch
from .attention_masks import masked_attention, masked_attention_backward
from .cuda.products import direct_product
from .cuda.segments import Step, make_segment
from .few_rows import few_rows_product, few_rows_product_of_sizes
from .mask_indices import true_indices
from .matrix_products import linear_product, product_of_sizes
from .memory.arena import ArenaUser, Block, SizedSlot, Slot, idle_on, placed_arena
from .memory.huge_pages import in_huge_pages, in_huge_pages_if_large, is_large
from .memory.ownership import memory_reuser
from .memory.placement import Piece
from .tile_products import tile_product, tile_product_of_sizes

Size = tuple[int, ...]


class DeviceKernel(Protocol):
    """A kernel of a GPU. `bind` returns a callable that launches it on `count` tensors, with these sizes."""

    def bind(self, count: int, sizes: Size = ()) -> Callable[..., None]: ...


Kernel = int | DeviceKernel  # the address of a C++ kernel, or a kernel of a GPU
Kernels = Mapping[tuple[str, str], Kernel]  # by symbol and device
_SIZES, _BOUND = 128, 1 << 15  # for which a program keeps its code: so many, or more if it binds little for each

_FUNCTIONS = torch._C._VariableFunctions

# Operators whose torch function takes the schema's arguments in order. A direct call skips the generic argument
# handling of an OpOverload, about 0.5 us a call.
DIRECT = {
    **{f"aten.{name}.{kind}": name for name in ("mm", "bmm", "addmm", "baddbmm") for kind in ("default", "out")},
    **{f"aten.{name}.{kind}": name for name in ("mv", "addmv", "dot") for kind in ("default", "out")},
    "aten.convolution.default": "convolution",
    "aten.randint.low": "randint",
    "aten.mkldnn_convolution.default": "mkldnn_convolution",
}


# Operators that are functions of Python
PYTHON: dict[str, Callable[..., Any]] = {
    "aten._local_scalar_dense.default": torch.Tensor.item,
    "aten.item.default": torch.Tensor.item,
    "stator.few_rows_product.default": few_rows_product,
    "stator.linear_product.default": linear_product,
    "stator.masked_attention.default": masked_attention,
    "stator.masked_attention_backward.default": masked_attention_backward,
    "stator.recurrent_layer.default": run_layer,
    "stator.recurrent_layer_backward.default": run_layer_backward,
    "stator.require.default": require,
    "stator.tile_product.default": tile_product,
    "stator.tolist.default": numbers_in,
    "stator.true_indices.default": true_indices,
}


# Operators whose quickest implementation depends on the sizes of their arguments: a function from these sizes to it
OF_SIZES: dict[str, Callable[..., Callable[..., Any]]] = {
    "stator.few_rows_product.default": few_rows_product_of_sizes,
    "stator.linear_product.default": product_of_sizes,
    "stator.tile_product.default": tile_product_of_sizes,
}


class Binder:
    """The argument of a printed program's `bind`.

    constants: tensors by buffer name. objects: by name, objects that have no text (such as call targets that are no
        registered operators). Raises MissingToolchain without the C extension.
    """

    def __init__(
        self,
        kernels: Kernels,
        constants: Mapping[str, torch.Tensor],
        objects: Mapping[str, Any],
    ) -> None:
        if not launch.native():
            raise MissingToolchain("stator was installed without a C compiler, which compiled programs need")
        self._kernels, self._constants, self._objects = kernels, constants, objects
        self._makers: dict[tuple[torch.dtype, str], Callable[[Size, Size], torch.Tensor]] = {}

    def kernel(
        self, symbol: str, count: int, device: str = "cpu", *, small: bool = False, sizes: Size = ()
    ) -> Callable[..., None]:
        """Return a callable that runs a kernel on `count` tensors of a device, with these sizes."""
        built = self._kernels[symbol, device]
        if isinstance(built, int):
            return launch.make_kernel(built, count, symbol, small=small, sizes=sizes)
        return built.bind(count, sizes)

    def kernel_of_sizes(self, symbol: str, count: int, device: str = "cpu") -> Callable[[Size], Callable[..., None]]:
        """Return a function from sizes, which are others in each call, to `kernel`."""
        return lambda sizes: self.kernel(symbol, count, device, sizes=sizes)

    def constant(self, name: str) -> torch.Tensor:
        return self._constants[name]

    def number(self, value: int, device: str) -> torch.Tensor:
        """Make an int64 tensor that no code writes to."""
        return torch.tensor(value, dtype=torch.int64, device=device)

    def real_number(self, value: float, device: str) -> torch.Tensor:
        """Make a float64 tensor that no code writes to."""
        return torch.tensor(value, dtype=torch.float64, device=device)

    def object(self, name: str) -> Any:
        return self._objects[name]

    def operator(self, name: str) -> Callable[..., Any]:
        """Return a callable for "namespace.operator.overload"."""
        if name in PYTHON:
            return PYTHON[name]
        if name in DIRECT and hasattr(_FUNCTIONS, DIRECT[name]):
            return getattr(_FUNCTIONS, DIRECT[name])
        return getattr(_overload(name), "_op", None) or _overload(name)

    def operator_of_sizes(self, name: str, *sizes: Size) -> Callable[..., Any]:
        """Return a callable for an operator of `OF_SIZES`, for tensors of these sizes."""
        return OF_SIZES[name](*sizes)

    def operator_into(self, name: str, device: str = "cpu") -> Callable[..., Any]:
        """Return a callable for the operator that takes `out=`, a tensor of this device."""
        known = name in DIRECT and hasattr(_FUNCTIONS, DIRECT[name])
        usual = getattr(_FUNCTIONS, DIRECT[name]) if known else _out_variant(_overload(name))
        return direct_product(name, usual, torch.device(device))

    def segment(self, device: str, count: int, steps: Sequence[Step]) -> Callable[..., None]:
        """Return a callable that runs launches and products, none of which allocates, on `count` tensors of a GPU."""
        return make_segment(torch.device(device), count, steps)

    def template(self, size: Size, stride: Size, dtype: torch.dtype, device: str) -> torch.Tensor:
        """Make a tensor of this layout without memory; `torch.empty_like` of it is the quickest way to a fresh
        tensor."""
        with torch._C._InferenceMode(False):
            # unlike `as_strided`, it asks for no memory: a program makes templates in its first call for some sizes
            return torch.ops.aten._reshape_alias(torch.empty(0, dtype=dtype, device=device), size, stride)

    def allocation(self, size: Size, stride: Size, dtype: torch.dtype, device: str) -> Callable[[], torch.Tensor]:
        """Return the quickest function that makes fresh tensors of this layout."""

        def prepare(size: Size, stride: Size) -> torch.Tensor | None:
            return self.template(size, stride, dtype, device) if _is_dense(size, stride) else None

        make = launch.make_allocation(self._maker(dtype, device), size, stride, prepare)
        return in_huge_pages(make) if is_large(size, dtype, device) else make

    def allocator(self, dtype: torch.dtype, device: str) -> Callable[[Size, Size], torch.Tensor]:
        """Return the quickest function that makes fresh tensors of a size and a stride that are others in each call."""
        make = self._maker(dtype, device)
        return in_huge_pages_if_large(make) if device == "cpu" else make

    def _maker(self, dtype: torch.dtype, device: str) -> Callable[[Size, Size], torch.Tensor]:
        if (dtype, device) not in self._makers:
            self._makers[dtype, device] = self.template((0,), (1,), dtype, device).new_empty_strided
        return self._makers[dtype, device]

    memory_reuser = staticmethod(memory_reuser)

    def layout_check(
        self, name: str, size: Size, stride: Size, dtype: torch.dtype, device: str, repaired: set[str]
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the layout check for a library result in every call after the first (some 20 ns); see `conform`. A
        library may choose a kernel, and so a result layout, by its current settings."""

        def repair(result: torch.Tensor) -> torch.Tensor:
            return conform(result, name, size, stride, dtype, None, repaired)

        return launch.make_layout_check(self.template(size, stride, dtype, device), repair)

    def sized_layout_check(
        self, name: str, dtype: torch.dtype, repaired: set[str]
    ) -> Callable[[torch.Tensor, Size, Size], torch.Tensor]:
        """Return the layout check for a library result of a layout that is another in each call: called with the
        result, its promised size and its promised stride; see `layout_check`."""

        def check(result: torch.Tensor, size: Size, stride: Size) -> torch.Tensor:
            if result.shape == size and result.stride() == stride and result.dtype is dtype:
                return result
            return conform(result, name, size, stride, dtype, None, repaired)

        return check

    def for_sizes(
        self, at: Callable[..., Callable[..., Any]], places: tuple[tuple[int, int], ...], boxed: bool = False
    ) -> Callable[..., Any]:
        """Return the program whose code for some sizes is `at(*sizes)`; see `launch.make_sized_call`."""
        return launch.make_sized_call(BoundSizes(at), places, boxed)

    def arena(self, device: str, size: int, slots: Sequence[Slot]) -> ArenaUser:
        return ArenaUser(size, slots, torch.device(device))

    def placed_arena(self, device: str, pieces: Sequence[Piece], slots: Sequence[SizedSlot]) -> ArenaUser:
        return placed_arena(pieces, slots, torch.device(device))

    def idle_on(self, device: str) -> Callable[[], deque[Block]]:
        """Return the function that finds the idle blocks of a GPU's current stream."""
        return idle_on(torch.device(device))

    def static_view(self, size: Size, stride: Size, offset: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return launch.make_static_view(size, stride, offset)

    def view(self, base: torch.Tensor, size: Size, stride: Size, offset: int) -> torch.Tensor:
        """Return a view relative to the start of `base`."""
        return torch.as_strided(base, size, stride, base.storage_offset() + offset)


class BoundSizes(dict[Size, Callable[..., Any]]):
    """The code of a program for the sizes that it has met; the oldest is forgotten where there are many.

    A step of a long loop over growing sizes may take less time than making its code again.
    """

    def __init__(self, at: Callable[..., Callable[..., Any]]) -> None:
        self.at = at
        self.most = max(_SIZES, _BOUND // (1 + len(at.__code__.co_cellvars)))

    def __missing__(self, sizes: Size) -> Callable[..., Any]:
        while len(self) >= self.most:
            self.pop(next(iter(self)), None)
        made = self[sizes] = self.at(*sizes)
        return made


def _is_dense(size: Size, stride: Size) -> bool:
    """True if the strides belong to some order of the dimensions without gaps, which empty_like preserves."""
    expected = 1
    for step, length in sorted(zip(stride, size, strict=True)):
        if length == 1:
            continue
        if step != expected or length == 0:
            return False
        expected *= length
    return True


def _overload(name: str) -> Any:
    namespace, operator, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), operator), overload)


def _out_variant(overload: Any) -> Callable[..., Any]:
    """Return the overload with one more argument, `out`. Raises VerificationError if there is none."""
    if any(argument.is_out for argument in overload._schema.arguments):
        return overload._op
    wanted = [str(argument.type) for argument in overload._schema.arguments]
    packet = overload.overloadpacket
    for name in packet.overloads():
        candidate = getattr(packet, name)
        arguments = candidate._schema.arguments
        given = [str(argument.type) for argument in arguments if not argument.is_out]
        outs = [argument.name for argument in arguments if argument.is_out]
        if outs == ["out"] and given == wanted:
            return candidate._op
    raise VerificationError(f"{overload} has no variant that takes out=")


def check_size(out: torch.Tensor, name: str, size: Size) -> None:
    """Raise VerificationError if an operator resized its `out` tensor."""
    if tuple(out.shape) != size:
        raise VerificationError(f"{name} was promised as {list(size)}, but the call made it {list(out.shape)}")


def conform(
    result: Any,
    name: str,
    size: Size,
    stride: Size,
    dtype: torch.dtype,
    memory: torch.Tensor | None,
    repaired: set[str],
) -> torch.Tensor:
    """Return a library result in the layout that the kernels expect, in memory of its own.

    That is mostly the result itself, else a copy, whose name is added to `repaired` so that later calls check again.
    `memory`: the intermediates' memory, which results must not share. Raises VerificationError for a wrong size or
    dtype.
    """
    if not isinstance(result, torch.Tensor) or tuple(result.shape) != size or result.dtype != dtype:
        met = f"{result.dtype} {list(result.shape)}" if isinstance(result, torch.Tensor) else type(result).__name__
        raise VerificationError(
            f"{name} was promised as {dtype} {list(size)}, but the call returned {met}: "
            "the operator's shape rule is wrong"
        )
    strides = zip(result.stride(), stride, size, strict=True)
    same = 0 in size or all(one == other or length == 1 for one, other, length in strides)
    borrowed = memory is not None and result.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()
    if same and not borrowed:
        return result
    repaired.add(name)
    logs.warn_once(
        f"conform:{name}:{size}:{stride}",
        f"stator: {name} was promised as {dtype} {list(size)} with strides {list(stride)} in memory of its own, but "
        f"the library returned strides {list(result.stride())}{' in memory of others' if borrowed else ''}; "
        "it is copied in every call",
    )
    return torch.empty_strided(size, stride, dtype=dtype, device=result.device).copy_(result)
