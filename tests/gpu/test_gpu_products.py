"""Matrix products with what follows them: kernels of ours, chosen by the rule or by timing, beside eager in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.gpu.device import DEVICE, only_cuda

import stator
from stator.base import counters
from stator.inductor.schedule.groups import ProductGroup, Tile

# Relative to the norm of a result, which has the rounding of its dtype and of one more value before it
TOLERANCES = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def three_weights(x: Any, *weights: Any) -> Any:
    return tuple([(x @ weight.t()).unflatten(-1, (-1, 64)).transpose(-2, -3) for weight in weights])


def activated(x: Any, weight: Any, bias: Any) -> Any:
    return F.gelu(F.linear(x, weight, bias))


def gated(x: Any, gate: Any, up: Any) -> Any:
    return F.silu(x @ gate.t()) * (x @ up.t())


def normalized(x: Any, weight: Any, bias: Any, residual: Any) -> Any:
    return F.layer_norm(torch.addmm(bias, x, weight) + residual, weight.shape[1:])


def a_batch(x: Any, y: Any) -> Any:
    return (x @ y).transpose(0, 1).contiguous()


def cases(rows: int, dtype: torch.dtype) -> dict[Callable[..., Any], list[torch.Tensor]]:
    def random(*sizes: int) -> torch.Tensor:
        return (torch.randn(sizes, device=DEVICE) * 0.2).to(dtype)

    return {
        three_weights: [random(rows, 768), *[random(768, 768) for _ in range(3)]],
        activated: [random(rows, 768), random(3072, 768), random(3072)],
        gated: [random(rows, 512), random(1408, 512), random(1408, 512)],
        normalized: [random(rows, 3072), random(3072, 768), random(768), random(rows, 768)],
        a_batch: [random(12, rows, 128), random(12, 128, 64)],
    }


def check(function: Callable[..., Any], tensors: list[torch.Tensor], **settings: Any) -> None:
    def flat(results: Any) -> list[torch.Tensor]:
        return [results] if isinstance(results, torch.Tensor) else list(results)

    with torch.no_grad():
        found = flat(stator.compile(function, **settings)(*tensors))
        exact = flat(function(*[tensor.double() for tensor in tensors]))
    for result, expected in zip(found, exact, strict=True):
        assert result.shape == expected.shape and result.dtype is tensors[0].dtype
        error = float((result.double() - expected).norm() / expected.norm())
        assert error < TOLERANCES[result.dtype]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("rows", (1, 17, 128, 300))
@pytest.mark.parametrize("mode", ("default", "reduce-overhead"))
def test_products_as_the_rule_chooses(mode: str, rows: int, dtype: torch.dtype) -> None:
    for function, tensors in cases(rows, dtype).items():
        check(function, tensors, mode=mode)


def experts(x: Any, up: Any, down: Any, ends: Any) -> Any:
    """Rows in groups that data ends, a matrix for each; rows behind the last group are zero."""
    inside = torch.arange(len(x), device=x.device).unsqueeze(1) < ends[-1]
    x = torch.where(inside, x, 0)  # gradients of other rows are undefined
    hidden = torch.where(inside, F.relu(torch._grouped_mm(x, up.transpose(1, 2), offs=ends)), 0)
    return torch.where(inside, torch._grouped_mm(hidden, down, offs=ends), 0)


@only_cuda
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("rows", (8, 300, 4096))
@pytest.mark.parametrize("mode", ("default", "reduce-overhead", "max-autotune"))
def test_products_of_groups(mode: str, rows: int, dtype: torch.dtype) -> None:
    """Ends change from call to call, and a recorded graph reads them."""
    given = [
        (torch.randn(sizes, device=DEVICE) * 0.1).to(dtype).requires_grad_()
        for sizes in ((rows, 512), (6, 768, 512), (6, 768, 512))
    ]
    compiled = stator.compile(experts, mode=mode, fullgraph=True)
    recorded = counters.counts["cuda_graphs:recorded"]
    for turn in range(4):
        shares = [0, rows // 3 + turn % 2, rows // 3 + turn % 2, rows // 2 + 1, rows - turn // 2, rows - turn // 2]
        ends = torch.tensor(shares, dtype=torch.int32, device=DEVICE)
        with torch.no_grad():
            pairs = [(compiled(*given, ends), by_groups(*given, shares))]
        results = [compiled(*given, ends), by_groups(*given, shares)]
        pairs.append(tuple(results))
        derived = [torch.autograd.grad(one.double().square().sum(), given) for one in results]
        pairs += zip(*derived, strict=True)
        for found, expected in pairs:
            error = float((found.double() - expected.double()).detach().norm() / expected.double().detach().norm())
            assert error < 5 * TOLERANCES[dtype]
    assert (counters.counts["cuda_graphs:recorded"] > recorded) == (mode != "default")


def by_groups(x: Any, up: Any, down: Any, shares: list[int]) -> Any:
    """In float64."""
    x, up, down = x.double(), up.double(), down.double()
    parts, start = [], 0
    for expert, end in enumerate(shares):
        parts.append(F.relu(x[start:end] @ up[expert].t()) @ down[expert])
        start = end
    return torch.cat([*parts, x.new_zeros(len(x) - start, down.shape[2])])


@only_cuda
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("rows", (5, 128, 1300))
def test_each_tile_that_timing_may_choose(rows: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    from stator.inductor.codegen.triton import tuning
    from stator.inductor.codegen.triton.tiled import tiles

    turn = 0
    counted: set[int] = set()

    def choose(tuner: Any, group: ProductGroup, may_share_depth: bool) -> Tile:
        found = tiles.candidates(group, may_share_depth, lowered=tuner.lowered)
        counted.add(len(found))
        return found[turn % len(found)]

    monkeypatch.setattr(tuning.Tuner, "__call__", choose)
    for turn in range(tiles.MOST):  # noqa: B007 - choose reads it
        stator.reset()
        for function, tensors in cases(rows, dtype).items():
            check(function, tensors, mode="max-autotune", options={"verify": True})
    assert max(counted) > 3


@only_cuda
def test_choices_by_timing_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stator.inductor.codegen.triton import tuning

    monkeypatch.setenv("STATOR_CACHE_DIR", str(tmp_path))
    chosen: list[Tile | None] = []
    timed = tuning.Tuner._timed
    monkeypatch.setattr(tuning.Tuner, "_timed", lambda *given: chosen.append(timed(*given)) or chosen[-1])
    all_cases = cases(128, torch.bfloat16)
    for function, tensors in all_cases.items():
        check(function, tensors, mode="max-autotune")
    assert chosen and counters.seconds["autotune"] > 0
    chosen.clear()
    stator.reset()
    for function, tensors in all_cases.items():
        check(function, tensors, mode="max-autotune")
    assert not chosen


@only_cuda
@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs"])
def test_blocks_by_timing(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that are no products. Only one of the modes records CUDA graphs."""
    from stator.inductor.codegen.triton import tuning

    monkeypatch.setenv("STATOR_CACHE_DIR", str(tmp_path))
    chosen: list[Any] = []
    timed = tuning.BlockTuner._timed
    monkeypatch.setattr(tuning.BlockTuner, "_timed", lambda *given: chosen.append(timed(*given)) or chosen[-1])

    def blocks(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        normed = F.layer_norm(x, x.shape[-1:], weight)
        return F.gelu(normed), normed.softmax(0), normed.t().contiguous().sum(0)

    before = counters.counts["cuda_graphs:recorded"]
    compiled = stator.compile(blocks, fullgraph=True, mode=mode)
    given = [torch.randn(3000, 1100, device=DEVICE), torch.randn(1100, device=DEVICE)]
    for _ in range(4):
        found, expected = compiled(*given), blocks(*given)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert chosen
    assert (counters.counts["cuda_graphs:recorded"] > before) == (mode == "max-autotune")
