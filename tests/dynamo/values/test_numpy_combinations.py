"""Functions of NumPy that are combinations of others, in one graph with tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import stator

PROGRAMS = {
    "outer": lambda a: np.outer(a, a[1:]),
    "diff": lambda a: np.diff(a),
    "vstack": lambda a: (np.vstack([a, a * 2]), np.vstack((np.stack([a, a]), np.stack([a])))),
    "hstack": lambda a: (np.hstack([a, a[:2]]), np.hstack((np.stack([a, a]), np.stack([a, a])))),
    "roll": lambda a: (np.roll(a, 1), np.roll(a, -7), np.roll(a, 0)),
    "tile": lambda a: np.tile(a, 3),
    "repeat": lambda a: np.repeat(a, 2),
    "meshgrid": lambda a: (
        *np.meshgrid(a, a[:3]),
        *np.meshgrid(a, a[:3], a[:2], indexing="ij"),
        *np.meshgrid(a, a[:3], a),
    ),
    "norm": lambda a: (np.linalg.norm(a), np.linalg.norm(a, 1), np.linalg.norm(a, ord=np.inf), np.linalg.norm(a, 2)),
    "norm of rows": lambda a: (np.linalg.norm(np.stack([a, a * 2]), axis=1), np.linalg.norm(np.stack([a, a]))),
}


def plain(results):
    results = results if isinstance(results, tuple) else (results,)
    return [(type(one), one.dtype, one.shape, getattr(one, "strides", None), one.tolist()) for one in results]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_as_numpy(name, dtype):
    if name.startswith("norm") and not dtype.is_floating_point:
        pytest.skip("of whole numbers it is left to NumPy")

    def program(x):
        return PROGRAMS[name]((x * 2).numpy())

    x = torch.tensor([1.5, -2.0, 3.0, 0.5, -0.0]).to(dtype)
    found = plain(stator.compile(program, backend="eager", fullgraph=True)(x))
    for one, other in zip(found, plain(program(x)), strict=True):
        assert one[:4] == other[:4]
        np.testing.assert_allclose(one[4], other[4], rtol=2e-7 if name.startswith("norm") else 0)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: np.linalg.norm(np.stack([x.numpy()]), 2),
        lambda x: np.roll(np.stack([x.numpy()]), 1),
        lambda x: np.meshgrid(x.numpy(), 3),
        lambda x: np.outer(x.numpy(), [1, 2]),
    ],
)
def test_other_arguments_are_left_to_numpy_in_the_graph(program):
    x = torch.tensor([1.5, -2.0])
    found = stator.compile(program, backend="eager", fullgraph=True)(x)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(program(x)))
