"""Python numbers that change from call to call: one version more when they first do, and none afterwards."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from optimizer_cases import as_it_is, stepped, text, whole

import stator
from stator.base import counters

BACKENDS = ["eager", "aot_eager", "inductor"]


def versions(run: Callable[[], Any]) -> int:
    counters.clear()
    run()
    return counters.counts["dynamo.compiled_frames"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_float_argument(backend: str) -> None:
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return torch.add(x * factor, x, alpha=1 - factor) - factor

    compiled = stator.compile(scaled, backend=backend, fullgraph=True)
    x = torch.randn(5, generator=torch.Generator().manual_seed(0))

    def run() -> None:
        for factor in (0.1, 0.2, -3.5, 0.0, 1e10, math.inf, math.nan):
            torch.testing.assert_close(compiled(x, factor), scaled(x, factor), equal_nan=True)

    assert versions(run) == 2


OPERATIONS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "add": lambda x, a: x + a,
    "radd": lambda x, a: a + x,
    "sub": lambda x, a: x - a,
    "rsub": lambda x, a: a - x,
    "mul": lambda x, a: x * a,
    "div": lambda x, a: x / a,
    "rdiv": lambda x, a: a / x,
    "pow": lambda x, a: x.abs() ** a,
    "rpow": lambda x, a: a**x,
    "add alpha": lambda x, a: torch.add(x, x, alpha=a),
    "sub alpha": lambda x, a: torch.sub(x, x, alpha=a),
    "addcmul": lambda x, a: torch.addcmul(x, x, x, value=a),
    "addcdiv": lambda x, a: torch.addcdiv(x, x, x, value=a),
    "lerp": lambda x, a: torch.lerp(x, x + 1, a),
    "clamp": lambda x, a: x.clamp(-a, a),
    "clamp_min": lambda x, a: x.clamp_min(a),
    "greater": lambda x, a: x > a,
    "where": lambda x, a: torch.where(x > 0, x, a),
    "masked_fill": lambda x, a: x.masked_fill(x > 0, a),
    "full": lambda x, a: torch.full((3,), a) + x[0],
    "full_like": lambda x, a: torch.full_like(x, a),
    "new_full": lambda x, a: x.new_full((2, 2), a),
    "fill_": lambda x, a: x.clone().fill_(a),
    "in place": lambda x, a: x.clone().mul_(a).add_(x, alpha=a),
    "list": lambda x, a: torch.stack(torch._foreach_mul([x, x + 1], a)),
    "list in place": lambda x, a: _added([x.clone(), x + 1], x, a),
    "computed": lambda x, a: x * (1 - a * 0.5) ** 2 / max(a, 0.25),
    "an unlisted operator": lambda x, a: torch.nn.functional.leaky_relu(x, a),
}


def _added(tensors: list[torch.Tensor], x: torch.Tensor, a: float) -> torch.Tensor:
    torch._foreach_add_(tensors, [x, x], alpha=a)
    return torch.stack(tensors)


@pytest.mark.parametrize("numbers", [(0.5, 0.75, 1.5), (2, 3, 5)], ids=["floats", "ints"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_operators_take_it_as_the_number_that_it_is(name: str, dtype: torch.dtype, numbers: tuple[float, ...]) -> None:
    function = OPERATIONS[name]
    compiled = stator.compile(function, backend="aot_eager", fullgraph=True)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}
    for shape in ((4,), ()):
        if shape == () and name == "full":
            continue
        x = (torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 3 + 1).to(dtype)
        for a in numbers:
            try:
                expected = function(x, a)
            except RuntimeError:  # eager refuses this dtype
                continue
            torch.testing.assert_close(compiled(x, a), expected, **tolerance)


@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients_of_operators_that_take_it(name: str) -> None:
    """Where the gradient's formula depends on the number, its value is relied on; nothing runs eagerly."""
    function = OPERATIONS[name]
    counters.clear()
    compiled = stator.compile(function, backend="aot_eager", fullgraph=True)
    x = torch.rand(4, generator=torch.Generator().manual_seed(1)).add(0.1).requires_grad_()
    for a in (0.5, 0.75, 1.5, 1.0, 0.0):
        expected, found = function(x, a), compiled(x, a)
        torch.testing.assert_close(found, expected)
        if expected.requires_grad:
            one, other = (torch.autograd.grad(result.sum(), x)[0] for result in (expected, found))
            torch.testing.assert_close(other, one)
    assert counters.counts["dynamo.compiled_frames"] <= 5
    assert not counters.counts["dynamo.failed_frames"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_int_argument(backend: str) -> None:
    def averaged(x: torch.Tensor, count: int) -> torch.Tensor:
        return (x * count + x) / (count + 1) + x.sum(0, keepdim=True) ** count

    compiled = stator.compile(averaged, backend=backend, fullgraph=True)
    x = torch.rand(5, generator=torch.Generator().manual_seed(0)) / 4

    def run() -> None:
        for count in range(1, 12):
            torch.testing.assert_close(compiled(x, count), averaged(x, count))

    assert versions(run) == 2


def test_sizes_and_dimensions_are_fixed() -> None:
    def shaped(x: torch.Tensor, n: int) -> torch.Tensor:
        return x.view(n, -1) * n + x.reshape(n, -1).sum(n - n) + torch.full((n, 1), n)

    compiled = stator.compile(shaped, backend="aot_eager", fullgraph=True)
    x = torch.arange(12.0)
    for n in (2, 3, 4, 6):
        torch.testing.assert_close(compiled(x, n), shaped(x, n))


def test_decisions_are_relied_on_instead_of_values() -> None:
    def turned(x: torch.Tensor, a: float) -> torch.Tensor:
        return x * a if a > 1 else x - a

    compiled = stator.compile(turned, backend="eager", fullgraph=True)
    x = torch.ones(2)

    def run() -> None:
        for a in (0.1, 0.2, 0.3, 1.5, 1.6, 0.4, 2.0):
            assert torch.equal(compiled(x, a), turned(x, a))

    assert versions(run) == 3


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.scale *= 0.9
        if self.calls % 4 == 0:
            x = x + 1
        return x * self.scale / (1 - 0.9**self.calls)


@pytest.mark.parametrize("backend", BACKENDS)
def test_counters_of_a_module(backend: str) -> None:
    own, theirs = Counting(), Counting()
    compiled = stator.compile(own, backend=backend, fullgraph=True)
    x = torch.randn(3, generator=torch.Generator().manual_seed(2))

    def run() -> None:
        for _ in range(13):
            torch.testing.assert_close(compiled(x), theirs(x))
            assert (own.calls, own.scale) == (theirs.calls, theirs.scale)

    assert versions(run) == 3  # as constants; as numbers; with the other decision


def test_membership_is_relied_on_instead_of_the_number() -> None:
    marks = {3: 10.0, 5: 20.0}
    order = [2, 4, 6]

    def marked(x: torch.Tensor, n: int) -> torch.Tensor:
        y = x * bisect.bisect_right(order, n) + bisect.bisect_left(order, n)
        return y + marks[n] if n in marks else y

    compiled = stator.compile(marked, backend="eager", fullgraph=True)
    x = torch.ones(2)

    def run() -> None:
        for n in (1, 0, -1, -2, 7, 8, 9, 10, 3, 5, 11, -7):
            assert torch.equal(compiled(x, n), marked(x, n))

    assert versions(run) == 5  # the first; below, above, and at either mark


def test_exceptions_are_those_of_the_program() -> None:
    def over(x: torch.Tensor, a: float) -> torch.Tensor:
        return x * (1 / a)

    compiled = stator.compile(over, backend="eager")
    x = torch.ones(2)
    for a in (1.0, 2.0, 4.0):
        assert torch.equal(compiled(x, a), x / a)
    with pytest.raises(ZeroDivisionError):
        compiled(x, 0.0)
    assert torch.equal(compiled(x, 8.0), x / 8)


def test_another_type_is_another_version() -> None:
    def scaled(x: torch.Tensor, a: Any) -> torch.Tensor:
        return x * a

    compiled = stator.compile(scaled, backend="eager", fullgraph=True)
    x = torch.arange(4)
    for a in (0.5, 1.5, 2, 2.5, True, None):
        if a is None:
            continue
        found, expected = compiled(x, a), scaled(x, a)
        assert found.dtype is expected.dtype
        torch.testing.assert_close(found, expected)


def test_zeros_of_either_sign_are_two_constants() -> None:
    """Operations with 0.0 and with -0.0 stay apart, though the two are equal."""

    def signs(x: torch.Tensor, a: float) -> Any:
        return [a * 0.0, a * -0.0, a + 0.0, a + -0.0, a - 0.0, a - -0.0], x * (a * 0.0), x * (a * -0.0)

    compiled = stator.compile(signs, backend="eager", fullgraph=True)
    x = torch.tensor([1.0, -1.0])
    for a in (1.5, 2.5, -3.5, 0.0, -0.0, 2, -3):
        assert repr(compiled(x, a)) == repr(signs(x, a))


def test_numbers_survive_a_graph_break() -> None:
    seen: list[float] = []

    def broken(x: torch.Tensor, a: float) -> torch.Tensor:
        b = a * 2
        y = x * b
        stator.disable(seen.append)(b)
        return y + b

    compiled = stator.compile(broken, backend="eager")
    x = torch.ones(2)
    for a in (0.5, 0.75, 1.0, 1.25):
        assert torch.equal(compiled(x, a), x * a * 2 + a * 2)
    assert seen == [1.0, 1.5, 2.0, 2.5]


@pytest.mark.parametrize(
    "case",
    [
        ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
        ("AdamW", {"lr": 0.01}),
        ("AdamW", {"lr": 0.01, "foreach": False}),
        ("AdamW", {"lr": 0.01, "fused": True}),
        ("Adagrad", {"lr": 0.01}),
        ("RMSprop", {"lr": 0.01}),
    ],
    ids=text,
)
def test_learning_rates_of_several_groups(case: Any) -> None:
    def slower(optimizer: torch.optim.Optimizer, turn: int) -> None:
        for at, group in enumerate(optimizer.param_groups):
            group["lr"] *= 0.9 - 0.1 * at

    own, _ = stepped(case, as_it_is, between=slower)
    counters.clear()
    ours, _ = stepped(case, whole("aot_eager"), between=slower)
    for one, other in zip(own, ours, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
    assert counters.counts["dynamo.compiled_frames"] <= 3


# ---- numbers of NumPy ----

KINDS = ["float64", "float32", "float16", "int64", "int32", "uint8"]


def alike(function: Callable[..., Any], calls: list[tuple[Any, ...]], backend: str = "aot_eager") -> int:
    """Compare compiled calls with eager's, the types of numbers too; how many versions there were."""
    compiled = stator.compile(function, backend=backend, fullgraph=True)

    def run() -> None:
        for call in calls:
            expected, found = function(*call), compiled(*call)
            assert [type(one) for one in found] == [type(one) for one in expected]
            for one, other in zip(expected, found, strict=True):
                torch.testing.assert_close(torch.as_tensor(other), torch.as_tensor(one))

    return versions(run)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_argument_of_numpy(kind: str, backend: str) -> None:
    make = getattr(numpy, kind)

    def function(x: torch.Tensor, number: Any) -> tuple[torch.Tensor, ...]:
        return x * number, number * x, x / number, torch.add(x, x, alpha=number), x.clamp(max=number), x > number

    x = torch.randn(6, generator=torch.Generator().manual_seed(0))
    assert alike(function, [(x, make(value)) for value in (2, 3, 5, 7, 11)], backend) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_types_are_promoted_as_by_a_python_number(kind: str) -> None:
    make = getattr(numpy, kind)
    for dtype in (torch.bfloat16, torch.float64, torch.int32):
        calls = [(torch.arange(6).to(dtype), make(value)) for value in (2, 3, 5)]
        assert alike(lambda x, number: (x * number, number - x, x / number), calls) == 2


@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_arithmetic_is_numpys(kind: str) -> None:
    def function(x: torch.Tensor, rate: Any) -> tuple[Any, ...]:
        factor = numpy.sqrt(rate) * 2 + 1
        result = x * factor if rate < 3 else x / rate
        with_one = x * (numpy.float64(1) / (rate - 4.5))
        return result, factor, rate * 2, float(rate), numpy.minimum(rate, 2.0), -rate, rate / 3, abs(rate), with_one

    make = getattr(numpy, kind)
    with numpy.errstate(divide="ignore"):
        assert alike(function, [(torch.ones(3), make(value)) for value in (1.5, 2.5, 1.25, 4.5, 3.5, 5.5)]) == 3


def test_sizes_rely_on_the_value_and_kinds_do_not_stand_for_each_other() -> None:
    def function(x: torch.Tensor, number: Any) -> tuple[torch.Tensor, ...]:
        return x[:number].sum(), x.view(2, -1) * number

    assert alike(function, [(torch.ones(8), numpy.int64(value)) for value in (1, 2, 3, 1)]) == 3
    calls = [(torch.ones(2), value) for value in (numpy.float64(1.5), 1.5, numpy.float32(1.5), 2.5, numpy.float64(2.5))]
    alike(lambda x, number: (x * number, number + 1), calls)


def test_places_of_a_table() -> None:
    """As in MultiStepLR: a missing key counts zero and is not added."""
    rates, milestones = [0.5, 0.25, 0.125, 1.5], Counter([2, 5, 5])

    def program(x: torch.Tensor, at: int) -> torch.Tensor:
        return x * 0.5 ** milestones[at] * rates[at % 4]

    compiled = stator.compile(program, backend="eager")
    for at in range(8):
        assert torch.equal(compiled(torch.ones(1), at), program(torch.ones(1), at))
        rates[at % 4] *= 3
    assert sorted(milestones) == [2, 5]
    with pytest.raises(IndexError):
        stator.compile(lambda x, at: x * rates[at], backend="eager")(torch.ones(1), 4)
