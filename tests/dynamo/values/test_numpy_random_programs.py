"""Random programs that view, compute and write arrays and tensors on shared memory: results, their layouts, errors and
who shares memory with whom are those of eager."""

from __future__ import annotations

import linecache
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import stator

_OPERATIONS = """
v{n} = v{i}[{k}:] | v{n} = v{i}[{k}] | v{n} = v{i}.T | v{n} = v{i}.reshape(-1) | v{n} = v{i}.ravel()
| v{n} = v{i}.copy() | v{i} += {c} | v{i} *= v{j} | v{i}[{k}] = v{j}[{l}] | v{i}[...] = {c} | v{i}[{k}] = {c}
| v{n} = v{i} + v{j} | v{n} = torch.from_numpy(v{i}) | torch.from_numpy(v{i}).mul_({c}) | v{n} = v{i}.sum(0)
| v{n} = v{i} * v{i}.max() | v{n} = np.concatenate([v{i}, v{i}]) | v{n} = v{i}[:, ::2]
| v{n} = np.where(v{i} > v{j}, v{i}, v{j}) | v{n} = v{i}.astype('float32')
| x += torch.from_numpy(v{i}).sum().float() | v{n} = x.numpy() | v{n} = v{i} - {c} | v{n} = v{i} / {c}
| v{n} = v{i}.squeeze() | v{n} = v{i}[:, None] | v{n} = np.maximum(v{i}, {c}) | v{i} -= v{i}[0]
| v{i}[1:] += v{i}[:-1] | v{n} = v{i}.flatten() | v{n} = np.copy(v{i}) | v{n} = np.zeros_like(v{i})
| v{n} = v{i}.conj() | v{n} = np.stack([v{i}, v{i}], 1) | v{n} = v{i} % v{j} | v{n} = v{i}.sum(0, keepdims=True)
| v{n} = np.clip(v{i}, {l}, None) | v{n} = np.roll(v{i}, {k}, 0) | v{n} = np.repeat(v{i}, {l}, 0)
| v{n} = np.tile(v{i}, 1) | v{n} = np.moveaxis(v{i}, 0, -1) | v{n} = np.expand_dims(v{i}, {k}) | v{n} = np.sort(v{i}, 0)
| v{n} = np.tril(v{i}, {k}) | v{n} = np.hstack([v{i}]) | v{n} = v{i}.std({k}) | v{n} = v{i} // {c}
| v{n} = np.diff(v{i}, {l}, 0) | v{i}[v{j} < {c}] = {l}
| v{n} = v{i} + v{j}.T | v{n} = v{i}.astype('int64').cumsum(0) | v{n} = np.swapaxes(v{i}, 0, -1)
"""
_DTYPES = [("float64", "float64"), ("float32", "float64"), ("int64", "float64"), ("int32", "int32")]


def program(seed: int) -> Callable[..., Any]:
    chosen, lines, count = random.Random(seed), [], 2
    operations = [line.strip() for line in _OPERATIONS.replace("\n", " ").split("|")]
    for _ in range(chosen.randint(4, 12)):
        line = chosen.choice(operations).format(
            n=count,
            i=chosen.randrange(count),
            j=chosen.randrange(count),
            k=chosen.choice([0, 1, -1]),
            l=chosen.choice([0, 1]),
            c=chosen.choice([2, 0.5, 1, -3]),
        )
        lines.append(f"    {line}")
        count += line.startswith(f"v{count} =")
    result = ", ".join(f"v{at}" for at in range(count))
    text = "def run(v0, v1, x):\n" + "\n".join(lines) + f"\n    return [{result}], x\n"
    name = f"<arrays {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    namespace: dict[str, Any] = {"np": np, "torch": torch}
    exec(compile(text, name, "exec"), namespace)
    return namespace["run"]


def arguments(seed: int) -> tuple[Any, ...]:
    numbers, (one, other) = np.random.default_rng(seed), _DTYPES[seed % 4]
    a = numbers.integers(-4, 5, (3, 4)).astype(one)
    b = a if seed % 5 == 0 else a[:] if seed % 5 == 1 else numbers.integers(-4, 5, (3, 4)).astype(other)
    return a, b, torch.arange(4.0)


def outcome(function: Callable[..., Any], seed: int) -> tuple[Any, list[Any], Any]:
    """(results or the class of the error, the arguments afterwards, which of all of them share memory)"""
    given = arguments(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            results, x = function(*given)
        except Exception as error:
            return type(error), list(given), None
    arrays = [part.numpy() if isinstance(part, torch.Tensor) else part for part in results]
    arrays = [part for part in arrays if isinstance(part, np.ndarray)] + [*given[:2], x.numpy()]
    return results, list(given), [[bool(np.shares_memory(one, other)) for one in arrays] for other in arrays]


def assert_same(got: Any, wanted: Any) -> None:
    assert type(got) is type(wanted)
    if isinstance(wanted, list):
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, type):
        assert got is wanted
    else:
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
        assert steps(got) == steps(wanted)


def steps(array: Any) -> list[Any]:
    """Strides of the dimensions that have several elements."""
    strides = array.stride() if isinstance(array, torch.Tensor) else array.strides
    return [stride for stride, size in zip(strides, array.shape, strict=True) if size > 1]


@pytest.mark.parametrize(("backend", "first", "count"), [("eager", 0, 120), ("inductor", 2000, 25)])
def test_random_programs_on_arrays(backend: str, first: int, count: int) -> None:
    for seed in range(first, first + count):
        function = program(seed)
        got, wanted = outcome(stator.compile(function, backend=backend), seed), outcome(function, seed)
        assert_same(got[0], wanted[0])
        assert_same(got[1], wanted[1])
        assert got[2] == wanted[2], seed


@pytest.mark.slow
def test_many_random_programs_on_arrays() -> None:
    test_random_programs_on_arrays("eager", 120, 1500)
