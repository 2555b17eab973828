"""The generator behind `stator::` operators: published test vectors, statistics, and what each argument changes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import ndtri

from stator.prims.operators import random
from stator.prims.record import TensorMeta, records
from stator.prims.special.normal_quantile import normal_quantile

SEED = torch.tensor(0x0123456789ABCDEF)
COUNT = 200_000
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# Probability below which a statistic counts as wrong; seeds are fixed, so that the outcome is always the same.
UNLIKELY = 1e-4


def uniform(stream: int = 0, dtype: torch.dtype = torch.float32, seed: torch.Tensor = SEED) -> torch.Tensor:
    return random.uniform(seed, stream, [COUNT], dtype).double()


def normal(stream: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return random.normal(SEED, stream, [COUNT], dtype).double()


def correlation(x: torch.Tensor, y: torch.Tensor) -> float:
    """In standard errors."""
    return abs(float(torch.corrcoef(torch.stack((x, y)))[0, 1])) * math.sqrt(x.numel())


# ---- Philox ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "upper", "key", "words"),
    [
        # the vectors that come with Random123, for philox4x32-10
        (0, (0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (-1, (0xFFFFFFFF, 0xFFFFFFFF), -1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            0x85A308D3243F6A88 - 2**64,
            (0x13198A2E, 0x03707344),
            0x299F31D0A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(
    counter: int, upper: tuple[int, int], key: int, words: tuple[int, ...]
) -> None:
    got = random.philox(torch.tensor(key), torch.tensor([counter]), *upper)
    assert tuple(int(word) for word in got) == words


def test_elements_have_the_same_bits_wherever_they_are_asked_for() -> None:
    whole = random.bits(SEED, 5, 1, (1000,))
    index = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(random.bits_at(SEED, 5, 1, index), whole[index])


def test_all_bits_are_even_and_independent() -> None:
    words = random.bits(SEED, 0, 0, (COUNT,)).long()
    bits = torch.stack([(words >> at) & 1 for at in range(32)]).double()
    deviation = (bits.mean(1) - 0.5).abs() * 2 * math.sqrt(COUNT)
    assert deviation.max() < 4.5
    apart = torch.corrcoef(bits) - torch.eye(32, dtype=torch.float64)
    assert apart.abs().max() * math.sqrt(COUNT) < 4.8


# ---- distributions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_numbers_are_below_one_and_evenly_spread(dtype: torch.dtype) -> None:
    drawn = uniform(dtype=dtype)
    assert drawn.min() >= 0 and drawn.max() < 1
    step = 2.0 ** -random.UNIFORM_BITS[dtype]
    assert torch.equal(drawn, torch.round(drawn / step) * step)
    jittered = drawn + step * uniform(9)  # continuous again, where a dtype has few values
    assert stats.kstest(jittered.numpy(), "uniform").pvalue > UNLIKELY
    if dtype in (torch.float64, torch.float32):
        inside = random.uniform(SEED, 0, [COUNT], dtype, True)
        assert inside.min() > 0 and inside.max() < 1
        assert stats.kstest(inside.double().numpy(), "uniform").pvalue > UNLIKELY


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal_numbers_are_normal(dtype: torch.dtype) -> None:
    drawn = normal(dtype=dtype)
    if dtype in (torch.float64, torch.float32):
        assert stats.kstest(drawn.numpy(), "norm").pvalue > UNLIKELY
    for power, (mean, variance) in {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96)}.items():
        assert abs(float(drawn.pow(power).mean()) - mean) < 4 * math.sqrt(variance / COUNT) + 2e-3


def test_the_normal_quantile_is_accurate_to_its_ends() -> None:
    ends = [-(2**31), 2**31 - 1, 0, -1, 1, 2**30, -(2**30)]
    words = torch.cat([torch.tensor(ends), random.bits(SEED, 0, 0, (20_000,)).long()]).int()
    exact = ndtri((words.double().numpy() + 0.5) / 2**32 + 0.5)
    np.testing.assert_allclose(normal_quantile(words).numpy(), exact, rtol=1e-6)
    below = torch.cat([torch.tensor([-(2**63), -(2**63) + 1]), -(random.bits64(SEED, 0, (20_000,)) >> 1).abs()])
    p = (below.numpy().astype(np.longdouble) + 0.5) / np.longdouble(2) ** 64 + np.longdouble(0.5)
    np.testing.assert_allclose(normal_quantile(below).numpy()[:2], ndtri(p.astype(np.float64))[:2], rtol=1e-12)
    np.testing.assert_allclose(normal_quantile(below).numpy(), ndtri(p.astype(np.float64)), rtol=1e-11, atol=1e-15)
    assert torch.equal(normal_quantile(-1 - below), -normal_quantile(below))


@pytest.mark.parametrize("p", [0.0, 1e-3, 0.1, 0.5, 0.9, 1.0])
def test_coins_have_their_probability(p: float) -> None:
    heads = float(random.bernoulli(SEED, 0, [COUNT], p).double().sum())
    assert abs(heads - p * COUNT) <= 4 * math.sqrt(COUNT * p * (1 - p))


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-3, 7), (5, 260), (0, 100_003), (-(2**62), 2**62 - 1), (0, 2**63 - 1)]
)
def test_integers_are_even_over_their_range(low: int, high: int) -> None:
    drawn = random.integers(SEED, 0, [COUNT], low, high)
    assert int(drawn.min()) >= low and int(drawn.max()) <= high - 1
    span = high - low
    groups = min(span, 64)
    group = torch.div(drawn.double() - low, span / groups, rounding_mode="floor").clamp(0, groups - 1).long()
    first = torch.ceil(torch.arange(groups + 1, dtype=torch.float64) * (span / groups))
    expected = (first.diff() / span * COUNT).numpy()
    observed = group.bincount(minlength=groups).double().numpy()
    assert groups == 1 or stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > UNLIKELY


# ---- independence ---------------------------------------------------------------------------------------------------


def test_streams_seeds_and_draws_do_not_correlate() -> None:
    seeds = [SEED + 1, SEED ^ (1 << 40), torch.tensor(0), torch.tensor(-1)]
    drawn = [uniform(stream) for stream in (0, 1, 2, 1000)] + [uniform(seed=seed) for seed in seeds]
    drawn += [random.bits(SEED, 0, draw, (COUNT,)).double() for draw in (1, 2)]
    assert all(correlation(a, b) < 4 for at, a in enumerate(drawn) for b in drawn[:at])


@pytest.mark.parametrize("lag", [1, 2, 15, 16, 17, 48, 63, 64, 65, 1024])
def test_neighbours_do_not_correlate(lag: int) -> None:
    drawn = uniform()
    assert correlation(drawn[lag:], drawn[:-lag]) < 4


# ---- the operators --------------------------------------------------------------------------------------------------


def test_seeds_follow_torch_manual_seed_and_differ_from_call_to_call() -> None:
    torch.manual_seed(7)
    first = [int(random.seed(torch.device("cpu"))) for _ in range(3)]
    torch.manual_seed(7)
    assert [int(random.seed(torch.device("cpu"))) for _ in range(3)] == first
    assert len(set(first)) == 3


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        (random.uniform, (torch.bfloat16,)),
        (random.uniform, (torch.float32, True)),
        (random.normal, (torch.float64,)),
        (random.bernoulli, (0.3,)),
        (random.integers, (-2, 9)),
    ],
)
@pytest.mark.parametrize("size", [[], [0, 3], [5, 7, 2]])
def test_shape_rules_tell_what_the_reference_gives(target: object, arguments: tuple[object, ...], size: list) -> None:
    rule = records.get(target).shape
    value = target(SEED, 1, size, *arguments)
    assert rule(SEED, 1, size, *arguments) == TensorMeta(tuple(size), value.stride(), value.dtype, value.device)


def test_only_the_seed_counts_as_random() -> None:
    tagged = {target for target in (random.seed, *random.PURE) if torch.Tag.nondeterministic_seeded in target.tags}
    assert tagged == {random.seed}
    assert "random" in records.get(random.seed).tags
    assert all("random" not in records.get(target).tags for target in random.PURE)
