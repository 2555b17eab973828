"""What eager refuses, or warns of, after a look at data, as an operator of a graph: `stator::check`.

It looks when the graph runs. Which torch functions look, and at what, is not known here.
"""

from __future__ import annotations

import warnings

import torch

from stator.base.errors import WrongAssumption
from stator.prims.record import shape_rule

ASSUMPTION = "WrongAssumption"  # of the capture, not of the program
ERRORS: dict[str, type[Exception]] = {
    "RuntimeError": RuntimeError,
    "ValueError": ValueError,
    ASSUMPTION: WrongAssumption,
}
WARNING = "UserWarning"


def _check(holds: torch.Tensor, kind: str, message: str) -> None:
    if bool(holds):
        return
    if kind == WARNING:
        warnings.warn(message, UserWarning, stacklevel=2)
    else:
        raise ERRORS[kind](message)


_library = torch.library.Library("stator", "FRAGMENT")
_library.define("check(Tensor holds, str kind, str message) -> ()")
_library.impl("check", _check, "CompositeExplicitAutograd")

check = torch.ops.stator.check.default


@shape_rule(check)
def check_shape(holds: torch.Tensor, kind: str, message: str) -> None:
    """`holds`: bool, one element. When it is False: the error of this kind, or a warning for "UserWarning"."""
    if kind != WARNING and kind not in ERRORS:
        raise ValueError(f"a check ends in {', '.join(ERRORS)} or {WARNING}, not in {kind}")
