"""Queries of torch's setting for deterministic algorithms. Every version has a guard on the setting itself; a version
has guards on its details (warn only, fill uninitialized memory) only if the program reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from stator.dynamo.guards.source import ReadSource
from stator.dynamo.interpreter.calling import calls, fold
from stator.dynamo.values.base import Value

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext

fold(torch.are_deterministic_algorithms_enabled, torch._C._get_deterministic_algorithms)


def _read_in_each_call(function: Callable[[], bool]) -> None:
    def handler(context: CaptureContext) -> Value:
        return context.wrap(function(), ReadSource(function))

    calls(function)(handler)


_read_in_each_call(torch._C._get_deterministic_algorithms_warn_only)
_read_in_each_call(torch._C._get_deterministic_fill_uninitialized_memory)
