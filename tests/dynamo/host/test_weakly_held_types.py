"""Streams are never referred to weakly: those of GPUs end without telling their weak references."""

from __future__ import annotations

import weakref
from typing import Any

import torch

import stator


class Side(torch.Stream):
    """As torch.cuda.Stream, a class of Python below torch's."""


def test_streams_have_no_weak_references() -> None:
    given, enclosed, key = Side(0, 0, 0), Side(0, 0, 0), Side(0, 0, 0)
    known = {key: 2.0}

    def program(stream: Any, x: torch.Tensor) -> torch.Tensor:
        return x * known[key] if stream is given and stream is not enclosed else x + 1

    compiled = stator.compile(program)
    x = torch.ones(3)
    for stream in (given, enclosed, given):
        torch.testing.assert_close(compiled(stream, x), program(stream, x))
    assert not any(weakref.getweakrefs(stream) for stream in (given, enclosed, key))
