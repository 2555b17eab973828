"""Numbers that programs compute in tensors of sizes and of buffers, and read: few versions serve all sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.differential import assert_same
from tests.varying_sizes import check_sizes
from torch import nn

import stator
from stator.base import counters


class PaddedConvolution(nn.Module):
    """A convolution of audio codecs, whose padding is computed of buffers and the length."""

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 2, kernel, stride)
        self.register_buffer("stride", torch.tensor(stride))
        self.register_buffer("kernel", torch.tensor(kernel))
        self.register_buffer("padding", torch.tensor(kernel - stride))

    def extra(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[-1]
        frames = (length - self.kernel + self.padding) / self.stride + 1
        frames = torch.ceil(frames).to(torch.int64) - 1
        return frames * self.stride + self.kernel - self.padding - length

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.padding, self.extra(x)
        length, most = x.shape[-1], max(left, right)
        added = 0
        if length <= most:
            added = most - length + 1
            x = F.pad(x, (0, added))
        padded = F.pad(x, (left, right), "reflect")
        return self.conv(padded[..., : padded.shape[-1] - added])


def waves(size: int) -> list[torch.Tensor]:
    return [torch.randn(2, 2, 30 * size, requires_grad=True)]


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_paddings_of_buffers(backend: str, dynamic: bool | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(PaddedConvolution(7, 1), PaddedConvolution(10, 5), PaddedConvolution(4, 2))
    check_sizes(model, waves, backend=backend, dynamic=dynamic, sizes=(3, 4, 7, 20))


def test_a_part_of_a_length_that_is_computed_in_a_tensor() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        ratio = torch.tensor(3)
        kept = x.shape[0] - x.shape[0] // ratio
        return torch.cat([x[:kept] * 2, torch.zeros(int(kept), 3), x[kept:] - kept])

    check_sizes(program, lambda size: [torch.randn(size, 3)], dynamic=True)


def test_a_float_that_is_computed_in_a_tensor() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        ratio = (x.shape[0] / torch.tensor(3)).item()
        return x * ratio if ratio < 100 else x

    check_sizes(program, lambda size: [torch.randn(size, 3)], dynamic=True)


def branches(x: torch.Tensor) -> torch.Tensor:
    return x.sin() if x.shape[0] - torch.tensor(4) >= 3 else x.cos()


def test_a_branch_is_a_fact_about_the_size() -> None:
    compiled = stator.compile(branches, backend="eager", dynamic=True, fullgraph=True)
    versions = counters.counts["frames"]
    for size in (5, 9, 6, 12, 7, 30):
        x = torch.randn(size)
        assert_same(compiled(x), branches(x))
    assert counters.counts["frames"] - versions == 2


def test_contents_of_buffers_that_change_are_read_anew() -> None:
    model = PaddedConvolution(4, 2)
    compiled = stator.compile(model, backend="eager", dynamic=True)
    for stride, size in ((2, 20), (2, 30), (4, 30), (4, 20), (3, 20)):
        model.stride.fill_(stride)
        x = torch.randn(1, 2, size)
        assert_same(compiled(x), model(x))


def test_a_write_in_the_frame_ends_the_expression() -> None:
    def program(x: torch.Tensor, counts: torch.Tensor) -> Any:
        kept = x.shape[0] // torch.tensor(2)
        kept -= counts
        return x[: int(kept)] * 2

    compiled = stator.compile(program, backend="eager", dynamic=True)
    for size in (5, 9, 6):
        for count in (0, 1, 2):
            x = torch.randn(size)
            assert_same(compiled(x, torch.tensor(count)), program(x, torch.tensor(count)))
