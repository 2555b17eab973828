"""Attention written by hand runs by a fused kernel with eager's results and gradients, or stays as it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.differential import FUSED
from torch import Tensor, einsum

import stator
from stator.aot.trace import fused_attention
from stator.base import counters

BATCH, HEADS, LENGTH, WIDTH = 2, 3, 20, 8
INFINITY = math.inf
RULE_OF_SPEED = fused_attention._pays


@pytest.fixture(autouse=True)
def always_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors, for which products and a softmax are faster, show whether results are right."""
    monkeypatch.setattr(fused_attention, "_pays", lambda *_: True)
    stator.reset()


def assert_near(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=FUSED.relative, atol=FUSED.absolute, equal_nan=True)


def operands(dtype: torch.dtype = torch.float32, grad: bool = False, keys: int = LENGTH) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = [(BATCH, length, HEADS, WIDTH) for length in (LENGTH, keys, keys)]
    return [torch.randn(shape).to(dtype).requires_grad_(grad) for shape in shapes]


def biases() -> dict[str, Tensor]:
    torch.manual_seed(1)
    shapes = {
        "keys": (BATCH, 1, 1, LENGTH),
        "heads": (1, HEADS, LENGTH, LENGTH),
        "queries": (BATCH, 1, LENGTH, 1),
        "matrix": (LENGTH, LENGTH),
        "whole": (BATCH, HEADS, LENGTH, LENGTH),
        "row": (LENGTH,),
    }
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None, scale: float = 0.3) -> Tensor:
    query, key, value = (one.transpose(1, 2) for one in (query, key, value))
    scores = query @ key.transpose(-1, -2) * scale
    if bias is not None:
        scores = scores + bias
    return (scores.softmax(-1) @ value).transpose(1, 2).reshape(query.shape[0], query.shape[2], -1)


def run(function: Callable[..., Any], args: tuple[Any, ...], grad: bool) -> list[Any]:
    """Results, then gradients by every argument that requires grad."""
    with torch.set_grad_enabled(grad):
        found = function(*args)
    results = [found] if isinstance(found, Tensor) else list(found)
    if not grad:
        return results
    torch.manual_seed(3)
    by = [one for one in args if isinstance(one, Tensor) and one.requires_grad]
    total = sum((one * torch.randn(one.shape).to(one.dtype)).sum() for one in results)
    return results + list(torch.autograd.grad(total, by, allow_unused=True))  # type: ignore[arg-type]


def check(function: Callable[..., Any], *args: Any, grad: bool = False, fused: bool = True, **options: Any) -> None:
    before = counters.counts["fused_attention"]
    found = run(stator.compile(function, options={"verify": True, **options}), args, grad)
    assert (counters.counts["fused_attention"] > before) is fused
    for one, other in zip(found, run(function, args, grad), strict=True):
        assert_near(one, other)


