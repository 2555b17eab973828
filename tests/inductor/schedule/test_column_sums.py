"""Sums of columns in the kernels of rows, on CPUs: gradients of the parameters of norms."""

import pytest
import torch
import torch.nn.functional as F

import stator
from stator import pipeline
from stator.inductor.schedule.column_sums import sum_columns_in_rows

ROWS, COLUMNS = 301, 100  # parts of 16 rows, of which the last is shorter; vectors with a tail


def layer_norm(x, weight, bias):
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def rms_norm(x, weight, bias):
    return F.rms_norm(x, x.shape[-1:], weight, 1e-6) + bias


def gradients(function, arguments, seed):
    return torch.autograd.grad(function(*arguments), arguments, seed)


def arguments_of(rows, columns, dtype):
    generator = torch.Generator().manual_seed(0)
    x, seed = (torch.randn(rows, columns, generator=generator).to(dtype) for _ in range(2))
    weight, bias = (torch.randn(columns, generator=generator).to(dtype) for _ in range(2))
    return [one.requires_grad_() for one in (x, weight, bias)], seed


def gradients_of_compiled(function, arguments, seed):
    stator.reset()
    return gradients(stator.compile(function, dynamic=False, options={"verify": True}), arguments, seed)


def in_double(function, arguments, seed):
    exact = [one.detach().double().requires_grad_() for one in arguments]
    return gradients(function, exact, seed.double())


def agree(found, exact, tolerance):
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(
            one.double(), other, rtol=tolerance, atol=tolerance * float(other.detach().abs().max())
        )


@pytest.mark.parametrize("function", [layer_norm, rms_norm])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float64, 1e-12)]
)
@pytest.mark.parametrize("rows", [128, ROWS, 5000])
def test_gradients_of_a_norm_are_those_of_eager(function, dtype, tolerance, rows):
    arguments, seed = arguments_of(rows, COLUMNS, dtype)
    found = gradients_of_compiled(function, arguments, seed)
    agree(found, in_double(function, arguments, seed), tolerance)


def test_one_kernel_reads_what_rows_and_columns_sum(monkeypatch):
    made = []

    def observed(schedule, lowered):
        result = sum_columns_in_rows(schedule, lowered)
        made.extend(result[0].steps)
        return result

    monkeypatch.setattr(pipeline, "sum_columns_in_rows", observed)
    arguments, seed = arguments_of(ROWS, COLUMNS, torch.float32)
    gradients_of_compiled(layer_norm, arguments, seed)
    (joint,) = [group for group in made if group.rows_each]
    assert joint.rows_each == 16
    assert len(joint.writes) == 3
    assert made[-1].inner_ranges == (19,)


@pytest.mark.parametrize("vectorize", [True, False])
def test_results_do_not_depend_on_the_threads(vectorize):
    arguments, seed = arguments_of(2000, COLUMNS, torch.float32)
    step = stator.compile(layer_norm, dynamic=False, options={"vectorize": vectorize})
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(gradients(step, arguments, seed))
    finally:
        torch.set_num_threads(before)
    agree(results[0], in_double(layer_norm, arguments, seed), 1e-5)
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


def test_rows_that_are_not_contiguous():
    (x, weight, bias), seed = arguments_of(ROWS, 2 * COLUMNS, torch.float32)
    parts = [one.detach()[..., ::2].requires_grad_() for one in (x, weight, bias)]
    found = gradients_of_compiled(layer_norm, parts, seed[:, ::2])
    agree(found, in_double(layer_norm, parts, seed[:, ::2]), 1e-5)


@pytest.mark.parametrize("rows", [0, 1, 127])
def test_few_rows(rows):
    arguments, seed = arguments_of(rows, COLUMNS, torch.float32)
    found = gradients_of_compiled(layer_norm, arguments, seed)
    exact = in_double(layer_norm, arguments, seed)
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


def test_what_follows_the_sums():
    """A step of gradient descent in the graph of the sums, and a gradient of rows that all gradients read."""

    def step(x, weight, bias, seed):
        grads = torch.autograd.grad(layer_norm(x, weight, bias), (x, weight, bias), seed * 2)
        return grads[0], weight - 0.1 * grads[1], (bias - 0.1 * grads[2]).to(torch.bfloat16)

    arguments, seed = arguments_of(ROWS, COLUMNS, torch.float32)
    exact = step(*[one.detach().double().requires_grad_() for one in arguments], seed.double())
    found = stator.compile(step, dynamic=False)(*arguments, seed)
    agree(found[:2], exact[:2], 1e-5)
    agree(found[2:], [exact[2].double()], 2e-2)


def test_numbers_that_are_not_finite_stay_in_their_columns():
    arguments, seed = arguments_of(ROWS, COLUMNS, torch.float32)
    seed[ROWS - 1, 3], seed[0, COLUMNS - 1] = float("inf"), float("nan")
    found = gradients_of_compiled(rms_norm, arguments, seed)
    expected = gradients(rms_norm, arguments, seed)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.isfinite(), other.isfinite())
