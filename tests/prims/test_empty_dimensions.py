"""Shape rules refuse the empty dimensions that eager refuses, and no others."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from stator.graph.fake.fake_mode import FakeMode
from stator.prims.record import TensorMeta

SIZES = (0, 1, 3)


PROGRAMS: dict[str, tuple[tuple[int, ...], Callable[..., Any]]] = {
    # ranks of the input, and a function of it and of two indices, both 0
    "adaptive_avg_pool1d": ((2, 3), lambda x, i: F.adaptive_avg_pool1d(x, 2)),
    "adaptive_avg_pool2d": ((3, 4), lambda x, i: F.adaptive_avg_pool2d(x, 2)),
    "adaptive_avg_pool2d_to_one": ((3, 4), lambda x, i: F.adaptive_avg_pool2d(x, 1)),
    "adaptive_avg_pool3d": ((4,), lambda x, i: F.adaptive_avg_pool3d(x, 2)),
    "adaptive_max_pool1d": ((2, 3), lambda x, i: F.adaptive_max_pool1d(x, 2)),
    "adaptive_max_pool2d": ((3, 4), lambda x, i: F.adaptive_max_pool2d(x, 2)),
    "adaptive_max_pool3d": ((4,), lambda x, i: F.adaptive_max_pool3d(x, 2)),
    "avg_pool1d": ((2, 3), lambda x, i: F.avg_pool1d(x, 2, 1)),
    "avg_pool2d": ((3, 4), lambda x, i: F.avg_pool2d(x, 2, 1)),
    "avg_pool3d": ((4,), lambda x, i: F.avg_pool3d(x, 2, 1)),
    "max_pool1d": ((2, 3), lambda x, i: F.max_pool1d(x, 2, 1)),
    "max_pool2d": ((3, 4), lambda x, i: F.max_pool2d(x, 2, 1)),
    "max_pool3d": ((4,), lambda x, i: F.max_pool3d(x, 2, 1)),
    "unfold": ((3, 4), lambda x, i: F.unfold(x, 2)),
    "nearest": ((3, 4), lambda x, i: F.interpolate(x, scale_factor=2.0)),
    "linear_smaller": ((3,), lambda x, i: F.interpolate(x, scale_factor=0.4, mode="linear")),
    "bilinear": ((4,), lambda x, i: F.interpolate(x, scale_factor=0.5, mode="bilinear")),
    "bicubic": ((4,), lambda x, i: F.interpolate(x, size=(2, 2), mode="bicubic")),
    "reflect": ((2, 3), lambda x, i: F.pad(x, (1, 1), mode="reflect")),
    "replicate": ((2, 3), lambda x, i: F.pad(x, (1, 1), mode="replicate")),
    "replicate_image": ((3, 4), lambda x, i: F.pad(x, (1, 1, 1, 1), mode="replicate")),
    "cut_before_and_pad": ((1, 2), lambda x, i: F.pad(x, (-1, 1))),
    "pad_before_and_cut": ((1, 2), lambda x, i: F.pad(x, (2, -2))),
    "cut_both": ((1, 2), lambda x, i: F.pad(x, (-1, -1))),
    "index_select": ((1, 2), lambda x, i: x.index_select(0, i)),
    "index": ((1, 2), lambda x, i: x[i]),
    "index_put": ((1, 2), lambda x, i: x.index_put((i,), x.new_ones(()))),
    "index_put_of_three": ((1, 2), lambda x, i: x.index_put((i,), x.new_ones(3))),
    "gather": ((1,), lambda x, i: x.gather(0, i)),
    "scatter": ((1,), lambda x, i: x.scatter(0, i, 1.0)),
    "scatter_add": ((1,), lambda x, i: x.scatter_add(0, i, x.new_ones(2))),
    "take": ((1, 2), lambda x, i: x.take(i)),
    "embedding": ((2,), lambda x, i: F.embedding(i, x)),
}


def shape_or_error(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return tuple(function(*arguments).shape)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("name", PROGRAMS)
def test_rules_refuse_what_eager_refuses(name: str) -> None:
    ranks, function = PROGRAMS[name]
    for shape in itertools.chain(*[itertools.product(SIZES, repeat=rank) for rank in ranks]):
        tensors = torch.ones(shape), torch.zeros(2, dtype=torch.int64)
        expected = shape_or_error(function, *tensors)
        mode = FakeMode()
        with mode:
            fakes = [mode.make(TensorMeta(tuple(t.shape), t.stride(), t.dtype, t.device, 0)) for t in tensors]
            found = shape_or_error(function, *fakes)
        assert found == expected, f"{name} of {shape}"