def scaled_before(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return attend(query * 0.3, key, value, scale=1.0)


def divided(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query, key, value = (one.transpose(1, 2) for one in (query, key, value))
    weights = F.softmax(torch.matmul(query, key.transpose(2, 3)) / math.sqrt(WIDTH), dim=-1, dtype=torch.float32)
    return torch.matmul(weights.to(query.dtype), value).transpose(1, 2).contiguous()


def transposed_keys(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    key = key.permute(0, 2, 3, 1).contiguous()
    return (query.transpose(1, 2) @ key).softmax(-1) @ value.transpose(1, 2)


def by_einsum(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = einsum("b h i d, b h j d -> b h i j", query.transpose(1, 2), key.transpose(1, 2)) * 0.3
    return einsum("b h i j, b h j d -> b h i d", scores.softmax(dim=-1), value.transpose(1, 2))


def batches_of_matrices(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query, key, value = (one.transpose(1, 2).reshape(-1, one.shape[1], WIDTH) for one in (query, key, value))
    weights = F.softmax(torch.bmm(query, key.transpose(1, 2)), dim=2)
    attended = torch.bmm(weights, value).view(BATCH, HEADS, -1, WIDTH)
    return attended.transpose(1, 2).reshape(BATCH, -1, HEADS * WIDTH)


def shared_keys(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return attend(query, key[:, :, :1], value[:, :, :1])


def repeated_keys(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query = torch.cat([query, query * 0.5], 2)
    key, value = (one[:, :, :, None].expand(-1, -1, -1, 2, -1).flatten(2, 3) for one in (key, value))
    return attend(query, key, value)


def changed_in_place(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query.transpose(1, 2) @ key.permute(0, 2, 3, 1)
    scores *= 0.3
    return scores.softmax(-1) @ value.transpose(1, 2)


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        attend,
        scaled_before,
        divided,
        transposed_keys,
        by_einsum,
        batches_of_matrices,
        shared_keys,
        repeated_keys,
        changed_in_place,
    ],
)
@pytest.mark.parametrize("keys", [LENGTH, 7, 1])
def test_forms_of_attention(function: Callable[..., Any], grad: bool, keys: int) -> None:
    without_product = function is by_einsum and keys == 1
    check(function, *operands(grad=grad, keys=keys), grad=grad, fused=not without_product)


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("name", list(biases()))
def test_biases(name: str) -> None:
    check(attend, *operands(), biases()[name])


@pytest.mark.fixed_sizes
def test_a_known_bias_is_fused_with_gradients() -> None:
    def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        later = torch.arange(LENGTH) > torch.arange(LENGTH)[:, None]
        bias = torch.where(later, torch.finfo(torch.float32).min, 0.0)
        return attend(query, key, value, bias)

    check(causal, *operands(grad=True), grad=True)


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("shown", [0, 1])
def test_a_known_bias_that_hides_a_row_stays(shown: int) -> None:
    def partly(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        bias = torch.where(torch.arange(LENGTH)[:, None] < torch.arange(LENGTH) + shown, 0.0, -1e9)
        return attend(query, key, value, bias)

    check(partly, *operands(grad=True), grad=True, fused=bool(shown))


@pytest.mark.fixed_sizes
def test_several_biases_around_a_scale() -> None:
    def two(query: Tensor, key: Tensor, value: Tensor, one: Tensor, other: Tensor) -> Tensor:
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        scores = other + (query @ key.transpose(-1, -2) + one) * 0.3
        return (scores.softmax(-1) @ value).transpose(1, 2)

    check(two, *operands(), biases()["heads"], biases()["keys"])


@pytest.mark.fixed_sizes
def test_a_bias_in_a_batch_of_matrices() -> None:
    def biased(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        query, key, value = (one.transpose(1, 2).reshape(-1, LENGTH, WIDTH) for one in (query, key, value))
        return torch.baddbmm(bias, query, key.transpose(1, 2), beta=0.5, alpha=0.3).softmax(-1) @ value

    check(biased, *operands(), biases()["matrix"])
    check(biased, *operands(), biases()["whole"].flatten(0, 1))


def hidden_rows(bias: Tensor) -> Tensor:
    bias[..., 3:5] = -INFINITY
    bias[0, 0, -1] = -INFINITY
    return bias


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", ["keys", "heads", "queries", "whole"])
def test_rows_that_see_no_key_are_nan(name: str, grad: bool) -> None:
    check(attend, *operands(grad=grad), hidden_rows(biases()[name]), grad=grad, fused=not grad)


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("grad", [False, True])
def test_rows_with_the_least_number_attend_equally(grad: bool) -> None:
    bias = biases()["heads"]
    bias[0, 0, 2] = torch.finfo(torch.float32).min
    check(attend, *operands(grad=grad), bias, grad=grad, fused=not grad)


@pytest.mark.fixed_sizes
@pytest.mark.each_pair
@pytest.mark.parametrize("special", [math.nan, INFINITY, -INFINITY])
@pytest.mark.parametrize("which", [0, 1, 2, 3])
@pytest.mark.parametrize("sign", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [LENGTH, 64, 600])
def test_special_values_spread(special: float, which: int, sign: int, dtype: torch.dtype, length: int) -> None:
    """sign: make all keys positive, so that an infinite query has infinite scores of one sign. Eager's products of half
    floats spread NaN to a neighbouring row."""
    torch.manual_seed(0)
    given = [torch.randn(1, length, 2, WIDTH).to(dtype) for _ in range(3)]
    given.append(torch.randn(1, 2, length, length).to(dtype))
    if sign:
        given[1] = given[1].abs()
    given[which][0, 1, 1, 0] = special
    before = counters.counts["fused_attention"]
    with torch.no_grad():
        found = stator.compile(attend)(*given)
        truth = attend(*(one.double() for one in given))
    assert counters.counts["fused_attention"] > before
    assert torch.equal(found.isnan(), truth.isnan())
    torch.testing.assert_close(found.double(), truth, rtol=0.02, atol=0.02, equal_nan=True)


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("upcast", [False, True])
@pytest.mark.parametrize("name", [None, "keys", "heads"])
def test_half_precision_is_as_near_to_the_truth_as_eager(dtype: torch.dtype, upcast: bool, name: str | None) -> None:
    def half(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        query, key, value = (one.transpose(1, 2) for one in (query, key, value))
        scores = query @ key.transpose(-1, -2) * 0.3
        if bias is not None:
            scores = scores + bias
        weights = F.softmax(scores, -1, dtype=torch.float32).to(dtype) if upcast else F.softmax(scores, -1)
        return weights @ value

    bias = None if name is None else biases()[name].to(dtype)
    grad = name is None
    given = (*operands(dtype, grad), bias)
    before = counters.counts["fused_attention"]
    found, eager = run(stator.compile(half), given, grad), run(half, given, grad)
    assert counters.counts["fused_attention"] > before
    wide = [None if one is None else one.detach().double().requires_grad_(one.requires_grad) for one in given]
    upcast = False
    for one, other, truth in zip(found, eager, run(half, tuple(wide), grad), strict=True):
        assert (one - truth).abs().mean() <= (other - truth).abs().mean()


def shows_weights(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    weights = (query @ key.transpose(-1, -2)).softmax(-1)
    return weights @ value, weights


def shows_scores(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    scores = query @ key.transpose(-1, -2)
    return scores.softmax(-1) @ value, scores


def weights_twice(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    weights = (query @ key.transpose(-1, -2)).softmax(-1)
    return weights @ (weights @ value)


def overwritten(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Overwriting a score hides its NaN, which adding minus infinity would not."""
    scores = query @ key.transpose(-1, -2)
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -INFINITY).softmax(-1) @ value


def over_queries(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.transpose(-1, -2)).softmax(-2) @ value


def bias_of_the_scores(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.transpose(-1, -2)
    return (scores + scores.sigmoid()).softmax(-1) @ value


def transposed_weights(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.transpose(-1, -2)).softmax(-1).transpose(-1, -2) @ value


def queries_as_values(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.transpose(-1, -2)).softmax(-1) @ torch.cat([value, value], -1)


def scale_by_a_tensor(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.transpose(-1, -2) * value[0, 0, 0, 0]).softmax(-1) @ value


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        shows_weights,
        shows_scores,
        weights_twice,
        overwritten,
        over_queries,
        bias_of_the_scores,
        transposed_weights,
        queries_as_values,
        scale_by_a_tensor,
    ],
)
def test_what_is_no_attention_stays(function: Callable[..., Any], grad: bool) -> None:
    given = [one.detach().transpose(1, 2).contiguous().requires_grad_(grad) for one in operands()]
    check(function, *given, grad=grad, fused=False)


@pytest.mark.fixed_sizes
def test_a_bias_with_a_gradient_is_fused_without_gradients_alone() -> None:
    bias = biases()["heads"].requires_grad_()
    check(attend, *operands(grad=True), bias, grad=True, fused=False)
    stator.reset()
    check(attend, *operands(grad=True), bias, grad=False)


@pytest.mark.fixed_sizes
def test_double_precision_stays() -> None:
    check(attend, *(one.double() for one in operands()), fused=False)


@pytest.mark.fixed_sizes
def test_a_bias_of_another_dtype_stays() -> None:
    def mixed(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        return ((query @ key.transpose(-1, -2)).float() + bias).softmax(-1).to(value.dtype) @ value

    query, key, value = (one.transpose(1, 2) for one in operands(torch.bfloat16))
    before = counters.counts["fused_attention"]
    with torch.no_grad():
        stator.compile(mixed)(query, key, value, biases()["heads"])
    assert counters.counts["fused_attention"] == before


@pytest.mark.fixed_sizes
def test_exact_rounding_stays() -> None:
    check(attend, *operands(), fused=False, exact_rounding=True)


@pytest.mark.fixed_sizes
def test_dropout_stays() -> None:
    def dropped(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.dropout((query @ key.transpose(-1, -2)).softmax(-1), 0.5) @ value

    before = counters.counts["fused_attention"]
    stator.compile(dropped)(*operands(grad=True)).sum().backward()
    assert counters.counts["fused_attention"] == before


@pytest.mark.fixed_sizes
def test_disabled_kernels_are_not_used() -> None:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        check(attend, *operands(grad=True), grad=True, fused=False)


def test_symbolic_sizes() -> None:
    compiled = stator.compile(attend, dynamic=True)
    for length in (5, 9, 30):
        given = [one[:, :length].clone().requires_grad_() for one in operands(keys=length)]
        for one, other in zip(run(compiled, tuple(given), True), run(attend, tuple(given), True), strict=True):
            assert_near(one, other)


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
def test_gradients_of_some_operands(wanted: tuple[int, ...]) -> None:
    check(attend, *(one.requires_grad_(at in wanted) for at, one in enumerate(operands())), grad=True)


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2)])
def test_a_backward_for_some_gradients_reads_what_the_forward_saved(wanted: tuple[int, ...]) -> None:
    def layers(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        attended = attend(query, key, value)
        return attended.sin(), attend(attended.view_as(query).cos(), key, value)

    given = operands(grad=True)
    before = counters.counts["fused_attention"]
    found = stator.compile(layers, options={"verify": True})(*given)
    assert counters.counts["fused_attention"] > before
    expected = layers(*given)
    for result, other in zip(found, expected, strict=True):
        assert_near(result.detach(), other.detach())
        by = [given[at] for at in wanted]
        gradients = torch.autograd.grad(result.sum(), by, retain_graph=True)
        for one, eager in zip(gradients, torch.autograd.grad(other.sum(), by, retain_graph=True), strict=True):
            assert_near(one, eager)


@pytest.mark.fixed_sizes
def test_second_derivatives() -> None:
    def penalty(function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        given = operands(grad=True)
        first = torch.autograd.grad(function(*given).sin().sum(), given, create_graph=True)
        return (*first, *torch.autograd.grad(sum(one.square().sum() for one in first), given))  # type: ignore[arg-type]

    for one, other in zip(penalty(stator.compile(attend)), penalty(attend), strict=True):
        assert_near(one, other)


@pytest.mark.fixed_sizes
def test_a_hook_on_the_scores_changes_the_gradients() -> None:
    def hooked(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-1, -2)
        scores.register_hook(lambda gradient: gradient * 2)
        return scores.softmax(-1) @ value

    check(
        hooked,
        *(one.detach().transpose(1, 2).contiguous().requires_grad_() for one in operands()),
        grad=True,
        fused=False,
    )


@pytest.mark.fixed_sizes
def test_a_result_may_be_written_to_before_the_backward() -> None:
    def doubled(function: Callable[..., Tensor]) -> list[Tensor]:
        given = [one.detach().transpose(1, 2).contiguous().requires_grad_() for one in operands()]
        attended = function(*given)
        attended.mul_(2)
        attended.sum().backward()
        return [attended, *(one.grad for one in given if one.grad is not None)]

    def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return (query @ key.transpose(-1, -2)).softmax(-1) @ value

    before = counters.counts["fused_attention"]
    found = doubled(stator.compile(plain))
    assert counters.counts["fused_attention"] > before
    for one, other in zip(found, doubled(plain), strict=True):
        assert_near(one, other)


@pytest.mark.fixed_sizes
def test_checkpointed_attention() -> None:
    def checkpointed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(attend, query, key, value, use_reentrant=False).cos()  # type: ignore

    check(checkpointed, *operands(grad=True), grad=True)


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("grad", [False, True])
def test_autocast(grad: bool) -> None:
    def narrow(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return attend(query, key, value)

    given = tuple(operands(grad=grad))
    before = counters.counts["fused_attention"]
    found, eager = run(stator.compile(narrow), given, grad), run(narrow, given, grad)
    assert counters.counts["fused_attention"] > before
    for one, other, truth in zip(found, eager, run(attend, given, grad), strict=True):
        assert (one - truth).abs().mean() <= (other - truth).abs().mean()


@pytest.mark.fixed_sizes
def test_cpus_fuse_long_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_attention, "_pays", RULE_OF_SPEED)
    for length, fused in ((32, False), (800, True)):
        torch.manual_seed(0)
        check(attend, *(torch.randn(1, length, 1, WIDTH) for _ in range(3)), fused=fused)
        stator.reset()


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("quicker", [True, False])
def test_half_floats_on_cpus_follow_the_times(
    quicker: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def times(*sizes: Any) -> bool:
        asked.append(sizes)
        return quicker

    asked: list[Any] = []
    monkeypatch.setattr(fused_attention, "_pays", RULE_OF_SPEED)
    monkeypatch.setattr(fused_attention, "is_operator_quicker", times)
    for name, biased in ((None, False), ("keys", False), ("whole", True)):
        bias = None if name is None else biases()[name].to(dtype)
        before = counters.counts["fused_attention"]
        run(stator.compile(attend), (*operands(dtype), bias), grad=False)
        assert (counters.counts["fused_attention"] > before) == quicker
        assert set(asked) == {(BATCH * HEADS, LENGTH, LENGTH, WIDTH, dtype, biased)}
        asked.clear()
        stator.reset()
