"""Torch functions through tracing, lowering, scheduling and C++, against eager: what whole programs meet in kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional as F

from stator.base.config import Options
from stator.pipeline import inductor_backend

CHANNELS_LAST = torch.channels_last


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + len(shape)))


def integers(low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(sum(shape)))


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "gn": (lambda x, w, b: F.group_norm(x, 4, w, b), (normal(2, 16, 9, 9), normal(16), normal(16))),
    "gn_cl": (
        lambda x, w, b: F.group_norm(x, 4, w, b),
        (normal(2, 16, 9, 9).to(memory_format=CHANNELS_LAST), normal(16), normal(16)),
    ),
    "bn_train": (lambda x: F.batch_norm(x, None, None, training=True), (normal(4, 20, 7, 7),)),
    "bn_train_cl": (
        lambda x: F.relu(F.batch_norm(x, None, None, training=True)),
        (normal(4, 20, 7, 7).to(memory_format=CHANNELS_LAST),),
    ),
    "in": (lambda x: F.instance_norm(x), (normal(2, 5, 13, 11),)),
    "logsm": (lambda x: F.log_softmax(x, 1), (normal(5, 37, 9),)),
    "sm0": (lambda x: F.softmax(x, 0), (normal(35, 18),)),
    "var": (lambda x: (x.var(1), x.std(0), x.var(), torch.var_mean(x, 1)), (normal(33, 45),)),
    "norm": (lambda x: (x.norm(dim=1), x.norm(), F.normalize(x, dim=1)), (normal(33, 45),)),
    "argmax": (lambda x: (x.argmax(), x.argmax(1), x.argmin(0), x.max(1), x.min(0)), (normal(33, 45),)),
    "anyall": (lambda x: ((x > 0).any(1), (x > -3).all(0), (x > 0).sum(), (x > 0).float().mean()), (normal(33, 45),)),
    "cumsum": (lambda x: x.cumsum(1) + 1, (normal(9, 45),)),
    "gelu_t": (lambda x: F.gelu(x.t()), (normal(33, 45),)),
    "cat": (lambda x, y: torch.cat([x.relu(), y * 2, x + 1], 1) * 3, (normal(4, 5, 6), normal(4, 7, 6))),
    "stack": (lambda x, y: torch.stack([x, y], 1).sum(1), (normal(4, 5), normal(4, 5))),
    "pad": (lambda x: F.pad(x, (1, 2, 3, 4), value=-1.5).exp(), (normal(4, 5, 6),)),
    "pad_refl": (lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"), (normal(4, 5, 6, 7),)),
    "roll": (lambda x: torch.roll(x, (2, 3), (1, 2)) * 2, (normal(4, 5, 6),)),
    "flip": (lambda x: x.flip(1) + x, (normal(4, 33),)),
    "slice": (lambda x: x[:, 1:-1, ::2] * 2, (normal(4, 15, 36),)),
    "emb": (lambda i, w: F.layer_norm(F.embedding(i, w), (32,)), (integers(0, 50, 3, 7), normal(50, 32))),
    "index": (lambda x, i, j: x[i, :, j], (normal(9, 5, 8), integers(0, 9, 6), integers(0, 8, 6))),
    "index_neg": (lambda x, i: x[i] + 1, (normal(9, 5), integers(-9, 9, 6))),
    "gather": (lambda x, i: x.gather(1, i), (normal(9, 15), integers(0, 15, 9, 4))),
    "scatter": (
        lambda x, i, s: x.scatter(1, i, s),
        (
            normal(9, 15),
            torch.stack([torch.randperm(15, generator=torch.Generator().manual_seed(n))[:4] for n in range(9)]),
            normal(9, 4),
        ),
    ),
    "scatter_add": (lambda x, i, s: x.scatter_add(1, i, s), (normal(9, 15), integers(0, 15, 9, 20), normal(9, 20))),
    "index_add": (lambda x, i, s: x.index_add(0, i, s), (normal(9, 15), integers(0, 9, 20), normal(20, 15))),
    "index_put": (lambda x, i, s: x.index_put((i,), s), (normal(9, 15), torch.tensor([7, 2, 0, 5]), normal(4, 15))),
    "where": (lambda x, m: torch.where(m > 0, x, x.new_full((), -1e9)).softmax(-1), (normal(5, 7, 49), normal(7, 49))),
    "mask": (
        lambda x: x.masked_fill(torch.ones(40, 40, dtype=torch.bool).tril() == 0, float("-inf")).softmax(-1),
        (normal(3, 40, 40),),
    ),
    "arange": (lambda x: x + torch.arange(33) * 2, (normal(5, 33),)),
    "tri": (lambda x: (x.tril(), x.triu(1)), (normal(33, 45),)),
    "int": (
        lambda a, b: (a // b, a % b, a + b, a * b, -a, a << 1, a >> 1, a & b),
        (integers(-50, 50, 3, 37), integers(1, 9, 3, 37)),
    ),
    "int32": (
        lambda a, b: (a // b, a % b, a + b, (a * b).float(), a.abs()),
        (integers(-50, 50, 3, 37).int(), integers(1, 9, 3, 37).int()),
    ),
    "u8": (lambda a: (a + 200, a.float() / 255, a * 3), (integers(0, 255, 3, 37).to(torch.uint8),)),
    "bool": (
        lambda a, b: (a & b, a | b, a ^ b, ~a, a.sum(1)),
        (integers(0, 2, 3, 37).bool(), integers(0, 2, 3, 37).bool()),
    ),
    "bf16": (
        lambda a, b: (F.gelu(a + b), F.softmax(a, -1), F.layer_norm(a, (37,)), a.sum(-1)),
        (normal(5, 37).bfloat16(), normal(5, 37).bfloat16()),
    ),
    "half": (
        lambda a, b: (a * b + 1, a.float().mean(0), torch.sigmoid(a)),
        (normal(5, 37).half(), normal(5, 37).half()),
    ),
    "f64": (
        lambda a: (a.exp(), a.softmax(-1), a.sum(), a.mean(0), torch.erf(a), a.pow(3.3)),
        (normal(5, 37).double(),),
    ),
    "pool": (
        lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 3, 2, 1), F.adaptive_avg_pool2d(x, 1)),
        (normal(2, 5, 13, 17),),
    ),
    "pool_cl": (
        lambda x: (F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, (1, 1))),
        (normal(2, 5, 13, 17).to(memory_format=CHANNELS_LAST),),
    ),
    "interp": (lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), (normal(2, 5, 7, 9),)),
    "pixel": (lambda x: F.pixel_shuffle(x, 2), (normal(2, 12, 7, 9),)),
    "glu": (lambda x: F.glu(x, 1) * torch.tanh(x[:, :5]), (normal(4, 10, 9),)),
    "hard": (
        lambda x: (F.hardswish(x), F.hardsigmoid(x), F.silu(x), F.mish(x), F.softplus(x), F.elu(x), F.leaky_relu(x)),
        (normal(4, 37) * 4,),
    ),
    "trig": (lambda x: (x.sin(), x.cos(), x.tan(), x.atan(), torch.atan2(x, x + 1), x.sinh()), (normal(4, 37) * 4,)),
    "pow": (lambda x: (x.abs().pow(0.7), x**2, x**3, x.abs() ** 0.5, 2**x, x.abs() ** -1.5), (normal(4, 37) * 4,)),
    "expand": (lambda x, y: (x[:, None, :] * y[None, :, :]).sum(-1), (normal(7, 37), normal(9, 37))),
    "outer": (lambda x, y: x[:, None] - y[None, :], (normal(37), normal(50))),
    "prod": (lambda x: (x.prod(1), x.amax((0, 1)), x.amin(1, keepdim=True)), (normal(5, 33),)),
    "logsumexp": (lambda x: torch.logsumexp(x, (1, 2)), (normal(5, 33, 4),)),
    "ce": (lambda x, t: F.cross_entropy(x, t), (normal(33, 50), integers(0, 50, 33))),
    "mse": (lambda x, y: F.mse_loss(x, y), (normal(133, 50), normal(133, 50))),
    "attn": (
        lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) / 8 + torch.ones(33, 33).triu(1) * -1e4, -1) @ v,
        (normal(2, 4, 33, 16), normal(2, 4, 33, 16), normal(2, 4, 33, 16)),
    ),
    "rope": (lambda x: torch.cat([-x[..., 8:], x[..., :8]], -1) * x.cos() + x * x.sin(), (normal(2, 4, 33, 16),)),
    "win": (
        lambda x: x.view(2, 4, 7, 4, 7, 24).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, 24) * 2,
        (normal(2, 28, 28, 24),),
    ),
    "big": (lambda x: (x.sum(), x.mean(), x.max(), (x * x).sum()), (normal(700, 1000),)),
    "dimless": (lambda x, y: x * y + 1, (normal(), normal())),
    "empty": (lambda x: x * 2 + 1, (normal(0, 5),)),
    "rep": (lambda x: x.repeat(2, 3) + 1, (normal(3, 5),)),
    "unfold": (lambda x: x.unfold(1, 4, 2) * 2, (normal(3, 20),)),
    "diag": (lambda x: torch.diagonal(x) + 1, (normal(20, 20),)),
    "chunk": (lambda x: torch.mul(*x.chunk(2, -1)), (normal(3, 20),)),
    "conv": (
        lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)).flatten(1),
        (normal(2, 3, 14, 14), normal(8, 3, 3, 3), normal(8)),
    ),
    "bucket": (lambda x: (x.clamp(-1, 1) * 10).long().float() + torch.floor(x) + torch.round(x * 3), (normal(9, 33),)),
}

TOLERANCE = {torch.bfloat16: 3e-2, torch.float16: 3e-3, torch.float32: 2e-5, torch.float64: 1e-9}


def graph_calling(function: Callable[..., Any], count: int) -> fx.GraphModule:
    """A captured graph of one call that gives a flat tuple."""

    def flat(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = function(*tensors)
        items = result if isinstance(result, tuple) else (result,)
        return tuple(x for item in items for x in (item if isinstance(item, tuple) else (item,)))

    graph = fx.Graph()
    placeholders = tuple(graph.placeholder(f"input{at}") for at in range(count))
    graph.output(graph.call_function(flat, placeholders))
    return fx.GraphModule(torch.nn.Module(), graph)


@pytest.fixture(autouse=True, scope="module")
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STATOR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize("name", list(CASES))
def test_equal_to_eager(name: str) -> None:
    function, inputs = CASES[name]
    module = graph_calling(function, len(inputs))
    with torch.no_grad():
        compiled = inductor_backend(module, inputs, options=Options(verify=True))
        actual, expected = compiled(*inputs), module(*inputs)
    for got, value in zip(actual, expected, strict=True):
        assert (got.dtype, got.shape) == (value.dtype, value.shape)
        tolerance = TOLERANCE.get(value.dtype, 0.0)
        torch.testing.assert_close(got, value, rtol=tolerance, atol=tolerance, equal_nan=True)
