"""OpInfo's samples through the whole compiler: traced, lowered, fused with others, compiled, and compared with eager.

Values, dtypes, shapes and strides; every intermediate representation verified on the way.
"""

from __future__ import annotations

import pytest
import torch
from compiled import Case, cases, eager, problems
from samples import IDENTIFIERS, LAYOUTS, OPERATORS

pytestmark = pytest.mark.filterwarnings("ignore")  # of deprecated operators and beta features

NAMED = list(zip(IDENTIFIERS, OPERATORS, strict=True))
PART = 40
PARTS = [NAMED[start : start + PART] for start in range(0, len(NAMED), PART)]
PART_NAMES = [f"{part[0][0]}-to-{part[-1][0]}" for part in PARTS]


@pytest.mark.parametrize("part", PARTS, ids=PART_NAMES)
def test_compiled_operators_equal_eager(part: list) -> None:
    torch.manual_seed(0)
    found = problems(cases(part, 1, (None,)), batch_size=50)
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", PARTS, ids=PART_NAMES)
def test_compiled_operators_equal_eager_in_every_layout(part: list) -> None:
    torch.manual_seed(0)
    found = problems(cases(part, 12, (None, *LAYOUTS)), batch_size=40)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", ["fmod", "remainder"])
def test_the_smallest_divisors(name: str) -> None:
    """As eager's scalar code has it, also where its vector code gives NaN."""
    tiny = torch.finfo(torch.float32).tiny
    x, y = torch.linspace(1, 9, 70).bfloat16(), torch.tensor([tiny, 3.0, -tiny, 1e-40, 0.0, 2.5, float("inf")])
    case = Case(name, getattr(torch, name), (x, (y.bfloat16().repeat(10),), {}))
    assert not problems([case], batch_size=1)
    alone = torch.stack([case.call(iter((a, b))) for a, b in zip(*case.tensors, strict=True)])
    assert int(alone.isnan().sum()) == 10  # of division by zero, and nowhere else
    assert int(eager([case])[0].isnan().sum()) >= 10
