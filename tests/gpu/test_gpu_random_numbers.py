"""Random numbers on the device: reproducible, distributed as eager's, and eager's own where that is asked for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests import test_random_numbers as numbers
from tests.gpu.device import DEVICE
from tests.gpu.moved import on_device

import stator


@pytest.fixture(autouse=True)
def moved():
    with on_device(numbers):
        yield


@pytest.mark.parametrize("name", numbers.MODULES)
def test_the_exact_option_gives_the_numbers_of_eager(name: str) -> None:
    numbers.test_the_exact_option_gives_the_numbers_of_eager(name)


@pytest.mark.parametrize("name", numbers.MODULES)
def test_steps_are_reproducible_and_differ_from_each_other(name: str) -> None:
    numbers.test_steps_are_reproducible_and_differ_from_each_other(name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_gradients_pass_where_values_did(dtype: torch.dtype) -> None:
    numbers.test_gradients_pass_where_values_did(dtype)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_dropout_is_recomputed_alike(reentrant: bool) -> None:
    numbers.test_checkpointed_dropout_is_recomputed_alike(reentrant)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_dropout_has_the_numbers_of_eager(reentrant: bool) -> None:
    numbers.test_checkpointed_dropout_has_the_numbers_of_eager(reentrant, numbers.dropped)


def test_dropout_of_a_part_is_differentiated_in_a_kernel() -> None:
    numbers.test_dropout_of_a_part_is_differentiated_in_a_kernel()


DRAWN = {
    "rand": torch.rand_like,
    "randn": torch.randn_like,
    "dropout": lambda x: F.dropout(x + 1, 0.3),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "uniform": lambda x: torch.empty_like(x).uniform_(-3, 5),
    "normal": lambda x: torch.empty_like(x).normal_(2, 3),
    "exponential": lambda x: torch.empty_like(x).exponential_(2.0),
    "randint": lambda x: torch.randint_like(x, 17).float(),
}


@pytest.mark.parametrize("name", DRAWN)
def test_the_distribution_is_that_of_eager(name: str) -> None:
    """Shares of a million numbers in 40 ranges; the standard error of a difference is at most 7e-4."""
    x = torch.zeros(1_000_000, device=DEVICE)
    compiled = stator.compile(lambda x: DRAWN[name](x) + 0)
    drawn, expected = (run(x).cpu() for run in (compiled, DRAWN[name]))
    low, high = expected.quantile(0.001).item(), expected.quantile(0.999).item()
    found, wanted = (torch.histc(one, 40, low, high) / 1_000_000 for one in (drawn, expected))
    assert (found - wanted).abs().max() < 0.004
    sides = compiled(x).view(2, -1)
    correlation = torch.corrcoef(sides)[0, 1]
    assert correlation.abs() < 0.01


def test_calls_of_many_processes_and_streams_draw_other_numbers() -> None:
    compiled = stator.compile(lambda x: torch.rand_like(x))
    drawn = torch.stack([compiled(torch.zeros(1000, device=DEVICE)) for _ in range(20)])
    assert drawn.unique().numel() > 0.99 * drawn.numel()


def test_the_state_of_the_generator_is_part_of_a_checkpoint() -> None:
    """As eager's: with the state of the device's generator put back, equal numbers follow."""
    generator = torch.cuda if DEVICE == "cuda" else torch
    compiled = stator.compile(lambda x: F.dropout(x, 0.5))
    x = torch.ones(1000, device=DEVICE)
    compiled(x)
    states = torch.get_rng_state(), generator.get_rng_state()
    first = compiled(x)
    torch.set_rng_state(states[0])
    generator.set_rng_state(states[1])
    assert torch.equal(compiled(x), first) and not torch.equal(compiled(x), first)
