"""Data checks that eager makes, with an error, as an operator of a graph: `stator::check`. It runs with the graph."""

from __future__ import annotations

import torch

from stator.base.errors import WrongAssumption
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


_library = torch.library.Library("stator", "FRAGMENT")
_library.define("check(Tensor holds, str kind, str message) -> ()")
_library.impl("check", _check, "CompositeExplicitAutograd")

check = torch.ops.stator.check.default


@shape_rule(check)
def check_shape(holds: torch.Tensor, kind: str, message: str) -> None:
    """holds: bool, one element. If it is False, raises the error of this kind."""
    if kind not in ERRORS:
        raise ValueError(f"a check ends in {', '.join(ERRORS)}, not in {kind}")
