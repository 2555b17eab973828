"""Python numbers that C++ makes tensors of, on the way to an operator. How operators run on fakes is in fake.py."""

from __future__ import annotations

from typing import Any

import torch

from .fake import CPU, FakeMode, normal_device, specials

aten = torch.ops.aten


@specials.register(aten._to_copy.default)
def _converted_number(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Of a Python number that C++ made a tensor of: handlers are given the number itself."""
    if not isinstance(args[0], (int, float, complex)):
        return NotImplemented
    number = args[0]
    own = torch.bool if isinstance(number, bool) else torch.int64 if isinstance(number, int) else torch.float64
    dtype = kwargs.get("dtype") or (torch.complex128 if isinstance(number, complex) else own)
    with mode:
        return torch.scalar_tensor(number, dtype=dtype, device=kwargs.get("device") or CPU)


@specials.register(aten.scalar_tensor.default)
def _scalar_tensor(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Numbers that C++ wraps into tensors, and may ask for again: `torch.cov` looks at its normalisation so."""
    number, dtype = args[0], kwargs.get("dtype")
    on_cpu = normal_device(kwargs.get("device") or torch.get_default_device()).type == "cpu"
    if not on_cpu or isinstance(number, (complex, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return NotImplemented
    return mode.value(torch.scalar_tensor(number, dtype=dtype, device=CPU))
