"""Every decomposition computes what eager computes, in dtype, layout and value, on OpInfo's samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiled import READ_AS_CONTIGUOUS
from recorder import DecompositionCheck
from samples import IDENTIFIERS, LAYOUTS, OPERATORS, laid_out, samples

pytestmark = pytest.mark.filterwarnings("ignore")  # of deprecated operators and beta features


def check(op: Any, count: int, layouts: tuple[str, ...]) -> None:
    """Values agree within recorder.TOLERANCES, whatever layout the sample has. Eager may refuse other layouts."""
    torch.manual_seed(0)
    checker = DecompositionCheck()

    def run(sample: tuple[Any, Any, Any]) -> None:
        tensor, args, kwargs = sample
        with torch.no_grad(), checker:
            op(tensor, *args, **kwargs)

    for sample in samples(op, count):
        run(sample)
        for layout in layouts:
            if layout == "overlapping" and op.name in READ_AS_CONTIGUOUS:
                continue
            try:
                run(laid_out(sample, layout))
            except (RuntimeError, ValueError, TypeError, IndexError):
                continue
    assert not checker.mismatches, "\n".join(
        f"{target}:\n    " + "\n    ".join(problems) for target, problems in checker.mismatches.items()
    )


@pytest.mark.parametrize("op", OPERATORS, ids=IDENTIFIERS)
def test_decomposition_equals_eager(op: Any) -> None:
    check(op, 2, ("transposed",))


@pytest.mark.slow
@pytest.mark.parametrize("op", OPERATORS, ids=IDENTIFIERS)
def test_decomposition_equals_eager_in_every_layout(op: Any) -> None:
    check(op, 40, tuple(LAYOUTS))
