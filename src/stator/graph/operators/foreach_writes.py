"""Operators that write to lists of tensors which share memory: eager writes to the tensors in order, and later reads
see earlier writes.

Importing this file registers the handlers with the tracer.
"""

from __future__ import annotations

from typing import Any

import torch

from stator.graph.fake.fake_tensor import FakeTensor, flat_tensors
from stator.graph.functionalization.functionalize import FunctionalTracer, mutations
from stator.graph.ir.schema import SchemaFacts
from stator.prims.foreach import FOREACH, in_place

aten = torch.ops.aten
_TARGETS = [twin for entry in FOREACH if (twin := in_place(entry.target)) is not None]
# These operators take their numbers from a one-dimensional tensor.
_NUMBERS_IN_A_TENSOR = (aten._foreach_addcdiv_.Tensor, aten._foreach_addcmul_.Tensor)


@mutations.register(*_TARGETS, *_NUMBERS_IN_A_TENSOR, aten._foreach_zero_.default)
def _write(tracer: FunctionalTracer, info: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    written: list[FakeTensor] = list(args[0])
    lists = [value for value in (*args, *kwargs.values()) if _is_list(value)]
    if len(written) == 1 or any(len(one) != len(written) for one in lists) or not _share_memory(written, args, kwargs):
        torch.autograd.graph.increment_version(written)  # eager's single-tensor operators bump the versions instead
        return NotImplemented
    for at in range(len(written)):
        given, named = [_at(value, at) for value in args], {name: _at(value, at) for name, value in kwargs.items()}
        if info.target in _NUMBERS_IN_A_TENSOR:
            given[-1] = tracer.apply(aten.slice.Tensor, args[-1], 0, at, at + 1)
        tracer.dispatch(info.target, tuple(given), named)
    return None


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _at(value: Any, at: int) -> Any:
    return value[at : at + 1] if _is_list(value) else value


def _share_memory(written: list[FakeTensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a written tensor shares memory with a tensor at another position of the lists."""
    beside: dict[int, set[int | None]] = {}  # positions in the lists, by storage; None: every position
    for value in (*args, *kwargs.values()):
        places: Any = enumerate(value) if _is_list(value) else [(None, value)]
        for at, one in places:
            for fake in flat_tensors(one):
                beside.setdefault(id(fake.fake_storage), set()).add(at)
    return any(beside[id(fake.fake_storage)] != {at} for at, fake in enumerate(written))
