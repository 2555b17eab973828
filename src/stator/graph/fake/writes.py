"""Checks of writes to arguments while tracing: refuses writes that eager refuses, or that fake tensors cannot
follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from stator.base.errors import Unsupported, UsageError
from stator.graph.ir.schema import SchemaFacts, argument, functional_twin, op_info
from stator.prims.layout import is_dense, may_overlap
from stator.prims.record import TensorMeta
from stator.prims.rule_checks import place_of
from stator.prims.shared_memory import may_meet, same_elements, span

from .fake_tensor import FakeTensor, flat_tensors

aten = torch.ops.aten

# Operators that may write one value twice to one address.
IDEMPOTENT = frozenset((aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default, aten.detach_.default))

# Operators whose schemas hide that they resize storage. By name, because they exist only after their library is
# imported.
RESIZING = frozenset(("inductor::resize_storage_bytes_",))

# Operators that eager runs row by row, each row reading the writes of earlier rows.
WRITTEN_IN_ORDER = frozenset((aten.embedding_renorm_.default,))


def check_overlap(info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse, as eager does, to write through a tensor with several elements at one address, or beside overlapping
    arguments. Raises RuntimeError, or Unsupported where eager permits the write."""
    if info.target in IDEMPOTENT:
        return
    for where in info.mutates:
        for written in flat_tensors(argument(info, args, kwargs, where)):
            _check_itself(info, written)
    _check_others(info, args, kwargs)


def check_unwritten(
    info: SchemaFacts, decomposition: Callable[..., Any], given: Sequence[FakeTensor], versions: Sequence[int]
) -> None:
    """Refuse a decomposition that wrote to arguments which the operator only reads."""
    for fake, version in zip(given, versions, strict=True):
        if fake.fake_storage.version != version:
            raise UsageError(
                f"the decomposition of {info.target} ({place_of(decomposition)}) writes to an argument, which the "
                "operator does not: compute a new tensor, or write to a clone()"
            )


def _check_itself(info: SchemaFacts, written: FakeTensor) -> None:
    shape, strides = written.meta.shape, written.meta.stride
    for size, stride in zip(shape, strides, strict=True):
        if stride == 0 and size > 1:
            if info.target in WRITTEN_IN_ORDER:
                raise Unsupported("overlapping-write", f"{info.target} writes to elements at one address")
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to a single "
                "memory location. Please clone() the tensor before performing the operation."
            )
    if may_overlap(shape, strides) and not is_dense(shape, strides):
        raise Unsupported("overlapping-write", f"{info.target} writes to elements at one address")


def check_statistics(read: Sequence[FakeTensor | None], written: Sequence[FakeTensor]) -> None:
    """Refuse running statistics that share memory with each other or with other arguments: eager updates them channel
    by channel, reading the writes of earlier channels."""
    for at, one in enumerate(written):
        shape, strides = one.meta.shape, one.meta.stride
        others = [other for other in (*written[:at], *read) if other is not None]
        if (may_overlap(shape, strides) and not is_dense(shape, strides)) or any(
            other.fake_storage is one.fake_storage and may_meet(other.meta, one.meta) for other in others
        ):
            raise Unsupported("overlapping-write", "batch_norm updates statistics that share memory", hint="clone them")


def _check_others(info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse to write where another argument is read or written. Eager mostly refuses too; otherwise its result depends
    on the order of elements."""
    given = [*zip(info.parameters, args, strict=False), *kwargs.items()]
    written = {info.parameters[where] if isinstance(where, int) else where for where in info.mutates}
    storages: dict[int, list[_MemoryAccess]] = {}
    for name, value in given:
        for position, tensor in enumerate(flat_tensors(value)):
            access = _MemoryAccess(tensor.meta, name, position, name in written)
            storages.setdefault(id(tensor.fake_storage), []).append(access)
    for accesses in storages.values():
        if len(accesses) > 1 and any(access.written for access in accesses):
            _check_accesses(info, accesses)


class _MemoryAccess(NamedTuple):
    """One argument, or one tensor of a list argument, that an operator reads or writes."""

    meta: TensorMeta
    name: str
    position: int
    written: bool


def _check_accesses(info: SchemaFacts, accesses: list[_MemoryAccess]) -> None:
    """Check the accesses to one storage."""
    elementwise, in_own_place = _is_elementwise(info), _has_form_in_place(info)
    spans = [span(access.meta) for access in accesses]
    known = all(type(bound) is int for bounds in spans for bound in bounds)
    for second, other in enumerate(accesses):
        for first, one in enumerate(accesses[:second]):
            if not (one.written or other.written):
                continue
            if known and (spans[first][1] <= spans[second][0] or spans[second][1] <= spans[first][0]):
                continue  # separate parts of one buffer
            in_step = elementwise and one.position == other.position and one.written != other.written
            in_place = in_own_place and {one.name, other.name} == {"self", "out"}
            if (in_step or in_place) and same_elements(one.meta, other.meta):
                continue
            if may_meet(one.meta, other.meta):
                raise Unsupported(
                    "overlapping-write",
                    f"{info.target} writes to memory that another of its arguments shares",
                    hint="clone what is read",
                )


def _is_elementwise(info: SchemaFacts) -> bool:
    """Whether each element depends only on elements at its own index, read before the write."""
    twin = functional_twin(info.target)
    tags = info.record.tags if twin is None else info.record.tags | op_info(twin).record.tags
    return info.target is aten.copy_.default or not tags.isdisjoint(("pointwise", "foreach"))


def _has_form_in_place(info: SchemaFacts) -> bool:
    """Whether the operator has an in-place form, which reads and writes one tensor."""
    return hasattr(torch.ops.aten, f"{info.target._schema.name.removeprefix('aten::')}_")


def check_keeps_storage(info: SchemaFacts) -> None:
    """Refuse an operator that resizes a storage: tracing keeps no order between the resize and reads."""
    if info.target._schema.name in RESIZING:
        raise Unsupported("storage-mutation", f"{info.target} resizes the storage of a tensor")


def check_size(info: SchemaFacts, written: FakeTensor, stand_in: torch.Tensor) -> None:
    """Refuse an operator that resizes a written argument, such as `out=` of another size. `stand_in` replaced `written`
    in the meta kernel."""
    if stand_in.shape != written.shape:
        raise Unsupported(
            "storage-mutation",
            f"{info.target} resizes an argument of shape {tuple(written.shape)} to {tuple(stand_in.shape)}",
            hint="give `out` the shape of the result",
        )
