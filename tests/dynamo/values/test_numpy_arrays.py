"""Arrays of NumPy in captured code: one graph, and what NumPy itself gives: types, values, and what is written."""

from __future__ import annotations

import operator
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import stator

BACKENDS = ["eager", "inductor"]
DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64"]


def rough(seed: int, shape: tuple[int, ...], dtype: str) -> Any:
    values = np.random.default_rng(seed).uniform(-3, 3, shape)
    if dtype == "bool":
        return values > 0
    return np.abs(values).astype(dtype) if dtype == "uint8" else values.astype(dtype)


def assert_same(got: Any, wanted: Any, rtol: float = 1e-5) -> None:
    assert type(got) is type(wanted)
    if isinstance(wanted, (tuple, list)):
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            assert_same(one, other, rtol)
    elif isinstance(wanted, (np.ndarray, np.generic)):
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        tolerance = rtol if wanted.dtype == np.float32 else 1e-10
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=1e-5 if wanted.dtype == np.float32 else 1e-10)
    elif isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(got, wanted)
    else:
        assert got == wanted


def assert_captured(function: Any, *args: Any, backend: str = "eager") -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_same(stator.compile(function, backend=backend, fullgraph=True)(*args), function(*args))


def outcome(function: Any, *args: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function(*args)
        except Exception as error:
            return type(error)


_UNARY = """sin cos tan arcsin arctan sinh cosh tanh arcsinh exp exp2 expm1 log log2 log10 log1p sqrt reciprocal ceil
floor trunc isnan isinf isfinite rint absolute negative square logical_not invert sign cbrt positive"""
_BINARY = """add subtract multiply divide power remainder maximum minimum arctan2 hypot equal not_equal less less_equal
greater greater_equal logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor floor_divide fmod left_shift
copysign"""


@pytest.mark.parametrize("name", _UNARY.split())
def test_functions_of_one_array_are_numpys_for_every_dtype(name: str) -> None:
    """Captured or broken around: the same results, types and errors."""
    ufunc = getattr(np, name)
    for dtype in DTYPES:
        array = rough(0, (3, 4), dtype)

        def run(a: Any) -> Any:
            return ufunc(a)

        assert_same(outcome(stator.compile(run, backend="eager"), array), outcome(run, array))


@pytest.mark.parametrize("name", _BINARY.split())
def test_functions_of_two_operands_promote_as_numpy_does(name: str) -> None:
    ufunc = getattr(np, name)
    others = [rough(1, (4,), dtype) for dtype in DTYPES]
    numbers: list[Any] = [2, -1, 300, 0.3, 1e39, True, np.float32(0.7), np.float64(0.7), np.int8(3), np.int64(2)]
    for dtype in ("uint8", "int32", "float32", "float64"):
        array = rough(2, (3, 4), dtype)

        def each(a: Any, b: Any) -> Any:
            return ufunc(a, b)

        def each_reversed(a: Any, b: Any) -> Any:
            return ufunc(b, a)

        for other in (*others, *numbers):
            for function in (each,) if isinstance(other, np.ndarray) else (each, each_reversed):
                got = outcome(stator.compile(function, backend="eager"), array, other)
                assert_same(got, outcome(function, array, other))


OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.mod, operator.floordiv]


@pytest.mark.parametrize("function", OPERATORS)
def test_operators_in_place_write_to_the_callers_array_and_cast_as_numpy_does(function: Any) -> None:
    in_place = getattr(operator, f"i{function.__name__}")
    for dtype in ("uint8", "int32", "float32"):
        for other in (2, 0.5, rough(3, (4,), "float64"), rough(3, (4,), "int32")):

            def run(a: Any, b: Any) -> Any:
                return in_place(a, b)

            mine, its = rough(4, (3, 4), dtype), rough(4, (3, 4), dtype)
            got, wanted = outcome(stator.compile(run, backend="eager"), mine, other), outcome(run, its, other)
            assert_same(got, wanted)
            assert (got is mine) == (wanted is its)
            assert_same(mine, its)


def _reduce_all(a: Any) -> Any:
    return [
        function(*args)
        for name in ("sum", "mean", "max", "min")
        for function in (getattr(np, name),)
        for args in ((a,), (a, 0), (a, 1), (a, (0, 1)))
    ]


