"""A call of NumPy as one operator of a graph, `stator::numpy_call`: NumPy itself computes, on the memory of tensors, so
that results are NumPy's to the last bit. Which calls capture makes such a node of is not decided here; what a call is
written as, which functions it may name, and how it runs is.
"""

from __future__ import annotations

import ast
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from stator.prims.record import TensorMeta, shape_rule

numpy: Any = sys.modules.get("numpy")  # torch has imported it, where there is one

# Functions that change nothing, and give new arrays whose dtypes and sizes follow from dtypes, sizes and numbers alone.
_FUNCTIONS = """
    sort argsort lexsort partition argpartition searchsorted digitize einsum inner vdot kron tensordot cross outer
    trace pad roll tile repeat percentile quantile median average nanmean nanstd nanvar nansum nanprod nanmax
    nanmin nanargmax nanargmin nancumsum nancumprod nanmedian nanpercentile nanquantile ptp histogram histogram2d
    cumsum cumprod cumulative_sum cumulative_prod sum prod mean std var max min amax amin any all argmax argmin
    where select choose take take_along_axis concatenate concat stack vstack hstack dstack column_stack block
    append insert meshgrid diff ediff1d gradient convolve correlate interp trapezoid cov corrcoef clip round
    around nan_to_num angle isclose isin tril triu diag diagflat vander polyfit polyval unwrap i0 sinc zeros_like
    ones_like full_like packbits unpackbits dot matmul copy fix array count_nonzero linspace logspace geomspace
    arange eye identity full zeros ones hanning hamming blackman bartlett kaiser tri indices fft.fftfreq
    fft.rfftfreq linalg.inv linalg.solve linalg.det linalg.slogdet linalg.cholesky linalg.qr linalg.svd
    linalg.svdvals linalg.eigh linalg.eigvalsh linalg.pinv linalg.norm linalg.matrix_norm linalg.vector_norm
    linalg.matrix_rank linalg.matrix_power linalg.multi_dot linalg.cond linalg.tensorinv linalg.tensorsolve
    linalg.trace linalg.cross linalg.outer linalg.vecdot fft.fft fft.ifft fft.fft2 fft.ifft2 fft.fftn fft.ifftn
    fft.rfft fft.irfft fft.rfft2 fft.irfft2 fft.rfftn fft.irfftn fft.hfft fft.ihfft fft.fftshift fft.ifftshift
"""


def _named(name: str) -> Any:
    found = numpy
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _functions() -> dict[str, Callable[..., Any]]:
    found = {name: _named(name) for name in _FUNCTIONS.split()}
    ufuncs = {part.__name__: part for part in vars(numpy).values() if isinstance(part, numpy.ufunc)}
    reducing = {
        f"{name}.{method}": getattr(ufunc, method)
        for name, ufunc in ufuncs.items()
        if ufunc.nin == 2 and ufunc.nout == 1 and ufunc.signature is None
        for method in ("reduce", "accumulate", "reduceat", "outer")
    }
    return {name: function for name, function in {**ufuncs, **found, **reducing}.items() if callable(function)}


def _written(array: Any, key: Any, value: Any) -> Any:
    """What an array holds after `array[key] = value`."""
    copied = array.copy(order="K")
    copied[key] = value
    return copied


def _after(function: Any) -> Callable[..., Any]:
    """What an array holds after a function has written to it."""

    def run(array: Any, *args: Any, **kwargs: Any) -> Any:
        copied = array.copy(order="K")
        function(copied, *args, **kwargs)
        return copied

    return run


# Functions that write to their first argument, as functions of what it holds before and after.
WRITING = "put put_along_axis putmask place copyto fill_diagonal"
FUNCTIONS: dict[str, Any] = _functions() if numpy is not None else {}
WRITERS: dict[str, Callable[..., Any]] = {}
if numpy is not None:
    WRITERS = {f"after {name}": _after(_named(name)) for name in WRITING.split()}
    WRITERS["after setitem"] = _written
    WRITERS["after sort"] = _after(numpy.ndarray.sort)
    for _name in [name for name in FUNCTIONS if name.endswith(".outer") and name != "linalg.outer"]:
        _base = _name.removesuffix(".outer")
        WRITERS[f"after {_base}.at"] = _after(FUNCTIONS[_base].at)


def _converted(array: Any, dtype: Any) -> Any:
    return array.astype(dtype)


OPERATOR_POWER = "operator.pow"  # the operator: by some exponents it is another function than numpy.power
CALLABLE: dict[str, Any] = {
    **FUNCTIONS,
    **WRITERS,
    OPERATOR_POWER: operator.pow,
    "getitem": operator.getitem,
    "astype": _converted,
}


