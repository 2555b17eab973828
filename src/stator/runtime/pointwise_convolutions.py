"""The choice between the library's convolution of one tap, and a product of all positions, for float32 images.

Where images lie in NHWC, they are the rows of one matrix. In NCHW the library multiplies a narrow matrix for each
image, or converts the format first. Which takes less time, and from which size on, depends on the processor. So the
choice is timed where it runs, for typical sizes (`choices.py`). benchmarks/convolutions.py measures both.
"""

from __future__ import annotations

import functools
import math

import torch

from . import choices
from .matrix_products import WORTHWHILE, onednn_takes, typical_weight

CONVOLUTION, PRODUCT = "convolution", "product"

# Timed images are at most so many, of at most so many rows. More, and larger ones, behave like these.
_MOST_IMAGES, _MOST_SIDE = 4, 28
# Multiplications of a timed run, of each thread: 0.7 milliseconds
_TIMED_WORK = 3 << 24
# The share of the convolution's time in which the product must win. Of images in NCHW the choice moves their neighbours
# to NHWC, too, where dense kernels of several taps may be slower.
_MARGIN, _FORMAT_MARGIN = 0.97, 0.95


@choices.answered_by_timing
def is_product_quicker(images: int, positions: int, channels: int, out: int, channels_last: bool) -> tuple[bool, bool]:
    """Compare the product of images in NHWC with the convolution of images in NHWC (`channels_last`) or NCHW; this may
    time both."""
    if not onednn_takes(torch.float32) or images * positions * channels * out < WORTHWHILE:
        return False, False
    images, side = min(images, _MOST_IMAGES), min(math.isqrt(positions), _MOST_SIDE)
    weight = typical_weight(channels, out, _TIMED_WORK * torch.get_num_threads() // (images * side * side))
    facts = (images, side, *weight, channels_last, torch.get_float32_matmul_precision())
    runs, margin = functools.partial(_runs, *facts[:5]), _MARGIN if channels_last else _FORMAT_MARGIN
    chosen, is_provisional = choices.choose_patiently(_KIND, facts, runs, CONVOLUTION, margin)
    return chosen == PRODUCT, is_provisional


_KIND = "convolution of one tap"


def _runs(images: int, side: int, channels: int, out: int, channels_last: bool) -> choices.Alternatives:
    weight = torch.full((out, channels), 0.5, dtype=torch.float32, device="cpu")
    rows = torch.full((images * side * side, channels), 0.5, dtype=torch.float32, device="cpu")
    shape = (images, side, side, channels) if channels_last else (images, channels, side, side)
    given = rows.view(shape).permute(0, 3, 1, 2) if channels_last else rows.view(shape)
    product = torch.ops.mkldnn._linear_pointwise
    return {
        CONVOLUTION: [lambda: torch.conv2d(given, weight[:, :, None, None])],
        PRODUCT: [lambda: product(rows, weight, None, "none", [], "")],
    }
