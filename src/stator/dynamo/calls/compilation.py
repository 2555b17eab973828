"""What the program says about its own compilation: that it opted out, and the question whether it is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..calling import calls
from ..status import is_compiling
from ..values.constants import ConstantValue

if TYPE_CHECKING:
    from ..tracer import Tracer


@calls(is_compiling)
def _is_compiling(tracer: Tracer) -> ConstantValue:
    return ConstantValue(True)
