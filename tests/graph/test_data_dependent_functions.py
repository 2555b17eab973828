"""Torch functions whose own C++ reads data are traced whole all the same, and still refuse what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stator
from stator.graph.tracing.tracer import trace

QUANTILES = (torch.quantile, torch.nanquantile)


def values(seed: int, *shape: int, missing: bool = False) -> torch.Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    if missing:
        made.view(-1)[::3] = torch.nan
    return made


def whole(function: Any, backend: str = "aot_eager") -> Any:
    return stator.compile(function, backend=backend, fullgraph=True)


@pytest.mark.parametrize("function", QUANTILES)
@pytest.mark.parametrize("method", [False, True])
def test_quantiles_are_differentiated(function: Any, method: bool) -> None:
    """By the values and by the shares."""

    def program(x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return (getattr(x, function.__name__)(q, dim=1) if method else function(x, q, dim=1)).sin().sum()

    compiled = whole(program, "inductor")
    gradients = []
    for run in (program, compiled):
        x, q = values(1, 4, 6).requires_grad_(), torch.tensor([0.2, 0.7], requires_grad=True)
        run(x, q).backward()
        gradients.append((x.grad, q.grad))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("share", [1.5, -0.1, torch.nan])
def test_a_share_outside_of_its_range_is_refused_when_it_comes(backend: str, share: float) -> None:
    compiled = whole(lambda x, q: torch.quantile(x, q, dim=0), backend)
    x = values(2, 5, 3)
    assert torch.equal(compiled(x, torch.tensor([0.5])), torch.quantile(x, torch.tensor([0.5]), dim=0))
    with pytest.raises(RuntimeError, match=r"q values must be in the range \[0, 1\]"):
        compiled(x, torch.tensor([0.5, share]))


def test_shares_that_are_known_are_checked_once() -> None:
    """While tracing; nothing of it is left in the graph."""
    quantiles = torch.ops.aten.quantile.default

    def keep(target: object) -> bool:
        return target is not quantiles

    traced = trace(lambda x: torch.quantile(x, torch.tensor([0.1, 0.9])), [values(3, 7)], keep=keep)
    targets = {node.target for node in traced.graph.graph.nodes}
    assert torch.ops.aten.sort.default in targets
    assert torch.ops.aten._assert_async.msg not in targets
    with pytest.raises(RuntimeError, match="range"):
        trace(lambda x: torch.quantile(x, torch.tensor([0.1, 1.9])), [values(3, 7)], keep=keep)


@pytest.mark.parametrize(
    ("dtype", "share", "reason"), [(torch.float32, 1.5, "range"), (torch.int64, 0.5, "float or double")]
)
def test_decompositions_refuse_with_eagers_error(dtype: torch.dtype, share: float, reason: str) -> None:
    run = torch.ops.aten.quantile.scalar
    with pytest.raises(RuntimeError, match=reason):
        trace(lambda x: run(x, share), [values(3, 7).to(dtype)], keep=lambda target: target is not run)


def test_quantiles_under_autocast_are_eagers() -> None:
    """Autocast computes them in float32. Where torch's own code asks for data they run eagerly."""

    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.quantile(x.bfloat16(), torch.tensor(0.25), dim=0)

    x = values(4, 6, 2)
    found, expected = stator.compile(program)(x), program(x)
    assert found.dtype is expected.dtype
    assert torch.equal(found, expected)


ENDS = torch.tensor([3, 7, 7, 18], dtype=torch.int32)


def expert(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A product for groups of rows. Rows behind the last group are undefined."""
    return torch.nn.functional.grouped_mm(x.relu(), weight.transpose(-2, -1), offs=ENDS)[:18].sin()


def sparse_expert(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Its counterpart, zero behind the last group, and its autograd formula is written in Python."""
    return torch.ops.transformers.grouped_mm_fallback(x.relu(), weight.transpose(-2, -1), ENDS).cos()


@pytest.mark.parametrize(
    ("program", "inner", "columns"),
    [(expert, 16, 32), (sparse_expert, 16, 32), (sparse_expert, 16, 30), (sparse_expert, 10, 32)],
)  # ATen refuses rows that do not begin at multiples of 16 bytes
def test_products_of_groups_of_rows(program: Any, inner: int, columns: int) -> None:
    if program is sparse_expert:
        pytest.importorskip("transformers.integrations.moe")
    operands = [values(1, 20, inner), values(2, 4, columns, inner)]
    results = []
    for run in (program, whole(program, "inductor")):
        given = [operand.clone().requires_grad_() for operand in operands]
        with torch.no_grad():
            results.append([run(*given)])
        made = run(*given)
        results[-1] += [made, *torch.autograd.grad(made.square().sum(), given)]
    for ours, eager in zip(*reversed(results), strict=True):
        if program is expert and ours.shape == operands[0].shape:
            ours, eager = ours[:18], eager[:18]  # the gradient behind the last group is undefined, too
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)
