"""What a printed host program binds when it is loaded: kernels, library functions, constants, templates, memory.

Everything that can be looked up or built once is, here; the printed `call` only runs it. Nothing here plans or prints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from stator.base import logs
from stator.base.errors import VerificationError

from . import launch
from .arena import ArenaUser, Slot
from .ownership import taker

Size = tuple[int, ...]

_FUNCTIONS = torch._C._VariableFunctions

# Operators whose torch function takes the same arguments in the same order as the schema. Called directly they skip the
# generic argument handling of an OpOverload, about 0.5 us a call.
DIRECT = {
    **{f"aten.{name}.{kind}": name for name in ("mm", "bmm", "addmm", "baddbmm") for kind in ("default", "out")},
    **{f"aten.{name}.{kind}": name for name in ("mv", "addmv", "dot") for kind in ("default", "out")},
    "aten.convolution.default": "convolution",
    "aten.randint.low": "randint",
    "aten.mkldnn_convolution.default": "mkldnn_convolution",
}


def _library_keys() -> torch._C.DispatchKeySet:
    key, keys = torch._C.DispatchKey, torch._C.DispatchKeySet
    # AutogradFunctionality is the autograd of every backend. None here names a backend: up to torch 2.12 its bit would
    # stay in the thread's state when the context ends
    names = ("AutogradOther", "ADInplaceOrView", "AutocastCPU", "AutocastCUDA")
    excluded = keys(key.AutogradFunctionality)
    for name in names:
        if hasattr(key, name):
            excluded = excluded | keys(getattr(key, name))
    return excluded


_BELOW = _library_keys()


def below_autograd() -> Any:
    """A context in which operators run as they were traced: no autograd, no autocast; those have been compiled in."""
    return torch._C._ExcludeDispatchKeyGuard(_BELOW)


class Binder:
    """Handed to a printed program's `bind`.

    kernels: addresses by symbol; constants: tensors by buffer name; objects: what the text refers to by name because it
    cannot be written as text (call targets that are no registered operators, and the like).
    """

    def __init__(
        self,
        kernels: Mapping[str, int],
        constants: Mapping[str, torch.Tensor],
        objects: Mapping[str, Any],
    ) -> None:
        self._kernels, self._constants, self._objects = kernels, constants, objects

    def kernel(self, symbol: str, count: int, small: bool = False) -> Callable[..., None]:
        return launch.make_kernel(self._kernels[symbol], count, symbol, small=small)

    def constant(self, name: str) -> torch.Tensor:
        return self._constants[name]

    def number(self, value: int, device: str) -> torch.Tensor:
        """An int64 in memory that nobody writes to."""
        return torch.tensor(value, dtype=torch.int64, device=device)

    def object(self, name: str) -> Any:
        return self._objects[name]

    def operator(self, name: str) -> Callable[..., Any]:
        """A callable for "namespace.operator.overload" that returns its results."""
        if name in DIRECT and hasattr(_FUNCTIONS, DIRECT[name]):
            return getattr(_FUNCTIONS, DIRECT[name])
        return getattr(_overload(name), "_op", None) or _overload(name)

    def operator_into(self, name: str) -> Callable[..., Any]:
        """A callable for the same operator that takes `out=`."""
        if name in DIRECT and hasattr(_FUNCTIONS, DIRECT[name]):
            return getattr(_FUNCTIONS, DIRECT[name])
        return _out_variant(_overload(name))

    def template(self, size: Size, stride: Size, dtype: torch.dtype, device: str) -> torch.Tensor:
        """A tensor of this layout without memory; `torch.empty_like` of it is the quickest way to a fresh tensor."""
        with torch._C._InferenceMode(False):
            made = torch.empty_strided(size, stride, dtype=dtype, device=device)
            made.untyped_storage().resize_(0)
        return made

    taker = staticmethod(taker)

    def promise(
        self, name: str, size: Size, stride: Size, dtype: torch.dtype, device: str, repaired: set[str]
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """The check of a library result in every call after the first, some 20 ns: see `conform`.

        Which kernel a library picks can depend on its settings of the moment, and the layout of its result with it.
        """

        def repair(result: torch.Tensor) -> torch.Tensor:
            return conform(result, name, size, stride, dtype, None, repaired)

        return launch.make_promise(self.template(size, stride, dtype, device), repair)

    def arena(self, size: int, slots: Sequence[Slot]) -> ArenaUser:
        return ArenaUser(size, slots)

    def static_view(self, size: Size, stride: Size, offset: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return launch.make_static_view(size, stride, offset)

    def view(self, base: torch.Tensor, size: Size, stride: Size, offset: int) -> torch.Tensor:
        """A view relative to where `base` starts."""
        return torch.as_strided(base, size, stride, base.storage_offset() + offset)


def _overload(name: str) -> Any:
    namespace, operator, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), operator), overload)


def _out_variant(overload: Any) -> Callable[..., Any]:
    """The overload with the same arguments and one more, `out`. Raises VerificationError if there is none."""
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
    """Raise VerificationError when an operator resized the tensor that it was to write into."""
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
    """What a library call returned, in the layout that the kernels were compiled for and in memory of its own.

    That is nearly always the result itself; else a copy, whose name is noted in `repaired`: the check must then go on
    in later calls. `memory`: that of the intermediates, which results must not share. Raises VerificationError when it
    is not even a tensor of the promised size and dtype.
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
