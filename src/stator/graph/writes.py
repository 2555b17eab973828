"""What an operator may not do to the arguments that it writes to: refused while tracing, as eager refuses it or because
fake tensors could not follow. How a write is recorded is decided elsewhere."""

from __future__ import annotations

from typing import Any

import torch

from stator.base.errors import Unsupported
from stator.prims.layout import is_dense, may_overlap

from .fake_tensor import FakeTensor, flat_tensors
from .schema import OpInfo, argument

aten = torch.ops.aten

# Writing the same value twice to one memory location is harmless for these.
IDEMPOTENT = frozenset((aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default, aten.detach_.default))

# Eager writes to what these are given row after row, each with what the one before has left there.
IN_TURN = frozenset((aten.embedding_renorm_.default,))


def check_overlap(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse, as eager does, to write through a tensor several of whose elements lie at one address.

    Raises RuntimeError, and Unsupported where eager does it all the same.
    """
    if info.target in IDEMPOTENT:
        return
    for where in info.mutates:
        for written in flat_tensors(argument(info, args, kwargs, where)):
            for size, stride in zip(written.meta.shape, written.meta.stride, strict=True):
                if stride == 0 and size > 1:
                    if info.target in IN_TURN:
                        raise Unsupported("overlapping-write", f"{info.target} writes to elements at one address")
                    raise RuntimeError(
                        "unsupported operation: more than one element of the written-to tensor refers to a single "
                        "memory location. Please clone() the tensor before performing the operation."
                    )
            if not is_dense(written.meta.shape, written.meta.stride) and may_overlap(
                written.meta.shape, written.meta.stride
            ):
                raise Unsupported("overlapping-write", f"{info.target} writes to elements at one address")


def check_size(info: OpInfo, written: FakeTensor, stand_in: torch.Tensor) -> None:
    """Refuse an operator that resizes what it writes to, as `out=` of another size is. `stand_in` went through its meta
    kernel in the place of `written`."""
    if stand_in.shape != written.shape:
        raise Unsupported(
            "storage-mutation",
            f"{info.target} resizes an argument of shape {tuple(written.shape)} to {tuple(stand_in.shape)}",
            hint="give `out` the shape of the result",
        )
