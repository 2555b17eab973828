"""Functions of NumPy that have no counterpart in torch: NumPy computes them as nodes of one graph, to the last bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import stator
from stator.base import counters
from stator.base.errors import Unsupported

Program = Callable[..., Any]


def same(found: Any, wanted: Any, path: str = "result") -> None:
    """Types, dtypes, shapes, strides and bits."""
    assert type(found) is type(wanted), f"{path}: {type(wanted)} became {type(found)}"
    if isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted), path
        for at, pair in enumerate(zip(found, wanted, strict=True)):
            same(*pair, f"{path}[{at}]")
    elif isinstance(wanted, (np.ndarray, np.generic)):
        assert found.dtype == wanted.dtype and found.shape == wanted.shape, path
        long = [at for at, size in enumerate(wanted.shape) if size > 1]
        assert [found.strides[at] for at in long] == [wanted.strides[at] for at in long], path
        np.testing.assert_array_equal(found, wanted, err_msg=path)
    else:
        assert found == wanted, path


def floats(seed: int) -> np.ndarray:
    return np.random.RandomState(seed).randn(4, 5).astype(np.float32)


def assert_one_graph(program: Program, backend: str = "eager", make: Callable[[int], np.ndarray] = floats) -> None:
    """Three calls with other numbers: results, and what is left in the argument."""
    compiled = stator.compile(program, backend=backend, fullgraph=True)
    counters.clear()
    for seed in range(3):
        given, twin = make(seed), make(seed)
        same(compiled(given), program(twin))
        same(given, twin, "argument")
    assert counters.counts["graphs"] == 1


def masked(a):
    a[a > 0] = 0
    a[[0, 1], [1, 2]] += 7
    return a


def put(a):
    np.put_along_axis(a, np.argmax(a, axis=1)[:, None], 99, axis=1)
    np.fill_diagonal(a, -1)
    np.add.at(a, [0, 0, 2], 1.5)
    return a


def sorted_in_place(a):
    part = a[1:3]
    part.sort(axis=0)
    return part * 2, a.sum(axis=0, dtype=np.float64)


PROGRAMS: dict[str, Program] = {
    "sort": lambda a: (np.sort(a), np.sort(a, axis=0, kind="stable"), a.argsort(axis=0), np.partition(a, 2)),
    "search": lambda a: (np.searchsorted(np.sort(a[0]), a[1]), np.digitize(a, [-1.0, 0.0, 1.0])),
    "einsum": lambda a: (np.einsum("ij,kj->ik", a, a), np.einsum("ij->j", a), np.tensordot(a, a, ([0], [0]))),
    "pad": lambda a: (np.pad(a, ((1, 2), (0, 1)), mode="reflect"), np.pad(a, 1, constant_values=3.0)),
    "fft": lambda a: (np.fft.fft(a), np.fft.irfft(np.fft.rfft(a, axis=0), axis=0), np.abs(np.fft.fft2(a))),
    "parts of complex numbers": lambda a: (np.fft.fft(a).real, np.fft.fft(a).imag * 2, (a * 1j).conj()),
    "quantiles": lambda a: (np.percentile(a, 50), np.quantile(a, [0.2, 0.7], axis=1), np.median(a, axis=0)),
    "histogram": lambda a: (np.histogram(a, bins=5), np.histogram(a, bins=4, range=(-1, 1), density=True)),
    "pieces": lambda a: (np.split(a, 2), np.split(a, [1, 3]), np.array_split(a, 3, axis=1), np.hsplit(a, 5)),
    "joined": lambda a: (np.concatenate([a, a.astype("f8")], axis=1), np.block([[a, a], [a, a]]), np.append(a, 1.0)),
    "moved": lambda a: (np.roll(a, 1, axis=1), np.tile(a, (2, 1)), np.repeat(a, 2, axis=1), np.moveaxis(a, 0, 1)),
    "running": lambda a: (
        np.diff(a, n=2, axis=0),
        np.gradient(a),
        np.cumsum(a, axis=1),
        np.interp(a[0], [0, 1], [2, 3]),
    ),
    "not a number": lambda a: (np.nansum(np.where(a > 0, a, np.nan), axis=0), np.nan_to_num(np.log(a[0] * 0))),
    "selected": lambda a: (a[[0, 1], [1, 2]], a[:, [0, 2]], np.take(a, [0, 2], axis=1), np.select([a < 0], [a * 2], 0)),
    "reductions of functions": lambda a: (
        np.add.reduce(a, axis=0),
        np.maximum.accumulate(a, 1),
        np.multiply.outer(a, a),
    ),
    "options of reductions": lambda a: (a.sum(dtype="f8"), np.sum(a, where=a > 0), np.max(a, axis=0, initial=1)),
    "several results": lambda a: (np.modf(a), np.frexp(a), np.divmod(a, 0.3)),
    "linear algebra": lambda a: (np.linalg.svd(a, full_matrices=False), np.linalg.qr(a), np.linalg.norm(a, "nuc")),
    "named results": lambda a: np.linalg.slogdet(a[:, :4]).logabsdet,
    "half": lambda a: (a.astype(np.float16) * 2, (a > 0).astype(np.uint16) + 1, a.astype(np.float16).astype("f8")),
    "written by masks": masked,
    "written by functions": put,
    "sorted in place": sorted_in_place,
    "facts": lambda a: (np.ndim(a), np.size(a), np.shape(a), int(np.count_nonzero(a > 0)) * 2, float(a[0, 0]) + 1),
    "of lists": lambda a: (np.asarray([a[0], a[1]]), np.mean([a, a], axis=0), np.array([a[0, 0], 2.0])),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_as_numpy(name: str) -> None:
    assert_one_graph(PROGRAMS[name])


@pytest.mark.parametrize("name", ["sort", "fft", "written by masks", "several results", "half"])
def test_under_the_default_backend(name: str) -> None:
    assert_one_graph(PROGRAMS[name], "inductor")


def whole(seed: int) -> np.ndarray:
    return np.random.RandomState(seed).randint(1, 9, (3, 4))


def test_whole_numbers() -> None:
    def program(a):
        b = a[::2]
        return a // 3, a % 3, a**2, a << 1, a @ a.T, np.gcd(a, 6), ~a, (a > 2) | (a < 1), a.astype("u8").sum(), b // b

    assert_one_graph(program, make=whole)


DTYPES = ["i1", "u1", "i4", "u4", "u8", "f2", "f4", "f8", "c8", "?"]


@pytest.mark.parametrize("first", DTYPES)
def test_dtypes_of_operators_are_numpys(first: str) -> None:
    def program(*arrays):
        made = []
        for one in arrays:
            made += [arrays[0] + one, arrays[0] * one, np.maximum(arrays[0], one), np.concatenate([arrays[0], one])]
        return [*made, arrays[0] * 2, arrays[0] * np.float32(2), arrays[0] + np.int64(1)]

    arrays = [np.arange(1, 5).astype(first), *(np.arange(2, 6).astype(dtype) for dtype in DTYPES)]
    same(stator.compile(program, backend="eager", fullgraph=True)(*arrays), program(*arrays))


def test_powers_by_exponents_that_numpy_has_other_functions_for() -> None:
    given = np.array([-0.0, -np.inf, 4.0, np.inf, 0.0])

    def program(a, half):
        by_operator = [a**0.5, a**-0.5, a**2, a**-1, a**half, (a > 0) ** 2, a.astype("c8") ** 0.5, a.min() ** 0.5]
        changed = a.copy()
        changed **= 0.5
        return [*by_operator, np.power(a, 0.5), np.power(a, half), np.power(a[:1].min(), 0.5), a**3, changed]

    compiled = stator.compile(program, backend="eager", fullgraph=True)
    for dtype in ("f8", "f4"):
        arguments = given.astype(dtype), np.array([0.5], dtype)
        with np.errstate(all="ignore"):
            got, wanted = compiled(*arguments), program(*arguments)
        same(got, wanted)
        for one, other in zip(got, wanted, strict=True):
            assert np.array_equal(np.signbit(np.real(one)), np.signbit(np.real(other)))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_remainders_of_zero_have_the_divisors_sign(dtype: str) -> None:
    numbers = np.array([-4.0, 4.0, -0.0, 0.0, 3.0, -3.0, np.inf, np.nan], dtype)
    left, right = (one.ravel() for one in np.meshgrid(numbers, numbers))

    def program(a, b):
        return a % b, a % 2, a % -2.0, np.remainder(b, a)

    compiled = stator.compile(program, backend="eager", fullgraph=True)
    with np.errstate(all="ignore"):
        got, wanted = compiled(left, right), program(left, right)
    same(got, wanted)
    for one, other in zip(got, wanted, strict=True):
        assert np.array_equal(np.signbit(one[one == 0]), np.signbit(other[other == 0]))


LAYOUTS: dict[str, Program] = {
    "copies": lambda a: (np.copy(a), a.copy(), np.array(a), a.astype("f4"), np.zeros_like(a), np.ones_like(a, "i4")),
    "joined": lambda a: (np.concatenate([a, a]), np.stack([a, a], axis=1), np.vstack([a, a]), np.hstack([a, a])),
    "operators": lambda a: (a + a, -a, a > 0, np.where(a > 0, a, 1.0), a + a.copy(), a.copy() * a, a + a[0], a[:1] - a),
    "reductions": lambda a: (a.sum(0), a.max(1), a.min(2, keepdims=True), (a > 0).any(0), a.argmax(0)),
    "running": lambda a: (np.cumsum(a.astype("i8"), axis=0), np.sort(a, axis=0)),
    "products": lambda a: (a @ a.swapaxes(1, 2), a[None] @ a[:, None].swapaxes(2, 3), np.vecdot(a, a)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_are_numpys(name: str) -> None:
    def make(order: tuple[int, ...], step: int) -> np.ndarray:
        return np.random.RandomState(0).randint(-3, 4, (4, 6, 5)).astype("f8")[:, ::step].transpose(order)

    for order in itertools.permutations(range(3)):
        for step in (1, 2):
            program = stator.compile(LAYOUTS[name], backend="eager", fullgraph=True)
            same(program(make(order, step)), LAYOUTS[name](make(order, step)))


def test_the_conjugate_of_real_numbers_is_the_array_itself() -> None:
    def program(a):
        b = a.conj()
        b[0] = 7.0
        c = (a * 1j).conjugate()
        return a, b, c, b is a, a.max().conj()

    assert_one_graph(program)


@pytest.mark.parametrize("dtype", ["f2", "u2", "u8", "c8", "c16"])
def test_arguments_of_dtypes_that_torch_does_not_compute_in(dtype: str) -> None:
    def make(seed: int) -> np.ndarray:
        return np.random.RandomState(seed).randint(1, 9, (3, 4)).astype(dtype)

    def program(a):
        view = a.T[1:]
        view += 1
        return a * 2, a.sum(), view.copy(), a[0, 0], a.reshape(-1)[2:4]

    assert_one_graph(program, make=make)


def test_tensors_share_memory_with_what_numpy_wrote() -> None:
    def program(x):
        a = x.numpy()
        a[a > 0.5] = 0
        a.sort(axis=1)
        return torch.from_numpy(np.sort(a, axis=0)) + x

    compiled = stator.compile(program, backend="eager", fullgraph=True)
    for seed in range(2):
        torch.manual_seed(seed)
        x = torch.rand(3, 4)
        y = x.clone()
        assert torch.equal(compiled(x), program(y)) and torch.equal(x, y)


def test_errors_are_those_of_numpy() -> None:
    def program(a):
        try:
            return np.linalg.inv(a)
        except np.linalg.LinAlgError as error:
            return str(error), sum(a[0])

    compiled = stator.compile(program, backend="eager")
    for a in (np.eye(3), np.zeros((3, 3)), np.eye(3) * 2):
        same(compiled(a), program(a))
    with pytest.raises(np.linalg.LinAlgError, match="Singular"):
        stator.compile(lambda a: np.linalg.inv(a) + 1, backend="eager")(np.zeros((2, 2)))


@pytest.mark.parametrize(
    "program",
    [
        lambda a: np.unique(np.round(a)),
        lambda a: np.nonzero(a > 0),
        lambda a: a[a > 0],
        lambda a: np.where(a > 0)[0],
        lambda a: np.diag(a),
        lambda a: np.flip(a, 0),
        lambda a: np.linalg.eig(a[:, :4])[0],
        lambda a: np.nan_to_num(a, copy=False),
        lambda a: np.repeat(a, (a[:, 0] > 0) + 1, axis=0),
        lambda a: np.allclose(a, a),
    ],
)
def test_views_and_what_depends_on_data_end_the_graph(program: Program) -> None:
    with pytest.raises(Unsupported):
        stator.compile(program, backend="eager", fullgraph=True)(floats(0))
    stator.reset()
    compiled = stator.compile(program, backend="eager")
    for seed in range(2):
        given, twin = floats(seed), floats(seed)
        same(compiled(given), program(twin))
        same(given, twin, "argument")


def test_methods_of_arrays_called_by_their_special_names() -> None:
    def program(a):
        a.__setitem__(0, 5.0)
        return a + 1

    compiled = stator.compile(program, backend="eager")
    same(compiled(floats(0)), program(floats(0)))
