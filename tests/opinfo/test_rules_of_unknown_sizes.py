"""Shape rules of tensors some of whose sizes only the run can tell.

What a rule says of such tensors, under what it relied on, is what it says at any size for which that holds: 0, 1 and
larger ones. It may also say that it cannot tell.
"""

from __future__ import annotations

import pytest
import torch
from differentiated import REFUSALS
from samples import IDENTIFIERS, OPERATORS, samples
from unknown import UnknownRuleCheck

pytestmark = pytest.mark.filterwarnings("ignore")  # of deprecated operators and beta features

NAMED = list(zip(IDENTIFIERS, OPERATORS, strict=True))
PART = 80
PARTS = [NAMED[start : start + PART] for start in range(0, len(NAMED), PART)]
PART_NAMES = [f"{part[0][0]}-to-{part[-1][0]}" for part in PARTS]
by_part = pytest.mark.parametrize("part", PARTS, ids=PART_NAMES)
by_symbols = pytest.mark.parametrize("own", [False, True], ids=["equal sizes are one", "each first size is its own"])


def check(part: list, own: bool, count: int, dtypes: tuple[torch.dtype, ...]) -> None:
    torch.manual_seed(0)
    checker = UnknownRuleCheck(own)
    for _, op in part:
        for tensor, args, kwargs in samples(op, count, dtypes):
            try:
                with torch.no_grad(), checker:
                    op(tensor, *args, **kwargs)
            except REFUSALS:
                continue
    assert sum(checker.followed.values()) > 10 * sum(checker.ended.values())
    assert not checker.mismatches, "\n".join(
        f"{target}:\n    " + "\n    ".join(problems) for target, problems in checker.mismatches.items()
    )


@by_symbols
@by_part
def test_rules_are_right_at_all_sizes(part: list, own: bool) -> None:
    check(part, own, 1, (torch.float32,))


@pytest.mark.slow
@by_symbols
@by_part
def test_rules_are_right_at_all_sizes_for_more_samples(part: list, own: bool) -> None:
    check(part, own, 6, (torch.float32, torch.int64, torch.bool))
