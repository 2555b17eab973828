"""Parts of tensors whose sizes are expressions, such as `n - 1` or `n // 4`: where they are 1, the version of others
serves, unless a program sees the layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.differential import Counts
from tests.varying_sizes import check_sizes

import stator

pytestmark = pytest.mark.fixed_sizes  # counts the versions of sizes that become symbols by changing

WEIGHT = torch.randn(48, 5)
Program = Callable[..., torch.Tensor]


def of_next_tokens(scores: torch.Tensor) -> torch.Tensor:
    classes = scores.detach().argmax(-1)
    return F.cross_entropy(scores[:, :-1].reshape(-1, 7), classes[:, 1:].reshape(-1))


def of_patches(image: torch.Tensor) -> torch.Tensor:
    b, c, h, w = image.shape
    patches = image.reshape(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 1, 3, 5)
    return (patches.reshape(b, (h // 4) * (w // 4), c * 16) @ WEIGHT).softmax(-1)


def of_unfolded_patches(image: torch.Tensor) -> torch.Tensor:
    patches = image.unfold(2, 4, 4).unfold(3, 4, 4).contiguous()
    return patches.view(image.size(0), 3, -1, 16).mean(-1).softmax(-1)


def of_a_padded_batch(image: torch.Tensor) -> torch.Tensor:
    rows = image.flatten(1)[:, :4]
    padded = F.pad(rows, (0, 0, 0, (rows.shape[0] + 7) // 8 * 8 - rows.shape[0]))
    return padded.view(-1, 8, 4).mean(1)


def of_a_crop(image: torch.Tensor) -> torch.Tensor:
    h, w = image.shape[2:]
    height, width = max(h // 2, 1), max(w // 2, 1)
    above, left = (h - height) // 2, (w - width) // 2
    return image[:, :, above : above + height, left : left + width].flip(-1) * 2


def of_a_shifted_mask(scores: torch.Tensor) -> torch.Tensor:
    values, places = scores.flatten(1).sort(descending=True)
    removed = values.softmax(-1).cumsum(-1) > 0.9
    removed[..., 1:] = removed[..., :-1].clone()
    removed[..., 0] = False
    return scores.flatten(1).masked_fill(removed.scatter(1, places, removed), -1.0)


def tokens(size: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(size % 4 + 1, size // 2 + 1, 7, requires_grad=True),)


def images(size: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(size % 4 + 1, 3, 4 * (size // 3 + 1), 4 * (size // 3 + 1), requires_grad=True),)


@pytest.mark.parametrize("sizes", [(5, 6, 2, 3, 8, 12), (2, 5, 3, 12, 8)])
@pytest.mark.parametrize(
    ("program", "make"),
    [
        (of_next_tokens, tokens),
        (of_a_shifted_mask, tokens),
        *((program, images) for program in (of_patches, of_unfolded_patches, of_a_padded_batch, of_a_crop)),
    ],
)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_parts_of_one_element_share_the_version_of_others(
    program: Program, make: Any, sizes: tuple[int, ...], backend: str
) -> None:
    check_sizes(program, make, sizes=sizes, backend=backend)


def told_by_strides(x: torch.Tensor) -> tuple[Any, ...]:
    rows = x[:, :-1].reshape(-1, 7)
    return rows.stride(), rows @ WEIGHT[:7]


def told_by_a_branch(x: torch.Tensor) -> torch.Tensor:
    rows = x[:, :-1].reshape(-1, 7)
    return rows.sum(1) if rows.is_contiguous() else rows.sum(1) * 2


@pytest.mark.parametrize("program", [told_by_strides, told_by_a_branch])
def test_a_program_that_asks_for_a_layout_is_told_that_of_eager(program: Callable[..., Any]) -> None:
    compiled, counts = stator.compile(program), Counts()
    for shape in ((2, 5, 7), (3, 7, 7), (4, 2, 7), (5, 9, 7), (5, 2, 7)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), program(x))
    assert counts.compilations <= 4
