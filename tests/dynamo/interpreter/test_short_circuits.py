"""A branch on a number that the graph computes is none where `and` and `or` have one result for both of its truths."""

from __future__ import annotations

import pytest
import torch

import stator
from stator.base import counters


def in_values(n, flag, mask):
    causal = n > 1 and mask is None and flag
    return causal, n < 3 or not causal


def in_branches(n, flag, mask):
    if n > 1 and mask is None and flag:
        return 1
    return 2 if n > 3 or not flag else 3


def of_numbers(n, flag, mask):
    return n and flag  # 0 and False are two results


@pytest.mark.parametrize("mask", [None, torch.ones(2)], ids=["no_mask", "mask"])
@pytest.mark.parametrize(("decide", "breaks"), [(in_values, 0), (in_branches, 0), (of_numbers, 1)])
def test_what_both_truths_lead_to(decide, mask, breaks: int) -> None:
    def program(x, flag):
        n = x[x > 0].shape[0]
        return x * 2, decide(n, flag, mask), n

    compiled = stator.compile(program, backend="eager")
    counters.clear()
    for count in (0, 1, 2, 4, 7):
        x = torch.cat([torch.ones(count), -torch.ones(9 - count)])
        found, expected = compiled(x, False), program(x, False)
        assert torch.equal(found[0], expected[0])
        assert found[1:] == expected[1:] and type(found[1]) is type(expected[1])
    assert min(counters.counts["graph_breaks"], 1) == breaks
