"""Finds, by experiment, the byte offsets of a tensor's metadata in its C++ object, for runtime/csrc/tensor_impl.h.

Tensors that differ in one property show its location; a randomised self-test compares every reading with torch's
getters. Nothing here writes to foreign memory or reads beyond an object. (The C functions that torch exports return
neither dispatch keys nor `requires_grad`, and take ten times as long for the data address.)
"""

from __future__ import annotations

import ctypes
import functools
import random
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch

from stator.base import counters, logs

# Sizes of torch's objects: the minimum over the supported versions.
LONGEST_IMPL_BYTES = 184  # of a TensorImpl: 184 in torch 2.11, 176 in torch 2.13; see _impl_bytes
STORAGE_BYTES = 96  # of a StorageImpl
META_BYTES = 184  # of an AutogradMeta: 200 in torch 2.11, 184 in torch 2.13
COUNTER_BYTES = 20  # of a VersionCounter: a virtual table, reference counts, the version
INLINE_DIMS = 5
SELF_TESTS = 40

DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.bool),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)
OPTIONAL_DTYPES = (
    *("uint16", "uint32", "uint64"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Byte offsets, in the order of `stator_layout_install`; tensor_impl.h documents them."""

    cdata: int
    sizes: int
    dtype: int
    device: int
    keyset: int
    storage_offset: int
    storage: int
    storage_data: int
    use_count: int
    version_counter: int
    version: int
    autograd_meta: int
    requires_grad: int
    grad_fn: int
    leaf_autograd_vtable: int
    itemsize: bytes

    def as_tuple(self) -> tuple[int | bytes, ...]:
        """Return the argument of the C extensions' `set_tensor_layout`."""
        return astuple(self)


class CalibrationError(Exception):
    """A property was found at no offset, or at several; the message names it."""


@functools.cache
def calibrate() -> TensorLayout | None:
    """Return the layout of this torch's tensors (a few ms, once per process), or None if it cannot be established. With
    None all readers use the attribute getters; this is counted as "tensor_impl.uncalibrated" and warned of once."""
    try:
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch._C.DisableTorchFunction(),
            torch._C._DisableTorchDispatch(),
        ):
            layout = _find_layout()
            _self_test(layout)
            return layout
    except CalibrationError as error:
        counters.count("tensor_impl.uncalibrated")
        logs.warn_once(
            "tensor_impl.uncalibrated",
            f"stator cannot read the tensors of torch {torch.__version__} directly ({error}); "
            "compiled code stays correct, but calls into it take some microseconds longer",
        )
        return None


def _memory(address: int, length: int) -> bytes:
    return ctypes.string_at(address, length)


def _word(memory: bytes, offset: int) -> int:
    return struct.unpack_from("Q", memory, offset)[0]


def _signed(memory: bytes, offset: int) -> int:
    return struct.unpack_from("q", memory, offset)[0]


def _int(memory: bytes, offset: int) -> int:
    return struct.unpack_from("I", memory, offset)[0]


def _short(memory: bytes, offset: int) -> int:
    return struct.unpack_from("H", memory, offset)[0]


def _the_one(what: str, offsets: Iterable[int], fits: Callable[[int], bool]) -> int:
    found = [offset for offset in offsets if fits(offset)]
    if len(found) != 1:
        raise CalibrationError(f"{what} matches at offsets {found}")
    return found[0]


@functools.cache
def _impl_bytes() -> int:
    """Return the size of a TensorImpl. Its last word is the dispatch key set, where the search ends."""
    samples = [
        torch.empty(3, device="cpu"),
        torch.empty(3, device="meta"),
        torch.empty(3, dtype=torch.complex64, device="cpu").conj(),
        torch.empty(3, device="cpu").to_sparse(),
    ]
    pairs = [(sample._cdata, torch._C._dispatch_keys(sample).raw_repr()) for sample in samples]
    for at in _words(LONGEST_IMPL_BYTES):
        if all(_word(_memory(address + at, 8), 0) == keys for address, keys in pairs):
            return at + 8
    raise CalibrationError("the set of dispatch keys matches at no offset")


def _impl(tensor: torch.Tensor) -> bytes:
    return _memory(tensor._cdata, _impl_bytes())


def _words(length: int) -> range:
    return range(0, length - 7, 8)


def _strided(shape: Sequence[int], stride: Sequence[int], offset: int = 0) -> torch.Tensor:
    """Make a view with exactly this metadata."""
    length = offset + 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    return torch.empty(length, device="cpu").as_strided(tuple(shape), tuple(stride), offset)


def _find_layout() -> TensorLayout:
    sample = torch.empty(2, 3, device="cpu")
    cdata = _the_one(
        "cdata",
        _words(torch.Tensor.__basicsize__),
        lambda at: _word(_memory(id(sample), torch.Tensor.__basicsize__), at) == sample._cdata,
    )
    autograd_meta, requires_grad, grad_fn, vtable = _find_autograd()
    dtype, itemsize = _find_dtype()
    storage, storage_data = _find_storage()
    version_counter, version = _find_version((storage, autograd_meta))
    return TensorLayout(
        cdata=cdata,
        sizes=_find_sizes(),
        dtype=dtype,
        device=_find_device((storage, autograd_meta)),
        keyset=_impl_bytes() - 8,
        storage_offset=_find_storage_offset(),
        storage=storage,
        storage_data=storage_data,
        use_count=_find_use_count(),
        version_counter=version_counter,
        version=version,
        autograd_meta=autograd_meta,
        requires_grad=requires_grad,
        grad_fn=grad_fn,
        leaf_autograd_vtable=vtable,
        itemsize=itemsize,
    )


def _find_sizes() -> int:
    samples = []
    for ndim in range(1, INLINE_DIMS + 1):
        shape, stride = [3 + ndim + i for i in range(ndim)], [1 + 7 * i + ndim for i in range(ndim)]
        samples.append((ndim, shape, stride, _impl(_strided(shape, stride))))

    def fits(at: int) -> bool:
        for ndim, shape, stride, impl in samples:
            read = struct.unpack_from(f"{1 + 2 * INLINE_DIMS}q", impl, at)
            if read[0] != ndim or list(read[1 : 1 + ndim]) != shape:
                return False
            if list(read[1 + INLINE_DIMS : 1 + INLINE_DIMS + ndim]) != stride:
                return False
        return True

    return _the_one("sizes", range(0, _impl_bytes() - 8 * (1 + 2 * INLINE_DIMS) + 1, 8), fits)


def _all_dtypes() -> list[torch.dtype]:
    return [*DTYPES, *(getattr(torch, name) for name in OPTIONAL_DTYPES if hasattr(torch, name))]


def _find_dtype() -> tuple[int, bytes]:
    """Return the offset of the type code, and the bytes per element by code."""
    dtypes = _all_dtypes()
    impls = [[_impl(torch.empty(shape, dtype=dtype, device="cpu")) for shape in ((), (3, 2))] for dtype in dtypes]

    def fits(at: int) -> bool:
        codes: set[int] = set()
        for one, other in impls:
            code = _short(one, at)
            if code >= 256 or code in codes or _short(other, at) != code:
                return False
            codes.add(code)
        return True

    at = _the_one("dtype", range(0, _impl_bytes() - 1, 2), fits)
    table = bytearray(256)
    for dtype, pair in zip(dtypes, impls, strict=True):
        table[_short(pair[0], at)] = dtype.itemsize
    return at, bytes(table)


def _find_device(pointers: Sequence[int]) -> int:
    """Find the device: type in the low byte, index in the high one (255: none). The middle of a pointer may look like
    it."""
    by_device = [
        {_impl(torch.empty(shape, dtype=dtype, device=name)) for shape in ((), (3, 2)) for dtype in DTYPES[:3]}
        for name in ("cpu", "meta")
    ]

    def fits(at: int) -> bool:
        cpu, meta = ({_short(impl, at) for impl in impls} for impls in by_device)
        one_value_each = len(cpu) == 1 and len(meta) == 1 and cpu != meta
        return one_value_each and all(code >> 8 == 0xFF for code in cpu | meta)

    places = (at for at in range(0, _impl_bytes() - 1, 2) if all(at // 8 != pointer // 8 for pointer in pointers))
    return _the_one("device", places, fits)


def _find_storage_offset() -> int:
    samples = [(offset, _impl(_strided((2, 3), (5, 1), offset))) for offset in (0, 17, 7919)]
    return _the_one(
        "storage_offset", _words(_impl_bytes()), lambda at: all(_signed(impl, at) == offset for offset, impl in samples)
    )


def _find_storage() -> tuple[int, int]:
    # A borrowed buffer's address differs from that of the object which frees it, so the match is unique.
    buffers = [bytearray(64), bytearray(128)]
    tensors = [torch.frombuffer(buffer, dtype=torch.uint8) for buffer in buffers]
    storages = [tensor.untyped_storage() for tensor in tensors]
    pairs = list(zip(tensors, storages, strict=True))
    storage = _the_one(
        "storage", _words(_impl_bytes()), lambda at: all(_word(_impl(tensor), at) == s._cdata for tensor, s in pairs)
    )
    data = _the_one(
        "storage data",
        _words(STORAGE_BYTES),
        lambda at: all(_word(_memory(s._cdata, STORAGE_BYTES), at) == s.data_ptr() for s in storages),
    )
    return storage, data


def _use_count(tensor: Any) -> int:
    return tensor._use_count()  # type: ignore[no-any-return]


def _find_use_count() -> int:
    """Find the number of references in C++, which begins the objects of tensors and of storages alike."""
    if not hasattr(torch.Tensor, "_use_count") or not hasattr(torch._C, "_storage_Use_Count"):
        raise CalibrationError("this version of torch does not tell use counts")
    tensor = torch.empty(3, device="cpu")
    storage = tensor.untyped_storage()
    seen, aliases = [], []
    for _ in range(4):
        memories = _impl(tensor), _memory(storage._cdata, STORAGE_BYTES)
        seen.append((memories, (_use_count(tensor), torch._C._storage_Use_Count(storage._cdata))))
        held = torch.zeros(3, device="cpu", requires_grad=True) * tensor  # autograd keeps the tensor
        aliases += [tensor.detach(), held]

    def fits(at: int) -> bool:
        return all((_int(one, at), _int(other, at)) == counts for (one, other), counts in seen)

    return _the_one("use count", range(8, 24, 4), fits)


def _find_version(others: Sequence[int]) -> tuple[int, int]:
    """Find the counter of versions: a tensor shares it with what `detach` gives, and not with what `data` gives."""
    tensors = [torch.empty(3, device="cpu") for _ in range(4)]
    for at, tensor in enumerate(tensors):
        for _ in range(2 * at):
            tensor.zero_()
    trios = [tuple(_impl(one) for one in (tensor, tensor.detach(), tensor.data)) for tensor in tensors]
    inference = _impl(_inference_tensor())

    def is_counter(at: int) -> bool:
        if _word(inference, at) or at in others:
            return False
        words = [tuple(_word(impl, at) for impl in trio) for trio in trios]
        if not all(_looks_like_pointer(own) and own == shared != other for own, shared, other in words):
            return False
        return len({own for own, _, _ in words}) == len(words)

    counter = _the_one("version counter", _words(_impl_bytes()), is_counter)
    memories = [_memory(_word(trio[0], counter), COUNTER_BYTES) for trio in trios]
    version = _the_one(
        "version",
        range(0, COUNTER_BYTES - 3, 4),
        lambda at: all(_int(memory, at) == tensor._version for memory, tensor in zip(memories, tensors, strict=True)),
    )
    return counter, version


def _inference_tensor() -> torch.Tensor:
    with torch.inference_mode():
        return torch.empty(3, device="cpu")


def _looks_like_pointer(word: int) -> bool:
    return word > 1 << 20 and word % 8 == 0


def _autograd_bytes(tensor: torch.Tensor, offset: int) -> bytes:
    return _memory(_word(_impl(tensor), offset), META_BYTES)


def _find_autograd() -> tuple[int, int, int, int]:
    plain = torch.empty(3, device="cpu")
    leaf = torch.empty(3, device="cpu", requires_grad=True)
    result = leaf * 2
    frozen = torch.empty(3, device="cpu", requires_grad=True)
    frozen.requires_grad_(False)
    impls = {name: _impl(t) for name, t in (("plain", plain), ("leaf", leaf), ("result", result), ("frozen", frozen))}
    tensors = [torch.empty(3, device="cpu") for _ in range(8)]
    given = [(_impl(tensor), _impl(tensor.requires_grad_(True))) for tensor in tensors]

    def is_meta(at: int) -> bool:
        if not all(_word(before, at) == 0 and _looks_like_pointer(_word(after, at)) for before, after in given):
            return False
        words = {name: _word(impl, at) for name, impl in impls.items()}
        others = [words[name] for name in ("leaf", "result", "frozen")]
        return words["plain"] == 0 and all(map(_looks_like_pointer, others)) and len(set(others)) == 3

    meta = _the_one("autograd_meta", _words(_impl_bytes()), is_meta)
    metas = {name: _autograd_bytes(tensor, meta) for name, tensor in (("result", result), ("frozen", frozen))}
    # Unwritten words hold garbage, so only repeated changes of one tensor identify the property.
    toggled = []
    for flag in (True, False, True, False):
        toggled.append((flag, _autograd_bytes(frozen.requires_grad_(flag), meta)))
    requires_grad = _the_one(
        "requires_grad",
        range(8, META_BYTES),
        lambda at: all(memory[at] == flag for flag, memory in toggled) and metas["result"][at] == 0,
    )
    with_grad_fn, without = _bytes_with_and_without_grad_fn(leaf, meta)
    without += [metas["frozen"], *(memory for _, memory in toggled), _autograd_bytes(leaf, meta)]

    def is_grad_fn(at: int) -> bool:
        set_for_results = all(_looks_like_pointer(_word(memory, at)) for memory in (*with_grad_fn, metas["result"]))
        return set_for_results and all(_word(memory, at) == 0 for memory in without)

    # Before torch 2.13 grad_fn is a shared_ptr: two words, both set or both NULL; the first suffices.
    grad_fn = _the_one(
        "grad_fn", range(8, META_BYTES - 7, 8), lambda at: is_grad_fn(at) and not (at >= 16 and is_grad_fn(at - 8))
    )
    metas["leaf"] = _autograd_bytes(leaf, meta)
    vtables = {_word(memory, 0) for memory in metas.values()}
    if len(vtables) != 1:
        raise CalibrationError(f"autograd metadata of leaves begins with different words {sorted(map(hex, vtables))}")
    return meta, requires_grad, grad_fn, vtables.pop()


def _bytes_with_and_without_grad_fn(leaf: torch.Tensor, meta: int) -> tuple[list[bytes], list[bytes]]:
    """Return one tensor's metadata bytes, repeatedly with and without a grad_fn.

    Some words of the object are never written, such as those within a short string. They differ between tensors, so
    only changes of one tensor identify the grad_fn.
    """
    tensor = torch.empty(3, device="cpu", requires_grad=True).requires_grad_(False)
    having, lacking = [], [_autograd_bytes(tensor, meta)]
    for _ in range(2):
        having.append(_autograd_bytes(tensor.mul_(leaf), meta))
        lacking.append(_autograd_bytes(tensor.detach_(), meta))
    return having, lacking


def _random_tensor(random_: random.Random) -> torch.Tensor:
    shape = tuple(random_.choice((0, 1, 2, 3, 5)) for _ in range(random_.randrange(8)))
    dtype, device = random_.choice(_all_dtypes()), random_.choice(("cpu", "cpu", "meta"))
    can_require_grad = dtype.is_floating_point and dtype.itemsize > 1
    tensor = torch.empty(shape, dtype=dtype, device=device, requires_grad=can_require_grad and random_.random() < 0.5)
    for _ in range(random_.randrange(3)):
        tensor = random_.choice(_VARIATIONS)(tensor)
    torch.autograd.graph.increment_version([tensor] * random_.randrange(3))
    return tensor


_VARIATIONS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda tensor: tensor.detach(),
    lambda tensor: tensor.transpose(0, -1) if tensor.ndim else tensor,
    lambda tensor: tensor[1:] if tensor.ndim and tensor.shape[0] > 1 else tensor,
    lambda tensor: tensor[..., ::2] if tensor.ndim else tensor,
    lambda tensor: tensor.unsqueeze(0),
    lambda tensor: tensor.expand(3, *tensor.shape),
    lambda tensor: torch.nn.Parameter(tensor, requires_grad=False),
)


def _self_test(layout: TensorLayout) -> None:
    random_ = random.Random(1729)
    device_codes: dict[str, object] = {}
    dtype_codes: dict[torch.dtype, object] = {}
    for _ in range(SELF_TESTS):
        tensor = _random_tensor(random_)
        read = read_tensor(layout, tensor)
        expected = {
            "shape": tuple(tensor.shape),
            "stride": tensor.stride(),
            "storage_offset": tensor.storage_offset(),
            "keyset": torch._C._dispatch_keys(tensor).raw_repr(),
            "itemsize": tensor.element_size(),
            "dtype": dtype_codes.setdefault(tensor.dtype, read["dtype"]),
            "use_count": _use_count(tensor),
            "version": tensor._version,
            "device": device_codes.setdefault(tensor.device.type, read["device"]),
        }
        if tensor.device.type == "cpu":
            expected["data"] = tensor.untyped_storage().data_ptr()
        if read["requires_grad"] is not None:
            expected["requires_grad"] = tensor.requires_grad
        wrong = [f"{name} {read[name]} is {value}" for name, value in expected.items() if read[name] != value]
        if wrong:
            raise CalibrationError(f"self-test: {', '.join(wrong)}")
    for codes in (list(device_codes.values()), list(dtype_codes.values())):
        if len(set(codes)) != len(codes):
            raise CalibrationError(f"self-test: one type code stands for several types: {codes}")


def read_tensor(layout: TensorLayout, tensor: torch.Tensor) -> dict[str, object]:
    """Read what the C readers would read, for tests. `requires_grad` is None if only the getter knows."""
    impl = _impl(tensor)
    ndim = _signed(impl, layout.sizes)
    if ndim <= INLINE_DIMS:
        words = struct.unpack_from(f"{2 * INLINE_DIMS}q", impl, layout.sizes + 8)
        shape, stride = words[:ndim], words[INLINE_DIMS : INLINE_DIMS + ndim]
    else:
        words = struct.unpack(f"{2 * ndim}q", _memory(_word(impl, layout.sizes + 8), 16 * ndim))
        shape, stride = words[:ndim], words[ndim:]
    storage, counter = _word(impl, layout.storage), _word(impl, layout.version_counter)
    return {
        "shape": shape,
        "stride": stride,
        "dtype": _short(impl, layout.dtype),
        "device": _short(impl, layout.device),
        "keyset": _word(impl, layout.keyset),
        "itemsize": layout.itemsize[_short(impl, layout.dtype)],
        "storage_offset": _signed(impl, layout.storage_offset),
        "use_count": _int(impl, layout.use_count),
        "version": _int(_memory(counter, COUNTER_BYTES), layout.version) if counter else None,
        "data": _word(_memory(storage, STORAGE_BYTES), layout.storage_data) if storage else None,
        "requires_grad": _read_requires_grad(layout, impl),
    }


def _read_requires_grad(layout: TensorLayout, impl: bytes) -> bool | None:
    address = _word(impl, layout.autograd_meta)
    if not address:
        return False
    meta = _memory(address, META_BYTES)
    if meta[layout.requires_grad] or _word(meta, layout.grad_fn):
        return True
    return False if _word(meta, 0) == layout.leaf_autograd_vtable else None
