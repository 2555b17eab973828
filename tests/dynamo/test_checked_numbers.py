"""Checks of numbers that are read from tensors, and numbers in messages: what is raised, and what happened before it,
is as in eager.

PYTEST_DONT_REWRITE: the programs assert as programs do.
"""

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

Program = Callable[[torch.Tensor, int, list[str]], torch.Tensor]


def asserts_with_a_message(x: torch.Tensor, n: int, log: list[str]) -> torch.Tensor:
    log.append("before")
    y = x * 2
    assert (y > 0).all(), f"not positive: {y.sum():.2f} of {n}"
    log.append("behind")
    return y + 1


def raises(x: torch.Tensor, n: int, log: list[str]) -> torch.Tensor:
    if x.sum() > 10:
        raise ValueError(f"too large: {x.sum()}")
    return x - 1


def reads_the_number(x: torch.Tensor, n: int, log: list[str]) -> torch.Tensor:
    assert x.max().item() <= n
    return x * 3


def reads_the_truth(x: torch.Tensor, n: int, log: list[str]) -> torch.Tensor:
    if not torch.isfinite(x).all().item():
        raise RuntimeError("not finite")
    return x + n


def in_a_function(x: torch.Tensor, n: int, log: list[str]) -> torch.Tensor:
    def check(values: torch.Tensor) -> None:
        if (values < 0).any() or (values > 100).any():
            raise ValueError("out of range")

    check(x)
    return x.exp()


def by_torch(x: torch.Tensor, n: int, log: list[str]) -> torch.Tensor:
    torch._check_tensor_all(x < 5, lambda: f"bad: {x}")
    torch._assert((x > -5).all(), "too small")
    return x + 4


CHECKED = [asserts_with_a_message, raises, reads_the_number, reads_the_truth, in_a_function, by_torch]
INPUTS = [torch.ones(3), -torch.ones(3), torch.full((3,), 7.0), torch.tensor([1.0, float("nan"), 2.0])]


def outcome(program: Program, x: torch.Tensor) -> tuple[Any, ...]:
    log: list[str] = []
    try:
        result, error = program(x, 3, log), None
    except Exception as raised:
        last = traceback.extract_tb(raised.__traceback__)[-1]
        result, error = None, (type(raised), str(raised).splitlines()[:1], last.name, last.lineno)
    return result, error, log


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("program", CHECKED)
def test_a_check_ends_as_in_eager(program: Program, backend: str) -> None:
    compiled = stator.compile(program, backend=backend)
    for x in INPUTS * 2:
        result, *others = outcome(compiled, x)
        expected, *wanted = outcome(program, x)
        assert others == wanted
        if expected is not None:
            torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("program", CHECKED)
def test_it_is_part_of_one_graph(program: Program) -> None:
    log: list[str] = []
    compiled = stator.compile(program, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(torch.ones(3), 3, log), program(torch.ones(3), 3, log))


def test_gradients_pass_a_check() -> None:
    x, y = (torch.rand(3, generator=torch.Generator().manual_seed(0)).requires_grad_() for _ in range(2))
    stator.compile(raises, fullgraph=True)(x, 3, []).exp().sum().backward()
    raises(y, 3, []).exp().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_what_the_program_handles() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            if x.sum() > 0:
                raise ValueError
        except ValueError:
            return x + 1
        return x - 1

    compiled = stator.compile(program, backend="eager")
    for x in (torch.ones(2), -torch.ones(2)) * 2:
        torch.testing.assert_close(compiled(x), program(x))


@pytest.mark.parametrize("writes_first", [True, False])
def test_a_graph_that_writes_to_its_inputs_does_not_begin_anew(writes_first: bool) -> None:
    def program(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        if writes_first:
            count.add_(1)
        if x.sum() > 0:
            raise ValueError("positive")
        count.add_(1)
        return x - 1

    compiled = stator.compile(program, backend="eager")
    ours, eagers = torch.zeros(1), torch.zeros(1)
    for x in (-torch.ones(2), torch.ones(2), -torch.ones(2)):
        for function, count in ((compiled, ours), (program, eagers)):
            try:
                function(x, count)
            except ValueError as error:
                assert str(error) == "positive"
        torch.testing.assert_close(ours, eagers)


def test_numbers_of_tensors_in_text() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, str, str]:
        total = x.sum()
        text = f"{total}"
        total += 1
        return x + 1, f"sum {text} then {total:.3f}, {x.shape[0]} of them", text

    compiled = stator.compile(program, backend="eager", fullgraph=True)
    for x in (torch.ones(3), torch.tensor([0.5, -2.25, 1e-3])):
        torch.testing.assert_close(compiled(x)[0], program(x)[0])
        assert compiled(x)[1:] == program(x)[1:]


@pytest.mark.parametrize(
    "show",
    [
        lambda total, text: f"{total!r}",
        lambda total, text: f"{total!s}",
        lambda total, text: f"{text!r}",
        lambda total, text: f"<{text!a}>",
        lambda total, text: f"{text!s} {text}",
        lambda total, text: f"{text:>9}",
    ],
)
def test_conversions_show_tensors_and_quote_text(show: Callable[[torch.Tensor, str], str]) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        total = x.sum()
        return x + 1, show(total, f"{total}")

    compiled = stator.compile(program, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(3))[1] == program(torch.ones(3))[1]


def test_numbers_of_tensors_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        loss = x.square().mean()
        print(f"loss {loss:.4f}")
        return loss * 2

    compiled = stator.compile(program, fullgraph=True)
    compiled(torch.arange(4.0))
    program(torch.arange(4.0))
    first, second = capsys.readouterr().out.splitlines()
    assert first == second == "loss 3.5000"
