"""Depthwise convolutions for tests: modules, and shapes of images."""

from __future__ import annotations

from typing import Any

from torch import nn

CHANNELS = 12
CASES: dict[str, tuple[type[nn.Module], dict[str, Any], tuple[int, ...]]] = {
    "3 x 3": (nn.Conv2d, dict(kernel_size=3, padding=1), (9, 11)),
    "5 x 5 by 2, without a bias": (nn.Conv2d, dict(kernel_size=5, stride=2, padding=2, bias=False), (13, 10)),
    "3 x 3 by 2, last row unread": (nn.Conv2d, dict(kernel_size=3, stride=2), (10, 9)),
    "2 x 2 by 2": (nn.Conv2d, dict(kernel_size=2, stride=2), (8, 6)),
    "4 x 3 by 3 and 2": (nn.Conv2d, dict(kernel_size=(4, 3), stride=(3, 2), padding=(2, 1)), (11, 12)),
    "strides beyond the kernel": (nn.Conv2d, dict(kernel_size=(1, 2), stride=3), (7, 8)),
    "dilated": (nn.Conv2d, dict(kernel_size=3, padding=(4, 2), dilation=(4, 2)), (9, 8)),
    "dilated by 2": (nn.Conv2d, dict(kernel_size=3, stride=2, padding=2, dilation=2), (9, 8)),
    "more padding than kernel": (nn.Conv2d, dict(kernel_size=(1, 3), padding=(2, 3)), (4, 5)),
    "7 x 7": (nn.Conv2d, dict(kernel_size=7, padding=3), (9, 11)),
    "6 x 7 by 2, dilated": (
        nn.Conv2d,
        dict(kernel_size=(6, 7), stride=(2, 1), padding=(4, 3), dilation=(1, 2)),
        (15, 14),
    ),
    "4 along one axis": (nn.Conv1d, dict(kernel_size=4, padding=3), (17,)),
    "11 along one axis": (nn.Conv1d, dict(kernel_size=11, padding=5), (23,)),
    "15 along one axis": (nn.Conv1d, dict(kernel_size=15, padding=7), (23,)),
    "31 along one axis": (nn.Conv1d, dict(kernel_size=31, padding=15), (35,)),
    "5 along one axis by 2": (nn.Conv1d, dict(kernel_size=5, stride=2), (18,)),
    "three axes": (nn.Conv3d, dict(kernel_size=(3, 2, 3), padding=1), (4, 5, 6)),
}


def depthwise(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    kind, settings, size = CASES[name]
    return kind(CHANNELS, CHANNELS, groups=CHANNELS, **settings), (2, CHANNELS, *size)
