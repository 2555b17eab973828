"""Eager's errors for arguments that shape rules refuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from stator.prims.devices import CPU
from stator.prims.layout import numel

from .fake_tensor import FakeTensor

_MOST_ELEMENTS = 1 << 22  # tensors of more are not made only to learn what eager says of them


class _NoExample(Exception):
    """A size is known in the run only, or too large."""


def eager_error(target: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Exception:
    """Return the error that eager raises where a shape rule refuses the arguments, by running its operator on zeros of
    the example's sizes. Without such zeros, or where it runs, the error names the tensors."""
    values, spec = pytree.tree_flatten((tuple(args), kwargs))
    tensors = [value for value in values if isinstance(value, FakeTensor)]
    given = ", ".join(f"{str(one.dtype).removeprefix('torch.')}{list(one.shape)}" for one in tensors)
    try:
        example_args, example_kwargs = pytree.tree_unflatten([_example(value) for value in values], spec)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            target(*example_args, **example_kwargs)
    except _NoExample:
        pass
    except Exception as error:
        return error.with_traceback(None)
    return RuntimeError(f"{target} refuses {given or 'its arguments'}")


def _example(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        shape, stride = (tuple(map(_example, numbers)) for numbers in (value.meta.shape, value.meta.stride))
        if numel(shape) > _MOST_ELEMENTS:
            raise _NoExample
        return torch.empty_strided(shape, stride, dtype=value.meta.dtype, device=CPU).zero_()
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        if not value.node.has_hint():
            raise _NoExample
        return value.node.hint
    return CPU if isinstance(value, torch.device) else value
