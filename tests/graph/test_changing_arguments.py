"""Arguments of functions that change between calls: two versions serve all of them, with eager's values and
gradients. docs/dynamic-sizes.md lists the arguments that are constants of a version, with the reasons."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.differential import Counts

import stator

FLOATS = (0.1, 0.25, 0.3, 0.45, 1e-3)
INTS = (2, 3, 4, 5, 6)
_generator = torch.Generator().manual_seed(0)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=_generator)


OTHER, WEIGHT, BIAS = drawn(6, 8), drawn(8), drawn(8)
LEFT, RIGHT = drawn(6, 5), drawn(5, 8)
KEY, VALUE = drawn(2, 3, 7, 8), drawn(2, 3, 7, 8)
LABELS = torch.randint(0, 8, (6,), generator=_generator)

pytestmark = pytest.mark.filterwarnings("error:stator")  # a graph that runs eagerly would be compared with itself

Program = Callable[[torch.Tensor, Any], torch.Tensor]


def with_momentum(x: torch.Tensor, f: float) -> torch.Tensor:
    mean, variance = BIAS.clone(), WEIGHT.abs()
    return F.batch_norm(x, mean, variance, WEIGHT, BIAS, True, f, 1e-5) + mean + variance


def assigned(x: torch.Tensor, f: float) -> torch.Tensor:
    y = x.clone()
    y[:, 2:4] = f
    y[y > 1] = f
    return y


NORMALISATION: dict[str, Program] = {
    "layer_norm": lambda x, f: F.layer_norm(x, (8,), WEIGHT, BIAS, f),
    "layer_norm without parameters": lambda x, f: F.layer_norm(x, (6, 8), eps=f),
    "batch_norm": lambda x, f: F.batch_norm(x, None, None, WEIGHT, BIAS, True, 0.1, f),
    "batch_norm of inference": lambda x, f: F.batch_norm(x, BIAS, WEIGHT.abs(), WEIGHT, BIAS, False, 0.1, f),
    "momentum of batch_norm": with_momentum,
    "group_norm": lambda x, f: F.group_norm(x, 2, WEIGHT, BIAS, f),
    "rms_norm": lambda x, f: F.rms_norm(x, (8,), WEIGHT, f),
    "normalize": lambda x, f: F.normalize(x, eps=f),
}
LOSSES: dict[str, Program] = {
    "label_smoothing": lambda x, f: F.cross_entropy(x, LABELS, label_smoothing=f),
    "label_smoothing with weights": lambda x, f: F.cross_entropy(
        x, LABELS, WEIGHT.abs(), label_smoothing=f, ignore_index=3
    ),
    "label_smoothing of probabilities": lambda x, f: F.cross_entropy(x, OTHER.softmax(-1), label_smoothing=f),
    "label_smoothing of each": lambda x, f: F.cross_entropy(x, LABELS, label_smoothing=f, reduction="none"),
    "temperature": lambda x, f: F.cross_entropy(x / f, LABELS),
    "temperatures of two": lambda x, f: (
        F.kl_div((x / f).log_softmax(-1), (OTHER / f).softmax(-1), reduction="batchmean") * f**2
    ),
    "smooth_l1_loss": lambda x, f: F.smooth_l1_loss(x, OTHER, beta=f),
    "huber_loss": lambda x, f: F.huber_loss(x, OTHER, delta=f),
    "margin_ranking_loss": lambda x, f: F.margin_ranking_loss(x, OTHER, OTHER.sign(), margin=f),
    "triplet_margin_loss": lambda x, f: F.triplet_margin_loss(x, OTHER, OTHER * 0.5, margin=f, swap=True),
    "focal loss": lambda x, f: (1 - x.sigmoid()) ** f * F.logsigmoid(x),
    "log_prob": lambda x, f: torch.distributions.Normal(x, f).log_prob(OTHER),
}
ARITHMETIC: dict[str, Program] = {
    "alpha of add": lambda x, f: torch.add(x, OTHER, alpha=f),
    "alpha of sub": lambda x, f: torch.sub(OTHER, x, alpha=f),
    "alpha of add_": lambda x, f: (x * 1).add_(OTHER, alpha=f),
    "value of addcmul": lambda x, f: torch.addcmul(x, x, OTHER, value=f),
    "value of addcdiv": lambda x, f: torch.addcdiv(x, x, OTHER, value=f),
    "addmm": lambda x, f: torch.addmm(x, LEFT, RIGHT, beta=f, alpha=2 * f),
    "addmm of a product": lambda x, f: torch.addmm(WEIGHT, LEFT, x[:5], alpha=f),
    "addmv": lambda x, f: torch.addmv(x[:, 0], LEFT, RIGHT[:, 0], beta=f, alpha=f + 1),
    "addr": lambda x, f: torch.addr(x, LEFT[:, 0], RIGHT[0], beta=f, alpha=f + 1),
    "baddbmm": lambda x, f: torch.baddbmm(x, LEFT[None], RIGHT[None], beta=f, alpha=f + 1),
    "baddbmm of nothing": lambda x, f: torch.baddbmm(OTHER[None], LEFT[None], x[None, :5], beta=0, alpha=f),
    "addbmm": lambda x, f: torch.addbmm(x, LEFT[None], RIGHT[None], beta=f, alpha=f + 1),
    "pow": lambda x, f: x.abs() ** f,
    "pow of a number": lambda x, f: f**x,
    "pow_": lambda x, f: x.abs().pow_(f),
    "lerp": lambda x, f: torch.lerp(x, OTHER, f),
    "lerp_": lambda x, f: BIAS.clone().lerp_(x[0], 1 - f),
    "clamp": lambda x, f: torch.clamp(x, -f, f),
    "logit": lambda x, f: torch.logit(x.sigmoid(), f),
    "nan_to_num": lambda x, f: torch.nan_to_num(x.where(x < 1, math.inf), f, 3 * f, -f),
    "quantile": lambda x, f: torch.quantile(x, f, dim=1),
    "nanquantile": lambda x, f: torch.nanquantile(x, f, dim=1),
    "attention": lambda x, f: F.scaled_dot_product_attention(x.view(2, 3, 1, 8), KEY, VALUE, scale=f),
    "attention with a mask": lambda x, f: F.scaled_dot_product_attention(
        x.view(2, 3, 1, 8), KEY, VALUE, torch.ones(1, 7).tril().bool(), scale=f
    ),
}
MAKING: dict[str, Program] = {
    "linspace": lambda x, f: x * torch.linspace(0, f, 8),
    "linspace from": lambda x, f: x * torch.linspace(f, 2, 8),
    "logspace": lambda x, f: x * torch.logspace(0, f, 8),
    "full": lambda x, f: x + torch.full((8,), f),
    "tensor": lambda x, f: x * torch.tensor([f] * 8),
    "new_tensor": lambda x, f: x * x.new_tensor([[f, 2 * f] * 4, [1] * 8] * 3, dtype=None),
    "Tensor": lambda x, f: x * torch.Tensor([f, 1.5] * 4) + torch.DoubleTensor([f]),
    "largest": lambda x, f: x * max([0.2, 2 * f, 0.4, f**2]) - min(0.3, f, 1 - f),
    "pad": lambda x, f: F.pad(x, (1, 2), value=f),
    "masked_fill": lambda x, f: x.masked_fill(x > 0, f),
    "where": lambda x, f: torch.where(x > 0, f, x),
    "index_fill": lambda x, f: x.index_fill(0, torch.tensor([0, 2]), f),
    "scatter": lambda x, f: x.scatter(1, LABELS[:, None], f),
    "fill_diagonal_": lambda x, f: x.clone().fill_diagonal_(f),
    "assignments": assigned,
}
RANDOM: dict[str, Program] = {
    "dropout": lambda x, f: F.dropout(x, f),
    "dropout_": lambda x, f: F.dropout(x * 1, f, inplace=True),
    "dropout1d": lambda x, f: F.dropout1d(x, f),
    "dropout2d": lambda x, f: F.dropout2d(x.view(1, 6, 2, 4), f),
    "attention": lambda x, f: F.scaled_dot_product_attention(x.view(2, 3, 1, 8), KEY, VALUE, dropout_p=f),
    "causal attention": lambda x, f: F.scaled_dot_product_attention(
        x.view(2, 3, 1, 8), KEY, VALUE, dropout_p=f, is_causal=True, scale=f
    ),
    "normal_": lambda x, f: x + torch.empty(8).normal_(f, 2 * f),
    "normal of a size": lambda x, f: x + torch.normal(f, 2 * f, (6, 8)),
    "normal of means": lambda x, f: x + torch.normal(OTHER, f),
    "uniform_": lambda x, f: x + torch.empty(8).uniform_(-f, f),
    "uniform_ by name": lambda x, f: x + torch.empty(8).uniform_(to=f),
    "bernoulli": lambda x, f: x * torch.bernoulli(torch.empty(8), f),
    "bernoulli_": lambda x, f: x * torch.empty(8).bernoulli_(f),
    "exponential_": lambda x, f: x * torch.empty(8).exponential_(f),
    "cauchy_": lambda x, f: x * torch.empty(8).cauchy_(f, f),
    "log_normal_": lambda x, f: x * torch.empty(8).log_normal_(f, f),
    "geometric_": lambda x, f: x * torch.empty(8).geometric_(f),
    "gumbel_softmax": lambda x, f: F.gumbel_softmax(x, f),
}
OF_INTS: dict[str, Program] = {
    "one_hot": lambda x, n: x.sum() * F.one_hot(LABELS % 2, n),
    "diagonal": lambda x, n: x.diagonal(n),
    "diagonal below": lambda x, n: x.diagonal(-n, 1, 0) * 2,
    "diag": lambda x, n: torch.diag(x, n),
    "diag of a vector": lambda x, n: torch.diag(x[0], n),
    "diag_embed": lambda x, n: torch.diag_embed(x, n),
    "triu": lambda x, n: x.triu(n),
    "tril": lambda x, n: x.tril(n),
    "triu_indices": lambda x, n: x.sum() * torch.triu_indices(8, 8, n),
    "roll": lambda x, n: torch.roll(x, n, 1),
    "narrow": lambda x, n: x.narrow(1, n, 1),
    "select": lambda x, n: x.select(1, n),
    "index": lambda x, n: x[:, -n],
    "slice": lambda x, n: x[:, ::n],
    "topk": lambda x, n: torch.topk(x, n)[0],
    "kthvalue": lambda x, n: torch.kthvalue(x, n)[0],
    "split of two": lambda x, n: x.split([n, 8 - n], 1)[0],
    "repeat": lambda x, n: x.repeat(n, 1),
    "expand": lambda x, n: x[None].expand(n, 6, 8),
    "repeat_interleave": lambda x, n: x.repeat_interleave(n, 0),
    "pad": lambda x, n: F.pad(x, (n, 1)),
    "reflection": lambda x, n: F.pad(x[None], (n, 1), mode="reflect"),
    "arange": lambda x, n: x.square().sum() * torch.arange(0, 20, n),
    "linspace": lambda x, n: x.sum() * torch.linspace(0, 1, n),
    "pow": lambda x, n: x**n,
    "pow of a number": lambda x, n: n**x,
    "modulo": lambda x, n: x.sum() + LABELS % n,
    "ignore_index": lambda x, n: F.cross_entropy(x, LABELS, ignore_index=n),
    "dropout": lambda x, n: F.dropout(x, 1 / n),
}
TABLES = {"normalisation": NORMALISATION, "losses": LOSSES, "arithmetic": ARITHMETIC, "making": MAKING}
CASES = [(table, name) for table in TABLES for name in TABLES[table]]


def check(program: Program, values: tuple[Any, ...], backend: str, dtype: torch.dtype, random: bool = False) -> None:
    """The program stands between operators of its graph, so that the backend compiles the graph."""

    def between(x: torch.Tensor, value: Any) -> torch.Tensor:
        return program(x.mul(1.25).sub(0.125), value).mul(0.5).add(0.125)

    options = {"exact_random": True} if random and backend == "inductor" else {}
    compiled, counts = stator.compile(between, backend=backend, options=options), Counts()
    for value in values:
        x = drawn(6, 8).to(dtype).requires_grad_()
        y = x.detach().clone().requires_grad_()
        torch.manual_seed(5)
        expected = between(x, value)
        torch.manual_seed(5)
        found = compiled(y, value)
        torch.testing.assert_close(found, expected, equal_nan=True)
        expected.sum().backward()
        found.sum().backward()
        torch.testing.assert_close(y.grad, x.grad, equal_nan=True)
    assert counts.compilations == 2
    assert counts["graph_breaks"] == counts["dynamo.failed_graphs"] == 0


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize(("table", "name"), CASES)
def test_floats(table: str, name: str, backend: str) -> None:
    check(TABLES[table][name], FLOATS, backend, torch.float32)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_label_smoothing_over_changing_classes(reduction: str, backend: str) -> None:
    program = lambda x, y, f: F.cross_entropy(x * 2, y, label_smoothing=f, reduction=reduction) + 1  # noqa: E731
    compiled, counts = stator.compile(program, backend=backend, dynamic=True), Counts()
    for at, value in enumerate(FLOATS):
        x, y = (drawn(6 + at, 8 + 3 * at).requires_grad_() for _ in range(2))
        labels = torch.randint(0, 8, (6 + at,))
        y.data = x.data
        expected, found = program(x, labels, value), compiled(y, labels, value)
        torch.testing.assert_close(found, expected)
        expected.sum().backward()
        found.sum().backward()
        torch.testing.assert_close(y.grad, x.grad)
    assert counts.compilations == 2
    assert counts["graph_breaks"] == counts["dynamo.failed_graphs"] == 0


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_floats_of_random_functions(name: str, backend: str) -> None:
    check(RANDOM[name], FLOATS, backend, torch.float32, random=True)


@pytest.mark.parametrize("name", OF_INTS)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_ints(name: str, backend: str) -> None:
    check(OF_INTS[name], INTS, backend, torch.float32, random=name == "dropout")


def test_factors_that_are_zero_keep_gradients() -> None:
    """A factor of zero drops a summand, but not its gradient."""
    compiled, counts = stator.compile(lambda x, f: torch.addmm(x * 2, LEFT, RIGHT, beta=f, alpha=1 - f)), Counts()
    for factor in (0.25, 0.5, 0.0, 1.0, 0.75):
        x, y = (drawn(6, 8).requires_grad_() for _ in range(2))
        y.data.copy_(x.data)
        expected = torch.addmm(x * 2, LEFT, RIGHT, beta=factor, alpha=1 - factor)
        torch.testing.assert_close(compiled(y, factor), expected)
        torch.testing.assert_close(
            *(torch.autograd.grad(one.sum(), it)[0] for one, it in ((compiled(y, factor), y), (expected, x)))
        )
    assert counts.compilations == 4


@pytest.mark.parametrize("weight", [torch.ones(1), torch.ones(3)])
def test_parameters_that_norms_refuse(weight: torch.Tensor) -> None:
    compiled = stator.compile(lambda x, eps, norm: norm(x, weight, eps))
    norms = (
        lambda x, weight, eps: F.layer_norm(x, (8,), weight, eps=eps),
        lambda x, weight, eps: F.rms_norm(x, (8,), weight, eps),
        lambda x, weight, eps: F.group_norm(x, 2, weight, eps=eps),
        lambda x, weight, eps: F.batch_norm(x, None, None, weight, None, True, 0.1, eps),
    )
    for norm in norms:
        for eps in FLOATS[:3]:
            with pytest.raises(RuntimeError) as expected:
                norm(drawn(6, 8), weight, eps)
            with pytest.raises(RuntimeError) as found:
                compiled(drawn(6, 8), eps, norm)
            assert str(found.value) == str(expected.value)


def test_norms_to_which_gradients_are_clipped() -> None:
    compiled, counts = stator.compile(torch.nn.utils.clip_grad_norm_), Counts()
    for norm in FLOATS:
        parameters = [drawn(6, 8).requires_grad_() for _ in range(2)]
        parameters[0].grad = drawn(6, 8)
        parameters[1].grad = parameters[0].grad.clone()
        torch.testing.assert_close(compiled(parameters[1:], norm), torch.nn.utils.clip_grad_norm_(parameters[:1], norm))
        torch.testing.assert_close(parameters[1].grad, parameters[0].grad)
    assert counts.compilations == 2


def test_values_of_dropout_that_need_no_random_numbers() -> None:
    """Other versions serve 0 and 1, and what eager refuses is refused."""
    compiled = stator.compile(lambda x, p: F.dropout(x * 2, p) + 1)
    x = torch.ones(1000)
    for p in (0.25, 0.5, 0.0, 1.0):
        found = compiled(x, p)
        kept = found > 1
        assert abs(kept.float().mean() - (1 - p)) < 0.1
        assert torch.all(found[kept] == 2 / (1 - p if p < 1 else 1) + 1)
    with pytest.raises(ValueError, match="between 0 and 1"):
        compiled(x, 1.5)


@pytest.mark.parametrize(
    ("name", "mean", "deviation"),
    [
        ("normal_", lambda f: f, lambda f: 2 * f),
        ("uniform_", lambda f: 0.0, lambda f: f / 3**0.5),
        ("bernoulli_", lambda f: f, lambda f: (f * (1 - f)) ** 0.5),
        ("exponential_", lambda f: 1 / f, lambda f: 1 / f),
        ("geometric_", lambda f: 1 / f, lambda f: (1 - f) ** 0.5 / f),
    ],
)
def test_distributions_of_random_numbers_in_kernels(name: str, mean: Any, deviation: Any) -> None:
    arguments = {"normal_": lambda f: (f, 2 * f), "uniform_": lambda f: (-f, f)}.get(name, lambda f: (f,))
    compiled = stator.compile(lambda x, f: getattr(torch.empty_like(x), name)(*arguments(f)) + x)
    counts = Counts()
    for f in (0.1, 0.2, 0.4, 0.3):
        found = compiled(torch.zeros(100_000), f)
        assert abs(found.mean() - mean(f)) < 0.02 * (mean(f) + deviation(f))
        assert abs(found.std() / deviation(f) - 1) < 0.03
    assert counts.compilations == 2
    assert counts["random_operators"] == 2


REFUSED: dict[str, Program] = {
    "softshrink": lambda x, f: F.softshrink(x, f),
    "smooth_l1_loss": lambda x, f: F.smooth_l1_loss(x, OTHER, beta=f),
    "huber_loss": lambda x, f: F.huber_loss(x, OTHER, delta=f),
}


@pytest.mark.parametrize("name", REFUSED)
def test_values_that_eager_refuses(name: str) -> None:
    program, x = REFUSED[name], drawn(6, 8)
    compiled = stator.compile(program)
    for value in FLOATS[:3]:
        torch.testing.assert_close(compiled(x, value), program(x, value))
    for value in (-0.5, -1.0):
        with pytest.raises(RuntimeError):
            compiled(x, value)


CONSTANTS: dict[str, tuple[Program, tuple[Any, ...]]] = {
    "p of norms": (lambda x, p: torch.linalg.vector_norm(x, p), (2.5, 3.0, 1.0)),
    "p of distances": (lambda x, p: torch.cdist(x, OTHER, p), (2.5, 3.0, 1.5)),
    "correction": (lambda x, f: torch.var(x, correction=f), (0.5, 1.5, 2.0)),
    "step of floats": (lambda x, f: x.square().sum() * torch.arange(0, 1, f), (0.5, 0.25, 0.1)),
    "scale_factor": (lambda x, f: F.interpolate(x[None], scale_factor=f), (1.5, 2.5, 3.0)),
    "margin of a cosine": (lambda x, f: F.cosine_embedding_loss(x, OTHER, LABELS.sign() * 2 - 1, f), FLOATS[:3]),
    "alpha of celu": (lambda x, f: F.celu(x, f), FLOATS[:3]),
    "kernel_size": (lambda x, n: F.max_pool2d(x[None], n), (2, 3, 4)),
    "size of unfold": (lambda x, n: x.unfold(1, n, 1), (2, 3, 4)),
    "upscale_factor": (lambda x, n: F.pixel_shuffle(x.repeat(6, 18).view(-1, 144, 2, 3), n), (2, 3, 4)),
    "num_groups": (lambda x, n: F.group_norm(x.view(4, 12), n), (2, 3, 4)),
    "chunks": (lambda x, n: torch.stack([part.sum() for part in x.chunk(n, 1)]), (2, 4, 8)),
    "length of a list": (lambda x, n: torch.stack([x] * n), (2, 3, 4)),
    "n of diff": (lambda x, n: torch.diff(x, n), (1, 2, 3)),
    "alpha of half floats": (
        lambda x, f: torch.addmm(OTHER.bfloat16(), LEFT.bfloat16(), RIGHT.bfloat16(), alpha=f),
        FLOATS[:3],
    ),
}


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_of_a_version(name: str) -> None:
    program, values = CONSTANTS[name]
    compiled, counts = stator.compile(program, backend="aot_eager"), Counts()
    for value in values:
        x = drawn(6, 8)
        torch.testing.assert_close(compiled(x, value), program(x, value))
    assert counts.compilations == len(values)
