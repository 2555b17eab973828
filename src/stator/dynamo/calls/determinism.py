"""What a program asks about deterministic algorithms. Whether they are wanted is part of the state that every version
depends on; how operators act on it in each call is theirs to ask, so only programs that ask, too, depend on that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from ..calling import calls, fold
from ..source import ReadSource
from ..values.base import Value

if TYPE_CHECKING:
    from ..tracer import Tracer

fold(torch.are_deterministic_algorithms_enabled, torch._C._get_deterministic_algorithms)


def _read_in_each_call(function: Callable[[], bool]) -> None:
    def handler(tracer: Tracer) -> Value:
        return tracer.wrap(function(), ReadSource(function))

    calls(function)(handler)


_read_in_each_call(torch._C._get_deterministic_algorithms_warn_only)
_read_in_each_call(torch._C._get_deterministic_fill_uninitialized_memory)