@pytest.mark.parametrize("dtype", ["int8", "int64", "float32", "float64"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_reductions(dtype: str, backend: str) -> None:
    assert_captured(_reduce_all, rough(5, (4, 5), dtype), backend=backend)


def _reduce_more(a: Any) -> Any:
    return (
        a.sum(axis=0, keepdims=True),
        np.any(a > 1, axis=1),
        (a > -5).all(),
        a.argmax(),
        np.argmin(a, axis=1),
        a.mean(-1),
    )


def _shapes(a: Any) -> Any:
    return (
        a.reshape(2, -1),
        np.reshape(a, (-1,)),
        a.T,
        a.transpose(1, 0),
        a.ravel(),
        a.shape,
        a.ndim,
        a.size,
        a.dtype,
        len(a),
        a.astype(np.float32),
        a.astype("int64"),
        a.copy(),
    )


def _parts(a: Any) -> Any:
    return (
        a[0],
        a[-1, 1],
        a[1:, ::2],
        a[..., 0],
        a[:, None, 1],
        a[0][1],
        a[1, ...],
        a[np.array([2, 0])],
        [r.sum() for r in a],
    )


def _facts(a: Any) -> Any:
    return (
        np.prod(a.shape),
        np.prod([2, 3]) * 1.5,
        np.dtype("float32") == a.dtype,
        np.dtype(float).itemsize,
        np.issubdtype(a.dtype, np.floating),
        a.dtype in (np.float32, np.float64),
        isinstance(a, np.ndarray),
        a + 1,
    )


def _several(a: Any, b: Any) -> Any:
    return (
        np.concatenate([a, b]),
        np.concatenate((a, b), axis=1),
        np.stack([a, b], axis=-1),
        np.where(a > b, a, b),
        np.where(a > 0, 1.0, 0.0),
        np.where(a > 0, a, 0),
        a @ b.T,
        a[0] @ b[0],
        np.matmul(a[None], b.T),
        a[0].max() * b,
    )


def _new(a: Any) -> Any:
    return (
        np.array([1.0, 2.0]),
        np.array([[1, 2], [3, 4]]),
        np.zeros((2, 3)),
        np.ones(3, dtype=np.float32),
        np.full((2,), 7),
        np.arange(5),
        np.arange(1, 9, 2, dtype="int32"),
        np.arange(0.0, 1.0, 0.25),
        np.linspace(0, 1, 5),
        np.eye(3),
        a + np.arange(5.0),
        np.array(a),
        np.asarray(a) is a,
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [_reduce_more, _shapes, _parts, _new, _facts])
@pytest.mark.parametrize("dtype", ["int32", "float32", "float64"])
def test_methods_and_functions_of_one_array(function: Any, dtype: str, backend: str) -> None:
    assert_captured(function, rough(6, (4, 5), dtype), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("float32", "float64"), ("int32", "float32")])
def test_functions_of_several_arrays(dtypes: tuple[str, str], backend: str) -> None:
    assert_captured(_several, rough(7, (4, 5), dtypes[0]), rough(8, (4, 5), dtypes[1]), backend=backend)


# ---- between tensors and arrays ----

RATES = np.linspace(0.1, 0.9, 9)


def _to_and_fro(x: torch.Tensor) -> Any:
    array = x.numpy() * 2
    return torch.from_numpy(array) + x, torch.as_tensor(array.astype("float64")), torch.tensor(array[0]), array


def _schedule(x: torch.Tensor, t: int) -> Any:
    rate = RATES[t]
    return x * rate + (1 - rate) * np.sqrt(rate), x - RATES.sum()


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensors_become_arrays_and_arrays_tensors(backend: str) -> None:
    assert_captured(_to_and_fro, torch.arange(6.0).reshape(2, 3), backend=backend)


def test_a_changed_table_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = stator.compile(_schedule, backend="eager", fullgraph=True)
    x = torch.arange(6.0)
    compiled(x, 2)
    for table in (RATES * 2, RATES.astype("float32"), RATES[1:], RATES[::2]):
        monkeypatch.setitem(globals(), "RATES", table)
        assert_same(compiled(x, 2), _schedule(x, 2))
    table[2] = 17.0
    assert_same(compiled(x, 2), _schedule(x, 2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_writes_are_seen_through_every_view(backend: str) -> None:
    def run(a: Any, x: torch.Tensor) -> Any:
        row = a[1]
        row += 10
        a[0, 1:] = a[0, :-1]
        a[:, 0] = 5
        x.numpy()[0] = 3
        torch.from_numpy(a).mul_(2)
        a.T[2] = row[0]
        return row, a, x + 1, a.sum()

    mine, its = rough(9, (3, 4), "float64"), rough(9, (3, 4), "float64")
    x, y = torch.zeros(3), torch.zeros(3)
    got, wanted = stator.compile(run, backend=backend, fullgraph=True)(mine, x), run(its, y)
    assert_same(got, wanted)
    assert_same([mine, x], [its, y])
    assert got[1] is mine and np.shares_memory(got[0], mine)
    got[0][:] = 99
    assert mine[1, 0] == 99


def test_a_table_is_read_at_another_place_in_each_call() -> None:
    compiled = stator.compile(_schedule, backend="eager")
    x = torch.arange(6.0)
    for t in (0, 3, 5, 8, -1, 3):
        assert_same(compiled(x, t), _schedule(x, t))


def test_numbers_read_before_a_write_are_those_from_before() -> None:
    def run(a: Any) -> Any:
        before = a[1]
        a[1] = 7.0
        a += 1
        return before, a[1], before + a

    for function in (run, stator.compile(run, backend="eager")):
        a = np.arange(3.0)
        assert_same(function(a), (np.float64(1.0), np.float64(8.0), np.array([2.0, 9.0, 4.0])))


@pytest.mark.parametrize("backend", BACKENDS)
def test_arrays_that_share_memory(backend: str) -> None:
    def run(a: Any, b: Any) -> Any:
        a += 1
        return b * 2, a is b

    base = np.arange(6.0)
    compiled = stator.compile(run, backend=backend)
    for _ in range(2):
        one, other = np.arange(6.0), np.arange(6.0)
        for left, right in ((one, other), (one, one), (one, one[:]), (one[:5], one[1:])):
            copied = base.copy()
            pair = (
                (copied, copied) if left is right else (copied, other) if right is other else (copied[:5], copied[1:])
            )
            again = base.copy()
            twin = (again, again) if left is right else (again, other) if right is other else (again[:5], again[1:])
            assert_same(compiled(*pair), run(*twin))


def test_guards_on_arrays() -> None:
    def run(a: Any) -> Any:
        return a * 2 + 1

    compiled = stator.compile(run, backend="eager")
    read_only = np.arange(4.0)
    read_only.flags.writeable = False
    for a in (
        np.arange(4.0),
        np.arange(4),
        np.arange(5.0),
        np.arange(8.0)[::2],
        np.arange(4.0)[::-1],
        read_only,
        np.arange(4.0).astype(">f8"),
        np.arange(4.0).astype("f2"),
        np.arange(4.0) * 1j,
        np.zeros((0, 3)),
        np.array(3.0),
        np.array([1, None, 2.0], dtype=object)[[0, 2]],
        np.ma.array([1.0, 2.0], mask=[True, False]),
        np.arange(4.0),
        3.0,
    ):
        got, wanted = compiled(a), run(a)
        assert type(got) is type(wanted) and np.array_equal(got, wanted)
        assert getattr(got, "dtype", None) == getattr(wanted, "dtype", None)


def test_errors_that_numpy_raises_when_asked_to() -> None:
    def run(a: Any) -> Any:
        return 1.0 / a

    compiled = stator.compile(run, backend="eager")
    with np.errstate(all="ignore"):
        assert np.isinf(compiled(np.zeros(3))).all()
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        compiled(np.zeros(3))


def test_identity_of_arrays_is_relied_on() -> None:
    def run(a: Any, b: Any) -> Any:
        return (a + b, 1) if a is b else (a - b, 2)

    compiled = stator.compile(run, backend="eager")
    a, b = np.arange(3.0), np.ones(3)
    for pair in ((a, b), (a, a), (b, a), (b, b)):
        assert_same(compiled(*pair), run(*pair))


FORMS = {
    "zeros": lambda a: np.zeros_like(a) + 1,
    "ones of a dtype": lambda a: np.ones_like(a, dtype=np.int32),
    "full": lambda a: np.full_like(a, 2.75),
    "full of a dtype": lambda a: np.full_like(a, 3, np.float64) * a,
    "of another shape": lambda a: np.zeros_like(a, shape=(2, 5)),
    "of a tensor": lambda a: np.ones_like(torch.from_numpy(a), dtype=np.float32),
    "strides": lambda a: (a.strides, a.T.strides, a[:, ::2].strides, a + a.strides[0]),
    "parts": lambda a: (a.imag, a.real is a),
}


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float32"])
@pytest.mark.parametrize("name", FORMS)
def test_arrays_like_another(name: str, dtype: str) -> None:
    assert_captured(FORMS[name], rough(0, (3, 4), dtype))


FUNCTIONS = """
np.cumsum(a, axis=1) | np.cumsum(a) | a.cumsum(0) | np.cumprod(a, 1) | np.prod(a, axis=0) | a.prod()
np.sort(a, axis=0) | np.sort(a, axis=None) | np.sort(a)
np.diff(a) | np.diff(a, 2, axis=0) | np.repeat(a, 2, axis=0) | a.repeat(3)
np.roll(a, 1, axis=0) | np.roll(a, (1, -1), (0, 1)) | np.roll(a, 2) | np.tile(a, 2) | np.tile(a, (2, 1, 1))
np.tril(a) | np.triu(a, 1) | np.expand_dims(a, 1) | np.squeeze(a[None]) | a[:, None].squeeze(1)
a[:1, :1].squeeze() | a.swapaxes(0, 1)
np.moveaxis(a, 0, -1) | np.clip(a, -1, 1) | a.clip(0, 2) | np.clip(a, None, 0.5) | np.clip(a, 0, None) | np.dot(a, a.T)
np.dot(a[0], a[1]) | np.hstack([a, a]) | np.hstack([a[0], a[1]]) | np.vstack([a, a[:1]]) | np.vstack([a[0], a[1]])
np.std(a) | a.std(axis=1, ddof=1) | np.var(a, axis=0, keepdims=True) | np.linalg.norm(a) | np.linalg.norm(a, axis=1)
np.sum(a, dtype=np.float64) | np.mean(a, axis=0, dtype=np.float64) | np.amax(a, axis=0) | np.amin(a) | a.flatten()
a // 2 | a % 3 | np.mod(a, -2) | np.floor_divide(a, 2) | np.fmax(a, 0) | np.fmin(a, a[0]) | np.tri(3, 4) + a
"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["int64", "float32", "float64"])
def test_functions_of_one_array_and_constants(dtype: str, backend: str) -> None:
    entries = FUNCTIONS.replace("\n", "|").split("|")
    for entry in filter(None, map(str.strip, entries)):
        function = eval(f"lambda a: {entry}", {"np": np})
        assert_captured(function, rough(3, (3, 4), dtype), backend=backend)


@pytest.mark.parametrize(
    "entry", ["np.round(a)", "a.round()", "np.copysign(a, -1)", "np.logaddexp(a, a)", "np.degrees(a)"]
)
def test_functions_of_floating_point_arrays(entry: str) -> None:
    assert_captured(eval(f"lambda a: {entry}", {"np": np}), rough(3, (3, 4), "float32"))


def test_functions_that_torch_computes_otherwise_stay_numpys() -> None:
    """Other layouts, options, divisors and errors: NumPy computes between two graphs."""
    for entry in (
        "np.sort(a.T)",
        "np.cumsum(a.T, 0)",
        "np.tril(a.T)",
        "np.roll(a.T, 1, 0)",
        "np.squeeze(a, 0)",
        "np.cumsum(a, axis=4)",
        "np.cumsum(a, 0, np.float64)",
        "np.expand_dims(a, (0, 1))",
        "np.repeat(a, [1, 2, 3], axis=0)",
        "a % 0.0",
        "a // float('inf')",
        "np.round(a, 1)",
        "np.linalg.norm(a, 1)",
        "np.diff(a, prepend=0)",
        "np.diff(a, 0)",
        "np.clip(a, None, None)",
        "np.hstack([a, a], dtype='float64')",
        "np.sum(a, ddof=1)",
    ):
        function = eval(f"lambda a: {entry}", {"np": np})
        array = rough(3, (3, 4), "float32")
        wanted, got = (outcome(one, array) for one in (function, stator.compile(function)))
        assert_same(got, wanted)
        assert getattr(got, "strides", None) == getattr(wanted, "strides", None)
        assert (got is array) == (wanted is array)


@pytest.mark.parametrize("backend", BACKENDS)
def test_writes_by_a_mask_are_seen_through_every_view(backend: str) -> None:
    def function(a: Any, fill: Any) -> Any:
        view = a[1:]
        a[a < 0] = 0
        view[view > 1] = fill.sum()
        return a * 2, view

    for function_of in (function, stator.compile(function, backend=backend, fullgraph=True)):
        array = rough(5, (3, 4), "float32")
        results = function_of(array, np.ones(2, "float32"))
        assert (array >= 0).all() and (array[1:] <= 2).all() and np.shares_memory(results[1], array)
        wanted = rough(5, (3, 4), "float32")
        wanted[wanted < 0] = 0
        wanted[1:][wanted[1:] > 1] = 2
        np.testing.assert_array_equal(array, wanted)
        np.testing.assert_array_equal(results[0], wanted * 2)
