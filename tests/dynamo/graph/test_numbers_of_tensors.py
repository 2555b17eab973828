"""Numbers that programs read from tensors: arithmetic, checks, messages and tensors made of them stay in one graph.

PYTEST_DONT_REWRITE: the programs assert as programs do.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from differential import EXACT, ROUNDED, Counts, Tolerance, assert_same_outcome, check, observe

import stator


class Level(enum.IntEnum):
    FOUR = 4


X = torch.tensor([1.5, -2.25, 3.0, 0.5])
SIGNS = torch.tensor([1.0, -2.0, 3.0, -4.0])
Program = Callable[[torch.Tensor], Any]


def alike(
    program: Program, inputs: list[torch.Tensor], backend: str = "eager", tolerance: Tolerance = ROUNDED, **options: Any
) -> Counts:
    """Calls with all inputs give what eager gives."""
    stator.reset()
    compiled, counts = stator.compile(program, backend=backend, **options), Counts()
    for x in inputs:
        expected, found = (observe(run, (x.clone(),)) for run in (program, compiled))
        assert_same_outcome(found, expected, tolerance)
    return counts


# ---- arithmetic ----


def whole(x: torch.Tensor) -> Any:
    v = x.abs().sum().item()
    return x * int(v), x + math.floor(v), x + math.ceil(v), x * round(v), x[: int(x[0]) % 3], int(x.max())


def whole_numbers(x: torch.Tensor) -> Any:
    n = x.long().abs().sum().item()
    quotient, rest = divmod(n, 3)
    return x * quotient + rest, x * n**2, x + abs(-n), x * max(n, 1), x * round(n)


def a_float_beside_a_count(x: torch.Tensor) -> Any:
    mean, count = x.mean().item(), int((x > 0).sum())
    return x * mean, x * count, mean * 2, count, x * (mean * count + 1)


def a_drawn_number_given_back(x: torch.Tensor) -> Any:
    number = torch.rand(1, 1).item()
    return (x * number).clamp(0, 1), number


def divided(x: torch.Tensor) -> Any:
    v = x.sum().item()
    return x * (v // 0.7), x * (v % 0.7), x + v // -0.7, x + v % -0.7, x + int(v // 1)


def written_behind(x: torch.Tensor) -> Any:
    first = x[0].item()
    x.mul_(2)
    return x * first, first


ONE_GRAPH: dict[str, Program] = {
    "functions": lambda x: [x * f(x.abs().sum().item()) for f in (math.sqrt, math.log, abs, float)],
    "an exponential": lambda x: x * math.exp(-x.abs().sum().item()),
    "powers": lambda x: (x * x[2].item() ** 2, x * x[0].abs().item() ** 0.5, x * 2.0 ** x[0].item()),
    "at least one": lambda x: x / max(x.abs().sum().item(), 1),
    "whole": whole,
    "whole numbers": whole_numbers,
    "divided": divided,
    "a float beside a count": a_float_beside_a_count,
    "given back": a_drawn_number_given_back,
    "written behind": written_behind,
    "a float": lambda x: torch.tensor(x[0].item() + 1) + x,
    "a float in half precision": lambda x: torch.tensor((x * 1e10).double()[0].item(), dtype=torch.float16),
    "a wide float": lambda x: torch.tensor(x[0].item() / 3, dtype=torch.float64) * x,
    "an int": lambda x: torch.tensor(int((x > 0).sum())),
    "an int as a float": lambda x: torch.tensor(2 * int((x > 0).sum()) + 1, dtype=torch.bfloat16) * x,
    "a large int": lambda x: torch.tensor((x[0].long() + 2**60 + 2**36 + 1).item(), dtype=torch.float32),
    "a float of an int": lambda x: torch.tensor(float((x > 0).sum())),
    "a truth": lambda x: (x * (x > 0).all().item(), x.long() + bool(x.sum() > 1), (x > 0) & (x[0] > 1).item()),
    "numbers of truths": lambda x: (x * float((x > 0).all()), x + int((x > 0).any()), float((x < 9).all())),
    "arithmetic of truths": lambda x: (x + (x[0] > 1).item() * 2.5, x * ((x[0] > 1).item() + (x[1] > 1).item())),
    "operators of bits": lambda x: (x * ((x[0] > 1).item() | (x[1] > 1).item()), (x[0] > 1).item() ^ (x[0] > 2).item()),
    "a tensor of a truth": lambda x: torch.where(torch.tensor(x[0].item() == math.inf), x, x + 1),
    "a list of floats": lambda x: torch.tensor([x[0].item(), 1, x.sum().item() * 2, int(x[0] > 1)]) + x,
    "a list of wide floats": lambda x: torch.tensor((x[0].item() / 3, True), dtype=torch.float64),
    "a list of truths": lambda x: torch.tensor([(x[0] > 0).item(), False]),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ONE_GRAPH)
def test_one_graph(name: str, backend: str) -> None:
    options = {"exact_random": True} if backend == "aot_eager" else None
    inputs = [X, X * 2, X.abs() * 0.75, X.flip(0).abs() + 1]
    counts = alike(ONE_GRAPH[name], inputs, backend, fullgraph=True, options=options)
    assert counts.compilations == 1


def least(x: torch.Tensor) -> Any:
    found = max(x.sum().item(), 1)
    return torch.tensor([2]) * found, type(found)


# where Python raises, or gives a number of another type, and tensors do not
OTHER_WAYS: dict[str, tuple[Program, list[float]]] = {
    "a logarithm": (lambda x: x * math.log(x.sum().item()), [0.0, -1.0]),
    "a root": (lambda x: x * math.sqrt(x.sum().item()), [-1.0]),
    "an exponential": (lambda x: x * math.exp(x.sum().item()), [1000.0]),
    "an int": (lambda x: x * int(x.sum().item()), [math.inf, math.nan]),
    "a floor": (lambda x: x * math.floor(x.sum().item()), [-math.inf]),
    "a remainder": (lambda x: x * (1.0 % x.sum().item()), [0.0]),
    "a reciprocal": (lambda x: x * (1.0 / x[0].item()), [0.0, -2.0]),
    "a negative power": (lambda x: x * x[0].item() ** -1, [0.0, -2.0]),
    "a complex power": (lambda x: x * x[0].item() ** 0.5, [-2.0]),
    "at least one": (least, [0.25, 1.0, math.nan]),
    "the larger of a float and an int": (lambda x: (torch.arange(3) * max(x[0].item(), 3), max(x[0].item(), 3)), [5.0]),
    "the larger of floats": (lambda x: (torch.arange(3) * max(x[0].item(), 3.0), max(x[0].item(), 3.0)), [5.0]),
    "another base": (lambda x: x * math.log(x.sum().item(), 3), [4.0]),
    "a sine": (lambda x: x * math.sin(x.sum().item()), [4.0]),
    "a branch": (lambda x: x + 1 if x.sum().item() > 3 else x - 1, [5.0]),
    "a comparison": (lambda x: (x, x.sum().item() > 3, bool(x.any().item())), [5.0]),
    "a truth and an int": (lambda x: (x, x.any().item() == 1, x.any().item() == 1), [0.0]),
    "a float and a count": (lambda x: (x, x.sum().item() == int((x > 0).sum()), x.sum().item() > x.numel()), [1.0]),
    "a float and a large int": (lambda x: (x, (x.sum().item() * 0 + 2.0**60) == 2**60), [1.0]),
    "a float and a complex": (lambda x: (x, x.sum().item() == 4 + 0j, x.sum().item() == "4"), [4.0]),
    "an int and a count of an enumeration": (lambda x: (x, int(x.sum()) == Level.FOUR), [4.0]),
    "a dtype that cannot hold it": (lambda x: torch.tensor(x[0].long().item(), dtype=torch.int8) + x, [300.0]),
    "a list that does not fit": (lambda x: torch.tensor([x.long()[0], 3], dtype=torch.int8) + x, [300.0]),
    "a list of tensors": (lambda x: torch.tensor([x.sum(), 2, x[0] * 3]) + x.sum(), [2.0]),
    "an index of lists": (lambda x: x[([x[0].long() % 1, 0],)], [2.0]),
    "a truth that chooses": (lambda x: (x, max((x > 3).item(), 0.5), torch.full((2,), (x > 3).item())), [9.0]),
    "a power of a truth": (lambda x: (x ** (x > 3).item(), (x > 3).item() ** x), [9.0]),
    "a branch on a truth": (lambda x: x + 1 if bool(x > 3) else x, [9.0]),
    "digits": (lambda x: x + round(int(x.sum().item()), -1), [17.0]),
}


@pytest.mark.graphs_may_fail_alone
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", OTHER_WAYS)
def test_where_python_goes_another_way(name: str, backend: str) -> None:
    program, numbers = OTHER_WAYS[name]
    for number in numbers:
        alike(program, [torch.tensor([value]) for value in (2.5, number, 3.5)], backend)


def test_a_list_is_repeated_as_often_as_a_tensor_says() -> None:
    alike(lambda x: ([1] * int(x[0]), int(x[2]) * (2, 3), "a" * int(x[2]), x + 1), [X, SIGNS])


@pytest.mark.graphs_may_fail_alone
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_under_fullgraph_the_larger_of_a_tensor_and_a_number_is_the_tensor(backend: str) -> None:
    program = lambda x: (min(max(x.sum(), 0), 1), max(0, x.sum()) * x)  # noqa: E731
    counts = alike(program, [torch.tensor([one]) for one in (0.5, -1.0, 2.0, math.nan)], backend, fullgraph=True)
    assert counts.compilations == 1 and counts["dynamo.failed_graphs"] == 3


@pytest.mark.graphs_may_fail_alone
@pytest.mark.parametrize("values", [(1.0, 2.0, 3.0), (3.0, 1.0, 2.0), (math.nan, 1.0, 2.0), (1.0, math.nan, 2.0)])
def test_under_fullgraph_the_largest_of_tensors_is_chosen_in_the_graph(values: tuple[float, ...]) -> None:
    made = lambda x: (max(x[0] * 1, x[1] * 1, x[2] + 0), min([x[1] + 0, x[0] + 0]))  # noqa: E731
    assert alike(made, [torch.tensor(values)], fullgraph=True)["dynamo.failed_graphs"] == 0
    check(made, torch.tensor(values, requires_grad=True), backend="eager", fullgraph=True)
    check(lambda x: max(x) is x[0], torch.tensor(values), backend="eager", fullgraph=True)


MEMBERS = {
    "of a list": lambda x: (1.5 in [x[0], 2], 7 in [1, x[0]], x[1] not in (3, x.sum()), 2 in [2, x[0]]),
    "of numbers": lambda x: (x.argmax().item() in (1, 2), x.sum().item() not in [2.75, 3]),
    "of a tensor": lambda x: (3 in x, x[2] in x, 9.0 not in x),
    "negations": lambda x: (not x.sum(), not x.argmax().item(), not (x > 2).any().item(), bool(x.sum())),
    "NaN": lambda x: (not x.log().sum().item(), x.log()[1] in [x.log()[1]], math.nan in [x.log()[1]]),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_truths_stay_in_the_graph(name: str) -> None:
    alike(MEMBERS[name], [X, X - 3, X * 0], fullgraph=True)


def test_lists_of_floats_become_numbers_and_tensors_again() -> None:
    program = lambda x: (torch.tensor(x.view(2, 2).tolist()), sum(x.tolist()), (x > 1).tolist())  # noqa: E731
    alike(program, [X, SIGNS], fullgraph=True, tolerance=EXACT)
    nested = lambda x: torch.as_tensor([[x[0].item(), 2], [3, x.argmax().item()]])  # noqa: E731
    alike(nested, [X, SIGNS], fullgraph=True, tolerance=EXACT)


def test_long_lists_stay_in_the_graph_under_fullgraph() -> None:
    """Without fullgraph a break is cheaper."""
    numbers = torch.arange(200).reshape(2, 100)

    def program(x: torch.Tensor) -> Any:
        rows = x.tolist()
        return x + rows[1][2], rows[0][7] * 2, len(rows[0])

    check(program, numbers, fullgraph=True, graphs=1)
    check(program, numbers, breaks=1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("train", [False, True])
def test_a_float_goes_from_segment_to_segment_of_a_graph(train: bool) -> None:
    """The count divides the graph; of segments that run in ATen because of the float there is a warning."""
    compiled = stator.compile(a_float_beside_a_count, backend="aot_eager", fullgraph=True)
    for x in (X, X.flip(0)):
        leaves = [x.clone().requires_grad_(train) for _ in range(2)]
        found, expected = compiled(leaves[0]), a_float_beside_a_count(leaves[1])
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
        if train:
            (found[0] + found[1]).sum().backward()
            (expected[0] + expected[1]).sum().backward()
            torch.testing.assert_close(leaves[0].grad, leaves[1].grad, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
def test_a_copy_of_numbers_has_no_gradient() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor([x.sum(), x[0], 1.0, 2.0]) * x * x[1].item()

    leaves = [X.clone().requires_grad_() for _ in range(2)]
    program(leaves[0]).sum().backward()
    stator.compile(program, backend="aot_eager")(leaves[1]).sum().backward()
    torch.testing.assert_close(leaves[0].grad, leaves[1].grad)


# ---- checks ----

LOG: list[str] = []


def asserts_with_a_message(x: torch.Tensor) -> torch.Tensor:
    LOG.append("before")
    y = x * 2
    assert (y > -3).all(), f"too small: {y.sum():.2f}"
    LOG.append("behind")
    return y + 1


def raises(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 10:
        raise ValueError(f"too large: {x.sum()}")
    return x - 1


def reads_numbers(x: torch.Tensor) -> torch.Tensor:
    assert x.max().item() <= 3
    assert x.long().min().item() >= -1
    return x * 3


def reads_a_truth(x: torch.Tensor) -> torch.Tensor:
    if not torch.isfinite(x).all().item():
        raise RuntimeError("not finite")
    return x + 3


def in_a_function(x: torch.Tensor) -> torch.Tensor:
    def check(values: torch.Tensor) -> None:
        if (values < 0).any() or (values > 100).any():
            raise ValueError("out of range")

    check(x)
    return x.exp()


def by_torch(x: torch.Tensor) -> torch.Tensor:
    torch._check_tensor_all(x < 5, lambda: f"bad: {x}")
    torch._assert((x > -5).all(), "too small")
    return x + 4


def of_a_count(x: torch.Tensor) -> torch.Tensor:
    found = x[x > 0]
    if found.shape[0] == 2:
        raise ValueError(f"{found.shape[0]:>3} numbers, not two")
    torch._check_with(IndexError, found.numel() != 0, lambda: f"found {found.numel()} of {x.numel()}")
    return found + 1


CHECKS = [asserts_with_a_message, raises, reads_numbers, reads_a_truth, in_a_function, by_torch, of_a_count]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("program", CHECKS)
def test_a_check_ends_as_in_eager(program: Program, backend: str) -> None:
    stator.reset()
    inputs = [torch.ones(3), -torch.ones(3), torch.full((3,), 7.0), torch.tensor([1.0, float("nan"), 2.0])]
    compiled, counts = stator.compile(program, backend=backend), Counts()
    for x in inputs * 2:
        expected, found = (observe(run, (x,), log=LOG) for run in (program, compiled))
        assert_same_outcome(found, expected, EXACT if backend == "eager" else ROUNDED, lines=True)
    assert not counts.breaks


def test_what_the_program_handles() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            if x.sum() > 0:
                raise ValueError
        except ValueError:
            return x + 1
        return x - 1

    alike(program, [torch.ones(2), -torch.ones(2)] * 2)


@pytest.mark.parametrize("writes_first", [True, False])
def test_a_graph_that_writes_to_its_inputs_does_not_begin_anew(writes_first: bool) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if writes_first:
            x.add_(1)
        if x.sum() > 0:
            raise ValueError("positive")
        x.add_(1)
        return x - 1

    alike(program, [-torch.ones(2) * 3, torch.ones(2), -torch.ones(2) * 3])


def test_gradients_pass_a_check() -> None:
    leaves = [torch.full((3,), 0.5, requires_grad=True) for _ in range(2)]
    stator.compile(raises, fullgraph=True)(leaves[0]).exp().sum().backward()
    raises(leaves[1]).exp().sum().backward()
    torch.testing.assert_close(leaves[0].grad, leaves[1].grad)


OF_TENSORS = """
torch.tensor([x.sum(), x.mean()])
torch.tensor([[torch.cos(x[0]), -x[1]], [x[1], 2]])
torch.tensor([x.half().sum(), x.bfloat16().sum()])
torch.tensor([x.double().sum(), 1])
torch.tensor([x.long().sum(), 2]), torch.tensor([x.long().sum(), 2.5])
torch.tensor([x.char()[1], x.char()[2]]), torch.tensor([x.char()[1], 2])
torch.tensor([x.sum(), x.sum().item(), x.shape[0]])
torch.tensor([x.sum(), 2], dtype=torch.float16), torch.as_tensor((x.sum(), 2.0), dtype=torch.float64)
torch.tensor([w.sum() * 2, 1.0]), torch.tensor([w.sum()]).requires_grad
torch.FloatTensor([x.sum(), 2]), x.new_tensor([x.sum(), 1])
""".strip().splitlines()


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("text", OF_TENSORS)
def test_a_tensor_of_tensors_without_dimensions(text: str, backend: str) -> None:
    program = eval(f"lambda x, w: (x + 1, {text})", globals())
    x, w = torch.arange(4.0), torch.ones(2, requires_grad=True)
    expected, found = program(x, w), stator.compile(program, backend=backend, fullgraph=True)(x, w)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "text", ["torch.tensor([x[1].long()], dtype=torch.int32)", "torch.tensor([x.any(), True])", "torch.tensor([x[:1]])"]
)
def test_other_tensors_of_tensors_break(text: str) -> None:
    program = eval(f"lambda x: (x + 1, {text})", globals())
    x = torch.arange(4.0)
    assert torch.equal(stator.compile(program, backend="eager")(x)[1], program(x)[1])


def test_eager_refuses_a_tensor_of_tensors_under_vmap() -> None:
    program = eval("lambda x: torch.vmap(lambda row: torch.tensor([row.sum(), 1.0]))(x)", globals())
    for function in (program, stator.compile(program, backend="eager")):
        with pytest.raises(RuntimeError):
            function(torch.ones(2, 3))
