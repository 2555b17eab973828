"""Checks that run with a graph: of data, with eager's error (`stator::check`), and of assumptions about sizes that
depend on data (`stator::require`). `stator::tolist` reads such numbers."""

from __future__ import annotations

from typing import Any

import torch

from stator.base.errors import WrongAssumption
from stator.prims.layout import holds
from stator.prims.record import shape_rule

ASSUMPTION = "WrongAssumption"  # made by capture, not by the program
ERRORS: dict[str, type[Exception]] = {
    "RuntimeError": RuntimeError,
    "ValueError": ValueError,
    ASSUMPTION: WrongAssumption,
}


def _check(holds: torch.Tensor, kind: str, message: str) -> None:
    if not bool(holds):
        raise ERRORS[kind](message)


def require(truth: Any, text: str) -> None:
    """Check an assumption when a graph runs; while tracing, make the same assumption. Raises WrongAssumption."""
    if not holds(truth):
        raise WrongAssumption(f"a compiled graph relied on {text}, which is not so in this call")


def numbers_in(tensor: torch.Tensor) -> list[int]:
    """The ints in a tensor, in row-major order."""
    found: list[int] = tensor.flatten().tolist()
    return found


_library = torch.library.Library("stator", "FRAGMENT")
_library.define("check(Tensor holds, str kind, str message) -> ()")
_library.impl("check", _check, "CompositeExplicitAutograd")
_library.define("require(bool holds, str text) -> ()")
_library.impl("require", require, "CompositeExplicitAutograd")
_library.define("tolist(Tensor self) -> int[]")
_library.impl("tolist", numbers_in, "CompositeExplicitAutograd")

check = torch.ops.stator.check.default
require_sizes = torch.ops.stator.require.default
tolist = torch.ops.stator.tolist.default


@shape_rule(check)
def check_shape(holds: torch.Tensor, kind: str, message: str) -> None:
    """holds: bool, one element. If it is False, raises the error of this kind."""
    if kind not in ERRORS:
        raise ValueError(f"a check ends in {', '.join(ERRORS)}, not in {kind}")
