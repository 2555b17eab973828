"""OpInfo's operators, captured with symbols for all sizes: results and gradients equal eager at three sets of sizes.

One compilation serves all three. Tensors of other sizes hold values in the range of the sample's, which may be indices.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from test_inductor_all_sizes import NAMED, calls, resized
from torch.utils._pytree import tree_leaves

import stator

pytestmark = pytest.mark.filterwarnings("ignore")  # of deprecated operators and beta features

PART = 60
PARTS = [NAMED[start : start + PART] for start in range(0, len(NAMED), PART)]
PART_NAMES = [f"{part[0][0]}-to-{part[-1][0]}" for part in PARTS]
QUICK = frozenset(
    ("addmm", "amax", "cumsum", "gather", "index_put", "nn.functional.layer_norm", "roll", "softmax", "tril")
)
# Backwards with a loop over a size; they run in ATen.
REFUSED = frozenset(("ormqr", "linalg.householder_product", "nn.functional.linear_cross_entropy.chunked_none"))
OTHER_SIZES: tuple[Callable[[int], int], ...] = (lambda size: size, lambda size: size + 1, lambda size: 2 * size)


def results_and_gradients(function: Callable[..., Any], given: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """The tensors of a call, and the gradients of a sum over them with a weight for each element."""
    torch.manual_seed(1)
    leaves = [one.clone().requires_grad_(one.dtype.is_floating_point) for one in given]
    results = [one for one in tree_leaves(function(*leaves)) if isinstance(one, torch.Tensor)]
    parts = [one.double() for one in results if one.requires_grad and one.dtype.is_floating_point]
    wanted = [one for one in leaves if one.requires_grad]
    if not parts:
        return results
    loss = sum((one * torch.arange(one.numel()).double().add(1).cos().view(one.shape)).sum() for one in parts)
    return [*results, *torch.autograd.grad(loss, wanted, allow_unused=True)]  # type: ignore[arg-type]


def problems(name: str, op: Any, backend: str) -> Iterator[str]:
    generator = torch.Generator().manual_seed(0)
    for call, tensors in calls(op, 2):
        stator.reset()
        compiled = stator.compile(lambda *given, call=call: call(*given), backend=backend, dynamic=True)
        for number, change in enumerate(OTHER_SIZES):
            shapes = [[change(size) if size > 1 else size for size in one.shape] for one in tensors]
            given = [resized(one, shape, generator) for one, shape in zip(tensors, shapes, strict=True)]
            given = given if number else tensors
            try:
                expected = results_and_gradients(call, given)
            except Exception:  # the sample's numbers do not fit these sizes
                continue
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                found = results_and_gradients(compiled, given)
            said = [str(one.message) for one in heard if str(one.message).startswith("stator")]
            if said and name not in REFUSED:
                yield f"{name} of {shapes}: {said}"
            for one, other in zip(found, expected, strict=True):
                try:
                    torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-3, equal_nan=True)
                except AssertionError as error:
                    yield f"{name} of {shapes}: {error}"


def test_operators_and_gradients_at_other_sizes() -> None:
    found = [text for name, op in NAMED if name in QUICK for text in problems(name, op, "inductor")]
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", PARTS, ids=PART_NAMES)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_all_operators_and_gradients_at_other_sizes(backend: str, part: list[tuple[str, Any]]) -> None:
    found = [text for name, op in part for text in problems(name, op, backend)]
    assert not found, "\n".join(found)