@dataclass(frozen=True, slots=True)
class Given:
    """An argument that is an array of the graph, by its position; `number`: as NumPy's number, not an array."""

    position: int
    number: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """An array that a call gives: dtype by NumPy's name, sizes, strides in elements; `number` as for Given."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    number: bool = False


# ---- calls as text ----


def call_text(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    """A call of CALLABLE[name]; arguments are Given, constants, dtypes, slices, and lists and tuples of these.

    Raises TypeError for anything else.
    """
    return repr((name, _packed(tuple(args)), {key: _packed(arg) for key, arg in kwargs.items()}))


def _packed(argument: Any) -> Any:
    """An argument as literals: what is none is a tuple that starts with its kind, and so is a tuple."""
    if isinstance(argument, Given):
        return ("array" if not argument.number else "number", argument.position)
    if argument is None or argument is ... or type(argument) in (bool, int, str):
        return argument
    if type(argument) is float:
        return ("float", argument.hex())
    if type(argument) is complex:
        return ("complex", argument.real.hex(), argument.imag.hex())
    if type(argument) is tuple:
        return ("tuple", *map(_packed, argument))
    if type(argument) is list:
        return [_packed(item) for item in argument]
    if type(argument) is slice:
        return ("slice", *map(_packed, (argument.start, argument.stop, argument.step)))
    if isinstance(argument, numpy.dtype) and argument.isbuiltin == 1:
        return ("dtype", argument.name)
    if isinstance(argument, numpy.generic) and argument.dtype.kind in "biuf":
        return ("generic", argument.dtype.name, _packed(argument.item()))
    raise TypeError(f"{argument!r} cannot be written down")


_UNPACKED: dict[str, Any] = {
    "float": lambda arrays, text: float.fromhex(text),
    "complex": lambda arrays, *parts: complex(*map(float.fromhex, parts)),
    "array": lambda arrays, position: arrays[position],
    "number": lambda arrays, position: arrays[position][()],
    "tuple": lambda arrays, *items: tuple(_unpacked(item, arrays) for item in items),
    "slice": lambda arrays, *bounds: slice(*(_unpacked(bound, arrays) for bound in bounds)),
    "dtype": lambda arrays, name: numpy.dtype(name),
    "generic": lambda arrays, name, value: numpy.dtype(name).type(_unpacked(value, arrays)),
}


def _unpacked(packed: Any, arrays: Sequence[Any]) -> Any:
    if isinstance(packed, tuple):
        return _UNPACKED[packed[0]](arrays, *packed[1:])
    if isinstance(packed, list):
        return [_unpacked(item, arrays) for item in packed]
    return packed


def call(text: str, arrays: Sequence[Any]) -> Any:
    """What NumPy gives for a call on these arrays."""
    name, args, kwargs = _parsed(text)
    args = _unpacked(args, arrays)
    named = {key: _unpacked(arg, arrays) for key, arg in kwargs.items()}
    with numpy.errstate(all="ignore"):
        return CALLABLE[name](*args, **named)


def leaves(result: Any) -> Iterator[Any]:
    """The arrays and numbers in what NumPy gave, in order."""
    if isinstance(result, (tuple, list)):
        for item in result:
            yield from leaves(item)
    else:
        yield result


def described(leaf: Any) -> Result:
    """Raises TypeError for what is neither an array nor a number of NumPy's."""
    if type(leaf) is not numpy.ndarray and not isinstance(leaf, numpy.generic):
        raise TypeError(f"{type(leaf)} is no array")
    strides = tuple(stride // leaf.itemsize for stride in leaf.strides)
    return Result(leaf.dtype.name, leaf.shape, strides, isinstance(leaf, numpy.generic))


# Texts are those of graphs, and are read in each call; what they say is not changed.
_parsed = lru_cache(1024)(ast.literal_eval)


# ---- the operator ----


def _run(arrays: list[torch.Tensor], text: str, results: str) -> list[torch.Tensor]:
    given = [array.numpy() for array in arrays]
    expected = _parsed(results)
    found = list(leaves(call(text, given)))
    if len(found) != len(expected):
        raise RuntimeError(f"NumPy gave {len(found)} arrays where {len(expected)} were expected: {text}")
    return [_as_tensor(leaf, entry, given) for leaf, entry in zip(found, expected, strict=True)]


def _as_tensor(leaf: Any, expected: tuple[Any, Any, Any], given: Sequence[Any]) -> torch.Tensor:
    """The tensor of a result, checked against what capture counts on: a dtype, sizes, strides."""
    dtype, shape, stride = expected
    array = numpy.asarray(leaf)
    if array.dtype.name != dtype or array.shape != shape:
        raise RuntimeError(
            f"NumPy gave {array.dtype} of shape {array.shape} where {dtype} of shape {shape} was expected"
        )
    if any(numpy.may_share_memory(array, one) for one in given):
        raise RuntimeError("NumPy gave a view where a new array was expected")
    found = tuple(at // array.itemsize for at in array.strides)
    if found == stride and array.flags.writeable:
        return torch.from_numpy(array)
    made = torch.empty_strided(shape, stride, dtype=_torch_dtype(dtype))
    made.numpy()[...] = array
    return made


def _torch_dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def results_text(results: Sequence[Result]) -> str:
    """What the operator takes as its last argument."""
    return repr([(one.dtype, one.shape, one.stride) for one in results])


_library = torch.library.Library("stator", "FRAGMENT")
_library.define("numpy_call(Tensor[] arrays, str call, str results) -> Tensor[]")
_library.impl("numpy_call", _run, "CompositeExplicitAutograd")

numpy_call = torch.ops.stator.numpy_call.default


@shape_rule(numpy_call)
def numpy_call_shape(arrays: Sequence[Any], text: str, results: str) -> list[TensorMeta]:
    """New tensors on the CPU, as `results` says."""
    cpu = torch.device("cpu")
    return [TensorMeta(shape, stride, _torch_dtype(dtype), cpu) for dtype, shape, stride in _parsed(results)]
