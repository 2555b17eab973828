"""Programs that use the standard library on their way to a result: one graph each, equal to eager."""

from __future__ import annotations

import sys

import torch

INPUT = torch.tensor([1.5, -2.25, 3.0, 0.5])


def sets_in_place(x):
    held, other = {1, 2, 3, 4}, {3, 4, 5}
    held.symmetric_difference_update([9, 1])
    held.difference_update([2], {77})
    held.intersection_update(other | {9})
    return x * len(held), sorted(held)


def sequences_in_order(x):
    return x, sys.version_info >= (3, 8), sys.version_info[:2] < (3, 9), [x.shape[0], 1] < [4, 2], (1, "a") > (1, "b")
